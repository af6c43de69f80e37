"""Trained weights as initial values plus updates, applied to signals without ever forming an update.

``W_t v = W_0 v + dW v`` is needed part by part. An optimizer that is linear in the gradients leaves dW as a sum of
products, one for each step (one sample), and W_0 need not be kept; any other one keeps W_0, and ``dW v`` is the
difference.
Read next: ``parts.py`` and ``gradients.py`` (apply weights at every step), ``moments.py`` (makes them).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from scaling_algebra.spec.networks.language import Mode, Network, Product
from scaling_algebra.spec.optimizers import Optimizer, Trained
from scaling_algebra.verify.networks.contraction import Labelled, contract
from scaling_algebra.verify.networks.steppers import shrinkage

from .columns import CACHED, STEP, renamed, rms

HIDDEN = "Ā"
"""The first of the letters that summed letters of a second copy have."""


@dataclass(frozen=True)
class TrainedWeight:
    """A weight after some updates.

    Attributes:
        letters: index letters.
        now: W_t, shape (S, *letters).
        start: W_0, decayed as the optimizer decays it; None where gradients are kept instead.
        steps: tensors whose product is dW, with ``STEP`` summed.
        moved: has there been an update?
    """

    letters: str
    now: Tensor
    start: Tensor | None
    steps: tuple[Labelled, ...] = ()
    moved: bool = True

    def update(self, letters: str) -> list[Labelled]:
        """dW as a product of tensors, with these index letters; where gradients are kept."""
        return renamed(self.steps, self.letters, letters)

    def seen(self, cut: Callable[[str, Tensor], Tensor]) -> TrainedWeight:
        """Some entries, which ``cut`` takes of a tensor with these index letters."""
        start = None if self.start is None else cut(self.letters, self.start)
        steps = tuple((x, cut(x, t)) for x, t in self.steps)
        return TrainedWeight(self.letters, cut(self.letters, self.now), start, steps, self.moved)

    def signed(self, mode: Mode | None, letters: str) -> list[tuple[int, list[Labelled]]]:
        """W_0, the update, or the whole as a sum of products of tensors with these index letters, with their signs."""
        now = (1, [(letters, self.now)])
        if mode is None or not self.moved:
            return [now]
        if self.start is None:
            update = self.update(letters)
            return [(1, update)] if mode == "update" else [now, (-1, update)]
        start = [(letters, self.start)]
        return [(1, start)] if mode == "init" else [now, (-1, start)]

    def formed(self, mode: Mode | None) -> Tensor:
        """W_0, the update, or the whole, (S, *letters)."""
        if mode is None:
            return self.now
        sizes = dict(zip(self.letters, self.now.shape[1:], strict=True))
        if self.start is None:
            update = contract(self.steps, self.letters, sizes) if self.moved else torch.zeros_like(self.now)
            return update if mode == "update" else self.now - update
        return self.start if mode == "init" else self.now - self.start

    def still(self) -> TrainedWeight:
        """The weight as if it had not moved."""
        return TrainedWeight(self.letters, self.formed("init"), None, moved=False) if self.moved else self

    def update_size(self) -> Tensor:
        """Entry size of dW of each replica, (S,)."""
        if not self.moved:
            return self.now.new_zeros(len(self.now), dtype=torch.float64)
        if self.start is None:
            return size(self.steps, self.letters, self.now[0].numel())
        return rms_difference(self.now, self.start)


def size(operands: Sequence[Labelled], letters: str, entries: int) -> Tensor:
    """Root-mean-square of a product of tensors of each replica, (S,), which is not formed.

    Args:
        letters: of the product; all others are summed.
        entries: the number of them.
    """
    doubled = [(names, x.double()) for names, x in operands]
    summed = "".join(x for x in dict.fromkeys("".join(names for names, _ in operands)) if x not in letters)
    again = "".join(chr(ord(HIDDEN) + k) for k in range(len(summed)))
    square = contract([*doubled, *renamed(doubled, summed, again)], "", {})
    return (square.clamp(min=0) / entries).sqrt()


def rms_difference(a: Tensor, b: Tensor) -> Tensor:
    """Root-mean-square of ``a - b`` of each replica, (S,), with few entries formed at once."""
    if a.ndim == 1:
        return rms(a - b)
    together = max(1, CACHED // a[:, :1].numel())
    sizes = [
        torch.linalg.vector_norm((x - y).flatten(1), dim=1, dtype=torch.float64)
        for x, y in zip(a.split(together, 1), b.split(together, 1), strict=True)
    ]
    return torch.linalg.vector_norm(torch.stack(sizes), dim=0) / a[0].numel() ** 0.5


def linear(trained: Trained) -> bool:
    """Is every update a sum of past gradients with fixed coefficients, by one optimizer?"""
    return isinstance(trained, Optimizer) and not trained.normalises and not trained.decoupled_decay


class Coefficients:
    """The coefficient of each past gradient of a tensor in its update by a linear optimizer.

    They come from the optimizer itself: one more copy of it steps a vector with one entry for each past gradient, whose
    gradient at step s is the s-th unit vector. Nothing here knows the rule of the optimizer.

    Args:
        stepper: the optimizer, with the ``symbol`` of a tensor in every group.
        steps: number of updates to come.
    """

    def __init__(self, stepper: torch.optim.Optimizer, steps: int) -> None:
        groups = [{**group, "params": [group["params"][0].new_zeros(steps)]} for group in stepper.param_groups]
        again: Callable[..., torch.optim.Optimizer] = type(stepper)
        self._stepper, self._done = again(groups), 0

    def step(self) -> None:
        """After one update."""
        for group in self._stepper.param_groups:
            (unit,) = group["params"]
            unit.grad = torch.zeros_like(unit)
            unit.grad[self._done] = 1
        self._stepper.step()
        self._done += 1

    def of(self, symbol: str) -> Tensor:
        """The coefficients of a tensor, (updates done,)."""
        group = next(g for g in self._stepper.param_groups if g["symbol"] == symbol)
        coefficients: Tensor = group["params"][0][: self._done]
        return coefficients


class Updates:
    """The weights of a network and their updates so far, kept with the least memory: gradients as products of signals
    where the optimizer is linear in them and these are small, else the initial values.

    Decoupled decay, and the way back to a sphere, move initial values exactly as the optimizer moves the weights.

    Args:
        weights: by role.
        stepper: their optimizer, with the role as ``symbol`` in every group.
        steps: number of updates to come.
        keep: may earlier weights be read later on? That takes a copy of them for each step.
    """

    def __init__(
        self,
        network: Network,
        trained: Trained,
        weights: Mapping[str, Tensor],
        stepper: torch.optim.Optimizer,
        steps: int,
        keep: bool = False,
    ) -> None:
        self._network, self._weights, self._stepper, self._keep, self._steps = network, weights, stepper, keep, steps
        self.coefficients = Coefficients(stepper, steps) if linear(trained) else None
        self._trained = {group["symbol"] for group in stepper.param_groups}
        self._past: dict[str, list[list[Labelled]]] = {}
        self._start: dict[str, Tensor] = {}
        self._done = 0

    def step(self, gradients: Mapping[str, Sequence[Labelled]]) -> None:
        """One update of the weights.

        Args:
            gradients: that they have, by role, as products of tensors with the letters of the weight.
        """
        if not self._done:
            alone = _alone(self._network) if self.coefficients is not None else frozenset()
            for role in self._trained:
                if role in alone and self._thin(
                    self._network.tensors[role].letters, self._weights[role], gradients[role]
                ):
                    self._past[role] = []
                else:
                    self._start[role] = self._weights[role].detach().clone()
        self._stepper.step()
        if self._keep:
            self._start = dict(self._start)
        for group in self._stepper.param_groups:
            role = group["symbol"]
            if role in self._start and (group.get("weight_decay") or "kept" in group):
                decay = shrinkage(group)
                self._start[role] = self._start[role] * decay if self._keep else self._start[role].mul_(decay)
        for role, past in self._past.items():
            past.append(list(gradients[role]))
        if self.coefficients is not None:
            self.coefficients.step()
        self._done += 1

    def now(self) -> dict[str, TrainedWeight]:
        """Every weight as it is now."""
        return {role: self._weight(role, w.detach()) for role, w in self._weights.items()}

    def _weight(self, role: str, w: Tensor) -> TrainedWeight:
        letters, now = self._network.tensors[role].letters, w.clone() if self._keep else w
        if not self._done or role not in self._trained:
            return TrainedWeight(letters, now, now, moved=False)
        if role in self._start:
            return TrainedWeight(letters, now, self._start[role])
        assert self.coefficients is not None
        past = self._past[role]
        steps = [(STEP + x, torch.stack([g[k][1] for g in past], 1)) for k, (x, _) in enumerate(past[0])]
        along, first = steps[0]
        steps[0] = along, first * self.coefficients.of(role).view(1, -1, *[1] * (first.ndim - 2))
        return TrainedWeight(letters, now, None, tuple(steps))

    def _thin(self, letters: str, weight: Tensor, gradient: Sequence[Labelled]) -> bool:
        """Do the gradients of all steps take less than half the memory of a weight?"""
        kept = 2 * self._steps * sum(x[0].numel() for _, x in gradient)
        return kept < weight[0].numel() and all(set(x) <= set(letters) for x, _ in gradient)


def _alone(network: Network) -> frozenset[str]:
    """Roles of the tensors that are in one product, and never multiplied with another tensor."""
    once = {role for role in network.tensors if len(network.uses(role)) == 1}
    products = (s for s in network.statements if isinstance(s, Product))
    met = {x.name for s in products for term in network.terms(s) if len(term.tensors) > 1 for x in term.tensors}
    return frozenset(once - met)
