"""Sizes of random tensors that are polynomials in Gaussian tensors. No notion of training.

The size of a tensor is the exponent of n of its root-mean-square over entries and initialisation. Terms, for the
example ``h[a] = sum_b W[a,b] x[b]`` with Gaussian ``W`` and ``x`` of std 1 and indices of N values:

- *Leaf*: one Gaussian initial tensor as a factor, here ``W[a,b]`` or ``x[b]``.
- *Wick monomial* (class ``Kernel``): a product of leaves, from which the means of products of its leaves are subtracted
  (normal order). Different monomials are uncorrelated. ``W[a,b] x[b]`` is one.
- *Index class*: indices that must be equal, here a and b. A class is *open* if it is an index of the result (a),
  otherwise it is summed (b).
- *Half-weight rule*: a monomial with coefficient 1 has size 1/2 per summed class, since by the central limit theorem a
  sum of N uncorrelated terms is N^(1/2) times as large as one. Here ``h`` has size N^(1/2).
- *Matching*: the product of two monomials is a sum over all ways to pair leaves of the same name (Wick's theorem). A
  summed class that no unpaired leaf touches is summed *coherently*: it has weight 1. ``sum_a W[a,b] W[a,c]`` is N
  delta_bc (paired) plus a monomial of size N^(1/2) (unpaired).
- *In doubt*: a monomial of which only an upper bound is known, since another term may cancel it.
- *Signal*: a linear combination of monomials.

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
"""Modules that may be compiled, each after those that it imports. They count in small integers: given a packed
exponent, compiled code would report an overflow as lack of memory and end the process."""
_HERE = Path(__file__).parent


def library() -> str:
    """Returns the name of the compiled library: "c" and the first 16 hex digits of a digest of its sources."""
    return "c" + sha256(b"".join((_HERE / f"{name}.py").read_bytes() for name in COMPILED)).hexdigest()[:16]


def _has_extension(stem: str) -> bool:
    """Tests whether a compiled module of this name exists, such as ``kernels.cpython-311-x86_64-linux-gnu.so``."""
    return any((_HERE / f"{stem}{suffix}").exists() for suffix in EXTENSION_SUFFIXES)


def _load_sources() -> None:
    """Imports the .py sources of all modules, although compiled extensions would take precedence."""
    for name in COMPILED:
        spec = spec_from_file_location(f"{__name__}.{name}", _HERE / f"{name}.py")
        assert spec is not None and spec.loader is not None
        module = module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)


if any(map(_has_extension, COMPILED)) and (
    os.environ.get("SCALECALC_PURE") or not _has_extension(f"{library()}__mypyc")
):
    _load_sources()
