"""The equations of a torch module: it is run at small sizes, its calls are read, executed, and written as a network."""

from .graph import Unreadable
from .models import TracedModel
from .readings import trace_equations

__all__ = ["TracedModel", "Unreadable", "trace_equations"]
