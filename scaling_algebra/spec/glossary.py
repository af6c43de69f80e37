"""The words of the theory, from ``glossary.toml``. Quantities are explained where they are defined."""

from __future__ import annotations

from collections.abc import Collection

from scaling_algebra.files import load_shipped_toml

_SHIPPED = load_shipped_toml(__package__, "glossary.toml")
TERMS: dict[str, str] = _SHIPPED["words"]
ASSUMPTIONS: dict[str, str] = _SHIPPED["assumptions"]
"""Assumptions beyond power counting, by the name that answers print (``dynamics/rules.py``), each in a sentence."""
DESIDERATA: dict[str, str] = _SHIPPED["desiderata"]
"""Every desideratum in a sentence."""
MECHANISMS: dict[str, dict[str, str]] = _SHIPPED["mechanisms"]
"""For each mechanism its ``title``, and its ``picture``: a formula of the MoE block that shows what it does, with
sizes."""


def join_assumptions(names: Collection[str]) -> str:
    """Joins names of assumptions with commas, in the order of ``ASSUMPTIONS``."""
    return ", ".join(x for x in ASSUMPTIONS if x in names)
