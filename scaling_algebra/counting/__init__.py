"""The size of one Gaussian tensor network: the half-weight rule. Knows no training.

The search for matchings may be compiled, at installation. What was compiled from another text than the one that lies
here is not used, nor is anything compiled with SCALECALC_PURE in the environment.
"""

import os
import sys
from hashlib import sha256
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

COMPILED = ("canonical", "matchings", "kernels")
"""Modules of the search, each after those that it imports. They count in small numbers: where a signal arrives in the
midst of a product of large ones, compiled code takes it for lack of memory and ends the process."""
_HERE = Path(__file__).parent


def library() -> str:
    """Name of the compiled library: a digest of its sources."""
    return "c" + sha256(b"".join((_HERE / f"{name}.py").read_bytes() for name in COMPILED)).hexdigest()[:16]


def _there(stem: str) -> bool:
    return any((_HERE / f"{stem}{suffix}").exists() for suffix in EXTENSION_SUFFIXES)


def _load() -> None:
    """Takes the sources, which Python would pass over for what is compiled."""
    for name in COMPILED:
        spec = spec_from_file_location(f"{__name__}.{name}", _HERE / f"{name}.py")
        assert spec is not None and spec.loader is not None
        module = module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)


if any(map(_there, COMPILED)) and (os.environ.get("SCALECALC_PURE") or not _there(f"{library()}__mypyc")):
    _load()
