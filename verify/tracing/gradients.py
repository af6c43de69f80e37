"""Which parameters of a module train: by ``requires_grad``, and by a gradient of the output, which the reading of the
forward pass does not see.

Read next: ``models.py`` (who asks), ``verify/apply/planning.py`` (refuses what is to train and cannot).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from scaling_algebra.errors import UsageError
from scaling_algebra.spec.optimizer_reading import parameter_of

from .recording import find_output, leaves

FROZEN = "frozen: no rate"
UNREACHED = "no gradient of the output gets there: taken as frozen"
ZERO = "the gradient is exactly zero at this input, whatever the weights; derived as if trained"
NO_GRADIENT = "no gradient of what the module returns gets there: no numbers"
TRAINING = "it acts in training mode alone, or in a loss beside the output, which is not read"
"""What is said of a parameter that trains, and that the output in evaluation mode does not depend on."""
MIXED = "frozen in some layers or experts alone; derived as if all trained"
NAMED = 6
"""Parameters that a line names."""


def roles_of(names: Iterable[str], roles: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Of every parameter of a module the roles that a reading has for it: one, or one for each of its parts.

    Examples:
        >>> roles_of(["experts.3.up", "qkv", "spare"], ["experts.*.up", "qkv[0]", "qkv[1]"])
        {'experts.3.up': ('experts.*.up',), 'qkv': ('qkv[0]', 'qkv[1]'), 'spare': ()}
    """
    patterns = {role: re.escape(parameter_of(role)).replace(r"\*", r"\d+") for role in roles}
    return {name: tuple(r for r, pattern in patterns.items() if re.fullmatch(pattern, name)) for name in names}


def explain_untrained(model: nn.Module, run: Callable[[nn.Module], Any]) -> dict[str, str]:
    """Of every parameter why it does not train, or "".

    Law: the gradient of a random sum of the output, at weights that were moved at random, so that no initial value
    makes it zero.

    Args:
        run: what the module returns, with gradients.

    Raises:
        UsageError: no parameter trains.
    """
    named = dict(model.named_parameters())
    found = {name: "" if p.requires_grad else FROZEN for name, p in named.items()}
    learn = [name for name, state in found.items() if not state]
    draw = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in (named[name] for name in learn):
            size = float(p.square().mean().sqrt()) or 0.1
            p.add_(torch.randn(p.shape, generator=draw, dtype=p.dtype), alpha=size)
    with torch.enable_grad():
        out = find_output(run(model.eval()))
        weights = torch.randn(out.shape, generator=draw, dtype=out.dtype)
        if not learn or not out.requires_grad:
            why = "every parameter is frozen" if not learn else "no gradient of the output reaches a parameter"
            raise UsageError(f"model: {why}, so that nothing trains")
        grads = torch.autograd.grad((out * weights).sum(), [named[x] for x in learn], allow_unused=True)
        found |= {
            name: UNREACHED if grad is None else "" if bool(grad.any()) else ZERO
            for name, grad in zip(learn, grads, strict=True)
        }
        return found | dict.fromkeys(
            _find_trained_otherwise(model, [x for x in learn if found[x] == UNREACHED], run), TRAINING
        )


def _find_trained_otherwise(model: nn.Module, names: Sequence[str], run: Callable[[nn.Module], Any]) -> list[str]:
    """Those of some parameters that a gradient of anything that the module returns in training mode reaches."""
    named = dict(model.named_parameters())
    try:
        outs = [x.sum() for x in leaves(run(model.train()), torch.Tensor) if x.requires_grad] if names else []
        grads = torch.autograd.grad(outs, [named[x] for x in names], allow_unused=True) if outs else []
    except Exception:  # a module that does not run so trains otherwise, and nothing is known of it
        return []
    return [x for x, grad in zip(names, grads, strict=False) if grad is not None]


def explain_missing(found: Mapping[str, str], roles: Sequence[str]) -> dict[str, str]:
    """Of every parameter that a reading has no role for why it has no numbers."""
    of = roles_of(found, roles)
    return {name: x if x in (FROZEN, TRAINING) else NO_GRADIENT for name, x in found.items() if not of[name]}


def frozen_roles(found: Mapping[str, str], roles: Sequence[str]) -> tuple[list[str], list[tuple[str, str]]]:
    """The roles of which no parameter trains; and of all that does not train what is said, as (names, note).

    Args:
        found: as ``states`` has it.
    """
    of, still = roles_of(found, roles), {FROZEN, UNREACHED}
    by_role: dict[str, set[str]] = {}
    said: dict[str, dict[str, None]] = {}
    for name, state in found.items():
        for role in of[name]:
            by_role.setdefault(role, set()).add(UNREACHED if state == TRAINING else state)
    for name, note in explain_missing(found, roles).items():
        if note != FROZEN:
            said.setdefault(note, {})[name] = None
    for role, all_of in by_role.items():
        note = all_of.copy().pop() if len(all_of) == 1 or all_of <= still else MIXED if all_of & still else ""
        if note:
            said.setdefault(note, {})[role] = None
    frozen = [role for role, all_of in by_role.items() if all_of <= still]
    return frozen, [(join_names(names), note) for note, names in said.items()]


def join_names(names: Iterable[str]) -> str:
    """Names in a line, the first few."""
    names = list(names)
    return ", ".join(names[:NAMED]) + (f" and {len(names) - NAMED} more" if names[NAMED:] else "")
