"""scalecalc: exact scaling exponents of init, learning rate and Adam epsilon for Mixture-of-Experts networks.

>>> from scaling_algebra import derive
>>> print(derive(regime="III", optimizer="adam", parameterization="mssp").scaling.tensors["router"].lr)
N^-1
"""

from scaling_algebra.errors import UsageError
from scaling_algebra.explanations.explanations import explain
from scaling_algebra.solver.demands import Infeasible
from scaling_algebra.solver.derivation import Derivation, Signals, derive, signals
from scaling_algebra.spec.axes import REGIMES, Ray

__all__ = ["REGIMES", "Derivation", "Infeasible", "Ray", "Signals", "UsageError", "derive", "explain", "signals"]
