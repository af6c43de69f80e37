"""``scalecalc recipe`` without sizes: learning rate, epsilon, betas and weight decay by batch and number of tokens."""

from __future__ import annotations

from collections.abc import Sequence

from scaling_algebra.arguments import parse_pairs
from scaling_algebra.documents import Document
from scaling_algebra.errors import UsageError, unknown_name_error
from scaling_algebra.limits import parse_real

BASE = {"lr": "lr", "eps": "eps", "beta1": "one_minus_beta1", "beta2": "one_minus_beta2", "wd": "wd"}
BASE |= {"warmup": "warmup"}


def answer_horizon(
    optimizer: str,
    hold: Sequence[str] | None,
    axes: str | None,
    batch: str | None,
    tokens: str | None,
    base: str | None,
    experts: bool,
) -> tuple[Document, int]:
    """Computes how learning rate, epsilon, betas and weight decay change with batch B and number of tokens T.

    Args:
        optimizer: the optimizer.
        hold: names of the invariants to keep; None for the default ones.
        axes: what changes: ``B``, ``T`` or ``B,T``.
        batch: ``FROM:TO``, in any unit.
        tokens: ``FROM:TO``, in any unit.
        base: tuned values, ``lr=3e-3,wd=0.1``.
        experts: also report each quantity for an expert, divided by that for a dense tensor, as a power of K/M.

    Returns:
        The answer and the exit code, 1 if the invariants are contradictory.
    """
    from scaling_algebra.recipes import horizon as laws

    h = laws.horizon(optimizer, hold, laws.AXES if axes is None else [part.strip() for part in axes.split(",")])
    values = {} if base is None else _parse_base(base)
    numbers = None
    if not h.conflicts and any(x is not None for x in (batch, tokens, base)):
        factors = h.factors(parse_change("batch", batch), parse_change("tokens", tokens))
        numbers = {name: (factor, _apply_factor(name, factor, values, h.compounds)) for name, factor in factors.items()}
        for name in values:
            if name not in factors:
                raise UsageError(f"--base has {name}, which no invariant of {optimizer} determines; leave it out")
    return h.document(numbers, experts), 1 if h.conflicts else 0


def parse_change(label: str, text: str | None) -> tuple[float, float]:
    """Parses ``256:1024`` to two numbers; (1, 1) for None.

    Args:
        label: the option, for messages.
        text: the text.
    """
    if text is None:
        return 1.0, 1.0
    try:
        before, after = (parse_real(part) for part in text.split(":"))
    except (ValueError, OverflowError):
        raise UsageError(
            f"--{label} is {text!r}; give the value at the base and at the target, such as 256:1024"
        ) from None
    if not 0 < before < 1e30 or not 0 < after < 1e30 or max(before / after, after / before) > 1e30:
        raise UsageError(f"--{label} is {text!r}; give two positive numbers below 1e30")
    return before, after


def _parse_base(text: str) -> dict[str, float]:
    """Parses tuned values ``lr=3e-3,beta2=0.95``; betas are returned as 1 - beta."""
    values: dict[str, float] = {}
    for name, number in parse_pairs("--base", text.split(","), "lr=3e-3,beta2=0.95").items():
        if name not in BASE:
            raise unknown_name_error("base value", name, BASE)
        try:
            value = parse_real(number)
        except (ValueError, OverflowError):
            raise UsageError(f"{name} in --base is {number!r}; give a number") from None
        value = 1 - value if name.startswith("beta") else value
        if not 0 < value < 1e30 or (name.startswith("beta") and value > 1):
            limits = "give a rate above 0 and below 1e30, or a beta of at least 0 and below 1"
            raise UsageError(f"{name} in --base is {number}; {limits}")
        values[BASE[name]] = value
    return values


def _apply_factor(name: str, factor: float, values: dict[str, float], compounds: bool) -> float | None:
    """Returns the value at the target of a setting that was tuned at the base; None if no tuned value was given.

    Args:
        name: the setting, such as ``lr``, or ``one_minus_beta2`` for 1 - beta2.
        factor: the factor by which it changes from base to target.
        values: tuned values, by setting.
        compounds: True if a beta is to be raised to the power ``factor``, instead of 1 - beta being multiplied by it.
    """
    if name not in values:
        return None
    if compounds and name.startswith("one_minus_beta"):
        return 1.0 - float((1 - values[name]) ** factor)
    value = values[name] * factor
    if name.startswith("one_minus_beta") and value > 1:
        beta = name.removeprefix("one_minus_")
        raise UsageError(
            f"the target's 1 - {beta} would be {value:.4g}, above 1: the batch grows too much to keep these "
            "invariants; choose a smaller target for --batch, or other invariants (--hold)"
        )
    return value
