"""Sizes of signals at every parameter point at once: maxima of linear forms in the unknown b, c and alpha.

A signal is split by how often each unknown enters (its grade). All monomials of one grade move together when the
parameters change, so pruning among them is as certain as at one point, and what remains is the complete max-plus form.
Where that becomes too large, a change demanded to be O(1) may be replaced by its size alone, an unknown of its own.
Read next: ``prover.py`` (turns the forms into constraints).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from scaling_algebra.counting.kernels import Exhausted
from scaling_algebra.counting.signals import Algebra, Scalar, Signal
from scaling_algebra.dynamics.quantities import Quantity
from scaling_algebra.dynamics.trajectory import Trajectory, unknowns
from scaling_algebra.spec.axes import Ray
from scaling_algebra.spec.desiderata import Structure
from scaling_algebra.spec.networks.language import Network
from scaling_algebra.spec.optimizers import optimizer
from scaling_algebra.spec.powers import Form
from scaling_algebra.spec.scaling import Point

_FIELD = 12
"""Bits of one count in a grade; counts stay far below 2**12."""
_INNER = 1 << 400
"""Packed sizes are ``grade * _INNER + size``, with |size| far below _INNER / 2."""
_GAP = Fraction(1, 2)


@dataclass(frozen=True)
class Bounds:
    """What holds for the size of a quantity at every parameter point.

    Law: max of ``lower`` <= size <= max of ``upper``. Forms in both are exact. Without any ``upper`` the quantity is
    exactly zero.
    """

    lower: tuple[Form, ...]
    upper: tuple[Form, ...]


@dataclass(slots=True)
class Graded(Signal):
    """A signal split by grade; ``terms`` and ``tail`` of the base class are unused."""

    parts: dict[int, Signal] = field(default_factory=dict)

    @property
    def zero(self) -> bool:
        return all(s.zero for s in self.parts.values())


class FormAlgebra(Algebra):
    """The algebra of graded signals: every operation acts on the grades apart.

    Args:
        names: the unknowns; a factor n^-x of an unknown x counts once.
    """

    def __init__(self, ray: Ray, letters: Mapping[str, str], names: Sequence[str]) -> None:
        super().__init__(ray, letters, (), _GAP)
        self.names = tuple(names)

    def pack(self, value: Fraction, axes: Mapping[str, Fraction | int], unknowns: Mapping[str, int]) -> int:
        inner = super().pack(value, axes, {})
        return inner + _INNER * sum(-n << _FIELD * self.names.index(name) for name, n in unknowns.items())

    def tensor(self, name: str, letters: str, exponent: int, indices: str | None = None) -> Signal:
        grade, inner = _split(exponent)
        s = super().tensor(name, letters, inner, indices)
        return Graded(s.letters, {}, leaf=s.leaf, parts={grade: s})

    def constant(self, letters: str, exponent: int = 0) -> Signal:
        grade, inner = _split(exponent)
        s = super().constant(letters, inner)
        return Graded(s.letters, {}, parts={grade: s})

    def sized(self, letters: str, unknown: str) -> Signal:
        """A signal of which only the size n^-unknown is known: an upper bound."""
        grade, inner = _split(self.pack(Fraction(0), {}, {unknown: -1}))
        live = self.live(letters)
        return Graded(live, {}, parts={grade: Signal(live, {}, tail=inner)})

    def nothing(self, letters: str) -> Signal:
        return Graded(self.live(letters), {})

    def scaled(self, s: Signal, *scalars: Scalar) -> Signal:
        grade, inner = _split(sum(x.size for x in scalars))
        parts = {g + grade: Algebra.scaled(self, x, Scalar("", inner)) for g, x in _parts(s).items()}
        return Graded(s.letters, {}, parts=parts)

    def add(self, signals: Iterable[Signal]) -> Signal:
        given = self._aligned(signals)
        grades: dict[int, list[Signal]] = {}
        for s in given:
            for g, x in _parts(s).items():
                grades.setdefault(g, []).append(x)
        return Graded(given[0].letters, {}, parts={g: Algebra.add(self, xs) for g, xs in grades.items()})

    def relabelled(self, s: Signal, old: str, new: str) -> Signal:
        whole = super().relabelled(s, old, new)
        parts = {g: Algebra.relabelled(self, x, old, new) for g, x in _parts(s).items()}
        return Graded(whole.letters, {}, leaf=whole.leaf, parts=parts)

    def contract(self, a: Signal, b: Signal, out: str, tag: str = "") -> Signal:
        out = self.live(out)
        grades: dict[int, list[Signal]] = {}
        for ga, x in _parts(a).items():
            for gb, y in _parts(b).items():
                grades.setdefault(ga + gb, []).append(Algebra.contract(self, x, y, out))
        return Graded(out, {}, parts={g: Algebra.add(self, xs) for g, xs in grades.items()})

    def bounds(self, s: Signal) -> Bounds:
        """Forms of the root-mean-square of a signal."""
        parts = _parts(s)
        sizes = {g: (self.rms(x), self.bound(x)) for g, x in parts.items()}
        return Bounds(
            tuple(self._graded(g, low) for g, (low, _) in sizes.items() if low is not None),
            tuple(self._graded(g, high) for g, (_, high) in sizes.items() if high is not None),
        )

    def _deterministic(self, s: Signal) -> bool:
        return all(Algebra._deterministic(self, x) for x in _parts(s).values())

    def _graded(self, grade: int, packed: int) -> Form:
        counts = ((name, grade >> _FIELD * k & (1 << _FIELD) - 1) for k, name in enumerate(self.names))
        return Form(self.form(packed).power, tuple((name, -n) for name, n in counts if n))


def _split(packed: int) -> tuple[int, int]:
    inner = (packed + _INNER // 2) % _INNER - _INNER // 2
    return (packed - inner) // _INNER, inner


def _parts(s: Signal) -> dict[int, Signal]:
    assert isinstance(s, Graded)
    return s.parts


def size_of(signal: str) -> str:
    """The unknown s with n^-s the size of every later change of a signal."""
    return f"size.{signal}"


def form_algebra(network: Network, ray: Ray) -> FormAlgebra:
    """The algebra whose unknowns are those of a network, and the sizes of its signals."""
    return FormAlgebra(ray, network.letters, (*unknowns(network), *(size_of(x) for x in network.signals)))


class FormTrajectory(Trajectory):
    """Training by gradient descent with unknown b, c and alpha.

    Args:
        sized: signals whose later changes are taken by their size alone.
        exact: number of updates up to which every change is exact all the same.
    """

    def __init__(
        self,
        network: Network,
        algebra: FormAlgebra,
        structure: Structure,
        sized: frozenset[str] = frozenset(),
        exact: int = 1,
    ) -> None:
        zero = dict.fromkeys(network.tensors, Fraction(0))
        b = {role: None if role in structure.zero else Fraction(0) for role in network.tensors}
        super().__init__(network, algebra, Point(b, zero, zero, {}, structure.tied), optimizer("sgd"))
        self.forms, self._sized, self._exact = algebra, sized, exact

    def relative(self, signal: Signal, source: str, t: int) -> Signal:
        """Raises Exhausted: the quotient of two maxima of forms is none."""
        raise Exhausted

    def bounds(self, quantity: Quantity, t: int) -> Bounds:
        """Forms of the size of a quantity.

        Raises:
            Exhausted: the forms are too many for the work left to the algebra.
        """
        read = quantity.read(self, t)
        assert isinstance(read, Signal)
        return self.forms.bounds(read)

    def change(self, signal: str, t: int) -> Signal:
        if t > self._exact and signal in self._sized:
            return self.forms.sized(self.network.signals[signal], size_of(signal))
        return super().change(signal, t)

    def _rate(self, role: str, step: int) -> tuple[Scalar, ...]:
        return (Scalar(f"lr of {role}", self.algebra.pack(Fraction(0), {}, {f"c.{role}": -1})),)
