"""Certified exponents of named quantities: strategies narrow a bracket, the cheap ones first, until its ends meet.

Read next: ``quantities.py`` (what can be asked), ``runs.py`` (what one budget shows), ``newton.py``
and ``derivation.py`` (who asks).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import cached_property, partial
from itertools import count, islice
from typing import Any, NamedTuple

from scaling_algebra.counting.algebra import Algebra
from scaling_algebra.counting.kernels import Exhausted
from scaling_algebra.counting.signals import Budget, Signal
from scaling_algebra.counting.store import ResultCache
from scaling_algebra.errors import UsageError
from scaling_algebra.spec.axes import Ray
from scaling_algebra.spec.glossary import ASSUMPTIONS
from scaling_algebra.spec.networks.language import Network
from scaling_algebra.spec.networks.library import MOE_BLOCK
from scaling_algebra.spec.optimizers import OptimizerSpec
from scaling_algebra.spec.scaling import Point
from scaling_algebra.waiting import iterate_with_progress

from .bounds import BoundRun, find_shaken, find_unsettled
from .brackets import Bracket
from .budgets import ALONE, BEGUN, FOUND, LADDER, NEAR, PARTS, QUICK, SIMPLEST, STARTS, WITNESSES, WORK
from .parts import ORDERS, SLOW, counting, parts, signal_of
from .quantities import Quantity, quantities, with_decay
from .run import BeyondPowerCounting, Divisor
from .runs import Runs
from .sparse_routing import sparse
from .trajectory import Trajectory

_RAISED = "functions are read as polynomials, and two degrees more give"
_VANISHES = "functions are read as polynomials: it is exactly zero for these, and not with two degrees more"
_STANDING = frozenset({"polynomials", "first-hermite", "rank-one-sign"})
"""Assumptions of an answer that polynomials stand for functions, or a linear part for a step."""
_CUBES = "a product may see the cubic part of a sign, of which functions leave an upper bound alone"


class Query(NamedTuple):
    """A question: the size of a quantity after t updates."""

    look: Analysis
    name: str
    t: int


Strategy = Callable[[Query, Bracket], Bracket]
"""From what was known before to what is known then; a decided bracket is kept."""


class Means(NamedTuple):
    """The strategies by name that narrow the bracket of a question, one after the other; other means are asked where
    nothing is known.

    Attributes:
        kept: a question that was asked before is not asked again.
    """

    name: str
    strategies: Mapping[str, Strategy | Means]
    kept: bool = True

    def __str__(self) -> str:
        return f"{self.name}: {', '.join(self.strategies)}"


class Analysis:
    """Quantities of one training run, evaluated on demand.

    Args:
        algebras: to share products of kernels with other runs on the ray (of the same ``growing``).
        growing: axes that count as growing whatever the ray says: sizes are limits of those on rays near by.
        routed: K counts as less than M whatever the ray says, in the same sense.
        raised: the polynomials that stand for functions are two degrees higher.
        whole: the run that this is a part of (``parts.py``), whose algebras are shared and whose bounds hold here, too.
        ladder: the rungs that a question may climb, by default all.
        bare: of norms that may be outgrown nothing is known after an update.

    Attributes:
        runs: one for each rung.
        parts: those in which less happens.
        starts: sizes before training that steps divide by.
        notes: what all rests on that was decided so far.
    """

    def __init__(
        self,
        ray: Ray,
        point: Point,
        optimizer: OptimizerSpec,
        network: Network = MOE_BLOCK,
        algebras: dict[Budget, Algebra] | None = None,
        growing: frozenset[str] = frozenset(),
        routed: bool = False,
        raised: bool = False,
        whole: Analysis | None = None,
        ladder: Sequence[Budget] = (),
        bare: bool = False,
    ) -> None:
        if network.unread:
            raise UsageError(f"{network.unread}; of this module shapes alone are known, and nothing of its signals")
        self.ray, self.point, self.optimizer, self.network = ray, point, optimizer, network
        self.growing, self.routed, self.raised, self.whole, self.ladder = growing, routed, raised, whole, ladder
        self.bare = bare
        own = whole.table if whole is not None else quantities(network) | with_decay(network, optimizer)
        self.table: Mapping[str, Quantity] = own
        settings: dict[str, Any] = {"growing": growing, "routed": routed, "raised": raised}
        if whole is not None:
            algebras = whole.runs.algebras
            settings |= {"linear": PARTS[:1], "started": partial(whole.parts.started, self)}
        shared = {} if algebras is None else algebras
        self.runs: Runs = Runs(ray, point, optimizer, network, self.table, shared, self._certified, **settings)
        self.meter = self.runs.algebra(LADDER[0]).meter
        self.parts: Parts = Parts(self)
        self.notes = set[str]()
        self._kept = ResultCache[tuple[str, str, int], Bracket](self.meter)
        self._uppers = ResultCache[tuple[str, int], Fraction | None](self.meter)
        self.starts = dict[str, Bracket]()

    def __call__(self, name: str, t: int, means: Means | None = None) -> Bracket:
        """The bracket of a quantity after t updates.

        Args:
            means: by which it is narrowed, by default all: ``CERTIFIED``.
        """
        means = means or CERTIFIED
        if not means.kept:
            return self._narrowed(name, t, means)
        return self._kept((means.name, name, t), partial(self._narrowed, name, t, means))

    def _narrowed(self, name: str, t: int, means: Means) -> Bracket:
        bracket = Bracket()
        for strategy in means.strategies.values():
            if not isinstance(strategy, Means):
                bracket = strategy(Query(self, name, t), bracket)
            elif bracket.unknown:
                bracket = self(name, t, strategy)
        return bracket

    def known(self, name: str, t: int) -> bool:
        """A certified answer is there already."""
        return (CERTIFIED.name, name, t) in self._kept

    def all(self, steps: int, names: Iterable[str] | None = None) -> dict[str, tuple[Bracket, ...]]:
        """Every quantity at t = 0 .. steps."""
        every = iterate_with_progress("certifying", "quantities", list(names or self.table))
        return {name: tuple(self(name, t) for t in range(steps + 1)) for name in every}

    @property
    def assumed(self) -> tuple[str, ...]:
        """The assumptions, beyond counting powers, of all that was decided so far."""
        return tuple(x for x in ASSUMPTIONS if x in self.notes)

    def but(self, **changes: Any) -> Analysis:
        """The same analysis with other arguments; products of kernels are shared."""
        names = ("ray", "point", "optimizer", "network", "growing", "routed", "raised", "ladder", "bare")
        asked = {name: getattr(self, name) for name in names}
        return Analysis(**{**asked, "algebras": self.runs.algebras, **changes})

    def closely(self, ladder: Sequence[Budget]) -> Analysis:
        """The analysis on other rungs; what its answers assume counts here, too."""
        run = self.but(ladder=ladder)
        run.notes = self.notes
        return run

    @cached_property
    def higher(self) -> Analysis:
        """The same run with the polynomials that stand for functions two degrees higher."""
        return self if self.raised else self.but(raised=True, bare=self.bare or self.whole is not None)

    def read(self, name: str, t: int, rung: Budget) -> Bracket:
        """Return what one budget shows. A zero that rests on polynomials is asked for again with two degrees more."""
        found = self.runs.read(name, t, rung)
        if not found.zero or self.raised or self.whole is not None or _STANDING.isdisjoint(found.assumes):
            return found
        return found if self.higher.runs.read(name, t, rung).zero else Bracket(why=_VANISHES)

    # bounds on every step ---------------------------------------------------------------------------------------

    @cached_property
    def bounds(self) -> BoundRun:
        """Upper bounds on every size after any number of updates, or why there are none."""
        if self.whole is not None:
            return self.whole.bounds
        run = self.runs.bounds()
        if self.bare or run.why or not run.outgrown or sparse(self.network, self.ray) or self.routed:
            return run
        return self.runs.bounds(_find_divisors(self, run))

    @cached_property
    def begun(self) -> BoundRun:
        """Upper bounds on every size before training."""
        return self.runs.bounds(still=True) if self.whole is None else self.whole.begun

    def upper(self, name: str, t: int = 1) -> Fraction | None:
        """An upper bound on the exponent of a quantity after any number of updates, or before the first; None if there
        is none."""
        return self._uppers((name, min(t, 1)), partial(self._upper, name, _bounds_at(self, t)))

    def _upper(self, name: str, bounds: BoundRun) -> Fraction | None:
        decays = name.endswith(".with-decay")  # what decay takes from initial values is in no bound
        if bounds.why or name not in self.table or decays:
            return None
        try:
            with bounds.algebra.accounting() as notes:
                largest = bounds.largest(self.table[name])
        except (Exhausted, BeyondPowerCounting):
            return None
        bounds.assumes.update(notes)
        self.notes |= bounds.assumes
        return None if largest is None else bounds.algebra.value(largest)

    def below_epsilon(self, role: str) -> bool:
        """The gradient of a tensor never exceeds epsilon."""
        largest = self.upper(f"g{self.network.tensors[role].symbol}")
        return largest is not None and largest <= -self.point.d[role]

    def meets(self, name: str, size: Fraction | None, t: int = 1) -> bool:
        """A size is the bound on every step, or that before the first; in a part, which learns slowly, at some order in
        the learning rates."""
        upper = self.upper(name, t)
        if size is None or upper is None or self.whole is None:
            return size is not None and size == upper
        order = (upper - size) / (self.ray.largest * SLOW)
        return order.denominator == 1 and 0 <= order <= ORDERS

    def _certified(self, algebra: Algebra, name: str, t: int) -> int | None:
        """Packed size of a quantity where any rung certifies it; of a gradient that never exceeds epsilon, epsilon.
        What that rests on is noted."""
        role = self.table[name].tensor if name in self.table else ""
        if role and name.startswith("g") and self.optimizer.of(role).epsilon and self.below_epsilon(role):
            algebra.notes.update(self.bounds.assumes)
            return algebra.pack(-self.point.d[role], {}, {f"d.{role}": -1})
        begins_alike = self.whole is not None and not t and self.point.zero == self.whole.point.zero
        look = self.whole if self.whole is not None and begins_alike else self
        answer = look(name, t) if t else _started(look, name)
        if self.meter.spent:
            raise Exhausted
        algebra.notes.update(answer.assumes)
        if answer.size is None or answer.form is None:
            return None
        return algebra.pack(answer.size, dict(answer.form.power.terms), dict(answer.form.unknowns))

    # what an answer was read off --------------------------------------------------------------------------------

    def run(self, name: str, t: int) -> Trajectory:
        """The trajectory whose pruning was mild enough to certify an answer, and to hold every monomial of its size if
        one does.

        Raises:
            LookupError: no run certifies it by itself: it is undecided, or shown by a bound and a run in which less
                happens.
        """
        with self.meter.within(ALONE if self(name, t, RESTRICTED).decided else None):
            return self._alone(name, t)

    def _alone(self, name: str, t: int) -> Trajectory:
        decided: list[Budget] = []
        for rung in LADDER if t else (*LADDER, BEGUN):
            if self.runs.read(name, t, rung).decided:
                run = self.runs.on(rung)
                with run.ledger.question():
                    read = self.runs.signal(name, t, run)
                if not isinstance(read, Signal) or run.algebra.complete(read):
                    return run
                decided.append(rung)
        decided = decided or [rung for rung in LADDER if two_sided(self, name, t, rung).decided][:1]
        if not decided:
            raise LookupError(f"{name} at t={t} is certified by no run alone")
        return self.runs.on(next((rung for rung in decided if rung.most is None), decided[0]))

    def powers(self, name: str, t: int) -> tuple[tuple[Fraction, bool], ...]:
        """Exponents of the kernels that an answer was read off (True), and bounds on all else it is a sum of (False).

        Raises:
            LookupError: the answer is undecided, or takes more work than is left.
        """
        try:
            run = self.run(name, t)
            with run.ledger.question():
                read = self.runs.signal(name, t, run)
        except Exhausted:
            raise LookupError(f"{name} at t={t} takes more work than is left") from None
        if isinstance(read, Signal):
            return run.algebra.powers(read)
        return () if read.packed is None else ((run.algebra.value(read.packed), False),)


class Parts:
    """The runs in which less happens than in a whole one (``parts.py``), each made once."""

    def __init__(self, whole: Analysis) -> None:
        self.whole = whole
        self._points: dict[str, tuple[list[Point], Iterator[Point]]] = {}
        self._parts = ResultCache[tuple[frozenset[str], frozenset[str]], Analysis](whole.meter)
        self._alike = ResultCache[frozenset[str], bool](whole.meter)
        self._starts: dict[tuple[frozenset[str], Budget], Trajectory] = {}

    def ranked(self, name: str, steps: Collection[int]) -> Iterator[tuple[int, Point]]:
        """Steps and the points at which a quantity is likely to be as large, few steps first; at the first point, which
        is the likeliest, one step more."""
        signal = signal_of(self.whole.network, self.whole.table[name])
        for least in range(min(steps) - 1, max(steps) + 1):
            for k, point in enumerate(self._likely(signal)):
                if (step := least if k else least + 1) in steps:
                    yield step, point

    def _likely(self, signal: str) -> Iterator[Point]:
        """The points of ``parts``, each made once, when it is asked for."""
        points = parts(self.whole.network, self.whole.point, signal)
        made, rest = self._points.setdefault(signal, ([], points))
        for k in count():
            made += islice(rest, max(0, k + 1 - len(made)))
            if k == len(made):
                return
            yield made[k]

    def at(self, point: Point, name: str, step: int, t: int) -> Analysis | None:
        """Returns the restricted run at a point, of which a size after some updates holds after t, too; None if in its
        first updates other sizes divide the quantity."""
        part = self._parts((point.zero, point.frozen), partial(self.where_less, point))
        return part if self.divides_alike(part, step) and self._outgrown_alike(part, name, step, t) else None

    def _outgrown_alike(self, part: Analysis, name: str, step: int, t: int) -> bool:
        """Norms that may be outgrown divide by the same in a part, where that counts.

        Law: what outgrows its start leads whatever its constant is, so that where it does not learn is no point near
        by. After the first update values depend on what norms divide by in their own forward pass, updates on nothing
        but the start, gradients and later updates on all.
        """
        look, norms, quantity = self.whole, find_unsettled(self.whole.bounds), self.whole.table[name]
        if not t or not norms:
            return True
        signal = "" if quantity.tensor else signal_of(look.network, quantity)
        if step < 2 and (signal or (quantity.tensor and name.startswith("d"))):
            reached = counting(look.network, signal, part.point.zero & part.point.frozen) if signal else frozenset()
            norms = {x: y for x, y in norms.items() if x in reached}
        centring = {s.out for s in look.network.norms if s.kind.centres}
        if not step or not centring.isdisjoint(norms):
            return not norms
        sizes = ((y, part(y, k)) for y in norms.values() for k in range(1, step + 1))
        return all(x.decided and part.meets(y, x.size) for y, x in sizes)

    def where_less(self, point: Point) -> Analysis:
        slow = {role: c + self.whole.ray.largest * SLOW for role, c in point.c.items()}
        return self.whole.but(point=replace(point, c=slow), whole=self.whole, raised=False, ladder=())

    def divides_alike(self, part: Analysis, t: int) -> bool:
        """Everything that the first t updates of a part divide by is as large as in the whole run: what norms and
        homogeneous functions read, and normalisers.

        Law: a normaliser that is epsilon is that at every step. One of entries is the gradient; the first one is read
        before anything was learned, so who learns does not change it, and what starts at zero only if its size differs.
        """
        whole = self.whole
        learning = whole.network.tensors.keys() - part.point.frozen
        rules = {role: whole.optimizer.of(role) for role in learning}
        by_size = [role for role, x in rules.items() if x.normalises and not (x.epsilon and whole.below_epsilon(role))]
        if t and any(t > 1 or rules[role].normalises != "entry" or rules[role].relative for role in by_size):
            return False
        if t and part.point.zero != whole.point.zero and not all(self._first_alike(part, role) for role in by_size):
            return False
        return self._alike(part.point.zero, partial(self._as_large, part))

    def _first_alike(self, part: Analysis, role: str) -> bool:
        gradient = f"g{self.whole.network.tensors[role].symbol}"
        size = _started(self.whole, gradient).size
        return size is not None and _started(part, gradient).size == size

    def _as_large(self, part: Analysis) -> bool:
        functions = (f for f in self.whole.network.functions if f.kind.kind == "norm" or f.kind.homogeneous)
        read = [f.inputs[0].name for f in functions]
        return all((own := _started(part, x)).decided and own.size == _started(self.whole, x).size for x in read)

    def started(self, part: Analysis, rung: Budget) -> Trajectory:
        """The run that all parts which begin alike have before training; no question is asked of it, so none is charged
        for it."""
        key = part.point.zero, rung
        if key not in self._starts:
            self._starts[key] = part.runs.made(rung)
        return self._starts[key]


# strategies -----------------------------------------------------------------------------------------------------


def _find_divisors(whole: Analysis, run: BoundRun) -> dict[str, Divisor]:
    """Returns what norms divide by after an update, where bounds without it have shown that.

    A norm that centres is left out: its argument may be larger than what it divides by, since an update that is the
    same along the index is taken away.
    """
    look, divisors = whole.but(bare=True), dict[str, Divisor]()
    look.bounds = run
    shaken = find_shaken(run)
    with whole.meter.pause_counting():
        for s in (s for s in whole.network.functions if s.out in shaken and not s.kind.centres):
            found, gradient = look(s.inputs[0].name, 1, RESTRICTED), look.runs.gradient(s)
            if found.size is not None and gradient is not None:
                divisors[s.out] = Divisor(run.algebra.pack(found.size, {}, {}), gradient)
                whole.notes |= found.assumes
    return divisors


def _started(look: Analysis, name: str) -> Bracket:
    """Returns the bracket of a quantity before training that steps divide by.

    Many questions use it, so that its work counts for none of them, and has a limit of its own.
    """
    if name not in look.starts:
        with look.meter.pause_counting(), look.meter.within(STARTS):
            look.starts[name] = look(name, 0)
    return look.starts[name]


def _bounds_at(look: Analysis, t: int) -> BoundRun:
    """Returns upper bounds on every size after t updates."""
    return look.bounds if t else look.begun


def two_sided(look: Analysis, name: str, t: int, rung: Budget) -> Bracket:
    """What one rung shows: decided by its own certificate, or where a monomial of it is as large as the bound on every
    later step."""
    found = look.read(name, t, rung)
    if t and not found.decided and found.low is not None and look.meets(name, found.lead):
        found = replace(found, high=found.low, why="", assumes=found.assumes | look.bounds.assumes)
    if found.decided:
        look.notes |= found.assumes
    return found


def exact_zero(q: Query, known: Bracket) -> Bracket:
    """Exactly zero after the first update, at the least price: runs in which less happens would all show it."""
    return _still(q.look, q.name, 1) if q.t == 1 and not known.decided else known


def _still(look: Analysis, name: str, t: int) -> Bracket:
    found = two_sided(look, name, t, WITNESSES[0]) if look.point.zero and look.whole is None else Bracket()
    return found if found.zero else Bracket()


def restricted(q: Query, known: Bracket) -> Bracket:
    """A monomial as large as the bound on every step, from a run in which less happens. Every further update costs
    much more: few are asked of all runs, then one more of the likeliest of them."""
    look, name, t = q
    if known.decided:
        return known
    if t > 2 and (earlier := look(name, t - 1, RESTRICTED)).decided:
        return earlier
    steps = (t,) if not t or t > 2 or _still(look, name, t - 1).zero else range(t + 1)
    if look.whole is not None or not look.network.norms or look.upper(name, t) is None:
        return known
    begun = set[frozenset[str]]()
    for step, point in look.parts.ranked(name, steps):
        if look.meter.spent:
            break
        if not step and point.zero in begun:  # before training, parts that begin alike are one
            continue
        if (part := look.parts.at(point, name, step, t)) is None:
            continue
        found = part(name, step, WITNESS)
        if found.low is not None and part.meets(name, found.lead, t):
            assumes, upper = found.assumes | _bounds_at(look, t).assumes | {"generic-constants"}, look.upper(name, t)
            look.notes |= assumes
            return replace(found, low=upper, high=upper, lead=upper, assumes=assumes)
        if not step:
            begun.add(point.zero)
    return known


def monomial(q: Query, known: Bracket) -> Bracket:
    """The largest monomial that is found among few, where nothing can cancel it."""
    look, name, t = q
    if known.decided:
        return known
    few = look.whole is not None or (look.raised and not t)  # kernels of as many leaves as products have signals
    rungs = [rung for rung in (PARTS if few else WITNESSES) if t < 2 or not rung.numbers]
    for rung in rungs:
        found = two_sided(look, name, t, rung)
        if found.lead is not None and found.low is not None and (known.lead is None or found.lead > known.lead):
            known = found
        if found.decided or (look.whole is not None and not look.meets(name, found.lead, t)):
            break
    return known


def witnessed(q: Query, known: Bracket) -> Bracket:
    """After an update, what a witness shows of something of which nothing is known; before, of a gradient, where norms
    may be outgrown."""
    look, name, t = q
    means = WITNESS if t else RESTRICTED if _begins_outgrown(look, name) else None
    found = look(name, t, means) if known.unknown and means else known
    return known if found.low is None else found


def _begins_outgrown(look: Analysis, name: str) -> bool:
    """A gradient of a tensor in a run whose norms may be outgrown."""
    of_tensor = name.startswith("g") and bool(look.table[name].tensor)
    return of_tensor and look.whole is None and not look.raised and bool(look.bounds.outgrown)


def climb(q: Query, known: Bracket, rungs: Sequence[Budget] = ()) -> Bracket:
    """One budget after the other, by default those of the analysis, until one decides or none can."""
    look, name, t = q
    low, lead = known.low, known.lead
    usual = LADDER[:1] if look.whole is not None else look.ladder or LADDER
    if not t and look.network.norms:
        usual = (usual[0], BEGUN, *usual[1:])
    for rung in () if known.decided else rungs or usual:
        known = two_sided(look, name, t, rung)
        if known.decided:
            return known
        if known.why and rung.most is None:
            break
        if known.low is not None:
            low = known.low if low is None else max(low, known.low)
        lead = known.lead if lead is None else lead
    return replace(known, low=low, lead=known.lead if known.lead is not None else lead)


def two_degrees_more(q: Query, known: Bracket) -> Bracket:
    """An answer that rests on polynomials standing for functions, if two degrees more show nothing larger."""
    look, name, t = q
    if look.raised or known.size is None or not look.runs.curved:
        return known
    if any(known.size == run.higher.upper(name, t) for run in (look.whole, look) if run is not None):
        return known
    higher, open_ = look.higher(name, t, WITNESS), partial(replace, known, low=None, high=None)
    if t and look.network.live and look.runs.stepped(signs=True) and not higher.decided:
        return open_(why=_CUBES)
    if higher.lead is not None and higher.lead > known.size:
        return open_(why=f"{_RAISED} n^({higher.lead}) instead of n^({known.size})")
    return known


def bound_above(q: Query, known: Bracket) -> Bracket:
    """Where nothing decides, the bound on every step, and what stands in the way."""
    look, name, t = q
    notes = known.assumes & ASSUMPTIONS.keys()
    if known.decided:
        return replace(known, assumes=notes)
    high = look.upper(name) if t else None
    why = known.why or min(known.assumes - ASSUMPTIONS.keys(), default="") or explain_open(known.lead, high)
    return Bracket(known.low, high, None, notes, why)


def explain_open(lead: Fraction | None, high: Fraction | None) -> str:
    """Returns why a size is open: what was found of it, and what is not excluded."""
    if lead is None:
        return WORK
    if high is not None and high <= lead:
        return f"{FOUND}n^({lead}) were found, which the rest may cancel"
    rest = "the rest has no bound" if high is None else f"of the rest it is known only that it is at most n^({high})"
    return f"{FOUND}n^({lead}) were found, and {rest}"


def leading(q: Query, known: Bracket, rungs: Sequence[Budget] = QUICK) -> Bracket:
    """The leading kernel taken as it is."""
    look, name, t = q
    for rung in rungs:
        found = look.read(name, t, rung)
        if found.decided or known.lead is None or (found.lead is not None and found.lead > known.lead):
            known = found
        if found.decided or found.why:
            break
    return known


def answered(q: Query, known: Bracket) -> Bracket:
    """The certified answer, where it is there already."""
    return q.look(q.name, q.t) if q.look.known(q.name, q.t) else known


RESTRICTED = Means("in runs in which less happens", {"restricted runs": restricted})
WITNESS = Means(
    "from below", {"exact zero": exact_zero, "restricted runs": RESTRICTED, "few monomials": monomial}, kept=False
)
CERTIFIED = Means(
    "certified",
    {"witness": witnessed, "ladder": climb, "two degrees more": two_degrees_more, "bound on every step": bound_above},
)
SHORTLY = Means(
    "shortly",
    {"what is certified": answered, "witness": witnessed, "first budget": partial(climb, rungs=LADDER[:1])},
    kept=False,
)
SIMPLY = Means("simply", {"little work": partial(climb, rungs=(SIMPLEST,))}, kept=False)
LEAD = Means("lead", {"leading kernel": leading, "witness": witnessed, "certified": CERTIFIED})
MEANS = (CERTIFIED, SHORTLY, LEAD, WITNESS, RESTRICTED, SIMPLY)
"""All that a question may be answered by: the whole; at the price of the first budget; for searching; from below; in
runs in which less happens; with little work."""


def lead_within(work: int, gap: Fraction = NEAR) -> Means:
    """The leading kernel for less work: what the work does not suffice for comes out as unknown.

    At gap 0 only the leading kernels are kept, which is cheap, and a lower bound all the same.
    """
    rung = replace(LADDER[0], gap=gap, work=work)
    return Means(f"lead within {work} at {gap}", {"leading kernel": partial(leading, rungs=(rung,))})
