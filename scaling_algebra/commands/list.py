"""``scalecalc list``: every name the other commands accept, and what the words mean."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from scaling_algebra.documents import Document
from scaling_algebra.documents.blocks import Grid, Heading
from scaling_algebra.dynamics.quantities import quantities
from scaling_algebra.explanations.mechanisms import TITLES
from scaling_algebra.spec.axes import AXES, REGIMES
from scaling_algebra.spec.desiderata import ABOUT
from scaling_algebra.spec.glossary import TERMS
from scaling_algebra.spec.networks.library import ARCHITECTURES, MOE_BLOCK
from scaling_algebra.spec.optimizers import OPTIMIZERS
from scaling_algebra.spec.parameterizations import PARAMETERIZATIONS

from .options import ARCHITECTURE, emit, examples, printed


@click.command(
    "list",
    epilog=examples("scalecalc list", "scalecalc list --glossary -o glossary.md"),
)
@ARCHITECTURE
@click.option("--glossary", is_flag=True, help="What every word, quantity, desideratum and mechanism is.")
@printed
def command(architecture: str, glossary: bool, form: str | None, output: Path | None) -> None:
    """List every name the other commands accept, and the quantities of a network."""
    emit(glossary_document() if glossary else names_document(architecture), form, output)


def names_document(architecture: str) -> Document:
    """The registries, and the quantities of one network."""
    sections = {
        "axes": AXES,
        "regimes": {name: _rates(ray.rates) for name, ray in REGIMES.items()},
        "optimizers": {name: o.source or f"torch.optim.{o.torch}" for name, o in OPTIMIZERS.items()},
        "parameterizations": {name: f"{p.title}: {p.about}" for name, p in PARAMETERIZATIONS.items()},
        "architectures": {name: p.title for name, p in ARCHITECTURES.items()},
        f"quantities of {architecture}": _formulas(architecture),
    }
    return _sections(sections, {"architecture": architecture})


def glossary_document() -> Document:
    """The words, and every quantity, desideratum and mechanism of the MoE block."""
    sections = {
        "words": TERMS,
        "mechanisms": {letter: title for letter, title in TITLES.items()},
        "desiderata": ABOUT,
        "quantities": _formulas(MOE_BLOCK.name),
    }
    return _sections(sections, {})


def _formulas(architecture: str) -> dict[str, str]:
    return {q.name: q.formula for q in quantities(ARCHITECTURES[architecture]).values()}


def _rates(rates: Mapping[str, Any]) -> str:
    return ",".join(f"{axis}={rate}" for axis, rate in rates.items())


def _sections(sections: Mapping[str, Mapping[str, str]], head: Mapping[str, str]) -> Document:
    blocks = [block for title, rows in sections.items() for block in _section(title, rows.items())]
    return Document(
        tuple(blocks), {**head, **{title.partition(" ")[0]: dict(rows) for title, rows in sections.items()}}
    )


def _section(title: str, rows: Iterable[Sequence[str]]) -> list[Heading | Grid]:
    return [Heading(title, 2), Grid.of(("name", "what it is"), rows)]
