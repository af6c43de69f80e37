"""The limit of infinite width: numbers of the routers paper, integrals done by hand, and training that comes nearer."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from scaling_algebra.errors import UsageError
from scaling_algebra.solver.derivation import derive
from scaling_algebra.spec.networks.functions import FUNCTIONS
from scaling_algebra.spec.networks.grammar import network
from scaling_algebra.spec.networks.library import AXES
from scaling_algebra.spec.optimizers import OPTIMIZERS, Optimizer
from scaling_algebra.verify.infinite_width import course as course_module
from scaling_algebra.verify.infinite_width import program
from scaling_algebra.verify.infinite_width.comparison import compare_widths, train_finite
from scaling_algebra.verify.infinite_width.contraction import NONE, Contractions, Leading
from scaling_algebra.verify.infinite_width.course import Descent, compute_trajectory
from scaling_algebra.verify.infinite_width.presentation import build_limit_document, compute_exit_code
from scaling_algebra.verify.infinite_width.stepping import Stepped
from scaling_algebra.verify.infinite_width.vectors import Diverges, NotCovered, Particles, Points, Space
from scaling_algebra.verify.judging.fit import Verdict
from scaling_algebra.verify.studies.figures import build_picture

from ..shared import scalecalc

ROUTERS = {"sigmoid": "mup", "softmax": "mup-sigmoid", "softmax-bias": "mup-sigmoid"}
"""muP-MoE of the routers paper, by its gate."""


def course(architecture, parameterization="mup", optimizer="sgd", *, steps, lr, samples=1, loss="squared", **where):
    """``architecture``: None with a ``network``."""
    where = where or {"regime": "I"}
    where |= {"architecture": architecture} if architecture else {}
    derivation = derive(optimizer=optimizer, parameterization=parameterization, **where)
    return Descent.of(derivation, steps, lr, samples, loss)


def router(gate, steps=8, lr=0.15, **more):
    more = {"regime": "I", **more}
    return course(f"routers-{gate}", ROUTERS[gate], steps=steps, lr=lr, **more)


def outputs(t):
    return [float(row[0].signals["f"]) for row in t.states]


def dense(equations, roles, steps, lr, constants=(), **more):
    net = network("dense", equations, AXES, roles, constants=constants)
    return course(None, steps=steps, lr=lr, network=net, ray="N=1", **more)


def shallow(function, steps=1, lr=0.5, **more):
    equations = f"h[a] = W1[a,x] data[x]\nu[a] = {function}(h[a])\nf = W3[a] u[a]"
    return dense(equations, {"W1": "input", "W3": "readout"}, steps, lr, **more)


def test_the_routers_paper_in_numbers():
    """App. C.2 with one input, four linear experts and a sigmoid: the recursion written out by hand gives these."""
    expected = [0, 0.4500, 0.7359, 0.9039, 0.9729, 0.9933, 0.9984, 0.9996, 0.9999]
    assert outputs(compute_trajectory(router("sigmoid"))) == pytest.approx(expected, abs=5e-5)


@pytest.mark.parametrize("experts_share", [0.5, 0.25])
def test_the_first_update_is_the_sum_of_three(experts_share):
    """Readout, experts and input each add lr * sum_k phi_k^2, by E[h3^2], E[h1^2] E[w4^2] and |x|^2 E[w4^2]."""
    gate = {0.5: "sigmoid", 0.25: "softmax"}[experts_share]
    assert outputs(compute_trajectory(router(gate, steps=1, lr=0.2)))[1] == pytest.approx(
        3 * 0.2 * 4 * experts_share**2
    )


@pytest.mark.parametrize("optimizer", ["sgd", "momentum"])
@pytest.mark.parametrize("gate", ["sigmoid", "softmax"])
def test_experts_stay_alike_and_a_softmax_router_is_stuck(gate, optimizer):
    """Proposition 3 and Corollary 21 of the routers paper, exactly; a bias makes experts differ."""
    t = compute_trajectory(router(gate, 4, optimizer=optimizer, samples=2))
    for state in (s for row in t.states for s in row):
        assert np.ptp(state.signals["phi"]) < 1e-12 and np.ptp(state.gradients["phi"]) < 1e-12
    late = [s.gradients["psi"] for s in t.states[-1]]
    assert np.abs(late).max() < 1e-12 if gate == "softmax" else np.abs(late).min() > 0.01
    biased = compute_trajectory(router("softmax-bias", 4, samples=2)).states[-1]
    assert all(np.ptp(s.signals["phi"]) > 0.1 and np.abs(s.gradients["psi"]).max() > 0.01 for s in biased)


@pytest.mark.parametrize(
    ("function", "value", "slope"),
    [
        ("tanh", np.tanh, lambda x: 1 - np.tanh(x) ** 2),
        ("relu", lambda x: np.maximum(x, 0), lambda x: x > 0),
        ("softsign", lambda x: x / (1 + np.abs(x)), lambda x: (1 + np.abs(x)) ** -2.0),
    ],
)
def test_one_update_through_a_function_is_an_integral_over_two_gaussians(function, value, slope, monkeypatch):
    """f_1 = E[(w + lr u(h)) u(h + lr w u'(h))], on a plain grid; a function of ones own is added in one place."""
    monkeypatch.setitem(FUNCTIONS, "softsign", replace(FUNCTIONS["tanh"], name="softsign", torch="softsign"))
    x = np.linspace(-8, 8, 1601)
    h, w = np.meshgrid(x, x, indexing="ij")
    density = np.exp(-(h**2 + w**2) / 2)
    integrand = (w + 0.5 * value(h)) * value(h + 0.5 * w * slope(h))
    expected = float((integrand * density).sum() / density.sum())
    assert outputs(compute_trajectory(shallow(function)))[1] == pytest.approx(
        expected, abs=1e-6 if function == "tanh" else 2e-3
    )


TWO_LAYERS = "h[a] = W1[a,x] data[x]\nu[a] = tanh(h[a])\ng[b] = W2[b,a] u[a]\nv[b] = tanh(g[b])\nf = W3[b] v[b]"
DEEP = {"W1": "input", "W2": "hidden", "W3": "readout"}
CASES = {
    "a bias, momentum, two inputs": lambda: router("softmax-bias", 4, 0.1, optimizer="momentum", samples=2),
    "sigmoid experts with a hidden layer": lambda: course("moe", steps=3, lr=0.1, loss="output"),
    "one matrix three times, both ways": lambda: course("loop", steps=3, lr=0.1, ray="N=1"),
    "a tied readout": lambda: course("tied-embedding", steps=3, lr=0.05, ray="N=1"),
    "a residual stream": lambda: course("residual", steps=3, lr=0.06),
    "tanh": lambda: shallow("tanh", 3),
    "two layers of tanh": lambda: dense(TWO_LAYERS, DEEP, 3, 0.5),
    "Adam": lambda: course("mlp", optimizer="adam", steps=4, lr=0.1, samples=2, ray="N=1"),
    "Adam, few experts": lambda: router("sigmoid", 3, 0.3, optimizer="adam"),
    "the largest of logits that a bias sets apart": lambda: course(
        "routers-softmax-bias-topk", "mup-sigmoid", "momentum", steps=3, lr=0.1, samples=2
    ),
    "a rule for each tensor": lambda: course("mlp", optimizer="rmsprop,hidden=momentum", steps=4, lr=0.1, ray="N=1"),
    "many experts": lambda: course("moe", "mssp", steps=4, lr=0.1, regime="II"),
    "many experts, muP": lambda: course("moe", steps=4, lr=0.1, regime="II"),
    "many wide experts that start alike": lambda: course("moe", "mssp", steps=4, lr=0.1, regime="III"),
    "a norm": lambda: dense(
        "h[a] = W1[a,x] data[x]\nu[b] = W2[b,a] h[a]\nn[b] = rmsnorm(u[b])\nf = W3[b] n[b]",
        DEEP, 3, 0.1,
    ),
}  # fmt: skip


LONG = ("one matrix three times, both ways", "a norm", "a tied readout")
"""Cases that `make measure` trains."""


@pytest.fixture
def few_points(monkeypatch):
    monkeypatch.setattr(program, "POINTS", (2**11, 2**9))


@pytest.mark.parametrize("case", [case for case in CASES if case not in LONG])
@pytest.mark.usefixtures("few_points")
def test_training_comes_nearer(case):
    """Deviations fall as n^(-1/2); from the limit of another learning rate they do not."""
    asked = CASES[case]()
    t = compute_trajectory(asked)
    assert not t.why and len(t.states) == asked.steps + 1
    many = any(axis == "M" for axis in t.limit.network.axes.values())
    sizes, seeds = ((24, 48, 96, 192), 48) if many else ((64, 128, 256, 512), 192)
    if "M" in t.limit.products.spaces:
        sizes, seeds = {2: ((16, 32, 64, 128), 96), 3: ((12, 18, 27, 40), 96)}[len(t.limit.products.spaces)]
    elif t.error:
        sizes, seeds = (32, 64, 128, 256), 96
    f = compare_widths(t, sizes, seeds, "cpu")["f"]
    assert f.verdict is Verdict.AGREES, f
    wrong = replace(t, states=compute_trajectory(replace(asked, lr=2 * asked.lr)).states)
    assert compare_widths(wrong, sizes, seeds, "cpu")["f"].verdict is Verdict.REFUTED


def test_many_experts_by_hand():
    """f_1 = lr |h3|^2 / N: in II h3 is a random sum over experts, N_e E[phi^2]; in III it is (E[phi])^2 = 1/4."""
    z, w = np.polynomial.hermite_e.hermegauss(80)
    square = float((1 / (1 + np.exp(-z)) ** 2) @ w / w.sum())
    for regime, expected in {"II": 4 * square, "III": 0.25}.items():
        t = compute_trajectory(course("moe", "mssp", steps=1, lr=0.1, regime=regime))
        assert outputs(t)[1] == pytest.approx(0.1 * expected, abs=5e-4) and t.error < 1e-3


def test_learning_is_delayed_under_mup_alone():
    """With a zero readout the limit of muP never moves (MSSP paper, Fig. 1), that of MSSP moves at once."""
    asked = course("moe", "mup", steps=3, lr=0.1, regime="II", readout_init="zero")
    assert outputs(compute_trajectory(asked)) == [0, 0, 0, 0]
    assert outputs(compute_trajectory(course("moe", "mssp", steps=1, lr=0.1, regime="II")))[1] > 0.1


def softsign(x):
    """A step of Adam with epsilon 1, the first."""
    return x / (1 + np.abs(x))


def test_a_normalised_step_by_hand():
    """f_1 is linear in expectations of one step along a row and along a column; signs are of rank one."""
    z, weight = np.polynomial.hermite_e.hermegauss(200)
    first = course("mlp", optimizer="adam", steps=1, lr=0.1, ray="N=1")
    x, (g, w), p = first.inputs[0], np.meshgrid(z, z), np.outer(weight, weight) / weight.sum() ** 2
    moved = sum(k * softsign(g * k) for k in x)
    expected = 0.1 * float(((g * moved + g * w * softsign(g * w) + g * softsign(g)) * p).sum())
    assert outputs(compute_trajectory(first))[1] == pytest.approx(expected, abs=5e-4)
    expected = 0.1 * (2 / np.pi) ** 0.5 * (np.abs(x).sum() + 1) + 0.2 / np.pi
    for optimizer in ("signsgd", "lion"):
        asked = course("mlp", optimizer=optimizer, steps=1, lr=0.1, ray="N=1")
        assert outputs(compute_trajectory(asked))[1] == pytest.approx(expected, abs=5e-4)


def test_what_is_smaller_than_epsilon_makes_no_step_and_noise_is_not_normalised():
    half, one = Fraction(1, 2), (1.0, Fraction(-1))
    zero = Leading("", "a", np.zeros(3), NONE)
    sizes = {"": Fraction(-1), "small": Fraction(-2)}
    found = {}
    for name, power in sizes.items():
        found[name] = Stepped.of(OPTIMIZERS["adam"], zero, one, one)
        found[name].step(Leading("", "a", np.array([1.0, -3.0, 0.0]), power, power - half), "W")
    assert found[""].change.values == pytest.approx([-0.5, 0.75, 0]) and found[""].change.rest == Fraction(-3, 2)
    assert not found["small"].change.values.any() and found["small"].change.rest == -2
    for rule, power, rest in (("adam", -1, -1), ("signsgd", NONE, -1), ("signsgd", -1, half), ("adam", 0, -half)):
        with pytest.raises(NotCovered):
            gradient = Leading("", "a", np.ones(3) * (power > NONE), Fraction(power), Fraction(rest))
            Stepped.of(OPTIMIZERS[rule], zero, one, one).step(gradient, "W")


def test_points_are_exact_where_all_is_linear():
    for asked in (
        course("loop", steps=3, lr=0.1, ray="N=1"),
        router("softmax-bias", 3, optimizer="momentum", samples=2),
    ):
        points = program.Limit(asked.derivation, asked.inputs, asked.lr, points=True).train(asked.steps, asked.targets)
        for row, exact in zip(points, compute_trajectory(asked).states, strict=True):
            for s, e in zip(row, exact, strict=True):
                assert all(s.signals[x] == pytest.approx(e.signals[x], abs=1e-9) for x in e.signals)


@pytest.mark.usefixtures("few_points")
def test_the_gradient_of_a_softmax_router_stays_zero_with_adam():
    """Remark 24 of the routers paper, up to the error that is stated."""
    t = compute_trajectory(router("softmax", 3, 0.1, optimizer="adam", readout_init="zero"))
    for s in (s for row in t.states for s in row):
        assert np.ptp(s.signals["phi"]) < 2e-3 and np.abs(s.gradients["psi"]).max() < 2e-3
    assert 0 < t.error < 1e-3 and outputs(t)[-1] > 0.04


def test_samples_of_experts_are_closed_under_signs():
    space = Particles(["Q", "W"], 4096, 0)
    (x,), (y,) = space.gaussians(1, "Q"), space.gaussians(1, "W")
    assert x @ x == pytest.approx(4096) and abs(x @ np.tanh(y)) < 1e-9 and abs((x**3 * y).sum()) < 1e-9
    assert space.inner(x, x**3) > 1 and space.inner(x, y**3 * x**2) == 0


def test_few_points_carry_few_gaussians():
    space = Points(64, 0, "N")
    x = np.concatenate([space.gaussians(8, "W"), space.gaussians(8, "V")])
    assert x @ x.T / 64 == pytest.approx(np.eye(16), abs=1e-9)
    with pytest.raises(NotCovered, match="too many for 64"):
        space.gaussians(2, "W")


def test_training_starts_from_the_same_bias():
    t = compute_trajectory(router("softmax-bias", 2, 0.3))
    shift = compare_widths(t, (16, 24, 32), 4, "cpu")["shift"].means
    assert all(np.allclose(x[0, 0], t.states[0][0].signals["shift"], rtol=1e-12) for x in shift)
    assert not np.allclose(t.states[-1][0].signals["shift"], t.states[0][0].signals["shift"], rtol=1e-3)


def test_a_wide_network_is_within_one_percent():
    f = compare_widths(compute_trajectory(router("sigmoid")), (64, 256, 1024), 16, "cpu")["f"]
    assert f.error < 0.01 * f.scale


@pytest.mark.parametrize(
    ("asked", "known", "why"),
    [
        (lambda: router("sigmoid", 2, 0.1), 3, ""),
        (lambda: course("routers-sigmoid", "sp", steps=2, lr=0.1), 0, "psi is a random sum of size n^0"),
        (lambda: course("routers-sigmoid-topk", steps=1, lr=0.1), 0, "phi selects among entries that are equal"),
        (lambda: course("mlp", "sp", "adam", steps=2, lr=0.1, ray="N=1"), 0, "f is a random sum of size n^0"),
    ],
)
def test_an_answer_ends_where_it_is_not_covered(asked, known, why):
    t = compute_trajectory(asked())
    assert len(t.states) == known and t.why.startswith(why) and bool(t.why) is bool(why)


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        (lambda: course("moe", steps=1, lr=0.1, regime="III"), "W2 has three indices that grow.*experts start alike"),
        (lambda: course("deep-mlp", steps=1, lr=0.1, ray="N=1,L=1"), "L grows on this ray"),
        (lambda: course("mlp", optimizer="adamw", steps=1, lr=0.1, ray="N=1"), "without weight decay"),
        (lambda: course("mlp", optimizer="muon", steps=1, lr=0.1, ray="N=1"), "steps of entries"),
        (lambda: router("sigmoid", optimizer="signsgd"), "normalises the noise of the gradient at psi"),
        (lambda: course("moe", optimizer="adam", steps=1, lr=0.1, regime="II"), "give --regime I"),
        (lambda: course("moe", "sp", steps=1, lr=0.1, ray="N=1,N_e=1/2,M=0"), "different rates"),
        (
            lambda: course("routers-softmax-noise", "mup-sigmoid", steps=1, lr=0.1),
            "no rule for noise.*scalecalc verify",
        ),
        (lambda: shallow("stopped", parameterization="sp"), "no rule for stopped at u; scalecalc verify"),
        (lambda: shallow("layernorm"), "no rule for layernorm at u; scalecalc verify"),
        (lambda: shallow("softmax"), "the softmax at u goes along an index that grows.*; scalecalc verify"),
    ],
)
def test_other_limits_are_refused_in_one_line(asked, why):
    with pytest.raises(UsageError, match=why):
        compute_trajectory(asked())


@pytest.mark.parametrize(
    ("rule", "why"),
    [
        ({"torch": "SGD", "options": {"momentum": 0.5, "weight_decay": 0.1}}, "weight_decay = 0.1, which the limit"),
        ({"torch": "SGD", "options": {"momentum": 0.5, "nesterov": True}}, "nesterov = true, .*set nesterov to false"),
        ({"torch": "SGDD"}, "SGDD, which own steps with, is not an optimizer; name a class of torch.optim"),
        ({"torch": "Adam", "options": {"weight_decay": 0.1}, "normalises": "entry", "epsilon": True}, "weight_decay"),
        ({"torch": "AdamW", "normalises": "entry", "epsilon": True}, "weight_decay = 0.01.*set weight_decay to 0"),
        ({"torch": "SGD", "options": {"momentum": 0.5, "weight_decay": 0.0}}, ""),
        ({"torch": "Adam", "options": {"maximize": True}, "normalises": "entry", "epsilon": True}, ""),
    ],
)
def test_options_of_steps_are_computed_or_refused(rule, why):
    asked = course("mlp", optimizer=Optimizer("own", **rule), steps=0, lr=0.1, ray="N=1")
    if not why:
        assert outputs(compute_trajectory(asked)) == [0]
        return
    with pytest.raises(UsageError, match=why):
        compute_trajectory(asked)


@pytest.mark.filterwarnings("error")
def test_training_that_diverges_ends_in_one_line():
    """f is 0, 9, -948087, and then of the size of 1e31."""
    t = compute_trajectory(course("mlp", steps=8, lr=3.0, ray="N=1"))
    assert outputs(t) == pytest.approx([0, 9, -948087]) and t.why == "f diverges at update 3"
    trained = compare_widths(replace(t, course=replace(t.course, lr=1e30)), (16, 24, 32), 2, "cpu")["f"]
    assert trained.verdict is Verdict.INCONCLUSIVE
    assert len(compute_trajectory(course("moe", "mssp", steps=3, lr=300.0, regime="II")).states) == 2


@pytest.mark.parametrize("optimizer", ["sgd", "momentum"])
def test_a_sample_that_is_learned_moves_nothing(optimizer):
    """f is 0 at first, as is the target."""
    asked = replace(course("mlp", optimizer=optimizer, steps=2, lr=0.5, ray="N=1"), targets=np.zeros(1))
    assert outputs(compute_trajectory(asked)) == [0, 0, 0]
    assert outputs(compute_trajectory(replace(asked, targets=np.ones(1))))[1] != 0


def test_a_constant_is_that_of_training():
    """f = c V h, so that its first change is as the square of c."""
    lines = "h[a] = W1[a,x] data[x]\ng = W3[a] h[a]\nf = c g"
    t = compute_trajectory(dense(lines, {"W1": "input", "W3": "readout"}, 2, 0.5, constants=["c"]))
    drawn = train_finite(t.course, t.limit, 16, [0], "cpu")
    assert "c" not in drawn and "c" not in t.states[0][0].signals and outputs(t)[1] > 0
    assert compare_widths(t, (64, 256, 1024), 16, "cpu")["f"].error < 0.05
    with pytest.raises(UsageError, match=r"the constant C has the index a, which grows.*; scalecalc verify"):
        compute_trajectory(
            dense("f = W3[a] C[a] W1[a,x] data[x]", {"W1": "input", "W3": "readout"}, 1, 0.5, constants=["C"])
        )


@pytest.mark.usefixtures("few_points")
def test_an_answer_ends_where_its_error_is_large():
    t = compute_trajectory(course("mlp", optimizer="adam", steps=2, lr=10.0, ray="N=1"))
    assert len(t.states) == 2 and t.why == "f is known to 1e+01 at update 2, above 5% of 4e+01"
    assert 0 < t.error <= 0.05 * max(map(abs, outputs(t))) and compute_exit_code(t, {}) == 3
    near = compute_trajectory(course("mlp", optimizer="adam", steps=2, lr=0.1, ray="N=1"))
    assert len(near.states) == 3 and compute_exit_code(near, {}) == 0


@pytest.mark.usefixtures("few_points")
def test_more_samples_take_no_more_pairs_of_points():
    peaks = []
    for samples in (1, 16):
        asked = course("mlp", optimizer="adam", steps=1, lr=0.1, samples=samples, ray="N=1")
        limit = program.Limit(asked.derivation, asked.inputs, asked.lr)
        tracemalloc.start()
        list(limit.train(1, asked.targets))
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.5 * peaks[0]


@pytest.mark.usefixtures("few_points")
def test_sets_of_points_are_made_where_points_may_go_on(monkeypatch):
    made, whole = list[bool](), program.Limit
    monkeypatch.setattr(course_module, "Limit", lambda *given: made.append(given[-1]) or whole(*given))
    compute_trajectory(course("routers-sigmoid", "sp", steps=1, lr=0.1))
    assert made == [False]
    compute_trajectory(dense(TWO_LAYERS, DEEP, 2, 0.5))
    assert made == [False, False, True, True, True, True]


def test_what_is_not_finite_is_no_zero():
    space = Contractions({"a": "N"}, frozenset("a"), {}, {"N": Space()})
    x = Leading("", "a", 1e200 * space.spaces["N"].gaussians(1, "W")[0])
    with pytest.raises(Diverges):
        space.contract([x, x], "", "f")


def test_a_picture_of_the_limit_and_of_training(tmp_path):
    where = ["--regime", "I", "--parameterization", "mup", "--architecture", "routers-sigmoid", "--optimizer", "sgd"]
    trained = ["--sizes", "16,32,64", "--seeds", "2", "--device", "cpu"]
    record = tmp_path / "limit.json"
    result = scalecalc("study", "limit", *where, *trained, "-o", str(record))
    assert record.exists(), result.output
    build_picture("limits", tmp_path / "limit.png", [record])
    assert (tmp_path / "limit.png").stat().st_size > 10_000


def test_a_small_number_has_no_sign():
    found = build_limit_document(compute_trajectory(router("softmax-bias", 1, 1e-4)), {})
    assert found.record["limit"]["d psi[0]"][1] == pytest.approx(-6e-6)
    assert "-0.0000" not in str(found.blocks) and "-0.9407" in str(found.blocks)


def test_the_command_says_undecided_and_exits_with_3():
    where = ["--regime", "I", "--optimizer", "sgd", "--architecture", "routers-sigmoid", "--steps", "1"]
    assert scalecalc("study", "limit", *where, "--parameterization", "mup").exit_code == 0
    result = scalecalc("study", "limit", *where, "--parameterization", "sp")
    assert result.exit_code == 3 and "undecided: psi is a random sum" in result.output
    diverges = [
        "study",
        "limit",
        *where[:4],
        "--architecture",
        "routers-sigmoid",
        "--parameterization",
        "mup",
        "--lr=1e8",
    ]
    assert "undecided after 1 update: f diverges at update 2" in scalecalc(*diverges).output
