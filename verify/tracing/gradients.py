"""Finds the parameters of a module that do not train: by ``requires_grad``, and by a gradient of the output.

Reading the forward pass does not show this. Read next: ``models.py`` (uses it), ``verify/apply/planning.py`` (refuses
parameters that should train and cannot).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from scaling_algebra.errors import UsageError
from scaling_algebra.spec.optimizer_reading import parameter_of

from .recording import find_output, iterate_leaves

FROZEN = "frozen: no rate"
UNREACHED = "it receives no gradient from the output and is treated as frozen"
ZERO = "its gradient is exactly zero at this input for all weights; its numbers are derived as if it trained"
NO_GRADIENT = "it receives no gradient from the module's output; no numbers are given"
TRAINING = "it acts only in training mode, or in a loss other than the output; that part of the module is not read"
"""The note on a parameter that trains although the output in evaluation mode does not depend on it."""
MIXED = "frozen in only some layers or experts; its numbers are derived as if all trained"
MAX_LISTED_NAMES = 6
"""Maximum number of parameters that one line names."""


def match_roles(names: Iterable[str], roles: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Finds the names that each parameter of a module has in the network read from it.

    It is one name, or one for each part that is read separately; none if the network lacks the parameter.

    Args:
        names: the names of parameters in the module.
        roles: the names of tensors in the network.

    Examples:
        >>> match_roles(["experts.3.up", "qkv", "spare"], ["experts.*.up", "qkv[0]", "qkv[1]"])
        {'experts.3.up': ('experts.*.up',), 'qkv': ('qkv[0]', 'qkv[1]'), 'spare': ()}
    """
    patterns = {role: re.escape(parameter_of(role)).replace(r"\*", r"\d+") for role in roles}
    return {name: tuple(r for r, pattern in patterns.items() if re.fullmatch(pattern, name)) for name in names}


def explain_untrained(model: nn.Module, run: Callable[[nn.Module], Any]) -> dict[str, str]:
    """Returns for every parameter the reason why it does not train, or "" if it does.

    A parameter trains if the gradient of a random sum of the output's entries reaches it. The weights are perturbed
    at random first, so that no initial value makes the gradient zero; ``model`` keeps these weights.

    Args:
        model: the module.
        run: calls the module and returns its result, with gradients.

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
            why = "every parameter is frozen" if not learn else "no parameter receives a gradient from the output"
            raise UsageError(f"model: {why}, so nothing trains; set requires_grad, or let forward use the parameters")
        grads = torch.autograd.grad((out * weights).sum(), [named[x] for x in learn], allow_unused=True)
        found |= {
            name: UNREACHED if grad is None else "" if bool(grad.any()) else ZERO
            for name, grad in zip(learn, grads, strict=True)
        }
        return found | dict.fromkeys(
            _find_trained_otherwise(model, [x for x in learn if found[x] == UNREACHED], run), TRAINING
        )


def _find_trained_otherwise(model: nn.Module, names: Sequence[str], run: Callable[[nn.Module], Any]) -> list[str]:
    """Returns which of some parameters get a gradient from any tensor that the module returns in training mode.

    These train although the output in evaluation mode gives them no gradient. The list is empty if the module does not
    run in training mode.

    Args:
        model: the module.
        names: the parameters in question.
        run: calls the module and returns its result, with gradients.
    """
    named = dict(model.named_parameters())
    try:
        outs = [x.sum() for x in iterate_leaves(run(model.train()), torch.Tensor) if x.requires_grad] if names else []
        grads = torch.autograd.grad(outs, [named[x] for x in names], allow_unused=True) if outs else []
    except Exception:  # the module does not run like this in training mode, so nothing is known
        return []
    return [x for x, grad in zip(names, grads, strict=False) if grad is not None]


def explain_missing(found: Mapping[str, str], roles: Sequence[str]) -> dict[str, str]:
    """Returns, for each parameter of a module that is not in the network, why it gets no init std and learning rate.

    Args:
        found: for every parameter of the module, the result of ``explain_untrained``.
        roles: the names of tensors in the network that was read from the module.
    """
    of = match_roles(found, roles)
    return {name: x if x in (FROZEN, TRAINING) else NO_GRADIENT for name, x in found.items() if not of[name]}


def find_frozen_roles(found: Mapping[str, str], roles: Sequence[str]) -> tuple[list[str], list[tuple[str, str]]]:
    """Finds the tensors of the network read from a module that do not train.

    A tensor of the network may stand for the parameters of all layers or experts; it is frozen if none of them trains.

    Args:
        found: the result of ``explain_untrained``.
        roles: the names of tensors in the network.

    Returns:
        The names of the frozen tensors, and notes on all parameters that do not train, as (names, note).
    """
    of, still = match_roles(found, roles), {FROZEN, UNREACHED}
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
    """Joins names with commas: the first few, and how many more there are."""
    names = list(names)
    return ", ".join(names[:MAX_LISTED_NAMES]) + (
        f" and {len(names) - MAX_LISTED_NAMES} more" if names[MAX_LISTED_NAMES:] else ""
    )
