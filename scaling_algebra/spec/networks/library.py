"""The shipped networks as equations, from which sizes, gradients, explanations and torch modules are derived.

To add one, add a table to ``library.toml``. Read next: ``grammar.py`` (how equations are written),
``scaling_algebra/dynamics/trajectory.py`` (trains a network), ``quantities.py`` (what can be asked about one).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache

from scaling_algebra.errors import find_entry
from scaling_algebra.files import load_shipped_toml

from .grammar import network
from .language import Function, Network

TEXTS = load_shipped_toml(__package__, "library.toml")
"""Title, roles and equations of every network, by name."""
AXES: Mapping[str, str] = TEXTS.pop("axes")
"""Axis of each index in these equations."""
TITLES: Mapping[str, str] = {
    name: text["title"] for name, text in sorted(TEXTS.items(), key=lambda entry: "apart" in entry[1])
}
"""Title of every network, by name. Networks marked ``apart``, which tables do not include, come last."""


class _Library(Mapping[str, Network]):
    """The shipped networks by name, each read on first use. Iteration omits networks marked ``apart`` in
    ``library.toml``.
    """

    def __getitem__(self, name: str) -> Network:
        return _read_architecture(name)

    def __iter__(self) -> Iterator[str]:
        return (name for name, text in TEXTS.items() if "apart" not in text)

    def __len__(self) -> int:
        return len(list(iter(self)))

    def __contains__(self, name: object) -> bool:
        return name in TEXTS


@cache
def _read_architecture(name: str) -> Network:
    text = TEXTS[name]
    return network(name, text["equations"], AXES, text["roles"], text["title"])


ARCHITECTURES = _Library()
"""Every shipped network, by name."""
MOE_BLOCK = ARCHITECTURES["moe"]


def architecture(name: str) -> Network:
    """Returns the shipped network of this name.

    Raises:
        UsageError: there is none.
    """
    if not isinstance(name, str) or name not in ARCHITECTURES:
        find_entry("architecture", name, TITLES)
    return ARCHITECTURES[name]


def replace_gates(network: Network) -> Network:
    """Returns the network with every gate whose values are held fixed replaced by a sigmoid, which trains; unchanged
    if there is none.
    """
    if network == MOE_BLOCK:
        return ARCHITECTURES["moe-sigmoid"]
    if not any(s.held for s in network.functions):
        return network
    moved = [replace(s, name="sigmoid") if isinstance(s, Function) and s.held else s for s in network.statements]
    return replace(network, name=f"{network.name}-sigmoid", statements=tuple(moved))
