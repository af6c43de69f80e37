"""Scenarios of the MSSP paper that are claims about exponents, with a control for each.

Where a claim is not exactly true, the docstring says what is true and the test asserts that.
"""

import re
from dataclasses import replace
from fractions import Fraction

import pytest

from scaling_algebra import REGIMES, derive
from scaling_algebra.dynamics.analysis import Analysis
from scaling_algebra.spec.desiderata import Structure, mup_demands
from scaling_algebra.spec.networks.library import MOE_BLOCK, architecture
from scaling_algebra.spec.networks.roles import adjoints
from scaling_algebra.spec.optimizers import optimizer
from scaling_algebra.spec.parameterizations import PARAMETERIZATIONS
from scaling_algebra.spec.powers import Power

from .scenarios import HALF, RULES, N, at, broken, changed, check, look, size

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
    assert not normed("gphi", 1).decided and not normed("g2", 1).decided  # what the norm takes may be all of it
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
        large = look(d, changed(d.scaling, role, eps=own * N(delta)))
        assert size(large, UPDATES[role], 2) == size(look(d), UPDATES[role], 2) - delta
    small = look(d, changed(d.scaling, role, eps=own * N(Fraction(-1, 3))))
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
    tensors = {role: replace(s, lr=s.lr * N(factor)) for role, s in scaling.tensors.items()}
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
