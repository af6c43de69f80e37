"""Entries of vectors that grow, as random variables: combinations of independent standard Gaussians, and functions.

Entries of one vector are alike and independent in the limit, so a vector is one random variable, and an inner product
over n is an expectation. Combinations of Gaussians are exact. A function of combinations is integrated by quadrature
where at most three Gaussians enter; along experts, whose gates are functions of many, by samples; of more Gaussians,
and where steps are normalised entry by entry, at points.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
from scipy import stats
from scipy.stats import qmc

Values = np.ndarray[Any, np.dtype[np.float64]]

MOST = 3
"""Gaussians that a function may depend on."""
NODES = {0: 1, 1: 200, 2: 80, 3: 40}
"""Nodes of the quadrature in each direction, by the number of directions."""
NOISE = 4.0
"""Standard errors that a sampled expectation must differ from zero by."""
TINY = 1e-11
"""A squared norm below this, relative to what it is the rest of, is rounding."""


DIRECTIONS = 128
"""Gaussians that a sequence of points has."""


class NotCovered(Exception):
    """The limit goes on, but not here."""


class Many(NotCovered):
    """A function depends on more Gaussian vectors than are integrated."""


class Diverges(NotCovered):
    """Values are not finite, or too large to train on."""


@dataclass(frozen=True)
class Nonlinear:
    """A function of some random variables, entry by entry: ``function(*arguments)``, each a combination of atoms."""

    function: Callable[..., Values]
    arguments: tuple[Values, ...]
    rows: Values


@dataclass
class Space:
    """The random variables of one index that grows: an atom is a standard Gaussian (None), or a function of others.

    A variable is its coefficients over the atoms, along the last dimension; missing ones are zero.
    """

    atoms: list[Nonlinear | None] = field(default_factory=list)
    _products: dict[tuple[int, int], float] = field(default_factory=dict)

    @property
    def zero(self) -> Values:
        """The variable that is zero, (atoms,)."""
        return np.zeros(len(self.atoms))

    def gaussians(self, count: int, source: str) -> Values:
        """New independent standard Gaussians, (count, atoms), whatever tensor they come from."""
        self.atoms += [None] * count
        return np.eye(len(self.atoms))[-count:]

    def padded(self, x: Values) -> Values:
        """Coefficients over all atoms that there are."""
        return np.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, len(self.atoms) - x.shape[-1])])

    def function(self, function: Callable[..., Values], arguments: Iterable[Values]) -> Values:
        """A function of combinations, (atoms,).

        Raises:
            Many: too many Gaussians enter.
        """
        taken = tuple(self.padded(x) for x in arguments)
        self.atoms.append(Nonlinear(function, taken, self._rows(taken)))
        return np.eye(len(self.atoms))[-1]

    def inner(self, x: Values, y: Values) -> float:
        """The expectation of the product of two variables."""
        x, y = self.dual(x, y)
        return float(x @ y)

    def resolved(self, values: Values, products: Callable[[], Values]) -> Values:
        """Expectations, which are exact here."""
        return values

    def dual(self, x: Values, y: Values) -> tuple[Values, Values]:
        """Arrays whose products, summed over their last dimension, are the expectations of the products of x and y."""
        x, y = self.padded(x), self.padded(y)
        if any(self.atoms):
            gram, some = np.zeros((len(self.atoms),) * 2), [np.abs(v).reshape(-1, v.shape[-1]).any(0) for v in (x, y)]
            for i in np.flatnonzero(some[0]):
                for j in np.flatnonzero(some[1]):
                    gram[i, j] = self._product(*sorted((int(i), int(j))))
            x = x @ gram
        return x, y

    def _product(self, i: int, j: int) -> float:
        first, second = self.atoms[i], self.atoms[j]
        if first is None and second is None:
            return float(i == j)
        if (i, j) not in self._products:
            units = np.eye(len(self.atoms))
            if first is None or second is None:  # of a Gaussian, the part that the function depends on
                gaussian, inside = (i, second) if first is None else (j, first)
                assert inside is not None
                nodes, weights = quadrature(len(inside.rows))
                along = inside.rows[:, gaussian] if gaussian < inside.rows.shape[1] else np.zeros(len(inside.rows))
                values = (along @ nodes) * self._values(units[j if first is None else i], inside.rows, nodes)
            else:
                rows = self._rows([units[i], units[j]])
                nodes, weights = quadrature(len(rows))
                values = self._values(units[i], rows, nodes) * self._values(units[j], rows, nodes)
            self._products[i, j] = float(values @ weights)
        return self._products[i, j]

    def _rows(self, variables: Sequence[Values]) -> Values:
        """An orthonormal basis of the Gaussians that some variables depend on, (at most ``MOST``, atoms)."""
        count = len(self.atoms)
        rows = [np.zeros((0, count))]
        for x in map(self.padded, variables):
            parts = np.flatnonzero(np.abs(x) > TINY * np.abs(x).max(initial=0))
            linear = np.zeros(count)
            for k in parts:
                atom = self.atoms[k]
                if atom is None:
                    linear[k] = x[k]
                else:
                    rows.append(self.padded(atom.rows))
            if size := np.linalg.norm(linear):
                rows.append(linear[None] / size)
        _, sizes, basis = np.linalg.svd(np.concatenate(rows), full_matrices=False)
        basis = basis[sizes > 1e-7]
        if len(basis) > MOST:
            raise Many(f"depends on {len(basis)} Gaussian vectors, and {MOST} are integrated")
        return basis

    def _values(self, x: Values, rows: Values, nodes: Values) -> Values:
        """Values of a variable at the nodes."""
        x, rows = self.padded(x), self.padded(rows)
        values: Values = ((x * [atom is None for atom in self.atoms]) @ rows.T) @ nodes
        for k in np.flatnonzero(x):
            atom = self.atoms[k]
            if atom is not None:
                values = values + x[k] * atom.function(*(self._values(v, rows, nodes) for v in atom.arguments))
        return values


class Particles:
    """The random variables of the expert index: values at samples of the Gaussians that they depend on.

    The samples are closed under a change of sign of all Gaussians of one tensor, so what is odd in a tensor has mean
    zero to rounding; Gaussians of one tensor are orthonormal over the samples. An expectation within ``NOISE`` standard
    errors of zero counts as zero.

    Args:
        sources: tensors that bring Gaussians. count: samples, rounded to a multiple of 2^sources. draw: of the samples.
    """

    def __init__(self, sources: Sequence[str], count: int, draw: int) -> None:
        self.signs = {x: (np.arange(2 ** len(sources)) >> k & 1) * 2.0 - 1 for k, x in enumerate(sources)}
        self.patterns = 2 ** len(sources)
        self.drawn = np.random.default_rng([11, draw])
        self.base = max(1, count // self.patterns)
        self.known: dict[str, list[Values]] = {x: [] for x in sources}

    @property
    def zero(self) -> Values:
        """The variable that is zero, (samples,)."""
        return np.zeros(self.patterns * self.base)

    def gaussians(self, count: int, source: str) -> Values:
        """New standard Gaussians of a tensor, (count, samples).

        Raises:
            NotCovered: there are too many for so few samples.
        """
        sign, known, found = self.signs.get(source, np.ones(1)), self.known.setdefault(self.kin(source), []), []
        for _ in range(count):
            if len(known) > self.base / 4:
                raise NotCovered(f"more than {len(known)} Gaussian vectors enter: too many for {self.base} samples")
            x = self.fresh()
            for y in known:
                x = x - (x @ y / self.base) * y
            x = x / np.sqrt((x**2).mean())
            known.append(x)
            found.append(np.multiply.outer(sign, x).ravel())
        return np.stack(found)

    def fresh(self) -> Values:
        """A Gaussian before it is made orthonormal to its kin, (samples up to signs,)."""
        return self.drawn.standard_normal(self.base)

    def kin(self, source: str) -> str:
        """What a Gaussian of a tensor is orthonormal to, by name."""
        return source

    def padded(self, x: Values) -> Values:
        """The samples as they are."""
        return x

    def function(self, function: Callable[..., Values], arguments: Iterable[Values]) -> Values:
        """A function of variables, (samples,)."""
        return np.asarray(function(*arguments))

    def inner(self, x: Values, y: Values) -> float:
        """The expectation of the product of two variables."""
        product = x * y
        return float(self.resolved(np.asarray(product.mean()), lambda: product))

    def dual(self, x: Values, y: Values) -> tuple[Values, Values]:
        """Arrays whose products, summed over their last dimension, are the expectations of the products of x and y."""
        return x / x.shape[-1], y

    def resolved(self, values: Values, products: Callable[[], Values]) -> Values:
        """Means of ``products()``, (..., samples), with zero for those that the samples cannot tell from zero."""
        apart = products().reshape(*values.shape, self.patterns, self.base).mean(-2)
        error = apart.std(-1) / self.base**0.5
        found: Values = np.where(np.abs(values) > NOISE * error, values, 0.0)
        return found


class Points(Particles):
    """The random variables of an index of any kind: values at points that fill space evenly (Sobol), all alike likely.

    All Gaussians are orthonormal over the points, so that what is linear is exact; other expectations are off by what
    sets of points differ by.
    """

    def __init__(self, count: int, draw: int, axis: str) -> None:
        super().__init__((), count, draw)
        self.seeds, self.left = np.random.default_rng([12, draw, *map(ord, axis)]), list[Values]()

    def fresh(self) -> Values:
        if not self.left:
            points = qmc.Sobol(DIRECTIONS, rng=self.seeds).random(self.base)
            self.left = list(stats.norm.ppf(np.clip(points, 1e-12, 1 - 1e-12)).T[::-1])
        return self.left.pop()

    def kin(self, source: str) -> str:
        return ""

    def resolved(self, values: Values, products: Callable[[], Values]) -> Values:
        return values


@cache
def quadrature(directions: int) -> tuple[Values, Values]:
    """Nodes (directions, count) and weights (count,) of a standard Gaussian."""
    points, weights = np.polynomial.hermite_e.hermegauss(NODES[directions])
    grids = np.meshgrid(*[points] * directions, indexing="ij")
    products = np.meshgrid(*[weights / weights.sum()] * directions, indexing="ij")
    nodes = np.stack([g.ravel() for g in grids]) if directions else np.zeros((0, 1))
    return nodes, np.prod([w.ravel() for w in products], axis=0) if directions else np.ones(1)


@dataclass
class GaussianMatrix:
    """A Gaussian matrix with entries of variance ``std^2 / n``, by what it has been applied to.

    Law (master theorem, Yang and Hu 2021, App. H): W x = std g + std^2 sum_i y_i E[dx / dh_i], g a new Gaussian of
    variance E[x^2] and h_i that of W^T y_i; by Stein's lemma, for y_i of unit norm, orthogonal to each other, E[dx /
    dh_i] = E[h_i x] / std^2. Inputs are kept orthonormal, so that all Gaussians are independent.

    Attributes:
        spaces: of rows and of columns. name: of the tensor.
        known: for W and its transpose: inputs, their Gaussians and outputs.
    """

    std: float
    spaces: tuple[Space | Particles, Space | Particles]
    name: str
    known: tuple[list[tuple[Values, Values, Values]], ...] = field(default_factory=lambda: ([], []))

    def times(self, x: Values, transposed: bool) -> Values:
        """W x, or W^T x, (atoms,)."""
        target, source = self.spaces if not transposed else self.spaces[::-1]
        mine, other = self.known[transposed], self.known[not transposed]
        x = source.padded(x)
        rest, out, whole = x, target.zero, source.inner(x, x)
        for known, _, image in mine:
            part = source.inner(known, rest)
            rest, out = rest - part * source.padded(known), out + part * target.padded(image)
        size = source.inner(rest, rest)
        if whole and size > TINY * whole:
            unit = rest / size**0.5
            (gaussian,) = target.gaussians(1, self.name)
            image = self.std * gaussian
            for y, hat, _ in other:
                image = image + self.std * source.inner(hat, unit) * target.padded(y)
            mine.append((unit, gaussian, image))
            out = target.padded(out) + size**0.5 * image
        return out
