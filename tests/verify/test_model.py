"""Updates of trained weights, and the optimizers that torch lacks."""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from fractions import Fraction

import pytest

torch = pytest.importorskip("torch")

from scaling_algebra import Optimizer, UsageError, derive
from scaling_algebra.spec.networks.library import MOE_BLOCK
from scaling_algebra.spec.optimizers import OPTIMIZERS, SHAPES, optimizer
from scaling_algebra.spec.powers import Power
from scaling_algebra.spec.scaling import Scaling, TensorScaling
from scaling_algebra.verify.measuring.cells import Setup
from scaling_algebra.verify.measuring.training import train_network
from scaling_algebra.verify.networks.replicas import ReplicaDraw
from scaling_algebra.verify.networks.run import TorchRun
from scaling_algebra.verify.networks.scales import NEGLIGIBLE
from scaling_algebra.verify.networks.steppers import Fold, find_stepper, get_shrinkage
from scaling_algebra.verify.networks.torch_network import TorchNetwork

DIMS = {"N": 24, "N_e": 6, "M": 5}
HALF = Fraction(1, 2)
SCALING = Scaling(
    {
        "input": TensorScaling(Power(), Power(), Power()),
        "router": TensorScaling(Power.of({"N": -HALF}), Power(), Power.of({"M": -1})),
        "expert_in": TensorScaling(Power.of({"N": -HALF}), Power(), Power.of({"M": -1})),
        "expert_out": TensorScaling(Power.of({"N_e": -HALF}), Power(), Power.of({"M": -1})),
        "readout": TensorScaling(Power.of({"N": -HALF}), Power(), Power()),
    },
    {"alpha": Power.of({"M": 1})},
)
MEASURABLE = [name for name, o in OPTIMIZERS.items() if o.torch]


def setup(name, scaling=SCALING):
    """Two updates of the block with these powers."""
    return Setup(replace(derive("III", name, "sp"), scaling=scaling), steps=2)


@pytest.mark.parametrize("dims", [DIMS, DIMS | {"K": 3}])
@pytest.mark.parametrize("name", [*MEASURABLE, "adam:rows", "signsgd:columns", "muon:spectral", "adamw:matrix"])
def test_updates_are_what_the_optimizer_did(name, dims):
    model = TorchNetwork(MOE_BLOCK, ReplicaDraw(dims, [1, 2, 3], [1, 2, 3]), SCALING)
    start = {role: w.detach().clone() for role, w in model.weights.items()}
    run = TorchRun(model, optimizer(name))
    for _ in range(3):
        run.trainer.step()
    for role, w in model.weights.items():
        change = (w.detach() - start[role]).square().flatten(1).mean(1).sqrt()
        torch.testing.assert_close(run.relative_to_undecayed().update_size(role, 3), change, msg=role)
        rule = optimizer(name)
        moves = rule.decoupled_decay or rule.constrains(MOE_BLOCK, role)  # the reference, too
        if rule.constraint != "spectral":  # moves it only where the norm has grown
            assert torch.allclose(run.update_size(role, 3), change) != bool(moves), role


def test_pathway_split_of_the_sgd_update_sums_to_the_whole():
    run = TorchRun(TorchNetwork(MOE_BLOCK, ReplicaDraw(DIMS, [1, 2], [1, 2]), SCALING), optimizer("sgd"))
    for via in ("h2", "psi"):
        run.trainer.follow("h1", via)
    psi = MOE_BLOCK.producer("psi")
    for t in range(3):
        parts = [run.part(psi, "init", "change", t, run.change_via("h1", t, via)).entries for via in ("h2", "psi")]
        torch.testing.assert_close(sum(parts), run.part(psi, "init", "change", t).entries, rtol=1e-9, atol=1e-12)
        if t < 2:
            run.trainer.step()


def test_nothing_has_moved_before_training_and_zero_init_stays_exactly_zero_until_its_first_update():
    tensors = dict(SCALING.tensors) | {"readout": TensorScaling(None, Power(), Power())}
    for name in MEASURABLE:
        seen = train_network(setup(name, Scaling(tensors, SCALING.multipliers)), ReplicaDraw(DIMS, [1, 2], [1, 2]))
        for quantity in ("h1.change", "h3.D", "dW2", "g2.update-update", "f"):
            assert not seen[quantity, 0].any(), quantity
        assert not seen["dW2", 1].any(), name  # no gradient passes a zero readout, decay is not an update
        stays = optimizer(name).keeps_norm  # of norm zero
        assert not stays if seen["dW4", 1].all() and seen["dW2", 2].all() else stays, name


@pytest.mark.parametrize(
    "name",
    [name for name in MEASURABLE if optimizer(name).normalises == "entry" and not optimizer(name).acts_on_matrices],
)
def test_first_steps_are_as_long_as_the_registry_says(name):
    """Longer ones saturate the gates of regime I at the second step, and their slopes mean nothing."""
    rule = optimizer(name)
    weight = torch.nn.Parameter(torch.zeros(3, dtype=torch.float64))
    weight.grad = torch.tensor([1.0, -2.0, 3.0], dtype=torch.float64)
    epsilon = {"eps": 0.3 / rule.first} if rule.epsilon else {}
    find_stepper(rule)([weight], lr=0.5 / rule.first, **epsilon, **rule.options).step()
    size = weight.grad.abs()
    torch.testing.assert_close(weight.detach().abs(), 0.5 * size / (size + (0.3 if rule.epsilon else 0)))


PUBLIC = {
    "lion": ("Lion", {}),
    "normuon": ("NorMuon", {"momentum": 0.0, "nesterov": False, "use_muon": True}),
    "muonclip": ("MuonClip", {"momentum": 0.0, "use_muon": True}),
    "scion": ("SCION", {"momentum": 1.0, "norm_type": 3}),
    "shampoo": ("Shampoo", {}),
    "ademamix": ("AdEMAMix", {"weight_decouple": True, "t_alpha_beta3": 1e9}),
    "adan": ("Adan", {"weight_decouple": True}),
}
"""Optimizers as a public package has them; momentum off, which changes no exponent."""


@pytest.mark.parametrize("name", PUBLIC)
def test_first_steps_are_those_of_a_public_implementation(name):
    """Two steps of a matrix of rank one, larger than its sides are alike. Newton-Schulz steps in bfloat16 differ by
    their rounding; NorMuon's mean of rows starts at zero in both."""
    package = pytest.importorskip("pytorch_optimizer")
    torch.manual_seed(1)
    rule, (public, options) = optimizer(name), PUBLIC[name]
    grads = [torch.outer(torch.randn(6), torch.randn(10)) for _ in range(2)]
    ours, theirs = (torch.nn.Parameter(torch.zeros(6, 10)) for _ in range(2))
    mine = {"params": [ours], "lr": 0.5}
    if rule.acts_on_matrices:
        mine["fold"] = Fold((), (0,), (1,))
    steppers = (
        find_stepper(rule)(
            [mine], **rule.options, **({"momentum": 0.0, "nesterov": False} if "Muon" in rule.torch else {})
        ),
        getattr(package, public)([{"params": [theirs], "lr": 0.5, **options}]),
    )
    for g in grads:
        for p, made in zip((ours, theirs), steppers, strict=True):
            p.grad = g.clone()
            made.step()
    rough = {"rtol": 0.05, "atol": 0.02} if rule.normalises == "matrix" else {}
    torch.testing.assert_close(ours.detach(), theirs.detach(), **rough)
    assert ours.detach().abs().max() > 0.1


@pytest.mark.parametrize("name", PUBLIC)
def test_public_steps_have_the_size_that_the_table_says(name):
    """The control of the names: the power of a step in the size of its gradient, and in the side of its matrix."""
    package = pytest.importorskip("pytorch_optimizer")
    rule, (public, options) = optimizer(name), PUBLIC[name]
    sizes = {}
    for side, factor in ((8, 1.0), (8, 100.0), (32, 1.0)):
        signs = (torch.arange(side) % 2 * 2.0 - 1).double().repeat(2)
        p = torch.nn.Parameter(torch.zeros(2 * side, side).double())
        p.grad = factor * torch.outer(signs, signs[:side])
        getattr(package, public)([{"params": [p], "lr": 1.0, **options}]).step()
        sizes[side, factor] = float(p.detach().square().mean().sqrt())
    assert sizes[8, 100.0] / sizes[8, 1.0] == pytest.approx(1 if rule.normalises else 100, rel=0.02)
    entries = 4.0 if rule.normalises == "matrix" else 1.0
    shaped = SHAPES[rule.shape].at(64, 32) / SHAPES[rule.shape].at(16, 8)
    assert sizes[32, 1.0] / sizes[8, 1.0] == pytest.approx(shaped / entries, rel=0.1)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("soap", "no rule for soap: its step has two sizes"),
        ("Sophia", "no rule for Sophia: its step divides by the diagonal of the Hessian"),
        (
            "prodigy",
            "no optimizer named 'prodigy'.*describe any other in a file, such as mine.toml with normalises = 'entry'",
        ),
    ],
)
def test_what_has_no_rule_is_refused_with_the_reason(name, said):
    with pytest.raises(UsageError, match=said):
        optimizer(name)


@pytest.mark.parametrize("name", ["adamh", "muonh"])
def test_a_step_on_a_sphere_keeps_the_norm_of_every_matrix(name):
    """The first step by hand: a share lr of the norm along a sign, or along torch's Muon, and back; zero stays."""
    torch.manual_seed(1)
    weight, grads = torch.randn(2, 4, 5).double(), torch.randn(2, 4, 5).double()
    weight[1] = 0
    p = torch.nn.Parameter(weight.clone())
    p.grad = grads
    group = {"params": [p], "fold": Fold((0,), (1,), (2,)), "lr": 0.1}
    find_stepper(optimizer(name))([group], **optimizer(name).options).step()
    norm, step = torch.linalg.matrix_norm, grads.sign()
    if name == "muonh":
        each = [torch.nn.Parameter(torch.zeros(4, 5).double()) for _ in grads]
        for x, g in zip(each, grads, strict=True):
            x.grad = g
        torch.optim.Muon(each, lr=1.0, weight_decay=0.0, eps=1e-30).step()
        step = -torch.stack([x.detach() for x in each])
    moved = weight - 0.1 * norm(weight)[:, None, None] * step / norm(step)[:, None, None]
    assert not p[1].any()
    torch.testing.assert_close(p[0], moved[0] * norm(weight[0]) / norm(moved[0]), rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(get_shrinkage(group)[0, 0, 0], norm(weight[0]) / norm(moved[0]), rtol=1e-6, atol=0)


@pytest.mark.parametrize(
    ("name", "norm"),
    [
        ("adam:rows", lambda w: w.norm(dim=2)),
        ("signsgd:columns", lambda w: w.norm(dim=1)),
        ("muon:matrix", torch.linalg.matrix_norm),
        ("muon:spectral", lambda w: torch.linalg.matrix_norm(w, 2)),
    ],
)
def test_a_constraint_brings_weights_back(name, norm):
    """The norm after three steps is that of the start, or at most that; without the constraint it is another."""
    torch.manual_seed(1)
    start, grads = torch.randn(2, 4, 5).double(), torch.randn(3, 2, 4, 5).double()
    found = []
    for rule in (optimizer(name), optimizer(name.partition(":")[0])):
        p = torch.nn.Parameter(start.clone())
        group = {"params": [p], "lr": 0.3, **({"fold": Fold((0,), (1,), (2,))} if rule.acts_on_matrices else {})}
        made = find_stepper(rule)([group], **rule.options)
        for g in grads:
            before = p.detach().clone()
            p.grad = g.clone()
            made.step()
        found.append(norm(p.detach()))
        if rule.constraint:
            assert get_shrinkage(made.param_groups[0]).shape == p.shape and not torch.equal(before, p)
    bounds = found[0] <= norm(start) * (1 + 1e-9) if "spectral" in name else torch.isclose(found[0], norm(start))
    assert bounds.all() and not torch.allclose(found[1], norm(start), rtol=0.02)


def test_every_matrix_of_a_stack_is_stepped_by_itself():
    """Against torch.optim.Muon on each matrix; Shampoo's first step brings every singular value to the rate."""
    torch.manual_seed(1)
    weight, grads = torch.nn.Parameter(torch.zeros(2, 3, 4, 5).double()), torch.randn(2, 2, 3, 4, 5).double()
    for fold, matrices in (
        (Fold((0, 1), (2,), (3,)), lambda w: w.flatten(0, 1)),
        (Fold((0,), (1, 2), (3,)), lambda w: w.flatten(1, 2)),
        (Fold((0, 1), (3,), (2,)), lambda w: w.flatten(0, 1).mT),
    ):
        weight.data.zero_()
        each = [torch.nn.Parameter(x.clone()) for x in matrices(weight.detach())]
        ours = find_stepper(optimizer("muon:match_rms_adamw"))([{"params": [weight], "fold": fold, "lr": 0.5}])
        theirs = torch.optim.Muon(each, lr=0.5, weight_decay=0.0, adjust_lr_fn="match_rms_adamw")
        for g in grads:
            weight.grad = g
            for x, own in zip(each, matrices(g), strict=True):
                x.grad = own
            ours.step()
            theirs.step()
        torch.testing.assert_close(matrices(weight.detach()), torch.stack([x.detach() for x in each]))
    weight.data.zero_()
    find_stepper(optimizer("shampoo"))([{"params": [weight], "fold": Fold((0, 1), (2,), (3,)), "lr": 0.5}]).step()
    sizes = torch.linalg.svdvals(weight.detach())
    torch.testing.assert_close(sizes, torch.full_like(sizes, 0.5))


def test_every_block_of_a_matrix_is_stepped_by_itself():
    """Two steps of Shampoo on blocks are its own on each; the first one of a full block has norm ``first``."""
    torch.manual_seed(1)
    rule, fold = optimizer("shampoo-blocks"), Fold((0,), (1,), (2,))
    weight = torch.nn.Parameter(torch.zeros(1, 6, 8).double())
    corners = [
        (slice(0, 4), slice(0, 4)),
        (slice(0, 4), slice(4, 8)),
        (slice(4, 6), slice(0, 4)),
        (slice(4, 6), slice(4, 8)),
    ]
    each = [torch.nn.Parameter(torch.zeros(1, r.stop - r.start, c.stop - c.start).double()) for r, c in corners]
    ours = find_stepper(rule)([{"params": [weight], "fold": fold, "lr": 0.5}])
    theirs = [find_stepper(optimizer("shampoo"))([{"params": [x], "fold": fold, "lr": 0.5}]) for x in each]
    for _ in range(2):
        weight.grad = torch.randn(1, 6, 8).double()
        for (r, c), x, step in zip(corners, each, theirs, strict=True):
            x.grad = weight.grad[:, r, c]
            step.step()
        ours.step()
    for (r, c), x in zip(corners, each, strict=True):
        torch.testing.assert_close(weight.detach()[:, r, c], x.detach())
    flat = torch.nn.Parameter(torch.zeros(1, 8, 8).double())
    flat.grad = torch.outer(torch.tensor([1.0, -1.0] * 4), torch.ones(8)).double()[None]
    find_stepper(rule)([{"params": [flat], "fold": fold, "lr": 1.0}]).step()
    torch.testing.assert_close(flat.detach().abs(), torch.full_like(flat, rule.first / rule.blocks))


def test_sign_descent_and_lion_are_the_published_rules():
    """Two steps by hand: signs of gradients, and of Lion's mixture of gradient and momentum."""
    gradients = torch.tensor([[1.0, -2.0, 0.0, 1.0], [-0.01, 5.0, 1.0, -0.5]], dtype=torch.float64)
    momentum = 0.01 * gradients[0]
    mixed = torch.stack([0.1 * gradients[0], 0.9 * momentum + 0.1 * gradients[1]])
    for name, directions in (("signsgd", gradients), ("lion", mixed)):
        weight = torch.nn.Parameter(torch.zeros(4, dtype=torch.float64))
        made = find_stepper(optimizer(name))([weight], lr=0.5)
        for g in gradients:
            weight.grad = g.clone()
            made.step()
        torch.testing.assert_close(weight.detach(), -0.5 * directions.sign().sum(0), msg=name)


@pytest.mark.parametrize(
    ("torch_class", "options", "message"),
    [
        ("LBFGS", {}, "raises TypeError: LBFGS.step"),
        ("os.system", {}, "is not an optimizer; name a class of torch.optim, or FILE.py:Class"),
        ("builtins.print", {}, "is not an optimizer"),
        ("lr_scheduler", {}, "is not an optimizer"),
        ("Optimizer", {}, "raises TypeError"),
        ("Adam", {"foo": 1}, "unexpected keyword argument 'foo'"),
        ("Adam", {"betas": [2.0, 3.0]}, "raises ValueError: Invalid beta"),
        ("Adam", {"lr": 3.0}, r"lr in the options of o\.toml is set separately for every tensor; leave it out"),
        ("SGD", {"weight_decay": math.nan}, "gives weights that are not finite"),
        ("{own}:function", {}, "is not an optimizer"),
        ("{own}:Missing", {}, "is not an optimizer"),
        ("missing.py:Own", {}, "no file missing.py"),
        ("", {}, "o.toml cannot be trained: it names no class"),
    ],
)
def test_an_optimizer_that_cannot_step_is_one_line(torch_class, options, message, tmp_path):
    own = tmp_path / "own.py"
    own.write_text("import torch\nclass Own(torch.optim.SGD): pass\ndef function(*_): raise AssertionError('called')\n")
    with pytest.raises(UsageError, match=message):
        find_stepper(Optimizer("o.toml", torch_class.format(own=own), options))
    (tmp_path / "o.toml").write_text("torch = 'own.py:Own'")
    assert issubclass(find_stepper(optimizer(str(tmp_path / "o.toml"))), torch.optim.SGD), "a class beside the file"


def test_no_module_is_imported_for_an_optimizer():
    with pytest.raises(UsageError, match="is not an optimizer"):
        find_stepper(Optimizer("o.toml", "this.s"))
    assert "this" not in sys.modules


def test_a_negligible_epsilon_is_far_below_every_gradient():
    model = TorchNetwork(MOE_BLOCK, ReplicaDraw(DIMS, [1], [1]), SCALING)
    for name in ("adam", "adamw", "rmsprop"):
        groups = model.optimizer(optimizer(name).with_epsilon("negligible")).param_groups
        assert {g["eps"] for g in groups} == {NEGLIGIBLE} and NEGLIGIBLE < 1e-20
    assert len({g["eps"] for g in model.optimizer(optimizer("adam")).param_groups}) > 1
