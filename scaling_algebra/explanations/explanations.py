"""``explain`` derives the exponent of a quantity, or the condition that fixes a parameter.

``print(explain(...))`` is a proof that a referee can follow: the sums on the way, the largest monomial, which of its
factors are paired because they are copies of one random tensor, the weight of every summed index, the mechanism and
the arithmetic. Read next: ``presentation.py``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from operator import itemgetter
from typing import Unpack

from scaling_algebra import limits
from scaling_algebra.counting.algebra import Algebra
from scaling_algebra.counting.signals import Scalar, Signal
from scaling_algebra.dynamics.analysis import QUICKLY, Analysis
from scaling_algebra.dynamics.brackets import UnknownSize
from scaling_algebra.dynamics.quantities import Quantity, find_quantity, list_quantities, parse_inner_product
from scaling_algebra.dynamics.trajectory import Trajectory
from scaling_algebra.errors import UsageError, unknown_name_error
from scaling_algebra.solver.demands import Fixing
from scaling_algebra.solver.derivation import Derivation, derive
from scaling_algebra.spec.configuration import (
    DEFAULT_OPTIMIZER,
    DEFAULT_PARAMETERIZATION,
    Configuration,
    ConfigurationOptions,
)
from scaling_algebra.spec.desiderata import HORIZON, Structure
from scaling_algebra.spec.given import SETTINGS
from scaling_algebra.spec.networks.indices import find_aggregations
from scaling_algebra.spec.networks.multipliers import find_free_multipliers, find_gauges
from scaling_algebra.spec.networks.roles import readouts
from scaling_algebra.spec.optimizer_reading import OptimizerInput
from scaling_algebra.spec.powers import Form, Power, name_symbol

from .alignments import Alignments, alignments
from .mechanisms import mechanisms
from .monomials import monomial
from .results import Constant, Explanation, LeadingTerm, SettingExplanation

SHOWN = 3
"""Number of leading monomials that are spelled out if several have the same exponent."""
BETWEEN = "the upper bound for all steps is attained in a run in which fewer tensors are trained"
"""The note on a size that no run of all tensors certifies."""


def explain(
    what: str,
    regime: str | Configuration | None = None,
    optimizer: OptimizerInput = DEFAULT_OPTIMIZER,
    parameterization: str = DEFAULT_PARAMETERIZATION,
    **where: Unpack[ConfigurationOptions],
) -> Explanation | SettingExplanation | Alignments:
    """Explains why a quantity has its exponent, or what determines a parameter.

    Args:
        what: a quantity such as ``"h3.A2.2"`` or ``"h3.A2.2@1"`` (after 1 update; default 2), an inner product such as
            ``"<h2@0, h2@1>"``, a parameter such as ``"expert_out.lr"``, ``"W3.lr"``, ``"readout.eps"`` or
            ``"aggregation"``, or ``"alignment"``.
        regime: as in ``derive``.
        optimizer: as in ``derive``.
        parameterization: as in ``derive``.
        **where: as in ``derive``.

    Examples:
        >>> print(explain("h3.A1", "II", "sgd", "mup").terms[0].arithmetic)
        - 1 (aggregation multiplier) - 1/2 (std of expert_in) + 1/2 (i: CLT) + 1/2 (a: CLT) = -1/2
        >>> explain("readout.eps", "I", "adam", "mup").equation
        'eps_readout = N^(1/2) N_e^(1/2) sigma_input sigma_expert_in sigma_expert_out multiplier'

    Raises:
        UsageError: there is no such quantity or parameter.
        UnknownSize: the quantity, or the one that determines the parameter, is undecided.
        Infeasible: as ``derive``.
    """
    if not isinstance(what, str):
        raise UsageError(f"explain {what!r}: give a quantity or a parameter, such as 'h3.A2.2@1' or 'router.lr'")
    asked, aggregation = Configuration.of(regime, optimizer, parameterization, **where), "aggregation"
    role, _, setting = what.rpartition(".") if "." in what else (what, "", "")
    if setting in SETTINGS:  # a tensor is given by its role or its symbol
        role = {tensor.symbol: name for name, tensor in asked.network.tensors.items()}.get(role, role)
    known = role in asked.network.tensors
    if known and not setting:
        raise UsageError(f"{role} is a tensor; give " + ", ".join(f"{role}.{s}" for s in SETTINGS))
    if known and setting not in SETTINGS:
        raise unknown_name_error("setting", setting, SETTINGS)
    if setting in SETTINGS and not known and what not in list_quantities(asked.network):
        raise asked.network.unknown("tensor", role)
    d = derive(asked)
    if what == "alignment":
        return alignments(d)
    multipliers = (*find_free_multipliers(asked.network), *find_gauges(asked.network))
    if what in (aggregation, f"{aggregation}.alpha"):
        if not multipliers:
            first = next(iter(asked.network.tensors))
            raise UsageError(
                f"{asked.network.name} has no multiplier; ask for a parameter of a tensor, such as {first}.lr"
            )
        summed = {m for s in find_aggregations(asked.network) for m in s.multipliers}
        what, *more = [m for m in multipliers if m in summed] or multipliers
        if more:
            raise UsageError(
                f"explain {aggregation}: the network has several aggregations; ask for one of "
                f"{', '.join([what, *more])}"
            )
    if known or what in multipliers:
        return _setting(d, role, setting) if known else _setting(d, aggregation, what)
    name, at, text = what.rpartition("@") if not what.endswith(">") else (what, "", "")
    try:
        step = limits.parse_update(text) if at else 0
    except ValueError as error:
        raise UsageError(f"cannot read the step in {what!r}: {error}; write QUANTITY@t with t = 0, 1, 2, ...") from None
    steps = [HORIZON if t is None else t for _, t in parse_inner_product(what)]
    name, t = (name, step) if at else (what, max(steps, default=HORIZON))
    return explain_quantity(d, d.analysis(), name, t)


def explain_quantity(d: Derivation, look: Analysis, name: str, t: int) -> Explanation:
    """Explains the exponent of a quantity after t updates: which monomial is the largest, and why it has its size.

    Raises:
        UsageError: there is no such quantity, or the step is negative.
        UnknownSize: the exponent is undecided.
    """
    if t < 0:
        raise UsageError(f"the step is {t}; give 0 or more")
    what, answer = find_quantity(look.table, name), look(name, t)
    if not answer.decided:
        raise UnknownSize(f"{name} at t={t} is undecided{': ' + answer.why if answer.why else ''}; try a smaller step")
    if answer.exponent is None:
        zero = [role for role, s in d.scaling.tensors.items() if s.init_std is None]
        note = "no update has been made" if t == 0 else "every term has a factor that is exactly zero"
        note += f"; initialised to zero: {', '.join(zero)}" if zero else ""
        return Explanation(d, name, t, what.formula, None, note=note)
    try:
        run = look.run(name, t)
    except LookupError:
        note = f"{BETWEEN}, by {_write_form(answer.form)}" if answer.form is not None else BETWEEN
        return Explanation(d, name, t, what.formula, answer.exponent, note=note, assumes=answer.assumes)
    if what.tensor:
        return replace(_explain_outer_product(d, run, what, t), assumes=answer.assumes)
    signal = what.read(run, t)
    assert isinstance(signal, Signal)
    leading = run.algebra.find_leading(signal)
    terms = tuple(_term(d, run.algebra, signal, k) for k in leading[:SHOWN])
    return Explanation(d, name, t, what.formula, answer.exponent, terms, leading=len(leading), assumes=answer.assumes)


# inside --------------------------------------------------------------------------------------------------------


def _explain_outer_product(d: Derivation, run: Trajectory, what: Quantity, t: int) -> Explanation:
    """Explains the size of an update or a raw gradient, which is an outer product: rms(u v^T) = rms(u) rms(v)."""
    algebra, role = run.algebra, what.tensor
    constants: tuple[Constant, ...] = ()
    if what.name.startswith("g"):
        parts = max(
            run.gradient_factors(role, t), key=lambda factors: run.products.measure_entry(role, factors).packed or 0
        )
        formula = f"{' times '.join(x.name for x in parts)} of {role}"
    else:
        sizes = [(size.packed, step) for step, size in run.steps.update_sizes(role, t) if size.packed is not None]
        _, step = max(sizes, key=itemgetter(0))
        parts, constants = step.factors, _constants(d, algebra, step.scalars)
        formula = f"{what.formula}; step {step.step + 1} leads: {' times '.join(x.name for x in parts)}"
    terms = tuple(_term(d, algebra, s, algebra.find_leading(s)[0]) for s in parts)
    explanation = Explanation(d, what.name, t, formula, None, terms, True, constants, leading=1)
    return replace(explanation, exponent=explanation.total())


def _term(d: Derivation, algebra: Algebra, signal: Signal, kernel: int) -> LeadingTerm:
    m = monomial(algebra, signal, kernel)
    return LeadingTerm(_constants(d, algebra, m.scalars), m, tuple(mechanisms(m)))


def _constants(d: Derivation, algebra: Algebra, scalars: Iterable[Scalar]) -> tuple[Constant, ...]:
    return tuple(Constant(x.label, d.scaling.size(algebra.form(x.size)), algebra.exponent(x.size)) for x in scalars)


def _setting(d: Derivation, role: str, setting: str) -> SettingExplanation:
    """Explains what determines a parameter of a tensor, such as its learning rate.

    If the module multiplies the tensor by a factor, the parameter of the tensor itself is explained as well as that of
    the product.
    """
    found = _condition(d, role, setting)
    if setting not in SETTINGS or role not in d.network.multiplied:
        return found
    t = d.tensors[role]
    own = {"init": t.init_std, "lr": t.lr, "eps": t.eps}[setting]
    return replace(found, own=own, multiplied=d.network.multiplied[role])


def _condition(d: Derivation, role: str, setting: str) -> SettingExplanation:
    """Explains what determines a parameter of a tensor, including the factor by which the module multiplies it."""
    name, because = f"{role}.{setting}", d.reasons.get((role, setting), "")
    unknown = setting
    value: Power | None = 1 / d.scaling.multipliers.get(setting, Power())
    if setting in SETTINGS:
        s, unknown = d.scaling.tensors[role], f"{SETTINGS[setting]}.{role}"
        value = {"init": s.init_std, "lr": s.lr, "eps": s.eps}[setting]
    if setting == "eps" and value is None:
        rule = d.optimizer.of(role)
        because = f"the epsilon of {rule.name} is negligible" if rule.negligible else f"{rule.name} has no epsilon"
    bears = tuple(d.structure) if setting == "init" and role not in readouts(d.network) else ()
    fixing, c = d.fixed_by.get(unknown), d.configuration
    started = setting == "init" and role in readouts(d.network)
    chosen = started and not c.given and c.readout_init != c.parameterization.starts(d.network)
    if fixing is None and value is not None and not chosen:
        return _by_law(d, unknown, SettingExplanation(d, name, value, because, structure=bears))
    if fixing is None or chosen:
        return SettingExplanation(d, name, value, because, structure=bears)
    try:
        behind = explain_quantity(d, d.analysis(), fixing.quantity, fixing.step)
    except UnknownSize as error:
        raise UnknownSize(f"{name} = {value or 0} follows from {because}; but {error}") from None
    return SettingExplanation(d, name, value, because, _equation(fixing), behind, bears)


def _by_law(d: Derivation, unknown: str, found: SettingExplanation) -> SettingExplanation:
    """Completes the explanation of a parameter that follows from the shapes of tensors, not from solving the demands.

    It adds which demand the parameter meets, and the explanation of a quantity of this demand: of the first one that
    the smallest work budget shows to be Theta(1).
    """
    demands = d.configuration.parameterization.list_demands(d.network, d.chosen or Structure())
    for demand in (x for x in demands if x.fixes == unknown and x.kind == "theta"):
        look = d.analysis()
        for t, x in ((t, x) for t in range(1, demand.horizon + 1) for x in demand.quantities):
            if (answer := look(x, t, QUICKLY)).decided and answer.exponent == 0:
                because = f"{found.because}; it meets {demand.label}"
                return replace(found, because=because, behind=explain_quantity(d, look, x, t))
    return found


def _equation(fixing: Fixing) -> str:
    """Writes a condition as an equation: ``M^-1 sigma_expert_out^2 lr_input = Theta(1)``."""
    fixes = fixing.demand.fixes
    scale = fixing.demand.kind == "scale"  # n^d times the gradient is Theta(1): epsilon is the gradient
    size = _write_form(fixing.form, fixes if scale else "")
    return f"eps_{fixes.partition('.')[2]} = {size}" if scale else f"{size} = Theta(1)"


def _write_form(form: Form, without: str = "") -> str:
    """Writes a monomial as a product of powers, such as ``M^-1 sigma_expert_out^2 lr_input``. The unknown exponent
    ``without`` is omitted.
    """
    parts = [str(form.power)] if form.power.terms else []
    parts += [name_symbol(x) if k == -1 else f"{name_symbol(x)}^{-k}" for x, k in form.unknowns if x != without]
    return " ".join(parts) or "1"
