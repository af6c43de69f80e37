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

from .fit import Array, zero_rounding

Record = Mapping[tuple[str, int], Array]
"""One value per seed for every (quantity, step)."""

Series = dict[tuple[str, int], list[Array]]
"""``series[name, t][i]``: one rms over entries per seed, at size i."""


Prediction = Mapping[str, Sequence[Fraction | EllipsisType | None]]
"""Exponents of n of every quantity after t = 0, 1, ... updates; None for exactly zero, ``...`` for no prediction."""

PARAMETERS, INPUT, SECONDS = "number of parameters", "fingerprint of the input", "seconds"
MEMORY, GRADIENTS = "peak memory", "difference of the gradients from autograd"
"""Names of facts that are recorded with the replicas, read off the model as it was trained."""


def compute_fingerprint(x: Any) -> float:
    """Returns a hash of a tensor as a whole number that float64 stores exactly, so that equal inputs are recognised."""
    return float(int.from_bytes(hashlib.sha256(x.cpu().double().numpy().tobytes()).digest()[:6], "big"))


@dataclass
class Measurement:
    """The numbers measured in a run.

    Attributes:
        ray: the ray on which the sizes lie.
        steps: number of updates.
        sizes: n at every size, computed from the rounded dimensions.
        dims: N, N_e, M at every size.
        parameters: parameter counts at every size; more than one per size if replicas differ, which is an error.
        inputs: fingerprints of the training input at every size.
        gradients: largest relative difference between the gradients and autograd's, where it was checked.
        values: for each quantity, step and size, an array with one root mean square per seed.
        control: like ``values``, but all replicas have the dimensions of the first size, so that every slope must be
            zero.
        standard: like ``values``, but in the standard parameterization, if that serves as a negative control; otherwise
            empty.
        exact: ``values`` of the first seeds in float64, if the run has lower precision; otherwise empty.
        environment: device, torch version, dtype, time (seconds), peak memory (bytes) and base constants.
        interrupted: whether the user stopped the run; complete parts are kept.
        missing: number of planned cells (groups of replicas) whose results are missing.
        watched: names of the quantities whose slope in ``control`` is checked.
        logged: whether the numbers were read from a user's log, which has no controls.
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

    def get_cleaned(self, quantity: str, step: int) -> list[Array]:
        """Returns the measured values of a quantity, one array per size, with rounding errors set to zero.

        A value counts as a rounding error if it is as small as the error with which the run's precision rounds the
        whole
        signal of which it is a part, such as ``h3`` for ``h3.D``.
        """
        dtype = self.environment.get("dtype", "float64")
        clean = []
        for i, values in enumerate(self.values.get((quantity, step), [])):
            family = [self.values[key][i].max() for key in self._families[quantity.split(".")[0], step]]
            clean.append(zero_rounding(values, np.max(family), dtype))
        return clean

    @cached_property
    def _families(self) -> dict[tuple[str, int], list[tuple[str, int]]]:
        families: dict[tuple[str, int], list[tuple[str, int]]] = {}
        for name, t in self.values:
            families.setdefault((name.split(".")[0], t), []).append((name, t))
        return families

    @property
    def names(self) -> list[str]:
        """Names of the measured quantities, in recording order."""
        return list(dict.fromkeys(name for name, _ in self.values))
