"""The public names, each with its home: for type checkers, and for ``__init__.py``, which loads them from here."""

from __future__ import annotations

from .all_rays.phases import phases as phases
from .all_rays.theorems import Theorems as Theorems
from .all_rays.theorems import theorems as theorems
from .errors import UsageError as UsageError
from .explanations.explanations import explain as explain
from .formulas.formula import Formula as Formula
from .formulas.formula import formula as formula
from .laws.law import law as law
from .proofs.prover import prove as prove
from .recipes.horizon import horizon as horizon
from .recipes.recipe import Recipe as Recipe
from .recipes.recipe import recipe as recipe
from .solver.demands import Infeasible as Infeasible
from .solver.demands import NotFound as NotFound
from .solver.derivation import Derivation as Derivation
from .solver.derivation import Signals as Signals
from .solver.derivation import derive as derive
from .solver.derivation import signals as signals
from .spec.axes import REGIMES as REGIMES
from .spec.axes import Ray as Ray
from .spec.configuration import Configuration as Configuration
from .spec.networks.files import read_network as read_network
from .spec.networks.grammar import network as network
from .spec.optimizers import Optimizer as Optimizer
from .spec.powers import Power as Power
from .tables.audit.comparison import audit as audit
from .tables.audit.errata import errata as errata
from .tables.derived.layouts import table as table
from .verify.apply.checking import check_model as check_model
from .verify.apply.planning import plan as plan
from .verify.judging.verdicts import judge as judge

__version__: str
