"""Refined coordinate check of the Transformer: predictions hold for muP and MSSP, and are refuted for SP."""

from __future__ import annotations

from fractions import Fraction
from functools import cache

import pytest

torch = pytest.importorskip("torch")

from scaling_algebra.axes import regime  # noqa: E402
from scaling_algebra.errors import UsageError  # noqa: E402
from scaling_algebra.verify.claims import Claim  # noqa: E402
from scaling_algebra.verify.coordinates import measure_transformer, predicted, split  # noqa: E402
from scaling_algebra.verify.report import judge  # noqa: E402
from scaling_algebra.verify.scaled import recipe  # noqa: E402
from scaling_algebra.verify.transformer import Transformer  # noqa: E402

BASE = {"II": {"N": 32, "N_e": 16, "M": 8, "K": 4}, "III": {"N": 32, "N_e": 16, "M": 4, "K": 2}}
HALF, NONE = Fraction(1, 2), Fraction(0)


@cache
def trained(name, where):
    return measure_transformer(
        regime(where), name, BASE[where], widths=(32, 64, 128), seeds=4, steps=2, batch=2, device="cpu"
    )


def check(name, where, claims=(), against=None):
    return judge(
        trained(name, where), predicted(regime(where), against or name, steps=2), [Claim.parse(c) for c in claims]
    )


@pytest.mark.parametrize(("name", "where"), [("mup", "III"), ("mssp", "III"), ("mup", "II"), ("mssp", "II")])
def test_predictions_hold(name, where):
    report = check(name, where)
    later = [r for r in report.rows if r.predicted is not None]
    agree = sum(r.verdict == "AGREES" for r in later)
    assert report.exit_code == 0 and all(g.passed for g in report.gates), report.text()
    assert report.counts["REFUTED"] == 0 and agree > 0.8 * len(later) > 20, report.text()


def test_standard_parameterization_is_refuted():
    """Negative control: its effective updates grow like the width."""
    report = check("sp", "III", against="mup")
    refuted = {r.quantity for r in report.rows if r.verdict == "REFUTED"}
    assert report.exit_code == 1
    assert refuted >= {f"{x}[{k}].effective" for x in ("psi", "h2", "h3i", "h3") for k in (0, 1)}, report.text()


def test_wrong_claims_are_refuted():
    """The initial aggregate tells muP from MSSP; per-expert outputs of MSSP grow in regime II."""
    report = check("mssp", "II", ["h3[0].init@0=-1/2", "h3i[1].propagating@2=0", "h3i[1].init@0=0"])
    assert [r.verdict for r in report.claims][::2] == ["REFUTED", "REFUTED"]
    assert report.claims[1].verdict != "AGREES"


def test_predictions_come_from_desiderata_and_initial_signals():
    mup, mssp = (predicted(regime("II"), name, blocks=1, steps=2) for name in ("mup", "mssp"))
    assert mup["h3[0].init"] == [-HALF] and mssp["h3[0].init"] == [NONE]
    assert mup["h3i[0].propagating"][2] == NONE and mssp["h3i[0].propagating"][2] == HALF
    assert "h3[0].propagating" not in mup and mssp["h3[0].propagating"] == [None, None, NONE]
    router = predicted(regime("I"), "mssp", blocks=1, steps=2)  # starts at zero
    assert router["psi[0].propagating"] == [None] * 3 and router["psi[0].effective"][2] == NONE
    with pytest.raises(UsageError, match="derived parameterization"):
        predicted(regime("II"), "sp")


def test_parts_add_up():
    """propagating + effective is the change of the map's output, for every map of every layer, on the chosen pairs."""
    made = recipe(regime("III"), "adamw", "mup", BASE["III"], True)
    model = Transformer(made, made.dims(32), [0, 1], "cpu", context=8, blocks=2, head=16).double()
    tokens = torch.randint(0, 256, (2, 2, 8), generator=torch.Generator().manual_seed(0))
    start = {k: p.detach().clone() for k, p in model.weights.items()}
    with torch.no_grad():
        first = model.stream(tokens)
        for p in model.weights.values():
            p += 0.01 * torch.randn(p.shape, generator=torch.Generator().manual_seed(1))
        masks = [layer.gates > 0 for layer in first[1]]
        named = split(model, start, first, masks, tokens)
        now = model.stream(tokens, [m.double() for m in masks])[1]
    for k in (0, 1):
        torch.testing.assert_close(
            named[f"psi[{k}].propagating"] + named[f"psi[{k}].effective"], now[k].psi - first[1][k].psi
        )
        moved = (now[k].h2 - first[1][k].h2)[masks[k]].view(2, -1, 16)
        torch.testing.assert_close(named[f"h2[{k}].propagating"] + named[f"h2[{k}].effective"], moved)
        regated = model.multiplier * torch.einsum(
            "spi,spike->spe",
            now[k].gates - first[1][k].gates,
            torch.nn.functional.gelu(first[1][k].h2)[..., None] * start[f"expert_out_{k}"][:, None],
        )
        parts = sum(named[f"h3[{k}].{part}"] for part in ("init", "propagating", "effective"))
        torch.testing.assert_close(parts + regated, now[k].h3)
