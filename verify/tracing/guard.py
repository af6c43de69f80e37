"""The guard: a reading is executed with the module's own weights, and must give its output."""

from __future__ import annotations

import torch
from torch import Tensor

from .graph import Unreadable, View
from .reading import Reader

TOLERANCE = 1e-5
"""Relative difference of the outputs, in float64 (a module may compute in float32 inside)."""


def guard(reader: Reader, output: View) -> float:
    """Executes the equations, before anything is folded; the relative difference from the module's output.

    Raises:
        Unreadable: they differ. The first call whose tensor differs, in any order of its entries, is named.
    """
    run, values = reader.runs[0], dict[int, Tensor]()
    truth = run.tensors[run.output.number].double()
    got = output.laid_out(output.node.evaluate(values))
    apart = _apart(got, truth)
    if apart <= TOLERANCE:
        return apart
    for call, ref, view in reader.read_calls:
        if view.node.kind in ("const", "choice", "pieces"):
            continue
        found = view.laid_out(view.node.evaluate(values)).double().flatten().sort().values
        true = run.tensors[ref.number].double().flatten().sort().values
        if found.shape == true.shape and _apart(found, true) > TOLERANCE:
            where = f"{call.module or 'model'}: {call.name}"
            raise Unreadable(f"{where}: the equations give other numbers than this call; its rule does not hold here")
    raise Unreadable(f"the equations give other numbers than the model (relative difference {apart:.1g}); not read")


def _apart(found: Tensor, true: Tensor) -> float:
    if found.shape != true.shape:
        return float("inf")
    found, true = (torch.where(torch.isfinite(x), x, torch.zeros_like(x)) for x in (found, true))
    return float((found - true).abs().max()) / max(float(true.abs().max()), 1e-30)
