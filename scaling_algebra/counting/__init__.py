"""Sizes of Gaussian tensor networks by the half-weight rule, without any notion of training.

The search for matchings may be compiled at installation. A compiled module is used only if it was compiled from the
present sources, and not if the environment variable SCALECALC_PURE is set.
"""

import os
import sys
from hashlib import sha256
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

COMPILED = ("canonical", "matchings", "kernels")
"""Modules of the search, each after those that it imports. They count in small integers: given a packed size, compiled
code would report an overflow as lack of memory and end the process.
"""
_HERE = Path(__file__).parent


def library() -> str:
    """Returns the name of the compiled library, which is a digest of its sources."""
    return "c" + sha256(b"".join((_HERE / f"{name}.py").read_bytes() for name in COMPILED)).hexdigest()[:16]


def _there(stem: str) -> bool:
    """Tests whether a compiled module of this name exists."""
    return any((_HERE / f"{stem}{suffix}").exists() for suffix in EXTENSION_SUFFIXES)


def _load() -> None:
    """Imports the .py sources, although compiled extensions would take precedence."""
    for name in COMPILED:
        spec = spec_from_file_location(f"{__name__}.{name}", _HERE / f"{name}.py")
        assert spec is not None and spec.loader is not None
        module = module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)


if any(map(_there, COMPILED)) and (os.environ.get("SCALECALC_PURE") or not _there(f"{library()}__mypyc")):
    _load()
