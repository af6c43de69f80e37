"""Scenarios of gates: live ones in the MSSP paper, and those of the routers paper, with a control for each.

Where a claim is not exactly true, the docstring says what is true and the test asserts that.
"""

from fractions import Fraction

import pytest

from scaling_algebra import REGIMES, derive
from scaling_algebra.dynamics.analysis import Analysis
from scaling_algebra.solver.demands import Infeasible
from scaling_algebra.spec.axes import Ray
from scaling_algebra.spec.desiderata import Structure, mup_demands
from scaling_algebra.spec.networks.library import MOE_BLOCK, architecture
from scaling_algebra.spec.optimizers import optimizer

from .scenarios import HALF, ROUTERS, RULES, N, broken, check, published, size

# gates in the dynamics ----------------------------------------------------------------------------------------------


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
    held, alive = held_and_live(Ray.parse("N=1/2,N_e=1/2,M=1"), "sgd")
    check([(held, 1), (alive, 1)], "g1.router.Q0 -3/4 -1/2")
    assert size(held, "g1.expert.E.1", 1) == Fraction(-5, 4)
    undecided = alive("g1.expert.E.1", 1)  # what its cubic terms make has no closer bound
    assert (undecided.low, undecided.high) == (Fraction(-1), Fraction(-1, 2))
    assert size(held, "g1", 1) == size(alive, "g1", 1)


def test_parameterizations_do_not_need_held_gates():
    """Nor a sigmoid, if the logits of a softmax stay bounded (MSSP paper, App. A and J.1)."""
    for name in ("I", "III"):
        held = derive(name, "sgd", "mup").scaling
        assert derive(name, "sgd", "mup", architecture="moe-sigmoid").scaling == held
    softmax = derive("III", "sgd", "mup", architecture="moe-softmax")
    assert softmax.scaling.tensors == held.tensors and "bounded-logits" in softmax.assumes


# fixed number of experts --------------------------------------------------------------------------------------------


def tables(kind, rule):
    """Tables 1 and 2 of the routers paper on one of its architectures; the trained bias has b = c = d = 0."""
    return f"I {rule} mup net=routers-{kind} from=routers-sigmoid"


def columns(kinds, steps, rule="sgd", change=""):
    return " | ".join(f"{tables(kind, rule)} {change}@{steps}" for kind in kinds)


def test_tables_1_and_2_of_the_routers_paper():
    """Routers paper, Tables 1 and 2: (b, c) and (b, c, d) of input, router, expert, readout, derived for the sigmoid.

    With a bias or top-K they meet the muP demands as they are (Remark 32); with plain softmax the router's fail
    (control).
    """
    rows = {
        "sgd": [(0, -1, None), (1, 1, None), (HALF, 0, None), (1, 1, None)],
        "adam": [(0, 0, 1), (1, 1, 0), (HALF, 1, 1), (1, 1, 0)],
    }
    for rule, exponents in rows.items():
        d = derive("I", rule, "mup", architecture="routers-sigmoid")
        assert [d.exponents(role) for role in d.scaling.tensors] == exponents
        for kind in ("softmax-topk", "sigmoid-topk"):
            assert broken(published(tables(kind, rule)), Structure(), mup_demands) == (set(), set()), (rule, kind)
        names, quantities = broken(published(tables("softmax", rule)), Structure(), mup_demands)
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
    check(
        columns(ROUTERS, "0,1,2", rule),
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
        columns(ROUTERS, "1", rule),
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

    def run(steps):
        return columns(kinds, steps, rule, "router.init=0 readout.init=0 ")

    check(run("0,1,2"), "gpsi  . -1/2 -1/2  . 0 0  . -1/2 0  . 0 0")
    check(run("0"), "gW1 . . . . \n gW3 . . . . \n gQ . . . . \n gW4 0 0 0 0")
    check(run("1,2,3"), "psi.change  . -1/2 -1/2  . 0 0  . -1/2 0  . 0 0")


def sp(kind, rule, *powers):
    """SP with learning rates for input, router, expert and readout; an epsilon as large as the initial gradient."""
    gradients = {"input": "N^-1/2", "router": "1", "expert": "N^-1/2", "readout": "1"}
    given = zip(gradients, powers, gradients.values(), strict=True)
    return f"I {rule} sp net=routers-{kind} " + " ".join(f"{x}.lr={lr} {x}.eps={eps}" for x, lr, eps in given)


@pytest.mark.parametrize("kind", ["softmax", "sigmoid"])
def test_the_router_saturates_under_sp(kind):
    """Routers paper, Prop. 2 and App. D.1: SP with learning rates for a Theta(1) first change of the first layer.

    Columns: SGD with c = -1/2; Adam with c = 0; SGD with c = -1/2 for the input and 1 for the rest; SGD with c = 1.
    The propagating update of the logits is n^(1/2) as the paper states; the effective update, which it leaves open, is
    larger: n^(3/2) under SGD, n under Adam. Then the gate saturates faster than any power, and the engine says so.
    With the stable rate c = 1 nothing saturates, the gates move by Theta(1) and the features stay (control).
    """
    fast, slow = "N^1/2", "N^-1"
    runs = [
        sp(kind, "sgd", *4 * [fast]),
        sp(kind, "adam", *4 * ["1"]),
        sp(kind, "sgd", fast, slow, slow, slow),
        sp(kind, "sgd", *4 * [slow]),
    ]
    check(
        " | ".join(f"{run} @1" for run in runs),
        """
        h1.change          0   0    0 -3/2
        psi.propagating  1/2 1/2  1/2   -1
        psi.effective    3/2   1    0    0
        psi              3/2   1  1/2    0
        h3i.effective      1   1 -1/2 -1/2
        h3i.propagating    0   0    0 -3/2
        gpsi               ?   ?    ?    0
        """,
    )
    check(" | ".join(f"{run} @0" for run in runs), "gpsi 0 0 0 0 \n gW1 -1/2 -1/2 -1/2 -1/2 \n gW3 -1/2 -1/2 -1/2 -1/2")
    assert all("saturates faster than any power" in published(run)("gpsi", 1).why for run in runs[:3])
    check(f"{runs[3]} @1", "phi.change 0")


@pytest.mark.parametrize("rule", RULES)
def test_softmax_cancels_the_symmetric_gradient(rule):
    """Routers paper, Prop. 3, Cor. 21, Remarks 25 and 26: muP soft routing without bias.

    The gradient at the gates is Theta(1) from t = 1 on, but all of that size is common to the experts: what differs
    among them is n^(-1/2). The softmax Jacobian annihilates the common part exactly, the sigmoid keeps it (control).
    Logits differ among experts by n^(-1/2) under both gates; a trained bias makes them differ by Theta(1).
    """
    for kind in ROUTERS[:2]:
        trajectory = published(tables(kind, rule)).run("gphi", 1)
        algebra, gradient = trajectory.algebra, trajectory.gradient("phi", 1)
        differs = algebra.rms(algebra.subtract_mean(gradient, "i"))
        assert (algebra.exponent(algebra.rms(gradient)), algebra.exponent(differs)) == (0, -HALF)
    check(
        columns(ROUTERS[:2], "1,2,3", rule),
        """
        gphi          0    0    0     0    0    0
        gpsi       -1/2 -1/2 -1/2     0    0    0
        psi.spread -1/2 -1/2 -1/2  -1/2 -1/2 -1/2
        psi.change -1/2 -1/2 -1/2  -1/2    0    0
        dQ         -3/2 -3/2 -3/2  -3/2   -1   -1
        """,
    )
    check(columns(["softmax-bias"], "0,1,2", rule), "psi.spread 0 0 0 \n gpsi -1/2 0 0")


def test_noise_breaks_the_symmetry():
    """Routers paper, App. F.1, case 1: fresh Theta(1) noise on the logits makes experts differ from the start, so that
    the router learns under softmax; with top-K, too, although the gates lose what all experts share."""
    check(
        columns(("softmax-noise", "softmax-noise-topk"), "0,1,2"),
        """
        shift.change  .    0  0  .    0  0
        psi.spread    0    0  0  0    0  0
        logits.change . -1/2  0  . -1/2  0
        dQ            . -3/2 -1  . -3/2 -1
        """,
    )
    check(columns(["softmax"], "2"), "psi.spread -1/2 \n psi.change -1/2 \n dQ -3/2")  # control


@pytest.mark.parametrize(("regime", "draws"), [("I", 1), ("III", 3)])
def test_noise_of_different_steps_is_told_apart_where_the_number_of_experts_grows(regime, draws):
    look = published("I sgd mup net=routers-sigmoid-noise")
    trajectory = Analysis(REGIMES[regime], look.point, look.optimizer, look.network).run("psi", 0)
    assert len({frozenset(trajectory.value("shift", t).terms) for t in range(3)}) == draws


def test_top_k_breaks_the_symmetry():
    """Routers paper, Prop. 4 and App. E: the support of top-K is drawn by logits of n^(-1/2), however small they are.

    At t = 0 and 1 the logits differ by n^(-1/2) with and without top-K. Inside one support softmax still cancels; the
    support is drawn anew once the logits moved by their own spread (t = 1), and then the gradient at the logits and
    the change of the aggregate through the gates are Theta(1), against n^(-1/2) with soft routing (control).
    """
    check(
        columns(("softmax", "softmax-topk"), "0,1,2"),
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
    for e in (Fraction(0), Fraction(1, 10), Fraction(1, 4)):
        words = f"{tables('softmax', 'sgd')} router.lr={N(e - 1)}".replace("N^(", "N^").replace(")", "")
        check(f"{words} @1,2,3", f"psi.change {e - HALF} {e - HALF} {2 * e - HALF}")
