"""A plan of a model of JAX, as pytrees: init std, learning rate, epsilon and decay of every leaf.

Its jaxpr is run in torch, call by call, so that what reads modules of torch reads it. Needs the extra ``[jax]``.
"""

from .modules import torch_build
from .plans import JaxPlan, plan

__all__ = ["JaxPlan", "plan", "torch_build"]
