"""The strategies by which a module is read, one after the other: ``READINGS``.

``derive --model``, ``recipe --model``, ``check-model`` and ``plan`` read with ``read``. Read next: ``models.py`` (the
equations), ``shapes.py`` (what is left where there are none).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace

from scaling_algebra.errors import UsageError
from scaling_algebra.spec.axes import AXES
from scaling_algebra.spec.networks.language import TRACED

from .building import STILL, Build
from .gradients import TRAINING
from .models import COUNTS, Thin, Traced, first_sizes, read_equations
from .nodes import NotFinite, Scaled, Unreadable
from .shapes import FACTORS, SCALED, by_shape

WIDEST = 256
"""A size from which a module is not read once more, wider."""
Sizes = Mapping[str, int]


@dataclass
class ModuleReading:
    """A module that is to be read, and what has been tried.

    Attributes:
        build: function that returns the module at given sizes.
        base: sizes at which it is read; what is left out has a small default.
        smallest: the sizes of the smallest model that is asked about, if they are known.
        name: of the network.
        failures: the error of every strategy that failed, by its name.
        rejected: the last reading that was refused, whose reason is among the failures.
    """

    build: Build
    base: Sizes | None = None
    smallest: Sizes | None = None
    name: str = TRACED
    failures: dict[str, UsageError] = field(default_factory=dict)
    rejected: Traced | None = None

    @property
    def first(self) -> UsageError:
        """The reason why the module is not read: that of the usual strategy."""
        return self.failures.get(AT_SMALL) or next(iter(self.failures.values()))

    @property
    def another(self) -> bool:
        """Return whether the module is another one at small sizes: it raises an error there, or was refused."""
        if self.smallest is None or self.rejected is None:
            return self.smallest is not None and " raises " in str(self.first)
        return not self.smallest.items() <= self.rejected.base.items()


def _read(q: ModuleReading, base: Sizes | None, apart: bool, wider: bool = False, every: bool = False) -> Traced | None:
    """Read equations; return None where this way of reading says no more than one before.

    Args:
        q: the module.
        base: sizes at which it is read.
        apart: build it with half of its experts active, so that K changes alone. Else all are active, and powers of M
            and K are known together alone (``Traced.joint``).
        wider: read it at larger sizes.
        every: read every top-K as if it chose all.
    """
    start = first_sizes(q.build, base)
    sparse = {"K", "M"} <= start.keys()
    if apart and not sparse:
        return None
    start |= {"K": start["M"] // 2} if apart else {}
    error = q.failures.get(WITH_HALF if apart else AT_SMALL)
    while True:
        if wider:
            if not isinstance(error, Thin) or max(start.values()) >= WIDEST:
                return None
            start = {x: n * (1 if x in (*COUNTS, "K") else 4) for x, n in start.items()}
        try:
            return replace(read_equations(q.build, start, q.name, every), joint=sparse and not (apart or every))
        except Thin as again:
            if not wider:
                raise
            error = again


def _read_all_chosen(q: ModuleReading) -> Traced | None:
    return _read(q, q.base, apart=False, every=True) if isinstance(q.first, Unreadable) else None


def _read_at_base(q: ModuleReading, last: bool = False) -> Traced | None:
    """Read at the base a module that is another one there, or (``last``) that is read in no other way."""
    untried = q.smallest is not None and AT_BASE not in q.failures and (q.rejected is None or q.another)
    if not (untried if last else q.another):
        return None
    with suppress(UsageError):
        if (reading := _read(q, q.smallest, apart=True)) is not None:
            return reading
    return _read(q, q.smallest, apart=False)


def _read_shapes(q: ModuleReading) -> Traced | None:
    done = q.rejected is not None or q.another or isinstance(q.first, NotFinite)
    return None if done else _shapes(q, q.base, q.first)


def _read_shapes_at_base(q: ModuleReading) -> Traced | None:
    why = q.failures.get(AT_BASE) or q.failures.get(LAST)
    read = q.rejected is not None and not q.rejected.network.unread
    return None if why is None or read else _shapes(q, q.smallest, why)


def _shapes(q: ModuleReading, sizes: Sizes | None, why: UsageError) -> Traced:
    reading = by_shape(q.build, sizes, str(why), q.name)
    return replace(reading, notes=[*reading.notes, ("", SCALED if isinstance(why, Scaled) else FACTORS)])


WITH_HALF, AT_SMALL, AT_BASE, BY_SHAPE = "with half of the experts active", "at small sizes", "at the base", "by shape"
LAST = "at the base, where small sizes have no shape"
READINGS: Mapping[str, Callable[[ModuleReading], Traced | None]] = {
    WITH_HALF: lambda q: _read(q, q.base, apart=True),
    f"{WITH_HALF}, at larger sizes": lambda q: _read(q, q.base, apart=True, wider=True),
    AT_SMALL: lambda q: _read(q, q.base, apart=False),
    "at larger sizes": lambda q: _read(q, q.base, apart=False, wider=True),
    "with every top-K choosing all": _read_all_chosen,
    AT_BASE: _read_at_base,
    BY_SHAPE: _read_shapes,
    LAST: lambda q: _read_at_base(q, last=True),
    f"{BY_SHAPE}, at the base": _read_shapes_at_base,
}
"""Strategies by name, in the order in which they are tried; each returns None where it does not apply."""


def read(
    build: Build,
    base: Sizes | None = None,
    strict: bool = False,
    smallest: Sizes | None = None,
    refuse: Callable[[Traced], str] = lambda reading: "",
) -> Traced:
    """Read a module by the first strategy that succeeds; of what acts in training mode alone, the shapes.

    Args:
        build: function that returns the module at given sizes.
        base: sizes at which it is read; what is left out has a small default.
        strict: equations, or nothing.
        smallest: sizes of the smallest model that is asked about, at which a module is read that is another one at
            small sizes.
        refuse: says why a reading will not do, or nothing; the last one is taken all the same.

    Raises:
        Unreadable: no strategy succeeds; the reasons of all are named. UsageError: no parameter grows.
    """
    q = ModuleReading(build, base, smallest)
    for name, strategy in READINGS.items():
        if strict and name.startswith(BY_SHAPE):
            continue
        try:
            reading = strategy(q)
        except UsageError as error:  # also of a module that raises one at these sizes, or in float64
            q.failures[name] = error
            continue
        if reading is not None:
            reading = _finish(replace(reading, how=name, tried={k: str(x) for k, x in q.failures.items()}), build)
            if not (why := refuse(reading)):
                return reading
            q.failures[name], q.rejected = UsageError(why), reading
    if q.rejected is not None:
        return q.rejected
    raise _all_reasons(q.failures)


def traced(build: Build, base: Sizes | None = None, name: str = TRACED) -> Traced:
    """Read the equations of the module that ``build(sizes)`` returns, without what training adds.

    Raises:
        Unreadable: no strategy reads it.
    """
    q = ModuleReading(build, base, name=name)
    for how, strategy in READINGS.items():
        if how.startswith(BY_SHAPE):
            break
        try:
            if (reading := strategy(q)) is not None:
                return reading
        except UsageError as error:
            if how == AT_SMALL and not isinstance(error, Unreadable):
                raise
            q.failures[how] = error
    raise q.first


def _all_reasons(failures: Mapping[str, UsageError]) -> UsageError:
    """The first error, with the reasons of the strategies that failed otherwise."""
    first = failures.get(AT_SMALL) or next(iter(failures.values()))
    others = {str(error): name for name, error in failures.items() if str(error) != str(first)}
    more = [f"{name}: {error}" for error, name in others.items() if name not in (WITH_HALF, AT_SMALL)]
    return type(first)("; ".join([str(first), *more])) if more else first


def _finish(reading: Traced, build: Build) -> Traced:
    """A reading with the shapes of what acts in training mode alone, and with what starts at zero."""
    if reading.training:
        shapes = by_shape(build, reading.base, TRAINING, only=reading.training)
        reading = replace(reading, beside=shapes.network, notes=[*reading.notes, *shapes.notes])
    if not set(AXES) & set(reading.network.axes.values()):
        other = ", ".join(axis for axis in reading.base if axis not in AXES)
        asked = f"; it asks for {other}, and what grows is called {', '.join(AXES)}" if other else ""
        raise UsageError(STILL + asked)
    return reading.starting(build)
