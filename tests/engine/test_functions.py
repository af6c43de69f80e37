"""Functions as polynomials of their parity class, what an answer assumes, and bounds by norms.

What the rules of functions, signs and norms give: ``test_rules.py``.
"""

import csv
import json
from dataclasses import replace
from fractions import Fraction
from math import factorial

import numpy as np
import pytest
import torch

from scaling_algebra import NotFound, derive, explain, network
from scaling_algebra.dynamics.analysis import Analysis
from scaling_algebra.errors import Inconclusive, UsageError
from scaling_algebra.explanations.explanations import explain_quantity
from scaling_algebra.proofs.prover import Uniqueness, prove, prove_missing
from scaling_algebra.solver.demands import dwindles, provable
from scaling_algebra.solver.layerwise import at_full_alignment
from scaling_algebra.spec.axes import Ray
from scaling_algebra.spec.configuration import Configuration
from scaling_algebra.spec.desiderata import Structure
from scaling_algebra.spec.entries import read_registry
from scaling_algebra.spec.networks.files import from_toml
from scaling_algebra.spec.networks.functions import FUNCTIONS, FunctionKind
from scaling_algebra.spec.optimizer_reading import read_optimizers
from scaling_algebra.spec.optimizers import optimizer
from scaling_algebra.verify.infinite_width.course import Descent, compute_trajectory
from scaling_algebra.verify.networks import torch_network
from scaling_algebra.verify.networks.torch_network import find_torch_function
from scaling_algebra.verify.tracing.activations import measure_properties

from ..shared import scalecalc
from .scenarios import placed, sizes
from .test_rules import NETWORKS

TANH, EVEN, SILU = (NETWORKS[name] for name in ("T1", "T2", "T3"))
EVEN_AT = "c.W=-1,rho=1,beta=1"


@pytest.mark.parametrize("name", [f.name for f in FUNCTIONS.values() if f.kind in ("entrywise", "softmax")])
def test_hermite_coefficients_are_those_of_the_class(name):
    """By quadrature: a coefficient vanishes where no power of the class has its parity, up to the linear part."""
    kind = FUNCTIONS[name]
    x, weight = np.polynomial.hermite_e.hermegauss(160)
    of = torch.exp if kind.kind == "softmax" else find_torch_function(kind)
    value, weight = of(torch.tensor(x)).numpy(), weight / weight.sum()
    found = {p: weight @ (value * np.polynomial.hermite_e.HermiteE.basis(p)(x)) / factorial(p) for p in range(8)}
    seen = {p for p, c in found.items() if abs(c) > 1e-3 / factorial(p)}
    above = {p % 2 for p in kind.powers if p > 1}
    wanted = {p for p in range(8) if p in kind.powers or (p > 1 and p % 2 in above) or (p == 0 and 0 in above)}
    assert seen <= wanted, (name, found)
    assert {p for p in wanted if p < 4} <= seen, (name, found)


def test_a_function_that_torch_lacks_is_defined_in_one_place(tmp_path, monkeypatch):
    """Without its definition nothing is trained, and one line says where it belongs."""
    kind = FunctionKind("squareplus", "squareplus", "", powers=frozenset({0, 1, 2}), positive=True, rising=True)
    monkeypatch.setitem(FUNCTIONS, "squareplus", kind)
    text = 'axes = { a = "N", b = "N", x = "D" }\nequations = """h[a] = W[a,x] data[x]\nf = V[a] squareplus(h[a])"""'
    (tmp_path / "own.toml").write_text(text, encoding="utf-8")
    asked = ["--network", str(tmp_path / "own.toml"), "--ray", "N=1", "--optimizer", "sgd", "--sizes", "8,12,18"]
    told = scalecalc("verify", *asked, "--seeds", "4")
    assert told.exit_code == 2 and "torch has no function 'squareplus'" in told.stderr and told.stderr.count("\n") == 1
    monkeypatch.setitem(torch_network.OWN, "squareplus", lambda x: (x + (x * x + 4).sqrt()) / 2)
    assert not contradicted(kind) and contradicted(replace(kind, powers=frozenset({1}))) == {"powers"}
    assert " exponents agree" in scalecalc("verify", *asked, "--seeds", "4").stdout


@pytest.mark.parametrize("rule", ["sgd", "muon"])
def test_a_kind_is_what_its_rule_says(rule):
    """A layernorm is a mean that is subtracted, by its own rule, and an rmsnorm: bounds of later steps, too."""
    found = []
    for between in ("z[a] = centre(q[a]; a)\nr[a] = rmsnorm(z[a]; a)", "r[a] = layernorm(q[a]; a)"):
        equations = f"h[a] = W[a,x] data[x]\nq[a] = U[a,b] h[b]\n{between}\nf = V[a] r[a]"
        net = network("centred", equations, axes={"a": "N", "b": "N", "x": "D"})
        d = derive(ray="N=1", optimizer=rule, network=net)
        names = ("q.change", "r", "r.change", "f", "f.cross", "gq", "gW")
        found.append([(str(d.analysis()(x, 1)), d.analysis().upper(x)) for x in names])
        if rule == "sgd":
            with pytest.raises(UsageError, match="the limit has no rule for"):
                compute_trajectory(Descent.of(d, 1, 0.1, 1, "output"))
    assert found[0] == found[1] and all(upper is not None for _, upper in found[0])


READ = ("powers", "bounded", "homogeneous", "positive", "rising", "signed")


def contradicted(kind):
    """The keys of a table of ``functions.toml`` that the values of torch contradict."""
    try:
        f = find_torch_function(kind)
    except UsageError:
        return {"torch"}
    if (kind.mixes and kind.kind != "softmax") or kind.kind == "noise":
        wrong = {key for key in READ[1:] if getattr(kind, key)}
        x = torch.tensor([1.0, -2.0, 0.5, 4.0])
        along = x.shape if kind.kind == "norm" else 0
        moved = kind.mixes and kind.centres != torch.allclose(f(x + 1, along), f(x, along), atol=1e-3)
        return wrong | ({"centres"} if moved else set()) | {"powers" for p in kind.powers if p % 2 == 0}
    values = measure_properties(f) if kind.kind != "softmax" else measure_properties(torch.exp)
    if kind.kind == "softmax":  # both entries of a softmax of two
        both = [measure_properties(lambda u, k=k: torch.softmax(torch.stack([u, 0 * u]), 0)[k]) for k in (0, 1)]
        values.update({key: all(x[key] for x in both) for key in READ[1:]})
    if kind.kind == "gate":
        values["powers"] &= {0, 1}
    wrong = {key for key in READ if getattr(kind, key) != values[key]}
    return {key for key in wrong if getattr(kind, key) or not kind.selects}  # a selection has zeros beside the values


@pytest.mark.parametrize("kind", FUNCTIONS.values(), ids=FUNCTIONS)
def test_a_table_declares_what_torch_computes(kind):
    """The negative control: with any one key changed it does not."""
    assert not contradicted(kind), "change these keys of its table in functions.toml"
    assert contradicted(replace(kind, torch="squareplus")) == {"torch"}
    if kind.kind in ("entrywise", "gate", "softmax") and not kind.selects:
        for key in READ[1:]:
            assert contradicted(replace(kind, **{key: not getattr(kind, key)})) == {key}
        for power in range(4):
            assert contradicted(replace(kind, powers=kind.powers ^ {power})) == {"powers"}


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({"risng": True}, "no key named 'risng'; did you mean 'rising'?"),
        ({"rising": 1}, "rising is 1; it must be true or false"),
        ({"powers": [0, 0.5]}, "powers 2 is 0.5; it must be a whole number"),
        ({"powers": [True]}, "powers 1 is True; it must be a whole number"),
        ({"kind": "gat"}, "kind is 'gat'; it must be one of 'gate', "),
        (3, "f is 3; it must be a table"),
    ],
)
def test_a_wrong_table_is_one_line(table, said):
    table = {"torch": "tanh", "about": "a function", **table} if isinstance(table, dict) else table
    with pytest.raises(UsageError) as found:
        read_registry("functions.toml", {"f": table}, FunctionKind)
    assert str(found.value).startswith("functions.toml: [f]: ") and said in str(found.value)


def test_a_tensor_given_in_full_with_a_scalar_product(tmp_path):
    """T5: nothing is asked of parts that a product of what is read directly does not have."""
    own = tmp_path / "own.toml"
    own.write_text(f'axes = {{ a = "N", x = "D" }}\nequations = """\n{EVEN}\n"""\n')
    given = [x for held in ("W.init=1", "W.lr=N", "rho=N^-1", "beta=N^-1") for x in ("--given", held)]
    shown = scalecalc("signals", "--network", str(own), "--ray", "N=1", "--optimizer", "sgd", *given)
    assert shown.exit_code == 0 and "no quantity" not in shown.output


# what an answer assumes ----------------------------------------------------------------------------------------


def test_every_answer_names_what_it_assumes():
    linear = placed("h[a] = W1[a,x] data[x]\nf = W2[a] h[a]")
    assert linear("h", 1).assumes == set() and linear("h", 1).without_assumptions().decided
    assert linear("h.change", 2).assumes == {"generic-constants"}
    for rule, text, name in (
        ("sgd", TANH, "polynomials"),
        ("adam", TANH, "first-hermite"),
        ("signsgd", SILU, "rank-one-sign"),
        ("muon", TANH, "singular-directions"),
        ("sgd", SILU.replace("silu(h[a])", "gate(h[a])"), "held-gates"),
        ("sgd", NETWORKS["TOP"], "random-selection"),
        ("sgd", NETWORKS["BOUNDED_SHARES"], "bounded-logits"),
    ):
        answer = placed(text, rule, point="" if text == TANH else "b.W2=1")("f.change", 1)
        assert name in answer.assumes and not answer.without_assumptions().decided, (rule, text)


def test_answers_without_assumptions_are_undecided_where_they_assume():
    asked = ["--architecture", "mlp", "--ray", "N=1", "--no-assumptions"]
    shown = scalecalc("signals", *asked, "--steps", "2", "--format", "json")
    found = json.loads(shown.output)
    told = scalecalc("explain", "f@1", *asked[:-1]).output
    assert "assumes first-hermite" in told.splitlines()
    assert found["assumes"] == [] and found["quantities"]["h1"] == ["0", "undecided", "undecided"]
    assert found["because"]["h1"] == [None, *(f"it assumes {x}first-hermite" for x in ("", "generic-constants, "))]
    assert {name for name, row in found["quantities"].items() if "undecided" in row} == set(found["because"])
    rows = csv.DictReader(scalecalc("signals", *asked, "--format", "csv").output.splitlines())
    reasons = {row["name"]: row["because"] for row in rows}
    assert reasons["h1"].startswith("it assumes") and (reasons["h1.init"] == "") is ("h1.init" not in found["because"])
    shown = scalecalc("derive", *asked)
    assert shown.exit_code == 3 and "it assumes generic-constants, first-hermite" in shown.output
    certified = scalecalc("derive", *asked[:-1], "--strict")
    assert certified.exit_code == 0 and "certified" in certified.output


# two sides ------------------------------------------------------------------------------------------------------

BOTH = [(TANH, "sgd"), (TANH, "adam"), (SILU, "sgd"), (SILU.replace("silu", "relu"), "sgd")]


@pytest.mark.parametrize("text, rule", BOTH)
def test_two_degrees_more_change_no_answer(text, rule):
    run = placed(text, rule)
    higher = Analysis(run.ray, run.point, run.optimizer, run.network, raised=True)
    for name in run.table:
        for t in (0, 1):
            one, two = run(name, t), higher(name, t)
            assert not (one.decided and two.decided) or one.size == two.size, (name, t)


@pytest.mark.parametrize("text, rule", [*BOTH, (TANH, "muon"), (SILU, "signsgd")])
def test_no_certified_size_is_above_its_bound(text, rule):
    run = placed(text, rule)
    assert not run.bounds.why
    answers = [(run(name, 2), run.upper(name)) for name in run.table]
    held = [(a.size, high) for a, high in answers if a.decided and a.size is not None and high is not None]
    assert len(held) > 12 and all(size <= high for size, high in held)


def test_without_the_cubic_part_the_answer_is_wrong_and_two_degrees_more_say_so(monkeypatch):
    """The negative control of both tests above: tanh read as x and its mean square."""
    monkeypatch.setitem(FUNCTIONS, "tanh", replace(FUNCTIONS["tanh"], powers=frozenset({1, 2})))
    sizes(placed(EVEN, point=EVEN_AT), "s@1 0")  # the parity is lost
    monkeypatch.setitem(FUNCTIONS, "tanh", replace(FUNCTIONS["tanh"], powers=frozenset({1})))
    sizes(placed(TANH), "h3.cross@1 -1/2")


# a kink at zero ---------------------------------------------------------------------------------------------------

KINK = """
h[a] = E[a,x] data[x]
n[a] = G[a] h[a]
u[k] = V[k,a] n[a]
w[k] = {}
v[a] = Z[a,k] w[k]
g[a] = h[a] + v[a]
f    = U[a] g[a]
"""


def kink(function, rule="adam", **given):
    """A branch behind a gain, with zeros among what is given."""
    net = network("kink", KINK.format(function), {"a": "N", "k": "N", "x": "D"})
    return derive(None, rule, "mup", ray="N=1", network=net, given={f"{name}.init": x for name, x in given.items()})


def behind_a_zero(function):
    """Every size at t = 0, 1, 2, 3 by name, of a branch behind a gain that starts at zero."""
    d = kink(function)
    point = d.scaling.point(d.ray)
    point = replace(point, b={**point.b, "G": None})
    look = Analysis(d.ray, point, optimizer("adam"), d.network)
    return {name: [look(name, t) for t in range(4)] for name in ("u", "w", "v", "gG", "gV", "gZ", "f")}


def test_a_branch_whose_function_has_no_linear_part_stays_at_zero():
    """A squared ReLU behind a zero gain has no gradient; a product with a linear part wakes up after one step, and the
    slope of a ReLU at its kink is a convention: undecided."""
    found = behind_a_zero("relu(u[k]) relu(u[k])")
    assert all(a.decided and a.size is None for name in found if name != "f" for a in found[name])
    assert found["f"][3].decided and found["f"][3].size == 0
    linear = behind_a_zero("silu(u[k])")
    assert linear["gG"][0].decided and linear["gG"][0].size is not None and linear["v"][1].size == 0
    kink = behind_a_zero("relu(u[k])")
    assert kink["w"][0].size is None and not kink["gG"][0].decided and "exactly zero" in kink["gG"][0].why


@pytest.mark.parametrize("rule", ["sgd", "adam"])
def test_no_powers_move_what_stays_at_zero(rule):
    """Shown by the zero itself: proofs reach no functions. Where the slope at zero is known, all is derived; behind a
    last matrix of zero, bound and witness meet for every demand."""
    with pytest.raises(NotFound) as found:
        kink("relu(u[k]) relu(u[k])", rule, G=0)
    verdict, line = prove_missing(found.value)
    assert verdict is Uniqueness.IMPOSSIBLE and "dG h = Theta(1), but it is exactly zero up to t=2" in line
    assert "proved, since what is exactly zero stays so at any powers" in line
    for zero in ({"Z": 0}, {"Z": 0, "U": 0}):  # the readout moves first, then the last matrix, and the gain at t = 3
        assert not kink("relu(u[k]) relu(u[k])", rule, **zero).unmet
    assert not kink("silu(u[k])", rule, G=0).unmet


@pytest.mark.parametrize("rule", ["sgd", "adam"])
def test_what_wakes_late_is_not_proved_to_sleep(rule):
    """R moves first, then Q by the product of both, then U, and A at t = 4."""
    text = "h[a] = E[a,x] data[x]; p[b] = A[b,a] h[a]; o[b] = Q[b,a] h[a]; q[b] = silu(o[b]); r[b] = R[b,a] h[a]; "
    text += "y[b] = p[b] q[b]; z[b] = q[b] r[b]; f = U[b] y[b] + V[b] z[b] + W[b] r[b]"
    late = network("late", text.replace("; ", "\n"), {"a": "N", "b": "N", "x": "D"}).with_zero("UQR")
    with pytest.raises(NotFound) as found:
        derive(ray="N=1", optimizer=rule, network=late)
    assert "exactly zero up to t=3" in found.value.failure and prove_missing(found.value)[0] is Uniqueness.UNDECIDED


def test_the_layer_wise_law_alone_proves_nothing():
    """Behind a norm that may be outgrown hardly a size is decided: the first intervention of which none fails is taken,
    its numbers say that nothing is shown, and those that fail prove nothing."""
    text = "h[p] = A[p,x] data[x]; z[p] = rmsnorm(h[p]); g[m] = sigmoid(R[m,p] z[p]); u[m,e] = U[m,e,p] z[p]"
    text += "; y[q] = alpha g[m] D[m,q,e] u[m,e]; v[q] = h[q] + y[q]; f = o[q] v[q]"
    axes = {"p": "N", "q": "N", "m": "M", "e": "N_e", "x": "D"}
    own = network("own", text.replace("; ", "\n"), axes, roles={"R": "router", "U": "up", "D": "down"})
    d = derive("II", "sgd", "mssp", network=own)
    assert d.structure[0] == "chosen: y_1 free before aggregation" and "y.A1 ~ n^(-1/2)" in d.structure[1]
    assert str(d.level) == "stability shown for 0 of 28 demands, learning for 0 of 26" and d.level.code == 3
    with pytest.raises(Inconclusive, match="divides or gates by unknown sizes"):
        prove("II", "sgd", "mssp", network=own)


@pytest.mark.parametrize("rule", ["signsgd", "lion"])
def test_the_cubic_part_of_a_sign_is_undecided_beside_a_function(rule):
    """A step on the sign of k + l + j meets k l j at n^0 through its cubic part (trained: -.10, -.02, .06).
    With one only an upper bound is known of that part, and the smaller power of the linear part is no answer."""
    at, both = "b.V=1/2,b.W4=1,b.W5=2,c.V=1,c.W4=1,c.W5=2,d.V=1", (NETWORKS["CUBIC"], NETWORKS["CURVED_CUBIC"])
    plain, beside = (placed(text, rule, "N=1", at)("y.effective", 1) for text in both)
    assert plain.decided and plain.size == beside.high == 0
    assert not beside.decided and "of a sign" in beside.why


NARROW = from_toml(
    """
name = "narrow"
axes = { a = "N", b = "N", l = "N_e", x = "D" }
roles = { E = "embed", G = "gate", V = "up", W = "down", U = "head" }
equations = '''
h[a] = E[a,x] data[x]
z[a] = rmsnorm(h[a])
s[l] = silu(G[l,b] z[b]) V[l,a] z[a]
o[a] = h[a] + W[a,l] s[l]
f    = U[a] o[a]
'''
"""
)
"""An expert behind a norm, which is beside the way through."""


def test_a_change_that_can_do_too_little_refutes():
    """Through fewer neurons than the width, what a gate learns does n^-1 at the law, and was undecided."""
    asked = {"optimizer": "sgd", "parameterization": "mup", "network": NARROW}
    with pytest.raises(NotFound, match=r"effective update dG z = Theta\(1\), but .* ~ n\^\(-1\) at most"):
        derive(ray="N=1,N_e=0", **asked)
    assert derive(ray="N=1,N_e=1", **asked).level.certified  # control: as many neurons as the width


GATED = from_toml(
    """
name = "gated-expert"
axes = { a = "N", b = "N", i = "M", k = "N_e", x = "D" }
equations = '''
h[a]   = E[a,x] data[x]
z[a]   = rmsnorm(h[a])
g[i]   = R[i,a] z[a]
p[i]   = bounded_softmax(g[i])
s[i,k] = silu(G[i,k,a] z[a])
y[b]   = p[i] W[i,b,k] s[i,k]
o[b]   = h[b] + y[b]
f      = U[b] o[b]
'''
"""
)


MODERN = """
axes = { a = "N", b = "N", i = "M", k = "N_e", s = "N_e", x = "D" }
equations = '''
h[a]   = E[a,x] data[x]
n[a]   = rmsnorm(h[a])
psi[i] = Q[i,a] n[a]
phi[i] = topk_softmax(psi[i])
p[i,k] = G[i,k,a] n[a]
q[i,k] = W2[i,k,a] n[a]
u[i,k] = silu(p[i,k]) q[i,k]
m[b]   = alpha phi[i] W3[i,b,k] u[i,k]
sp[s]  = SG[s,a] n[a]
sq[s]  = S2[s,a] n[a]
so[b]  = S3[b,s] silu(sp[s]) sq[s]
z[b]   = h[b] + m[b] + so[b]
f      = U[b] rmsnorm(z[b])
'''
"""


def test_a_block_as_open_models_have_it_is_decided_where_logits_stay_bounded():
    """Routed and shared gated experts between norms. Weights of a softmax sum to 1, so that no multiplier is due: with
    1/M the experts would have no share in what is learned, and it was printed."""
    found = {}
    for gate in ("topk_softmax", "topk_bounded_softmax", "bounded_softmax"):
        d = found[gate] = derive("III", "adam", network=from_toml(MODERN.replace("topk_softmax", gate)))
        assert str(d.scaling.alpha) == "1" and d.level.certified == (gate != "topk_softmax")
    assert any("topk_bounded_softmax assumes" in x.why for x in found["topk_softmax"].level.open)
    assert "bounded-logits" in found["topk_bounded_softmax"].assumes


SHARED = from_toml(
    """
name = "shared-gated"
title = "gated experts with a sigmoid router beside a shared one, behind a norm"
axes = { a = "N", b = "N", c = "N", i = "M", k = "N_e", x = "D" }
roles = { W1 = "embed", Q = "router", U = "up", G = "gate", V = "down", SU = "su", SG = "sg", SV = "sv", W2 = "head" }
equations = '''
h[a]   = W1[a,x] data[x]
z[a]   = rmsnorm(h[a])
psi[i] = Q[i,a] z[a]
phi[i] = sigmoid(psi[i])
u[i,k] = silu(G[i,k,b] z[b]) U[i,k,a] z[a]
y[i,b] = V[i,b,k] u[i,k]
m[b]   = alpha phi[i] y[i,b]
v[k]   = silu(SG[k,b] z[b]) SU[k,a] z[a]
s[b]   = SV[b,k] v[k]
o[b]   = h[b] + m[b] + s[b]
f      = W2[b] o[b]
'''
"""
)


@pytest.mark.parametrize(("ray", "power"), [("N=1,N_e=0,M=1", "-1"), ("N=1,N_e=1/2,M=3/2", "-1/2")])
def test_a_shared_expert_that_is_too_narrow_to_learn_has_no_numbers(ray, power):
    """Its gradients are products of small numbers; the numbers of the layer-wise law were printed, undecided."""
    with pytest.raises(NotFound, match=rf"effective update dSU z = Theta\(1\), but .* ~ n\^\({power}\) at most"):
        derive(ray=ray, optimizer="sgd", parameterization="mup", network=SHARED)


BESIDE = """
name = "n"
title = "n"
axes = { a = "N", b = "N", s = "C", x = "D" }
equations = '''
h[a] = E[a,x] data[x]
z[a] = rmsnorm(h[a])
q[s] = S[s,a] z[a]
o[b] = h[b] + T[b,s] q[s]
f    = U[b] o[b]
'''
"""
"""A path of fixed width beside the way through."""


@pytest.mark.parametrize(("given", "top"), [({"W.lr": "N_e^-2"}, "-1"), ({}, None)])
def test_a_bound_on_a_change_counts_every_factor_that_it_meets(given, top):
    d = derive("III", "adam", "mup", network=GATED, given=given)
    (demand,) = (x for x in d.configuration.parameterization.list_demands(GATED, Structure()) if x.fixes == "c.W")
    failure = dwindles(demand, d.analysis(), d.analysis())
    assert failure is None if top is None else f"y_1.effective + y_1.cross ~ n^({top}) at most" in str(failure)


def test_a_mean_is_taken_off_along_an_axis_that_does_not_grow():
    """It ended in an internal error."""
    layer = from_toml(BESIDE.replace("rmsnorm", "layernorm").replace('"C"', '"N_e"'))
    d = derive(ray="N=0,N_e=1", optimizer="sgd", network=layer)
    assert {x: (str(d[x].init_std), str(d[x].lr)) for x in "ST"} == {"S": ("1", "N_e"), "T": ("N_e^-1", "N_e^-1")}


def test_a_multiplier_of_what_does_not_train_keeps_that_theta_1():
    """Adapters on values alone: it was proved that nothing exists, since frozen scores do not change."""
    text = "h[a] = E[a,x] data[x]; q[s,b] = Q[s,b,a] h[a]; k[t,b] = K[t,b,a] h[a]; p[s,t] = scale q[s,b] k[t,b]; "
    text += "v[t,c] = V[t,c,a] h[a]; y[s,c] = p[s,t] v[t,c]; f = U[s,c] y[s,c]"
    axes = {"s": "S", "t": "S", "a": "N", "b": "N", "c": "N", "x": "D"}
    d = derive(
        ray="N=1", optimizer="adam", network=network("own", text.replace("; ", "\n"), axes).with_frozen([*"EQKU"])
    )
    assert str(1 / d.scaling.multipliers["scale"]) == "N^(-1/2)" and str(d["V"].lr) == "N^-1" and d.level.certified


def test_multipliers_go_by_their_names():
    text = "h[a] = E[a,x] data[x]; g[i] = R[i,a] h[a]; p[i] = gate(g[i]); l[i,k] = S[i,k,a] h[a]; "
    text += "y[a] = agg p[i] T[i,a,k] l[i,k]; f = U[a] y[a]"
    axes = {"a": "N", "i": "M", "k": "N_e", "x": "D"}
    one = network("one", text.replace("; ", "\n"), axes)
    found = [explain(x, "III", "sgd", "mup", network=one) for x in ("agg", "aggregation")]
    assert [(x.name, str(x.value)) for x in found] == [("aggregation.agg", "M^-1")] * 2
    given = derive("III", "sgd", "mup", network=one, given={"T.lr": "N^(3/2) M N_e^-1"})
    assert "what follows: agg = " in str(given)


def test_a_number_is_explained_by_the_quantity_that_it_makes():
    found = explain("E.lr", ray="N=1", optimizer="adam", network=from_toml(BESIDE), epsilon="negligible")
    assert found.because == "mu-2: effective update dE data = Theta(1)"
    assert (found.behind.quantity, found.behind.exponent) == ("h.effective", 0)
    assert found.reason.endswith("Theta(1) needs E.lr = 1.")


def test_where_a_change_can_do_too_little_a_negligible_epsilon_is_tried(tmp_path):
    """And a heading names the functions that are left out."""
    (tmp_path / "n.toml").write_text(BESIDE)
    asked = ["derive", "--network", tmp_path / "n.toml", "--ray", "N=1", "--optimizer", "adam"]
    said = scalecalc(*asked)
    assert said.exit_code == 0 and "n^(-1/2) at most; the numbers below have --epsilon negligible" in said.stderr
    assert "epsilon negligible, certified: n\n" in said.stdout
    assert "n without z\n" in scalecalc(*asked, "--without", "z").stdout


def test_a_reason_takes_little_work():
    """Of what is certified by a run in which less happens no other run is looked for on every rung."""
    d = derive(ray="N=1,N_e=1", optimizer="sgd", parameterization="mup", network=NARROW)
    look, fixing = d.analysis(), d.fixed_by["c.up"]
    assert explain_quantity(d, look, fixing.quantity, fixing.step).exponent == 0
    assert look.meter.work_done < 70_000


def test_what_fails_behind_a_norm_is_named_with_little_work():
    """It took minutes, and what was undecided counted as failing."""
    asked = {"ray": "N=1,N_e=1", "optimizer": "sgd", "parameterization": "mup", "network": NARROW}
    d = derive(**asked, given={"down.lr": "N"})
    assert d.level.failed == len(d.unmet) and d.level.open and d.level.code == 1
    assert any("dW s" in x for x in d.unmet) and not any("undecided" in x for x in d.unmet)
    assert derive(**asked, given={"down.lr": "1"}).level.certified


def test_all_functions_that_stand_in_the_way_of_a_proof_are_named():
    ray = Configuration.of(ray="N=1,N_e=1", network=NARROW).ray
    assert "derive --without s_1 --without z leaves them out" in provable(NARROW, ray, optimizer("sgd"))


SHARES = """
h[a] = A[a,x] data[x]
p[a] = {softmax}(h[a]; a)
u[b] = W[b,a] p[a]
k[c] = K[c,x] data[x]
q[c] = softmax(k[c]; c)
v[b] = W[b,{letter}] {second}[{letter}]
z[b] = relu(u[b]) + tanh(v[b])
f = V[b] z[b] + U[c] q[c]
"""


@pytest.mark.parametrize(
    ("rule", "rate"), [("sgd", 2), ("adam", 0), ("muon", 1)], ids=lambda x: x if isinstance(x, str) else ""
)
def test_a_matrix_of_shares_is_larger_by_their_number(rule, rate):
    """Inputs of 1/N: W_0 dx and dW x are Theta(1) where W_0 is N^(1/2), and where dW is 1. Negative control: one use
    with an input of Theta(1)."""
    ray = Ray.parse("N=1")
    for softmax, letter, second, (b, c) in (
        ("softmax", "a", "p", (Fraction(1, 2), rate)),
        ("softmax", "c", "q", (Fraction(1, 2), rate)),  # letters of another use are others
        ("topk_softmax", "c", "q", (Fraction(1, 2), rate)),
        ("softmax", "c", "k", (Fraction(-1, 2), rate - 1 - (rule == "sgd"))),
    ):
        text = SHARES.format(softmax=softmax, letter=letter, second=second)
        net = network("shares", text, {"a": "N", "b": "N", "c": "N", "x": "D"})
        law = at_full_alignment(net, ray, read_optimizers(rule, net))
        assert (-law["b.W"].on(ray), -law["c.W"].on(ray)) == (b, c), (softmax, letter, second)
