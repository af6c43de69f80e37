"""What users call: ``derive`` and ``signals``, with results whose ``str()`` is the report.

Read next: ``cli.py`` (a thin layer over this), ``solver.py`` and ``analysis.py`` (the work).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

from scaling_algebra.dynamics.analysis import Analysis, Answer
from scaling_algebra.dynamics.quantities import quantity
from scaling_algebra.errors import UsageError, unknown_name
from scaling_algebra.spec.axes import Ray, regime
from scaling_algebra.spec.desiderata import GOALS, Goal, Structure
from scaling_algebra.spec.networks.language import Program
from scaling_algebra.spec.networks.library import ARCHITECTURES, MOE_BLOCK, architecture, fixed_experts
from scaling_algebra.spec.optimizers import Optimizer, optimizer
from scaling_algebra.spec.parameterizations import STANDARD, Scaling, TensorScaling, standard
from scaling_algebra.spec.powers import Power

from .newton import Fixing, Infeasible, NotFound, Solution, Solver

if TYPE_CHECKING:
    from .cones import Cone

PARAMETERIZATIONS: dict[str, str] = {
    **{g.name: g.title for g in GOALS.values()},
    "mup-sigmoid": "muP of the sigmoid gate",
    "sp": "SP",
    "sp-feature": "SP with a Theta(1) first-layer change",
    "ntp": "NTP",
    "mean-field": "mean field",
}
"""Every parameterization, by name: derived goals, and defined ones as they are.

``mup-sigmoid`` puts the muP derived for the sigmoid gate on any gate of the fixed-experts block, as the routers paper
does (Tables 1 and 2). ``sp-feature`` is SP with the one global learning rate at which the first step changes the first
layer by Theta(1) (routers paper, Sec. 3.1).
"""
READOUTS = ("maximal", "zero")
"""Readout initialisations: as large as its propagating update allows, or zero."""


@dataclass(frozen=True)
class Derivation:
    """A derived parameterization.

    Attributes:
        ray, optimizer, parameterization: what was asked.
        readout_init: how the readout starts.
        scaling: powers of the axes for every tensor.
        reasons: one line for each ``(role, "init" | "lr" | "eps")`` and for ``("aggregation", "alpha")``.
        structure: why tensors are zero or tied, one line each, in the order of the interventions.
        fixed_by: what fixes each unknown ``b.ROLE``, ``c.ROLE``, ``d.ROLE``, ``alpha``; empty where nothing was solved.
        architecture: name of the program.
        unique: True or False where uniqueness was proved or refuted, None where it was not examined.
    """

    ray: Ray
    optimizer: Optimizer
    parameterization: str
    readout_init: str
    scaling: Scaling
    reasons: Mapping[tuple[str, str], str]
    structure: tuple[str, ...] = ()
    fixed_by: Mapping[str, Fixing] = field(default_factory=dict)
    architecture: str = MOE_BLOCK.name
    unique: bool | None = None

    @property
    def program(self) -> Program:
        return ARCHITECTURES[self.architecture]

    def analysis(self) -> Analysis:
        """The engine at this parameterization; answers are kept."""
        return self._analysis

    @cached_property
    def _analysis(self) -> Analysis:
        return Analysis(self.ray, self.scaling.point(self.ray), self.optimizer, self.program)

    @cached_property
    def cone(self) -> Cone | None:
        """The cone of rays on which this formula is muP, proved for t = 0 .. 2.

        None in a regime, for K < M or another parameterization than muP, and where the proof fails.
        """
        from .cones import cone

        generic = not self.ray.name and self.ray["K"] == self.ray["M"]
        proper = self.parameterization == "mup" and self.readout_init == GOALS["mup"].readout_init
        linear = not self.optimizer.normalises or self.optimizer.epsilon
        if not (generic and proper and linear and self.program is MOE_BLOCK):
            return None
        return cone(self.scaling, self.optimizer, self.parameterization, Structure())

    def exponents(self, role: str) -> tuple[Fraction | None, Fraction, Fraction | None]:
        """b, c, d of a tensor on the ray; b is None for zero init, d is None without an epsilon."""
        s = self.scaling.tensors[role]
        return (
            None if s.init_std is None else -s.init_std.on(self.ray),
            -s.lr.on(self.ray),
            None if s.eps is None else -s.eps.on(self.ray),
        )

    def asked(self) -> dict[str, Any]:
        """What was asked, for JSON: the head of every report."""
        return {
            "architecture": self.architecture,
            "regime": self.ray.name or None,
            "ray": {axis: str(rate) for axis, rate in self.ray.rates.items()},
            "optimizer": self.optimizer.name,
            "parameterization": self.parameterization,
            "readout_init": self.readout_init,
        }

    def as_json(self) -> dict[str, Any]:
        """The JSON contract: exponents are strings, zero init is ``"b": "zero"``, d and eps null without epsilon."""
        tensors = {}
        for role, s in self.scaling.tensors.items():
            b, c, d = self.exponents(role)
            tensors[role] = {
                "b": "zero" if b is None else str(b),
                "c": str(c),
                "d": None if d is None else str(d),
                "init_std": None if s.init_std is None else s.init_std.as_strings(),
                "lr": s.lr.as_strings(),
                "eps": None if s.eps is None else s.eps.as_strings(),
                "because": {what: why for (r, what), why in self.reasons.items() if r == role},
            }
        return {
            **self.asked(),
            "alpha": str(self.scaling.alpha.on(self.ray)),
            "aggregation": (-self.scaling.alpha).as_strings(),
            "tied": list(self.scaling.tied),
            "structure": list(self.structure),
            "unique": self.unique,
            "cone": None if self.cone is None else list(self.cone.inequalities),
            "tensors": tensors,
        }

    def __str__(self) -> str:
        from .report import derivation_text

        return derivation_text(self)


@dataclass(frozen=True)
class Signals:
    """Certified exponents of every named quantity at t = 0, 1, ..., steps."""

    derivation: Derivation
    steps: int
    quantities: Mapping[str, tuple[Answer, ...]]

    def prediction(self) -> dict[str, tuple[Fraction | None, ...]]:
        """Exponents of n by quantity and step, None for exactly zero; undecided quantities are left out."""
        return {
            name: tuple(a.exponent for a in row) for name, row in self.quantities.items() if all(a.decided for a in row)
        }

    def as_json(self) -> dict[str, Any]:
        """The JSON contract: exponents are strings, null is exactly zero, ``"undecided"`` where no certificate held."""
        cells = {
            name: [
                None if a.decided and a.exponent is None else str(a.exponent) if a.decided else "undecided" for a in row
            ]
            for name, row in self.quantities.items()
        }
        return {**self.derivation.asked(), "steps": list(range(self.steps + 1)), "quantities": cells}

    def __str__(self) -> str:
        from .report import signals_text

        return signals_text(self)


def derive(
    regime: str | None = None,
    optimizer: str = "adam",
    parameterization: str = "mssp",
    *,
    ray: Ray | str | None = None,
    readout_init: str | None = None,
    architecture: str = MOE_BLOCK.name,
) -> Derivation:
    """Derive how init std, learning rate and epsilon of every tensor must scale.

    The readout initialisation defaults to the one of the parameterization's definition in the MSSP paper (maximal for
    muP, zero for MSSP); another choice replaces the readout's init and leaves the other exponents as derived.

    >>> d = derive(regime="II", optimizer="sgd", parameterization="mssp")
    >>> str(d.scaling.tensors["expert_out"].init_std), str(d.scaling.tensors["expert_out"].lr)
    ('M^(1/2)', 'N M')
    >>> d.exponents("router")
    (Fraction(1, 2), Fraction(0, 1), None)

    Raises:
        UsageError: an unknown name, a ray that is not one, or both a regime and a ray.
        NotFound (an Infeasible): the search found no parameterization that meets the desiderata on this ray; the
            message names the first demand that fails without any intervention.
    """
    where = the_ray(regime, ray)
    rule = _optimizer(optimizer)
    program = _architecture(architecture)
    name = parameterization.lower()
    if name not in PARAMETERIZATIONS:
        raise unknown_name("parameterization", parameterization, PARAMETERIZATIONS)
    if readout_init is not None and readout_init not in READOUTS:
        raise unknown_name("readout init", readout_init, READOUTS)
    if name == "mup-sigmoid":
        return _sigmoid(where, rule, readout_init, program)
    if name not in GOALS:
        return _standard(where, rule, name, readout_init, program)
    goal = derived_goal(name, program)
    solution = _solve(where, rule, name, program.name)
    readout = readout_init or goal.readout_init
    scaling, reasons = solution.scaling, _reasons(program, solution, rule)
    if readout != goal.readout_init:
        std = None
        if readout != "zero":
            std = _solve(where, rule, "mup", program.name).scaling.tensors["readout"].init_std
        scaling = _with_readout(scaling, std)
        reasons["readout", "init"] = f"chosen: readout init {readout}"
    structure = _structure(solution)
    return Derivation(where, rule, name, readout, scaling, reasons, structure, solution.fixed_by, program.name)


def derived_goal(parameterization: str, program: Program) -> Goal:
    """The desiderata of a derived parameterization.

    Raises:
        UsageError: one that is not derived, or not defined for this program.
    """
    name = parameterization.lower()
    if name not in GOALS:
        raise unknown_name("derived parameterization", parameterization, GOALS)
    if GOALS[name].structural and program is not MOE_BLOCK:
        title = GOALS[name].title
        raise UsageError(f"{title} is defined for the architecture {MOE_BLOCK.name}; give --parameterization mup")
    return GOALS[name]


def signals(
    regime: str | None = None,
    optimizer: str = "adam",
    parameterization: str = "mssp",
    *,
    ray: Ray | str | None = None,
    steps: int = 2,
    readout_init: str | None = None,
    architecture: str = MOE_BLOCK.name,
    names: Sequence[str] | None = None,
) -> Signals:
    """Exponent of every named quantity at t = 0 .. steps, each certified exact.

    >>> s = signals(regime="III", optimizer="sgd", parameterization="mup")
    >>> [str(a) for a in s.quantities["h3.A2.1"]]
    ['0 (exact)', '-1', '-1/2']

    Raises:
        UsageError: as ``derive``; also negative steps or an unknown quantity.
        Infeasible: as ``derive``.
    """
    if steps < 0:
        raise UsageError(f"steps is {steps}; give 0 or more")
    d = derive(regime, optimizer, parameterization, ray=ray, readout_init=readout_init, architecture=architecture)
    look = d.analysis()
    for name in names or ():
        quantity(look.table, name)
    return Signals(d, steps, look.all(steps, names))


def the_ray(name: str | None, ray: Ray | str | None) -> Ray:
    """The ray of ``--regime`` or ``--ray``; exactly one must be given."""
    if (name is None) == (ray is None):
        raise UsageError("give either a regime (I, II or III) or a ray such as N=1,N_e=1/2,M=1/2")
    if name is not None:
        return regime(name)
    return Ray.parse(ray) if isinstance(ray, str) else ray  # type: ignore[return-value]


_optimizer, _architecture = optimizer, architecture


@lru_cache(maxsize=64)
def _solve(where: Ray, rule: Optimizer, name: str, program: str) -> Solution:
    goal = GOALS[name]
    try:
        return _solver(where, rule, program).solve(goal, goal.readout_init == "zero")
    except Infeasible as failure:
        raise NotFound(goal, ARCHITECTURES[program], where, rule, str(failure)) from None


@lru_cache(maxsize=16)
def _solver(where: Ray, rule: Optimizer, program: str) -> Solver:
    return Solver(ARCHITECTURES[program], where, rule)


def _reasons(program: Program, solution: Solution, rule: Optimizer) -> dict[tuple[str, str], str]:
    what = {"b": "init", "c": "lr", "d": "eps"}
    found: dict[tuple[str, str], str] = {}
    for role in program.tensors:
        for letter, label in what.items():
            fixing = solution.fixed_by.get(f"{letter}.{role}")
            if fixing is not None:
                found[role, label] = f"{fixing.demand.name}: {fixing.demand.because}"
            elif letter == "b" and role == "readout":
                found[role, label] = "chosen: zero readout as in the MSSP paper, App. J (or --readout-init maximal)"
            elif letter == "b":
                found[role, label] = (
                    "MSSP pathways: with zero init both pathways of the propagating update vanish, else they differ"
                )
    if "alpha" in solution.fixed_by:
        demand = solution.fixed_by["alpha"].demand
        found["aggregation", "alpha"] = f"{demand.name}: {demand.because}"
    return found


def _structure(solution: Solution) -> tuple[str, ...]:
    """One line for each structural choice: what failed without it."""
    chosen = solution.structure
    if chosen == Structure(zero=chosen.zero & {"readout"}):
        return ()
    lines = [f"chosen: {chosen}"]
    lines += [f"rejected: {tried}: {why}" for tried, why in solution.rejected]
    return tuple(lines)


def _sigmoid(where: Ray, rule: Optimizer, readout_init: str | None, program: Program) -> Derivation:
    """muP as derived for the sigmoid gate; a bias starts and learns at Theta(1)."""
    base = fixed_experts("sigmoid").name
    if not program.name.startswith("routers-"):
        raise UsageError(f"mup-sigmoid is for the architectures routers-..., not for {program.name}; give mup")
    d = derive(None, rule.name, "mup", ray=where, readout_init=readout_init, architecture=base)
    extra = {
        role: TensorScaling(Power(), Power(), Power() if rule.epsilon else None)
        for role in program.tensors
        if role not in d.scaling.tensors
    }
    scaling = replace(d.scaling, tensors={**d.scaling.tensors, **extra})
    reasons = {key: f"as for the sigmoid gate: {why}" for key, why in d.reasons.items()}
    return replace(d, parameterization="mup-sigmoid", scaling=scaling, reasons=reasons, architecture=program.name)


def _standard(where: Ray, rule: Optimizer, name: str, readout_init: str | None, program: Program) -> Derivation:
    gauge = name.removesuffix("-feature")
    if gauge == "mean-field" and rule.normalises:
        raise UsageError(
            f"mean-field is defined for SGD (one learning rate ~ width); give --optimizer sgd, not {rule.name}"
        )
    scaling = standard(program, gauge, bool(rule.normalises))
    readout = readout_init or "maximal"
    if readout == "zero":
        scaling = _with_readout(scaling, None)
    why_lr = f"{gauge}: one global learning rate"
    if name != gauge:
        scaling = _feature_rate(where, rule, scaling, program)
        why_lr += ", so large that the first step changes the first layer by Theta(1)"
    reasons = {}
    for role in program.tensors:
        reasons[role, "init"] = f"{gauge}: {(STANDARD[gauge].__doc__ or '').partition(': ')[2].rstrip('.')}"
        reasons[role, "lr"] = why_lr
    if not rule.epsilon:
        scaling = replace(scaling, tensors={r: replace(s, eps=None) for r, s in scaling.tensors.items()})
    else:
        reasons |= {(role, "eps"): f"{gauge}: one global epsilon" for role in program.tensors}
    reasons["aggregation", "alpha"] = f"{gauge}: mean over the experts"
    return Derivation(where, rule, name, readout, scaling, reasons, architecture=program.name)


def _feature_rate(where: Ray, rule: Optimizer, scaling: Scaling, program: Program) -> Scaling:
    """The learning rate at which the first step changes the first layer by Theta(1), and one epsilon that no first
    gradient is below, as the routers paper assumes."""
    first = next(s.out for s in program.statements)
    start = Analysis(where, scaling.point(where), rule, program)
    gradients = [start(f"g{tensor.symbol}", 0).exponent for tensor in program.tensors.values()]
    eps = Power.of({"N": min((g for g in gradients if g is not None), default=Fraction(0)) / where["N"]})
    scaling = replace(scaling, tensors={r: replace(s, eps=eps) for r, s in scaling.tensors.items()})
    size = Analysis(where, scaling.point(where), rule, program)(f"{first}.change", 1).exponent
    factor = Power() if size is None else Power.of({"N": -size / where["N"]})
    return replace(scaling, tensors={r: replace(s, lr=s.lr + factor) for r, s in scaling.tensors.items()})


def _with_readout(scaling: Scaling, std: Power | None) -> Scaling:
    tensors = dict(scaling.tensors)
    tensors["readout"] = replace(tensors["readout"], init_std=std)
    return replace(scaling, tensors=tensors)
