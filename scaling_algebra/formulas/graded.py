"""Sizes of signals at every parameter point at once: maxima of linear forms in the unknown b, c and alpha.

A signal is split by how often each unknown enters (its grade). All monomials of one grade move together when the
parameters change, so pruning among them is as certain as at one point, and what remains is the complete max-plus form.
Where that becomes too large, a change demanded to be O(1) may be replaced by its size alone, an unknown of its own.
What a step divides by (Adam's normaliser) is a maximum itself, and an unknown of its own, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from scaling_algebra.counting.algebra import Algebra
from scaling_algebra.counting.kernels import Exhausted
from scaling_algebra.counting.signals import Scalar, Signal
from scaling_algebra.dynamics.quantities import Quantity
from scaling_algebra.dynamics.run import PLAIN, RunContext, unknowns
from scaling_algebra.dynamics.trajectory import Trajectory
from scaling_algebra.spec.axes import Ray
from scaling_algebra.spec.desiderata import Structure
from scaling_algebra.spec.networks.indices import centred, tracked
from scaling_algebra.spec.networks.language import Network
from scaling_algebra.spec.optimizers import OPTIMIZERS, Trained
from scaling_algebra.spec.powers import Form

_FIELD = 12
"""Bits of one count in a grade; counts stay far below 2**11."""
_INNER = 1 << 400
"""Packed sizes are ``grade * _INNER + size``, with |size| far below _INNER / 2."""
_GAP = Fraction(1, 2)
STEPS = 4
"""Steps whose divisors are told apart."""


@dataclass(frozen=True)
class Bounds:
    """Bounds on the size of a quantity at every parameter point.

    Law: max of ``lower`` <= size <= max of ``upper``. Forms in both are exact. Without any ``upper`` the quantity is
    exactly zero.
    """

    lower: tuple[Form, ...]
    upper: tuple[Form, ...]


Sizes = dict[int, tuple[int | None, int]]
"""Of each grade the packed size that its kernels show, if any, and an upper bound."""


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
        tracked, centred: see ``Algebra``.
        most: grades that a product may have.
    """

    def __init__(
        self,
        ray: Ray,
        letters: Mapping[str, str],
        names: Sequence[str],
        tracked: str = "",
        most: int | None = None,
        centred: frozenset[str] = frozenset(),
    ) -> None:
        super().__init__(ray, letters, (), _GAP, tracked, centred)
        self.names, self.most = tuple(names), most

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

    def marked(self, name: str, letters: str, along: str) -> Signal:
        s = super().marked(name, letters, along)
        return Graded(s.letters, {}, parts={0: s})

    def centred(self, s: Signal, letter: str, ignoring: str = "") -> Signal:
        if not isinstance(s, Graded):  # inside a product, one grade at a time
            return Algebra.centred(self, s, letter, ignoring)
        varying = {g: x for g, x in s.parts.items() if letter not in x.flat}
        parts = {g: Algebra.centred(self, x, letter, ignoring) for g, x in varying.items()}
        return Graded(s.letters, {}, parts=parts)

    def uncentred(self, s: Signal) -> Signal:
        bounds = {
            g: {c: Signal(x.letters, {}, Algebra.bound(self, x)) for c in x.centred} for g, x in _parts(s).items()
        }
        return Graded(s.letters, {}, parts={g: x.but(centred=bounds[g]) for g, x in _parts(s).items()})

    def restricted(self, s: Signal, letter: str, to: str) -> Signal:
        parts = {g: Algebra.restricted(self, x, letter, to) for g, x in _parts(s).items()}
        return Graded(s.letters.replace(letter, to), {}, parts=parts) if letter in s.letters else s

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
                grades.setdefault(ga + gb, []).append(Algebra.contract(self, x, y, out, tag))
                if self.rung.total is not None and self.spent > self.rung.total:
                    raise Exhausted
        if self.most is not None and len(grades) > self.most:
            raise Exhausted
        return Graded(out, {}, parts={g: Algebra.add(self, xs) for g, xs in grades.items()})

    def sizes(self, s: Signal) -> Sizes:
        """The root-mean-square of each grade that is not exactly zero."""
        sizes = {g: (self.rms(x), self.bound(x)) for g, x in _parts(s).items()}
        return {g: (low, high) for g, (low, high) in sizes.items() if high is not None}

    def bounds(self, s: Signal) -> Bounds:
        """Forms of the root-mean-square of a signal."""
        sizes = self.sizes(s).items()
        return Bounds(
            tuple(self.graded(g, low) for g, (low, _) in sizes if low is not None),
            tuple(self.graded(g, high) for g, (_, high) in sizes),
        )

    def graded(self, grade: int, packed: int) -> Form:
        """The form of a size in a grade."""
        counts = []
        for name in self.names:
            low = grade & (1 << _FIELD) - 1
            low -= low >> _FIELD - 1 << _FIELD
            grade = grade - low >> _FIELD
            counts.append((name, -low))
        return Form(self.form(packed).power, tuple((name, n) for name, n in counts if n))

    def _deterministic(self, s: Signal) -> bool:
        return all(Algebra._deterministic(self, x) for x in _parts(s).values())


def _split(packed: int) -> tuple[int, int]:
    inner = (packed + _INNER // 2) % _INNER - _INNER // 2
    return (packed - inner) // _INNER, inner


def _parts(s: Signal) -> dict[int, Signal]:
    assert isinstance(s, Graded)
    return s.parts


def size_of(signal: str) -> str:
    """The unknown s with n^-s the size of every later change of a signal."""
    return f"size.{signal}"


def divisor(role: str, step: int) -> str:
    """The unknown v with n^-v what the gradient of a tensor is divided by at a step, counted from 0."""
    return f"v.{role}.{step}"


def form_algebra(
    network: Network,
    ray: Ray,
    growing: frozenset[str] = frozenset(),
    most: int | None = None,
) -> FormAlgebra:
    """The algebra whose unknowns are those of a network, what its steps divide by, and the sizes of its signals.

    Args:
        growing: axes whose indices are kept even where they do not grow on the ray.
        most: forms that a product may have.
    """
    letters = network.letters
    steps = (divisor(role, step) for role in network.tensors for step in range(STEPS))
    names = (*unknowns(network), *steps, *(size_of(x) for x in network.signals))
    kept = "".join(x for x, axis in letters.items() if axis in growing)
    return FormAlgebra(ray, letters, names, kept + tracked(network), most, centred(network))


class FormTrajectory(Trajectory):
    """Training with unknown b, c and alpha, and unknown divisors where the optimizer normalises.

    Args:
        sized: signals whose changes after the first update are taken by their size alone.
    """

    def __init__(
        self,
        network: Network,
        algebra: FormAlgebra,
        structure: Structure,
        sized: frozenset[str] = frozenset(),
        optimizer: Trained = OPTIMIZERS["sgd"],
        context: RunContext = PLAIN,
    ) -> None:
        self.forms, self._sized = algebra, sized
        super().__init__(network, algebra, structure.point(network, {}), optimizer, context)

    def relative(self, signal: Signal, source: str, t: int) -> Signal:
        """Raises Exhausted: the quotient of two maxima of forms is none."""
        raise Exhausted

    def weighed(self, loss: str, signal: str, t: int) -> Signal:
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

    def sizes(self, quantity: Quantity, t: int) -> Sizes:
        """The size of a quantity, grade by grade: of a tensor's update or gradient the size of an entry.

        Law: rms(u v) = rms(u) rms(v) where no index is summed.

        Raises:
            Exhausted: it takes more work than the rung of the algebra has.
        """
        role = quantity.tensor
        if not role:
            return self.forms.sizes(quantity.read(self, t))
        if quantity.name.startswith("g"):
            return _largest(self._outer(role, factors) for factors in self.factors(role, t))
        steps = self._updates(role, t)
        return _largest(_times(self._outer(role, x.factors), sum(y.size for y in x.scalars)) for x in steps)

    def change(self, signal: str, t: int) -> Signal:
        if t > 1 and signal in self._sized:
            return self.forms.sized(self.network.signals[signal], size_of(signal))
        return super().change(signal, t)

    def _outer(self, role: str, factors: Sequence[Signal]) -> Sizes:
        sizes: Sizes = {0: (0, 0)}
        for s in self.entries(role, factors):
            sizes = _product(sizes, self.forms.sizes(s))
        return sizes

    def _rate(self, role: str, step: int) -> tuple[Scalar, ...]:
        rates = [Scalar(f"lr of {role}", self.algebra.pack(Fraction(0), {}, {f"c.{role}": -1}))]
        if self.optimizer.of(role).normalises:
            size = self.algebra.pack(Fraction(0), {}, {divisor(role, step): 1})
            rates.append(Scalar(f"1/normaliser of {role} at step {step + 1}", size))
        return tuple(rates)


def _product(a: Sizes, b: Sizes) -> Sizes:
    return _largest(
        {g + h: (None if low_a is None or low_b is None else low_a + low_b, high_a + high_b)}
        for g, (low_a, high_a) in a.items()
        for h, (low_b, high_b) in b.items()
    )


def _times(sizes: Sizes, packed: int) -> Sizes:
    grade, inner = _split(packed)
    return {g + grade: (None if low is None else low + inner, high + inner) for g, (low, high) in sizes.items()}


def _largest(several: Iterable[Sizes]) -> Sizes:
    largest: Sizes = {}
    for sizes in several:
        for g, (low, high) in sizes.items():
            least, most = largest.get(g, (None, high))
            largest[g] = max((x for x in (low, least) if x is not None), default=None), max(high, most)
    return largest
