"""Numbers come with their level: certified, or what is shown and what is undecided; none is refuted."""

import json
import re
import signal
from dataclasses import replace
from fractions import Fraction

import pytest

from scaling_algebra import Configuration, Infeasible, derive, network, recipe
from scaling_algebra.dynamics.analysis import Analysis
from scaling_algebra.dynamics.brackets import NOTHING, Bracket, bracket_monomial
from scaling_algebra.solver import search
from scaling_algebra.solver.demands import violation
from scaling_algebra.solver.derivation import search_cached
from scaling_algebra.solver.layerwise import at_full_alignment
from scaling_algebra.solver.newton import find_aligned_start
from scaling_algebra.solver.points import Places
from scaling_algebra.solver.search import by_layers, solve
from scaling_algebra.spec.desiderata import Demand
from scaling_algebra.spec.level import CERTIFIED, Level, OpenDemand, level_as_json
from scaling_algebra.spec.networks.files import from_toml
from scaling_algebra.spec.networks.library import ARCHITECTURES
from scaling_algebra.waiting import current_work, iterate_with_progress

from ..shared import scalecalc

UNDECIDED = {"ray": "N=1,N_e=1,M=1,K=1", "optimizer": "sgd", "architecture": "routers-softmax"}
"""A softmax along an index that grows, of what may have heavy tails."""
ASKED = [
    "--ray",
    UNDECIDED["ray"],
    "--optimizer",
    "sgd",
    "--parameterization",
    "mup",
    "--architecture",
    "routers-softmax",
]
ROUTED = """
h[a]   = E[a,x] data[x]
psi[i] = Q[i,a] h[a]
phi[i] = gate(psi[i])
p[i,k] = W2[i,k,a] h[a]
e[i,b] = W3[i,b,k] p[i,k]
m[b]   = alpha phi[i] e[i,b]
y[b]   = rmsnorm(m[b])
z[i]   = R[i,b] y[b]
f      = U[i] z[i]
"""


def test_a_level_is_named_by_what_is_open():
    one = OpenDemand("mu-2: of W", "h.propagating", 1, "a norm may cancel it")
    assert str(CERTIFIED) == "certified" and CERTIFIED.code == 0 and CERTIFIED.lines == ()
    some = Level((one, OpenDemand("mu-1: f", "f", 2)))
    assert str(some) == "2 sizes undecided" and some.code == 3
    assert some.lines[0] == "not certified: h.propagating at t = 1 is undecided (a norm may cancel it)"
    whose = Level((*some.open, OpenDemand("mu-3: W", "gW", 1, tensor="W"), OpenDemand("mu-1: s", "s.change", 1)))
    assert whose.concerned == "undecided: h, f, W, s" and CERTIFIED.concerned == ""
    assert Level.of([CERTIFIED, None, some, some]) == some and Level.of([None]) is None
    assert str(Level(unread="model.mlp: einsum")) == "by shape" and Level(unread="model.mlp: einsum").code == 3
    assert level_as_json(some)["open"][0]["quantity"] == "h.propagating" and level_as_json(None) == {
        "level": None,
        "open": [],
    }


def test_what_is_shown_from_above_and_from_below_is_counted_apart():
    """A demand with an upper bound counts as stable; the negative control lacks that bound."""
    asked = {"bounded": frozenset("abc"), "learned": frozenset("bcd")}
    below = OpenDemand("b", "k.change", 1, tensor="k", stable=True)
    assert str(Level((below,), **asked)) == "stability shown for all 3 demands, learning for 2 of 3"
    assert Level((below,), **asked).concerned == "stable, but not shown to learn: k"
    both = Level((replace(below, stable=False), OpenDemand("a", "f", 2)), **asked)
    assert str(both) == "stability shown for 1 of 3 demands, learning for 2 of 3"
    assert both.concerned == "not shown to stay bounded: k, f"
    assert str(Level((OpenDemand("d", "gk", 1),), **asked)) == "stability shown for all 3 demands, learning for 2 of 3"
    other = Level((below, OpenDemand("shapes grow as read", "shapes", 0)), **asked)
    assert str(other) == "stability shown for all 3 demands, learning for 2 of 3, 1 size undecided"
    assert level_as_json(Level((below,), **asked))["demands"] == {"stability": 3, "learning": 3}
    assert Level.of([Level((below,), **asked), Level(bounded=frozenset("xb"))]).bounded == frozenset("abcx")


def test_numbers_without_a_certificate_are_printed_with_what_is_open():
    done = scalecalc("derive", *ASKED)
    lines = done.output.splitlines()
    assert done.exit_code == 3 and lines[0].startswith("muP for sgd, stability shown for ")
    assert any(line.startswith("router ") for line in lines)
    assert any(line.startswith("not certified: h3.change at t = 2 is undecided (a softmax") for line in lines)
    assert re.search(r"^and \d+ more \(--format json names them, in Python .level.lines\)$", done.output, re.M)
    assert re.search(r"^not shown to stay bounded: .*readout", done.output, re.M)
    record = json.loads(scalecalc("derive", *ASKED, "--format", "json").stdout)
    assert {x["tensor"] for x in record["open"]} - {""} <= {*record["tensors"]}
    assert record["level"] in lines[0] and record["open"][0]["quantity"] == "h3" and record["tensors"]
    strict = scalecalc("derive", *ASKED, "--strict")
    assert strict.exit_code == 3 and "router " not in strict.stdout and "h3 at t = 2 is undecided" in strict.output
    pytest.importorskip("pandas")
    d = derive(**UNDECIDED)
    assert set(d.to_frame()["level"]) == {str(d.level)} and not d.level.certified


def test_nothing_that_is_refuted_is_printed():
    """Negative control: the layer-wise law fails there, and is no candidate; where it holds, it is one."""
    for name, ray, stands in (("lora", "N=1", False), ("mlp", "N=1", True)):
        asked = Configuration.of(None, "sgd", ray=ray, architecture=name)
        base = asked.parameterization.base_structure(asked.network, asked.readout_init)
        at = Places(asked.network, asked.ray, asked.optimizer)
        found = by_layers(at, asked.parameterization.list_demands(asked.network, base), base)
        assert (found is not None) == stands
        assert found is None or found.scaling == derive(asked).scaling


def test_work_that_does_not_suffice_leaves_the_numbers_and_says_what_is_open(monkeypatch):
    asked = Configuration.of(None, "adam", ray="N=1", architecture="attention")
    found = derive(asked)
    assert found.level == CERTIFIED
    monkeypatch.setattr(search, "PROPOSED", 2_000)
    question = asked.network, asked.ray, asked.optimizer
    short, again = (solve(Places(*question), asked.parameterization) for _ in range(2))
    assert short.scaling == found.scaling and not short.level.certified and short.level == again.level
    whole = solve(Places(*question, effort=True), asked.parameterization)
    assert whole.level == CERTIFIED and whole.scaling == found.scaling


def test_recipes_name_the_level_of_their_powers():
    sizes = "N=64,N_e=64,M=4", "N=128,N_e=128,M=8"
    where = {"optimizer": "sgd", "architecture": "routers-softmax"}
    r = recipe(*sizes, **where)
    assert r.about.startswith("muP, sgd, stability shown for ") and r.as_json()["open"]
    with pytest.raises(Infeasible, match="not certified: h3 at t = 2"):
        recipe(*sizes, **where, strict=True)
    assert recipe("N=64", "N=128", "sgd", architecture="mlp", strict=True).level == CERTIFIED
    assert recipe("N=64", "N=128", "sgd", "sp", architecture="mlp").level is None


def test_a_router_of_many_experts_is_bounded_by_all_of_them():
    """Its logits, of which a token sees few, are those of a matrix that acts on one vector; behind a sum over a token's
    own experts that is not known."""
    roles = {"E": "embedding", "Q": "router", "W2": "expert_in", "W3": "expert_out", "R": "late", "U": "readout"}
    net = network("routed", ROUTED, axes={"a": "N", "b": "N", "i": "M", "k": "N_e", "x": "D"}, roles=roles)
    asked = Configuration.of(None, "adam", ray="N=1,N_e=1,M=1,K=0", network=net)
    at = Places(asked.network, asked.ray, asked.optimizer)
    look = at.analyse_at(asked.parameterization.base_structure(net, "maximal").point(net, find_aligned_start(at)))
    assert look.upper("psi.propagating") == look.upper("h.change")
    assert look.upper("z.propagating") == look.upper("y.change") + Fraction(1, 2)


def test_work_says_what_it_is_at_and_is_silent_when_it_is_done():
    seen = []
    for x in iterate_with_progress("deriving", "demands", "abc"):
        seen.append((x, current_work()))
        if x == "b":
            break
    assert seen == [("a", "deriving: 1 of 3 demands"), ("b", "deriving: 2 of 3 demands")]
    assert list(iterate_with_progress("reading", "builds", "ab")) == ["a", "b"] and current_work() == ""


@pytest.fixture
def interruptible():
    """Ctrl-C is heard, also where the tests run in the background of a shell, which ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_an_interrupt_says_what_was_open(monkeypatch, interruptible):
    def stopped(*_):
        signal.raise_signal(signal.SIGINT)

    search_cached.cache_clear()
    monkeypatch.setattr("scaling_algebra.solver.demands.is_met", stopped)
    done = scalecalc("derive", "--architecture", "mlp", "--ray", "N=1/7", "--optimizer", "sgd")
    assert done.exit_code == 130 and done.stderr.startswith("scalecalc: interrupted while deriving: 1 of ")
    monkeypatch.setattr("scaling_algebra.solver.newton.largest", stopped)
    asked = ("--ray", "N=1/7,N_e=0,M=1/7", "--optimizer", "sgd", "--parameterization", "mssp")
    done = scalecalc("derive", *asked)
    assert (done.exit_code, done.stderr) == (130, "scalecalc: interrupted while deriving MSSP: no intervention\n")
    assert current_work() == ""


def test_the_size_that_is_named_is_one_that_no_run_decides():
    """A closer run that gives up at once knows less at t = 0 than the first one."""
    zero, unknown, size = (
        Bracket(NOTHING, NOTHING),
        Bracket(),
        bracket_monomial(Fraction(0), None, certain=True, below=True),
    )
    demand = Demand("mu-2", "theta", ("h1.propagating",), because="it is Theta(1)")

    class Known(Analysis):
        def __init__(self, start, later):
            self.start, self.later, self.network = start, later, ARCHITECTURES["mlp"]

        def __call__(self, name, t, means=None):
            return self.later if t else self.start

    first, spent = Known(zero, unknown), Known(unknown, unknown)
    assert [violation(demand, first, closer=x).open.step for x in (None, spent)] == [1, 1]
    assert violation(demand, spent).open.step == 1  # a part of a change is zero at t = 0
    assert violation(replace(demand, quantities=("h1",)), spent).open.step == 0
    assert not violation(demand, first, closer=Known(zero, size))


DEEP = """
axes = { a = "N", b = "N", i = "M", k = "N_e", x = "D", l = "L" }
equations = '''
h[a]     = E[a,x] data[x]
z[a]     = rmsnorm(h[a])
g[i,l]   = Q[i,a,l] z[a]
p[i,l]   = PLACE
u[i,k,l] = silu(W2[i,k,a,l] z[a])
m[b]     = alpha p[i,l] W3[i,b,k,l] u[i,k,l]
y[b]     = h[b] + m[b]
f        = U[b] y[b]
'''
"""


@pytest.mark.parametrize(
    ("gates", "ray", "terms"),
    [
        ("topk_softmax(g[i,l]; i)", "N=1,N_e=2/3,M=1,K=2/3,L=2/3", "L^-1"),
        ("topk_softmax(g[i,l]; i)", "N=1,N_e=1,M=1,K=1,L=1", "L^-1"),
        ("sigmoid(g[i,l])", "N=1,N_e=2/3,M=1,K=1,L=2/3", "M^-1 L^-1"),
        ("topk_sigmoid(g[i,l]; i)", "N=1,N_e=2/3,M=1,K=2/3,L=2/3", "K^-1 L^-1"),
    ],
)
def test_the_layer_wise_law_counts_experts_that_are_chosen_and_layers(gates, ray, terms):
    """Where K grows slower than M, the depth was left out of the sum over both: plans lacked 1/L on the experts."""
    network = from_toml(DEEP.replace("PLACE", gates))
    asked = Configuration.of(None, "adam", ray=ray, network=network)
    law = at_full_alignment(asked.network, asked.ray, asked.optimizer)
    assert str(1 / law["alpha"]) == terms


def test_the_layer_wise_law_takes_the_operator_of_one_expert_where_each_reads_its_own_signal():
    """More neurons than outputs of one expert: as derived, N^(1/2) N_e^-1, although all experts have more outputs."""
    asked = Configuration.of(None, "adam", ray="N=1/2,N_e=1,M=1", architecture="moe")
    law = at_full_alignment(asked.network, asked.ray, asked.optimizer)
    assert (
        1 / law["b.expert_out"] == derive(asked)["expert_out"].init_std and str(law["b.expert_out"]) == "N_e N^(-1/2)"
    )


def test_the_layer_wise_law_is_smaller_only_for_what_reads_changes():
    """An adapter on a frozen signal starts at N^-1/2, one that reads what another moves at N^-1."""
    two = """
    h[a] = E[a,x] data[x]
    u[b] = h[b] + B1[b,r] A1[r,a] h[a]
    v[c] = u[c] + B2[c,r] A2[r,b] u[b]
    f    = U[c] v[c]
    """
    axes = {"a": "N", "b": "N", "c": "N", "x": "D", "r": "R"}
    asked = Configuration.of(None, "adam", ray="N=1", network=network("two", two, axes).with_frozen("EU"))
    law = at_full_alignment(asked.network, asked.ray, asked.optimizer)
    assert [str(1 / law[f"b.{role}"]) for role in ("A1", "A2", "B1", "U")] == ["N^(-1/2)", "N^-1", "1", "N^-1"]
