"""Measures the block of the routers paper: a fixed number of linear experts and a gate that is part of the dynamics.

The result is a ``Measurement``: ``fit_of`` gives slope and 95 % interval of a quantity, ``judge`` compares it with
predictions. Gradients are autograd's, steps torch.optim's. The statistic is the root-mean-square over entries and
seeds: under top-K it averages over masks, and of a saturated gate it shows the few seeds that do not saturate.
Read next: ``fit.py`` (slopes and intervals), ``report.py`` (``fit_of`` and ``judge``).
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from scaling_algebra.errors import UsageError
from scaling_algebra.solver.derivation import Derivation
from scaling_algebra.spec.networks.language import Gate, Noise
from scaling_algebra.spec.networks.library import SHIFTS, fixed_experts
from scaling_algebra.verify.decomposition.parts import Named, over, rms
from scaling_algebra.verify.hardware import Hardware, generators
from scaling_algebra.verify.judging.measurement import Measurement, Record
from scaling_algebra.verify.measuring.cells import CONTROL_SEEDS, seed
from scaling_algebra.verify.measuring.sizes import dims_at, effective_n, plan_seeds, plan_sizes
from scaling_algebra.verify.networks.moe_block import DTYPE, sample
from scaling_algebra.verify.networks.scales import DECAY, EPS, LOSS_SLOPE, D, value

INIT = {"input": 2.0, "router": 1.0, "expert": 1.0, "readout": 1.0, "bias": 1.0}
"""Base init stds. Input 2: what a router learns, ~ |h1|^2, must show above its initial logits ~ n^(-1/2) at n = 64."""

LR, RAW_LR = 1.0, 0.4
"""Base learning rates: of optimizers that normalise, and of others, whose gradients grow like |h1|^2. There rate 1 puts
logits near 10 at the second step, which saturates a sigmoid; a bounded step of 0.4 would hide behind n^(-1/2)."""

FROZEN, BIAS, NOISE = 1000, 2000, 3000
"""Offsets of the random streams of the control, of the bias and of the noise: no two streams coincide."""


def measure_fixed_experts(
    derivation: Derivation,
    *,
    sizes: Sequence[int] | None = None,
    seeds: int | None = None,
    steps: int = 2,
    device: str = "cpu",
    experts: int = 4,
    active: int = 2,
) -> Measurement:
    """Trains at every size and seed, and records every quantity after 0, 1, ..., ``steps`` updates.

    Args:
        derivation: scaling and optimizer; its architecture says gate, bias or noise, and top-K.
        sizes: values of n; by default five, from 64 to about 1000.
        seeds: replicas per size; by default more at small sizes, where they are cheap.
        device: ``cpu``, ``cuda`` or ``auto``.
        experts, active: number of experts, and how many of them top-K selects, at every size.

    Raises:
        UsageError: another architecture or optimizer, growing experts, a tensor without scaling, an unusable argument.
    """
    ray, rule = derivation.ray, derivation.optimizer
    _check(derivation, steps, experts, active)
    hardware, chosen = Hardware.of(device), plan_sizes(ray, sizes)
    grid = [{**dims_at(ray, n), "M": experts, "K": active} for n in chosen]
    measured = Measurement(ray, steps)
    started = time.perf_counter()
    for index, (dims, count) in enumerate(zip(grid, plan_seeds(ray, chosen, seeds), strict=True)):
        model = FixedExperts(derivation, dims, [0], index, hardware.device)
        measured.sizes.append(effective_n(ray, dims, grid[0], chosen[0]))
        measured.dims.append(dims)
        measured.parameters.append(sum(p.numel() for p in model.parameters()))
        measured.inputs.append(hashlib.sha256(model.x.cpu().numpy().tobytes()).hexdigest())
        control = (measured.control, grid[0], min(CONTROL_SEEDS, count), FROZEN + index)
        for store, at, replicas, stream in ((measured.values, dims, count, index), control):
            together = max(1, hardware.room // (32 * experts * at["N"] ** 2))
            batches = (range(replicas)[i : i + together] for i in range(0, replicas, together))
            models = (FixedExperts(derivation, at, batch, stream, hardware.device) for batch in batches)
            parts = [train_experts(model, steps) for model in models]
            for key in parts[0]:
                store.setdefault(key, []).append(np.concatenate([p[key] for p in parts]))
    measured.environment = {
        **hardware.described(),
        "dtype": str(DTYPE).removeprefix("torch."),
        "optimizer": f"torch.optim.{rule.torch}",
        "wall_seconds": round(time.perf_counter() - started, 2),
        "constants": {"init": INIT, "lr": LR if rule.normalises else RAW_LR, "eps": EPS, "loss_slope": LOSS_SLOPE},
    }
    return measured


class FixedExperts(nn.Module):
    """h1 = W1 x; psi = Q h1 (+ B, or noise); phi = gate(psi); h3i = W3_i h1; h3 = multiplier * sum_i phi_i h3i;
    f = W4 h3.

    Source: routers paper, Def. 1; top-K: App. F.

    Args:
        derivation: architecture, init stds and multiplier.
        dims: N, the number of experts M and of active ones K.
        replicas: one network is drawn per entry (S of them).
        stream: random stream of the weights. Bias and noise of a replica are the same in every stream, hence at every
            size: limits with a bias or noise are conditional on it (App. F.1).

    Attributes:
        weights: parameters by symbol, shapes W1 (S,N,D), Q (S,M,N), W3 (S,M,N,N), W4 (S,N), B (S,M).
        noise: standard normal noise on the logits at this step and at the first one, (S,M); None where there is none.
    """

    def __init__(
        self, derivation: Derivation, dims: Mapping[str, int], replicas: Sequence[int], stream: int, device: str = "cpu"
    ) -> None:
        super().__init__()
        self.derivation, self.dims = derivation, dims
        network, scaling = derivation.network, derivation.scaling
        self.gate = next(s for s in network.statements if isinstance(s, Gate))
        self.active, self.multiplier = dims["K"], value(-scaling.alpha, dims)
        self.weights = nn.ParameterDict()
        streams = {s: generators([seed(s, r) for r in replicas], device) for s in (stream, BIAS)}
        for role, tensor in network.tensors.items():
            letters = "i" if role == "bias" else tensor.letters  # the bias is applied to the constant 1
            shape = [{"D": D, **dims}[network.axes[letter]] for letter in letters]
            std = scaling.tensors[role].init_std
            weight = torch.zeros(len(replicas), *shape, device=device, dtype=DTYPE)
            if std is not None:
                for replica, generator in zip(weight, streams[BIAS if role == "bias" else stream], strict=True):
                    replica.copy_(torch.randn(shape, generator=generator, device=device))  # float32: drawn 5x faster
                weight *= INIT[role] * value(std, dims)
            self.weights[tensor.symbol] = nn.Parameter(weight)
        self.register_buffer("x", sample(device))
        self.x: Tensor
        noisy = any(isinstance(s, Noise) for s in network.statements)
        self._noise = generators([seed(NOISE, r) for r in replicas], device) if noisy else []
        self.noise = self.first_noise = self._drawn()

    def _drawn(self) -> Tensor | None:
        experts, like = self.weights["Q"].shape[1], self.x
        draws = [torch.randn(experts, generator=g, device=like.device) for g in self._noise]
        return torch.stack(draws).to(like.dtype) if draws else None

    def step(self) -> None:
        """Draws the noise of the next step."""
        self.noise = self._drawn()

    def shift(self, start: Mapping[str, Tensor] | None = None) -> Tensor | None:
        """What is added to the logits now, or with the initial weights at the first step, (S,M)."""
        if self.noise is not None:
            return self.noise if start is None else self.first_noise
        return (self.weights if start is None else start)["B"] if "B" in self.weights else None

    def forward(self) -> Named:
        """All signals; ``h1.router`` and ``h1.expert`` are copies of h1, so that each keeps its own gradient."""
        w = self.weights
        h1 = w["W1"] @ self.x
        to_router, to_expert = h1.clone(), h1.clone()
        (psi,) = _apply(w["Q"], to_router)
        shift = self.shift()
        psi = psi if shift is None else psi + shift
        phi = self.gated(psi)
        (h3i,) = _apply(w["W3"], to_expert)
        h3 = self.aggregate(phi, h3i)
        named = {"h1": h1, "h1.router": to_router, "h1.expert": to_expert, "psi": psi, "phi": phi, "h3i": h3i, "h3": h3}
        return {**named, "f": (w["W4"] * h3).sum(-1)}

    def gated(self, psi: Tensor) -> Tensor:
        """phi, (S,M): softmax over the selected experts, or masked entries; no gradient passes through the mask."""
        mask = torch.ones_like(psi, dtype=torch.bool)
        if self.gate.selects:
            mask = torch.zeros_like(mask).scatter(1, psi.detach().topk(self.active).indices, True)
        gate: Callable[..., Tensor] = getattr(functional, self.gate.kind)
        return gate(psi.masked_fill(~mask, -torch.inf), -1) if self.gate.normalised else gate(psi) * mask

    def aggregate(self, phi: Tensor, h3i: Tensor) -> Tensor:
        """``multiplier * sum_i phi_i h3i``: (S,M) with (S,M,N) -> (S,N)."""
        return self.multiplier * torch.einsum("si,sib->sb", phi, h3i)

    def optimizer(self) -> torch.optim.Optimizer:
        """The real ``torch.optim`` optimizer, one parameter group per tensor with its own lr, eps and weight decay."""
        derivation, rule, groups = self.derivation, self.derivation.optimizer, []
        for role, tensor in derivation.network.tensors.items():
            scale = derivation.scaling.tensors[role]
            lr = (LR if rule.normalises else RAW_LR) * value(scale.lr, self.dims)
            group = {"params": [self.weights[tensor.symbol]], "lr": lr, "symbol": tensor.symbol}
            if rule.epsilon and scale.eps is not None:
                group["eps"] = EPS * value(scale.eps, self.dims)
            if rule.decoupled_decay:
                group["weight_decay"] = DECAY / lr
            groups.append(group)
        made: torch.optim.Optimizer = getattr(torch.optim, rule.torch)(groups, **rule.options)
        return made


def train_experts(model: FixedExperts, steps: int) -> Record:
    """Trains all replicas and returns the root-mean-square of every quantity at every step."""
    stepper = model.optimizer()
    start = {symbol: p.detach().clone() for symbol, p in model.weights.items()}
    record: dict[tuple[str, int], Tensor] = {}
    for t in range(steps + 1):
        stepper.zero_grad()
        record |= {(name, t): rms(x) for name, x in split_experts(model, start).items()}
        if t < steps:
            stepper.step()
            model.step()
            for group in stepper.param_groups if model.derivation.optimizer.decoupled_decay else ():
                start[group["symbol"]].mul_(1 - group["lr"] * group["weight_decay"])  # as torch decays the weight
    return {key: x.cpu().numpy() for key, x in record.items()}


def split_experts(model: FixedExperts, start: Mapping[str, Tensor]) -> Named:
    """Runs forward and backward, leaves the gradients in the model, and returns every named quantity.

    Args:
        start: initial weights by symbol; every weight is W_t = W_0 + dW. The parts of h3 have the initial gates, and
            ``h3.regated`` is the rest.
    """
    signals = model()
    for signal in signals.values():
        signal.retain_grad()
    (LOSS_SLOPE * signals["f"].sum()).backward()
    with torch.no_grad():
        update = {symbol: p - start[symbol] for symbol, p in model.weights.items()}
        named = {name: signal for name, signal in signals.items() if "." not in name}
        named |= {f"g{name.removeprefix('h')}": signal.grad for name, signal in signals.items() if name != "f"}
        named |= {f"d{symbol}": change for symbol, change in update.items()}
        named |= {f"g{symbol}": p.grad for symbol, p in model.weights.items()}
        named |= {"g3.init": start["W4"], "g3.update": update["W4"]}

        def linear(name: str, symbol: str, before: Tensor, change: Tensor) -> None:
            parts = (*_apply(start[symbol], before, change), *_apply(update[symbol], before, change))
            labels = (f"{name}.{part}" for part in ("init", "propagating", "effective", "cross"))
            named.update(zip(labels, parts, strict=True))
            named[f"{name}.change"] = parts[1] + parts[2] + parts[3]
            named[f"{name}.update"] = parts[2] + parts[3]
            named[f"{name}.update.normalised"] = over(named[f"{name}.update"], rms(before + change))

        h1_0, dh1 = start["W1"] @ model.x, update["W1"] @ model.x
        named |= {"h1.init": h1_0, "h1.change": dh1, "h1.effective": dh1}
        linear("psi", "Q", h1_0, dh1)
        shift, first = model.shift(), model.shift(start)
        if shift is not None and first is not None:
            named |= {name.replace("psi", "logits"): x for name, x in named.items() if name.startswith("psi")}
            for name in ("psi.update", "psi.update.normalised"):  # of the logits alone, as psi is no linear map here
                del named[name]
            named |= {"logits": named["psi"] - shift, "shift": shift, "shift.change": shift - first}
            named |= {"psi.init": named["psi.init"] + first, "psi.change": named["psi.change"] + shift - first}
        named["psi.spread"] = named["psi"] - named["psi"].mean(1, keepdim=True)
        phi_0 = model.gated(named["psi.init"])
        named["phi.change"] = named["phi"] - phi_0
        if model.gate.normalised:
            named |= _entropy(named["phi"], model.active if model.gate.selects else named["phi"].shape[1])
        linear("h3i", "W3", h1_0, dh1)
        for part in ("init", "propagating", "effective", "cross"):
            named[f"h3.{part}"] = model.aggregate(phi_0, named[f"h3i.{part}"])
        named["h3.regated"] = model.aggregate(named["phi.change"], named["h3i"])
        named["h3.change"] = named["h3"] - named["h3.init"]
        linear("f", "W4", named["h3.init"], named["h3.change"])
        return {name: x.detach() for name, x in named.items()}


def _entropy(phi: Tensor, active: int) -> Named:
    """Entropy of the gates, (S,M) -> (S,), in units of the most that the active experts allow; and what lacks to it.

    Source: routers paper, Fig. 1 (normalised router entropy). Nothing where one expert is active.
    """
    if active == 1:
        return {}
    entropy = torch.special.entr(phi).sum(1) / math.log(active)
    return {"phi.entropy": entropy, "phi.deficit": 1 - entropy}


def _apply(weight: Tensor, *signals: Tensor) -> tuple[Tensor, ...]:
    """``weight . signal`` for several signals in one pass over the weight: (S,...,a) with (S,a) -> (S,...)."""
    out = weight.reshape(len(weight), -1, weight.shape[-1]) @ torch.stack(signals, -1)
    return out.view(*weight.shape[:-1], len(signals)).unbind(-1)


def _check(derivation: Derivation, steps: int, experts: int, active: int) -> None:
    network, scaling, rule = derivation.network, derivation.scaling, derivation.optimizer
    gate = next((s for s in network.statements if isinstance(s, Gate)), None)
    known = gate and gate.kind != "held" and [fixed_experts(gate.kind, shift, gate.selects) for shift in SHIFTS]
    if not known or network not in known:
        raise UsageError(f"{network.name} is not a block with fixed experts; give one of the routers- architectures")
    if derivation.ray["M"] or not derivation.ray["N"]:
        raise UsageError(f"this block has a fixed number of experts and grows in N, but the ray is {derivation.ray}")
    if not rule.torch:
        raise UsageError(f"{rule.name} cannot be measured: {rule.untrained}")
    for role in network.tensors:
        if role not in scaling.tensors or (rule.epsilon and scaling.tensors[role].eps is None):
            raise UsageError(f"the derivation gives {role} no complete scaling, but {network.name} trains it")
    if steps < 0 or not 1 <= active <= experts:
        raise UsageError(f"need steps >= 0 and 1 <= active <= experts; got {steps}, {active} and {experts}")
