"""Bad input, made at random from a seed: for every verb, option, file and public function.

What an option cannot have follows from its type and from what its help calls its value (``VALUES``), so that a new
option has bad values, or fails a test. A case is wrong by construction (exit code 2, one line), or a good file with
random damage (any answer, but no fault of the program).
"""

from __future__ import annotations

import inspect
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import click

from scaling_algebra.cli import main
from scaling_algebra.commands.options import Count, Name

from .values import CODE, GOOD, PLAN, Maker


@dataclass(frozen=True)
class CommandCase:
    """Arguments of the command line; what stands in the environment; is the input wrong for certain?"""

    arguments: tuple[str, ...]
    environment: tuple[tuple[str, str], ...] = ()
    wrong: bool = True

    def __str__(self) -> str:
        shown = [x if len(x) < 80 else f"{x[:40]}...({len(x)} characters)" for x in self.arguments]
        return f"{dict(self.environment)} {shown}"


Kind = Callable[[Maker], str]
SIZED: Kind = lambda maker: maker.draw.choice([maker.base(), maker.read()])  # noqa: E731
VALUES: dict[str, Kind] = {
    **dict.fromkeys(("NAME", "TEXT", "AXIS", "AXES", "FILE.py:NAME"), Maker.text),
    **dict.fromkeys(("FILE.toml", "[FILE.toml]", "CONFIG.json", "SUM|NAME|FILE.toml"), Maker.read),
    **dict.fromkeys(("FILE", "FILE.smt2"), Maker.written),
    **dict.fromkeys(("DIR", "DIR|FILE"), Maker.place),
    **{"RATES": Maker.ray, "NAME=POWER": Maker.given, "SIZES": Maker.base, "SIZES|FILE.toml": SIZED},
    **{"[ROLE=]NUMBER": Maker.tuned, "FROM:TO": Maker.change, "QUANTITY[@t]": Maker.what, "WHAT": Maker.what},
    **{"MONOMIAL": Maker.sum, "RELATION": Maker.related, "VALUES": Maker.values, "B,T": Maker.text},
    **{"N,N,...": Maker.sizes, "SIZE": Maker.amount, "SHARE": Maker.share, "QUANTITY[@t]=EXPONENT": Maker.claim},
    **{"FIRST,LAST[,SPACING]": Maker.grid, "NAME|FILE": Maker.campaign, "DIR...": Maker.stored},
    **{"PATH": Maker.written, "ADDRESS|FILE": Maker.text, "I/N": Maker.text},
}
"""Bad values by what the help calls a value."""
OWN: dict[tuple[str, str], Kind] = {
    ("recipe", "hold"): Maker.rule,
    ("recipe", "decay"): Maker.decay,
    ("law", "minimise"): Maker.names,
    ("law", "grows"): Maker.names,
    ("law", "fixed"): Maker.names,
    ("law", "invert"): Maker.values,
    ("page", "output"): Maker.unpaged,
    ("study transfer", "settings"): Maker.setting,
    ("study limit", "lr"): Maker.amount,
    ("study transfer", "decay"): Maker.amount,
    ("study transfer", "rates"): Maker.setting,
    ("study transfer", "plot"): Maker.written,
    ("verify", "resume"): Maker.stored,
}
"""Of single options."""
WHERE = ("--regime", "I", "--optimizer", "sgd")
TRAINED = (*WHERE, "--parameterization", "sp", "--sizes", "8,12,18", "--seeds", "4")
LAW = ("moe-transformer", "--axis", "data")
VERBS: dict[str, tuple[str, ...]] = {
    "derive": ("--regime", "I"),
    "derive --prove": ("--regime", "I", "--parameterization", "mup"),
    "signals": ("--regime", "I"),
    "explain": ("h3", *WHERE),
    "explain --formula": ("h3@1", "--optimizer", "sgd"),
    "recipe": ("--base", "N=64,L=2", "--target", "N=128,L=2"),
    "rays": (),
    "rays --prove": (),
    "list": (),
    "law": LAW,
    "table": ("b1",),
    "audit": (),
    "audit --implementations": (),
    "audit --errata": (),
    "page": ("-o", "nowhere"),
    "verify": TRAINED,
    "verify --merge": ("none",),
    "study": ("epsilon",),
    "study transfer": ("--model", "nowhere.py:build"),
    "study limit": ("--regime", "I", "--optimizer", "sgd", "--parameterization", "mup"),
    "check-model": ("nowhere.py:build",),
}
"""Good arguments of every question."""
ALONE = {"--campaign", "--resume"}
"""Options that stand for all others."""
FREE = {("derive --prove", "output")}
FREE |= {("derive", "smtlib"), ("study", "names")}
"""What is wrong beside the arguments above for another reason, or not at all."""
QUICK = ("derive", "explain", "explain --formula", "law", "list", "recipe", "signals")
SLOW = {"help", "proving", "smtlib", "architecture"}
"""Verbs that answer good arguments within seconds, but with these options."""
INSTEAD = {"--ray": "--regime", "--base-hf": "--base", "--target-hf": "--target"}


def words(verb: str) -> tuple[str, ...]:
    """What comes before the arguments of a question."""
    return tuple(verb.split())


def command(verb: str) -> click.Command:
    """What answers a question."""
    first, *rest = words(verb)
    with main.get_command(None, first).make_context(first, [*rest, *VERBS[verb]], resilient_parsing=True) as context:
        return context.command


def parameters(verb: str) -> list[click.Parameter]:
    """What a question takes, flags apart."""
    return [p for p in command(verb).params if not getattr(p, "is_flag", False) and (verb, p.name) not in FREE]


def values(verb: str, p: click.Parameter) -> Kind | None:
    """Bad values of an option; None if nothing says what they are."""
    if (verb, p.name) in OWN:
        return OWN[verb, p.name]
    if isinstance(p.type, Count):
        least, most = p.type.least, p.type.most
        return lambda maker: maker.count(least, most)
    if isinstance(p.type, Name):
        return Maker.text
    return VALUES.get(p.metavar or "")


def option(maker: Maker) -> CommandCase:
    """One option, or argument, of one verb has a value that it cannot have."""
    verb = maker.draw.choice(list(VERBS))
    p = maker.draw.choice(parameters(verb))
    kind, usual = values(verb, p), list(VERBS[verb])
    assert kind is not None
    value, name = kind(maker), max(p.opts, key=len)
    if isinstance(p, click.Argument):
        usual = usual[1:] if usual and not usual[0].startswith("-") else usual
        return CommandCase((*words(verb), *usual, "--", value))
    if name in ALONE:
        return CommandCase((verb, f"{name}={value}"))
    for spelled in {INSTEAD.get(name, name), *p.opts}:
        if spelled in usual:
            del usual[usual.index(spelled) : usual.index(spelled) + 2]
    return CommandCase((*words(verb), *usual, f"{name}={value}"))


def word(maker: Maker) -> CommandCase:
    """A verb or an option that does not exist, or what is missing."""
    verb = maker.draw.choice([v.split()[0] for v in VERBS])
    wrong = [(maker.text(),), (verb, "--" + maker.text()), (verb, "--regime"), (verb, "-x"), ("derive", "x", "y")]
    wrong += [
        ("verify",),
        ("verify", "--merge"),
        ("table",),
        ("explain",),
        ("study", "transfer", "--grid"),
        ("derive", "--regime", "I", "I"),
    ]
    return CommandCase(maker.draw.choice(wrong))


def contradicting(maker: Maker) -> CommandCase:
    """What cannot be asked together."""
    rates = maker.draw.choice(["N=0,N_e=1,M=1", "N=0,N_e=0,M=1", "N=0,N_e=2,M=0"])
    verb = maker.draw.choice(["derive", "signals", "explain h3"])
    fixed = (*verb.split(), "--ray", rates, "--optimizer", "sgd", "--parameterization", "sp-feature")
    std = ("recipe", *VERBS["recipe"], "--std", maker.draw.choice(["gain=0.1", "bias=1", "final_gain=2"]))
    return CommandCase(maker.draw.choice([fixed, std]))


def damaged(maker: Maker) -> CommandCase:
    """A good file with random damage."""
    kind = maker.draw.choice(["network", "assumptions", "law", "plan"])
    if kind == "plan":
        folder = maker.inside(maker.damaged(json.dumps(PLAN)))
        return CommandCase(("verify", "--merge", folder, "-o", os.path.join(folder, "out.json")), wrong=False)
    read = maker.draw.choice([("list", "--network"), ("signals", *WHERE, "--steps", "1", "--network")])
    verb = {"network": read, "assumptions": ("law",), "law": ("law",)}[kind]
    return CommandCase((*verb, maker.file(maker.damaged(GOOD[kind]))), wrong=False)


def combined(maker: Maker) -> CommandCase:
    """Good options that nobody puts together, in an odd environment."""
    verb = maker.draw.choice(QUICK)
    arguments = list(VERBS[verb])
    for p in maker.draw.choices(command(verb).params, k=3):
        choices = getattr(p.type, "choices", ()) or getattr(p.type, "known", ())
        if p.name in SLOW:
            continue
        if getattr(p, "is_flag", False):
            arguments.append(maker.draw.choice([*p.opts, *p.secondary_opts]))
        elif isinstance(p.type, Count):
            arguments.append(f"{p.opts[0]}={p.type.least}")
        elif choices and not isinstance(p, click.Argument):
            arguments.append(f"{max(p.opts, key=len)}={maker.draw.choice(list(choices))}")
    odd = {"COLUMNS": "0 -1 x 1 999999", "MPLBACKEND": "x", "LC_ALL": "C xx", "TERM": "dumb x", "HOME": "/none"}
    name = maker.draw.choice(list(odd))
    return CommandCase((*words(verb), *arguments), ((name, maker.draw.choice(odd[name].split())),), wrong=False)


RECIPES: tuple[Callable[[Maker], CommandCase], ...] = (*[option] * 14, word, contradicting, *[damaged] * 5, combined)


# calls -----------------------------------------------------------------------------------------------------------

ODD: list[Any] = [object(), b"x", 1j, float("nan"), float("inf"), lambda: 1, print, {1: 2}, [[]], ..., *CODE]
ODD += ["\udcff", "x" * 10**6, "\0", Decimal("NaN"), 10**5000, range(3), Path("/dev/zero"), type, {1}, (_ for _ in ())]
"""What no argument can be."""
TEXTS = {"name", "title", "path"}
"""Arguments that may be any text, or, of files, are tried with files."""


def call(
    maker: Maker, functions: dict[str, tuple[Callable[..., Any], dict[str, Any]]]
) -> tuple[str, Callable[[], Any]]:
    """A public function with good arguments but one, which it cannot take.

    Args:
        functions: each with good arguments.
    """
    name = maker.draw.choice(list(functions))
    function, usual = functions[name]
    names = [
        x for x, p in inspect.signature(function).parameters.items() if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]
    odd = maker.draw.choice(sorted({*names, *usual} - {"self", "cls"}))
    value = maker.draw.choice([x for x in ODD if not (isinstance(x, str) and odd in TEXTS)])
    written = "10**5000" if value == 10**5000 else repr(value)[:200]
    return f"{name}({odd}={written})", lambda: function(**{**usual, odd: value})


def cases(maker: Maker, count: int) -> Iterator[CommandCase]:
    """Cases of every kind."""
    for _ in range(count):
        yield maker.draw.choice(RECIPES)(maker)
