"""Reads a network from a TOML file, and writes it back.

    name = "my-network"
    axes = { a = "N", b = "N", x = "D" }
    equations = \"\"\"
    h1[a] = W1[a,x] data[x]
    f     = W2[a] h1[a]
    \"\"\"

The keys of ``NetworkFile`` except ``axes`` and ``equations`` are optional.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from scaling_algebra.errors import UsageError, unknown_name_error
from scaling_algebra.files import parse_toml, read_text
from scaling_algebra.spec.axes import AXES
from scaling_algebra.spec.entries import Lines, list_keys, read_value
from scaling_algebra.spec.powers import Power

from .grammar import network
from .indices import list_power_axes
from .language import Network
from .printing import as_text


@dataclass(frozen=True)
class NetworkFile:
    """The keys of a file with a network.

    Attributes:
        axes: axis of each index.
        equations: one equation to a line.
        name: name of the network; by default that of the file.
        title: one line for reports.
        roles: names of tensors in reports, by their names in the equations.
        frozen: tensors that are not trained.
        zero: tensors that start at zero.
        constants: signals of size 1 that no equation computes.
        losses: scalars that are added to the loss besides the output.
        multiplied: the power of the axes by which the code multiplies a tensor before it acts, by the tensor's name.
    """

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
"""Maximum number of bytes of a file with a network."""


def read_network(path: Path | str) -> Network:
    """Reads a network from a TOML file.

    Raises:
        UsageError: the file cannot be read, or describes no valid network; the message begins with the file's name.
    """
    file = Path(path)
    text = read_text(file, "give a TOML file with a network", MOST)
    return from_toml(text, str(file), file.stem)


def from_toml(text: str, source: str = "network", name: str = "network") -> Network:
    """Reads a network from a TOML text.

    Args:
        text: the TOML.
        source: the beginning of messages, such as the file's name.
        name: the name of the network if the text has none.

    Raises:
        UsageError: the text describes no valid network; the message is one line that begins with ``source``.
    """
    try:
        record = parse_toml(text)
        for key, value in record.items():
            if isinstance(value, dict) and (inside := next((x for x in value if x in list_keys(NetworkFile)), "")):
                raise UsageError(f"{inside} belongs to the table [{key}] here; put it above the line [{key}]")
            if not value and key in ("name", "title"):
                raise UsageError(f"{key} is {value!r}; it must be one line")
        kept: NetworkFile = read_value(NetworkFile, record)
        more = kept.roles, kept.title, kept.constants, kept.losses
        found = network(kept.name or name, kept.equations, kept.axes, *more)
        still, zero = ([_find_role(found, x, key) for x in getattr(kept, key)] for key in ("frozen", "zero"))
        axes = tuple(dict.fromkeys((*AXES, *list_power_axes(found))))
        powers = {_find_role(found, x, "multiplied"): Power.parse(power, axes) for x, power in kept.multiplied.items()}
        return replace(found.with_frozen(still).with_zero(zero), multiplied=powers)
    except UsageError as error:
        raise UsageError(f"{source}: {error}") from None


def _find_role(network: Network, name: str, key: str) -> str:
    """Returns the role of a tensor that is given by its role or by its name in the equations."""
    symbols = {tensor.symbol: role for role, tensor in network.tensors.items()}
    if (role := symbols.get(name, name)) not in network.tensors:
        raise UsageError(f"{key}: {unknown_name_error('tensor', name, (*network.tensors, *symbols))}")
    return role


def as_toml(network: Network) -> str:
    """Writes a network as TOML that ``from_toml`` reads as the same network."""
    roles = {tensor.symbol: role for role, tensor in network.tensors.items()}
    lines = [f"name = {_quote(network.name)}"]
    if network.title != network.name:
        lines.append(f"title = {_quote(network.title)}")
    lines.append(f"axes = {_write_table(network.axes)}")
    if any(symbol != role for symbol, role in roles.items()):
        lines.append(f"roles = {_write_table(roles)}")
    still, zero = ([x for x in network.tensors if x in found] for found in (network.frozen, network.zero))
    listed = ("frozen", still), ("zero", zero), ("constants", network.constants), ("losses", network.losses)
    for key, names in listed:
        lines += [f"{key} = [{', '.join(map(_quote, names))}]"] if names else []
    if network.multiplied:
        powers = {network.tensors[role].symbol: str(power) for role, power in network.multiplied.items()}
        lines.append(f"multiplied = {_write_table(powers)}")
    return "\n".join([*lines, 'equations = """', as_text(network), '"""', ""])


def _write_table(entries: Mapping[str, str]) -> str:
    return "{ " + ", ".join(f"{_write_key(key)} = {_quote(value)}" for key, value in entries.items()) + " }"


def _write_key(name: str) -> str:
    return name if name.isascii() else _quote(name)


def _quote(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
