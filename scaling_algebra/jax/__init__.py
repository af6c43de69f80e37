"""A plan of a model of JAX, as pytrees: init std, learning rate, epsilon and decay of every leaf.

Its jaxpr is run in torch, call by call, so that what reads modules of torch reads it. Needs the extra ``[jax]``.
"""

from scaling_algebra.errors import missing_package

try:
    from .modules import torch_build
    from .plans import JaxPlan, plan
except ModuleNotFoundError as error:
    package = str(error.name).partition(".")[0]
    if package == "scaling_algebra":
        raise
    raise missing_package("scaling_algebra.jax", package, "jax" if package in ("jax", "jaxlib") else "verify") from None

__all__ = ["JaxPlan", "plan", "torch_build"]
