"""Reads a table of the user: refuses names that do not exist, and determines which tensors start at zero by the
table, since other parameters are derived for that start.

Read next: ``comparison.py``, which compares the cells.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from scaling_algebra.errors import UsageError, check_names, find_entry
from scaling_algebra.solver.demands import NotFound
from scaling_algebra.solver.derivation import Derivation, derive
from scaling_algebra.spec.axes import REGIMES
from scaling_algebra.spec.given import AGGREGATION
from scaling_algebra.spec.networks.indices import list_power_axes
from scaling_algebra.spec.networks.language import Network
from scaling_algebra.spec.networks.library import ARCHITECTURES
from scaling_algebra.spec.networks.multipliers import find_free_multipliers
from scaling_algebra.spec.optimizer_reading import read_optimizers
from scaling_algebra.spec.parameterizations import PARAMETERIZATIONS, READOUTS
from scaling_algebra.spec.powers import Power
from scaling_algebra.tables.published.printed import Printed, read

HEAD = ("regime", "optimizer", "parameterization")
"""What ``[table]`` or a cell must name."""


def own(path: Path) -> list[Printed]:
    """Reads the cells of a user's table and checks that all names in them exist.

    Raises:
        UsageError: the file cannot be read, or a name in it does not exist; the message begins with the name of the
            file.
    """
    try:
        return _with_zeros([_check_cell(cell) for cell in read(path)])
    except UsageError as error:
        text = str(error)
        raise UsageError(text if f"{path}" in text else f"{path}: {text}") from None


def _check_cell(cell: Printed) -> Printed:
    """Returns a cell of the user's table in which names are spelled as in the engine.

    Raises:
        UsageError: a name does not exist, or the setting is incomplete.
    """
    setting = dict(cell.setting)
    if lacks := next((x for x in HEAD if x not in setting), ""):
        raise UsageError(
            f"the cell {cell.quantity} has no {lacks}; add it to [table], as in the example of audit --schema"
        )
    network = find_entry("network", setting.get("program", "moe"), ARCHITECTURES)
    setting["program"] = network.name
    setting["regime"] = find_entry("regime", setting["regime"], REGIMES).name
    setting["parameterization"] = find_entry("parameterization", setting["parameterization"], PARAMETERIZATIONS).name
    check_names("readout init", [setting["readout_init"]] if "readout_init" in setting else (), READOUTS)
    rules = read_optimizers(setting["optimizer"], network)
    if cell.step is not None:
        return replace(cell, setting=setting)
    role, _, what = cell.quantity.rpartition(".")
    check_names(f"tensor of {network.name}", [role], (*network.tensors, *find_free_multipliers(network), AGGREGATION))
    rule = rules.of(role) if role in network.tensors else None
    none = what == "eps" and rule is not None and not rule.epsilon
    reason = f"{rule.name} has no epsilon that scales; leave out the cell" if none and rule is not None else cell.reason
    _check_axes(cell, network)
    return replace(cell, setting=setting, reason=reason)


def _check_axes(cell: Printed, network: Network) -> None:
    """Raises UsageError if the value of a cell is a power of axes that the network does not have."""
    if isinstance(cell.value, Power):
        wrong = [axis for axis, _ in cell.value.terms]
        check_names(f"axis of {network.name}, in {cell.quantity} = {cell.value}:", wrong, list_power_axes(network))


def _with_zeros(cells: Sequence[Printed]) -> list[Printed]:
    """Adds to the setting of each cell the tensors that start at zero in its configuration.

    These are the tensors for which another cell of the table states the init std zero in the same configuration.
    """

    def configuration(cell: Printed) -> tuple[Any, ...]:
        return tuple(cell.setting.get(x) for x in (*HEAD, "program", "readout_init"))

    zero: dict[tuple[Any, ...], tuple[str, ...]] = {}
    for cell in cells:
        role, _, what = cell.quantity.rpartition(".")
        if what == "init_std" and cell.value == "zero" and role in ARCHITECTURES[cell.setting["program"]].tensors:
            zero[configuration(cell)] = (*zero.get(configuration(cell), ()), role)
    return [replace(c, setting={**c.setting, "zero": zero.get(configuration(c), ())}) for c in cells]


def starting(d: Derivation, zero: tuple[str, ...]) -> Derivation:
    """Derives a parameterization again with these tensors (``zero``, by role) starting at zero. The original
    derivation ``d`` is returned if none can then be derived or a demand fails.
    """
    given = {f"{role}.init": 0 for role in zero if d.scaling.tensors[role].init_std is not None}
    if not (given and d.configuration.parameterization.derived):
        return d
    try:
        other = derive(d.configuration.but(given=given))
    except NotFound:
        return d
    return d if other.unmet else other
