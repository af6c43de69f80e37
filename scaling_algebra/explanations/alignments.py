"""Alignment exponents p and q of every linear map, forward and backward, read off the engine.

Source: MSSP paper, App. I.1.2 (eq. I.3). Read next: ``presentation.py`` (what they say).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from scaling_algebra.counting.kernels import Exhausted
from scaling_algebra.counting.signals import Signal
from scaling_algebra.documents import Rendered
from scaling_algebra.dynamics.analysis import Analysis
from scaling_algebra.dynamics.run import BeyondPowerCounting
from scaling_algebra.dynamics.trajectory import Trajectory
from scaling_algebra.solver.demands import HORIZON
from scaling_algebra.solver.derivation import Derivation
from scaling_algebra.spec.networks.language import Product


@dataclass(frozen=True)
class Alignment:
    """Alignment exponents of one linear map (MSSP paper, App. I.1.2, eq. I.3).

    ``|dW x| = fan^p |dW| |x|`` and ``|W_0 dx| = fan^q |W_0| |dx|`` forward, with fan the fan-in; backward with the
    transposed map, the whole gradient in place of dx and the fan-out. None where the fan does not grow, a factor is
    exactly zero or a size is not certified.
    """

    role: str
    p: Fraction | None
    q: Fraction | None
    p_back: Fraction | None
    q_back: Fraction | None


@dataclass(frozen=True, repr=False)
class Alignments(Rendered):
    """Alignment exponents of every linear map after some updates."""

    derivation: Derivation
    step: int
    maps: tuple[Alignment, ...]

    def __iter__(self) -> Iterator[Alignment]:
        return iter(self.maps)

    @property
    def about(self) -> str:
        return f"alignment exponents after {self.step} updates"


def alignments(d: Derivation, look: Analysis | None = None, t: int = HORIZON) -> Alignments:
    """Alignment exponents of every linear map after t updates."""
    look = look or d.analysis()
    maps = tuple(_alignment(d, look, statement, t) for statement in d.network.linear if len(statement.factors) == 1)
    return Alignments(d, t, maps)


def _alignment(d: Derivation, look: Analysis, statement: Product, t: int) -> Alignment:
    """Read off the engine; each exponent is what is left of a product's size after its factors', per fan exponent."""
    tensor = d.network.tensors[_role(statement)]
    sizes = _map_sizes(look, statement, t)
    b = d.exponents(_role(statement))[0]
    w0, dw = (None if b is None else -b), look(f"d{tensor.symbol}", t).size

    def over(letters: str, total: Fraction | None, *factors: Fraction | None) -> Fraction | None:
        axes = [d.network.axes[x] for x in letters]
        rate = sum((d.ray[axis] for axis in axes if axis != "D"), Fraction(0))
        if not rate or total is None or None in factors:
            return None
        return (total - sum((x for x in factors if x is not None), Fraction(0))) / rate

    g = sizes["gradient"]
    return Alignment(
        _role(statement),
        over(tensor.fan_in, sizes["dW x"], dw, sizes["x"]),
        over(tensor.fan_in, sizes["W0 dx"], w0, sizes["dx"]),
        over(tensor.fan_out, sizes["dW^T g"], dw, g),
        over(tensor.fan_out, sizes["W0^T g"], w0, g),
    )


def _map_sizes(look: Analysis, statement: Product, t: int) -> dict[str, Fraction | None]:
    try:
        run = look.run(statement.out, t)
        return _certified_sizes(run, statement, t)
    except (LookupError, Exhausted, BeyondPowerCounting):
        return dict.fromkeys(("x", "dx", "gradient", "dW x", "W0 dx", "dW^T g", "W0^T g"))


def _certified_sizes(run: Trajectory, statement: Product, t: int) -> dict[str, Fraction | None]:
    (source,), role = statement.factors, _role(statement)
    x, dx = run.at(source, "value", t), run.at(source, "change", t)
    g = run.gradient(statement.out, t)
    experts = run.network.tensors[role].experts
    back = source.letters + "".join(c for c in experts if c not in source.letters)
    whole: dict[str, Signal] = {"x": x, "dx": dx, "gradient": g}
    whole["dW x"] = run.part(statement, "update", "value", t)
    whole["W0 dx"] = run.part(statement, "init", "change", t)
    whole["dW^T g"] = run.transposed(statement, 0, g, t, {role: "update"}, back)
    whole["W0^T g"] = run.transposed(statement, 0, g, t, {role: "init"}, back)
    sizes = {name: run.algebra.rms(s) if run.algebra.certified(s) else None for name, s in whole.items()}
    return {name: None if size is None else run.algebra.value(size) for name, size in sizes.items()}


def _role(statement: Product) -> str:
    assert statement.tensor
    return statement.tensor.name
