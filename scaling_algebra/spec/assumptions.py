"""Assumptions of an exponent beyond counting powers. Every answer names what it assumes.

Read next: ``scaling_algebra/dynamics/rules.py`` and ``steps.py`` (which assume them), ``analysis.py`` (collects them).
"""

from __future__ import annotations

from collections.abc import Collection

from .glossary import ASSUMPTIONS

__all__ = ["ASSUMPTIONS", "listed"]


def listed(names: Collection[str]) -> str:
    """Some assumptions, in the order of ``ASSUMPTIONS``."""
    return ", ".join(x for x in ASSUMPTIONS if x in names)
