"""Decides whether exactly one, none or several parameterizations meet a set of desiderata.

Every demand becomes clauses over the unknown exponents b (init std), c (learning rate) and alpha (aggregation
multiplier), from sizes that hold at every point (``graded.py``). z3 proposes a point that satisfies them. The engine
examines the point exactly and adds the clause that rules it out, until no point is left: then the parameterization is
unique, or none exists, and a minimal set of contradictory clauses (the unsatisfiable core) names the conflict.
Adam divides the gradient by a normaliser: the root of the second moment plus epsilon. If epsilon (n^-d) has the size of
the largest gradient (mu-3), so has every normaliser, and a training run is one of gradient descent with c - d in place
of c. Since d follows from the gradient, uniqueness for gradient descent is uniqueness for Adam.
Read next: ``smtlib.py`` (export to other solvers), ``desiderata.py`` (the demands).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from fractions import Fraction
from functools import cached_property, lru_cache, partial
from typing import Any, Unpack

from scaling_algebra.counting.algebra import Algebra
from scaling_algebra.counting.signals import Budget
from scaling_algebra.documents import Rendered
from scaling_algebra.dynamics.analysis import Analysis
from scaling_algebra.errors import Inconclusive
from scaling_algebra.formulas.graded import form_algebra
from scaling_algebra.linear.clauses import Clause, ClauseSolver, Undecided
from scaling_algebra.linear.linear import SIDES, Linear
from scaling_algebra.linear.refine import refine
from scaling_algebra.solver.demands import NotFound, provable
from scaling_algebra.spec.axes import Ray
from scaling_algebra.spec.configuration import (
    DEFAULT_OPTIMIZER,
    DEFAULT_PARAMETERIZATION,
    Configuration,
    ConfigurationOptions,
)
from scaling_algebra.spec.desiderata import Demand, Structure, count_interventions, enumerate_structures, last_step
from scaling_algebra.spec.given import NOTHING, Given, name_unknown
from scaling_algebra.spec.networks.language import Network
from scaling_algebra.spec.networks.multipliers import find_free_multipliers
from scaling_algebra.spec.optimizer_reading import OptimizerInput
from scaling_algebra.spec.optimizers import OPTIMIZERS, OptimizerSpec
from scaling_algebra.spec.parameterizations import Parameterization
from scaling_algebra.spec.scaling import Point, Scaling
from scaling_algebra.waiting import describe_work_inside

from .candidates import expressible, find_failure, find_unmet
from .clauses import RayFacts
from .every_step import open_later

_FORMS = 128
"""Maximum number of combinations of unknowns in one product. If there are more, sizes are replaced by bounds."""

APART = "another parameterization"
EPSILON = "mu-3: epsilon of every tensor has the size of its gradient, so that training is like gradient descent"


class Uniqueness(StrEnum):
    """How many parameterizations are proved to meet the desiderata, for one choice of tensors that start at zero or
    alike in all experts."""

    UNIQUE = "unique"
    IMPOSSIBLE = "impossible"
    SEVERAL = "several"
    UNDECIDED = "undecided"


@dataclass(frozen=True)
class Outcome:
    """The result of the proof for one *structure*, that is, for one choice of the tensors that start at zero or alike
    in all experts. A *point* is a choice of all other exponents.

    Attributes:
        structure: which tensors start at zero or alike in all experts.
        verdict: `unique` (exactly one point meets the demands), `impossible` (none), `several` (two were found) or
            `undecided`.
        points: points that are certified to meet every demand.
        why: the reason for `undecided`; otherwise "".
        conflict: computes ``core`` and ``clauses``, which takes more time than the verdict does.
    """

    structure: Structure
    verdict: Uniqueness
    points: tuple[Point, ...] = ()
    why: str = ""
    conflict: Callable[[], tuple[tuple[str, ...], tuple[Clause, ...]]] = field(default=lambda: ((), ()), compare=False)

    @property
    def core(self) -> tuple[str, ...]:
        """Names of desiderata that prove the verdict, as few as possible: together they rule out every choice of
        exponents, except the points that were found to meet all of them. Empty if the verdict is `several` or
        `undecided`."""
        return self._found[0]

    @property
    def clauses(self) -> tuple[Clause, ...]:
        """The clauses whose unsatisfiability is the proof: all clauses of the desiderata in ``core`` and, for each
        point found, a clause that excludes it."""
        return self._found[1]

    @cached_property
    def _found(self) -> tuple[tuple[str, ...], tuple[Clause, ...]]:
        return self.conflict()


@dataclass(frozen=True, repr=False)
class Proof(Rendered):
    """The proof about one parameterization (such as muP) on one ray: how many choices of exponents meet its desiderata.

    Attributes:
        configuration: network, optimizer, ray and desiderata of the proof.
        attempts: results, one for each choice of tensors that start at zero or alike in all experts, those with the
            fewest such tensors first, up to the first choice that is not impossible. If exactly one point meets the
            demands there, results for the other choices with as few such tensors follow.
    """

    configuration: Configuration
    attempts: tuple[Outcome, ...]

    @property
    def steps(self) -> tuple[int, int]:
        """Two numbers of updates: the last one at which O(1) is demanded, and the one by which Theta(1) must have been
        reached."""
        last = last_step(self.configuration.network, self.outcome.structure)
        return last + 1, last

    @property
    def outcome(self) -> Outcome:
        """The result for the first structure (choice of tensors that start at zero or alike in all experts) for which a
        parameterization is not proved to be impossible; if it is for all, the result for the last one."""
        return next((a for a in self.attempts if a.verdict is not Uniqueness.IMPOSSIBLE), self.attempts[-1])

    @property
    def verdict(self) -> Uniqueness:
        """The verdict over all structures (choices of tensors that start at zero or alike in all experts) that were
        tried."""
        left = [a.verdict for a in self.attempts if a.verdict is not Uniqueness.IMPOSSIBLE]
        if len(left) > 1:
            return Uniqueness.UNDECIDED if Uniqueness.UNDECIDED in left else Uniqueness.SEVERAL
        return self.outcome.verdict

    @cached_property
    def open_later(self) -> tuple[str, ...] | None:
        """Lines that name the demands which are not proved to hold after any number of updates at the unique
        parameterization; empty if all are.

        None if there is not exactly one parameterization.
        """
        if not self.unique:
            return None
        asked, structure = self.configuration, self.outcome.structure
        look = Analysis(asked.ray, self.outcome.points[0], asked.optimizer, asked.network)
        demands = asked.given.relax_demands(
            asked.network, asked.parameterization.list_demands(asked.network, structure)
        )
        return open_later(look, demands, last_step(asked.network, structure))

    @property
    def unique(self) -> bool | None:
        """True if exactly one parameterization meets the desiderata, with as few tensors as possible that start at zero
        or alike in all experts.

        False if none or several do; None if undecided.
        """
        return None if self.verdict is Uniqueness.UNDECIDED else self.verdict is Uniqueness.UNIQUE

    def agrees(self, scaling: Scaling) -> bool:
        """Returns whether a scaling has the exponents that were proved to be the only ones that meet the desiderata."""
        return (
            self.outcome.verdict is Uniqueness.UNIQUE
            and scaling.point(self.configuration.ray) == self.outcome.points[0]
        )

    @property
    def about(self) -> str:
        return str(self.configuration)

    def show_points(self, attempt: Outcome) -> list[str]:
        """Returns one line for each choice of exponents that was found to meet all demands: ``b.input=0, ...,
        alpha=1``."""
        indices = "bcd" if _faithful(self.configuration.optimizer) else "bc"
        points = []
        for x in attempt.points:
            named = {f"{y}.{role}": value for y in indices for role, value in getattr(x, y).items()}
            named |= x.multipliers
            points.append(", ".join(f"{k}={'zero' if v is None else v}" for k, v in named.items()))
        return points

    def claim(self, attempt: Outcome) -> str:
        """Returns the statement that is proved if the clauses of a result (``attempt``) are unsatisfiable, such as "no
        point meets the desiderata of ..."."""
        claimed = "exactly one point meets" if attempt.verdict is Uniqueness.UNIQUE else "no point meets"
        return f"{claimed} the desiderata of {self.about}, {attempt.structure}"

    def reading(self) -> tuple[str, ...]:
        """Returns lines that explain the names of the unknowns in the clauses of the proof, for a reader of the
        exported script."""
        lines = [
            "sizes are powers of n: init std n^-b, learning rate n^-c, aggregation multiplier n^-alpha",
            f"O(1) is demanded at t = 0 .. {self.steps[0]}, Theta(1) at some t <= {self.steps[1]}",
            "size.SIGNAL: later changes of SIGNAL have the size n^-size.SIGNAL; log QUANTITY: the exponent of QUANTITY",
        ]
        if _faithful(self.configuration.optimizer):
            lines.append("c is the exponent of learning rate over epsilon (c - d): mu-3 makes epsilon the normaliser")
        return tuple(lines)

    def as_json(self) -> dict[str, Any]:
        """Returns the JSON record of ``derive --prove``."""
        left = self.open_later
        return {
            "about": self.about,
            "verdict": self.verdict,
            "steps": {"O(1)": self.steps[0], "Theta(1)": self.steps[1]},
            "every_step": None if left is None else {"holds": not left, "open": list(left)},
            "attempts": [
                {
                    "structure": str(a.structure),
                    "verdict": a.verdict,
                    "clauses": len(a.clauses),
                    "core": list(a.core),
                    "points": self.show_points(a),
                    "why": a.why or None,
                }
                for a in self.attempts
            ],
        }


def prove(
    regime: str | Configuration | None = None,
    optimizer: OptimizerInput = DEFAULT_OPTIMIZER,
    parameterization: str = DEFAULT_PARAMETERIZATION,
    **where: Unpack[ConfigurationOptions],
) -> Proof:
    """Decides whether exactly one parameterization meets the desiderata, with as few tensors as possible that start at
    zero or alike in all experts.

    Examples:
        >>> prove("III", "sgd", "mup").unique
        True

    Raises:
        UsageError: as `derive`; also for a parameterization that is defined rather than derived.
        Inconclusive: proofs do not cover the architecture or optimizer.
    """
    asked = Configuration.of(regime, optimizer, parameterization, **where)
    asked.parameterization.check_derived(asked.network)
    base = asked.parameterization.base_structure(asked.network, asked.readout_init)
    with describe_work_inside(f"proving {asked.parameterization.title}"):
        return Proof(asked, tuple(Prover.of(asked).attempts(asked.parameterization, base)))


def prove_missing(missing: NotFound) -> tuple[Uniqueness, str]:
    """Tries to prove that no parameterization meets the demands, after a search found none.

    A proof is tried only if the search was stopped by a demand that certainly fails, not by an undecided one, or if
    the user gave ``--effort``.

    Args:
        missing: the error that reports the result of the search.

    Returns:
        The verdict (``UNDECIDED`` if no proof was tried or none was found), and one line that states it.
    """
    asked = missing.configuration
    if missing.everywhere:
        return Uniqueness.IMPOSSIBLE, missing.line("proved, since what is exactly zero stays so at any powers")
    reason = provable(asked.network, asked.ray, asked.optimizer)
    if missing.undecided and not asked.effort:
        reason = reason or "give --effort or --prove to try a proof"
    if not reason:
        proof = prove(asked if asked.given else asked.but(readout_init=asked.parameterization.starts(asked.network)))
        if proof.outcome.verdict is Uniqueness.IMPOSSIBLE:
            faithful = " with a derived epsilon" if asked.optimizer.regime == "derived" else ""
            line = f"proved{faithful}: none exists; derive --prove prints the conflicting desiderata"
            return proof.outcome.verdict, missing.line(line)
        reason = f"the proof says {proof.outcome.verdict}"
    return Uniqueness.UNDECIDED, missing.line(f"UNDECIDED: the search found none, which is no proof; {reason}")


def _faithful(optimizer: OptimizerSpec) -> bool:
    """Returns whether the optimizer of some tensor has an epsilon. Then the demand mu-3 gives epsilon the size of the
    gradient, so that the optimizer divides by a number of the size of epsilon, and training is like gradient descent
    with another learning rate.
    """
    return any(rule.epsilon for rule in optimizer.rules)


class Prover:
    """Decides how many choices of exponents meet a set of demands, for one network, ray and optimizer. Products of
    signals are computed once for all choices of tensors that start at zero or alike in all experts.

    Args:
        network: the network.
        ray: the ray.
        optimizer: the optimizer.
        given: exponents that the user fixed; they are added to the demands as equations.
    """

    def __init__(self, network: Network, ray: Ray, optimizer: OptimizerSpec, given: Given = NOTHING) -> None:
        reason = provable(network, ray, optimizer)
        if reason:
            raise Inconclusive(f"cannot prove: {reason}")
        self.network, self.ray, self.optimizer, self.given = network, ray, optimizer, given
        self.forms = form_algebra(network, ray, most=_FORMS)
        self.algebras: dict[Budget, Algebra] = {}
        self._systems: dict[tuple[str, Structure], System] = {}

    @staticmethod
    @lru_cache(maxsize=8)
    def of(asked: Configuration) -> Prover:
        """Returns the prover for a configuration. All calls with the same configuration return the same one, so that
        later proofs reuse the clauses of earlier ones."""
        return Prover(asked.network, asked.ray, asked.optimizer, asked.given)

    def system(self, parameterization: Parameterization, structure: Structure) -> System:
        """Returns the clauses of a parameterization's demands for one choice of tensors that start at zero or alike in
        all experts, including clauses that earlier proofs added."""
        key = parameterization.name, structure
        if key not in self._systems:
            demands = self.given.relax_demands(self.network, parameterization.list_demands(self.network, structure))
            self._systems[key] = System(self, demands, structure)
        return self._systems[key]

    def decide(self, parameterization: Parameterization, structure: Structure) -> Outcome:
        """Decides whether exactly one choice of exponents, several or none meet the demands of a parameterization, for
        one choice of tensors that start at zero or alike in all experts (``structure``)."""
        return self.system(parameterization, structure).decide()

    def attempts(self, parameterization: Parameterization, base: Structure) -> list[Outcome]:
        """Decides, for one structure after the other, how many points meet the demands. A structure says which tensors
        start at zero or alike in all experts; a point gives values to all other exponents.

        Structures with the fewest such tensors come first. The search ends at the first structure that is not proved to
        be impossible. If exactly one point meets the demands for it, the other structures with as few such tensors are
        decided, too.

        Args:
            parameterization: the parameterization, which defines the demands.
            base: the structure to start with. The others are made from it by further discrete choices, such as a router
                that starts at zero.

        Returns:
            The results of the structures that were decided, in this order.
        """
        outcomes, few, base = list[Outcome](), None, self.given.structure(base)
        options = enumerate_structures(self.network, base) if parameterization.structural else [base]
        for structure in self.given.filter_structures(options):
            many = count_interventions(self.network, structure)
            if few is not None and many > few:
                break
            outcomes.append(self.decide(parameterization, structure))
            if outcomes[-1].verdict in (Uniqueness.SEVERAL, Uniqueness.UNDECIDED):
                break
            if outcomes[-1].verdict is Uniqueness.UNIQUE:
                few = many
        return outcomes


class System:
    """The demands of a parameterization as clauses over the unknown exponents, for one choice of tensors that start at
    zero or alike in all experts. Each point (choice of exponents) that turns out to violate a demand adds a clause."""

    def __init__(self, prover: Prover, demands: Sequence[Demand], structure: Structure) -> None:
        self.prover, self.structure, self.ray = prover, structure, prover.ray
        self.network = prover.network
        self.demands = list(demands)
        self.horizon = last_step(self.network, structure)
        roles = self.network.tensors
        self.names = [f"b.{r}" for r in roles if r not in structure.zero]
        self.names += [f"c.{r}" for r in roles if r not in self.network.frozen]
        self.names += find_free_multipliers(self.network)
        self.facts = RayFacts(self.network, prover.forms, self.demands, structure)
        clauses = [clause for demand in self.demands for clause in self.facts.of(demand)]
        self._solver = ClauseSolver(clauses, self.ray.largest)
        given = {f"given: {name} = {power}": name_unknown(name) for name, power in prover.given.as_json().items()}
        self.held = {name: x for name, x in given.items() if x in prover.given.held}
        for name, x in self.held.items():
            for sense in SIDES if x in self._equations() else ():
                atom = Linear(((x, 1),), sense, -prover.given.held[x].on(self.ray))
                self._solver.add(Clause(name, (atom,), "held"))

    def decide(self) -> Outcome:
        """Searches for points (choices of exponents) that meet the demands until none is left, or two are found.

        Law: where the optimizer divides by a number of the size of epsilon (mu-3), the unknown ``c.W`` of the clauses
        stands for c - d, the exponent of learning rate over epsilon. So a c or d that the user fixed is not part of the
        clauses; it is compared with the only point that meets the demands without it.
        """
        outcome = self._decide()
        left = {name: x for name, x in self.held.items() if x not in self._equations()}
        if not left or outcome.verdict in (Uniqueness.IMPOSSIBLE, Uniqueness.UNDECIDED):
            return outcome
        if outcome.verdict is Uniqueness.SEVERAL:
            return replace(
                outcome, verdict=Uniqueness.UNDECIDED, why=f"several parameterizations remain without {', '.join(left)}"
            )
        point, held = outcome.points[0], self.prover.given.held
        broken = [n for n, x in left.items() if getattr(point, x[0])[x[2:]] != held[x].on(self.ray)]
        if not broken:
            return outcome
        return Outcome(self.structure, Uniqueness.IMPOSSIBLE, conflict=lambda: ((*outcome.core, *broken), ()))

    def _equations(self) -> set[str]:
        """Returns the names of those exponents fixed by the user that become clauses: multipliers, b (init std), and c
        (learning rate) of tensors without an epsilon.
        """
        rule, held = self.prover.optimizer.of, self.prover.given.held
        return {x for x in held if x[:2] not in ("c.", "d.") or (x[0] == "c" and not rule(x[2:]).epsilon)}

    def _decide(self) -> Outcome:
        points: list[Point] = []
        apart: list[Clause] = []
        try:
            while len(points) < 2:
                values = self.next(apart)
                if values is None:
                    verdict = Uniqueness.UNIQUE if points else Uniqueness.IMPOSSIBLE
                    return Outcome(self.structure, verdict, tuple(points), conflict=partial(self._conflict, apart))
                points.append(self.point(values))
                apart.append(Clause(APART, self.other(values), "not the point found"))
        except Undecided as reason:
            return Outcome(self.structure, Uniqueness.UNDECIDED, tuple(points), why=str(reason))
        return Outcome(self.structure, Uniqueness.SEVERAL, tuple(points))

    def _conflict(self, apart: Sequence[Clause]) -> tuple[tuple[str, ...], tuple[Clause, ...]]:
        core, needed = self._solver.conflict(apart)
        epsilon = (EPSILON,) if _faithful(self.prover.optimizer) else ()
        return (*(x for x in core if x != APART), *epsilon), needed

    def next(self, apart: Sequence[Clause]) -> dict[str, Fraction] | None:
        """Returns values of the unknown exponents that meet all demands and the clauses `apart`, which exclude the
        points found before; None if there are none."""

        def propose() -> dict[str, Fraction] | None:
            model = self._solver.model(apart)
            return None if model is None else {name: model.get(name, Fraction(0)) for name in self.names}

        return refine(propose, self.examine, self._solver.add)

    def point(self, values: Mapping[str, Fraction]) -> Point:
        """Returns the point (all exponents) with the given values of the unknowns. For a tensor with an epsilon n^-d, d
        is chosen so that epsilon has the size of the tensor's largest gradient.

        Raises:
            Undecided: the size of a gradient is undecided.
        """
        plain = self.structure.point(self.network, values)
        if not _faithful(self.prover.optimizer):
            return plain
        look = self.look(plain, OPTIMIZERS["sgd"])
        d = dict.fromkeys(self.network.tensors, Fraction(0))
        for role, tensor in self.network.tensors.items():
            if role in self.network.frozen or not self.prover.optimizer.of(role).epsilon:
                continue
            sizes = [look(f"g{tensor.symbol}", t) for t in range(1, self.horizon + 1)]
            if not all(a.decided for a in sizes):
                raise Undecided(f"the size of the gradient of {tensor.symbol}, which sets its epsilon, is undecided")
            d[role] = -max((a.exponent for a in sizes if a.exponent is not None), default=Fraction(0))
        return replace(plain, c={role: c + d[role] for role, c in plain.c.items()}, d=d)

    def examine(self, values: Mapping[str, Fraction]) -> Clause | None:
        """Examines exactly whether a point, given by the values of its unknown exponents, meets every demand.

        Returns:
            None if it does. Otherwise a clause that this point violates, but which holds at every point that meets the
            demand that fails here.

        Raises:
            Undecided: a size has no certificate, or the exponents of the point cannot be represented.
        """
        rule, plain = self.prover.optimizer, self.structure.point(self.network, values)
        failed = find_failure(self.demands, lambda: self.look(plain, OPTIMIZERS["sgd"]))
        if failed is not None:
            demand, form, why = failed
            atoms = self.other(values) if form is None else (self.facts.atom(form, "<="),)
            return Clause(demand.label, atoms, why)
        if any(x.normalises for x in rule.rules):
            with expressible():
                left = find_unmet(self.demands, self.look(self.point(values), rule))
            if left is not None:
                raise Undecided(
                    f"a point meets the desiderata with gradient descent, but not with {rule.name}: it violates "
                    f"{left[0].label} ({left[2]})"
                )
        return None

    def other(self, values: Mapping[str, Fraction]) -> tuple[Linear, ...]:
        """Returns inequalities at least one of which holds at every point that differs from the one with these values:
        ``b.W != 1/2``, ..."""
        return tuple(Linear(((name, 1),), "!=", -value) for name, value in values.items())

    def look(self, point: Point, rule: OptimizerSpec) -> Analysis:
        """Returns the analysis (it computes sizes) of training by the optimizer ``rule`` with the exponents
        ``point``."""
        return Analysis(self.ray, point, rule, self.network, self.prover.algebras)
