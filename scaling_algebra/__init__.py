"""scalecalc: exact scaling exponents of init, learning rate and Adam epsilon for Mixture-of-Experts networks.

Examples:
    >>> from scaling_algebra import derive
    >>> print(derive(regime="III", optimizer="adam", parameterization="mssp")["router"].lr)
    N^-1

Names are loaded when they are first used, so that importing the package costs nothing.
"""

from __future__ import annotations

import importlib
from inspect import isfunction
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    __version__: str
    from .all_rays.phases import phases
    from .all_rays.theorems import Theorems, theorems
    from .errors import UsageError
    from .explanations.explanations import explain
    from .formulas.formula import Formula, formula
    from .laws.law import law
    from .proofs.prover import prove
    from .recipes.horizon import horizon
    from .recipes.recipe import Recipe, recipe
    from .solver.demands import Infeasible, NotFound
    from .solver.derivation import Derivation, Signals, derive, signals
    from .spec.axes import REGIMES, Ray
    from .spec.configuration import Configuration
    from .spec.networks.files import read_network
    from .spec.networks.grammar import network
    from .spec.optimizers import Optimizer
    from .spec.powers import Power
    from .tables.audit.comparison import audit
    from .tables.audit.errata import errata
    from .tables.derived.layouts import table
    from .verify.apply.checking import check_model
    from .verify.apply.planning import plan
    from .verify.judging.verdicts import judge

_HOME = {
    name: module
    for module, names in {
        "all_rays.phases": "phases",
        "all_rays.theorems": "Theorems theorems",
        "errors": "UsageError",
        "explanations.explanations": "explain",
        "formulas.formula": "Formula formula",
        "laws.law": "law",
        "proofs.prover": "prove",
        "recipes.horizon": "horizon",
        "recipes.recipe": "Recipe recipe",
        "solver.demands": "Infeasible NotFound",
        "solver.derivation": "Derivation Signals derive signals",
        "spec.axes": "REGIMES Ray",
        "spec.configuration": "Configuration",
        "spec.networks.files": "read_network",
        "spec.networks.grammar": "network",
        "spec.optimizers": "Optimizer",
        "spec.powers": "Power",
        "tables.audit.comparison": "audit",
        "tables.audit.errata": "errata",
        "tables.derived.layouts": "table",
        "verify.apply.checking": "check_model",
        "verify.apply.planning": "plan",
        "verify.judging.verdicts": "judge",
    }.items()
    for name in names.split()
}
__all__ = [
    "REGIMES", "Configuration", "Derivation", "Formula", "Infeasible", "NotFound", "Optimizer", "Power", "Ray",
    "Recipe", "Signals", "Theorems", "UsageError", "__version__", "audit", "check_model", "derive", "errata", "explain",
    "formula", "horizon", "judge", "law", "network", "phases", "plan", "prove", "read_network", "recipe", "signals",
    "table", "theorems",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("scalecalc")
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f".{_HOME[name]}", __name__), name)
    if isfunction(value):
        from .arguments import checked

        value = checked(value)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
