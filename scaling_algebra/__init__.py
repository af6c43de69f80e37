"""scalecalc: exact scaling exponents of init, learning rate and Adam epsilon for Mixture-of-Experts networks.

>>> from scaling_algebra import derive
>>> print(derive(regime="III", optimizer="adam", parameterization="mssp").scaling.tensors["router"].lr)
N^-1
"""

from .api import Derivation, Signals, derive, signals
from .axes import REGIMES, Ray
from .errors import UsageError
from .explanations import explain
from .solver import Infeasible

__all__ = ["REGIMES", "Derivation", "Infeasible", "Ray", "Signals", "UsageError", "derive", "explain", "signals"]
