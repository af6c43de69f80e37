"""Answers are a function of the question: not of the order of questions, of the units of a ray, or of other looks."""

import random
from dataclasses import replace
from fractions import Fraction
from itertools import product

import pytest

from scaling_algebra.counting.signals import Scalar, Signal
from scaling_algebra.dynamics.analysis import LEAD, WITNESS, Analysis, limit_lead
from scaling_algebra.dynamics.brackets import NOTHING, Bracket, UnknownSize, bracket_monomial
from scaling_algebra.dynamics.budgets import BUDGETS
from scaling_algebra.solver.demands import Infeasible, largest, violation
from scaling_algebra.solver.derivation import derive
from scaling_algebra.solver.newton import find_aligned_start, iterate_newton
from scaling_algebra.solver.points import Places
from scaling_algebra.spec.desiderata import Demand, Structure
from scaling_algebra.spec.networks.grammar import network
from scaling_algebra.spec.networks.library import AXES, MOE_BLOCK
from scaling_algebra.spec.optimizers import optimizer
from scaling_algebra.spec.parameterizations import parameterization

from .scenarios import look

UNKNOWN, ZERO = Bracket(), Bracket(NOTHING, NOTHING)


def sized(size, certain=True):
    return bracket_monomial(Fraction(size), None, certain, certain)


def small(monkeypatch, work=300):
    """Budgets with so little work that many questions come out undecided."""
    monkeypatch.setattr(
        "scaling_algebra.dynamics.analysis.BUDGETS",
        tuple(replace(r, max_nodes=work) for r in (BUDGETS[0], BUDGETS[2], BUDGETS[4])),
    )


def asked(d, names, steps, seed, algebras=None):
    run = Analysis(d.ray, d.scaling.point(d.ray), d.optimizer, d.network, algebras)
    questions = [(name, t) for name in names for t in range(steps + 1)]
    random.Random(seed).shuffle(questions)
    return {q: run(*q) for q in questions}


@pytest.mark.parametrize(
    ("regime", "rule", "name", "work"),
    [("II", "adam", "mssp", 40), ("II", "signsgd", "sp", 100), ("III", "sgd", "mup", 0)],
)
def test_the_order_of_questions_changes_nothing(monkeypatch, regime, rule, name, work):
    d = derive(regime, rule, name, **({} if name == "sp" else {"readout_init": "maximal"}))
    if work:
        small(monkeypatch, work)
    names = list(d.analysis().table)
    shared = {}
    first = asked(d, names, 2, 0)
    assert asked(d, names, 2, 1) == first
    assert asked(d, names, 2, 2, shared) == first
    assert asked(d, names, 2, 3, shared) == first
    if work:
        assert 0 < sum(a.decided for a in first.values()) < len(first)


def test_one_question_in_a_fresh_analysis_is_answered_as_among_others(monkeypatch):
    d = derive("II", "signsgd", "sp")
    small(monkeypatch, 100)
    names = list(d.analysis().table)
    among = asked(d, names, 2, 5)
    for name in names[::7]:
        assert look(d)(name, 2) == among[name, 2]


@pytest.mark.parametrize("names", [("0.weight", "1.weight", "10.weight"), ("1[0]", "1[1]", "1.w[1]"), ("c", "b", "a")])
def test_the_names_of_tensors_change_nothing(names):
    """Parameters of an ``nn.Sequential`` are called by numbers; every size is that of the network with other names."""
    text = "h1[a] = A[a,x] data[x]\nh2[b] = B[b,a] h1[a]\nf = C[b] h2[b]"
    usual, other = (
        derive(ray="N=1", optimizer="sgd", architecture=network("chain", text, AXES, roles))
        for roles in (None, dict(zip("ABC", names, strict=True)))
    )
    renamed = dict(zip(names, "ABC", strict=True))
    assert {renamed[role]: x for role, x in other.scaling.tensors.items()} == usual.scaling.tensors
    one, two = usual.analysis(), other.analysis()
    assert {q: (one(*q).decided, one(*q).size) for q in product(one.table, range(3))} == {
        q: (two(*q).decided, two(*q).size) for q in product(two.table, range(3))
    }


# exactly zero and unknown ---------------------------------------------------------------------------------------


def test_unknown_is_not_zero():
    assert ZERO.decided and ZERO.zero and not ZERO.unknown and ZERO.exponent is None and str(ZERO) == "0 (exact)"
    assert UNKNOWN.unknown and not UNKNOWN.zero and str(UNKNOWN) == "undecided"
    with pytest.raises(UnknownSize, match="undecided"):
        _ = UNKNOWN.exponent
    assert sized(1).exponent == 1 and not sized(1).unknown and not sized(1, certain=False).decided


def test_an_exhausted_lower_bound_is_unknown():
    run, little = derive("III", "sgd", "mup").analysis(), limit_lead(0)
    assert run("h3.change", 2, little).unknown and run("h3.change", 0, little).zero
    assert run("h3.change", 2, LEAD).decided


class Blind:
    """An analysis that knows nothing, or only some sizes."""

    network = MOE_BLOCK

    def __init__(self, known=()):
        self.known = dict(known)

    def __call__(self, name, t, means=None):
        return self.known.get(name, UNKNOWN)

    def upper(self, name):
        return None


@pytest.mark.parametrize("kind", ["theta", "bounded", "balanced"])
def test_what_is_unknown_violates_no_demand_and_meets_none(kind):
    demand = Demand("mu-1", kind, ("h1", "h2"), "b.input", "signals are stable")
    assert violation(demand, Blind(), certified=False) is None
    assert violation(demand, Blind(), certified=True).undecided
    low = {"h1": sized(-1, certain=False)}
    assert violation(demand, Blind(low), certified=False) is None
    high = {"h1": sized(1, certain=False)}
    assert bool(violation(demand, Blind(high), certified=False)) == (kind != "balanced")
    assert bool(violation(demand, Blind({"h1": ZERO, "h2": ZERO}), certified=False)) == (kind == "theta")


def test_what_is_unknown_fixes_nothing():
    demand = Demand("mu-1", "theta", ("h1",), "b.input", "signals are stable")
    assert largest(Blind({"h1": ZERO}), demand) is None
    with pytest.raises(Infeasible, match="h1 at t=0 is undecided"):
        largest(Blind(), demand)


def test_newton_does_not_take_an_exhausted_gradient_for_zero(monkeypatch):
    """Adam's epsilon starts at the largest gradient of gradient descent; one that is unknown is said to be so."""
    at = Places(MOE_BLOCK, derive("III", "adam", "mup").ray, optimizer("adam"))
    ask = Analysis.__call__

    def blind(self, name, t, means=None):
        return UNKNOWN if name.startswith("gW") and means in (LEAD, WITNESS) else ask(self, name, t, means)

    monkeypatch.setattr(Analysis, "__call__", blind)
    rule = parameterization("mup")
    demands = rule.list_demands(MOE_BLOCK, Structure())
    start = {**find_aligned_start(at), "c.router": Fraction(3)}  # does not stand as it is
    with pytest.raises(Infeasible, match=r"mu-3: gW\d at t=1 is undecided"):
        iterate_newton(at, demands, Structure(), start)


def test_bounds_are_charged_to_no_question():
    """Else what is decided depends on which question needed them first. Negative control: a product is charged."""
    d, algebras = derive("III", "sgd", "mup"), {}
    look = Analysis(d.ray, d.scaling.point(d.ray), d.optimizer, algebras=algebras)
    assert look("h3", 0).decided
    algebra = algebras[BUDGETS[0]]
    with algebra.collect_notes():
        assert look.upper("h3.change") == 0 and algebra.nodes_visited == 0
        w = algebra.tensor("expert_in", "ika", 0)
        assert not algebra.contract(w, w, "i").is_zero and algebra.nodes_visited > 0


def test_bounds_make_once_what_is_counted_alike():
    """A rule is applied once to signals of one content, under any name. Negative control: sizes, letters and rules."""
    bounds, made = derive("III", "sgd", "mup").analysis().bounds, list[str]()
    x = bounds.algebra.tensor("expert_in", "ika", 0)

    def one(rule, signal, name):
        return bounds.compute_once(rule, signal, lambda: made.append(name) or signal.replace(name=name))

    first = one("odd", x, "first")
    assert one("odd", x.replace(name="again"), "again") is first
    larger = bounds.algebra.scale_by(x, Scalar("twice the width", bounds.algebra.pack_powers({"N": 1})))
    for asked in (("even", x, "rule"), ("odd", larger, "size"), ("odd", x.replace(tail_bound=0), "tail")):
        assert one(*asked).name == asked[2]
    assert made == ["first", "rule", "size", "tail"]
    kept = bounds.compute_once("same", x, lambda: x)
    other = x.replace(name="other")
    assert (
        kept is x and bounds.compute_once("same", other, lambda: x) is other
    )  # what a rule leaves as it is keeps its name


# explanations ---------------------------------------------------------------------------------------------------


def test_what_is_explained_holds_every_leading_monomial():
    """A coarse rung certifies a size; what is read off it by name comes from a rung that dropped none as large."""
    run = derive("II", "sgd", "mssp", readout_init="maximal").analysis()
    for name in (name for name in run.table if run(name, 2).decided):
        best = run.run(name, 2)
        read = run.table[name].read(best, 2)
        if isinstance(read, Signal):
            assert best.algebra.keeps_all_leading(read) or best.algebra.budget.max_kernels is None


def test_what_is_left_of_the_work_may_not_do_for_the_parts_of_an_answer():
    """A report asks for them with little work; it ended in an internal error."""
    d = derive("III", "sgd", "mup", architecture="swiglu")
    run = Analysis(d.ray, d.scaling.point(d.ray), d.optimizer, d.network)
    with run.meter.limit_work(1000), pytest.raises(LookupError, match="takes more work than is left"):
        run.powers("h1.effective", 1)
    assert run.powers("h1.effective", 1)
