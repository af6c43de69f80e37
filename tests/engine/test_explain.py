"""Explanations: arithmetic sums to the exponent, no matching beats the one shown, mechanisms are those of the paper."""

import json
import re
from fractions import Fraction
from itertools import product

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scaling_algebra.counting.signals import Signal
from scaling_algebra.dynamics.analysis import Analysis
from scaling_algebra.dynamics.brackets import Bracket
from scaling_algebra.dynamics.quantities import list_quantities
from scaling_algebra.errors import UsageError
from scaling_algebra.explanations.alignments import alignments
from scaling_algebra.explanations.explanations import SETTINGS, explain, explain_quantity
from scaling_algebra.explanations.mechanisms import mechanisms
from scaling_algebra.explanations.monomials import monomial
from scaling_algebra.explanations.results import SettingExplanation
from scaling_algebra.solver.derivation import derive
from scaling_algebra.spec.axes import Ray
from scaling_algebra.spec.networks.library import ARCHITECTURES, MOE_BLOCK
from scaling_algebra.spec.networks.roles import gradient_name
from scaling_algebra.spec.optimizers import OPTIMIZERS
from scaling_algebra.spec.powers import format_exponent
from scaling_algebra.spec.scaling import Point

from ..shared import scalecalc
from .brute_force import TensorNetwork, half_weight

HALF = Fraction(1, 2)
CONFIGURATIONS = [("I", "adam", "mup"), ("II", "sgd", "mup"), ("II", "adam", "mssp"), ("III", "sgd", "mssp")]


def evaluated(arithmetic):
    """The left and the right side of ``-1 (x) + 1/2 (y) = -1/2``."""
    left, _, right = arithmetic.rpartition(" = ")
    terms = re.findall(r"([+-]?) ?(\d+(?:/\d+)?) \(", left) or [("", left)]
    return sum(Fraction(x) * (-1 if sign == "-" else 1) for sign, x in terms), Fraction(right)


@pytest.mark.parametrize("configuration", CONFIGURATIONS, ids="-".join)
def test_every_quantity_is_explained_and_its_arithmetic_sums_to_its_exponent(configuration):
    d = derive(*configuration)
    look = d.analysis()
    for name, t in product(look.table, range(3)):
        answer = look(name, t)
        assert answer.decided
        found = explain_quantity(d, look, name, t)
        assert found.exponent == answer.exponent
        if answer.exponent is None:
            assert found.note and not found.terms and found.reason.startswith("It is exactly zero")
            continue
        assert found.total() == answer.exponent
        for term in found.terms:
            assert evaluated(term.arithmetic) == (term.exponent, term.exponent)
            assert found.outer or term.exponent == answer.exponent
            assert term.mechanisms
        assert 1 <= len(found.terms) <= found.leading + found.outer
        read_off(found, t)


def read_off(found, t):
    """The reason names every constant that is not 1 and says the exponent; a summed index weighs 1/2 where a factor
    without a partner touches it, and 1 elsewhere."""
    assert f"n^{format_exponent(found.exponent)}" in found.reason, (found.name, found.reason)
    for constant in found.constants if found.outer else found.terms[0].constants:
        assert constant.label in found.reason or not constant.power.terms, (found.name, found.reason)
    for m in (term.monomial for term in (found.terms if found.outer else found.terms[:1])):
        matched = {k for pair in m.pairs for k in (pair.left, pair.right)}
        single = {x for k in range(len(m.factors)) if k not in matched for x in m.names(k)}
        assert all((i.name in single) == (i.weight == HALF) for c, i in m.indices.items() if c not in m.opens), t


@pytest.mark.parametrize("configuration", CONFIGURATIONS, ids="-".join)
def test_every_parameter_is_explained_by_a_quantity_that_is_theta_1(configuration):
    d = derive(*configuration)
    names = [f"{role}.{what}" for role in d.network.tensors for what in SETTINGS] + ["aggregation"]
    for name in names:
        found = explain(name, *configuration)
        assert isinstance(found, SettingExplanation) and found.because
        if found.behind is not None:
            assert found.equation.endswith("= Theta(1)") or found.equation.startswith("eps_")
            scale = found.name.endswith(".eps")
            assert found.behind.exponent == (found.value.on(d.ray) if scale else 0)
        elif found.value is not None:
            assert "chosen" in found.because
    solved = [n for n in names if explain(n, *configuration).behind is not None]
    assert len(solved) >= (9 if configuration[1] == "sgd" else 14)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    rates=st.lists(st.sampled_from([Fraction(0), Fraction(1, 2), Fraction(1), Fraction(3, 2)]), min_size=3, max_size=3),
    exponents=st.lists(st.integers(-2, 4).map(lambda k: Fraction(k, 2)), min_size=16, max_size=16),
    tied=st.booleans(),
    optimizer=st.sampled_from(["sgd", "adam", "signsgd"]),
    name=st.sampled_from(sorted(list_quantities())),
    t=st.integers(0, 1),
)
def test_arithmetic_at_random_parameterizations_and_rays(rates, exponents, tied, optimizer, name, t):
    """At any point, not only at solutions, the monomial found by walking back has the exponent of the signal."""
    if not any(rates):
        return
    roles = list(MOE_BLOCK.tensors)
    b, c, e = (dict(zip(roles, exponents[5 * k :], strict=False)) for k in range(3))
    point = Point(b, c, e, {"alpha": exponents[15]}, frozenset({"expert_in", "expert_out"} if tied else ()))
    look = Analysis(Ray(dict(zip(("N", "N_e", "M"), rates, strict=True))), point, OPTIMIZERS[optimizer])
    answer = look(name, t)
    if not answer.decided or answer.exponent is None:
        return
    run = look.run(name, t)
    signal = look.table[name].read(run, t)
    if isinstance(signal, Signal):
        for k in run.algebra.find_leading(signal)[:2]:
            assert monomial(run.algebra, signal, k).exponent == answer.exponent


def test_no_matching_beats_the_one_shown():
    """Independent of the engine's search: all matchings of the expanded network, by brute force."""
    checked = 0
    for configuration in (("II", "sgd", "mup"), ("III", "sgd", "mup"), ("III", "adam", "mssp")):
        d = derive(*configuration)
        for name in d.analysis().table:
            found = explain_quantity(d, d.analysis(), name, 1)
            for term in found.terms:
                m = term.monomial
                if not 2 <= len(m.factors) <= 7 or found.outer or len(set(m.contracted.opens)) < len(m.opens):
                    continue
                before = m.contracted
                letter = {name: chr(ord("a") + k) for k, name in enumerate(before.rates)}
                network = TensorNetwork(
                    tuple((role, "".join(letter[x] for x in names)) for role, names in before.factors),
                    "".join(letter[x] for x in before.opens),
                    {letter[x]: rate for x, rate in before.rates.items()},
                )
                assert half_weight(network) + sum(m.sizes) == term.exponent
                checked += 1
    assert checked > 40


A_TO_D = {
    ("II", "h3.A1"): "A",
    ("II", "h3.A2.1"): "A",
    ("III", "h3.A1"): "A",
    ("III", "h3.A2.1"): "A",
    ("III", "h3.A2.2"): "B",
    ("III", "g1.expert.A5.1"): "B",
    ("II", "h3.A3"): "C",
    ("III", "h3.A3"): "C",
    ("II", "g1.expert.A6.1"): "D",
    ("III", "g1.expert.A6.1"): "D",
}
"""MSSP paper, App. I.7, under muP."""


@pytest.mark.parametrize(("regime", "name"), A_TO_D)
def test_mechanisms_of_the_paper(regime, name):
    found = explain(f"{name}@2", regime, "sgd", "mup")
    assert A_TO_D[regime, name] in {x.letter for x in found.terms[0].mechanisms}


def test_gram_mechanism_ties_with_the_clt_on_the_wall():
    """MSSP paper, App. I.7.2: in regime II (M + N_e = N) coherent and random parts of A2.2 have one size."""
    found = explain("h3.A2.2@1", "II", "sgd", "mup")
    assert {x.letter for term in found.terms for x in term.mechanisms} >= {"A", "B"}
    off = explain("h3.A2.2@1", None, "sgd", "mup", ray="N=1,N_e=1,M=1/2")
    assert {x.letter for term in off.terms for x in term.mechanisms} & {"A", "B"} == {"B"}


def test_shared_experts_add_up():
    found = explain("h3.A1@0", "III", "sgd", "mssp")
    assert [x.letter for x in found.terms[0].mechanisms] == ["shared"]


def test_the_classifier_reads_the_matching_not_the_name():
    """Negative control: without its pairs the same network is no longer mechanism B."""
    found = explain("h3.A2.2@2", "III", "sgd", "mup")
    m = found.terms[0].monomial
    m.pairs.clear()
    assert "B" not in {x.letter for x in mechanisms(m)}


def test_alignment_exponents():
    """MSSP paper, App. I.1.2 and I.2: CLT between growing dimensions, LLN into the readout, rank one for updates."""
    found = {a.role: a for a in alignments(derive("III", "sgd", "mup"))}
    for role in ("router", "expert_in", "expert_out"):
        a = found[role]
        assert (a.p, a.q, a.p_back, a.q_back) == (1, Fraction(1, 2), 1, Fraction(1, 2))
    assert (found["readout"].p, found["readout"].q, found["readout"].p_back) == (1, 1, None)
    second = {a.role: a for a in alignments(derive("II", "sgd", "mup"))}
    assert second["expert_in"].q == Fraction(1, 2) and second["expert_out"].q is None


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_architecture_can_be_explained(architecture):
    base = "routers-sigmoid" if architecture.startswith("routers") else architecture
    stable = ("mlp", "routers-sigmoid", "attention-wide")  # the last one saturates in standard parameterization
    d = derive("I", "sgd", "mup", architecture=base) if base in stable else None
    if d is None:
        d = derive("II", "sgd", "sp", architecture=architecture)
    first = d.network.statements[0].out
    for name, t in ((f"{first}.change", 1), ("f", 0), (gradient_name(d.network, first), 0)):
        found = explain_quantity(d, d.analysis(), name, t)
        assert found.total() == found.exponent


def test_indices_of_fixed_axes_are_named():
    """Tokens: tracked where a softmax runs over them, and of no weight."""
    result = scalecalc(
        "explain", "p_1.cross@1", "--architecture", "attention-wide", "--ray", "N=1", "--optimizer", "sgd"
    )
    assert result.exit_code == 0 and " tokens " in result.output, result.output


def test_json():
    asked = ["--regime", "III", "--optimizer", "sgd", "--format", "json"]
    size = json.loads(scalecalc("explain", "h3.A2.2@2", *asked).output)
    setting = json.loads(scalecalc("explain", "expert_out.init", *asked).output)
    assert size["regime"] == setting["regime"] == "III"
    for found in (size, setting["behind"]):
        assert {m["exponent"] for m in found["monomials"]} == {found["exponent"]}


def test_undecided_is_said_not_explained():
    with pytest.raises(UsageError, match="saturates faster than any power"):
        explain("gpsi@1", "I", "sgd", "sp-feature", architecture="routers-softmax")
    asked = ("gpsi@1", "--regime", "I", "--optimizer", "sgd", "--parameterization", "sp-feature")
    told = scalecalc("explain", *asked, "--architecture", "routers-softmax")
    assert told.exit_code == 3 and told.stderr.count("\n") == 1 and not told.stdout


def test_what_no_run_alone_certifies_is_explained_by_the_bound_that_is_reached(monkeypatch):
    """As behind norms. Where what fixes a setting is undecided, the setting is not explained: exit code 3."""
    asked = ("explain", "hidden.lr", "--architecture", "mlp", "--ray", "N=1", "--optimizer", "sgd")
    assert "meets its own input again" in scalecalc(*asked).stdout

    def run(look, name, t):
        raise LookupError(name)

    monkeypatch.setattr(Analysis, "run", run)
    bound = scalecalc(*asked)
    assert bound.exit_code == 0 and "value: 1\n" in bound.stdout and "= Theta(1)\n" in bound.stdout
    assert "It is n^0: the upper bound for all steps is attained" in bound.stdout
    assert "fewer tensors are trained, by N sigma_input^2 sigma_readout lr_hidden." in bound.stdout
    monkeypatch.setattr(Analysis, "__call__", lambda *_: Bracket(why="a norm may cancel it"))
    told, why = scalecalc(*asked), "h2.effective at t=1 is undecided: a norm may cancel it"
    assert told.exit_code == 3 and not told.stdout and told.stderr.count("\n") == 1
    assert f"hidden.lr = 1 follows from mu-2: effective update dW2 h1 = Theta(1); but {why}" in told.stderr


def test_the_reason_names_what_is_coherent_and_what_is_not():
    coherent = explain("psi.effective@1", "III", "sgd", "mup").reason
    assert "he update of router meets its own input again, a coherent sum over width N" in coherent
    assert "stay random over" in coherent
    solved = explain("expert_in.lr", "III", "sgd", "mup").reason
    assert solved.endswith("Theta(1) needs expert_in.lr = N_e M N^-1 (the same power of n here).")
    assert "coherent" not in explain("h1@0", "III", "sgd", "mup").reason


def test_a_tensor_goes_by_its_symbol():
    assert str(explain("W3.lr", "I", "sgd")) == str(explain("expert_out.lr", "I", "sgd"))
    with pytest.raises(UsageError, match=r"mlp has no multiplier; ask for a parameter of a tensor, such as input\.lr"):
        explain("aggregation", "I", "sgd", network="mlp")
    with pytest.raises(UsageError, match="no tensor named 'W9'"):
        explain("W9.lr", "I", "sgd")
