"""Reads a network from a TOML file, and writes it back.

    name = "my-network"
    axes = { a = "N", b = "N", x = "D" }
    equations = \"\"\"
    h1[a] = W1[a,x] data[x]
    f     = W2[a] h1[a]
    \"\"\"

``title`` (one line for reports), ``roles`` (names of tensors in reports), ``frozen`` (a list of tensors that are not
trained), ``constants`` (a list of signals of size 1 that nothing computes), ``losses`` (a list of numbers that are
added to the loss beside the output), ``multiplied`` (powers by which the code multiplies tensors before they act) and
``name`` (that of the file) may be left out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from scaling_algebra.errors import UsageError, unknown_name
from scaling_algebra.files import parse_toml, read_text
from scaling_algebra.spec.axes import AXES
from scaling_algebra.spec.entries import Lines, list_keys, read_value
from scaling_algebra.spec.powers import Power

from .grammar import network
from .indices import in_powers
from .language import Network
from .printing import as_text


@dataclass(frozen=True)
class NetworkFile:
    """The keys of a file with a network."""

    axes: Mapping[str, str]
    equations: Lines
    name: str = ""
    title: str = ""
    roles: Mapping[str, str] = field(default_factory=dict)
    frozen: Sequence[str] = ()
    zero: Sequence[str] = ()
    constants: Sequence[str] = ()
    losses: Sequence[str] = ()
    multiplied: Mapping[str, str] = field(default_factory=dict)


MOST = 2**16
"""Bytes of a file with a network."""


def read_network(path: Path | str) -> Network:
    """The network in a TOML file.

    Raises:
        UsageError: one line that begins with the file's name.
    """
    file = Path(path)
    text = read_text(file, "give a TOML file with a network", MOST)
    return from_toml(text, str(file), file.stem)


def from_toml(text: str, source: str = "network", name: str = "network") -> Network:
    """The network in a TOML text.

    Args:
        source: what errors call the text.
        name: of the network, where the text has none.

    Raises:
        UsageError: one line that begins with the source.
    """
    try:
        record = parse_toml(text)
        for key, value in record.items():
            if isinstance(value, dict) and (inside := next((x for x in value if x in list_keys(NetworkFile)), "")):
                raise UsageError(f"{inside} stands inside {key}; put it above the line [{key}]")
            if not value and key in ("name", "title"):
                raise UsageError(f"{key} is {value!r}; it must be one line")
        kept: NetworkFile = read_value(NetworkFile, record)
        more = kept.roles, kept.title, kept.constants, kept.losses
        found = network(kept.name or name, kept.equations, kept.axes, *more)
        still, zero = ([_role(found, x, key) for x in getattr(kept, key)] for key in ("frozen", "zero"))
        axes = tuple(dict.fromkeys((*AXES, *in_powers(found))))
        powers = {_role(found, x, "multiplied"): Power.parse(power, axes) for x, power in kept.multiplied.items()}
        return replace(found.freezing(still).starting(zero), multiplied=powers)
    except UsageError as error:
        raise UsageError(f"{source}: {error}") from None


def _role(network: Network, name: str, key: str) -> str:
    """The role of a tensor by its role or its name in the equations."""
    symbols = {tensor.symbol: role for role, tensor in network.tensors.items()}
    if (role := symbols.get(name, name)) not in network.tensors:
        raise UsageError(f"{key}: {unknown_name('tensor', name, (*network.tensors, *symbols))}")
    return role


def as_toml(network: Network) -> str:
    """A TOML text that ``from_toml`` reads as the same network."""
    roles = {tensor.symbol: role for role, tensor in network.tensors.items()}
    lines = [f"name = {_quoted(network.name)}"]
    if network.title != network.name:
        lines.append(f"title = {_quoted(network.title)}")
    lines.append(f"axes = {_table(network.axes)}")
    if any(symbol != role for symbol, role in roles.items()):
        lines.append(f"roles = {_table(roles)}")
    still, zero = ([x for x in network.tensors if x in found] for found in (network.frozen, network.zero))
    listed = ("frozen", still), ("zero", zero), ("constants", network.constants), ("losses", network.losses)
    for key, names in listed:
        lines += [f"{key} = [{', '.join(map(_quoted, names))}]"] if names else []
    if network.multiplied:
        powers = {network.tensors[role].symbol: str(power) for role, power in network.multiplied.items()}
        lines.append(f"multiplied = {_table(powers)}")
    return "\n".join([*lines, 'equations = """', as_text(network), '"""', ""])


def _table(entries: Mapping[str, str]) -> str:
    return "{ " + ", ".join(f"{_key(key)} = {_quoted(value)}" for key, value in entries.items()) + " }"


def _key(name: str) -> str:
    return name if name.isascii() else _quoted(name)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
