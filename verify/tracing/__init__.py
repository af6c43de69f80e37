"""Derives the equations of a torch module: runs it at small sizes, reads its calls, and executes the equations."""

from .models import TracedModel
from .nodes import Unreadable
from .readings import trace_equations

__all__ = ["TracedModel", "Unreadable", "trace_equations"]
