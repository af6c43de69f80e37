"""The hand-split parts against autograd and against the module's own forward pass."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest

torch = pytest.importorskip("torch")

from scaling_algebra import derive
from scaling_algebra.spec.optimizers import OPTIMIZERS, optimizer
from scaling_algebra.spec.powers import Power
from scaling_algebra.spec.scaling import Scaling, TensorScaling
from scaling_algebra.verify.decomposition.block_parts import NamedSignals, Split, Sums
from scaling_algebra.verify.decomposition.block_updates import BlockUpdates, LowRank, linear, matrix
from scaling_algebra.verify.measuring.block import train_block
from scaling_algebra.verify.measuring.cells import Setup
from scaling_algebra.verify.networks.moe_block import MoEBlock
from scaling_algebra.verify.networks.replicas import Draw
from scaling_algebra.verify.networks.scales import NEGLIGIBLE
from scaling_algebra.verify.networks.steppers import Fold, shrinkage, stepper

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


def trained(name="sgd", steps=2, seeds=(1, 2, 3)):
    """A model after some updates, what its optimizer remembers of them, and its initial weights."""
    model = MoEBlock(Draw(DIMS, seeds), SCALING)
    stepper = model.optimizer(optimizer(name))
    start = {s: w.detach().clone() for s, w in model.weights.items()}
    memory = BlockUpdates(optimizer(name), model.weights, stepper, steps)
    for _ in range(steps):
        stepper.zero_grad()
        model().sum().backward()
        with torch.no_grad():
            factors = Split(memory.operators(), model.x, model.multiplier).factors()
        stepper.step()
        memory.step(factors)
    return model, memory, start


@pytest.mark.parametrize("name", MEASURABLE)
def test_updates_are_what_the_optimizer_did(name):
    model, memory, start = trained(name, steps=3)
    kept = {symbol for symbol, operator in memory.operators().items() if isinstance(operator, LowRank)}
    assert kept == ({"W2", "W3"} if linear(optimizer(name)) else set())  # the others are too small to be of low rank
    for symbol, operator in memory.operators().items():
        g, o, i = operator.now.shape[1:]
        change = matrix(symbol, model.weights[symbol].detach() - start[symbol])
        if not (optimizer(name).decoupled_decay or optimizer(name).sphere):  # these move the reference, too
            torch.testing.assert_close(operator.update_norm(), change.square().sum((1, 2, 3)).sqrt(), msg=symbol)
            v, u = torch.randn(3, g, 2, i, dtype=change.dtype), torch.randn(3, g, 2, o, dtype=change.dtype)
            torch.testing.assert_close(operator.forward(v)[1], v @ change.mT, msg=symbol)
            torch.testing.assert_close(operator.backward(u)[1], u @ change, msg=symbol)
        whole = operator.forward(torch.eye(i, dtype=change.dtype).expand(3, g, i, i))
        torch.testing.assert_close(sum(whole), matrix(symbol, model.weights[symbol].detach()).mT, msg=symbol)


@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_sums_over_experts_keep_their_digits_whatever_the_size_of_the_update(scale, dtype):
    start, left, right = (torch.randn(3, *shape) for shape in ((5, 7, 4), (1, 2, 7), (5, 2, 4)))
    coefficients = torch.tensor([scale, -scale / 3], dtype=dtype)
    update = torch.einsum(
        "r,sgro,sgri->sgoi", coefficients.double(), left.expand(-1, 5, -1, -1).double(), right.double()
    )
    columns, gates = torch.randn(3, 5, 2, 4, dtype=dtype), torch.rand(3, 3, 5, dtype=dtype)
    now = (start + update).to(dtype)
    kept = LowRank(now, left.to(dtype), right.to(dtype), coefficients)
    made = torch.cat([columns.double() @ w.mT for w in (now.double() - update, update)], 2)
    products, mixed = kept.summed(columns, gates)
    close = {"rtol": 0, "atol": 100 * torch.finfo(dtype).eps * max(1, scale)}  # W_0 is W_t less the update
    sizes = torch.einsum("sgcb,sgcb->sc", made, made).sqrt()
    scales = sizes[:, :, None] * sizes[:, None]
    torch.testing.assert_close(products / scales, torch.einsum("sgcb,sgdb->scd", made, made) / scales, **close)
    whole = torch.einsum("skg,sgcb->skcb", gates.double(), made)
    torch.testing.assert_close(mixed.double() / sizes[:, None, :, None], whole / sizes[:, None, :, None], **close)


def test_pathway_split_of_the_sgd_update_sums_to_the_whole(monkeypatch):
    monkeypatch.setattr(NamedSignals, "rms", lambda parts: {name: x for name, x in parts.items() if x.ndim == 2})
    seen = train_block(setup("sgd"), Draw(DIMS, [1, 2]))
    for t in range(3):
        both = seen["psi.propagating.expert", t] + seen["psi.propagating.router", t]
        assert both == pytest.approx(seen["psi.propagating", t], abs=1e-12)


def test_nothing_has_moved_before_training_and_zero_init_stays_exactly_zero_until_its_first_update():
    tensors = dict(SCALING.tensors) | {"readout": TensorScaling(None, Power(), Power())}
    for name in MEASURABLE:
        seen = train_block(setup(name, Scaling(tensors, SCALING.multipliers)), Draw(DIMS, [1, 2]))
        for quantity in ("h1.change", "h3.D", "dW2", "g2.update-update", "f"):
            assert not seen[quantity, 0].any(), quantity
        assert not seen["dW2", 1].any(), name  # no gradient passes a zero readout, decay is not an update
        stays = optimizer(name).sphere  # of norm zero
        assert not stays if seen["dW4", 1].all() and seen["dW2", 2].all() else stays, name


@pytest.mark.parametrize(
    "name", [name for name in MEASURABLE if optimizer(name).normalises == "entry" and not optimizer(name).folded]
)
def test_first_steps_are_as_long_as_the_registry_says(name):
    """Longer ones saturate the gates of regime I at the second step, and their slopes mean nothing."""
    rule = optimizer(name)
    weight = torch.nn.Parameter(torch.zeros(3, dtype=torch.float64))
    weight.grad = torch.tensor([1.0, -2.0, 3.0], dtype=torch.float64)
    epsilon = {"eps": 0.3 / rule.first} if rule.epsilon else {}
    stepper(rule)([weight], lr=0.5 / rule.first, **epsilon, **rule.options).step()
    size = weight.grad.abs()
    torch.testing.assert_close(weight.detach().abs(), 0.5 * size / (size + (0.3 if rule.epsilon else 0)))


@pytest.mark.parametrize("name", ["adamh", "muonh"])
def test_a_step_on_a_sphere_keeps_the_norm_of_every_matrix(name):
    """The first step by hand: a share lr of the norm along a sign, or along torch's Muon, and back; zero stays."""
    torch.manual_seed(1)
    weight, grads = torch.randn(2, 4, 5).double(), torch.randn(2, 4, 5).double()
    weight[1] = 0
    p = torch.nn.Parameter(weight.clone())
    p.grad = grads
    group = {"params": [p], "fold": Fold((0,), (1,), (2,)), "lr": 0.1}
    stepper(optimizer(name))([group], **optimizer(name).options).step()
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
    torch.testing.assert_close(shrinkage(group)[0, 0, 0], norm(weight[0]) / norm(moved[0]), rtol=1e-6, atol=0)


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
        ours = stepper(optimizer("muon:match_rms_adamw"))([{"params": [weight], "fold": fold, "lr": 0.5}])
        theirs = torch.optim.Muon(each, lr=0.5, weight_decay=0.0, adjust_lr_fn="match_rms_adamw")
        for g in grads:
            weight.grad = g
            for x, own in zip(each, matrices(g), strict=True):
                x.grad = own
            ours.step()
            theirs.step()
        torch.testing.assert_close(matrices(weight.detach()), torch.stack([x.detach() for x in each]))
    weight.data.zero_()
    stepper(optimizer("shampoo"))([{"params": [weight], "fold": Fold((0, 1), (2,), (3,)), "lr": 0.5}]).step()
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
    ours = stepper(rule)([{"params": [weight], "fold": fold, "lr": 0.5}])
    theirs = [stepper(optimizer("shampoo"))([{"params": [x], "fold": fold, "lr": 0.5}]) for x in each]
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
    stepper(rule)([{"params": [flat], "fold": fold, "lr": 1.0}]).step()
    torch.testing.assert_close(flat.detach().abs(), torch.full_like(flat, rule.first / rule.blocks))


def test_sign_descent_and_lion_are_the_published_rules():
    """Two steps by hand: signs of gradients, and of Lion's mixture of gradient and momentum."""
    gradients = torch.tensor([[1.0, -2.0, 0.0, 1.0], [-0.01, 5.0, 1.0, -0.5]], dtype=torch.float64)
    momentum = 0.01 * gradients[0]
    mixed = torch.stack([0.1 * gradients[0], 0.9 * momentum + 0.1 * gradients[1]])
    for name, directions in (("signsgd", gradients), ("lion", mixed)):
        weight = torch.nn.Parameter(torch.zeros(4, dtype=torch.float64))
        made = stepper(optimizer(name))([weight], lr=0.5)
        for g in gradients:
            weight.grad = g.clone()
            made.step()
        torch.testing.assert_close(weight.detach(), -0.5 * directions.sign().sum(0), msg=name)


def test_a_negligible_epsilon_is_far_below_every_gradient():
    model = MoEBlock(Draw(DIMS, [1]), SCALING)
    for name in ("adam", "adamw", "rmsprop"):
        groups = model.optimizer(optimizer(name).with_epsilon("negligible")).param_groups
        assert {g["eps"] for g in groups} == {NEGLIGIBLE} and NEGLIGIBLE < 1e-20
    assert len({g["eps"] for g in model.optimizer(optimizer("adam")).param_groups}) > 1


def test_an_overflow_spoils_only_the_sums_it_is_in():
    products = torch.tensor([[[4.0, 0.0], [0.0, float("inf")]]], dtype=torch.float64)
    sizes = Sums(products, list, {"fine": [0], "spoilt": [0, 1]}).rms()
    assert sizes["fine"].item() == 2 and not sizes["spoilt"].isfinite().item()
