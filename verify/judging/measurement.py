"""The measurement of a run: numbers by quantity, step, size and seed."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from types import EllipsisType
from typing import Any

import numpy as np

from scaling_algebra.spec.axes import Ray

from .fit import Array, zeros_to_rounding

Record = Mapping[tuple[str, int], Array]
"""One value per seed for every (quantity, step)."""

Series = dict[tuple[str, int], list[Array]]
"""``series[name, t][i]`` holds one root-mean-square over entries per seed at size i."""


Prediction = Mapping[str, Sequence[Fraction | EllipsisType | None]]
"""Exponent of n of every quantity after t = 0, 1, ... updates; None is exactly zero, ``...`` is not predicted."""

PARAMETERS, INPUT, SECONDS = "number of parameters", "fingerprint of the input", "seconds"
MEMORY, GRADIENTS = "peak memory", "difference of the gradients from autograd"
"""Facts recorded with replicas, from the model as it was trained."""


def fingerprint(x: Any) -> float:
    """A number that tells inputs (a torch tensor on any device) apart, exact in float64."""
    return float(int.from_bytes(hashlib.sha256(x.cpu().double().numpy().tobytes()).digest()[:6], "big"))


@dataclass
class Measurement:
    """A measurement.

    Attributes:
        ray, steps: what was asked for.
        sizes: n at every size measured, from the dimensions after rounding.
        dims: N, N_e, M at every size.
        parameters: parameter count at every size; more than one where the replicas of a size differ, which is wrong.
        inputs: fingerprint of the training input seen at every size.
        gradients: largest relative difference of the gradients from autograd's, where it was checked.
        values: what was asked for.
        control: the same for replicas whose dimensions stay those of the first size: every slope must be flat.
        standard: the same under standard parameterization, where that is a control; else empty.
        exact: ``values`` of the first seeds in float64, where the run has less precision; else empty.
        environment: device, torch version, dtype, time (seconds), peak memory (bytes) and base constants.
        interrupted: stopped by the user; what is complete was kept.
        missing: cells planned and not there.
        watched: signals whose controls must be flat.
        logged: somebody else's numbers, without controls.
    """

    ray: Ray
    steps: int
    sizes: list[float] = field(default_factory=list)
    dims: list[dict[str, int]] = field(default_factory=list)
    parameters: list[int] = field(default_factory=list)
    inputs: list[str] = field(default_factory=list)
    gradients: list[float] = field(default_factory=list)
    values: Series = field(default_factory=dict)
    control: Series = field(default_factory=dict)
    standard: Series = field(default_factory=dict)
    exact: Series = field(default_factory=dict)
    environment: dict[str, Any] = field(default_factory=dict)
    interrupted: bool = False
    missing: int = 0
    watched: tuple[str, ...] = ("h1", "psi", "h3")
    logged: bool = False

    def cleaned(self, quantity: str, step: int) -> list[Array]:
        """Values with what is rounding of the family they are a part of (``h3.D`` of ``h3``) set to zero."""
        dtype = self.environment.get("dtype", "float64")
        clean = []
        for i, values in enumerate(self.values.get((quantity, step), [])):
            family = [self.values[key][i].max() for key in self._families[quantity.split(".")[0], step]]
            clean.append(zeros_to_rounding(values, np.max(family), dtype))
        return clean

    @cached_property
    def _families(self) -> dict[tuple[str, int], list[tuple[str, int]]]:
        families: dict[tuple[str, int], list[tuple[str, int]]] = {}
        for name, t in self.values:
            families.setdefault((name.split(".")[0], t), []).append((name, t))
        return families

    @property
    def names(self) -> list[str]:
        """Measured quantities, in recording order."""
        return list(dict.fromkeys(name for name, _ in self.values))
