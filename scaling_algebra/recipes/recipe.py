"""``recipe`` converts the numbers tuned on a small model to those of a large one."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING, Any, Unpack

from scaling_algebra import limits
from scaling_algebra.documents import Rendered
from scaling_algebra.dynamics.analysis import Analysis, limit_lead
from scaling_algebra.errors import UsageError, check_names, quote_value, unknown_name_error
from scaling_algebra.solver.demands import Infeasible
from scaling_algebra.solver.derivation import Derivation, derive
from scaling_algebra.spec.axes import AXES, Ray, describe_axis, sort_axes
from scaling_algebra.spec.configuration import DEFAULT_OPTIMIZER, Configuration, ConfigurationOptions
from scaling_algebra.spec.desiderata import HORIZON
from scaling_algebra.spec.gauges import OWN
from scaling_algebra.spec.level import Level, OpenDemand, level_as_json
from scaling_algebra.spec.networks.indices import list_growing_axes
from scaling_algebra.spec.networks.language import Network
from scaling_algebra.spec.networks.library import ARCHITECTURES
from scaling_algebra.spec.networks.sums import experts
from scaling_algebra.spec.optimizer_reading import OptimizerInput, read_optimizers, resolve_names
from scaling_algebra.spec.optimizers import Optimizer
from scaling_algebra.spec.parameterizations import parameterization as asked_for
from scaling_algebra.spec.powers import Power
from scaling_algebra.spec.records import convert_to_json
from scaling_algebra.spec.scaling import Scaling, TensorScaling

from .next_terms import NextTerms, next_terms
from .settings import Breaks, Setting
from .sizes import Sizes, Way, every_axis, read_sizes, way
from .warnings import warnings

if TYPE_CHECKING:
    from .horizon import Horizon

TRANSFORMER = ("deep-mlp", "deep-moe")
"""The default networks of a recipe: the dense layers and the MoE layers of one residual stream."""
BLOCK = "moe"
"""The block of which the MoE layers of that stream consist."""

TUNED = ("init_std", "lr", "eps", "decay")
"""Settings of a tensor that can be tuned."""
WHAT = ("multiplier", *TUNED)
"""All settings of a tensor."""
TOWARDS = Fraction(1, 4), Fraction(1, 2), Fraction(1)
"""Positions between a ray that has no parameterization (0) and the ray on which all axes grow alike (1), tried in
turn."""

BIAS = "bias"
"""The role of the Transformer's biases. In its equations they are maps of one constant."""
POWER = "_power"
GAINS = ("gain", "final_gain", BIAS)
"""Roles of the library that start at one value, without a std. In another network, roles of these names may be
random."""
MEANS = (
    "K/M changes: powers of M and K hold where the mean over many tokens rules an expert's gradient, those of a batch "
    "(sde) where noise rules all; where noise rules experts, too, recipe --hold sde --experts has their factors in K/M"
)
"""The warning if the batch and the fraction of active experts change together."""
_LITTLE = limit_lead(50_000)
"""Budget for a lower bound on a signal that grows."""

Tuned = Mapping[str, float]
"""A tuned value by role. The empty name stands for every other role."""


@dataclass(frozen=True, repr=False)
class Recipe(Rendered):
    """Init std, learning rate, epsilon and weight decay of every tensor at the target, and every multiplier.

    Attributes:
        way: the sizes of base and target, and the ray from one to the other.
        derivations: the sources of the powers, one for each part of the model.
        tensors: settings by role and name: ``init_std``, ``lr``, ``eps``, ``decay``, and ``multiplier`` in a gauge
            where the tensor has one. A frozen tensor has ``init_std`` alone.
        multipliers: settings by name, e.g. ``alpha``, the multiplier of the sum over experts.
        tied: roles whose initial values all experts share.
        instead: if no parameterization exists on the ray from base to target, the nearby ray whose powers are used;
            else
            None.
        missing: in this case, the reason why none exists; else empty.
        breaks: in this case, the signals that grow from base to target with the powers of the nearby ray.
        horizons: by optimizer, the effect of batch and tokens on rates, epsilons and decays, if these change.
        run: by optimizer, the factors of ``lr``, ``eps``, ``wd``, ``one_minus_beta2``, ... that follow from batch and
            tokens; ``beta2_power`` is the power to which beta2 is raised.
        open: undecided sizes in addition to those of the derivations.
        notes: further warnings, one line each.
        parameterization: the requested name. MSSP has the numbers of muP if no experts are summed.
    """

    way: Way
    derivations: tuple[Derivation, ...]
    tensors: Mapping[str, Mapping[str, Setting]]
    multipliers: Mapping[str, Setting]
    tied: tuple[str, ...] = ()
    instead: Ray | None = None
    missing: str = ""
    breaks: tuple[Breaks, ...] = ()
    horizons: Mapping[str, Horizon] = field(default_factory=dict)
    run: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    open: tuple[OpenDemand, ...] = ()
    notes: tuple[str, ...] = ()
    parameterization: str = "mup"

    @property
    def configuration(self) -> Configuration:
        """The configuration of the last part of the model, which is the one with experts if there is one."""
        return self.derivations[-1].configuration

    def __getitem__(self, role: str) -> Mapping[str, Setting]:
        """Returns the settings of one tensor.

        Raises:
            UsageError: the model has no such tensor.
        """
        if role not in self.tensors:
            raise unknown_name_error("tensor", str(role), self.tensors)
        return self.tensors[role]

    def __iter__(self) -> Iterator[str]:
        return iter(self.tensors)

    def at(self, size: Sizes) -> Recipe:
        """Returns the recipe with the same powers at another size on its ray, or at the base itself."""
        size = {"K": size["M"], **size} if "K" in self.way.base and "M" in size else size

        def rescale(settings: Mapping[str, Setting]) -> dict[str, Setting]:
            ratios = {x: s.rule.ratio(self.way.base, size) for x, s in settings.items() if s.rule is not None}
            return {x: replace(s, factor=ratios.get(x, s.factor)) for x, s in settings.items()}

        tensors, multipliers = {role: rescale(x) for role, x in self.tensors.items()}, rescale(self.multipliers)
        return replace(self, way=replace(self.way, target=size), tensors=tensors, multipliers=multipliers)

    @property
    def level(self) -> Level | None:
        """How much about the powers is proved on their ray; None if a table defines them, so that nothing is
        derived.
        """
        return Level.of([Level(self.open) if self.open else None, *(d.level for d in self.derivations)])

    @cached_property
    def warnings(self) -> tuple[str, ...]:
        """Warnings to read before the numbers are used, one line each."""
        found = warnings(self.way, self.derivations, self.tensors, self.multipliers, self.instead)
        return (*self.notes, *found)

    @property
    def by_run(self) -> Iterator[str]:
        """Lines that say how batch and tokens change settings, including those (beta, epsilon) that a file cannot
        contain.
        """
        for optimizer, held in self.horizons.items():
            factors = dict(self.run[optimizer])
            inside = ", ".join(f"{name} {factors.pop(name):.6g}" for name in ("lr", "eps", "wd") if name in factors)
            about = f"{held.about}: these rules are assumed; certificates do not cover them"
            yield f"factors from batch and tokens ({about}), already contained in the numbers: {inside}"
            found = {name.replace("one_minus_", "1-"): x for name, x in factors.items() if x != 1}
            powers = {name.removesuffix(POWER): x for name, x in found.items() if name.endswith(POWER)}
            left = [f"{name} times {x:.6g}" for name, x in found.items() if not name.endswith(POWER)]
            left += [f"{name} to the power of {x:.6g}" for name, x in powers.items()]
            most = max((x for name, x in found.items() if name.startswith("1-")), default=1.0)
            left += [f"which needs betas of {1 - 1 / most:.4g} or more at the base"] if most > 1 else []
            if left:
                yield f"not contained in parameter groups and exports; set them yourself: {', '.join(left)}"
        shares = {Fraction(z.get("K", 1), z.get("M", 1)) for z in (self.way.base, self.way.target)}
        if len(shares) > 1 and any(x.name == "sde" for held in self.horizons.values() for x in held.held):
            yield MEANS

    @cached_property
    def next_terms(self) -> NextTerms:
        """Subleading terms that are not small at the user's sizes, which shows whether the base is large enough."""
        return next_terms(self.derivations[-1], self.way)

    def as_json(self) -> dict[str, Any]:
        """Returns the JSON record; numbers are floats, rules are strings."""
        configuration = self.configuration
        tensors = {
            role: {what: settings[what].as_json() if what in settings else None for what in WHAT}
            for role, settings in self.tensors.items()
        }
        record: dict[str, Any] = convert_to_json({
            "base": self.way.base,
            "target": self.way.target,
            "ray": None if self.way.ray is None else self.way.ray.rates,
            "exact": self.way.exact,
            "optimizer": configuration.optimizer.name,
            "epsilon": configuration.optimizer.regime,
            "parameterization": asked_for(self.parameterization).name,
            "gauge": self.derivations[-1].gauge,
            "readout_init": configuration.readout_init,
            **level_as_json(self.level),
            "architectures": [d.network.name for d in self.derivations],
            "tensors": {role: {**settings, "tied": role in self.tied} for role, settings in tensors.items()},
            "multipliers": {name: setting.as_json() for name, setting in self.multipliers.items()},
            "instead": None if self.instead is None else self.instead.rates,
            "missing": self.missing,
            "breaks": [{**vars(x), "growth": str(x.growth)} for x in self.breaks],
            "run": self.run,
            "next_terms": [x.as_json() for x in self.next_terms.terms],
            "next_terms_unknown": self.next_terms.unknown,
            "held": {name: [invariant.name for invariant in x.held] for name, x in self.horizons.items()},
            "warnings": self.warnings,
        })  # fmt: skip
        return record

    @property
    def about(self) -> str:
        configuration = self.configuration
        sizes = " to ".join(",".join(f"{a}={n}" for a, n in x.items()) for x in (self.way.base, self.way.target))
        gauge, asked = self.derivations[-1].gauge, asked_for(self.parameterization)
        where = "" if gauge == OWN else f", gauge {gauge}"
        same = configuration.parameterization == asked
        title = asked.title if same else f"{asked.title} ({configuration.parameterization.title} without experts)"
        on = "" if self.instead is None else " on another ray"
        level = [] if self.level is None else [f"{self.level}{on}"]
        return ", ".join([title, configuration.optimizer.name, *level, sizes + where])


def with_either_epsilon(
    base: str | Sizes, target: str | Sizes, say: Callable[[str], None] = lambda line: None, **asked: Any
) -> Recipe:
    """Returns a recipe with derived epsilon. If no parameterization with a derived epsilon exists on the ray of the
    sizes, the recipe has negligible epsilon.

    Args:
        base: as in ``recipe``.
        target: as in ``recipe``.
        say: called with a line if epsilon is negligible.
        **asked: further arguments of ``recipe``; if ``epsilon`` is among them, it is used as it is.

    Raises:
        UsageError: as ``recipe``.
        Infeasible: as ``recipe``.
    """
    derived: Recipe | Infeasible
    try:
        derived = recipe(base, target, **asked)
        missing = derived.missing
    except Infeasible as error:
        derived, missing = error, str(error)
    if missing and "epsilon" not in asked:
        with suppress(Infeasible, UsageError):
            found = recipe(base, target, **asked, epsilon="negligible")
            if isinstance(derived, Infeasible) or not found.missing:
                say(f"epsilon derived: {missing}; the numbers below have --epsilon negligible")
                return found
    if isinstance(derived, Infeasible):
        raise derived
    return derived


def recipe(
    base: str | Sizes,
    target: str | Sizes,
    optimizer: OptimizerInput = DEFAULT_OPTIMIZER,
    parameterization: str = "mup",
    *,
    lr: float | Tuned | None = None,
    eps: float | Tuned | None = None,
    std: float | Tuned | None = None,
    decay: float | Tuned | None = None,
    batch: tuple[float, float] = (1.0, 1.0),
    tokens: tuple[float, float] = (1.0, 1.0),
    hold: Sequence[str] | None = None,
    gauge: str = OWN,
    strict: bool = False,
    starts: Collection[str] | None = None,
    **where: Unpack[ConfigurationOptions],
) -> Recipe:
    """Computes the numbers to set at a target size from those tuned at a base size.

    Args:
        base: sizes, e.g. ``"N=1024,N_e=512,M=64,K=8"`` or a dict; L is the depth. Without M the model is dense.
        target: sizes of the same axes.
        optimizer: the optimizer, or several by tensor.
        parameterization: its name.
        lr: learning rate tuned at the base: a number for every tensor, or a dict by name: a role, a parameter that is
            split into parts, a glob (``"*norm.weight"``), an optimizer, ``""`` for the rest; the more specific name
            wins. Settings that are not given are printed as rule and factor.
        eps: epsilon, given as ``lr``.
        std: init std, given as ``lr``.
        decay: weight decay, given as ``lr``; it may be 0.
        batch: (base, target) batch size in one unit, if it changes: factors on rates, epsilons and decays follow from
            the invariants that ``horizon`` holds.
        tokens: (base, target) number of tokens in one unit, if it changes.
        hold: names of these invariants, for each optimizer that has them; by default those of ``horizon``.
        gauge: the convention for multipliers of tensors, one of ``GAUGES``; the values tuned at the base are those of
            a model that follows it.
        strict: reject numbers that are not certified.
        starts: tensors that keep their initial values if one ``std`` is given for all; by default gains and biases.
        **where: ``architecture`` or ``network`` for another model than the Transformer, a tuple of networks for the
            kinds of layers of one model; ``readout_init``, ``epsilon``.

    Examples:
        >>> r = recipe("N=1024,L=4", "N=4096,L=16", lr={"": 3e-3, "embedding": 1e-2})
        >>> r["hidden"]["lr"].factor, r["hidden"]["lr"].target, r["embedding"]["lr"].target
        (0.25, 0.00075, 0.01)
        >>> str(r.multipliers["res"].rule), r.multipliers["res"].factor
        ('L^-1', 0.25)

    Raises:
        UsageError: sizes cannot be read, the target is smaller than the base, a name is unknown, a value is not
            positive or is for a tensor that the model lacks.
        Infeasible: no parameterization was found, neither on this ray nor towards the ray on which all axes grow alike;
            or, if ``strict``, it is not certified.
    """
    if given := {"regime", "ray", "given"} & set(where):
        raise UsageError(f"a recipe takes its ray from base and target; leave out {min(given)}")
    going = way(read_sizes(base, "base"), read_sizes(target, "target"))
    networks = _networks(going, where)
    rules = {role: read_optimizers(optimizer, x, networks).of(role) for x in networks for role in x.tensors}
    tuned = {"multiplier": None, "init_std": std, "lr": lr, "eps": eps, "decay": decay}
    alike = {role for x in networks for role in _find_uniform_vectors(x)} if starts is None else starts
    check_names("tensor in starts", map(str, alike), rules)
    alike = {*alike}.union(*(x.zero for x in networks))
    values = {
        what: _resolve_tuned(what, given, rules, alike if what == "init_std" else ()) for what, given in tuned.items()
    }
    networks = [x.with_zero(x.zero - values["init_std"].keys()) for x in networks]
    before, after, derivations, instead, missing = _powers(going, networks, optimizer, parameterization, gauge, where)
    if instead is not None and going.base == going.target:  # no size changes, so any ray gives the same numbers
        going, instead, missing = replace(going, ray=instead), None, ""
    rules = {role: d.optimizer.of(role) for d in derivations for role in d.network.tensors}
    names = ", ".join(dict.fromkeys(rule.name for rule in rules.values()))
    if eps is not None and not any(rule.regime for rule in rules.values()):
        raise UsageError(f"{names} has no epsilon, or a negligible one that is not tuned; leave out eps")
    if decay is not None and not any(rule.decoupled_decay for rule in rules.values()):
        raise UsageError(f"{names} has no decoupled weight decay; leave out decay, or take adamw")
    changed = batch[0] != batch[1] or tokens[0] != tokens[1]
    if hold is not None and not changed:
        raise UsageError(
            "hold has no effect, since neither batch nor tokens change; give one of them, or leave out hold"
        )
    horizons = {x.name: _horizon(x.name, hold) for x in rules.values()} if changed else {}
    run = {name: _run(held, held.factors(batch, tokens)) for name, held in horizons.items()}

    def settings(role: str) -> dict[str, Setting]:
        start, end, rule = before.tensors[role], after.tensors[role], rules[role]
        multiplied, moves = bool(start.multiplier.terms or end.multiplier.terms), start.lr is not None
        has = {"multiplier": multiplied, "lr": moves, "decay": moves and rule.decoupled_decay}
        has["eps"] = moves and (rule.epsilon or (rule.negligible and role in values["eps"]))
        more = run.get(rule.name, {})
        return {
            what: Setting.of(going, power, to, values[what].get(role), more.get("wd" if what == "decay" else what, 1.0))
            for (what, power), to in zip(
                _settings_as_powers(start).items(), _settings_as_powers(end).values(), strict=True
            )
            if has.get(what, True)
        }

    multipliers = {m: Setting.of(going, 1 / before.multipliers[m], 1 / x) for m, x in after.multipliers.items()}
    broken = tuple(_breaks(derivations, going)) if instead else ()
    tensors = {role: settings(role) for role in after.tensors}
    found = going, derivations, tensors, multipliers, after.tied, instead, missing, broken, horizons, run
    r = Recipe(*found, parameterization=parameterization)
    if strict and r.level is not None and not r.level.certified:
        raise Infeasible(f"{r.about}: {r.level.lines[0]}", undecided=True)
    return r


def _run(held: Horizon, factors: Mapping[str, float]) -> dict[str, float]:
    """Returns the factors of ``Recipe.run``: those given, under other names for betas if these are raised to a power.

    Args:
        held: how quantities change with batch and tokens.
        factors: factor of each quantity. If ``held.compounds``, that of ``one_minus_beta2`` is the power to which
            beta2 is raised, and is returned as ``beta2_power``.
    """
    how = {f"one_minus_{beta}": f"{beta}{POWER}" for beta in ("beta1", "beta2")} if held.compounds else {}
    return {how.get(name, name): x for name, x in factors.items()}


def _horizon(rule: str, hold: Sequence[str] | None) -> Horizon:
    """Returns how an optimizer's quantities follow batch and tokens.

    Args:
        rule: the optimizer. What follows a colon in its name, a factor by the shape of a matrix, is ignored.
        hold: names of the invariants to keep, of which those are used that apply to the optimizer; None for its
            default ones.
    """
    from . import horizon as laws  # needs sympy

    if (optimizer := rule.partition(":")[0]) not in laws.optimizers():
        raise UsageError(f"there are no rules for batch and tokens with {optimizer}; leave them out, or choose adamw")
    if hold is None:
        return laws.horizon(optimizer)
    names = (laws.ALL, *dict.fromkeys(invariant.name for invariant in laws.data().invariant))
    check_names("invariant", hold, names)
    return laws.horizon(optimizer, [name for name in hold if name in (laws.ALL, *laws.of(optimizer))] or hold)


def _settings_as_powers(t: TensorScaling) -> dict[str, Power | None]:
    """Returns multiplier, init std, learning rate, epsilon and weight decay of a tensor as powers of the axes.

    torch multiplies weight decay by the learning rate. The power of the decay is therefore the inverse of that of the
    learning rate, which keeps the product constant.
    """
    decay = None if t.lr is None else 1 / t.lr
    return {"multiplier": t.multiplier, "init_std": t.init_std, "lr": t.lr, "eps": t.eps or Power(), "decay": decay}


def _find_uniform_vectors(network: Network) -> list[str]:
    """Returns the names of gains, biases and scalars: tensors of which no index is summed over, and whose entries
    start alike.
    """
    vectors = [
        r for r, t in network.tensors.items() if not t.fan_in and sum(network.axes[x] != "L" for x in t.indices) < 2
    ]
    return [*vectors, *({BIAS} & network.tensors.keys())]


def _resolve_tuned(
    what: str, given: float | Tuned | None, rules: Mapping[str, Optimizer], alike: Collection[str]
) -> dict[str, float]:
    """Returns the tuned value of every tensor for which one was given, by role.

    In ``given``, the name of an optimizer stands for the tensors that it trains, "" for all tensors, and any other name
    for the tensors that ``resolve_names`` finds. A tensor in ``alike`` gets a value only from its own name.

    Raises:
        UsageError: a name stands for nothing, or a value is not a positive finite number (a decay may be 0).
    """
    if given is None:
        return {}
    asked = {str(name): x for name, x in given.items()} if isinstance(given, Mapping) else {"": given}
    label, least = what.removeprefix("init_"), "positive number" + " or 0" * (what == "decay")
    sets: dict[str, list[str]] = {"": [*rules]}
    for role, rule in rules.items():
        for name in {rule.name, rule.name.partition(":")[0]}:
            sets.setdefault(name, []).append(role)
    values: dict[str, float] = {}
    for name, roles in resolve_names(f"tensor in {label}", asked, rules, sets):
        value = asked[name]
        if name in alike and name in GAINS:
            raise UsageError(f"{name} starts at the same value at every size; leave out its {label}")
        number = not isinstance(value, bool) and isinstance(value, int | float)
        if not number or not (0 < value < limits.SIZE or (what == "decay" and value == 0)):
            raise UsageError(f"{label}{name and f' of {name}'} is {quote_value(value)}; give a {least} up to 1e9")
        values |= {role: value for role in roles if role == name or role not in alike}
    return values


def _networks(going: Way, where: ConfigurationOptions) -> list[Network]:
    """Returns the networks whose parameters the model has, after checking that the sizes name exactly their axes."""
    if "network" in where or "architecture" in where:
        given: Any = where.get("network", where.get("architecture", ""))
        networks = [
            x if isinstance(x, Network) else Configuration.of("III", architecture=x).network
            for x in (given if isinstance(given, tuple) else (given,))
        ]
    else:
        networks = [
            ARCHITECTURES[name] for name in (TRANSFORMER if {"M", "N_e"} & set(going.base) else TRANSFORMER[:1])
        ]
    mine = {*AXES, *(axis for network in networks for axis in list_growing_axes(network))}
    if strange := [axis for axis in going.base if axis not in mine]:
        raise unknown_name_error(f"axis of {networks[-1].name}", strange[0], sort_axes(mine))
    for network in networks:
        lacks = [axis for axis in AXES if axis in network.axes.values() and axis not in going.base and axis != "L"]
        if lacks:
            raise UsageError(
                f"the sizes leave out {lacks[0]} ({describe_axis(lacks[0])}), which {network.name} has; give it"
            )
    return networks


def _powers(
    going: Way,
    networks: Sequence[Network],
    optimizer: OptimizerInput,
    parameterization: str,
    gauge: str,
    where: ConfigurationOptions,
) -> tuple[Scaling, Scaling, tuple[Derivation, ...], Ray | None, str]:
    """Derives the powers at the base and at the target.

    Returns:
        (powers at the base, powers at the target, derivations, nearby, reason). If there is no parameterization on
        the ray from base to target, ``nearby`` is the other ray on which these powers were derived, and ``reason``
        says why there is none; otherwise they are None and "".
    """
    rest: Any = {k: v for k, v in where.items() if k not in ("network", "architecture")}

    # if one block has no parameterization, a stack of them has none either; a block is solved at once
    block = [ARCHITECTURES[BLOCK]] if ARCHITECTURES[TRANSFORMER[-1]] in networks else []

    def derive_parts(ray: Ray) -> tuple[Derivation, ...]:
        derivations = []
        for network in (*block, *networks):
            rules = read_optimizers(optimizer, network, networks)
            point = Configuration.of(
                None, rules, parameterization, ray=_restrict_ray(ray, network), network=network, **rest
            )
            shapes = network is not networks[-1] if network.unread else not any(e.tensors for e in experts(network))
            if point.parameterization.structural and shapes:  # also if only the shapes of one part are known
                point = point.but(parameterization="mup")  # they differ only where experts are summed
            derivations.append(derive(point))
        return tuple(derivations[len(block) :])

    def in_gauge(
        first: Sequence[Derivation], last: Sequence[Derivation]
    ) -> tuple[Scaling, Scaling, tuple[Derivation, ...]]:
        first, last = (tuple(d.in_gauge(gauge) for d in parts) for parts in (first, last))
        return _union(first), _union(last), last

    if going.ray is None:
        return *in_gauge(*map(derive_parts, going.own_rays)), None, ""
    kept = {axis: going.ray[axis] for axis in ("K", "L") if axis in going.ray.rates}
    largest, missing = going.ray.largest, ""
    for share in (Fraction(0), *TOWARDS):
        ray = Ray({x: going.ray[x] + share * (largest - going.ray[x]) for x in going.ray.rates} | kept)
        try:
            derivations = derive_parts(ray)
            along = *in_gauge(derivations, derivations), ray if missing else None, missing
        except Infeasible as error:
            missing = missing or str(error)
            continue
        # structures exist on walls alone: powers of the own sizes would jump next to a wall
        structural = any(d.configuration.parameterization.structural for d in derivations)
        if missing or structural or {*going.own_rays} == {ray} or _follows_one_law(going, derivations):
            return along
        with suppress(Infeasible):
            first, last = map(derive_parts, going.own_rays)
            own = *in_gauge(first, last), None, ""
            certified = all(d.level is None or d.level.certified for d in last)
            if certified and _differ(going, (derivations, derivations), (first, last)):
                return own
        return along
    raise Infeasible(missing)


def _follows_one_law(going: Way, derivations: Sequence[Derivation]) -> bool:
    """Tests whether the derived powers follow from the shapes of tensors alone, by the layer-wise law
    (``Derivation.apply_law``), and give the same numbers on the rays of the base's and of the target's own sizes.

    If so, the parameterization need not be searched on these two rays. Only networks with norms are tested, since for
    them a search takes seconds; for others the result is False.
    """
    for d in derivations:
        here, first, last = (d.apply_law(_restrict_ray(ray, d.network)) for ray in (d.ray, *going.own_rays))
        if here is None or first is None or last is None:
            return False
        if not all(map(math.isclose, _list_factors(going, here, here), _list_factors(going, first, last))):
            return False
    return True


def _differ(going: Way, *powers: tuple[Sequence[Derivation], Sequence[Derivation]]) -> bool:
    """Tests whether two choices of derivations (one at the base, one at the target) give different numbers to set.

    Numbers are compared in the gauge without multipliers, where equal models have equal numbers.
    """
    one, other = (_list_factors(going, *map(_union, pair)) for pair in powers)
    return not all(map(math.isclose, one, other))


def _list_factors(going: Way, before: Scaling, after: Scaling) -> list[float]:
    """Returns the factors of all settings from the base to the target."""
    pairs: list[tuple[Power | None, Power | None]] = [(before.multipliers[x], p) for x, p in after.multipliers.items()]
    for role, t in after.tensors.items():
        pairs += zip(_settings_as_powers(before.tensors[role]).values(), _settings_as_powers(t).values(), strict=True)
    return [Setting.of(going, *pair).factor for pair in pairs]


def _restrict_ray(ray: Ray, network: Network) -> Ray:
    """Returns the ray; if the network has no depth axis, the rate of L is removed.

    Raises:
        UsageError: the depth grows, but only the shapes of the network are known.
    """
    if network.unread and ray["L"]:
        raise UsageError(
            f"{network.unread}; the shapes of parameters do not show how numbers depend on depth; keep L fixed"
        )
    return ray if "L" in network.axes.values() else Ray({a: r for a, r in ray.rates.items() if a != "L"})


def _union(derivations: Sequence[Derivation]) -> Scaling:
    """Merges the powers of several networks that are parts of one model.

    Raises:
        Infeasible: two networks have a tensor or a multiplier of the same name, but different powers for it.
    """
    tensors: dict[str, TensorScaling] = {}
    multipliers: dict[str, Power] = {}
    for d in derivations:
        shared = [role for role, t in d.tensors.items() if tensors.setdefault(role, t) != t]
        shared += [name for name, x in d.scaling.multipliers.items() if multipliers.setdefault(name, x) != x]
        if shared:
            names = " and ".join(x.network.name for x in derivations)
            raise Infeasible(
                f"{names} share the tensor {shared[0]} but derive different powers for it; give the networks "
                "different names for it, or hold its power"
            )
    return Scaling(tensors, multipliers, tuple(r for d in derivations for r in d.scaling.tied))


def _breaks(derivations: Sequence[Derivation], going: Way) -> Iterator[Breaks]:
    """Yields each signal that grows from base to target, if the derivations are those of another, nearby ray.

    This is the case where no parameterization exists on the ray from base to target.
    """
    assert going.ray is not None
    seen = set()
    for d in derivations:
        ray = _restrict_ray(going.ray, d.network)
        look = Analysis(ray, d.scaling.point(ray), d.optimizer, d.network)
        for signal in (s.out for s in d.network.statements if s.out not in seen):
            seen.add(signal)
            answers = ((look(signal, t, _LITTLE), t) for t in range(HORIZON + 2))
            grown = [
                (a.lead, -t, a.form) for a, t in answers if a.lead is not None and a.lead > 0 and a.form is not None
            ]
            if grown:
                _, t, form = max(grown, key=lambda x: x[:2])
                power = d.scaling.size(form)
                yield Breaks(signal, -t, power, power.ratio(every_axis(going.base), every_axis(going.target)))
