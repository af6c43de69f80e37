"""Maps of rays for the page: a picture, with the walls and cells that locate a ray.

A map takes seconds to compute, and far longer in a browser. Therefore ``maps`` has four of them, written by
``python -m scaling_algebra.page.maps``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files as resources
from pathlib import Path
from typing import Any

from scaling_algebra.all_rays.phases import PLANE, PLANE_AXES, phases
from scaling_algebra.all_rays.picture import FRAME, phases_map
from scaling_algebra.all_rays.presentation import describe_status
from scaling_algebra.files import write_file
from scaling_algebra.linear.linear import Linear
from scaling_algebra.spec.axes import Ray
from scaling_algebra.spec.configuration import Configuration
from scaling_algebra.spec.networks.library import MOE_BLOCK

KEPT = tuple((optimizer, rule) for optimizer in ("sgd", "adam") for rule in ("mup", "mssp"))
"""Optimizers and parameterizations with a stored map."""


def draw_map(optimizer: str, parameterization: str) -> dict[str, Any]:
    """Computes the map of rays of one optimizer and parameterization, as the JSON data that the page stores.

    The data are the picture (SVG), the boundaries between regions (walls) as coefficients of the rates of N, N_e and M,
    and each region (cell) by its inequalities.
    """
    p = phases(optimizer, parameterization)
    return {
        "about": p.about,
        "plane": list(PLANE),
        "frame": FRAME,
        "walls": [list(w.over(PLANE_AXES)) for w in p.walls],
        "cells": [
            {"name": c.name if c.scaling else "", "inequalities": list(c.inequalities), "status": describe_status(c)}
            for c in p.cells
        ],
        "svg": phases_map(p),
    }


@cache
def load_maps() -> dict[str, dict[str, Any]]:
    """Loads the stored maps by name, such as ``sgd-mup``."""
    folder = resources(__package__) / "maps"
    return {name: json.loads((folder / f"{name}.json").read_text("utf-8")) for name in ("-".join(x) for x in KEPT)}


def place(ray: Ray, record: Mapping[str, Any]) -> str:
    """Describes where a ray lies on a map: in which cell, or on which walls between cells.

    For rays with K < M the text is empty, since maps have only rays with K = M.

    Args:
        ray: the ray.
        record: the stored map.
    """
    if ray["K"] != ray["M"] or ray["L"]:
        return ""
    walls = [Linear.wall(PLANE_AXES, values) for values in record["walls"]]
    rates = {axis: ray[axis] for axis in PLANE_AXES}
    on = [wall for wall in walls if wall.at(rates) == 0]
    sides = {str(wall.facing(wall.at(rates))) for wall in walls if wall not in on}
    beside = [cell for cell in record["cells"] if sides <= set(cell["inequalities"])]
    if on:
        names = sorted(dict.fromkeys(cell["name"] for cell in beside if cell["name"]))
        between = f", beside {'cell' if len(names) == 1 else 'cells'} {', '.join(names)}" if names else ""
        return f"on {'the wall' if len(on) == 1 else 'the walls'} {'; '.join(map(str, on))}{between}"
    (cell,) = beside
    name = f"cell {cell['name']}" if cell["name"] else "a cell without a formula"
    return f"{name}: {', '.join(cell['inequalities'])} ({cell['status']})"


def locate_ray(configuration: Configuration) -> str:
    """Returns a phrase that says in which cell of its map the ray of a configuration lies.

    An example is ``cell A: M >= N (proved)``.

    The map is that of the configuration's optimizer and parameterization; the phrase is empty if none is stored.
    """
    record = load_maps().get(f"{configuration.optimizer.name}-{configuration.parameterization.name}")
    usual = (
        configuration.network == MOE_BLOCK
        and configuration.optimizer.regime in (None, "derived")
        and configuration.readout_init == configuration.parameterization.readout_init
    )
    return place(configuration.ray, record) if record is not None and usual else ""


if __name__ == "__main__":
    for optimizer, rule in KEPT:
        write_file(
            Path(__file__).parent / "maps" / f"{optimizer}-{rule}.json", json.dumps(draw_map(optimizer, rule), indent=1)
        )
