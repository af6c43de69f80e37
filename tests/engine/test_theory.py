"""Scenarios of the MSSP paper and the routers paper that are claims about exponents, with a control for each.

Where a claim is not exactly true, the docstring says what is true and the test asserts that.
"""

import re
from dataclasses import replace
from fractions import Fraction

import pytest

from scaling_algebra import REGIMES, derive
from scaling_algebra.dynamics.analysis import Analysis
from scaling_algebra.solver.demands import Infeasible, violation
from scaling_algebra.spec.axes import Ray
from scaling_algebra.spec.desiderata import Structure, mssp_demands, mup_demands
from scaling_algebra.spec.networks.grammar import network
from scaling_algebra.spec.networks.library import MOE_BLOCK, architecture
from scaling_algebra.spec.networks.roles import adjoints
from scaling_algebra.spec.optimizers import optimizer
from scaling_algebra.spec.parameterizations import PARAMETERIZATIONS
from scaling_algebra.spec.powers import Power
from scaling_algebra.spec.scaling import TensorScaling

HALF = Fraction(1, 2)
RULES = ("sgd", "adam")
ROUTERS = ("softmax", "sigmoid", "softmax-bias", "softmax-topk", "sigmoid-topk")


def N(power):
    """A power of the width."""
    return Power.of({"N": power})


def look(d, scaling=None, network=None):
    """The engine at a derivation, with another scaling or network if given."""
    return Analysis(d.ray, (scaling or d.scaling).point(d.ray), d.optimizer, network or d.network)


def changed(scaling, role, **what):
    """A scaling with other powers for one tensor."""
    return replace(scaling, tensors={**scaling.tensors, role: replace(scaling.tensors[role], **what)})


def size(analysis, name, t):
    """Certified exponent; None for exactly zero."""
    answer = analysis(name, t)
    assert answer.decided, (name, t, answer.why)
    return answer.exponent


def at(analysis, *steps):
    """Columns of ``check``: one analysis at these steps."""
    return [(analysis, t) for t in steps]


def check(columns, text):
    """Every line of the text is a quantity and its exponent in each column; a dot is exactly zero."""
    rows = [line.split() for line in text.strip().splitlines()]
    wanted = {name: [None if x == "." else Fraction(x) for x in cells] for name, *cells in rows}
    assert {name: [size(analysis, name, t) for analysis, t in columns] for name in wanted} == wanted


def broken(analysis, structure, demands=mssp_demands):
    """The desiderata that fail, and the quantities they are about."""
    failed = [d for d in demands(analysis.network, structure) if violation(d, analysis)]
    return {d.name for d in failed}, {name for d in failed for name in d.quantities}


# the two interventions of MSSP --------------------------------------------------------------------------------------


def boosted(d):
    """The regime-II intervention: expert_out starts at M^(1/2) N_e^(-1/2), nothing is tied."""
    return changed(replace(d.scaling, tied=()), "expert_out", init_std=Power.of({"M": HALF, "N_e": -HALF}))


@pytest.mark.parametrize("rule", RULES)
def test_the_boost_of_regime_ii_does_not_serve_regime_iii(rule):
    """MSSP paper, App. I.8: in regime III the boost puts the gradient at the expert hidden layer n^(1/2) above target.

    The parts that hold W3_0 (``init-*``) gain n^(1/2), the parts that hold dW3 do not, so g2 is unbalanced. The boost
    does repair mechanism A (A1 and A2.1 are Theta(1)). The paper names only the backward pass; the forward pass
    diverges too: the gradient that is n^(1/2) too large moves W2, and A2.2, through W3_0 once more, is n^(1/2) too
    large under Adam, n under SGD, and the output with it.
    """
    d = derive("III", rule, "mssp", readout_init="maximal")
    check(
        [*at(look(d), 0, 1), *at(look(d, boosted(d)), 0, 1)],
        """
        g2                -2   -2    -3/2 -3/2
        g2.init-init      -2   -2    -3/2 -3/2
        g2.init-update     .   -2       . -3/2
        g2.update-init     .   -2       .   -2
        g2.update-update   . -5/2       . -5/2
        """,
    )
    d = derive("III", rule, "mssp")
    own, other = look(d), look(d, boosted(d))
    check(
        [*at(own, 2), *at(other, 2)],
        """
        g2.init-update   -2 -3/2
        g2.update-update -2   -2
        h3.A1             0    0
        h3.A2.1           0    0
        h3.A3             0    0
        """,
    )
    too_large = {"sgd": Fraction(1), "adam": HALF}[rule]
    for name in ("h3.A2.2", "h3", "f"):
        assert (size(own, name, 2), size(other, name, 2)) == (0, too_large)
    assert broken(own, Structure(frozenset({"readout"}), frozenset(d.scaling.tied))) == (set(), set())
    names, quantities = broken(other, Structure(frozenset({"readout"}), exempt=frozenset({"h3i"})))
    assert "MSSP-2 backward" in names and {"g2.init-update", "h3.A2.2", "f"} <= quantities


@pytest.mark.parametrize("rule", RULES)
def test_shared_experts_do_not_serve_regime_ii(rule):
    """MSSP paper, App. I.8: in regime II sharing the experts corrects mechanism A only.

    At t = 1 with maximal readout, columns muP, muP with shared experts, MSSP: A1 is corrected, and the imbalances of
    mechanism D (A6 against A4) and of g2 (init-init against update-init) stay as they are. Two sentences of the paper
    need care. A2.1 is not corrected but overshoots: W2 is shared, so W2_0 dh1 has only N_e = Theta(1) different rows,
    aligns as a readout does (App. I.2.2) and is n^(1/2), and with it h2, h3 and f diverge. The Gram operators
    (mechanism B) gain n^(1/2), which is not enough at t = 1; with a zero readout, W4 lies in the range of the shared
    W3, and A2.2 is Theta(1) at t = 2.
    """
    mup, mssp = (derive("II", rule, p, readout_init="maximal") for p in ("mup", "mssp"))
    experts = ("expert_in", "expert_out")
    columns = [*at(look(mup), 1), *at(look(mup, replace(mup.scaling, tied=experts)), 1), *at(look(mssp), 1)]
    check(
        columns,
        """
        h3.A1          -1/2    0    0
        h3.A2.1          -1  1/2    0
        h3.A2.2          -1 -1/2    0
        h3.A3             0    0    0
        g1.expert.A4.1 -3/2   -1   -1
        g1.expert.A5.1   -1 -1/2   -1
        g1.expert.A6.1   -2   -2   -1
        g2.init-init   -3/2 -3/2   -1
        g2.init-update   -2   -1   -1
        g2.update-init   -1   -1   -1
        h2.propagating -1/2  1/2    0
        h3                0  1/2    0
        f                 0  1/2    0
        """,
    )
    mup, mssp = (derive("II", rule, p, readout_init="zero") for p in ("mup", "mssp"))
    tied = look(mup, replace(mup.scaling, tied=experts))
    check([*at(look(mup), 2), *at(tied, 2), *at(look(mssp), 2)], "h3.A2.2 -3/2 0 0 \n h3.A3 -1/2 0 0")
    assert broken(look(mssp), Structure(frozenset({"readout"}), exempt=frozenset({"h3i"}))) == (set(), set())
    names, quantities = broken(tied, Structure(frozenset({"readout"}), frozenset(experts)))
    assert "mu-1" in names and {"h2", "h3.A2.1"} <= quantities


# a norm after the aggregation ---------------------------------------------------------------------------------------


def test_rmsnorm_keeps_the_ratios():
    """MSSP paper, App. I.11.1: regime II, muP scaling of the plain block, Adam, maximal readout; plain against normed.

    A3 stays n^(1/2) above A2.1, after the norm the propagating part is n^(-1/2) of the whole, the gradients upstream
    gain n^(1/2) at t = 0. At t = 1 the norm takes from the gradient what is along h3, which A3 leads, so that g2 and
    gphi are n^(-3/2), not n^(-1) as without it (measured, n = 12 to 98: -1.48 and -1.45, and g2.update-update -1.54).
    Under MSSP the parts after the norm are balanced (control).
    """
    d = derive("II", "adam", "mup")
    plain, normed = look(d), look(d, network=architecture("moe-rmsnorm"))
    check(
        [*at(plain, 0, 1), *at(normed, 0, 1)],
        """
        h3               -1/2    0  -1/2    0
        h3.A1            -1/2 -1/2  -1/2 -1/2
        h3.A2.1             .   -1     . -1/2
        h3.A2.2             .   -1     . -1/2
        h3.A3               .    0     .    0
        g3                 -1   -1  -1/2   -1
        g3i                -2   -2  -3/2   -2
        g2.init-update      .   -2     . -3/2
        g2.update-update    .   -2     . -3/2
        """,
    )
    check([*at(plain, 0, 1), *at(normed, 0)], "g2 -3/2 -1 -1 \n gphi -3/2 -1 -1")
    assert not normed("gphi", 1).decided and normed("g2", 1).low == Fraction(-3, 2)  # what the norm takes may be more
    check(
        at(normed, 1),
        """
        hn                 0
        hn.propagating  -1/2
        hn.effective       0
        hn.cross        -1/2
        """,
    )
    s = derive("II", "adam", "mssp", readout_init="maximal")
    balanced = look(s, network=architecture("moe-rmsnorm"))
    check(
        at(balanced, 1),
        """
        hn.propagating    0
        hn.effective      0
        """,
    )


def test_rmsnorm_widens_the_gap_under_sgd():
    """MSSP paper, App. I.11.1: every part of hn is the part of h3 over the size of h3; under SGD that is not all.

    At t = 0 the norm makes the gradient of W3 n^(1/2) larger, so dW3 is n^(1/2) and A3 is n above A2.1, where the plain
    block has n^(1/2) from t = 2 on: the propagating part is n^-1 of the whole, less than the paper's n^(-1/2). After a
    step h3 is nearly parallel to the gradient at hn, so the norm may cancel nearly all of it: later gradients are
    undecided, and the engine says why.
    """
    d = derive("II", "sgd", "mup")
    plain, normed = look(d), look(d, network=architecture("moe-rmsnorm"))
    check([*at(plain, 0), *at(normed, 0)], "g3 -1 -1/2 \n gW3 -2 -3/2")
    check([*at(plain, 2), *at(normed, 1)], "h3.A3 0 1/2 \n h3.A2.1 -1/2 -1/2 \n h3 0 1/2 \n dW3 0 1/2")
    check(at(normed, 1), "hn 0 \n hn.effective 0 \n hn.propagating -1")
    for part in ("propagating", "effective", "cross"):
        assert size(normed, f"hn.{part}", 1) == size(normed, f"h3.{part}", 1) - size(normed, "h3", 1)
    assert not normed("g2", 1).decided and "the norm may cancel it" in normed("g2.update-update", 1).why


# depth --------------------------------------------------------------------------------------------------------------


def per_block(d, blocks):
    """A stack whose tensors are scaled in every block as in the single block."""
    network = architecture(f"stack{blocks}")
    tensors = {role: d.scaling.tensors[re.sub(r"_\d+$", "", role)] for role in network.tensors}
    return look(d, replace(d.scaling, tensors=tensors), network)


def single(name):
    """The quantity of the single block: ``h3_2.A1`` is ``h3.A1``, ``dW2_1`` is ``dW2``; empty for the pathways between
    blocks, which it does not have."""
    found = re.sub(r"_\d+(?=\.|$)", "", name)
    return "" if re.match(r"g3\.(expert|router)", found) else found


@pytest.mark.parametrize("blocks", [1, 2, 3])
def test_mssp_of_regime_ii_composes_with_depth(blocks):
    """MSSP paper, App. I.10, Prop. 1 and 2, Theorem 3: regime II, SGD, zero readout, stacks of 1, 2 and 3 blocks.

    Every quantity of every block has the size it has in the single block at t = 0 and t = 1, and the updates of every
    tensor do at t = 2. With two blocks every forward quantity at t = 2 does too, and the gradients in the last block.
    (At t = 2 some gradients of two blocks and the forward pass of three are beyond the work limit.) Under muP the
    initial aggregates vanish with depth as n^(-k/2) (control).
    """
    d = derive("II", "sgd", "mssp")
    one, stack = look(d), per_block(d, blocks)
    for t in (0, 1):
        for name in filter(single, stack.table):
            assert size(stack, name, t) == size(one, single(name), t), (name, t)
    for k in range(1, blocks + 1):
        check(at(stack, 0), f"h2_{k} 0 \n h3i_{k} 1/2 \n h3_{k} 0")
        check(at(stack, 1), f"g3_{k} -1")
    check(at(stack, 1), "g1 -1")
    later = {
        1: list(stack.table),
        2: [name for name in stack.table if not name.startswith("g")] + ["g3_2", "g2_2", "gphi_2"],
        3: [f"d{tensor.symbol}" for tensor in stack.network.tensors.values()],
    }
    for name in later[blocks]:
        assert size(stack, name, 2) == size(one, single(name), 2), name
    mup = per_block(derive("II", "sgd", "mup"), blocks)
    assert [size(mup, f"h3_{k}", 0) for k in range(1, blocks + 1)] == [Fraction(-k, 2) for k in range(1, blocks + 1)]


# readout: zero or maximal -------------------------------------------------------------------------------------------


def holds_initial_readout():
    """Quantities that hold W4_0 and nothing else of W4: exactly zero with a zero readout."""
    parts = {f"{a.name}.{s}" for a in adjoints(MOE_BLOCK) for s, m in a.parts.items() if m.get("readout") == "init"}
    return parts | {"f.init", "f.propagating", "f.propagating.normalised"}


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(("regime", "name"), [("I", "mup"), ("I", "mssp"), ("III", "mssp")])
def test_the_readout_init_does_not_matter_where_h3_starts_theta_1(regime, name, rule):
    """MSSP paper, App. J.1 and footnote 3: a zero readout delays the hidden tensors by one step, no more.

    From t = 2 on, muP in regime I and MSSP have the same exponents with both inits; only the parts that hold W4_0 are
    exactly zero with a zero readout.
    """
    maximal, zero = (look(derive(regime, rule, name, readout_init=x)) for x in ("maximal", "zero"))
    later = ("h1.change", "psi.change", "h2.change", "h3.change", "f.change", "g3", "g2", "gphi", "g1")
    for q, t in [(q, 2) for q in maximal.table] + [(q, 3) for q in later]:
        assert size(zero, q, t) == (None if q in holds_initial_readout() else size(maximal, q, t)), (q, t)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("regime", ["II", "III"])
def test_mup_with_a_zero_readout_does_not_start(regime, rule):
    """MSSP paper, App. Q.4.2 and Fig. 1: muP with a zero readout in regimes II and III.

    It is not a delay. Under muP h3_0 ~ n^(-1/2), so the first W4 is n^(-1/2) too small, every gradient behind it too,
    and at no later step does anything grow: at t = 2 the quantities that do not see W4 and ``f.effective`` are the
    only ones of one size under both inits, and t = 2, 3, 4 are alike. The partial self-correction the paper measures
    is no change of exponents at a fixed step. Where the update does not shrink with the gradient of W4 (SignSGD, Adam
    with a negligible epsilon) muP starts from zero as well (control).
    """
    maximal, zero = (look(derive(regime, rule, "mup", readout_init=x)) for x in ("maximal", "zero"))
    shared = {q for q in maximal.table if size(maximal, q, 2) == size(zero, q, 2)}
    forward = {f"{q}{part}" for q in ("h1", "psi", "phi", "h2", "h3i") for part in ("", ".init")}
    assert shared == forward | {"h3.init", "h3.A1", "f.effective"}
    check(
        [*at(maximal, 1, 2, 3), *at(zero, 1, 2, 3, 4)],
        """
        f.change      0  0  0    -1   -1   -1   -1
        h1.change  -1/2  0  0     .   -1   -1   -1
        h3.A3         0  0  0     . -1/2 -1/2 -1/2
        g3           -1 -1 -1  -3/2 -3/2 -3/2 -3/2
        """,
    )
    assert broken(maximal, Structure(), mup_demands) == (set(), set())
    assert "f.change" in broken(zero, Structure(zero=frozenset({"readout"})), mup_demands)[1]
    sign = look(derive(regime, "signsgd", "mup", readout_init="zero"))
    check(at(sign, 1, 2, 3), "f.change -1/2 0 0 \n h1.change . 0 0 \n h3.A3 . 0 0")


# one epsilon for all tensors ----------------------------------------------------------------------------------------

UPDATES = {"input": "dW1", "router": "dQ", "expert_in": "dW2", "expert_out": "dW3", "readout": "dW4"}


@pytest.mark.parametrize("role", UPDATES)
def test_an_epsilon_above_the_gradient_divides_the_update(role):
    """MSSP paper, App. I.2.3: Adam's epsilon must have the size of the gradient; regime III, MSSP.

    Above the gradient by n^delta it makes the update of its tensor smaller by n^delta, exactly; below, it changes
    nothing anywhere (control).
    """
    d = derive("III", "adam", "mssp")
    own = d.scaling.tensors[role].eps
    for delta in (Fraction(2, 5), Fraction(2)):
        large = look(d, changed(d.scaling, role, eps=own + N(delta)))
        assert size(large, UPDATES[role], 2) == size(look(d), UPDATES[role], 2) - delta
    small = look(d, changed(d.scaling, role, eps=own + N(Fraction(-1, 3))))
    assert sizes(small) == sizes(look(d))


def sizes(analysis, t=2):
    return {q: size(analysis, q, t) for q in analysis.table}


def with_epsilon(d, power):
    """One epsilon ~ N^-power for all tensors."""
    return look(d, replace(d.scaling, tensors={r: replace(s, eps=N(-power)) for r, s in d.scaling.tensors.items()}))


def test_one_epsilon_for_all_tensors():
    """MSSP paper, App. Q.8: regime III, Adam, MSSP, one epsilon ~ n^-d for all tensors.

    The layerwise d are 1, 1, 2, 2, 0. With d >= 2, below every gradient, nothing changes; below 2 the updates of each
    tensor lose n^(its own d - d), and no other. At d = 0 the features and the router lose n, the effective updates of
    the experts n^2 ("especially of expert effective updates"), D n^3; the output still moves by Theta(1), through the
    readout. A2.1 and A3 are no longer balanced. The losses are the same at t = 2 and t = 3.
    """
    d = derive("III", "adam", "mssp")
    own = look(d)
    assert [d.exponents(role)[2] for role in UPDATES] == [1, 1, 2, 2, 0]
    for power in (Fraction(3), Fraction(2)):
        assert sizes(with_epsilon(d, power)) == sizes(own)
    for power in (Fraction(3, 2), Fraction(1), HALF, Fraction(0)):
        for role, update in UPDATES.items():
            loss = max(Fraction(0), d.exponents(role)[2] - power)
            assert size(with_epsilon(d, power), update, 2) == size(own, update, 2) - loss
    check(
        [*at(own, 2), *at(with_epsilon(d, Fraction(1)), 2, 3), *at(with_epsilon(d, Fraction(0)), 2, 3)],
        """
        h1.change        0   0  0   -1 -1
        psi.propagating  0   0  0   -1 -1
        psi.effective    0   0  0   -1 -1
        psi.cross        0   0  0   -2 -2
        h2.propagating   0   0  0   -1 -1
        h2.effective     0  -1 -1   -2 -2
        h3.A1            0   0  0    0  0
        h3.A2.1          0   0  0   -1 -1
        h3.A2.2          0  -1 -1   -2 -2
        h3.A3            0  -1 -1   -2 -2
        h3.D             0  -1 -1   -3 -3
        h3.change        0   0  0   -1 -1
        f.change         0   0  0    0  0
        """,
    )


# SP, NTP, mean field ------------------------------------------------------------------------------------------------


def dense(name, factor=0):
    """A dense network under a defined parameterization, its global learning rate times N^factor."""
    scaling = PARAMETERIZATIONS[name].defined(architecture("mlp"), optimizer("sgd"))
    tensors = {role: replace(s, lr=s.lr + N(factor)) for role, s in scaling.tensors.items()}
    return Analysis(
        REGIMES["I"], replace(scaling, tensors=tensors).point(REGIMES["I"]), optimizer("sgd"), architecture("mlp")
    )


def test_ntp_is_lazy_and_mean_field_is_not():
    """MSSP paper, App. G: under NTP the updates of input and hidden layers vanish while the output moves; SGD."""
    check(
        [*at(dense("ntp"), 1, 2, 3), *at(dense("mean-field"), 1, 2, 3)],
        """
        h1.change -1/2 -1/2 -1/2  0 0 0
        h2.change -1/2 -1/2 -1/2  0 0 0
        f.change     0    0    0  0 0 0
        """,
    )


def test_sp_with_a_global_learning_rate():
    """MSSP paper, App. G: SP with learning rate N^-c, SGD, loss derivative Theta(1).

    For c >= 1/2 the logits change by n^(1 - c) and the hidden features by n^(1/2 - c) at every step, so c >= 1 is
    needed and enough to avoid logit blow-up, and then all features vanish. At c = 1/2 the hidden features move by
    Theta(1) at t = 1, 2, 3, 4 while the logits are n^(1/2): stable at every step examined. The features that learn
    are those of the hidden layer; the input layer's vanish (n^-1). Below 1/2 every size grows with t (control).
    """
    for c in (Fraction(2), Fraction(3, 2), Fraction(1), Fraction(3, 4), HALF):
        sp = dense("sp", -c)
        for t in (1, 2, 3):
            found = [size(sp, q, t) for q in ("f.change", "h2.change", "h1.change")]
            assert found == [1 - c, HALF - c, -HALF - c], (c, t)
        assert (size(sp, "f", 3) <= 0) == (c >= 1)
    check(at(dense("sp", -HALF), 4), "h2.change 0 \n f.change 1/2 \n h1.change -1")
    check(at(dense("sp", Fraction(-1, 4)), 1, 2, 3), "h2.change 1/4 1/2 3/4 \n f.change 3/4 5/4 7/4")


# gates in the dynamics ----------------------------------------------------------------------------------------------

WIDE = Ray.parse("N=1/2,N_e=1/2,M=1")


def held_and_live(ray, rule):
    """The block's muP, with gates held at mean and slope (assumption B2 of MSSP paper, J.2), and in the dynamics."""
    point = derive(None, rule, "mup", ray=ray).scaling.point(ray)
    return [Analysis(ray, point, optimizer(rule), p) for p in (MOE_BLOCK, architecture("moe-sigmoid"))]


def test_gates_may_be_held_while_no_more_experts_than_neurons():
    for name in ("II", "III"):
        held, alive = held_and_live(REGIMES[name], "sgd")
        for quantity in ("g1.router.Q0", "g1.expert.E.1", "h3.change", "gphi"):
            assert size(held, quantity, 1) == size(alive, quantity, 1), (name, quantity)


def test_held_gates_miss_an_alignment_where_experts_outnumber_neurons():
    """A gate is a function of Q_0 h1: sum_i Q_0i F(psi_i) has a part M |Q_0|^2 h1 beside the random M^(1/2) |Q_0|."""
    held, alive = held_and_live(WIDE, "sgd")
    check([(held, 1), (alive, 1)], "g1.router.Q0 -3/4 -1/2")
    assert size(held, "g1.expert.E.1", 1) == Fraction(-5, 4)
    undecided = alive("g1.expert.E.1", 1)  # what its cubic terms make has no closer bound
    assert (undecided.low, undecided.high) == (Fraction(-1), Fraction(-1, 2))
    assert size(held, "g1", 1) == size(alive, "g1", 1)


def test_parameterizations_do_not_need_held_gates():
    for name in ("I", "III"):
        assert derive(name, "sgd", "mup", architecture="moe-sigmoid").scaling == derive(name, "sgd", "mup").scaling


# fixed number of experts --------------------------------------------------------------------------------------------


def router_tables(kind, rule, zero=False):
    """Tables 1 and 2 of the routers paper on one of its architectures; the trained bias has b = c = d = 0."""
    network = architecture(f"routers-{kind}")
    scaling = derive("I", rule, "mup", architecture="routers-sigmoid").scaling
    eps = N(0) if rule == "adam" else None
    tensors = {role: scaling.tensors.get(role, TensorScaling(N(0), N(0), eps)) for role in network.tensors}
    for role in ("router", "readout") if zero else ():
        tensors[role] = replace(tensors[role], init_std=None)
    scaling = replace(scaling, tensors=tensors)
    return Analysis(REGIMES["I"], scaling.point(REGIMES["I"]), optimizer(rule), network)


def test_tables_1_and_2_of_the_routers_paper():
    """Routers paper, Tables 1 and 2: (b, c) and (b, c, d) of input, router, expert, readout, derived for the sigmoid.

    With a bias or top-K they meet the muP demands as they are (Remark 32); with plain softmax the router's fail
    (control).
    """
    tables = {
        "sgd": [(0, -1, None), (1, 1, None), (HALF, 0, None), (1, 1, None)],
        "adam": [(0, 0, 1), (1, 1, 0), (HALF, 1, 1), (1, 1, 0)],
    }
    for rule, rows in tables.items():
        d = derive("I", rule, "mup", architecture="routers-sigmoid")
        assert [d.exponents(role) for role in d.scaling.tensors] == rows
        for kind in ("softmax-topk", "sigmoid-topk"):
            assert broken(router_tables(kind, rule), Structure(), mup_demands) == (set(), set()), (rule, kind)
        names, quantities = broken(router_tables("softmax", rule), Structure(), mup_demands)
        assert names == {"mu-1", "mu-2"}
        assert quantities == {"psi.change", "psi.propagating", "psi.effective", "psi.cross"}


@pytest.mark.parametrize("rule", RULES)
def test_router_dynamics_gate_by_gate(rule):
    """Routers paper, App. C to F under Tables 1 and 2 (Adam: epsilon of the gradient's size), at t = 0, 1, 2.

    ``gpsi`` is the gradient at the logits. It is n^(-1/2) at t = 0 for every gate, because W4_0 is independent of the
    experts (the paper prints the limit 0), so no router moves at t = 1; from t = 1 on it is Theta(1) except for plain
    softmax, and the logits move from t = 2 on. Everything else is Theta(1) from the first step on, and raw gradients
    have the sizes of Table 2's d.
    """
    steps = {kind: at(router_tables(kind, rule), 0, 1, 2) for kind in ROUTERS}
    check(
        [column for kind in ROUTERS for column in steps[kind]],
        """
        gpsi       -1/2 -1/2 -1/2  -1/2    0    0  -1/2    0    0  -1/2    0    0  -1/2    0    0
        gQ         -1/2 -1/2 -1/2  -1/2    0    0  -1/2    0    0  -1/2    0    0  -1/2    0    0
        psi.change    . -1/2 -1/2     . -1/2    0     . -1/2    0     . -1/2    0     . -1/2    0
        psi.spread -1/2 -1/2 -1/2  -1/2 -1/2 -1/2     0    0    0  -1/2 -1/2    0  -1/2 -1/2    0
        g1.router  -3/2 -3/2 -3/2  -3/2   -1   -1  -3/2   -1   -1  -3/2   -1   -1  -3/2   -1   -1
        g1           -1   -1   -1    -1   -1   -1    -1   -1   -1    -1   -1   -1    -1   -1   -1
        gW1          -1   -1   -1    -1   -1   -1    -1   -1   -1    -1   -1   -1    -1   -1   -1
        gW3          -1   -1   -1    -1   -1   -1    -1   -1   -1    -1   -1   -1    -1   -1   -1
        """,
    )
    check(
        [steps[kind][1] for kind in ROUTERS],
        """
        h1.change       0 0 0 0 0
        h3i.effective   0 0 0 0 0
        h3i.propagating 0 0 0 0 0
        h3.change       0 0 0 0 0
        f.effective     0 0 0 0 0
        f.propagating   0 0 0 0 0
        gW4             0 0 0 0 0
        """,
    )


@pytest.mark.parametrize("rule", RULES)
def test_router_dynamics_from_zero_router_and_readout(rule):
    """Routers paper, App. H.1 initialises router and readout to zero: only the readout moves in the first step.

    Columns softmax, sigmoid, softmax top-K, sigmoid top-K. Softmax top-K stays symmetric inside its support until the
    support switches at t = 2: the change at t = 2 is still n^(-1/2), at t = 3 it is Theta(1).
    """
    kinds = ("softmax", "sigmoid", "softmax-topk", "sigmoid-topk")
    runs = [router_tables(kind, rule, zero=True) for kind in kinds]
    check(
        [column for run in runs for column in at(run, 0, 1, 2)],
        """
        gpsi  . -1/2 -1/2  . 0 0  . -1/2 0  . 0 0
        """,
    )
    check([(run, 0) for run in runs], "gW1 . . . . \n gW3 . . . . \n gQ . . . . \n gW4 0 0 0 0")
    check([column for run in runs for column in at(run, 1, 2, 3)], "psi.change  . -1/2 -1/2  . 0 0  . -1/2 0  . 0 0")


def sp_router(kind, rule, rates):
    """SP with one learning-rate exponent c for input, router, expert and readout; an epsilon as large as the initial
    gradient of each tensor."""
    network = architecture(f"routers-{kind}")
    tensors = PARAMETERIZATIONS["sp"].defined(network, optimizer(rule)).tensors
    gradients = {"input": -HALF, "router": Fraction(0), "expert": -HALF, "readout": Fraction(0)}
    tensors = {
        role: replace(s, lr=N(-c), eps=N(gradients[role])) for (role, s), c in zip(tensors.items(), rates, strict=True)
    }
    scaling = replace(PARAMETERIZATIONS["sp"].defined(network, optimizer("sgd")), tensors=tensors)
    return Analysis(REGIMES["I"], scaling.point(REGIMES["I"]), optimizer(rule), network)


@pytest.mark.parametrize("kind", ["softmax", "sigmoid"])
def test_the_router_saturates_under_sp(kind):
    """Routers paper, Prop. 2 and App. D.1: SP with learning rates for a Theta(1) first change of the first layer.

    Columns: SGD with c = -1/2; Adam with c = 0; SGD with c = -1/2 for the input and 1 for the rest; SGD with c = 1.
    The propagating update of the logits is n^(1/2) as the paper states; the effective update, which it leaves open, is
    larger: n^(3/2) under SGD, n under Adam. Then the gate saturates faster than any power, and the engine says so.
    With the stable rate c = 1 nothing saturates, the gates move by Theta(1) and the features stay (control).
    """
    runs = [
        sp_router(kind, "sgd", (-HALF,) * 4),
        sp_router(kind, "adam", (Fraction(0),) * 4),
        sp_router(kind, "sgd", (-HALF, Fraction(1), Fraction(1), Fraction(1))),
        sp_router(kind, "sgd", (Fraction(1),) * 4),
    ]
    check(
        [(run, 1) for run in runs],
        """
        h1.change          0   0    0 -3/2
        psi.propagating  1/2 1/2  1/2   -1
        psi.effective    3/2   1    0    0
        psi              3/2   1  1/2    0
        h3i.effective      1   1 -1/2 -1/2
        h3i.propagating    0   0    0 -3/2
        """,
    )
    check([(run, 0) for run in runs], "gpsi 0 0 0 0 \n gW1 -1/2 -1/2 -1/2 -1/2 \n gW3 -1/2 -1/2 -1/2 -1/2")
    for run in runs[:3]:
        assert not run("gpsi", 1).decided and "saturates faster than any power" in run("gpsi", 1).why
    check(at(runs[3], 1), "gpsi 0 \n phi.change 0")


@pytest.mark.parametrize("rule", RULES)
def test_softmax_cancels_the_symmetric_gradient(rule):
    """Routers paper, Prop. 3, Cor. 21, Remarks 25 and 26: muP soft routing without bias.

    The gradient at the gates is Theta(1) from t = 1 on, but all of that size is common to the experts: what differs
    among them is n^(-1/2). The softmax Jacobian annihilates the common part exactly, the sigmoid keeps it (control).
    Logits differ among experts by n^(-1/2) under both gates; a trained bias makes them differ by Theta(1).
    """
    softmax, sigmoid, bias = (router_tables(kind, rule) for kind in ROUTERS[:3])
    for run in (softmax, sigmoid):
        trajectory = run.run("gphi", 1)
        algebra, gradient = trajectory.algebra, trajectory.gradient("phi", 1)
        differs = algebra.rms(algebra.centred(gradient, "i"))
        assert (algebra.value(algebra.rms(gradient)), algebra.value(differs)) == (0, -HALF)
    check(
        [*at(softmax, 1, 2, 3), *at(sigmoid, 1, 2, 3)],
        """
        gphi          0    0    0     0    0    0
        gpsi       -1/2 -1/2 -1/2     0    0    0
        psi.spread -1/2 -1/2 -1/2  -1/2 -1/2 -1/2
        psi.change -1/2 -1/2 -1/2  -1/2    0    0
        dQ         -3/2 -3/2 -3/2  -3/2   -1   -1
        """,
    )
    check(at(bias, 0, 1, 2), "psi.spread 0 0 0 \n gpsi -1/2 0 0")


def test_noise_breaks_the_symmetry():
    """Routers paper, App. F.1, case 1: fresh Theta(1) noise on the logits makes experts differ from the start, so that
    the router learns under softmax; with top-K, too, although the gates lose what all experts share."""
    for kind in ("softmax-noise", "softmax-noise-topk"):
        check(
            at(router_tables(kind, "sgd"), 0, 1, 2),
            """
            shift.change  .    0  0
            psi.spread    0    0  0
            logits.change . -1/2  0
            dQ            . -3/2 -1
            """,
        )
    check(at(router_tables("softmax", "sgd"), 2), "psi.spread -1/2 \n psi.change -1/2 \n dQ -3/2")  # control


@pytest.mark.parametrize(("regime", "draws"), [("I", 1), ("III", 3)])
def test_noise_of_different_steps_is_told_apart_where_the_number_of_experts_grows(regime, draws):
    network, rule = architecture("routers-sigmoid-noise"), optimizer("sgd")
    point = derive("I", "sgd", "mup", architecture=network.name).scaling.point(REGIMES["I"])
    trajectory = Analysis(REGIMES[regime], point, rule, network).run("psi", 0)
    assert len({frozenset(trajectory.value("shift", t).terms) for t in range(3)}) == draws


def test_top_k_breaks_the_symmetry():
    """Routers paper, Prop. 4 and App. E: the support of top-K is drawn by logits of n^(-1/2), however small they are.

    At t = 0 and 1 the logits differ by n^(-1/2) with and without top-K. Inside one support softmax still cancels; the
    support is drawn anew once the logits moved by their own spread (t = 1), and then the gradient at the logits and
    the change of the aggregate through the gates are Theta(1), against n^(-1/2) with soft routing (control).
    """
    soft, top = (router_tables(kind, "sgd") for kind in ("softmax", "softmax-topk"))
    check(
        [*at(soft, 0, 1, 2), *at(top, 0, 1, 2)],
        """
        psi.spread -1/2 -1/2 -1/2  -1/2 -1/2 0
        gpsi       -1/2 -1/2 -1/2  -1/2    0 0
        h3.regated    . -1/2 -1/2     .    0 0
        """,
    )


def test_plain_softmax_has_no_mup():
    """Routers paper, Prop. 3: with plain softmax the router is stuck at Table 1, and no other exponents help for long.

    Router init N^(-5/6) and learning rate N^(-2/3) make the router learn at t = 2, the horizon of the demands, and do
    not survive one step more: the logits are n^(1/6) at t = 3 and the gate saturates, so ``derive`` finds nothing. The
    reason: the gradient at the logits is as large as the experts' difference, that is the logits' spread two steps
    before, so with learning rate N^(e - 1) the change of the logits grows by n^e every second step for any e > 0, and
    for e = 0 it stays n^(-1/2).
    """
    with pytest.raises(Infeasible, match=r"psi\S* ~ n\^\(1/6\) at t=3"):
        derive("I", "sgd", "mup", architecture="routers-softmax")
    d = derive("I", "sgd", "mup", architecture="routers-sigmoid")
    for e in (Fraction(0), Fraction(1, 10), Fraction(1, 4)):
        run = look(d, changed(d.scaling, "router", lr=N(e - 1)), architecture("routers-softmax"))
        assert [size(run, "psi.change", t) for t in (1, 2, 3)] == [e - HALF, e - HALF, 2 * e - HALF]


# App. Q.4: effective updates, raw and with the size of their input divided out ---------------------------------------


@pytest.mark.parametrize("name", REGIMES)
@pytest.mark.parametrize("parameterization", ["mup", "mssp", "sp"])
def test_a_normalised_update_is_the_update_less_its_input(name, parameterization):
    run = look(derive(name, "adam", parameterization))
    flat = (name, parameterization) == ("I", "sp")  # the gate saturates: nothing is known of h3
    for out, source in (("psi", "h1"), ("h2", "h1"), ("h3i", "h2"), *[("f", "h3")][flat:]):
        for t in range(2):
            raw, parts = size(run, f"{out}.update", t), [size(run, f"{out}.{p}", t) for p in ("effective", "cross")]
            assert raw == max((p for p in parts if p is not None), default=None), (out, t)
            wanted = None if raw is None else raw - size(run, source, t)
            assert size(run, f"{out}.update.normalised", t) == wanted, (out, t)


def test_a_normalised_update_names_the_layer_at_fault():
    """Under SP in regime III the readout's update looks right, because its input vanishes as fast as it learns."""
    run = look(derive("III", "sgd", "sp"))
    check(
        at(run, 0, 1, 2),
        """
        h3                   -1/2 -1/2 -1/2
        f.update                .    0    0
        f.update.normalised     .  1/2  1/2
        """,
    )


def test_softmax_shares_one_among_growing_entries():
    """Along a letter that grows an entry of softmax is one over their number (measured -1.00)."""
    text = "h1[k] = W1[k,x] data[x]\nh2[k] = softmax(h1[k]; k)\nf = W3[k] h2[k]"
    d = derive("I", "sgd", "sp", network=network("share", text, {"k": "N_e", "x": "D"}))
    check(at(look(d), 0), "h1 0 \n h2 -1 \n f -1")
    check(at(look(d), 1), "h2 -1")
