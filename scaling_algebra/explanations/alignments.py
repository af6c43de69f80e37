"""Computes the alignment exponents p and q of every linear map, forward and backward, from the engine.

Source: MSSP paper, App. I.1.2 (eq. I.3).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction

from scaling_algebra.counting.kernels import Exhausted
from scaling_algebra.documents import Rendered
from scaling_algebra.dynamics.run import BeyondPowerCounting
from scaling_algebra.solver.derivation import Derivation
from scaling_algebra.spec.desiderata import HORIZON
from scaling_algebra.spec.networks.language import Product


@dataclass(frozen=True)
class Alignment:
    """The alignment exponents of one linear map (MSSP paper, App. I.1.2, eq. I.3).

    Forward they are defined by ``|dW x| = fan^p |dW| |x|`` and ``|W_0 dx| = fan^q |W_0| |dx|``, where fan is the
    fan-in. Backward, the map is transposed, the gradient takes the place of x and dx, and fan is the fan-out. An
    exponent is None if the fan does not grow, a factor is exactly zero, or a size is not certified.

    Attributes:
        role: the tensor of the map.
        p: forward exponent of the update.
        q: forward exponent of the initial tensor.
        p_back: backward exponent of the update.
        q_back: backward exponent of the initial tensor.
    """

    role: str
    p: Fraction | None
    q: Fraction | None
    p_back: Fraction | None
    q_back: Fraction | None


@dataclass(frozen=True, repr=False)
class Alignments(Rendered):
    """Alignment exponents of every linear map after some updates.

    Attributes:
        derivation: the parameterization.
        step: number of updates.
        maps: the exponents of each map.
    """

    derivation: Derivation
    step: int
    maps: tuple[Alignment, ...]

    def __iter__(self) -> Iterator[Alignment]:
        return iter(self.maps)

    @property
    def about(self) -> str:
        return f"alignment exponents after {self.step} updates"


def alignments(d: Derivation) -> Alignments:
    """Computes the alignment exponents of every linear map after ``HORIZON`` updates."""
    maps = tuple(_alignment(d, statement, HORIZON) for statement in d.network.linear if len(statement.factors) == 1)
    return Alignments(d, HORIZON, maps)


def _alignment(d: Derivation, statement: Product, t: int) -> Alignment:
    """Computes the exponents of one linear map: size of the product / (sizes of its factors), as a power of the fan."""
    assert statement.tensor
    (source,), role, look = statement.factors, statement.tensor.name, d.analysis()
    tensor, std = d.network.tensors[role], d.scaling.tensors[role].init_std
    w0, dw = None if std is None else std.on(d.ray), look(f"d{tensor.symbol}", t).size
    sizes: list[Fraction | None] = [None] * 7
    with suppress(LookupError, Exhausted, BeyondPowerCounting):
        run = look.run(statement.out, t)
        g = run.gradient(statement.out, t)
        back = source.indices + "".join(x for x in run.network.tensors[role].experts if x not in source.indices)
        signals = (
            run.read_factor(source, "value", t),
            run.read_factor(source, "change", t),
            g,
            run.part(statement, "update", "value", t),
            run.part(statement, "init", "change", t),
            run.transpose_product(statement, 0, g, t, {role: "update"}, back),
            run.transpose_product(statement, 0, g, t, {role: "init"}, back),
        )
        certified = [run.algebra.rms(s) if run.algebra.is_certified(s) else None for s in signals]
        sizes = [None if size is None else run.algebra.exponent(size) for size in certified]
    x, dx, gradient, dw_x, w0_dx, dw_g, w0_g = sizes

    def over(indices: str, total: Fraction | None, weight: Fraction | None, acted: Fraction | None) -> Fraction | None:
        rate = sum((d.ray[axis] for x in indices if (axis := d.network.axes[x]) != "D"), Fraction(0))
        if not rate or total is None or weight is None or acted is None:
            return None
        return (total - weight - acted) / rate

    forward = over(tensor.fan_in, dw_x, dw, x), over(tensor.fan_in, w0_dx, w0, dx)
    return Alignment(role, *forward, over(tensor.fan_out, dw_g, dw, gradient), over(tensor.fan_out, w0_g, w0, gradient))
