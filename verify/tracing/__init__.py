"""The equations of a torch module: it is run at small sizes, its calls are read, executed, and written as a network."""

from .models import Traced
from .nodes import Unreadable
from .readings import traced

__all__ = ["Traced", "Unreadable", "traced"]
