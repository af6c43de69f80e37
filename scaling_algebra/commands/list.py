"""``scalecalc list``: every name that other commands accept, a network as equations, and the glossary."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from scaling_algebra.documents import Document
from scaling_algebra.documents.blocks import Code, Grid, Heading, Lines, literal
from scaling_algebra.dynamics.quantities import list_quantities
from scaling_algebra.errors import UsageError
from scaling_algebra.spec.axes import AXES, REGIMES, describe_axis
from scaling_algebra.spec.glossary import ASSUMPTIONS, DESIDERATA, MECHANISMS, TERMS
from scaling_algebra.spec.networks.language import Network
from scaling_algebra.spec.networks.library import MOE_BLOCK
from scaling_algebra.spec.networks.library import TITLES as NETWORKS
from scaling_algebra.spec.networks.parsing import write_indexed
from scaling_algebra.spec.networks.printing import as_text
from scaling_algebra.spec.optimizers import OPTIMIZERS
from scaling_algebra.spec.parameterizations import PARAMETERIZATIONS

from .options import choose_network, find_traced, format_examples, network_options, prints_answer


@click.command(
    "list",
    epilog=format_examples(
        "scalecalc list",
        "scalecalc list --architecture attention",
        "scalecalc list --glossary -o glossary.md",
    ),
)
@network_options()
@click.option("--glossary", is_flag=True, help="Explain every term, quantity, desideratum and mechanism.")
@prints_answer()
def command(architecture: str | None, network: Path | None, glossary: bool) -> Document | str:
    """List every name the other commands accept; or, of one network, its equations and quantities.

    A torch module (--model) is printed as a file for --network; comments in it say what the equations leave out.
    """
    shown = choose_network(architecture, network)
    if find_traced() is not None and not glossary:
        return "\n".join([str(find_traced().text).rstrip(), *(f"# {line}" for line in find_traced().model.lines)])
    if glossary and shown is not None:
        raise UsageError("--glossary takes no network; leave out --architecture and --network")
    return glossary_document() if glossary else names_document() if shown is None else network_document(shown)


def names_document() -> Document:
    """Returns tables of all names that other commands accept, and of the quantities of the MoE block."""
    sections = {
        "axes": AXES,
        "regimes": {name: _format_rates(ray.rates) for name, ray in REGIMES.items()},
        "optimizers": {name: o.source or f"torch.optim.{o.torch}" for name, o in OPTIMIZERS.items()},
        "parameterizations": {name: f"{p.title}: {p.about}" for name, p in PARAMETERIZATIONS.items()},
        "architectures": NETWORKS,
        "assumptions": ASSUMPTIONS,
        f"quantities of {MOE_BLOCK.name}": _list_formulas(MOE_BLOCK),
    }
    return sections_document(sections, {"architecture": MOE_BLOCK.name})


def network_document(network: Network) -> Document:
    """Returns a network's equations, indices, tensors and quantities."""
    equations = [("  ", Code(line)) for line in as_text(network).splitlines()]
    indices = {
        x: f"{axis} ({describe_axis(axis)})" if describe_axis(axis) != axis else axis
        for x, axis in network.axes.items()
    }
    tensors = {role: write_indexed(t.symbol, t.indices) for role, t in network.tensors.items()}
    record = {
        "architecture": network.name,
        "title": network.title,
        "equations": as_text(network),
        "letters": dict(network.axes),
        "tensors": tensors,
        "multipliers": list(network.multipliers),
        "quantities": _list_formulas(network),
    }
    blocks = [
        Heading(literal(f"{network.name}: {network.title}")),
        Heading("equations", 2),
        Lines.of(*equations),
        *_make_section("letters", indices.items()),
        *_make_section("tensors", tensors.items()),
        *_make_section("quantities", _list_formulas(network).items()),
    ]
    return Document(tuple(blocks), record)


GLOSSARY: Mapping[str, Mapping[str, str]] = {
    "words": TERMS,
    "parameterizations": {x.title: x.about for x in PARAMETERIZATIONS.values()},
    "mechanisms": {letter: f"{x['title']}. {x['picture']}." for letter, x in MECHANISMS.items()},
    "desiderata": DESIDERATA,
}


def find_words(word: str) -> dict[str, Mapping[str, str]]:
    """Finds the glossary entries of a word, such as ``B`` or ``mechanism B``, ignoring case.

    Returns:
        For the title of each section with such an entry, the entry and its meaning: ``{title: {word: meaning}}``.
    """
    rows: dict[str, Mapping[str, str]] = {}
    for title, entries in GLOSSARY.items():
        named = word.lower().removeprefix(f"{title.removesuffix('s')} ").strip()
        if found := {name: text for name, text in entries.items() if name.lower() == named}:
            rows[title] = found
    return rows


def glossary_document() -> Document:
    """Returns the glossary, and every quantity of the MoE block, as tables."""
    return sections_document({**GLOSSARY, "quantities": _list_formulas(MOE_BLOCK)}, {})


def _list_formulas(network: Network) -> dict[str, str]:
    return {q.name: q.formula for q in list_quantities(network).values()}


def _format_rates(rates: Mapping[str, Any]) -> str:
    return ",".join(f"{axis}={rate}" for axis, rate in rates.items())


def sections_document(sections: Mapping[str, Mapping[str, str]], head: Mapping[str, str]) -> Document:
    """Makes a table for each section.

    Args:
        sections: for each title the meaning of each name.
        head: entries at the beginning of the JSON record.
    """
    blocks = [block for title, rows in sections.items() for block in _make_section(title, rows.items())]
    return Document(tuple(blocks), {**head, **{title.partition(" ")[0]: rows for title, rows in sections.items()}})


def _make_section(title: str, rows: Iterable[Sequence[str]]) -> list[Heading | Grid]:
    return [Heading(title, 2), Grid.of(("name", "what it is"), rows)]
