"""The words of the theory, from ``glossary.toml``. Quantities are explained where they are defined."""

from __future__ import annotations

from collections.abc import Collection

from scaling_algebra.files import load_shipped_toml

_SHIPPED = load_shipped_toml(__package__, "glossary.toml")
TERMS: dict[str, str] = _SHIPPED["words"]
ASSUMPTIONS: dict[str, str] = _SHIPPED["assumptions"]
"""Assumptions of an exponent beyond counting powers, by the name that answers carry (``dynamics/rules.py``)."""
DESIDERATA: dict[str, str] = _SHIPPED["desiderata"]
"""Every desideratum in a sentence."""
MECHANISMS: dict[str, dict[str, str]] = _SHIPPED["mechanisms"]
"""The ``title`` of each mechanism, and its ``picture``: what it does, as a formula of the MoE block and its size."""


def listed(names: Collection[str]) -> str:
    """Some assumptions, in the order of ``ASSUMPTIONS``."""
    return ", ".join(x for x in ASSUMPTIONS if x in names)
