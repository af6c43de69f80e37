"""scalecalc: exact scaling exponents of init, learning rate and Adam epsilon for Mixture-of-Experts networks.

Examples:
    >>> from scaling_algebra import derive
    >>> print(derive(regime="III", optimizer="adam", parameterization="mssp")["router"].lr)
    N^-1

Names are loaded when they are first used, so that importing the package costs nothing.
"""

from __future__ import annotations

import importlib
import re
from types import FunctionType

with open(f"{__file__.rpartition('.')[0]}.pyi", encoding="utf-8") as _file:
    _STUB = _file.read()
_HOME = {
    name: module
    for module, names in re.findall(r"^from (\S+) import (.+)$", _STUB, re.M)
    for name in re.findall(r"(\w+) as", names)
}
"""The module of every public name, read from the stub, which lists them."""
__all__ = sorted((*_HOME, "__version__"))


def __getattr__(name: str) -> object:
    if name == "__version__":
        from importlib.metadata import version

        return version("scalecalc")
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME[name], __name__), name)
    if isinstance(value, FunctionType):
        from .arguments import check_arguments

        value = check_arguments(value)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
