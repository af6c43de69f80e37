"""Reads a network from a TOML file, and writes it back.

    name = "my-network"
    axes = { a = "N", b = "N", x = "D" }
    equations = \"\"\"
    h1[a] = W1[a,x] data[x]
    f     = W2[a] h1[a]
    \"\"\"

``title`` (one line for reports), ``roles`` (names of tensors in reports), ``frozen`` (a list of tensors that are not
trained), ``constants`` (a list of signals of size 1 that nothing computes), ``losses`` (a list of numbers that are
added to the loss beside the output) and ``name`` (that of the file) may be left out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from scaling_algebra.errors import UsageError, unknown_name
from scaling_algebra.files import read_text, toml

from .grammar import network
from .language import Network
from .printing import as_text

KEYS: dict[str, type] = {
    "name": str, "title": str, "axes": Mapping, "roles": Mapping, "frozen": list,
    "zero": list, "constants": list, "losses": list, "equations": str,
}  # fmt: skip
MOST = 2**16
"""Bytes of a file with a network."""
REQUIRED = ("axes", "equations")


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
        record = toml(text)
        _check(record)
        given = record.get("roles"), record.get("title", ""), record.get("constants", ()), record.get("losses", ())
        read = network(record.get("name", name), record["equations"], record["axes"], *given)
        still, zero = ([_role(read, x, key) for x in record.get(key, ())] for key in ("frozen", "zero"))
        return read.freezing(still).starting(zero)
    except UsageError as error:
        raise UsageError(f"{source}: {error}") from None


def _role(network: Network, name: str, key: str) -> str:
    """The role of a tensor by its role or its name in the equations."""
    symbols = {tensor.symbol: role for role, tensor in network.tensors.items()}
    if (role := symbols.get(name, name)) not in network.tensors:
        raise UsageError(f"{key}: {unknown_name('tensor', name, (*network.tensors, *symbols))}")
    return role


def _check(record: Mapping[str, object]) -> None:
    kinds: dict[type, str] = {str: "a text", Mapping: 'a table, such as { a = "N" }', list: 'a list, such as ["W"]'}
    for key, value in record.items():
        if key not in KEYS:
            raise unknown_name("key", key, KEYS)
        if not isinstance(value, KEYS[key]):
            raise UsageError(f"{key} is {value!r}; it must be {kinds[KEYS[key]]}")
        if isinstance(value, Mapping):
            for inner, entry in value.items():
                if inner in KEYS:
                    raise UsageError(f"{inner} stands inside {key}; put it above the line [{key}]")
                if not isinstance(entry, str):
                    raise UsageError(f"{key}: {inner} is {entry!r}; it must be a text")
        elif isinstance(value, list):
            if wrong := [x for x in value if not isinstance(x, str)]:
                raise UsageError(f"{key}: {wrong[0]!r} is not a name")
        elif key != "equations" and not value:
            raise UsageError(f"{key} is {value!r}; it must be one line")
    for key in REQUIRED:
        if key not in record:
            raise UsageError(f"{key} is missing; a network has {' and '.join(REQUIRED)}")


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
    return "\n".join([*lines, 'equations = """', as_text(network), '"""', ""])


def _table(entries: Mapping[str, str]) -> str:
    return "{ " + ", ".join(f"{_key(key)} = {_quoted(value)}" for key, value in entries.items()) + " }"


def _key(name: str) -> str:
    return name if name.isascii() else _quoted(name)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
