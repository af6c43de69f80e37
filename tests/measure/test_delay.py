"""MSSP paper, App. Q.4.2: muP from a zero readout in regime II starts n^-1 too small, and catches up over updates.

At every fixed update the power is n^-1 (the engine's); at fixed sizes the output grows by a factor each update, until
the square loss stops it. The curve of slopes is the evidence.
"""

import pytest

torch = pytest.importorskip("torch")

from scaling_algebra import derive
from scaling_algebra.verify.judging.fit import fit_exponent

DEPENDS = ("derives", "verify/judging")
SIZES, SEEDS, UPDATES, RATE = (32, 64, 128, 256), 64, 16, 0.3


def outputs(rule, n):
    """Absolute outputs, (updates + 1, seeds), of blocks trained to 1 on one sample with a square loss."""
    d, dims, g = derive("II", "sgd", rule, readout_init="zero"), {"N": n, "N_e": 4, "M": n, "K": n}, torch.Generator()
    g.manual_seed(0)
    shapes = dict(input=(n, 4), router=(n, n), expert_in=(n, 4, n), expert_out=(n, n, 4), readout=(n,))
    stds = {r: s.at(dims) if (s := d[r].init_std) else 0.0 for r in shapes}
    w = {r: (torch.randn(SEEDS, *shape, generator=g) * stds[r]).requires_grad_() for r, shape in shapes.items()}
    found = []
    for _ in range(UPDATES + 1):
        h1 = w["input"] @ torch.full((4,), 0.5)
        gates = torch.sigmoid(torch.einsum("smn,sn->sm", w["router"], h1))
        h3 = torch.einsum("sm,smnk,smkp,sp->sn", gates, w["expert_out"], w["expert_in"], h1) / d.scaling.alpha.at(dims)
        f = (w["readout"] * h3).sum(1)
        found.append(f.detach().abs())
        steps = torch.autograd.grad(((f - 1) ** 2 / 2).sum(), list(w.values()))
        with torch.no_grad():
            for (r, x), step in zip(w.items(), steps, strict=True):
                x -= RATE * d[r].lr.at(dims) * step
    return torch.stack(found).double().numpy()


@pytest.mark.parametrize(("rule", "late"), [("mup", True), ("mssp", False)])
def test_the_output_starts_too_small_and_catches_up(rule, late, record_property):
    """MSSP, whose output is not too small, is the control."""
    by_size = [outputs(rule, n) for n in SIZES]
    fits = [fit_exponent(SIZES, [x[t] for x in by_size]) for t in range(1, UPDATES + 1)]
    record_property("slope of f at t = 1, 2, ...", [round(x.slope, 2) for x in fits])
    record_property("size of f at N = 256", [round(float((x**2).mean() ** 0.5), 4) for x in by_size[-1][1:]])
    early = [x.slope for x in fits[:3]]
    assert all(x < -0.75 for x in early) if late else all(abs(x) < 0.25 for x in early)
    assert abs(fits[-1].slope) < 0.05
