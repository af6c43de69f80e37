"""The table of public models: sizes, the ray between them, derived powers, and what the published values keep of them.

Powers are those of the MoE block, without depth. Nothing is judged: where a published value does not keep a power, the
table says by what factor. The engine never imports this. A family more: one more entry in ``models.toml``.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from operator import attrgetter
from typing import Any

from scaling_algebra.documents.blocks import ZERO, Cell, Grid, Label, Marked, Piece, Row
from scaling_algebra.errors import UsageError
from scaling_algebra.laws.entries import read
from scaling_algebra.recipes.recipe import BLOCK, Recipe, recipe
from scaling_algebra.recipes.settings import Setting
from scaling_algebra.recipes.sizes import Way, read_sizes, way
from scaling_algebra.solver.demands import Infeasible, NotFound
from scaling_algebra.solver.derivation import derive
from scaling_algebra.spec.axes import AXES
from scaling_algebra.spec.networks.library import MOE_BLOCK
from scaling_algebra.spec.parameterizations import PARAMETERIZATIONS
from scaling_algebra.spec.powers import Power

GATES = ("1/K", "1/M", "1", "")
WHAT = {"init_std": "init std", "lr": "lr", "decay": "weight decay"}
"""Settings that a power is derived for."""
VALUES = ("bias_step", *WHAT)
"""What a report may say of a model, besides the scale of the sum over experts."""
COLUMNS = {
    "smallest": "smallest",
    "largest": "largest",
    "times": "times",
    "muP": r"$\mu$P",
    "MSSP": "MSSP",
    "muP times": r"$\mu$P times",
    "published / muP": r"published / $\mu$P",
}
ROLES = {"input": "embedding", **{role: role.replace("_", " ") for role in MOE_BLOCK.tensors if role != "input"}}


@dataclass(frozen=True)
class PublishedModel:
    """One model.

    Attributes:
        config, report: where sizes and gate stand, and where the rest does; empty: nothing is published.
        sizes: N, N_e, M, K, L. gate: what it brings to the sum over experts; empty: not published.
    """

    name: str
    config: str
    sizes: Mapping[str, int]
    report: str = ""
    gate: str = ""
    routed_scale: float | None = None
    bias_step: float | None = None
    init_std: float | None = None
    lr: float | None = None
    decay: float | None = None


@dataclass(frozen=True)
class ModelFamily:
    """Models of one family, from the smallest to the largest; one: there is no ray.

    Attributes:
        optimizer: for which powers are derived. settings: of what they are.
    """

    name: str
    title: str
    optimizer: str
    model: tuple[PublishedModel, ...]
    settings: tuple[str, ...] = tuple(WHAT)
    notes: tuple[str, ...] = ()


@cache
def families() -> tuple[ModelFamily, ...]:
    """Every family."""
    return parse(files(__package__).joinpath("models.toml").read_text("utf-8"))


def parse(text: str) -> tuple[ModelFamily, ...]:
    """The families of a file.

    Raises:
        UsageError: a key that is not known or is missing, a value without a report, or sizes that no model has.
    """
    try:
        return tuple(map(_whole, read(tuple[ModelFamily, ...], tomllib.loads(text)["family"], "family")))
    except ValueError as error:
        raise UsageError(f"models: {error}") from None


def _whole(family: ModelFamily) -> ModelFamily:
    models = tuple(replace(m, sizes=read_sizes(m.sizes, m.name)) for m in family.model)
    for m in models:
        if set(m.sizes) != set(AXES) or m.gate not in GATES:
            raise ValueError(f"{m.name} has the sizes {', '.join(m.sizes)} and the gate {m.gate!r}")
        if not m.report and any(getattr(m, what) is not None for what in VALUES):
            raise ValueError(f"{m.name} has values of no report")
    if strange := set(family.settings) - set(WHAT):
        raise ValueError(f"{family.name} has {min(strange)!r}")
    return replace(family, model=models)


@cache
def table_models() -> Grid:
    """Public MoE models beside the powers between the smallest and the largest of their family."""
    lines: list[Row] = []
    notes: list[str] = []
    for family in families():
        recipes = [derived(family, name) for name in ("mup", "mssp")]
        lines += [row for row in rows(family, *recipes) if any(c.values[0] for c in row.cells)]
        notes += [f"{family.title}: {_sources(family)}.", *family.notes]
        notes += dict.fromkeys(f"{family.title}: {r}." for r in recipes if r and isinstance(r, str))
    return Grid(
        "models",
        "Public Mixture-of-Experts models and the powers between them",
        r"Sizes and hyperparameters as published, empty where nothing is; the powers of $\mu$P and MSSP on the ray "
        r"from the smallest to the largest model of a family, derived for the MoE block, what they make of a value "
        r"($\mu$P times), and the change of the published value over that. Weight decay as torch takes it.",
        (Label("family", "Family"), Label("what", "What")),
        ((Label(""), tuple(Label(name, text) for name, text in COLUMNS.items())),),
        tuple(lines),
        (
            "tied: all experts start from the same values. 0: zero init.",
            r"published / $\mu$P is 1 where the published values keep the power. What differs is no mistake: a value "
            r"may be tuned at each size, and batch, tokens and depth change, too.",
            r"Depth is not in the block: with $L$ the multiplier of a residual branch is $L^{-1}$ (scalecalc recipe).",
            "No power is derived for the step of a bias that balances the experts.",
            *notes,
        ),
        sections=True,
    )


def derived(family: ModelFamily, parameterization: str) -> Recipe | str:
    """The recipe from the smallest to the largest model of a family, or why there is none."""
    if len(family.model) < 2:
        return ""
    going = _way(family)
    options: Any = {"architecture": BLOCK, "epsilon": "negligible"}
    try:
        if going.ray is not None:  # where nothing is found there a recipe takes another ray
            derive(None, family.optimizer, parameterization, ray=going.ray, **options)
        return recipe(going.base, going.target, family.optimizer, parameterization, **options)
    except Infeasible as error:
        title = PARAMETERIZATIONS[parameterization].title
        where = "was found on this ray (searched, not proved)" if isinstance(error, NotFound) else "exists on this ray"
        return f"no {title} {where}"


def rows(family: ModelFamily, mup: Recipe | str, mssp: Recipe | str) -> Iterator[Row]:
    """The rows of one family, also those of which nothing is published or derived."""
    first, last = family.model[0], family.model[-1] if len(family.model) > 1 else None
    group = _group(family)

    def row(label: str, at: Any, *powers: Piece | None, factor: float | None = None) -> Row:
        values: list[Any] = [at(model) if model is not None else None for model in (first, last)]
        numbers = all(isinstance(x, int | float) for x in values)
        times = values[1] / values[0] if numbers else None
        kept = None if times is None or factor is None else times / factor
        shown = [*map(_shown, [*values, times]), *(powers or (None, None)), _shown(factor), _shown(kept)]
        return Row(group, Label(label, "$N_e$" if label == "N_e" else ""), tuple(Cell((x,)) for x in shown))

    yield row("model", attrgetter("name"))
    for axis in AXES:
        yield row(axis, lambda m, a=axis: m.sizes[a])
    yield row("gate", lambda m: m.gate or None)
    scales = [_scale(r, first.gate, last) for r in (mup, mssp)]
    factor = None if scales[0] is None or last is None else scales[0].ratio(first.sizes, last.sizes)
    yield row("routed scale", attrgetter("routed_scale"), *scales, factor=factor)
    if any(m.bias_step is not None for m in family.model):
        yield row("bias step", attrgetter("bias_step"))
    for what, name in WHAT.items():
        if last is None or what not in family.settings:
            if any(getattr(m, what) is not None for m in family.model):
                yield row(f"all tensors, {name}", attrgetter(what))
            continue
        for role, title in ROLES.items():
            setting = _setting(mup, role, what)
            factor = None if setting is None or setting.rule is None else setting.factor
            yield row(
                f"{title}, {name}", attrgetter(what), *(_piece(r, role, what) for r in (mup, mssp)), factor=factor
            )


def _setting(r: Recipe | str, role: str, what: str) -> Setting | None:
    return None if isinstance(r, str) else r.tensors.get(role, {}).get(what)


def _piece(r: Recipe | str, role: str, what: str) -> Piece | None:
    s = _setting(r, role, what)
    if s is None or isinstance(r, str):
        return None
    if s.rule is None or s.before is not None:
        return ZERO if s.rule is None else f"{s.before} to {s.rule}"
    return Marked(s.rule, "tied") if what == "init_std" and role in r.tied else s.rule


def _scale(r: Recipe | str, gate: str, last: PublishedModel | None) -> Power | None:
    """What is left to multiply the sum over experts by, beside what the gate brings."""
    if isinstance(r, str) or last is None or last.gate != gate or not gate:
        return None
    scale, axis = next(iter(r.multipliers.values())), gate.removeprefix("1/")
    grows = axis in r.way.base and r.way.base[axis] != r.way.target[axis]
    return None if scale.rule is None or scale.before else scale.rule * Power.parse(axis if grows else "1")


def _way(family: ModelFamily) -> Way:
    return way(*({a: n for a, n in m.sizes.items() if a != "L"} for m in (family.model[0], family.model[-1])))


def _group(family: ModelFamily) -> Label:
    if len(family.model) < 2:
        return Label(f"{family.title}, one size")
    going = _way(family)
    if going.ray is None:
        return Label(f"{family.title}, no ray")
    ray, near = str(going.ray).removesuffix(",L=0"), "" if going.exact else "nearly "
    return Label(f"{family.title}, {near}{ray}", f"{family.title}, {near}${ray}$")


def _sources(family: ModelFamily) -> str:
    return ". ".join(f"{m.name}: {m.config}" + (f"; {m.report}" if m.report else "") for m in family.model)


def _shown(value: Any) -> Piece | None:
    return f"{value:.4g}" if isinstance(value, float) else None if value is None else str(value)
