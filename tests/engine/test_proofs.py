"""Proofs: existence, uniqueness and conflicts, with certificates that a second solver checks, and negative controls."""

import json
from dataclasses import replace
from fractions import Fraction
from functools import cache, partial

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from scaling_algebra import derive
from scaling_algebra.counting.kernels import Exhausted
from scaling_algebra.dynamics.analysis import Analysis
from scaling_algebra.dynamics.quantities import list_quantities
from scaling_algebra.errors import Inconclusive
from scaling_algebra.formulas.graded import FormTrajectory, form_algebra, size_of
from scaling_algebra.linear import refine
from scaling_algebra.proofs.clauses import RayFacts
from scaling_algebra.proofs.prover import Prover, System, Uniqueness, prove
from scaling_algebra.proofs.smtlib import script, scripts_of
from scaling_algebra.solver.demands import first_power, provable
from scaling_algebra.spec.axes import REGIMES, regime
from scaling_algebra.spec.desiderata import Structure, count_interventions, enumerate_structures
from scaling_algebra.spec.networks.library import ARCHITECTURES, MOE_BLOCK
from scaling_algebra.spec.optimizers import OPTIMIZERS, optimizer
from scaling_algebra.spec.parameterizations import PARAMETERIZATIONS
from scaling_algebra.spec.scaling import Point

from ..shared import scalecalc

ZERO_READOUT = Structure(zero=frozenset({"readout"}))
proved = cache(prove)


def second_opinion(text):
    """The answers of cvc5 to every ``check-sat`` of a script."""
    import cvc5

    answers = []
    for part in text.split("(reset)"):
        manager = cvc5.TermManager()
        solver = cvc5.Solver(manager)
        parser = cvc5.InputParser(solver)
        parser.setStringInput(cvc5.InputLanguage.SMT_LIB_2_6, part, "certificate")
        while not (command := parser.nextCommand()).isNull():
            answers += command.invoke(solver, parser.getSymbolManager()).split()
    return answers


@pytest.fixture(scope="module")
def tied():
    return proved("III", "sgd", "mssp")


run = partial(scalecalc, "derive")

# --- the facts ------------------------------------------------------------------------------------------------------

exponents = st.integers(-4, 4).map(lambda k: Fraction(k, 2))


@st.composite
def points(draw):
    roles = MOE_BLOCK.tensors
    b = {r: draw(exponents) for r in roles}
    c = {r: draw(exponents) for r in roles}
    return Point(b, c, dict.fromkeys(roles, Fraction(0)), {"alpha": draw(exponents)})


@pytest.mark.parametrize("name", REGIMES)
@settings(max_examples=6, deadline=None)
@given(point=points())
def test_forms_bound_the_size_at_every_point(name, point):
    """Complete forms bracket what the engine finds at a random point; forms one too large do not (negative control)."""
    ray = regime(name)
    run, look = forms_of(name), Analysis(ray, point, optimizer("sgd"))
    values = {f"b.{r}": x for r, x in point.b.items()} | {f"c.{r}": x for r, x in point.c.items()}
    values["alpha"] = point.alpha

    def at(form):
        return form.power.on(ray) + sum(n * values[u] for u, n in form.unknowns)

    exact, saturates = 0, (look("psi.change", 1).exponent or 0) > 0
    flat = ("phi", "h3", "f") if saturates else ()  # forms are those of a gate that is not flat
    for quantity in list_quantities(MOE_BLOCK).values():
        if quantity.tensor or quantity.name.startswith("g") or quantity.name.split(".")[0] in flat:
            continue
        if quantity.name.endswith(".normalised"):  # a quotient of maxima has no forms
            with pytest.raises(Exhausted):
                run.bounds(quantity, 1)
            continue
        bounds, answer = run.bounds(quantity, 1), look(quantity.name, 1)
        if not answer.decided:
            continue
        if answer.exponent is None:
            assert not bounds.upper
            continue
        low, high = max(map(at, bounds.lower)), max(map(at, bounds.upper))
        assert low <= answer.exponent <= high, quantity.name
        assert not answer.exponent >= high + 1
        exact += low == high
    assert exact > 20


@cache
def forms_of(name):
    algebra = form_algebra(MOE_BLOCK, regime(name))
    algebra.set_budget(replace(algebra.budget, max_nodes=10**6))
    return FormTrajectory(MOE_BLOCK, algebra, Structure())


def test_sizes_stand_for_late_changes():
    """With the size of a change as an unknown, what it feeds is bounded by one form of that unknown."""
    algebra = form_algebra(MOE_BLOCK, regime("III"))
    run = FormTrajectory(MOE_BLOCK, algebra, Structure(), frozenset({"h3"}))
    bounds = run.bounds(list_quantities(MOE_BLOCK)["f.propagating"], 2)
    (form,) = bounds.upper
    assert bounds.lower == ()
    assert dict(form.unknowns) == {"b.readout": -1, size_of("h3"): -1}
    assert str(form.power) == "N"


# --- Result 1 and Result 2 of the MSSP paper ------------------------------------------------------------------------


def mup_is_unique(name, rule):
    """Existence is certified by the engine at t = 0 .. 3, uniqueness by two solvers."""
    proof = proved(name, rule, "mup")
    assert proof.unique is True and len(proof.attempts) == 1
    assert proof.agrees(derive(name, rule, "mup").scaling)
    assert second_opinion(scripts_of(proof)) == ["unsat"]


@pytest.mark.parametrize(("name", "rule"), [("II", "sgd"), ("III", "adam")])
def test_result_1_mup_is_unique(name, rule):
    """MSSP paper, Result 1 (the others: ``tests/measure/test_structures.py`` and ``test_whole_blocks.py``)."""
    mup_is_unique(name, rule)


STRUCTURES = {"I": "zero router", "II": "h3i free before aggregation", "III": "tied expert_in, tied expert_out"}


def mssp_is_unique(name, rule):
    """With the fewest interventions; with less, none exists."""
    proof = proved(name, rule, "mssp")
    assert proof.unique is True and str(proof.outcome.structure) == STRUCTURES[name]
    assert all(a.verdict == "impossible" and a.core for a in proof.attempts if a is not proof.outcome)
    few = [
        s
        for s in enumerate_structures(MOE_BLOCK, ZERO_READOUT)
        if count_interventions(MOE_BLOCK, s) <= (2 if name == "III" else 1)
    ]
    assert [a.structure for a in proof.attempts] == few
    assert proof.agrees(derive(name, rule, "mssp").scaling)
    assert second_opinion(scripts_of(proof)) == ["unsat"] * len(proof.attempts)


@pytest.mark.parametrize(("name", "rule"), [("I", "sgd"), ("II", "adam"), ("III", "sgd")])
def test_result_2_mssp_is_unique_with_the_fewest_interventions(name, rule):
    """MSSP paper, Result 2: zero router in I, one exception in II, shared experts in III."""
    mssp_is_unique(name, rule)


def test_two_structures_with_as_few_interventions_are_not_one():
    proof = proved("II", "sgd", "mssp")
    assert (proof.verdict, proof.unique) == ("unique", True)
    right = next(a for a in proof.attempts if a is proof.outcome)
    for verdict, unique in (("unique", False), ("undecided", None)):
        more = replace(proof, attempts=(*proof.attempts, replace(right, verdict=Uniqueness(verdict))))
        assert (more.verdict, more.unique) == ("several" if verdict == "unique" else verdict, unique)
        assert more.agrees(derive("II", "sgd", "mssp").scaling)


def which_interventions(name):
    """All sixteen structures are decided. In I exactly those with a zero router work. In II exactly the exception does,
    with or without a zero router: sharing experts does not repair it. In III exactly those with both expert tensors
    shared work: none without."""
    needed = {
        "I": lambda s: "router" in s.zero,
        "II": lambda s: "h3i" in s.exempt and not s.tied,
        "III": lambda s: s.tied == {"expert_in", "expert_out"},
    }[name]
    prover = Prover(MOE_BLOCK, regime(name), optimizer("sgd"))
    found = {s: prover.decide(PARAMETERIZATIONS["mssp"], s) for s in enumerate_structures(MOE_BLOCK, ZERO_READOUT)}
    assert len(found) == 16
    for structure, outcome in found.items():
        assert outcome.verdict == ("unique" if needed(structure) else "impossible"), str(structure)


def test_which_interventions_mssp_needs():
    """In regime III (the others: ``tests/measure/test_structures.py``)."""
    which_interventions("III")


def test_the_conflict_of_untied_experts_in_regime_3(tied):
    """Names of the conflict, and its certificate; without one of its desiderata it is none (negative control)."""
    outcome = tied.attempts[0]
    assert outcome.core == (
        "mu-1: h3 stays O(1)",
        "MSSP-3 forward: h3.A1 of the aggregate is Theta(1)",
        "MSSP-2 backward: the parts of g2 share one scale",
    )
    assert second_opinion(script(outcome.clauses, "", ())) == ["unsat"]
    for name in outcome.core:
        rest = [c for c in outcome.clauses if c.label != name]
        assert second_opinion(script(rest, "", ())) == ["sat"], name


def test_a_certificate_with_a_planted_error_is_refuted(tied):
    """The only point excluded twice over, at a wrong place: then it is found again."""
    outcome = tied.outcome
    apart = outcome.clauses[-1]
    wrong = replace(apart, atoms=tuple(replace(a, constant=a.constant + 1) for a in apart.atoms))
    assert second_opinion(script((*outcome.clauses[:-1], wrong), "", ())) == ["sat"]


# --- what the desiderata determine ----------------------------------------------------------------------------------


def test_without_one_desideratum_two_unknowns_move_together_and_no_more():
    """Regime II without the effective update of expert out: two solutions, apart in alpha and its own rate."""
    prover, goal = Prover(MOE_BLOCK, regime("II"), optimizer("sgd")), PARAMETERIZATIONS["mup"]
    demands = [d for d in goal.demands(MOE_BLOCK, Structure()) if d.label != "mu-2: effective update dW3 h2 = Theta(1)"]
    system, one = System(prover, demands, Structure()), proved("II", "sgd", "mup").outcome.points[0]
    at = {f"b.{r}": b for r, b in one.b.items()} | {f"c.{r}": c for r, c in one.c.items()} | {"alpha": one.alpha}
    assert system.examine(at) is None
    moved = {**at, "alpha": at["alpha"] - Fraction(1, 4), "c.expert_out": at["c.expert_out"] + Fraction(1, 2)}
    assert system.examine(moved) is None
    cut = system.examine({**at, "alpha": at["alpha"] - Fraction(1, 4)})  # negative control
    assert cut is not None and cut.label.startswith("mu-1")


def test_without_a_desideratum_there_are_several():
    """Negative control of uniqueness: two certified points, and both are solutions."""
    prover, goal = Prover(MOE_BLOCK, regime("III"), optimizer("sgd")), PARAMETERIZATIONS["mup"]
    demands = goal.demands(MOE_BLOCK, Structure())
    demands = [d for d in demands if d.label != "mu-2: effective update dQ h1 = Theta(1)"]
    outcome = System(prover, demands, Structure()).decide()
    assert outcome.verdict == "several"
    one, two = outcome.points
    assert one != two and replace(one, c=two.c) == two


# --- where nothing exists -------------------------------------------------------------------------------------------


def test_no_mup_where_experts_are_few_and_narrow(tmp_path):
    """M + N_e < N: what meets the demands at t <= 2 diverges at t = 3. That is a proof, and exit code 1."""
    file = tmp_path / "c.smt2"
    asked = ("--ray", "N=1,N_e=1/4,M=1/2", "--optimizer", "sgd", "--parameterization", "mup")
    result = run(*asked, "--prove", "--smtlib", str(file))
    assert result.exit_code == 1
    assert result.output.startswith("proof: impossible (O(1) at t = 0 .. 3, Theta(1) by t = 2)")
    assert second_opinion(file.read_text()) == ["unsat"]


@pytest.mark.parametrize(("name", "verdict"), [("I", "unique"), ("II", "impossible"), ("III", "impossible")])
def test_mup_with_a_zero_readout(name, verdict):
    """In II and III the aggregate starts too small for the readout to learn: no Theta(1) by t = 2.

    The MSSP paper (App. Q) sees the same in experiments: muP with a zero readout starts too small.
    """
    assert proved(name, "sgd", "mup", readout_init="zero").outcome.verdict == verdict


def test_other_architectures():
    proof = prove("I", "sgd", "mup", architecture="mlp")
    assert proof.agrees(derive("I", "sgd", "mup", architecture="mlp").scaling)


ROUTERS = ARCHITECTURES["routers-softmax"]


@pytest.mark.parametrize(("gate", "verdict"), [("softmax", "impossible"), ("sigmoid", "unique")])
def test_a_demand_that_is_met_too_late_is_met_nowhere(gate, verdict):
    """Experts that are alike to leading order: what falls short at first and is Theta(1) by t = 2 diverges at t = 3.
    Sigmoid gates do not take the common part of the gradients away. With a shared expert:
    ``tests/measure/test_whole_blocks.py``."""
    assert prove("I", "sgd", "mup", architecture=f"routers-{gate}").outcome.verdict == verdict


def test_functions_along_an_index_that_grows_are_not_proved():
    (phi,) = ROUTERS.live
    assert first_power(ROUTERS, regime("I"), phi) and not first_power(ROUTERS, regime("II"), phi)
    assert "phi" in provable(ROUTERS, regime("II"), optimizer("sgd"))


@cache
def _facts(ray):
    """No value of an unknown is in them."""
    return RayFacts(ROUTERS, form_algebra(ROUTERS, ray), [], Structure())


@settings(max_examples=3, deadline=None)
@given(steps=st.lists(st.integers(0, 3), min_size=9, max_size=9))
def test_first_powers_bound_a_size_where_the_argument_is_bounded(steps):
    """Beside muP of sigmoid gates, the sizes of a softmax with all its powers are those of its first power."""
    asked = derive("I", "sgd", "mup", architecture="routers-sigmoid")
    values = asked.scaling.point(asked.ray).values
    names = [x for x in values if x[0] in "abc"]
    values |= {name: values[name] + Fraction(step, 4) for name, step in zip(names, steps, strict=True)}
    look = Analysis(asked.ray, Structure().point(ROUTERS, values), optimizer("sgd"), ROUTERS)
    facts = _facts(asked.ray)
    assume(all(look("psi", t).decided and look("psi", t).size <= 0 for t in (0, 1, 2)))

    def at(form):
        return form.power.on(asked.ray) + sum(n * values[u] for u, n in form.unknowns)

    compared = 0
    for name in ("psi", "psi.effective", "psi.cross", "phi", "h3", "h3.effective", "f", "h1.effective"):
        for t in (1, 2):
            bounds, answer = facts.bounds(name, t), look(name, t)
            if bounds is not None and answer.decided and answer.size is not None:
                low, high = (max(map(at, forms)) for forms in (bounds.lower, bounds.upper))
                assert low == answer.size == high, (name, t)
                compared += 1
    assert compared > 5


# --- command line ---------------------------------------------------------------------------------------------------


def test_json_of_a_proof(tmp_path):
    file = tmp_path / "c.smt2"
    result = run(
        *("--regime", "III", "--optimizer", "sgd", "--parameterization", "mssp", "--prove"),
        *("--smtlib", str(file), "--format", "json"),
    )
    data = json.loads(result.output)
    assert result.exit_code == 0 and data["unique"] is True and data["tied"] == ["expert_in", "expert_out"]
    assert [a["verdict"] for a in data["proof"]["attempts"]] == ["impossible"] * 10 + ["unique"]
    assert second_opinion(file.read_text()) == ["unsat"] * 11


def test_nothing_decided_is_no_certificate(tmp_path, monkeypatch):
    """Where no counterexample may be examined: exit code 3, and no empty file."""
    monkeypatch.setattr(refine, "ROUNDS", 0)
    file = tmp_path / "c.smt2"
    args = ("--regime", "I", "--optimizer", "sgd", "--architecture", "mlp", "--prove", "--smtlib", str(file))
    result = run(*args)
    assert result.exit_code == 3 and "proof: undecided" in result.output and not file.exists()
    assert "no proof was found" in result.stderr


def test_under_an_epsilon_the_conflict_names_mu_3():
    core = proved("III", "adam", "mssp").attempts[0].core
    assert core[-1].startswith("mu-3: epsilon of every tensor")


def test_numbers_that_are_no_solution_are_not_called_unique():
    """--readout-init zero replaces one init of muP; in III that breaks a demand, and --prove says so."""
    args = ("--regime", "III", "--optimizer", "sgd", "--parameterization", "mup", "--readout-init", "zero")
    result = run(*args, "--prove", "--format", "json")
    assert result.exit_code == 1 and json.loads(result.output)["unique"] is False
    assert "the numbers above do not meet the desiderata" in run(*args, "--prove").output


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ("--regime I --architecture moe-rmsnorm", "moe-rmsnorm divides"),
        ("--regime III --architecture moe-sigmoid", "phi; derive --without phi leaves it out"),
        ("--regime I --optimizer lion --parameterization mup", "lion divides by unknown sizes"),
        ("--ray N=1,N_e=1,M=1,K=1/2 --parameterization mup", "proofs support K = M only"),
    ],
)
def test_what_proofs_do_not_reach_is_undecided(asked, why):
    told = run(*asked.split(), "--prove", "--format", "json")
    assert told.exit_code == 3 and told.stderr.count("\n") == 1
    assert "UNDECIDED, cannot prove: " in told.stderr and why in told.stderr
    assert json.loads(told.stdout)["verdict"] == "UNDECIDED"


def test_optimizers_that_proofs_do_not_reach_are_refused():
    for rule in OPTIMIZERS.values():
        if rule.normalises and not rule.epsilon:
            with pytest.raises(Inconclusive, match="cannot prove"):
                Prover(MOE_BLOCK, regime("I"), rule)
