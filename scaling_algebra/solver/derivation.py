"""The functions that users call first: ``derive`` and ``signals``. Their results print themselves.

Read next: ``search.py`` (solves), ``scaling_algebra/spec/configuration.py`` (the question),
``presentation.py`` (how results are printed).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property, lru_cache
from typing import Any, Unpack

from scaling_algebra import limits
from scaling_algebra.documents import Rendered
from scaling_algebra.dynamics.analysis import Analysis
from scaling_algebra.dynamics.brackets import Bracket
from scaling_algebra.dynamics.quantities import find_quantity
from scaling_algebra.errors import UsageError, find_entry
from scaling_algebra.spec.axes import Ray
from scaling_algebra.spec.configuration import (
    DEFAULT_OPTIMIZER,
    DEFAULT_PARAMETERIZATION,
    Configuration,
    ConfigurationOptions,
)
from scaling_algebra.spec.desiderata import NONE, Structure
from scaling_algebra.spec.gauges import GAUGES, OWN
from scaling_algebra.spec.given import SETTINGS, name_unknown
from scaling_algebra.spec.glossary import ASSUMPTIONS
from scaling_algebra.spec.level import Level, level_as_json
from scaling_algebra.spec.networks.auxiliary import find_buffers, name_weight
from scaling_algebra.spec.networks.language import Network
from scaling_algebra.spec.networks.multipliers import find_free_multipliers, find_gauges
from scaling_algebra.spec.networks.roles import readouts
from scaling_algebra.spec.networks.sums import experts
from scaling_algebra.spec.optimizer_reading import OptimizerInput
from scaling_algebra.spec.optimizers import OptimizerSpec
from scaling_algebra.spec.powers import Power
from scaling_algebra.spec.records import convert_to_json
from scaling_algebra.spec.scaling import Scaling, TensorScaling
from scaling_algebra.waiting import collect_rarely, describe_work_inside

from .demands import Fixing, Infeasible, NotFound
from .layerwise import at_full_alignment, shares_read
from .points import Places
from .search import Solution, solve

LAWS = {
    "init": "spectral condition, std = min(1, sqrt(out / in)) / sqrt(in), or 1 / sqrt(in) of what does not train",
    "lr": "update times input = Theta(1) at full alignment",
    "eps": "entries of a gradient are 1 / (number of outputs)",
}
"""The layer-wise law of each setting (``layerwise.at_full_alignment``)."""
SHARED = "; inputs that are weights of a softmax are each one over their number"
STARTS = "the network declares that it starts at zero"
UNFAVOURED = "chosen: zero, so that no entry is favoured; scores are Theta(1), any O(1) does"
SHIFTED = "a step is the sign of a count; Theta(1), as large as the scores that it is added to"
"""The reasons of a buffer's init, and of its rate if the layer-wise law gives it."""
TIES = (
    "a router that starts at zero makes all logits equal, so that top-K selects at random or by position; add noise "
    "to the router"
)


@dataclass(frozen=True, repr=False)
class Derivation(Rendered):
    """A derived parameterization: ``d["router"].lr`` is a power of the axes.

    Attributes:
        configuration: network, ray, optimizer and parameterization.
        scaling: powers of the axes for every tensor.
        reasons: one line for each ``(role, "init" | "lr" | "eps")`` and for ``("aggregation", "alpha")``.
        chosen: which tensors start at zero or alike and which signals are free, if the derivation changed any of this
            (an intervention); otherwise None.
        rejected: structures with as few interventions or fewer, each with the demand that fails.
        others: structures with as few interventions for which no demand is seen to fail, either.
        fixed_by: for each unknown exponent (``b.ROLE`` of an init std, ``c.ROLE`` of a learning rate, ``d.ROLE`` of
            an epsilon, ``alpha`` of the multiplier of a sum over experts) the condition that determines it; empty if
            nothing was solved.
        unique: True or False if uniqueness was proved or refuted, None if it was not examined.
        unmet: the desiderata that fail with the given exponents, one line each, the earliest first.
        gauge: name of the gauge (the convention for multipliers on tensors) in which tensors are shown; ``scaling``
            is in the gauge without multipliers.
        assumes: assumptions beyond counting powers: names of ``ASSUMPTIONS``.
        level: how far the numbers are proved; None if they are defined, not derived.
    """

    configuration: Configuration
    scaling: Scaling
    reasons: Mapping[tuple[str, str], str]
    chosen: Structure | None = None
    rejected: tuple[tuple[Structure, str], ...] = ()
    others: tuple[Structure, ...] = ()
    fixed_by: Mapping[str, Fixing] = field(default_factory=dict)
    unique: bool | None = None
    unmet: tuple[str, ...] = ()
    gauge: str = OWN
    assumes: tuple[str, ...] = ()
    level: Level | None = None

    def in_gauge(self, name: str) -> Derivation:
        """Returns the same parameterization in another gauge, one of ``GAUGES``.

        Examples:
            >>> d = derive(ray="N=1", optimizer="adam", architecture="mlp").in_gauge("table8")
            >>> str(d["readout"].multiplier), str(d["readout"].init_std), str(d["readout"].lr), str(d["readout"].eps)
            ('N^-1', '1', '1', 'N^-1')

        Raises:
            UsageError: there is no such gauge.
        """
        return replace(self, gauge=find_entry("gauge", name, GAUGES).name)

    @cached_property
    def tensors(self) -> Mapping[str, TensorScaling]:
        """The powers of every tensor by role, in the gauge of this derivation."""
        return GAUGES[self.gauge].tensors(self.scaling.tensors, self.network, self.ray, self.optimizer)

    def apply_law(self, ray: Ray) -> Scaling | None:
        """Returns the settings that follow from the shapes of the tensors (the layer-wise law) on another ray.

        It does so only if the settings of this derivation follow from the shapes on its own ray, and the network has
        norms, for which a search would take seconds and return these settings. Otherwise returns None.
        """
        if not self.network.norms:
            return None
        here, there = (at_full_alignment(self.network, x, self.optimizer) for x in (self.ray, ray))
        tensors = dict[str, TensorScaling]()
        for role, t in self.scaling.tensors.items():
            powers = {f"b.{role}": t.init_std, f"c.{role}": t.lr, f"d.{role}": t.eps}
            if any((power * here[name]).on(self.ray) for name, power in powers.items() if power is not None):
                return None
            init_std, lr, eps = (None if x is None else 1 / there[name] for name, x in powers.items())
            tensors[role] = TensorScaling(init_std, lr, eps)
        multipliers = {name: there.get(name, power) for name, power in self.scaling.multipliers.items()}
        return replace(self.scaling, tensors=tensors, multipliers=multipliers)

    @property
    def structure(self) -> tuple[str, ...]:
        """One line for each structural choice: the interventions, and each structure that was rejected."""
        if self.chosen is None:
            return ()
        as_few = (f"as few: {x}" for x in self.others)
        tried = [f"rejected: {x}: {why}" for x, why in self.rejected]
        if not self.configuration.given:  # MSSP makes all demands of muP, and more
            tried = [x.replace(f"{NONE}: MSSP", f"{NONE} (muP's numbers): MSSP") for x in tried]
        return f"chosen: {self.chosen}", *as_few, *tried

    @property
    def ray(self) -> Ray:
        return self.configuration.ray

    @property
    def optimizer(self) -> OptimizerSpec:
        return self.configuration.optimizer

    @property
    def network(self) -> Network:
        return self.configuration.network

    def __getitem__(self, role: str) -> TensorScaling:
        """Returns the powers of one tensor.

        Raises:
            UsageError: the network has no such tensor.
        """
        if role not in self.tensors:
            raise self.network.unknown("tensor", str(role))
        return self.tensors[role]

    def __iter__(self) -> Iterator[str]:
        return iter(self.scaling.tensors)

    def analysis(self) -> Analysis:
        """Returns the engine's analysis of this parameterization. Called with a quantity and a step, it returns the
        size; answers are cached.
        """
        return self._analysis

    @cached_property
    def _analysis(self) -> Analysis:
        return Analysis(self.ray, self.scaling.point(self.ray), self.optimizer, self.network)

    def exponents(self, role: str) -> tuple[Fraction | None, Fraction | None, Fraction | None]:
        """Returns the exponents (b, c, d) of a tensor on the ray: init std ~ n^-b, learning rate ~ n^-c, epsilon ~
        n^-d.

        b is None for zero init, c for a frozen tensor, and d for a rule without epsilon.
        """
        s = self.tensors[role]
        return (
            None if s.init_std is None else -s.init_std.on(self.ray),
            None if s.lr is None else -s.lr.on(self.ray),
            None if s.eps is None else -s.eps.on(self.ray),
        )

    def as_json(self) -> dict[str, Any]:
        """Returns the JSON record.

        Exponents are strings, zero init is ``"b": "zero"``, and d and eps are null without epsilon.
        """
        tensors = {}
        for role, s in self.tensors.items():
            b, c, d = self.exponents(role)
            tensors[role] = {
                "a": -s.multiplier.on(self.ray),
                "b": "zero" if b is None else b,
                "c": c,
                "d": d,
                "multiplier": s.multiplier,
                "init_std": s.init_std,
                "lr": s.lr,
                "eps": s.eps,
                "because": {what: why for (r, what), why in self.reasons.items() if r == role},
            }
        record = {
            **self.configuration.as_json(),
            "gauge": self.gauge,
            "alpha": self.scaling.alpha.on(self.ray),
            "aggregation": 1 / self.scaling.alpha,
            "multipliers": {name: 1 / x for name, x in self.scaling.multipliers.items()},
            "tied": self.scaling.tied,
            "structure": self.structure,
            "unique": self.unique,
            "unmet": self.unmet,
            "assumes": self.assumes,
            **level_as_json(self.level),
            "tensors": tensors,
        }
        return {key: convert_to_json(value) for key, value in record.items()}

    @property
    def about(self) -> str:
        return str(self.configuration)


@dataclass(frozen=True, repr=False)
class Signals(Rendered):
    """Exponents of n of named quantities after t = 0, 1, ..., ``steps`` updates, each certified or undecided.

    Attributes:
        derivation: the parameterization.
        steps: the last step.
        quantities: for each quantity its size after 0, 1, ..., ``steps`` updates.
    """

    derivation: Derivation
    steps: int
    quantities: Mapping[str, tuple[Bracket, ...]]

    def without_assumptions(self) -> Signals:
        """Returns a copy in which every exponent that relies on an assumption beyond counting powers is undecided."""
        return replace(
            self,
            quantities={name: tuple(a.without_assumptions() for a in row) for name, row in self.quantities.items()},
        )

    @property
    def assumes(self) -> tuple[str, ...]:
        """The assumptions beyond counting powers: names of ``ASSUMPTIONS``."""
        names = set().union(*(a.assumes for row in self.quantities.values() for a in row if a.decided))
        return tuple(x for x in ASSUMPTIONS if x in names)

    def prediction(self) -> dict[str, tuple[Fraction | None, ...]]:
        """Returns exponents of n by quantity and step, None for exactly zero.

        Quantities that are undecided at some step are omitted.
        """
        return {
            name: tuple(a.exponent for a in row) for name, row in self.quantities.items() if all(a.decided for a in row)
        }

    def as_json(self) -> dict[str, Any]:
        """Returns the JSON record.

        Exponents are strings, null is exactly zero, and ``"undecided"`` means that no certificate was found;
        ``because`` says why, by quantity and step.
        """
        cells = {
            name: [convert_to_json(a.exponent) if a.decided else "undecided" for a in row]
            for name, row in self.quantities.items()
        }
        return {
            **self.derivation.configuration.as_json(),
            "steps": list(range(self.steps + 1)),
            "quantities": cells,
            "because": {
                name: [None if a.decided else a.why for a in row]
                for name, row in self.quantities.items()
                if not all(a.decided for a in row)
            },
            "assumes": list(self.assumes),
        }

    @property
    def about(self) -> str:
        return self.derivation.about


def derive(
    regime: str | Configuration | None = None,
    optimizer: OptimizerInput = DEFAULT_OPTIMIZER,
    parameterization: str = DEFAULT_PARAMETERIZATION,
    **where: Unpack[ConfigurationOptions],
) -> Derivation:
    """Derives how init std, learning rate and epsilon of every tensor must scale, and how far that is certified.

    The readout initialisation defaults to the one of the parameterization's definition in the MSSP paper (maximal for
    muP, zero for MSSP). Another choice replaces the readout's init and leaves the other exponents as derived.

    Args:
        regime: I, II or III; or a whole ``Configuration``, and nothing else.
        optimizer: the optimizer, or several by tensor.
        parameterization: its name.
        **where: further options, see ``ConfigurationOptions``: ``ray`` (no regime), ``readout_init``, ``architecture``.

    Examples:
        >>> d = derive(regime="II", optimizer="sgd", parameterization="mssp")
        >>> str(d["expert_out"].init_std), str(d["expert_out"].lr)
        ('M^(1/2)', 'N M')
        >>> d.exponents("router")
        (Fraction(1, 2), Fraction(0, 1), None)

    Raises:
        UsageError: a name is unknown, a ray is invalid, or not exactly one of regime and ray is given.
        NotFound: the search found no parameterization that meets the demands on this ray, not even up to undecided
            demands. The message names the first demand that fails without any intervention. It is a subclass of
            ``Infeasible``.
    """
    asked = Configuration.of(regime, optimizer, parameterization, **where)
    if asked.parameterization.borrowed:
        return _borrow_mup(asked)
    if not asked.parameterization.derived:
        return _define_published(asked)
    return _derive_from_demands(asked)


def signals(
    regime: str | Configuration | None = None,
    optimizer: OptimizerInput = DEFAULT_OPTIMIZER,
    parameterization: str = DEFAULT_PARAMETERIZATION,
    *,
    steps: int = 2,
    quantities: Sequence[str] | None = None,
    **where: Unpack[ConfigurationOptions],
) -> Signals:
    """Computes the exponents of n of quantities after t = 0 .. ``steps`` updates. Each is certified exact, or
    undecided with its reason.

    Arguments that are not listed are those of ``derive``.

    Args:
        steps: the last number of updates.
        quantities: names of the quantities, such as ``h2.change``; None for all.

    Examples:
        >>> s = signals(regime="III", optimizer="sgd", parameterization="mup")
        >>> [str(a) for a in s.quantities["h3.A2.1"]]
        ['0 (exact)', '-1', '-1/2']

    Raises:
        UsageError: as ``derive``; also negative steps or an unknown quantity.
        Infeasible: as ``derive``.
    """
    limits.check_range("steps", steps, 0, limits.STEPS)
    quantities = [quantities] if isinstance(quantities, str) else quantities
    d = derive(regime, optimizer, parameterization, **where)
    look = d.analysis()
    for name in quantities or ():
        find_quantity(look.table, name)
    return Signals(d, steps, look.evaluate_all(steps, quantities))


def _derive_from_demands(asked: Configuration) -> Derivation:
    """Derives a parameterization from its desiderata.

    If ``asked`` has another readout init (maximal or zero) than the parameterization's definition, only the init stds
    of the readouts are changed; all other powers are those of the definition.
    """
    rule = asked.parameterization
    if asked.network.unread:
        return _by_shape(asked)
    rule.check_derived(asked.network)
    if asked.given:  # then the readout init is given as well
        solution = find_solution(asked)
        unmet = tuple(failure for _, failure in solution.unmet)
        why = _reasons(asked.network, asked.ray, solution)
        if solution.exchanged:
            why = {key: f"as if nothing were given: {reason}" for key, reason in why.items()}
        why |= _given_reasons(asked, solution)
        reasons = {key: why[key] for key in _settings(asked.network) if key in why}
        level = replace(solution.level, failed=len(unmet))
        return replace(_make_derivation(asked, solution, solution.scaling, reasons), unmet=unmet, level=level)
    usual, last = rule.starts(asked.network), readouts(asked.network)
    solution = find_solution(asked.but(readout_init=usual))
    scaling, reasons, level = solution.scaling, _reasons(asked.network, asked.ray, solution), solution.level
    if asked.readout_init != usual:
        other: Scaling | None = None
        if asked.readout_init != "zero":
            largest = find_solution(asked.but(parameterization="mup", readout_init="maximal"))
            other, level = largest.scaling, Level.of((level, largest.level)) or level
        scaling = _with_readout(scaling, last, other)
        reasons |= {(role, "init"): f"chosen: readout init {asked.readout_init}" for role in last}
    return replace(_make_derivation(asked, solution, scaling, reasons), level=level)


BY_SHAPE = "the layer-wise law at full alignment, from shapes of parameters"
"""The law for a module whose equations are not known. Shapes do not determine the sizes of gradients, so that epsilons
are taken as negligible.
"""


def _by_shape(asked: Configuration) -> Derivation:
    """Derives muP from the shapes of the tensors alone (``layerwise.at_full_alignment``).

    This is for a module whose equations could not be read.

    Assumes: signals keep their size between tensors, and no tensor is used twice.

    Raises:
        UsageError: the parameterization needs more than the shapes of tensors.
    """
    if asked.parameterization.name != "mup":
        raise UsageError(
            f"{asked.network.unread}; the shapes of its parameters suffice for muP, not for "
            f"{asked.parameterization.title}; give --parameterization mup"
        )
    if asked.optimizer.regime is not None:
        asked = asked.but(epsilon="negligible")
    law = at_full_alignment(asked.network, asked.ray, asked.optimizer).items()
    powers = {x: Power.of({axis: e for axis, e in p.terms if asked.ray[axis]}) for x, p in law}
    tensors = {
        role: TensorScaling(
            None if role in asked.network.zero else 1 / powers[f"b.{role}"],
            None if role in asked.network.frozen else 1 / powers[f"c.{role}"],
        )
        for role in asked.network.tensors
    }
    reasons = {(role, what): f"by shape: {LAWS[what]}" for role, what in _settings(asked.network) if role in tensors}
    level = Level(unread=f"{BY_SHAPE}; its equations could not be read: {asked.network.unread}")
    return Derivation(asked, asked.given.over(Scaling(tensors)), reasons | _as_given(asked), level=level)


def find_solution(asked: Configuration) -> Solution:
    """Returns the solution of a configuration's demands; it is searched for once and then cached.

    Raises:
        NotFound: the search found none.
    """
    outcome = search_cached(asked)
    if isinstance(outcome, NotFound):
        raise NotFound(asked, outcome.failure, outcome.undecided, outcome.everywhere)
    return outcome


@lru_cache(maxsize=20_000)  # as many as a campaign may have, some 15 kB each
def search_cached(asked: Configuration) -> Solution | NotFound:
    """Returns the outcome of a search, from the cache if it was run before."""
    rule = asked.parameterization
    try:
        with collect_rarely(), describe_work_inside(f"deriving {rule.title}"):
            at = _points(asked.network, asked.ray, asked.optimizer, asked.effort)
            return solve(at, rule, rule.base_structure(asked.network, asked.readout_init), asked.given)
    except Infeasible as failure:
        return NotFound(asked, str(failure), failure.undecided, failure.everywhere)


@lru_cache(maxsize=16)
def _points(network: Network, ray: Ray, optimizer: OptimizerSpec, effort: bool) -> Places:
    """Returns the source of analyses (objects that compute sizes) of one network, ray and optimizer.

    It is cached, so that the searches for all parameterizations share it.
    """
    return Places(network, ray, optimizer, effort=effort)


def _reasons(network: Network, ray: Ray, solution: Solution) -> dict[tuple[str, str], str]:
    """Returns, by (role, setting), the text that says why each number of a solution has its value."""
    reasons = _by_law(network, ray, solution) if not solution.fixed_by else {}
    for role in network.tensors:
        for label, letter in SETTINGS.items():
            fixing = solution.fixed_by.get(f"{letter}.{role}")
            if fixing is not None:
                reasons[role, label] = fixing.demand.label
            elif (role, label) in reasons:
                continue
            elif letter == "b" and role in readouts(network):
                reasons[role, label] = "chosen: zero readout as in the MSSP paper, App. J (or readout init maximal)"
            elif letter == "b":
                reasons[role, label] = (
                    "MSSP pathways: with zero init both pathways of the propagating update vanish, else they differ"
                )
    reasons |= {(x, "init"): STARTS for x in network.zero if solution.scaling.tensors[x].init_std is None}
    reasons |= {(role, "init"): UNFAVOURED for role in find_buffers(network)}
    fixed = {name: solution.fixed_by[name] for name in find_free_multipliers(network) if name in solution.fixed_by}
    reasons |= {("aggregation", name): fixing.demand.label for name, fixing in fixed.items()}
    return reasons | {("aggregation", name): _gauge_reason(network, name) for name in find_gauges(network)}


def _by_law(network: Network, ray: Ray, solution: Solution) -> dict[tuple[str, str], str]:
    """Returns the texts that say why each number has its value, for a solution that follows from shapes of tensors.

    Each quotes the rule that ``layerwise.at_full_alignment`` applied; keys are (role, setting). Numbers that are zero
    are omitted.
    """
    reasons: dict[tuple[str, str], str] = {}
    free = {x for e in experts(network) for x in e.outer if solution.structure.exempt.intersection(e.last)}
    for role, t in solution.scaling.tensors.items():
        settings = {"init": t.init_std, "lr": t.lr, "eps": t.eps}
        more = SHARED if shares_read(network, ray, role).terms else ""
        given = (what for what, x in settings.items() if x is not None)
        reasons |= {(role, what): f"layer-wise law: {LAWS[what]}{more}" for what in given}
        if role in free:
            reasons[role, "init"] += ", times the root of the number of experts"
    reasons |= {
        ("aggregation", x): "layer-wise law: one over the number of terms, 1 where weights sum to 1"
        for x in find_free_multipliers(network)
    }
    for loss in network.losses:
        reasons["aggregation", name_weight(network, loss)] = f"layer-wise law: {LAWS['eps']}"
    return reasons | {(role, "lr"): SHIFTED for role in find_buffers(network)}


def _gauge_reason(network: Network, multiplier: str) -> str:
    """Returns the text that says why a redundant multiplier is 1, with the tensors that can absorb it."""
    uses = (s for s in network.linear if multiplier in s.multipliers)
    roles = " and ".join(dict.fromkeys(s.tensor.name for s in uses if s.tensor))
    return f"a gauge: init and rate of {roles} absorb it; give {multiplier}, or one of them, and the others are derived"


def _settings(network: Network) -> list[tuple[str, str]]:
    """Lists every (role, setting) of a network, such as ``("router", "lr")``, in the order of reports."""
    return [
        *((role, what) for role in network.tensors for what in SETTINGS),
        *(("aggregation", name) for name in (*find_free_multipliers(network), *find_gauges(network))),
    ]


def _given_reasons(asked: Configuration, solution: Solution) -> dict[tuple[str, str], str]:
    """Returns a text for every number that the user fixed, which says whether the demand that would determine it
    holds.
    """
    rule, reasons = asked.parameterization, {}
    fixing = {d.fixes: d for d in rule.list_demands(asked.network, solution.structure) if d.fixes}
    failed, left = {d.label: why for d, why in solution.unmet}, {x.demand for x in solution.level.open}
    for name, _ in asked.given.items:
        role, _, setting = name.rpartition(".")
        demand = fixing.get(name_unknown(name))
        said = "given"
        if demand is not None:
            holds = f"{demand.name} {'undecided' if demand.label in left else 'holds'} ({demand.because})"
            said += f"; {failed.get(demand.label, holds)}"
        reasons[(role, setting) if role else ("aggregation", name_unknown(name))] = said
    return reasons


def _make_derivation(
    asked: Configuration, solution: Solution, scaling: Scaling, reasons: Mapping[tuple[str, str], str]
) -> Derivation:
    """Makes the derivation of a solution. Tensors that the user sets to zero and the readout init are not reported as
    interventions.
    """
    chosen = solution.structure
    own = chosen != Structure(zero=chosen.zero & (asked.given.zero | chosen.readouts))
    tried = solution.rejected, solution.others, solution.fixed_by
    found = Derivation(asked, scaling, reasons, chosen if own else None, *tried)
    return replace(found, assumes=solution.assumes, level=solution.level)


def _borrow_mup(asked: Configuration) -> Derivation:
    """Returns a parameterization that takes its powers from the muP of another network (``Parameterization.borrowed``).

    Tensors that the other network lacks get Theta(1) init std and learning rate.
    """
    rule = asked.parameterization
    family = rule.borrowed.partition("-")[0]
    if not asked.network.name.startswith(f"{family}-"):
        raise UsageError(f"{rule.name} is for the architectures {family}-..., not for {asked.network.name}; give mup")
    d = derive(asked.but(parameterization="mup", network=rule.borrowed, given=None))
    extra = {
        role: TensorScaling(Power(), Power(), Power() if asked.optimizer.of(role).epsilon else None)
        for role in asked.network.tensors
        if role not in d.scaling.tensors
    }
    scaling = asked.given.over(replace(d.scaling, tensors={**d.scaling.tensors, **extra}))
    reasons = {key: f"as for {d.network.title}: {why}" for key, why in d.reasons.items()} | _as_given(asked)
    return replace(d, configuration=asked, scaling=scaling, reasons=reasons, level=None)


def _define_published(asked: Configuration) -> Derivation:
    """Returns a parameterization that a publication defines by a formula, such as SP; no demand is solved."""
    rule, optimizer, network = asked.parameterization, asked.optimizer, asked.network
    if rule.name == "mean-field" and any(x.normalises for x in optimizer.rules):
        raise UsageError(
            f"mean-field is defined for SGD (one learning rate ~ width); give --optimizer sgd, not {optimizer.name}"
        )
    scaling = rule.define_scaling(network, optimizer)
    if asked.readout_init == "zero":
        scaling = _with_readout(scaling, readouts(network), None)
    gauge = rule.name.removesuffix("-feature")
    why_lr = f"{gauge}: one global learning rate"
    if rule.rate == "feature":
        scaling = _feature_rate(asked, scaling)
        why_lr += ", so large that the first step changes the first layer by Theta(1)"
    reasons = {}
    for role in network.tensors:
        reasons[role, "init"] = f"{gauge}: {rule.definition}"
        reasons[role, "lr"] = "frozen: it has no learning rate" if role in network.frozen else why_lr
    faithful = [role for role in network.tensors if optimizer.of(role).epsilon and role not in network.frozen]
    tensors = {r: s if r in faithful else replace(s, eps=None) for r, s in scaling.tensors.items()}
    tensors |= {role: replace(tensors[role], lr=None, eps=None) for role in network.frozen}
    scaling = replace(scaling, tensors=tensors)
    reasons |= {(role, "eps"): f"{gauge}: one global epsilon" for role in faithful}
    reasons["aggregation", "alpha"] = f"{gauge}: mean over the experts"
    return Derivation(asked, asked.given.over(scaling), reasons | _as_given(asked))


def _as_given(asked: Configuration) -> dict[tuple[str, str], str]:
    """Returns the text "given" as the reason of every number that the user fixed, by (role, setting)."""
    names = (name.rpartition(".") for name, _ in asked.given.items)
    return {(role, last) if role else ("aggregation", name_unknown(last)): "given" for role, _, last in names}


def _feature_rate(asked: Configuration, scaling: Scaling) -> Scaling:
    """Returns the settings with one learning rate for all tensors, so large that the first step changes the first
    layer by Theta(1).

    All tensors get one epsilon, which is as small as the smallest gradient of the first step, as the routers paper
    assumes.
    """
    ray, network = asked.ray, asked.network
    if not ray["N"]:
        raise UsageError(
            f"{asked.parameterization.name} is defined in powers of the width N, which does not grow on {ray}; give a "
            "ray with N > 0"
        )

    def look(scaling: Scaling) -> Analysis:
        return Analysis(ray, scaling.point(ray), asked.optimizer, network)

    first = next(s.out for s in network.statements)
    gradients = [look(scaling)(f"g{tensor.symbol}", 0).exponent for tensor in network.tensors.values()]
    eps = Power.of({"N": min((g for g in gradients if g is not None), default=Fraction(0)) / ray["N"]})
    scaling = replace(scaling, tensors={r: replace(s, eps=eps) for r, s in scaling.tensors.items()})
    size = look(scaling)(f"{first}.change", 1).exponent
    factor = Power() if size is None else Power.of({"N": -size / ray["N"]})
    tensors = {r: s if s.lr is None else replace(s, lr=s.lr * factor) for r, s in scaling.tensors.items()}
    return replace(scaling, tensors=tensors)


def _with_readout(scaling: Scaling, roles: Sequence[str], other: Scaling | None) -> Scaling:
    """Returns a copy of a parameterization's settings with other init stds of the readouts.

    Args:
        scaling: the settings.
        roles: the readouts.
        other: the settings whose init stds the readouts take; None for readouts that start at zero.
    """
    stds = {role: None if other is None else other.tensors[role].init_std for role in roles}
    last = {role: replace(scaling.tensors[role], init_std=std) for role, std in stds.items()}
    return replace(scaling, tensors={**scaling.tensors, **last})
