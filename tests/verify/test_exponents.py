"""Claims about one exponent each, measured; with every right one, wrong ones that must be refuted."""

from __future__ import annotations

from fractions import Fraction

import pytest

torch = pytest.importorskip("torch")

from scaling_algebra import Configuration, derive, signals
from scaling_algebra.spec.axes import REGIMES, Ray
from scaling_algebra.verify import Claim, judge, measure
from scaling_algebra.verify.judging.fit import Verdict
from scaling_algebra.verify.measuring.predictions import release_gate
from scaling_algebra.verify.measuring.sizes import compute_dims, compute_effective_n

READOUT = {"given": {"readout.init": "N^-1/2"}}
SMALL = {"sizes": [16, 24, 36, 54], "seeds": 48}
WIDE = {"sizes": [32, 64, 128, 256], "seeds": 32}


def asked(regime, optimizer, parameterization, **options):
    return derive(Configuration.of(regime, optimizer, parameterization, **options))


@pytest.mark.parametrize(
    ("made", "effort", "right", "wrong"),
    [
        # what is proved for every step, beyond the steps that are examined exactly
        (
            lambda: asked("III", "adam", "mssp"),
            {"sizes": [16, 32, 64], "seeds": 16},
            ["h1.change@8=0", "psi.change@8=0", "h3.change@8=0", "h3.A1@8=0", "h3.A2.2@8=0", "f@8=0", "gW2@8=-2"],
            ["h3.change@8=1/2", "gW2@8=-3/2"],
        ),
        # with a derived epsilon the router's first step is n^(-1/2) in regime II; not without one
        (lambda: asked("II", "signsgd", "mup"), WIDE, ["psi.effective@1=0"], ["psi.effective@1=-1/2"]),
        (
            lambda: asked("II", "adam", "mup", epsilon="negligible"),
            WIDE,
            ["psi.effective@1=0"],
            ["psi.effective@1=-1/2"],
        ),
        # what is given is what is trained: g3.init is the readout itself
        (lambda: asked("III", "sgd", "mup", **READOUT), SMALL, ["g3.init@0=-1/2"], ["g3.init@0=-1"]),
        (lambda: asked("III", "sgd", "mup"), SMALL, ["g3.init@0=-1"], ["g3.init@0=-1/2"]),
        # decoupled decay: what was learned, and what the weights did
        (
            lambda: derive(ray="N=1", optimizer="adamw", parameterization="mup", architecture="mlp"),
            WIDE,
            ["dW2@1=-1", "dW2.with-decay@1=-1/2", "h1.change.with-decay@1=0", "h2.change.with-decay@1=0"],
            ["dW2@1=-1/2", "dW2.with-decay@1=-1"],
        ),
    ],
    ids=["eight steps", "signsgd", "negligible epsilon", "given readout", "own readout", "decay"],
)
def test_right_claims_agree_and_wrong_ones_are_refuted(made, effort, right, wrong):
    """A claim's step follows its @; training ends with the last."""
    steps = max(int(claim.partition("@")[2].partition("=")[0]) for claim in right)
    measured = measure(made(), steps=steps, device="cpu", **effort)
    for claims, verdict in ((right, Verdict.AGREES), (wrong, Verdict.REFUTED)):
        found = judge(measured, {}, [Claim.parse(c) for c in claims]).claims
        assert [r.verdict for r in found] == [verdict] * len(claims), [(r.quantity, r.verdict, r.fit) for r in found]


def test_experts_that_outnumber_neurons_see_an_alignment_that_held_gates_miss():
    """With gates replaced by their mean and slope (MSSP paper, J.2, B2) this product would be n^(-1/2)."""
    aligned, ray = "<g1.router.Q0@1, h1@0>", "N=1/2,N_e=1/2,M=1"
    d = derive(None, "sgd", "mup", ray=ray)
    m = measure(d, sizes=[256, 400, 676, 1156], seeds=40, steps=1, device="cpu", products=[aligned])
    assert release_gate(d).analysis()("g1.router.Q0", 1).exponent != d.analysis()("g1.router.Q0", 1).exponent
    assert release_gate(derive("III", "sgd", "mup")).network.name == "moe"
    claims = [Claim.parse(f"{aligned}@1={exponent}") for exponent in ("-1/2", "0")]
    held, alive = judge(m, {}, claims).claims
    assert held.verdict is Verdict.REFUTED and alive.verdict is not Verdict.REFUTED


def test_measured_exponents_away_from_the_regimes():
    """No exponent is refuted and most agree; half a power more, and none agrees and most are refuted."""
    predicted = signals(None, "adam", "mup", ray="N=1,N_e=3/2,M=1/2")
    found = measure(predicted.derivation, sizes=[25, 36, 49, 64], seeds=32)
    counts = judge(found, predicted.prediction()).counts
    assert counts["REFUTED"] == 0 and 3 * counts["AGREES"] > 2 * sum(counts.values())
    wrong = {
        name: tuple(None if p is None else p + Fraction(1, 2) for p in row)
        for name, row in predicted.prediction().items()
    }
    planted = [row.verdict for row in judge(found, wrong).rows if row.predicted is not None]
    assert "AGREES" not in planted and 2 * planted.count("REFUTED") > len(planted)


def test_dimensions_follow_the_ray_from_the_first_size():
    """All sizes of a ray lie on one side of every wall; in the regimes all growing axes are equal."""
    assert compute_dims(Ray.parse("N=1,N_e=1/2,M=3/2"), 64) == {"N": 64, "N_e": 8, "M": 512}
    assert compute_dims(REGIMES["III"], 48) == {"N": 48, "N_e": 48, "M": 48}
    own = Ray.parse("N=0,rank=1/2,heads=1")
    first, last = compute_dims(own, 16), compute_dims(own, 64)
    assert (
        last == {"N": 4, "N_e": 4, "M": 4, "heads": 64, "rank": 8} and compute_effective_n(own, last, first, 16) == 64
    )
