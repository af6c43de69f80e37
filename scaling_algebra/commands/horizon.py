"""``scalecalc recipe`` without sizes: rates, epsilon, betas and decay by batch and number of tokens."""

from __future__ import annotations

import click

from scaling_algebra.errors import UsageError, unknown_name
from scaling_algebra.limits import real
from scaling_algebra.recipes import horizon as laws
from scaling_algebra.spec.configuration import DEFAULT_OPTIMIZER

from .options import Answer, Name, examples, printed

BASE = {"lr": "lr", "eps": "eps", "beta1": "one_minus_beta1", "beta2": "one_minus_beta2", "wd": "wd"}
BASE |= {"warmup": "warmup"}


@click.command(
    "recipe",
    epilog=examples(
        "scalecalc recipe --optimizer adamw --batch 256:1024 --tokens 20e9:200e9 --base lr=3e-3,beta2=0.95,wd=0.1",
        "scalecalc recipe --hold sde,sde-time",
    ),
)
@click.option(
    "--hold",
    metavar="NAME,NAME",
    help="Invariants that stay: sde, sde-time, bias, timescale, averages, half-life, loss, schedule, mup, or all; by "
    "default sde, timescale and schedule.",
)
@click.option(
    "--optimizer",
    type=Name("optimizer with invariants", laws.optimizers()),
    default=DEFAULT_OPTIMIZER,
    show_default=True,
    metavar="NAME",
    help="Optimizer.",
)
@click.option(
    "--axes", default="B,T", show_default=True, metavar="B,T", help="What changes: batch B, tokens T, or both."
)
@click.option("--batch", metavar="FROM:TO", help="Batch before and after, in any unit.")
@click.option("--tokens", metavar="FROM:TO", help="Tokens of the whole run before and after.")
@click.option("--base", metavar="NAME=X,...", help="Values before: lr, eps, beta1, beta2, wd, warmup.")
@click.option("--experts", is_flag=True, help="Also by what an expert under top-K differs, in K/M.")
@printed()
def command(
    hold: str | None,
    optimizer: str,
    axes: str,
    batch: str | None,
    tokens: str | None,
    base: str | None,
    experts: bool,
) -> tuple[Answer, int]:
    """Learning rate, epsilon, betas and weight decay when batch B and number of tokens T change.

    Invariants are monomials that stay Theta(1); what they determine, what they leave free and which of them contradict
    each other is solved exactly. Exit code 1: they contradict each other.
    """
    h = laws.horizon(optimizer, None if hold is None else _names(hold), _names(axes))
    values = {} if base is None else _base(base)
    numbers = None
    if not h.conflicts and any(x is not None for x in (batch, tokens, base)):
        factors = h.factors(change("batch", batch), change("tokens", tokens))
        numbers = {name: (factor, _after(name, factor, values)) for name, factor in factors.items()}
        for name in values:
            if name not in factors:
                raise UsageError(f"--base gives {name}, which {optimizer} does not have here; leave it out")
    return h.document(numbers, experts), 1 if h.conflicts else 0


def _names(text: str) -> list[str]:
    return [part.strip() for part in text.split(",")]


def change(label: str, text: str | None) -> tuple[float, float]:
    """``256:1024`` as two numbers; no change for None."""
    if text is None:
        return 1.0, 1.0
    try:
        before, after = (real(part) for part in text.split(":"))
    except (ValueError, OverflowError):
        raise UsageError(f"--{label} is {text!r}; give two numbers, as 256:1024") from None
    if not 0 < before < 1e30 or not 0 < after < 1e30 or max(before / after, after / before) > 1e30:
        raise UsageError(f"--{label} is {text!r}; give two positive numbers below 1e30")
    return before, after


def _base(text: str) -> dict[str, float]:
    """Values before, with 1 - beta for beta."""
    values: dict[str, float] = {}
    for part in _names(text):
        name, _, number = part.partition("=")
        if name not in BASE:
            raise unknown_name("base value", name, BASE)
        try:
            value = real(number)
        except (ValueError, OverflowError):
            raise UsageError(f"the base value {part!r} is no number; write for example {name}=0.1") from None
        value = 1 - value if name.startswith("beta") else value
        if not 0 < value < 1e30 or (name.startswith("beta") and value > 1):
            limits = "rates are above 0 and below 1e30, betas from 0 to below 1"
            raise UsageError(f"the base value {part!r} is out of range; {limits}")
        if BASE[name] in values:
            raise UsageError(f"--base gives {name} twice")
        values[BASE[name]] = value
    return values


def _after(name: str, factor: float, values: dict[str, float]) -> float | None:
    if name not in values:
        return None
    value = values[name] * factor
    if name.startswith("one_minus_beta") and value > 1:
        beta = name.removeprefix("one_minus_")
        raise UsageError(f"1 - {beta} would become {value:.4g}, above 1: so large a batch cannot keep what is held")
    return value
