"""Derives the equations of a torch module: runs it at small sizes, reads its calls, and executes the equations."""

<<<<<<< ours
from .graph import Unreadable
from .models import TracedModel
from .readings import trace_equations
||||||| base
from .graph import Unreadable
from .models import Traced
from .readings import traced
=======
from .models import Traced
from .nodes import Unreadable
from .readings import traced
>>>>>>> theirs

__all__ = ["TracedModel", "Unreadable", "trace_equations"]
