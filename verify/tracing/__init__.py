"""Derives the equations of a torch module: runs it at small sizes, reads its calls, checks the equations by execution."""

from .graph import Unreadable
from .models import TracedModel
from .readings import trace_equations

__all__ = ["TracedModel", "Unreadable", "trace_equations"]
