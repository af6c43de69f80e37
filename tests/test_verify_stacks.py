"""Sizes trained side by side, padded with zeros, against the same networks trained alone."""

from __future__ import annotations

from collections import Counter
from math import prod

import pytest

torch = pytest.importorskip("torch")

from scaling_algebra import derive  # noqa: E402
from scaling_algebra.optimizers import OPTIMIZERS  # noqa: E402
from scaling_algebra.verify import runs, stacks  # noqa: E402
from scaling_algebra.verify.campaign import job  # noqa: E402
from scaling_algebra.verify.cells import cells  # noqa: E402
from scaling_algebra.verify.plan import elements  # noqa: E402
from scaling_algebra.verify.replicas import Lot, Replicas, indices  # noqa: E402
from scaling_algebra.verify.store import Store  # noqa: E402

LOTS = (
    Lot({"N": 24, "N_e": 6, "M": 5}, [1, 2]),
    Lot({"N": 10, "N_e": 13, "M": 3}, [3]),
    Lot({"N": 7, "N_e": 4, "M": 9}, [4, 5, 6]),
)
"""None is the largest in every direction."""

PRODUCTS = ["<h2, h2.propagating@1>", "<h1.change, g1>", "<h3i.update.normalised, h3i>"]
MEASURABLE = [name for name, o in OPTIMIZERS.items() if o.torch]


def differences(rule, parameterization, regime="III"):
    """What differs between lots trained side by side and each of them alone, by quantity and step."""
    d = derive(regime, rule, parameterization)
    together = runs.train(Replicas(LOTS), d.scaling, d.optimizer, 2, PRODUCTS, check=True)
    found = set()
    for lot, rows in zip(LOTS, Replicas(LOTS).rows, strict=True):
        alone = runs.train(Replicas.of(lot.dims, lot.seeds), d.scaling, d.optimizer, 2, PRODUCTS, check=True)
        assert alone.keys() == together.keys() and len(alone) > 300
        for key, values in alone.items():
            if together[key][rows] != pytest.approx(values, rel=1e-6, abs=1e-12, nan_ok=True):
                found.add(key)
    return found


@pytest.mark.parametrize("parameterization", ["mup", "mssp"])
@pytest.mark.parametrize("rule", MEASURABLE)
def test_sizes_side_by_side_are_trained_as_each_alone(rule, parameterization):
    assert not differences(rule, parameterization)


def test_padded_experts_would_be_seen(monkeypatch):
    """Negative control: the gate of a padded expert is 1/2."""
    real = Replicas.present
    monkeypatch.setattr(Replicas, "present", lambda self, dtype: torch.ones_like(real(self, dtype)))
    wrong = {quantity for quantity, _ in differences("sgd", "mup")}
    assert {"phi", "phi.init", "g3i"} <= wrong and "h3" not in wrong


def test_padding_in_a_mean_would_be_seen(monkeypatch):
    """Negative control: root-mean-square over all entries."""

    def padded(self, name):
        return self.each(prod(self.largest.shape(indices(name))) for _ in self.lots)

    monkeypatch.setattr(Replicas, "entries", padded)
    wrong = {quantity for quantity, _ in differences("sgd", "mup")}
    assert {"h1", "h2.update.normalised", "h3i", "dW2", "gQ"} <= wrong and "f" not in wrong


def test_every_cell_is_in_one_stack_and_stacks_are_of_one_kind(monkeypatch):
    monkeypatch.setitem(stacks.CALLS, "cpu", 2**20)
    setup = job("III", "adam", "mup", sizes=(8, 12, 18, 27), seeds=64, dtype="float32").setup()
    todo = cells(setup)
    found = stacks.stacks(setup, todo, "cpu", 2**28)
    assert Counter(c for group in found for c in group) == Counter(todo)
    assert any(len({cell.size for cell in group if cell.kind == "values"}) > 1 for group in found)
    for group in found:
        kinds = {cell.kind for cell in group}
        assert len(kinds) == 1 or kinds == {"values", "control"}
        assert stacks.stacks(setup, group, "cpu", 2**28) == [group]


def test_no_stack_is_padded_for_more_than_it_saves(monkeypatch):
    monkeypatch.setitem(stacks.CALLS, "cpu", 2**20)
    setup = job("I", "sgd", "mup").setup()
    todo = cells(setup)
    whole = {c: elements(stacks.trained(setup, c.kind).dims(c.size)) * c.count for c in todo}
    found = stacks.stacks(setup, todo, "cpu", 2**28)
    assert 1 < len(found) < len(todo)
    for group in found:
        largest = max(elements(stacks.trained(setup, c.kind).dims(c.size)) for c in group)
        padding = largest * sum(c.count for c in group) - sum(whole[c] for c in group)
        assert padding <= 2**20 * (len(group) - 1)


@pytest.mark.parametrize(
    ("options", "room"),
    [
        ({"ray": "N=1,N_e=1,M=1,K=1/2", "sizes": (8, 12, 16)}, 2**28),
        ({"ray": "N=1,N_e=1,M=1", "architecture": "transformer", "sizes": (32, 48, 64)}, 2**28),
        ({"ray": "N=1,N_e=1,M=1", "sizes": (8, 12, 16)}, 2**10),
    ],
)
def test_what_cannot_be_stacked_is_not(options, room):
    setup = job(None, "adamw", "mup", seeds=2, **options).setup()
    assert all(len(group) == 1 for group in stacks.stacks(setup, cells(setup), "cpu", room))


def test_a_run_in_stacks_is_the_run_cell_by_cell(monkeypatch):
    run, reports = job("III", "adamw", "mup", sizes=(6, 8, 11), seeds=8, steps=1), []
    for calls in (stacks.CALLS["cpu"], 0):
        monkeypatch.setitem(stacks.CALLS, "cpu", calls)
        store, trained, real = Store(), [], runs.train
        monkeypatch.setattr(runs, "train", lambda *a, real=real, trained=trained: (trained.append(a), real(*a))[1])
        setup = run.setup()
        runs.perform(setup, cells(setup), "cpu", store, run.name)
        monkeypatch.setattr(runs, "train", real)
        reports.append((len(trained), run.report(store)))
    (few, stacked), (many, single) = reports
    assert few == 2 and many == len(cells(setup))
    for a, b in zip(stacked.rows, single.rows, strict=True):
        assert (a.quantity, a.step, a.verdict) == (b.quantity, b.step, b.verdict)
        assert a.fit.slope == pytest.approx(b.fit.slope, rel=1e-9, abs=1e-9, nan_ok=True)
