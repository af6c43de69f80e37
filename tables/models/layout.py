"""The table of public models: sizes, the ray between them, derived powers, and what the published values keep of them.

Powers are those of the MoE block, without depth. Nothing is judged: where a published value does not keep a power, the
table says by what factor. Read next: ``models.toml`` (the facts), ``reading.py``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from scaling_algebra.documents.blocks import ZERO, Cell, Grid, Label, Marked, Piece, Row
from scaling_algebra.recipes.recipe import BLOCK, recipe
from scaling_algebra.recipes.settings import Setting
from scaling_algebra.recipes.sizes import way
from scaling_algebra.solver.demands import Infeasible, NotFound
from scaling_algebra.solver.derivation import derive
from scaling_algebra.spec.axes import AXES
from scaling_algebra.spec.networks.library import MOE_BLOCK
from scaling_algebra.spec.parameterizations import PARAMETERIZATIONS
from scaling_algebra.spec.powers import Power

from .reading import ModelFamily, PublishedModel, families

COLUMNS = {
    "smallest": "smallest",
    "largest": "largest",
    "times": "times",
    "muP": r"$\mu$P",
    "MSSP": "MSSP",
    "muP times": r"$\mu$P times",
    "published / muP": r"published / $\mu$P",
}
WHAT = {"init_std": "init std", "lr": "lr", "decay": "weight decay"}
ROLES = {"input": "embedding", **{role: role.replace("_", " ") for role in MOE_BLOCK.tensors if role != "input"}}


@dataclass(frozen=True)
class Derived:
    """Powers and factors from the smallest model to the largest, by role and setting; empty where there are none.

    Attributes:
        scale: of the multiplier of the sum over experts. grows: the axes that grow. why: why there are none.
    """

    settings: Mapping[tuple[str, str], Setting] = field(default_factory=dict)
    tied: tuple[str, ...] = ()
    scale: Setting | None = None
    grows: tuple[str, ...] = ()
    why: str = ""

    def piece(self, role: str, what: str) -> Piece | None:
        """The power as a cell shows it."""
        setting = self.settings.get((role, what))
        shown = _piece(setting)
        marked = what == "init_std" and role in self.tied and isinstance(shown, Power)
        return Marked(shown, "tied") if marked and isinstance(shown, Power) else shown


@cache
def table_models() -> Grid:
    """Public MoE models beside the powers between the smallest and the largest of their family."""
    lines: list[Row] = []
    notes: list[str] = []
    for family in families():
        found = {name: derived(family, name) for name in ("mup", "mssp")}
        lines += [row for row in rows(family, found["mup"], found["mssp"]) if any(c.values[0] for c in row.cells)]
        notes += [f"{family.title}: {_sources(family)}.", *family.notes]
        notes += dict.fromkeys(f"{family.title}: {d.why}." for d in found.values() if d.why)
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


def derived(family: ModelFamily, parameterization: str) -> Derived:
    """The powers from the smallest to the largest model of a family, by the engine."""
    if len(family.models) < 2:
        return Derived()
    base, target = ({a: n for a, n in m.sizes.items() if a != "L"} for m in (family.models[0], family.models[-1]))
    asked: Any = {"architecture": BLOCK, "epsilon": "negligible"}
    going = way(base, target)
    try:
        if going.ray is not None:  # where nothing is found there a recipe takes another ray
            derive(None, family.optimizer, parameterization, ray=going.ray, **asked)
        numbers = recipe(base, target, family.optimizer, parameterization, **asked)
    except Infeasible as error:
        title = PARAMETERIZATIONS[parameterization].title
        said = "was found on this ray (searched, not proved)" if isinstance(error, NotFound) else "exists on this ray"
        return Derived(why=f"no {title} {said}")
    settings = {(r, what): s for r, found in numbers.tensors.items() for what, s in found.items()}
    scale = next(iter(numbers.multipliers.values()))
    grows = tuple(axis for axis in base if base[axis] != target[axis])
    return Derived({key: s for key, s in settings.items() if key[1] in family.settings}, numbers.tied, scale, grows)


def rows(family: ModelFamily, mup: Derived, mssp: Derived) -> Iterator[Row]:
    """The rows of one family, also those of which nothing is published or derived."""
    first, last = family.models[0], family.models[-1] if len(family.models) > 1 else None
    group = _group(family)

    def row(label: str, at: Any, *powers: Piece | None, factor: float | None = None) -> Row:
        values: list[Any] = [at(model) if model is not None else None for model in (first, last)]
        numbers = all(isinstance(x, int | float) for x in values)
        times = values[1] / values[0] if numbers else None
        kept = None if times is None or factor is None else times / factor
        shown = [*map(_shown, [*values, times]), *(powers or (None, None)), _shown(factor), _shown(kept)]
        return Row(group, Label(label, "$N_e$" if label == "N_e" else ""), tuple(Cell((x,)) for x in shown))

    yield row("model", lambda m: m.name)
    for axis in AXES:
        yield row(axis, lambda m, a=axis: m.sizes[a])
    yield row("gate", lambda m: m.gate or None)
    own, other = (_scale(d, first.gate, last) for d in (mup, mssp))
    factor = None if own is None or last is None else own.ratio(first.sizes, last.sizes)
    yield row("routed scale", lambda m: m.values.get("routed_scale"), own, other, factor=factor)
    if any("bias_step" in m.values for m in family.models):
        yield row("bias step", lambda m: m.values.get("bias_step"))
    for what, name in WHAT.items():
        if last is None or what not in family.settings:
            if any(what in m.values for m in family.models):
                yield row(f"all tensors, {name}", lambda m, w=what: m.values.get(w))
            continue
        for role, title in ROLES.items():
            setting = mup.settings.get((role, what))
            factor = None if setting is None or setting.rule is None else setting.factor
            at = lambda m, w=what: m.values.get(w)  # noqa: E731
            yield row(f"{title}, {name}", at, mup.piece(role, what), mssp.piece(role, what), factor=factor)


def _scale(d: Derived, gate: str, last: PublishedModel | None) -> Power | None:
    """What is left to multiply the sum over experts by, beside what the gate brings."""
    if d.scale is None or d.scale.rule is None or d.scale.before is not None or last is None or last.gate != gate:
        return None
    axis = gate.removeprefix("1/")
    grows = d.grows and axis in d.grows
    return d.scale.rule * Power.parse(axis if grows else "1") if gate else None


def _piece(setting: Setting | None) -> Piece | None:
    if setting is None:
        return None
    if setting.rule is None:
        return ZERO
    return setting.rule if setting.before is None else f"{setting.before} to {setting.rule}"


def _group(family: ModelFamily) -> Label:
    models = family.models
    if len(models) < 2:
        return Label(f"{family.title}, one size")
    going = way(*({a: n for a, n in m.sizes.items() if a != "L"} for m in (models[0], models[-1])))
    if going.ray is None:
        return Label(f"{family.title}, no ray")
    ray, near = str(going.ray).removesuffix(",L=0"), "" if going.exact else "nearly "
    return Label(f"{family.title}, {near}{ray}", f"{family.title}, {near}${ray}$")


def _sources(family: ModelFamily) -> str:
    told = (f"{m.name}: {m.config}" + (f"; {m.report}" if m.report else "") for m in family.models)
    return ". ".join(told)


def _shown(value: Any) -> Piece | None:
    return f"{value:.4g}" if isinstance(value, float) else None if value is None else str(value)
