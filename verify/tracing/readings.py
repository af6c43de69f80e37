"""The strategies by which a module is read, in the order in which they are tried: ``READINGS``.

``derive --model``, ``recipe --model``, ``check-model`` and ``plan`` all use ``read_module``. Read next: ``models.py``
(the equations), ``shapes.py`` (the fallback without equations).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace

from scaling_algebra.errors import UsageError
from scaling_algebra.spec.axes import AXES
from scaling_algebra.spec.networks.language import TRACED

from .building import NOTHING_GROWS, Build
from .gradients import TRAINING
from .models import LOOP_AXES, SizesTooSmall, TracedModel, choose_first_sizes, read_equations
from .nodes import NotFinite, UnabsorbedFactor, Unreadable
from .shapes import IGNORED_FACTOR, UNRECOGNISED_FACTORS, read_by_shape

MAX_SIZE_TO_ENLARGE = 256
"""If a size is at least this, the module is not read again at larger sizes."""
SizesByAxis = Mapping[str, int]


@dataclass
class ModuleReading:
    """A module to be read as a network, and the attempts so far.

    A strategy is one of the ways to read it, by name in ``READINGS``.

    Attributes:
        build: function that returns the module at given sizes.
        base: sizes at which it is read; missing ones have a small default.
        smallest: sizes of the smallest model that the user asks about, if known.
        name: name of the network.
        failures: the error of each strategy that failed, by its name.
        rejected: the last network that was read but refused by the caller (``refuse`` in ``read_module``), if any;
            ``failures`` has the reason.
    """

    build: Build
    base: SizesByAxis | None = None
    smallest: SizesByAxis | None = None
    name: str = TRACED
    failures: dict[str, UsageError] = field(default_factory=dict)
    rejected: TracedModel | None = None

    @property
    def first(self) -> UsageError:
        """The main reason why the module could not be read.

        This is the error of reading its equations at small sizes, if that failed; otherwise the first error of any
        strategy.
        """
        return self.failures.get(AT_SMALL) or next(iter(self.failures.values()))

    @property
    def differs_at_small_sizes(self) -> bool:
        """Whether the module must be read at the user's sizes, since ``build`` returns an unusable one at small sizes.

        This is so if it raises an error at small sizes, or if the caller refused the network that was read at them.
        """
        if self.smallest is None or self.rejected is None:
            return self.smallest is not None and " raises " in str(self.first)
        return not self.smallest.items() <= self.rejected.base.items()


def _try_equations(
    q: ModuleReading, base: SizesByAxis | None, half_active: bool, wider: bool = False, force_topk: bool = False
) -> TracedModel | None:
    """Reads the equations of the module at some sizes.

    Args:
        q: the module.
        base: the sizes; missing ones have a small default.
        half_active: build it with half of its experts active, so that K changes independently of M. Otherwise all are
            active and powers of K cannot be told from powers of M (``TracedModel.joint``).
        wider: read it at larger sizes, if these were too small.
        force_topk: read every top-K as if it selected all candidates.

    Returns:
        The network; None if this attempt does not apply: there is no K to halve, or the sizes were not too small
        before or cannot be raised further.
    """
    start = choose_first_sizes(q.build, base)
    sparse = {"K", "M"} <= start.keys()
    if half_active and not sparse:
        return None
    start |= {"K": start["M"] // 2} if half_active else {}
    error = q.failures.get(WITH_HALF if half_active else AT_SMALL)
    while True:
        if wider:
            if not isinstance(error, SizesTooSmall) or max(start.values()) >= MAX_SIZE_TO_ENLARGE:
                return None
            start = {x: n * (1 if x in (*LOOP_AXES, "K") else 4) for x, n in start.items()}
        try:
            return replace(
                read_equations(q.build, start, q.name, force_topk), joint=sparse and not (half_active or force_topk)
            )
        except SizesTooSmall as again:
            if not wider:
                raise
            error = again


def _read_all_chosen(q: ModuleReading) -> TracedModel | None:
    """Reads the equations as if every top-K selected all candidates.

    Returns None if the first attempt failed with an error of the module's own code, which this cannot help.
    """
    return _try_equations(q, q.base, half_active=False, force_topk=True) if isinstance(q.first, Unreadable) else None


def _read_at_base(q: ModuleReading, last: bool = False) -> TracedModel | None:
    """Reads the equations at the user's smallest sizes: with half of the experts active if possible, otherwise with
    all.

    Args:
        q: the module.
        last: whether this is the later of the two attempts at these sizes in ``READINGS``, which is made if reading by
            shapes at small sizes has failed, too.

    Returns:
        The network; None if this attempt does not apply: there is no reason to expect another result than at small
        sizes, or these sizes were tried before.
    """
    untried = q.smallest is not None and AT_BASE not in q.failures and (q.rejected is None or q.differs_at_small_sizes)
    if not (untried if last else q.differs_at_small_sizes):
        return None
    with suppress(UsageError):
        if (reading := _try_equations(q, q.smallest, half_active=True)) is not None:
            return reading
    return _try_equations(q, q.smallest, half_active=False)


def _read_shapes(q: ModuleReading) -> TracedModel | None:
    """Reads the module by the shapes of its parameters, at small sizes.

    Returns None if this attempt does not apply: the module must be read at the user's sizes
    (``differs_at_small_sizes``), the caller refused its network, or its output is not finite.
    """
    done = q.rejected is not None or q.differs_at_small_sizes or isinstance(q.first, NotFinite)
    return None if done else _read_shapes_for(q, q.base, q.first)


def _read_shapes_at_base(q: ModuleReading) -> TracedModel | None:
    """Reads the module by its parameters' shapes at the user's sizes.

    Returns None unless reading its equations failed at these sizes and no equations are known from elsewhere.
    """
    why = q.failures.get(AT_BASE) or q.failures.get(AT_BASE_LAST)
    read = q.rejected is not None and not q.rejected.network.unread
    return None if why is None or read else _read_shapes_for(q, q.smallest, why)


def _read_shapes_for(q: ModuleReading, sizes: SizesByAxis | None, why: UsageError) -> TracedModel:
    """Reads the module by the shapes of its parameters alone, at the given sizes.

    A note is added which says that factors in its code (such as 1/sqrt(d)) are not known then.

    Args:
        q: the module.
        sizes: the sizes; missing ones have a small default.
        why: the error because of which there are no equations.
    """
    reading = read_by_shape(q.build, sizes, str(why), q.name)
    return replace(
        reading,
        notes=[*reading.notes, ("", IGNORED_FACTOR if isinstance(why, UnabsorbedFactor) else UNRECOGNISED_FACTORS)],
    )


WITH_HALF, AT_SMALL, AT_BASE, BY_SHAPE = "with half of the experts active", "at small sizes", "at the base", "by shape"
AT_BASE_LAST = "at the base, as there are no shapes at small sizes"
READINGS: Mapping[str, Callable[[ModuleReading], TracedModel | None]] = {
    WITH_HALF: lambda q: _try_equations(q, q.base, half_active=True),
    f"{WITH_HALF}, at larger sizes": lambda q: _try_equations(q, q.base, half_active=True, wider=True),
    AT_SMALL: lambda q: _try_equations(q, q.base, half_active=False),
    "at larger sizes": lambda q: _try_equations(q, q.base, half_active=False, wider=True),
    "with every top-K choosing all": _read_all_chosen,
    AT_BASE: _read_at_base,
    BY_SHAPE: _read_shapes,
    AT_BASE_LAST: lambda q: _read_at_base(q, last=True),
    f"{BY_SHAPE}, at the base": _read_shapes_at_base,
}
"""Strategies by name, in the order in which they are tried; each returns None if it does not apply."""


def read_module(
    build: Build,
    base: SizesByAxis | None = None,
    strict: bool = False,
    smallest: SizesByAxis | None = None,
    refuse: Callable[[TracedModel], str] = lambda reading: "",
) -> TracedModel:
    """Reads a module as a network, by the first of several strategies (``READINGS``) that succeeds.

    Parameters that act only in training mode are read by shape in addition.

    Args:
        build: function that returns the module at given sizes.
        base: sizes at which it is read; missing ones have a small default.
        strict: whether to fail if equations cannot be read, instead of falling back to the shapes of parameters.
        smallest: sizes of the smallest model that the user asks about. The module is read at these if it raises an
            error at small sizes, or if its network there is refused.
        refuse: returns the reason to reject a network that was read; "" to accept it. The last rejected network is
            returned if nothing else succeeds.

    Raises:
        Unreadable: no strategy succeeds; the message has the reasons of all.
        UsageError: no parameter grows.
    """
    q = ModuleReading(build, base, smallest)
    for name, strategy in READINGS.items():
        if strict and name.startswith(BY_SHAPE):
            continue
        try:
            reading = strategy(q)
        except UsageError as error:  # the module itself may raise an error at these sizes, or in float64
            q.failures[name] = error
            continue
        if reading is not None:
            reading = _complete_reading(
                replace(reading, how=name, tried={k: str(x) for k, x in q.failures.items()}), build
            )
            if not (why := refuse(reading)):
                return reading
            q.failures[name], q.rejected = UsageError(why), reading
    if q.rejected is not None:
        return q.rejected
    raise _combine_errors(q.failures)


def trace_equations(build: Build, base: SizesByAxis | None = None, name: str = TRACED) -> TracedModel:
    """Reads the equations of the module that ``build(sizes)`` returns.

    Unlike ``read_module``, it leaves out parameters that act only in training mode, and it raises an error if the
    equations cannot be read, in place of reading the shapes of the parameters.

    Args:
        build: function that returns the module at given sizes.
        base: sizes at which it is read; missing ones have a small default.
        name: name of the network.

    Raises:
        Unreadable: no strategy can read the equations.
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


def _combine_errors(failures: Mapping[str, UsageError]) -> UsageError:
    """Returns the main error (``ModuleReading.first``), extended by the reasons of other strategies that differ from
    it.
    """
    first = failures.get(AT_SMALL) or next(iter(failures.values()))
    others = {str(error): name for name, error in failures.items() if str(error) != str(first)}
    more = [f"{name}: {error}" for error, name in others.items() if name not in (WITH_HALF, AT_SMALL)]
    return type(first)("; ".join([str(first), *more])) if more else first


def _complete_reading(reading: TracedModel, build: Build) -> TracedModel:
    """Adds what needs another look at the module: parameters that act only in training mode, and matrices that start
    at zero.

    The former are read by shape.

    Raises:
        UsageError: no axis that can grow is left.
    """
    if reading.training:
        shapes = read_by_shape(build, reading.base, TRAINING, only=reading.training)
        reading = replace(reading, beside=shapes.network, notes=[*reading.notes, *shapes.notes])
    if not set(AXES) & set(reading.network.axes.values()):
        other = ", ".join(axis for axis in reading.base if axis not in AXES)
        asked = f"; it reads {other}, but axes that can grow are called {', '.join(AXES)}" if other else ""
        raise UsageError(NOTHING_GROWS + asked)
    return reading.with_zero_starts(build)
