"""Writes a plan in the configuration format of a trainer: ``export``.

A number that the format cannot carry is an error, unless the caller agrees to drop it. The formats follow the trainers'
public code; parameter names are those of the planned module. A pattern matches exactly the parameters of one group, and
numbers in names (layers, experts) become wildcards where this matches no other group. To add a trainer, add a writer
and its entry in ``FORMATS``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any

from scaling_algebra.errors import UsageError, find_entry, unknown_name_error
from scaling_algebra.recipes.settings import Setting
from scaling_algebra.spec.optimizers import Optimizer

from .modules import Entry
from .parts import describe_parts

WHAT = ("lr", "eps", "wd", "init", "multiplier")
"""The kinds of numbers in a plan; every format carries some of them."""
STACKS = "stacks of matrices; torch.optim.Muon takes single ones, that of microsoft/dion or KellerJordan/Muon stacks"
FILTERS = (
    "filters of convolutions; torch.optim.Muon takes matrices alone, and KellerJordan/Muon steps a filter of four "
    "dimensions as one matrix (out, in k k) without the factor of its shape; make it (out, in k k) before the step"
)
"""Notes for groups of stacks and of convolution filters that Muon trains."""
ADJUSTED = ("original", "match_rms_adamw")
"""Names of the shape factors that ``torch.optim.Muon`` supports."""


@dataclass(frozen=True)
class ParameterGroup:
    """Parameters with the same optimizer, learning rate and other numbers.

    Properties that return such a number raise ``UsageError`` where none was given for the base, or where parts of one
    parameter (such as query and key in one matrix) have different numbers.

    Attributes:
        name: name of the group.
        optimizer: the optimizer that trains it.
        entries: its parameters.
        others: names of all parameters outside the group.
        tied: whether all experts have the same initial values.
        patterns: names of its parameters in a trainer's own module, with ``*`` for numbers; if empty, the names in the
            model apply.
    """

    name: str
    optimizer: Optimizer
    entries: Sequence[Entry]
    others: Sequence[str]
    tied: bool
    patterns: tuple[str, ...] = ()

    @property
    def rules(self) -> dict[str, Optimizer]:
        """The optimizers of the group by name: usually one; several if parts of a parameter have different ones."""
        return {rule.name: rule for rule in self.entries[0].rules.values()}

    @property
    def names(self) -> list[str]:
        return [e.name for e in self.entries]

    def value(self, what: str) -> float:
        """Returns the number named ``what`` (``lr``, ``eps``, ``decay`` or ``init_std``) at the target.

        Raises:
            UsageError: the parts of a parameter differ in it, or none was given for the base.
        """
        if what not in self.entries[0].settings:
            raise UsageError(f"{self.name}: its parts differ in {what}; {self.entries[0].apart}")
        return self._number(what, self.entries[0].settings[what])

    def _number(self, what: str, setting: Setting) -> float:
        if (number := setting.target) is None:
            option = {"init_std": "std"}.get(what, what)
            raise UsageError(f"{self.name} has no {what} at the base; give plan(..., {option}=NUMBER)")
        return number

    @property
    def std(self) -> float:
        """The standard deviation of the initial values, or 0 where none are drawn."""
        first = self.entries[0]
        return 0.0 if first.kept or self.fill is not None else self.value("init_std")

    @property
    def stds(self) -> dict[str, float]:
        """Init std by part, where parts are initialised separately; otherwise that of the parameter under the name
        ""."""
        first = self.entries[0]
        if self.fill is not None or "init_std" in first.settings or not first.spans:
            return {"": self.std}
        return {part: self._number("init_std", s["init_std"]) for part, s in first.parts.items()}

    @property
    def rates(self) -> dict[str, float]:
        """Learning rate by part, where parts have different ones; otherwise that of the parameter under the name ""."""
        first = self.entries[0]
        if "lr" in first.settings or not first.spans or len(self.rules) > 1:
            return {"": self.numbers["lr"]}
        return {part: self._number("lr", s["lr"]) for part, s in first.parts.items()}

    @property
    def fill(self) -> float | None:
        """The common initial value of all entries; None if they differ."""
        return self.entries[0].fill

    @property
    def numbers(self) -> dict[str, float]:
        """``lr``, ``eps`` and ``weight_decay``, named as in torch's optimizers; the decay is 0 where none was tuned."""
        settings = self.entries[0].settings
        if len(self.rules) > 1:
            raise UsageError(f"{self.name}: {' and '.join(self.rules)} train its parts; {self.entries[0].apart}")
        has = set(settings).union(*self.entries[0].parts.values())
        values: dict[str, float] = {what: self.value(what) for what in ("lr", "eps") if what in has}
        if "decay" in has:
            values["weight_decay"] = (
                0.0 if "decay" in settings and settings["decay"].base is None else self.value("decay")
            )
        return values

    @property
    def keywords(self) -> dict[str, float | str]:
        """Keywords of the torch optimizer: ``numbers``, and ``adjust_lr_fn`` if the step has a factor for the shape of
        the matrix that ``torch.optim.Muon`` supports.
        """
        shape = self.optimizer.shape
        return {**self.numbers, **({"adjust_lr_fn": shape} if shape in ADJUSTED else {})}

    @property
    def torch_name(self) -> str:
        """Name of the optimizer's class in torch.optim."""
        classes = {"adam": "AdamW", "adamw": "AdamW", "sgd": "SGD", **{f"muon:{x}": "Muon" for x in ADJUSTED}}
        name = self.optimizer.name
        if name not in classes:
            raise UsageError(f"this format does not support the optimizer {name}; choose one of {', '.join(classes)}")
        return classes[name]


Groups = Sequence[ParameterGroup]


@dataclass(frozen=True)
class Format:
    """The configuration format of a trainer.

    Attributes:
        carries: the kinds of numbers that it has room for, such as "lr" and "wd".
        lines: writes parameter groups as lines of text.
        mixed: whether each group may have an optimizer of its own.
        own: an example of a parameter name in the trainer's own modules, if they name parameters otherwise than the
            library transformers; or "".
    """

    carries: tuple[str, ...]
    lines: Callable[[Groups], Iterator[str]]
    mixed: bool = False
    own: str = ""


def export(
    form: str,
    about: str,
    groups: Groups,
    multiplied: bool,
    dropping: Sequence[str],
    foreign: str = "",
    names: Mapping[str, str | Sequence[str]] | None = None,
) -> str:
    """Returns a plan as text in the format of a trainer (see ``Plan.export``).

    Args:
        form: name of the format.
        about: heading, written as a comment.
        groups: the parameter groups.
        multiplied: whether the model's code has to apply a multiplier.
        dropping: kinds of numbers that may be left out, although the format has no room for them.
        foreign: the class name if the model is one of the library transformers, else "".
        names: by group, the names of its parameters in the trainer's module, if they differ from those in the model.

    Raises:
        UsageError: the format cannot carry a number that is needed, or has other parameter names.
    """
    chosen = find_entry("format", form, FORMATS)
    if names is not None:
        groups = _rename_groups(groups, names)
    elif foreign and chosen.own:
        said = f"parameters are named as in {foreign}, and {form} has modules of its own ({chosen.own})"
        do = f"plan {form}'s own module, or give names={{{groups[0].name!r}: NAME, ...}} with a name for each group"
        raise UsageError(f"{said}; {do}")
    for what in dropping:
        if what not in WHAT:
            raise unknown_name_error("number to drop", str(what), WHAT)
    optimizers = list(dict.fromkeys(name for group in groups for name in group.rules))
    if len(optimizers) > 1 and not chosen.mixed:
        listed = " and ".join(optimizers)
        raise UsageError(
            f"{form} supports one optimizer, but this plan uses {listed}; export to torchtitan, or use "
            "plan.param_groups"
        )
    numbers = [group.numbers for group in groups]
    needed = {"eps": any("eps" in x for x in numbers), "wd": any(x.get("weight_decay") for x in numbers)}
    needed["multiplier"] = multiplied
    lost = [what for what in WHAT if needed.get(what, True) and what not in (*chosen.carries, *dropping)]
    if lost:
        listed = ", ".join(f"'{what}'" for what in lost)
        fold = "; plan(..., fold=True) puts a multiplier into the parameters" if "multiplier" in lost else ""
        raise UsageError(
            f"{form} cannot carry {', '.join(lost)}; set {'it' if len(lost) == 1 else 'them'} in the model's or the "
            f"trainer's code (plan.init_, plan.param_groups, plan.multipliers), then give dropping=({listed},){fold}"
        )
    apart = [describe_parts(group.entries[0]) for group in groups if group.entries[0].parts]
    decays = [group.entries[0].settings["decay"].base for group in groups if "decay" in group.entries[0].settings]
    if decays and all(x is None for x in decays):
        apart.append("weight decay is 0, since none was given: plan(..., decay=NUMBER)")
    apart += [
        f"{g.name}: {note}"
        for g in groups
        if g.optimizer.torch == "Muon" and (note := describe_matrix_shape(g.entries[0]))
    ]
    return "\n".join([*(f"# {x}" for x in (about, *apart)), *chosen.lines(groups)])


def _rename_groups(groups: Groups, names: Mapping[str, str | Sequence[str]]) -> list[ParameterGroup]:
    """Returns the groups under the names of a trainer's module. Groups that are one tensor there (for example query,
    key and value) become one.

    Raises:
        UsageError: a group without a name, a name of no group, or one tensor with two learning rates or decays.
    """
    known = {group.name: group for group in groups}
    for name in names:
        if name not in known:
            raise unknown_name_error("group in names", str(name), known)
    if lacking := [name for name in known if name not in names]:
        raise UsageError(f"names leaves out {lacking[0]}; give each of the {len(known)} groups of the plan a name")
    found: dict[tuple[str, ...], ParameterGroup] = {}
    for name, given in names.items():
        patterns = (given,) if isinstance(given, str) else tuple(given)
        first = found.setdefault(patterns, replace(known[name], patterns=patterns))
        if first.numbers != known[name].numbers:
            what = next(x for x, number in known[name].numbers.items() if first.numbers.get(x) != number)
            raise UsageError(
                f"{first.name} and {name} have the same name {patterns[0]} but differ in {what}; give them different "
                "names"
            )
    return [*found.values()]


def _write_torchtitan(groups: Groups) -> Iterator[str]:
    yield "optimizers = OptimizersContainer.Config("
    yield "    param_groups=["
    for g in groups:
        pattern = build_regex(g)
        raw = repr(pattern) if '"' in pattern or "\n" in pattern else f'r"{pattern}"'
        keywords = f"optimizer_kwargs={g.keywords}"
        yield f'        ParamGroupConfig(pattern={raw}, optimizer_name="{g.torch_name}", {keywords}),'
    yield "    ]"
    yield ")"


def _write_megatron(groups: Groups) -> Iterator[str]:
    """Yields the lines of Megatron's overrides of optimizer settings by parameter. They set max_lr, the maximum of the
    schedule; min_lr stays as the trainer sets it.
    """
    names = {"lr": ["max_lr"], "weight_decay": ["start_wd", "end_wd"], "eps": ["eps"]}
    yield "config_overrides = {"
    for g in groups:
        schedule = {key: g.numbers[what] for what, keys in names.items() if what in g.numbers for key in keys}
        yield f"    ParamKey(name={tuple(build_globs(g))}): {schedule},  # {g.name}"
    yield "}"


def _write_olmo_core(groups: Groups) -> Iterator[str]:
    yield "group_overrides = ["
    for g in groups:
        yield f"    OptimGroupOverride(params={build_globs(g)}, opts={g.numbers}),  # {g.name}"
    yield "]"


def _write_nemo_automodel(groups: Groups) -> Iterator[str]:
    """Yields the lines of NeMo AutoModel's overrides by parameter, which are factors on the optimizer's global learning
    rate and weight decay.
    """
    lr, wd = (max(g.numbers.get(what, 0.0) for g in groups) for what in ("lr", "weight_decay"))
    yield from ("optimizer:", f"  lr: {lr}", f"  weight_decay: {wd}", "  param_group_overrides:")
    for g in groups:
        yield f"    - pattern: {json.dumps(build_regex(g))}  # {g.name}"
        yield f"      lr_mult: {g.numbers['lr'] / lr}"
        if wd:
            yield f"      wd_mult: {g.numbers['weight_decay'] / wd}"


def describe_matrix_shape(e: Entry) -> str:
    """Returns a note on how a matrix optimizer treats a stack of matrices or a convolution filter.

    The note is empty for any other parameter or optimizer.
    """
    return "" if not e.stacked else FILTERS if e.filter else STACKS


def iterate_rows(e: Entry, group: ParameterGroup | None) -> Iterator[dict[str, Any]]:
    """Yields the table rows of a parameter, one for each part (such as query and key in one matrix) that has other
    numbers: how it is initialised, and its numbers.

    A number is None where none was given for the base.

    Args:
        e: the parameter.
        group: its group; None for a frozen parameter.
    """
    whole = {"name": e.name, "part": "", "shape": "x".join(map(str, e.shape)), "group": e.group}
    if group is None:
        yield {**whole, "init": "kept"}
        return
    apart = "lr" not in e.settings or len(group.rules) > 1 or ("init_std" not in e.settings and e.fill is None)
    parts = e.parts if e.parts and apart else {"": {}}
    for part, own in parts.items():
        at, settings = e.spans.get(part), {**own, **e.settings}
        place = ":, " * at[0] + f"{at[1]}:{at[1] + at[2]}" if at else part.removeprefix(e.group)
        zero = e.fill is None and settings["init_std"].rule is None
        fill = 0.0 if zero else e.fill
        drawn = "normal, one draw for all experts" if group.tied else "normal"
        init = "kept" if e.kept else drawn if fill is None else "fill"
        row = {**whole, "part": place, "optimizer": e.rules[part or e.role].name, "init": init, "fill": fill}
        named = {"std": "init_std", "lr": "lr", "eps": "eps", "weight_decay": "decay"}
        found = {
            name: settings.get(what) for name, what in named.items() if name != "std" or (fill is None and not e.kept)
        }
        row |= {name: None if s is None else s.target for name, s in found.items()}
        if row["weight_decay"] is None and row["lr"] is not None and "decay" in settings:
            row["weight_decay"] = 0.0  # as in its parameter group
        yield row | {f"{name}_factor": None if s is None else s.factor for name, s in found.items()}


def build_regex(group: ParameterGroup) -> str:
    """Returns a regular expression, for ``re.search``, that matches the parameter names of a group and no others."""
    own = [re.escape(x).replace(r"\*", r"\d+") for x in group.patterns]
    parts = own or _find_patterns(
        group, lambda x: _replace_numbers(re.escape(x), r"\d+", r"\."), re.escape, re.fullmatch
    )
    return f"^({'|'.join(parts)})$" if len(parts) > 1 else f"^{parts[0]}$"


def build_globs(group: ParameterGroup) -> list[str]:
    """Returns ``fnmatch`` patterns that match the parameter names of a group and no others."""
    return list(group.patterns) or _find_patterns(
        group, lambda x: _replace_numbers(x, "*", "."), str, lambda g, name: fnmatchcase(name, g)
    )


def _replace_numbers(name: str, number: str, dot: str) -> str:
    """Replaces every component of a dotted name that is a number by the wildcard ``number``, and joins the components
    by ``dot``.
    """
    return dot.join(number if part.isdigit() else part for part in name.split(dot))


def _find_patterns(
    group: ParameterGroup,
    general: Callable[[str], str],
    plain: Callable[[str], str],
    matches: Callable[[str, str], object],
) -> list[str]:
    """Returns patterns that together match the parameter names of a group: a name with wildcards for numbers where this
    matches no name of another group, else the name itself.

    A name that an earlier pattern matches gets none of its own, since some trainers refuse a pattern that adds no
    parameters.

    Args:
        group: the group.
        general: makes the pattern of a name with wildcards.
        plain: makes the pattern of this name only.
        matches: whether a pattern matches a name.

    Raises:
        UsageError: even the plain pattern matches a parameter of another group.
    """
    patterns: list[str] = []
    for name in group.names:
        if any(matches(pattern, name) for pattern in patterns):
            continue
        forms = [x for x in (general(name), plain(name)) if not any(matches(x, other) for other in group.others)]
        if not forms:
            raise UsageError(
                f"no pattern matches {name} without matching parameters of other groups; rename it, or choose another "
                "format"
            )
        patterns.append(forms[0])
    return patterns


FORMATS = {
    "torchtitan": Format(("lr", "eps", "wd"), _write_torchtitan, mixed=True),
    "megatron": Format(("lr", "eps", "wd"), _write_megatron, own="decoder.layers.*.mlp.linear_fc1.weight"),
    "olmo-core": Format(("lr", "eps", "wd"), _write_olmo_core),
    "nemo-automodel": Format(("lr", "wd"), _write_nemo_automodel),
}
"""The formats, by name of the trainer."""
