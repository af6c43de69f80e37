"""Tables: published ones (``reference``), and the same ones derived. Read next: ``layouts.py``, ``render.py``."""
