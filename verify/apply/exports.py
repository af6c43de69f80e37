"""A plan in the format of a trainer: ``export``. What a format cannot carry stops it, unless it may be dropped.

Formats as read in the trainers' public code; names are those of the module that the plan was made of. A pattern matches
exactly the parameters of one group; numbers in names (layers, experts) are any number where that takes in no other.
Adding a trainer: a file in ``trainers/`` and its entry in ``FORMATS``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

import jinja2

from scaling_algebra.errors import UsageError, named, unknown_name
from scaling_algebra.spec.optimizers import Optimizer

from .modules import Entry

WHAT = ("lr", "eps", "wd", "init", "multiplier")
"""What a plan says; every format carries some of it."""
ADJUSTED = ("original", "match_rms_adamw")
"""Factors of a matrix's shape that ``torch.optim.Muon`` has."""
EMBEDDED = ("embed_tokens", "lm_head")
"""Parts of names that axolotl trains with ``embedding_lr``, whatever ``lr_groups`` say."""


@dataclass(frozen=True)
class ParameterGroup:
    """Parameters with the same numbers, and what trains them.

    Attributes:
        others: names of all other parameters. experts: one for each. tied: all of them start alike.

    Raises:
        UsageError: of every number: nothing was tuned at the base.
    """

    name: str
    optimizer: Optimizer
    entries: Sequence[Entry]
    others: Sequence[str]
    experts: bool
    tied: bool

    @property
    def names(self) -> list[str]:
        return [e.name for e in self.entries]

    def value(self, what: str) -> float:
        """The number to set: ``lr``, ``eps``, ``decay`` or ``init_std``."""
        number = self.entries[0].settings[what].target
        if number is None:
            option = {"init_std": "std"}.get(what, what)
            raise UsageError(f"{self.name} has no {what} at the base; give plan(..., {option}=NUMBER)")
        return number

    @property
    def std(self) -> float:
        """The standard deviation of the initial values, or 0."""
        return 0.0 if self.fill is not None else self.value("init_std")

    @property
    def fill(self) -> float | None:
        """The value that every entry starts with, if they start alike."""
        return self.entries[0].fill

    @property
    def numbers(self) -> dict[str, float]:
        """``lr``, ``eps`` and ``weight_decay``, as torch's optimizers name them; no decay where none was tuned."""
        settings = self.entries[0].settings
        values = {what: self.value(what) for what in ("lr", "eps") if what in settings}
        if "decay" in settings:
            values["weight_decay"] = 0.0 if settings["decay"].base is None else self.value("decay")
        return values

    @property
    def keywords(self) -> dict[str, float | str]:
        """The numbers, and the factor of the shape as ``torch.optim.Muon`` takes it."""
        shape = self.optimizer.shape
        return {**self.numbers, **({"adjust_lr_fn": shape} if shape in ADJUSTED else {})}

    @property
    def start(self) -> tuple[str, float]:
        """The initial values for a format that draws them."""
        if self.tied:
            raise UsageError(f"{self.name} starts alike for all experts, which this format cannot say; use plan.init_")
        return ("normal", self.std) if self.std else ("fill", self.fill or 0.0)

    def torch_name(self, muon: bool = False) -> str:
        """The class of the optimizer."""
        classes = {"adam": "AdamW", "adamw": "AdamW", "sgd": "SGD"} | {f"muon:{x}": "Muon" for x in ADJUSTED if muon}
        name = self.optimizer.name
        if name not in classes:
            raise UsageError(f"{name} is no optimizer that this format names; it has {', '.join(classes)}")
        return classes[name]


Groups = Sequence[ParameterGroup]


@dataclass(frozen=True)
class Format:
    """The format of a trainer: the numbers of a plan that it carries, and how it matches names.

    Attributes:
        mixed: does it name an optimizer by group? module: is it a file of Python, not lines to paste?
    """

    carries: tuple[str, ...]
    patterns: Callable[[ParameterGroup], list[str]]
    mixed: bool = False
    module: bool = False


def export(form: str, about: str, groups: Groups, multiplied: bool, dropping: Sequence[str]) -> str:
    """See ``Plan.export``; ``multiplied``: is a multiplier left to the model?"""
    chosen = named("format", form, FORMATS)
    for what in dropping:
        if what not in WHAT:
            raise unknown_name("number to drop", str(what), WHAT)
    optimizers = list(dict.fromkeys(group.optimizer.name for group in groups))
    if len(optimizers) > 1 and not chosen.mixed:
        listed = " and ".join(optimizers)
        raise UsageError(f"{form} takes one optimizer, and {listed} train this model; take torchtitan, or param_groups")
    numbers = [group.numbers for group in groups]
    needed = {"eps": any("eps" in x for x in numbers), "wd": any(x.get("weight_decay") for x in numbers)}
    needed["multiplier"] = multiplied
    lost = [what for what in WHAT if needed.get(what, True) and what not in (*chosen.carries, *dropping)]
    if lost:
        listed = ", ".join(f"'{what}'" for what in lost)
        raise UsageError(
            f"{form} cannot carry {', '.join(lost)}; set {'it' if len(lost) == 1 else 'them'} in the model's or the "
            f"trainer's code (plan.init_, plan.param_groups, plan.multipliers), then give dropping=({listed},)"
        )
    template = TRAINERS.get_template(f"{form.lower()}.j2")
    embedded = [x for x in groups if any(part in name for name in x.names for part in EMBEDDED)]
    vectors = [x for x in groups if x.fill is not None]
    text = template.render(form=form.lower(), groups=groups, match=chosen.patterns, embedded=embedded, vectors=vectors)
    return f"# {about}\n{text if chosen.module else text.rstrip()}"


def _raw(pattern: str) -> str:
    return repr(pattern) if '"' in pattern or "\n" in pattern else f'r"{pattern}"'


def _schedule(numbers: dict[str, float]) -> dict[str, float]:
    """Megatron's names: a schedule runs from max_lr, and min_lr stays the trainer's."""
    names = {"lr": ["max_lr"], "weight_decay": ["start_wd", "end_wd"], "eps": ["eps"]}
    return {key: numbers[what] for what, keys in names.items() if what in numbers for key in keys}


def _one_rate(groups: Groups, what: str) -> float | None:
    """The learning rate of groups that axolotl does not tell apart; None where there are none."""
    rates = {group.name: group.numbers["lr"] for group in groups}
    if len(set(rates.values())) > 1:
        listed = ", ".join(f"{name} {lr:.3g}" for name, lr in rates.items())
        raise UsageError(
            f"axolotl gives {what} one learning rate, but they have {listed}; take another form, such as hf"
        )
    return next(iter(rates.values()), None)


def _row(group: ParameterGroup, form: str) -> dict[str, object]:
    """A group of torch's; DeepSpeed's own expert parallelism wants ``moe`` on those of experts."""
    named = {"name": group.name, "pattern": expressions(group)[0], **group.numbers}
    if form == "hf":
        return {**named, "init": group.start}
    return {**named, "moe": True} if group.experts else named


def expressions(group: ParameterGroup) -> list[str]:
    """One regular expression for ``re.search``."""
    parts = _general(group, lambda x: _numbered(re.escape(x), r"\d+", r"\."), re.escape, re.fullmatch)
    return [f"^({'|'.join(parts)})$" if len(parts) > 1 else f"^{parts[0]}$"]


def globs(group: ParameterGroup) -> list[str]:
    """Globs as of ``fnmatch``."""
    return _general(group, lambda x: _numbered(x, "*", "."), str, lambda g, name: fnmatchcase(name, g))


def substrings(group: ParameterGroup) -> list[str]:
    """Parts of names, each in names of this group only: what follows the number of a layer, else the whole name."""
    return _general(group, lambda x: re.split(r"\.\d+\.", x)[-1], str, lambda part, name: part in name)


def _numbered(name: str, number: str, dot: str) -> str:
    return dot.join(number if part.isdigit() else part for part in name.split(dot))


def _general(
    group: ParameterGroup,
    general: Callable[[str], str],
    plain: Callable[[str], str],
    matches: Callable[[str, str], object],
) -> list[str]:
    """The general form of every name where it matches none of others; else the name itself. A name that is matched
    already has none of its own: it would find nothing left, which some trainers refuse.

    Raises:
        UsageError: not even the name itself tells them apart.
    """
    patterns: list[str] = []
    for name in group.names:
        if any(matches(pattern, name) for pattern in patterns):
            continue
        forms = [x for x in (general(name), plain(name)) if not any(matches(x, other) for other in group.others)]
        if not forms:
            raise UsageError(f"no pattern tells {name} from parameters of other roles; rename it, or take another form")
        patterns.append(forms[0])
    return patterns


TRAINERS = jinja2.Environment(
    loader=jinja2.FileSystemLoader(Path(__file__).with_name("trainers")),
    trim_blocks=True,
    keep_trailing_newline=True,
    undefined=jinja2.StrictUndefined,
)
"""What each trainer reads, as a template."""
TRAINERS.globals.update(json=json.dumps, tuple=tuple, raw=_raw, row=_row, schedule=_schedule, one_rate=_one_rate)
FORMATS = {
    "torchtitan": Format(("lr", "eps", "wd"), expressions, mixed=True),
    "megatron": Format(("lr", "eps", "wd"), globs),
    "olmo-core": Format(("lr", "eps", "wd"), globs),
    "hf": Format(("lr", "eps", "wd", "init"), expressions, module=True),
    "nemo-automodel": Format(("lr", "wd"), expressions),
    "axolotl": Format(("lr",), substrings),
    "deepspeed": Format(("lr", "eps", "wd"), expressions, module=True),
}
"""Every format, by name."""
