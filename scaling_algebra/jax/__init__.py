"""Plans for JAX models, returned as pytrees: init std, learning rate, epsilon and weight decay of every leaf.

The model's jaxpr is executed in torch, one call at a time, so that the reader of torch modules can trace it. Requires
the extra ``[jax]``.
"""

from scaling_algebra.errors import missing_package_error

try:
    from .modules import torch_build
    from .plans import JaxPlan, plan
except ModuleNotFoundError as error:
    package = str(error.name).partition(".")[0]
    if package == "scaling_algebra":
        raise
    raise missing_package_error(
        "scaling_algebra.jax", package, "jax" if package in ("jax", "jaxlib") else "verify"
    ) from None

__all__ = ["JaxPlan", "plan", "torch_build"]
