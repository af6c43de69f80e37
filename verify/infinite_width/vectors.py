"""Represents the entries of growing vectors as random variables: combinations of independent standard Gaussians, and
functions of them.

In the limit the entries of a vector are independent and identically distributed. A vector is therefore one random
variable, and an inner product over n is an expectation. Combinations of Gaussians are exact. A function of combinations
is integrated by quadrature if at most three Gaussians enter; by samples along experts, whose gates are functions of
many; and at points if more Gaussians enter or steps are normalised entry by entry.
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
"""Maximum number of Gaussians on which a function may depend."""
NODES = {0: 1, 1: 200, 2: 80, 3: 40}
"""Nodes of the quadrature in each direction, by the number of directions."""
NOISE = 4.0
"""Number of standard errors by which a sampled expectation must differ from zero, else it counts as zero."""
TINY = 1e-11
"""A remainder whose squared norm, relative to that of the whole, is below this is a rounding error."""


DIRECTIONS = 128
"""Number of Gaussians that one sequence of points provides."""


class NotCovered(Exception):
    """Raised if the limit exists beyond this update but cannot be computed here."""


class Many(NotCovered):
    """Raised if a function depends on more Gaussian vectors than can be integrated."""


class Diverges(NotCovered):
    """Raised if values are not finite, or too large for further training."""


@dataclass(frozen=True)
class Nonlinear:
    """A random variable that is a function of others; it represents an elementwise function of growing vectors.

    Attributes:
        function: the function.
        arguments: each argument, by its coefficients over the atoms of its ``Space``.
        rows: orthonormal basis of the combinations of Gaussians on which the arguments depend, (directions, atoms).
    """

    function: Callable[..., Values]
    arguments: tuple[Values, ...]
    rows: Values


@dataclass
class Space:
    """The random variables that represent the entries of vectors along one growing index.

    Every variable is a linear combination of basic ones, the atoms, and is given by its coefficients over them along
    the last dimension of an array. Atoms are added in the course of the computation; coefficients of atoms added later
    may be missing and are zero.

    Attributes:
        atoms: the basic variables in the order in which they were added: None for an independent standard Gaussian,
            or a
            function of earlier atoms.
    """

    atoms: list[Nonlinear | None] = field(default_factory=list)
    _products: dict[tuple[int, int], float] = field(default_factory=dict)

    @property
    def zero(self) -> Values:
        """The random variable that is always zero, as coefficients over the atoms: an array of shape (atoms,)."""
        return np.zeros(len(self.atoms))

    def gaussians(self, count: int, source: str) -> Values:
        """Adds independent standard Gaussians and returns their coefficients over the atoms, (count, atoms).

        ``source``, the tensor to which they belong, matters only for samples and is ignored here.
        """
        self.atoms += [None] * count
        return np.eye(len(self.atoms))[-count:]

    def pad(self, x: Values) -> Values:
        """Pads coefficients with zeros for the atoms that were added later, (..., atoms)."""
        return np.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, len(self.atoms) - x.shape[-1])])

    def function(self, function: Callable[..., Values], arguments: Iterable[Values]) -> Values:
        """Adds a function of variables as a new atom, and returns this variable by its coefficients, (atoms,).

        Args:
            function: the function, elementwise on arrays.
            arguments: the variables, by their coefficients.

        Raises:
            Many: the function depends on too many Gaussians.
        """
        taken = tuple(self.pad(x) for x in arguments)
        self.atoms.append(Nonlinear(function, taken, self._rows(taken)))
        return np.eye(len(self.atoms))[-1]

    def inner(self, x: Values, y: Values) -> float:
        """Returns the expectation of the product of two variables."""
        x, y = self.dual(x, y)
        return float(x @ y)

    def zero_unresolved(self, values: Values, products: Callable[[], Values]) -> Values:
        """Returns the expectations ``values`` unchanged: here they are exact, so that a small one is not noise."""
        return values

    def dual(self, x: Values, y: Values) -> tuple[Values, Values]:
        """Returns two arrays whose products, summed over the last dimension, are the expectations of the products of
        x and y."""
        x, y = self.pad(x), self.pad(y)
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
            if first is None or second is None:  # the part of the Gaussian that the function depends on
                gaussian, inside = (i, second) if first is None else (j, first)
                assert inside is not None
                nodes, weights = build_quadrature(len(inside.rows))
                along = inside.rows[:, gaussian] if gaussian < inside.rows.shape[1] else np.zeros(len(inside.rows))
                values = (along @ nodes) * self._values(units[j if first is None else i], inside.rows, nodes)
            else:
                rows = self._rows([units[i], units[j]])
                nodes, weights = build_quadrature(len(rows))
                values = self._values(units[i], rows, nodes) * self._values(units[j], rows, nodes)
            self._products[i, j] = float(values @ weights)
        return self._products[i, j]

    def _rows(self, variables: Sequence[Values]) -> Values:
        """Returns an orthonormal basis of the combinations of Gaussians on which some variables depend.

        Its shape is (directions, atoms).

        Raises:
            Many: there are more than ``MOST`` directions.
        """
        count = len(self.atoms)
        rows = [np.zeros((0, count))]
        for x in map(self.pad, variables):
            parts = np.flatnonzero(np.abs(x) > TINY * np.abs(x).max(initial=0))
            linear = np.zeros(count)
            for k in parts:
                atom = self.atoms[k]
                if atom is None:
                    linear[k] = x[k]
                else:
                    rows.append(self.pad(atom.rows))
            if size := np.linalg.norm(linear):
                rows.append(linear[None] / size)
        _, sizes, basis = np.linalg.svd(np.concatenate(rows), full_matrices=False)
        basis = basis[sizes > 1e-7]
        if len(basis) > MOST:
            raise Many(f"depends on {len(basis)} Gaussian vectors, but at most {MOST} can be integrated over")
        return basis

    def _values(self, x: Values, rows: Values, nodes: Values) -> Values:
        """Evaluates a variable at the nodes of a quadrature.

        Args:
            x: coefficients of the variable over the atoms.
            rows: orthonormal basis of the Gaussians, (directions, atoms).
            nodes: values of these directions at every node, (directions, nodes).
        """
        x, rows = self.pad(x), self.pad(rows)
        values: Values = ((x * [atom is None for atom in self.atoms]) @ rows.T) @ nodes
        for k in np.flatnonzero(x):
            atom = self.atoms[k]
            if atom is not None:
                values = values + x[k] * atom.function(*(self._values(v, rows, nodes) for v in atom.arguments))
        return values


class Particles:
    """The random variables along the expert index, each given by its values at random samples of all Gaussians.

    For each sample there is another one in which all Gaussians of one tensor have the opposite sign, so that the mean
    of an odd function of a tensor is zero up to rounding. Gaussians of one tensor are orthonormal over the samples. An
    expectation within ``NOISE`` standard errors of zero counts as zero.

    Args:
        sources: tensors that contribute Gaussians.
        count: number of samples, rounded to a multiple of 2^sources.
        draw: seed of the samples.
    """

    def __init__(self, sources: Sequence[str], count: int, draw: int) -> None:
        self.signs = {x: (np.arange(2 ** len(sources)) >> k & 1) * 2.0 - 1 for k, x in enumerate(sources)}
        self.patterns = 2 ** len(sources)
        self.drawn = np.random.default_rng([11, draw])
        self.base = max(1, count // self.patterns)
        self.known: dict[str, list[Values]] = {x: [] for x in sources}

    @property
    def zero(self) -> Values:
        """The random variable that is always zero, as its values at all samples: an array of shape (samples,)."""
        return np.zeros(self.patterns * self.base)

    def gaussians(self, count: int, source: str) -> Values:
        """Draws the samples of new standard Gaussians that belong to the tensor ``source``, (count, samples).

        Raises:
            NotCovered: there are too many of them for the number of samples.
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
        """Draws samples of a further Gaussian. The caller makes it orthonormal to the others, and adds the samples with
        the opposite sign.
        """
        return self.drawn.standard_normal(self.base)

    def kin(self, source: str) -> str:
        """Returns a name for the group of Gaussians that belong to the same tensor; they are made orthonormal to
        each other."""
        return source

    def pad(self, x: Values) -> Values:
        """Returns the samples unchanged: unlike coefficients in a ``Space``, they are always complete."""
        return x

    def function(self, function: Callable[..., Values], arguments: Iterable[Values]) -> Values:
        """Returns a function of variables by its values at all samples, (samples,)."""
        return np.asarray(function(*arguments))

    def inner(self, x: Values, y: Values) -> float:
        """Returns the expectation of the product of two variables."""
        product = x * y
        return float(self.zero_unresolved(np.asarray(product.mean()), lambda: product))

    def dual(self, x: Values, y: Values) -> tuple[Values, Values]:
        """Returns two arrays whose products, summed over the last dimension, are the expectations of the products of
        x and y."""
        return x / x.shape[-1], y

    def zero_unresolved(self, values: Values, products: Callable[[], Values]) -> Values:
        """Replaces means over samples by zero where they are within ``NOISE`` standard errors of zero.

        Args:
            values: the means.
            products: returns the samples of which they are the means, (..., samples).
        """
        apart = products().reshape(*values.shape, self.patterns, self.base).mean(-2)
        error = apart.std(-1) / self.base**0.5
        found: Values = np.where(np.abs(values) > NOISE * error, values, 0.0)
        return found


class Points(Particles):
    """The random variables along any growing index, given by their values at points that replace random samples.

    The points have equal weight and fill space more evenly than random ones (a Sobol sequence). All Gaussians are
    orthonormal over them, so that expectations of products of linear functions are exact. The error of other
    expectations is estimated from several sets of points.
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

    def zero_unresolved(self, values: Values, products: Callable[[], Values]) -> Values:
        return values


@cache
def build_quadrature(directions: int) -> tuple[Values, Values]:
    """Returns nodes (directions, count) and weights (count,) for integrals over independent standard Gaussians, as many
    as ``directions``.
    """
    points, weights = np.polynomial.hermite_e.hermegauss(NODES[directions])
    grids = np.meshgrid(*[points] * directions, indexing="ij")
    products = np.meshgrid(*[weights / weights.sum()] * directions, indexing="ij")
    nodes = np.stack([g.ravel() for g in grids]) if directions else np.zeros((0, 1))
    return nodes, np.prod([w.ravel() for w in products], axis=0) if directions else np.ones(1)


@dataclass
class GaussianMatrix:
    """An infinite Gaussian matrix W with entries of variance ``std^2 / n``, represented by the vectors to which it has
    been applied so far and the results.

    Law (master theorem, Yang and Hu 2021, App. H): W x = std g + std^2 sum_i y_i E[dx / dh_i], g a new Gaussian of
    variance E[x^2] and h_i that of W^T y_i; by Stein's lemma, for y_i of unit norm, orthogonal to each other, E[dx /
    dh_i] = E[h_i x] / std^2. Inputs are kept orthonormal, so that all Gaussians are independent.

    Attributes:
        std: standard deviation of the entries times n^(1/2).
        spaces: random variables along the rows and along the columns.
        name: name of the tensor.
        known: for W, and for its transpose: one triple (input, new Gaussian g, output) for each vector to which it has
            been applied.
    """

    std: float
    spaces: tuple[Space | Particles, Space | Particles]
    name: str
    known: tuple[list[tuple[Values, Values, Values]], ...] = field(default_factory=lambda: ([], []))

    def times(self, x: Values, transposed: bool) -> Values:
        """Returns W x, or W^T x if ``transposed``, as a random variable: coefficients over atoms, or samples."""
        target, source = self.spaces if not transposed else self.spaces[::-1]
        mine, other = self.known[transposed], self.known[not transposed]
        x = source.pad(x)
        rest, out, whole = x, target.zero, source.inner(x, x)
        for known, _, image in mine:
            part = source.inner(known, rest)
            rest, out = rest - part * source.pad(known), out + part * target.pad(image)
        size = source.inner(rest, rest)
        if whole and size > TINY * whole:
            unit = rest / size**0.5
            (gaussian,) = target.gaussians(1, self.name)
            image = self.std * gaussian
            for y, hat, _ in other:
                image = image + self.std * source.inner(hat, unit) * target.pad(y)
            mine.append((unit, gaussian, image))
            out = target.pad(out) + size**0.5 * image
        return out
