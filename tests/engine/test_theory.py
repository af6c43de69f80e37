"""Scenarios of the MSSP paper that are claims about exponents, with a control for each.

Where a claim is not exactly true, the docstring says what is true and the test asserts that. Columns are
parameterizations in words (``scenarios.published``) with steps.
"""

import re
from dataclasses import replace
from fractions import Fraction

import pytest

from scaling_algebra import REGIMES, derive
from scaling_algebra.spec.desiderata import Structure, mup_demands
from scaling_algebra.spec.networks.grammar import network
from scaling_algebra.spec.networks.library import MOE_BLOCK, architecture
from scaling_algebra.spec.networks.roles import list_gradients

from .scenarios import HALF, RULES, N, at, broken, changed, check, look, published, size

# the two interventions of MSSP --------------------------------------------------------------------------------------

BOOST = "tied= expert_out.init=M^1/2*N_e^-1/2"
"""The intervention of regime II, where nothing is tied."""


@pytest.mark.parametrize("rule", RULES)
def test_the_boost_of_regime_ii_does_not_serve_regime_iii(rule):
    """MSSP paper, App. I.8: in regime III the boost puts the gradient at the expert hidden layer n^(1/2) above target.

    The parts that hold W3_0 gain n^(1/2), those that hold dW3 do not, so g2 is unbalanced. Mechanism A is repaired. The
    paper names only the backward pass; the forward pass diverges too: the gradient moves W2, and A2.2, through W3_0
    once more, is n^(1/2) too large under Adam, n under SGD, and the output with it.
    """
    maximal, zero = f"III {rule} mssp maximal", f"III {rule} mssp"
    check(
        f"{maximal} @0,1 | {maximal} {BOOST} @0,1",
        """
        g2                -2   -2    -3/2 -3/2
        g2.init-init      -2   -2    -3/2 -3/2
        g2.init-update     .   -2       . -3/2
        g2.update-init     .   -2       .   -2
        g2.update-update   . -5/2       . -5/2
        """,
    )
    large = {"sgd": "1", "adam": "1/2"}[rule]
    check(
        f"{zero} @2 | {zero} {BOOST} @2",
        f"""
        g2.init-update   -2 -3/2
        g2.update-update -2   -2
        h3.A1             0    0
        h3.A2.1           0    0
        h3.A2.2           0    {large}
        h3.A3             0    0
        h3                0    {large}
        f                 0    {large}
        """,
    )
    tied = frozenset(derive("III", rule, "mssp").scaling.tied)
    assert broken(published(zero), Structure(frozenset({"readout"}), tied)) == (set(), set())
    names, quantities = broken(
        published(f"{zero} {BOOST}"), Structure(frozenset({"readout"}), exempt=frozenset({"h3i"}))
    )
    assert "MSSP-2 backward" in names and {"g2.init-update", "h3.A2.2", "f"} <= quantities


@pytest.mark.parametrize("rule", RULES)
def test_shared_experts_do_not_serve_regime_ii(rule):
    """MSSP paper, App. I.8: in regime II sharing the experts corrects mechanism A only (columns muP, tied, MSSP).

    Mechanism D (A6 against A4) and g2 (init-init against update-init) stay unbalanced. Two sentences of the paper need
    care. A2.1 overshoots: W2_0 dh1 has only N_e = Theta(1) different rows, aligns as a readout does (App. I.2.2) and is
    n^(1/2), and with it h2, h3 and f diverge. The Gram operators (mechanism B) gain n^(1/2), which is not enough at
    t = 1; with a zero readout, W4 lies in the range of the shared W3, and A2.2 is Theta(1) at t = 2.
    """
    experts = ("expert_in", "expert_out")
    mup, tied, mssp = (
        f"II {rule} mup {{}}",
        f"II {rule} mup {{}} tied={','.join(experts)}",
        f"II {rule} mssp {{}}",
    )
    check(
        f"{mup} @1 | {tied} @1 | {mssp} @1".replace("{}", "maximal"),
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
    check(f"{mup} @2 | {tied} @2 | {mssp} @2".replace("{}", "zero"), "h3.A2.2 -3/2 0 0 \n h3.A3 -1/2 0 0")
    free = Structure(frozenset({"readout"}), exempt=frozenset({"h3i"}))
    assert broken(published(mssp.format("zero")), free) == (set(), set())
    names, quantities = broken(published(tied.format("zero")), Structure(frozenset({"readout"}), frozenset(experts)))
    assert "mu-1" in names and {"h2", "h3.A2.1"} <= quantities


# a norm after the aggregation ---------------------------------------------------------------------------------------

NORMED = "net=moe-rmsnorm from=moe"


def test_rmsnorm_keeps_the_ratios():
    """MSSP paper, App. I.11.1: regime II, muP of the plain block, Adam, maximal readout; plain against normed.

    A3 stays n^(1/2) above A2.1, after the norm the propagating part is n^(-1/2) of the whole, and gradients upstream
    gain n^(1/2) at t = 0. At t = 1 the norm takes from the gradient what is along h3, which A3 leads: g2 and gphi are
    n^(-3/2), not n^(-1) (measured, n = 12 to 98: -1.48 and -1.45, and g2.update-update -1.54), and undecided, since the
    norm may take all of it. Under MSSP the parts after the norm are balanced (control).
    """
    check(
        f"II adam mup @0,1 | II adam mup {NORMED} @0,1",
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
        g2               -3/2   -1    -1    ?
        gphi             -3/2   -1    -1    ?
        """,
    )
    check(f"II adam mup {NORMED} @1 | II adam mssp maximal {NORMED} @1", "hn.propagating -1/2 0 \n hn.effective 0 0")
    check(f"II adam mup {NORMED} @1", "hn 0 \n hn.cross -1/2")


def test_rmsnorm_widens_the_gap_under_sgd():
    """MSSP paper, App. I.11.1: every part of hn is the part of h3 over the size of h3; under SGD that is not all.

    At t = 0 the norm makes the gradient of W3 n^(1/2) larger, so A3 is n above A2.1, where the plain block has n^(1/2)
    from t = 2 on: the propagating part is n^-1 of the whole, less than the paper's n^(-1/2). Then h3 is nearly parallel
    to the gradient at hn, so the norm may cancel nearly all of it: later gradients are undecided.
    """
    plain, normed = "II sgd mup", f"II sgd mup {NORMED}"
    check(f"{plain} @0 | {normed} @0", "g3 -1 -1/2 \n gW3 -2 -3/2")
    check(f"{plain} @2 | {normed} @1", "h3.A3 0 1/2 \n h3.A2.1 -1/2 -1/2 \n h3 0 1/2 \n dW3 0 1/2")
    check(f"{normed} @1", "hn 0 \n hn.effective 0 \n hn.propagating -1 \n g2 ?")
    run = published(normed)
    for part in ("propagating", "effective", "cross"):
        assert size(run, f"hn.{part}", 1) == size(run, f"h3.{part}", 1) - size(run, "h3", 1)
    assert "a norm may cancel it" in run("g2.update-update", 1).why


# depth --------------------------------------------------------------------------------------------------------------


BLOCK = """
psi_{k}[i]   = Q_{k}[i,a] {x}[a]
phi_{k}[i]   = gate(psi_{k}[i])
h2_{k}[i,k]  = W2_{k}[i,k,a] {x}[a]
h3i_{k}[i,b] = W3_{k}[i,b,k] h2_{k}[i,k]
h3_{k}[b]    = alpha phi_{k}[i] h3i_{k}[i,b]
"""


def stacked(blocks):
    """So many MoE blocks in sequence; that of two is in the library."""
    inside = "".join(BLOCK.format(k=k, x=f"h3_{k - 1}" if k > 1 else "h1") for k in range(1, blocks + 1))
    symbols = {"Q": "router", "W2": "expert_in", "W3": "expert_out"}
    roles = {f"{x}_{k}": f"{role}_{k}" for k in range(1, blocks + 1) for x, role in symbols.items()}
    text = f"h1[a] = W1[a,x] data[x]\n{inside}\nf = W4[b] h3_{blocks}[b]"
    axes = {"a": "N", "b": "N", "i": "M", "k": "N_e", "x": "D"}
    made = network("stack", text, axes, {"W1": "input", **roles, "W4": "readout"})
    assert blocks != 2 or made.statements == architecture("stack2").statements
    return made


def per_block(d, blocks):
    """A stack whose tensors are scaled in every block as in the single block."""
    stack = stacked(blocks)
    tensors = {role: d.scaling.tensors[re.sub(r"_\d+$", "", role)] for role in stack.tensors}
    return look(d, replace(d.scaling, tensors=tensors), stack)


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
    later = {
        1: list(stack.table),
        2: [name for name in stack.table if not name.startswith("g")] + ["g3_2", "g2_2", "gphi_2"],
        3: [f"d{tensor.symbol}" for tensor in stack.network.tensors.values()],
    }[blocks]
    assert {"g2_1", "gphi_1", "h3_1.A1", f"g2_{blocks}.init-init"} <= stack.table.keys()
    for t, names in ((0, filter(single, stack.table)), (1, filter(single, stack.table)), (2, later)):
        for name in (x for x in names if single(x) in one.table):  # below another block a gradient has fewer parts
            assert size(stack, name, t) == size(one, single(name), t), (name, t)
    for k in range(1, blocks + 1):
        check(at(stack, 0), f"h2_{k} 0 \n h3i_{k} 1/2 \n h3_{k} 0")
        check(at(stack, 1), f"g3_{k} -1 \n g1 -1")
    mup = per_block(derive("II", "sgd", "mup"), blocks)
    assert [size(mup, f"h3_{k}", 0) for k in range(1, blocks + 1)] == [Fraction(-k, 2) for k in range(1, blocks + 1)]


# readout: zero or maximal -------------------------------------------------------------------------------------------

HOLDS_INITIAL_READOUT = {
    *(f"{a.name}.{s}" for a in list_gradients(MOE_BLOCK) for s, m in a.parts.items() if m.get("readout") == "init"),
    *("f.init", "f.propagating", "f.propagating.normalised"),
}
"""Quantities that hold W4_0 and nothing else of W4: exactly zero with a zero readout."""


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(("regime", "name"), [("I", "mup"), ("I", "mssp"), ("III", "mssp")])
def test_the_readout_init_does_not_matter_where_h3_starts_theta_1(regime, name, rule):
    """MSSP paper, App. J.1 and footnote 3: a zero readout delays the hidden tensors by one step, no more.

    From t = 2 on, muP in regime I and MSSP have the same exponents with both inits; only the parts that hold W4_0 are
    exactly zero with a zero readout.
    """
    maximal, zero = (published(f"{regime} {rule} {name} {x}") for x in ("maximal", "zero"))
    later = ("h1.change", "psi.change", "h2.change", "h3.change", "f.change", "g3", "g2", "gphi", "g1")
    for q, t in [(q, 2) for q in maximal.table] + [(q, 3) for q in later]:
        assert size(zero, q, t) == (None if q in HOLDS_INITIAL_READOUT else size(maximal, q, t)), (q, t)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("regime", ["II", "III"])
def test_mup_with_a_zero_readout_does_not_start(regime, rule):
    """MSSP paper, App. Q.4.2 and Fig. 1: muP with a zero readout in regimes II and III is not delayed.

    h3_0 ~ n^(-1/2), so the first W4 is n^(-1/2) too small, every gradient behind it too, and nothing grows later: at
    t = 2 only what does not see W4, and ``f.effective``, has one size under both inits, and t = 2, 3, 4 are alike. The
    partial self-correction the paper measures is no change of exponents. Where the update does not shrink with the
    gradient of W4 (SignSGD) muP starts from zero as well (control).
    """
    words = {x: f"{regime} {rule} mup {x}" for x in ("maximal", "zero")}
    maximal, zero = (published(words[x]) for x in words)
    shared = {q for q in maximal.table if size(maximal, q, 2) == size(zero, q, 2)}
    forward = {f"{q}{part}" for q in ("h1", "psi", "phi", "h2", "h3i") for part in ("", ".init")}
    assert shared == forward | {"h3.init", "h3.A1", "f.effective"}
    check(
        f"{words['maximal']} @1,2,3 | {words['zero']} @1,2,3,4",
        """
        f.change      0  0  0    -1   -1   -1   -1
        h1.change  -1/2  0  0     .   -1   -1   -1
        h3.A3         0  0  0     . -1/2 -1/2 -1/2
        g3           -1 -1 -1  -3/2 -3/2 -3/2 -3/2
        """,
    )
    assert broken(maximal, Structure(), mup_demands) == (set(), set())
    assert "f.change" in broken(zero, Structure(zero=frozenset({"readout"})), mup_demands)[1]
    check(f"{regime} signsgd mup zero @1,2,3", "f.change -1/2 0 0 \n h1.change . 0 0 \n h3.A3 . 0 0")


# one epsilon for all tensors ----------------------------------------------------------------------------------------

UPDATES = {"input": "dW1", "router": "dQ", "expert_in": "dW2", "expert_out": "dW3", "readout": "dW4"}


def sizes(analysis, t=2):
    return {q: size(analysis, q, t) for q in analysis.table}


@pytest.mark.parametrize("role", UPDATES)
def test_an_epsilon_above_the_gradient_divides_the_update(role):
    """MSSP paper, App. I.2.3: Adam's epsilon must have the size of the gradient; regime III, MSSP.

    Above the gradient by n^delta it makes the update of its tensor smaller by n^delta, exactly; below, it changes
    nothing anywhere (control).
    """
    d = derive("III", "adam", "mssp")
    eps = d.scaling.tensors[role].eps
    for delta in (Fraction(2, 5), Fraction(2)):
        large = look(d, changed(d.scaling, role, eps=eps * N(delta)))
        assert size(large, UPDATES[role], 2) == size(look(d), UPDATES[role], 2) - delta
    assert sizes(look(d, changed(d.scaling, role, eps=eps * N(Fraction(-1, 3))))) == sizes(look(d))


def test_one_epsilon_for_all_tensors():
    """MSSP paper, App. Q.8: regime III, Adam, MSSP, one epsilon ~ n^-d for all tensors.

    The layerwise d are 1, 1, 2, 2, 0. With d >= 2, below every gradient, nothing changes; below 2 the updates of each
    tensor lose n^(its own d - d), and no other. At d = 0 the features and the router lose n, the effective updates of
    the experts n^2 ("especially of expert effective updates"), D n^3; the output still moves by Theta(1), through the
    readout. A2.1 and A3 are no longer balanced. The losses are the same at t = 2 and t = 3.
    """
    d = derive("III", "adam", "mssp")
    tensors = d.scaling.tensors.items()
    runs = {
        power: look(d, replace(d.scaling, tensors={role: replace(s, eps=N(-power)) for role, s in tensors}))
        for power in (Fraction(3), Fraction(2), Fraction(3, 2), Fraction(1), HALF, Fraction(0))
    }
    own = look(d)
    assert [d.exponents(role)[2] for role in UPDATES] == [1, 1, 2, 2, 0]
    for power, run in runs.items():
        for role, update in UPDATES.items():
            assert size(run, update, 2) == size(own, update, 2) - max(Fraction(0), d.exponents(role)[2] - power)
        assert power < 2 or sizes(run) == sizes(own)
    check(
        [*at(own, 2), *at(runs[Fraction(1)], 2, 3), *at(runs[Fraction(0)], 2, 3)],
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


def test_ntp_is_lazy_and_mean_field_is_not():
    """MSSP paper, App. G: under NTP the updates of input and hidden layers vanish while the output moves; SGD."""
    check(
        "I sgd ntp net=mlp @1,2,3 | I sgd mean-field net=mlp @1,2,3",
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

    def sp(c):
        return f"I sgd sp net=mlp input.lr=N^-{c} hidden.lr=N^-{c} readout.lr=N^-{c}"

    for text in ("2", "3/2", "1", "3/4", "1/2"):
        c = Fraction(text)
        cells = {"f.change": 1 - c, "h2.change": HALF - c, "h1.change": -HALF - c}
        check(f"{sp(text)} @1,2,3", "\n".join(f"{name} {e} {e} {e}" for name, e in cells.items()))
        assert (size(published(sp(text)), "f", 3) <= 0) == (c >= 1)
    check(f"{sp('1/2')} @4", "h2.change 0 \n f.change 1/2 \n h1.change -1")
    check(f"{sp('1/4')} @1,2,3", "h2.change 1/4 1/2 3/4 \n f.change 3/4 5/4 7/4")


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
    check("III sgd sp @0,1,2", "h3 -1/2 -1/2 -1/2 \n f.update . 0 0 \n f.update.normalised . 1/2 1/2")
