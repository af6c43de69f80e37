"""Refined coordinate check of the Transformer: predictions hold for muP and MSSP, and are refuted for SP."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from functools import cache

import pytest

torch = pytest.importorskip("torch")

from scaling_algebra.errors import UsageError
from scaling_algebra.spec.configuration import Configuration
from scaling_algebra.verify.campaigns.plans import Effort, job
from scaling_algebra.verify.campaigns.session import Session
from scaling_algebra.verify.hardware import Hardware
from scaling_algebra.verify.judging.claims import Claim
from scaling_algebra.verify.judging.verdicts import judge
from scaling_algebra.verify.measuring.coordinates import split_layers
from scaling_algebra.verify.measuring.pool import Here
from scaling_algebra.verify.measuring.predictions import predicted_layers
from scaling_algebra.verify.measuring.store import Store
from scaling_algebra.verify.networks.base_shapes import recipe
from scaling_algebra.verify.networks.scales import TRANSFORMER
from scaling_algebra.verify.networks.transformer import Transformer

HALF, NONE = Fraction(1, 2), Fraction(0)


@cache
def trained(name, where):
    """A run of the Transformer, measured."""
    run = job(Configuration.of(where, "adamw", name), Effort(seeds=4), "transformer")
    store = Store()
    Session(store, Here(Hardware())).perform([run])
    return run, run.measured(store)


def check(name, where, claims=()):
    run, found = trained(name, where)
    return judge(found, run.prediction(), [Claim.parse(c) for c in claims])


@pytest.mark.parametrize(("name", "where"), [("mup", "III"), ("mssp", "II")])
def test_predictions_hold(name, where):
    report = check(name, where)
    later = [r for r in report.rows if r.predicted is not None]
    agree = sum(r.verdict == "AGREES" for r in later)
    assert report.exit_code == 0 and all(g.passed for g in report.gates)
    assert "standard parameterization refuted" in [g.name for g in report.gates]
    assert report.counts["REFUTED"] == 0 and agree > 0.8 * len(later) > 20


def test_standard_parameterization_is_refuted():
    """Negative control: its effective updates grow like the width."""
    run, found = trained("mup", "III")
    report = judge(replace(found, values=found.standard, standard={}), run.prediction())
    refuted = {r.quantity for r in report.rows if r.verdict == "REFUTED"}
    assert report.counts["REFUTED"]
    assert refuted >= {f"{x}[{k}].effective" for x in ("psi", "h2", "h3i", "h3") for k in (0, 1)}


def test_the_text_is_the_same_at_every_size():
    _, found = trained("mup", "III")
    assert len(set(found.inputs)) == 1 and len(found.inputs) == 3
    assert len(set(found.parameters)) == 3 and found.dims[-1] == {"N": 128, "N_e": 64, "M": 16, "K": 8}


def test_wrong_claims_are_refuted():
    """The initial aggregate tells muP from MSSP; per-expert outputs of MSSP grow in regime II."""
    report = check("mssp", "II", ["h3[0].init@0=-1/2", "h3i[1].propagating@2=0", "h3i[1].init@0=0"])
    assert [r.verdict for r in report.claims][::2] == ["REFUTED", "REFUTED"]
    assert report.claims[1].verdict != "AGREES"


def test_predictions_come_from_desiderata_and_initial_signals():
    mup, mssp = (predicted_layers(Configuration.of("II", "adamw", name)) for name in ("mup", "mssp"))
    assert mup["h3[0].init"] == [-HALF] and mssp["h3[0].init"] == [NONE]
    assert mup["h3i[0].propagating"][2] == NONE and mssp["h3i[0].propagating"][2] == HALF
    assert "h3[0].propagating" not in mup and mssp["h3[0].propagating"] == [None, None, NONE]
    router = predicted_layers(Configuration.of("I", "adamw", "mssp"))  # starts at zero
    assert router["psi[0].propagating"] == [None] * 3 and router["psi[0].effective"][2] == NONE
    with pytest.raises(UsageError, match="derived parameterization"):
        predicted_layers(Configuration.of("II", "adamw", "sp"))


def test_parts_add_up():
    """propagating + effective is the change of the map's output, for every map of every layer, on the chosen pairs."""
    made = recipe(Configuration.of("III", "adamw", "mup"), TRANSFORMER, True)
    model = Transformer(made, made.dims(32), [0, 1], "cpu", context=8, blocks=2, head=16).double()
    tokens = torch.randint(0, 256, (2, 2, 8), generator=torch.Generator().manual_seed(0))
    start = {k: p.detach().clone() for k, p in model.weights.items()}
    with torch.no_grad():
        first = model.stream(tokens)
        for p in model.weights.values():
            p += 0.01 * torch.randn(p.shape, generator=torch.Generator().manual_seed(1))
        masks = [layer.gates > 0 for layer in first[1]]
        named = split_layers(model, start, first, masks, tokens)
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
