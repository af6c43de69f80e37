"""Sizes trained side by side, padded with zeros, against the same networks trained alone."""

from __future__ import annotations

from collections import Counter
from math import prod

import pytest

torch = pytest.importorskip("torch")

from scaling_algebra import derive
from scaling_algebra.spec.optimizers import OPTIMIZERS
from scaling_algebra.verify.campaigns.campaign import job
from scaling_algebra.verify.judging.measurement import GRADIENTS, INPUT, PARAMETERS, SECONDS
from scaling_algebra.verify.measuring import runs, stacks
from scaling_algebra.verify.measuring.cells import Cell, cells
from scaling_algebra.verify.measuring.sizes import elements
from scaling_algebra.verify.measuring.store import Store
from scaling_algebra.verify.networks.replicas import Lot, Replicas, indices

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
    monkeypatch.setattr(Replicas, "present", property(lambda self: torch.ones_like(real.func(self))))
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
    whole = {c: elements(setup.dims_of(c)) * c.count for c in todo}
    found = stacks.stacks(setup, todo, "cpu", 2**28)
    assert 1 < len(found) < len(todo)
    for group in found:
        largest = max(elements(setup.dims_of(c)) for c in group)
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


def stored(setup, todo, monkeypatch, calls):
    """What is kept of some cells, and how many trainings it took."""
    store, took, real = Store(), [], runs.train
    with monkeypatch.context() as patched:
        patched.setitem(stacks.CALLS, "cpu", calls)
        patched.setattr(runs, "train", lambda *a: (took.append(a), real(*a))[1])
        runs.perform(setup, todo, "cpu", store, "run")
    return [store.load("run", setup.name(cell)) for cell in todo], len(took)


@pytest.mark.parametrize("first", [0, 1, 2])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("rule", ["sgd", "adamw"])
def test_cells_keep_the_same_in_stacks_as_one_by_one(rule, dtype, first, monkeypatch):
    """Whatever cells are left to do, such as where a run goes on that was interrupted."""
    setup = job("III", rule, "mup", sizes=(6, 8, 11), seeds=8, steps=1, dtype=dtype).setup()
    todo = cells(setup)[first:]
    assert todo[0].kind == ("values", "control", "standard")[first]
    stacked, few = stored(setup, todo, monkeypatch, stacks.CALLS["cpu"])
    single, many = stored(setup, todo, monkeypatch, 0)
    assert few == (2 if dtype == "float64" else 3) and many == len(todo)
    close = {"rel": 1e-7, "abs": 1e-12} if dtype == "float64" else {"rel": 1e-2, "abs": 1e-5}
    for cell, a, b in zip(todo, stacked, single, strict=True):
        assert a.keys() == b.keys()
        for key in a.keys() - {(SECONDS, 0), (GRADIENTS, 0)}:
            exact = key[0] in (PARAMETERS, INPUT)
            assert a[key] == pytest.approx(b[key], **({} if exact else close), nan_ok=True), (cell, key)


def test_replicas_of_another_size_trip_a_gate():
    """Negative control: some replicas of the second size were trained at the first."""
    run, store = job("III", "sgd", "mup", sizes=(6, 8, 11), seeds=64, steps=1), Store()
    setup = run.setup()
    runs.perform(setup, cells(setup), "cpu", store, run.name)
    gates = {gate.name: gate.passed for gate in run.report(store).gates}
    assert gates["parameter counts differ"]
    first, second = (Cell("values", size, 32, 32) for size in (0, 1))
    store.save(run.name, setup.name(second), store.load(run.name, setup.name(first)))
    gates = {gate.name: gate.passed for gate in run.report(store).gates}
    assert not gates["parameter counts differ"]
