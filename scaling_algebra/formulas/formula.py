"""The size of a quantity as a formula: a maximum of monomials in the axes and the parameters, valid on every ray.

``str(formula(...))`` prints it. ``.expr`` is a sympy expression in positive symbols: the axes ``N``, ``N_e``, ``M``,
and ``sigma_ROLE`` (init std), ``lr_ROLE``, ``eps_ROLE``, ``multiplier`` and, if the optimizer normalises,
``v_ROLE_k``, the divisor of the gradient at step k.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property, lru_cache
from itertools import product
from typing import TYPE_CHECKING, Any

from scaling_algebra.counting.graded import GradedSignal
from scaling_algebra.counting.kernels import Exhausted
from scaling_algebra.counting.signals import Signal
from scaling_algebra.documents import Rendered
from scaling_algebra.dynamics.analysis import LEAD, Analysis
from scaling_algebra.dynamics.quantities import Quantity, find_quantity, list_quantities
from scaling_algebra.dynamics.run import BeyondPowerCounting
from scaling_algebra.errors import UsageError, find_entry, quote_value, unknown_name_error
from scaling_algebra.explanations.mechanisms import Mechanism, mechanisms
from scaling_algebra.explanations.monomials import MatchedMonomial, monomial
from scaling_algebra.linear.cone import Cone
from scaling_algebra.linear.linear import Linear, eliminate
from scaling_algebra.linear.maxform import leading
from scaling_algebra.spec.axes import Ray
from scaling_algebra.spec.configuration import DEFAULT_ARCHITECTURE, DEFAULT_OPTIMIZER
from scaling_algebra.spec.desiderata import Structure
from scaling_algebra.spec.networks.indices import list_growing_axes
from scaling_algebra.spec.networks.language import Network, Product
from scaling_algebra.spec.networks.library import architecture as _architecture
from scaling_algebra.spec.networks.roles import readouts
from scaling_algebra.spec.networks.terms import is_held
from scaling_algebra.spec.optimizer_reading import OptimizerInput, require_single
from scaling_algebra.spec.optimizers import Optimizer
from scaling_algebra.spec.parameterizations import READOUTS
from scaling_algebra.spec.powers import Form, Power, name_symbol
from scaling_algebra.spec.scaling import Point

from .graded import STEPS
from .notation import inequality, text
from .search import QUOTIENT, FormulaSearch, winning

if TYPE_CHECKING:
    import sympy

_QUANTITY = re.compile(r"(?P<name>.+?)(?:@(?P<step>[0-9]{1,3}))?")


@dataclass(frozen=True)
class FormulaTerm:
    """One monomial of a formula.

    Attributes:
        form: its powers of the axes and of the parameters.
        beside: powers of the axes of the other monomials with the same powers of the parameters.
        matched: the product of initial tensors that has this size, and which of its factors are paired, because two
            copies of one random tensor do not average out; None for updates and raw gradients, which are outer
            products.
    """

    form: Form
    beside: tuple[Power, ...] = ()
    matched: MatchedMonomial | None = None

    @property
    def mechanisms(self) -> tuple[Mechanism, ...]:
        """The mechanisms (why each sum is coherent or random) that make the monomial as large as it is; empty for outer
        products.
        """
        return () if self.matched is None else tuple(mechanisms(self.matched))


@dataclass(frozen=True, repr=False)
class Formula(Rendered):
    """The size of a quantity after some updates, for every ray and all values of the parameters.

    Attributes:
        of: the search that found the formula. Its attributes are the network, the optimizer, which tensors start at
            zero or tied, and which axes grow.
        quantity: the quantity whose root mean square this is.
        step: the number of updates.
        terms: the monomials, each the largest one on some ray for some parameters; empty if the quantity is exactly
            zero.
        slack: None if no monomial is missing. Otherwise the quantity is at least the formula, and a missing monomial
            with the parameters of a term exceeds it by at most ``(product of the axes)^slack``.
    """

    of: FormulaSearch
    quantity: str
    step: int
    terms: tuple[FormulaTerm, ...]
    slack: Fraction | None = None

    @property
    def assumes(self) -> tuple[str, ...]:
        """Signals that must be O(1) for the formula to be valid, because functions read them."""
        return tuple(dict.fromkeys(s.inputs[0].name for s in self.of.network.functions if s.inputs))

    @property
    def complete(self) -> bool:
        """Whether no monomial is missing, so that the quantity is Theta of the formula."""
        return self.slack is None

    @property
    def divisors(self) -> Mapping[str, tuple[str, ...]]:
        """The symbols ``v_ROLE_k`` in the formula, by which the optimizer divides the gradient of a tensor at step k.

        Each comes with the gradients of which it is the maximum, such as ``gW2@0``.
        """
        gradients = {}
        for unknown in dict.fromkeys(u for t in self.terms for u, _ in t.form.unknowns if u.startswith("v.")):
            _, role, step = unknown.split(".")
            first = 0 if self.of.optimizer.memory else int(step)
            gradient = f"g{self.of.network.tensors[role].symbol}"
            gradients[name_symbol(unknown)] = tuple(f"{gradient}@{k}" for k in range(first, int(step) + 1))
        return gradients

    @property
    def averaged(self) -> tuple[str, ...]:
        """Axes that must grow for the formula to be valid, because gates, which are treated as constants, are
        averaged over them (assumption B2 of MSSP paper, J.2).
        """
        net = self.of.network
        products = (s for s in net.statements if isinstance(s, Product))
        means = (s for s in products if any(is_held(net, x.name) for x in s.factors))
        summed = {net.axes[x] for s in means for x in net.summed_indices(s)}
        return tuple(axis for axis in self.of.axes if axis in summed)

    @property
    def outer(self) -> bool:
        """Whether the quantity is an update or a raw gradient; the formula is then the entry size of an outer
        product."""
        return bool(find_quantity(list_quantities(self.of.network), self.quantity).tensor)

    @cached_property
    def expr(self) -> sympy.Expr:
        """The maximum as a sympy expression in positive symbols."""
        import sympy

        if not self.terms:
            return sympy.Integer(0)
        monomials = [t.form.expr for t in self.terms]
        return monomials[0] if len(monomials) == 1 else sympy.Max(*monomials, evaluate=False)

    def on(self, ray: Ray, point: Point) -> Fraction | None:
        """Returns the exponent of n on a ray, for given exponents of the parameters; None for exactly zero.

        Args:
            ray: the ray.
            point: exponents of the parameters, and the tensors that start at zero or tied.

        Raises:
            UsageError: the formula is not valid on the ray; a signal that must be O(1) may exceed it; the point has
                other zero or tied tensors than the formula; or the formula, or that of a divisor, is incomplete.
        """
        if ray["K"] != ray["M"]:
            raise UsageError(f"this formula is valid for K = M only; on {ray} K grows more slowly than M")
        if grown := [axis for axis in self.of.fixed if ray[axis]]:
            raise UsageError(
                f"this formula is for fixed {grown[0]}, but {grown[0]} grows on {ray}; use scalecalc signals there"
            )
        if still := [axis for axis in self.averaged if not ray[axis]]:
            raise UsageError(
                f"this formula assumes that {still[0]} grows, which it does not on {ray}; compute it with "
                f"fixed=[{still[0]!r}]"
            )
        zero = point.zero
        if (zero, point.tied) != (self.of.structure.zero, self.of.structure.tied):
            raise UsageError(f"this formula is for {self.about}; the given parameters have other tensors zero or tied")
        look = Analysis(ray, point, self.of.optimizer, self.of.network)
        for name, k in product(self.assumes, range(self.step + 1)):
            if k == self.step and name == self.quantity.partition(".")[0]:
                continue
            bound = look(name, k, LEAD)
            if bound.unknown:
                raise UsageError(f"{name}@{k} is undecided on {ray}, but this formula is valid only while it is O(1)")
            if (size := bound.lead) is not None and size > 0:
                raise UsageError(f"{name}@{k} ~ n^({size}) on {ray}, but this formula is valid only while it is O(1)")
        values = {f"{x}.{role}": value for x in "bcd" for role, value in getattr(point, x).items()}
        values |= dict(point.multipliers)
        return self._on(ray, values, {})

    def text(self) -> str:
        """Returns the formula as text: ``Theta(multiplier^2 sigma_input^2 max(N, M))``."""
        return text([t.form for t in self.terms], self.complete)

    def leads(self, term: FormulaTerm) -> tuple[str, ...]:
        """Returns the rays on which a monomial is the largest of those with the same powers of the parameters.

        Returns:
            Inequalities such as ``N_e M >= N``; empty if this is so on every ray.
        """
        cone = leading(Cone(self.of.axes), term.form.power, term.beside)
        rays = [dict(zip(self.of.axes, rates, strict=True)) for rates in cone.rays]

        def bounds(side: Linear) -> bool:
            on, _ = eliminate((ray, Fraction(0)) for ray in rays if not side.at(ray))
            return len(on) >= len(self.of.axes) - 1

        return tuple(inequality(side.counts) for side in dict.fromkeys(cone.sides) if bounds(side))

    @property
    def about(self) -> str:
        return f"{self.quantity}@{self.step}, {self.of.network.title}, {self.of.optimizer.name}, {self.of.structure}"

    def _on(self, ray: Ray, values: Mapping[str, Fraction | None], divisors: dict[str, Fraction]) -> Fraction | None:
        """Returns the exponent of n on a ray; None for exactly zero.

        Args:
            ray: the ray.
            values: exponents of the parameters, by unknown.
            divisors: exponents of the symbols ``v_ROLE_k`` that are computed already; new ones are added.
        """
        if not self.complete:
            raise UsageError(
                f"{self.quantity}@{self.step} is only known to be at least this formula, so that its exponent is "
                "undecided; use scalecalc signals"
            )

        def value(unknown: str) -> Fraction:
            if not unknown.startswith("v."):
                return values.get(unknown) or Fraction(0)
            name = name_symbol(unknown)
            if name not in divisors:
                parts = (x.split("@") for x in self.divisors[name])
                sizes = [_formula(self.of, gradient, int(k))._on(ray, values, divisors) for gradient, k in parts]
                role = unknown.split(".")[1]
                sizes += [-(values.get(f"d.{role}") or Fraction(0))] if self.of.optimizer.epsilon else []
                divisors[name] = max(x for x in sizes if x is not None) + self.entries(role).on(ray)
            return -divisors[name]

        return max(
            (t.form.power.on(ray) + sum(n * value(u) for u, n in t.form.unknowns) for t in self.terms), default=None
        )

    def entries(self, role: str) -> Power:
        """Returns the number by which the optimizer divides a tensor's gradient, divided by the size of one gradient
        entry.

        This is the root of the number of entries for an optimizer that divides by the norm of a matrix, otherwise 1.
        """
        return self.of.optimizer.entry_count_root(self.of.network, role)


def formula(
    what: str,
    optimizer: OptimizerInput = DEFAULT_OPTIMIZER,
    *,
    network: Network | str = DEFAULT_ARCHITECTURE,
    structure: Structure | str = "",
    readout_init: str = "maximal",
    fixed: Collection[str] = (),
) -> Formula:
    """Computes the size of a quantity on all rays and at all parameters.

    Args:
        what: ``"h3.A2.2@1"``: a quantity, and the number of updates (default 1).
        optimizer: the optimizer.
        network: a network, or the name of an architecture.
        structure: ``"tied expert_in"``, ``"zero router, tied expert_out"``, or a ``Structure``.
        readout_init: ``maximal``, or ``zero`` for a readout that starts at zero.
        fixed: axes that do not grow: ``["M"]`` for a fixed number of experts.

    Examples:
        >>> print(formula("h3.A3@1", "sgd").expr)
        M*N*N_e*lr_expert_out*multiplier**2*sigma_expert_in**2*sigma_input**2*sigma_readout

    Raises:
        UsageError: there is no such quantity, or its size is no maximum of monomials; the message gives the reason.
    """
    net = network if isinstance(network, Network) else _architecture(network)
    rule = require_single(optimizer, "a formula")
    start = structure if isinstance(structure, Structure) else read_structure(structure, net)
    if find_entry("readout init", readout_init, {x: x for x in READOUTS}) == "zero":
        zero = frozenset(readouts(net))
        start = replace(start, zero=start.zero | zero, readouts=zero)
    match = _QUANTITY.fullmatch(what) if isinstance(what, str) else None
    if match is None:
        raise UsageError(f"cannot read the quantity {quote_value(what)}; write QUANTITY@t, such as h3.A2.2@1")
    name, t = match["name"], int(match["step"] or 1)
    find_quantity(list_quantities(net), name)
    _check_covered(net, rule, name, t)
    return _formula(_search(net, rule, start, _check_fixed_axes(fixed, net)), name, t)


def read_structure(text: str, network: Network) -> Structure:
    """Parses a structure such as ``"tied expert_in, zero router"``.

    Raises:
        UsageError: the text cannot be read, or names a tensor that the network does not have.
    """
    sets: dict[str, set[str]] = {"zero": set(), "tied": set()}
    for part in (p.strip() for p in text.split(",") if text.strip()):
        kind, _, role = part.partition(" ")
        if kind not in sets or not role.strip():
            raise UsageError(f"cannot read {part!r} in the structure; write for example: tied expert_in, zero router")
        if role.strip() not in network.tensors:
            raise network.unknown(f"tensor of {network.name}", role.strip())
        if kind == "tied" and not network.tensors[role.strip()].experts:
            raise UsageError(
                f"cannot tie {role.strip()} in the structure: the tensor has no expert index; leave it out"
            )
        sets[kind].add(role.strip())
    return Structure(frozenset(sets["zero"]), frozenset(sets["tied"]))


# inside ------------------------------------------------------------------------------------------------------------


def _check_fixed_axes(axes: Collection[str], network: Network) -> frozenset[str]:
    """Returns the axes that do not grow, including the number of layers.

    Raises:
        UsageError: the network does not have one of the axes, or no axis is left that grows.
    """
    widths = [axis for axis in list_growing_axes(network) if axis != "L"]
    given = frozenset(axes)
    for axis in sorted(given):
        if axis not in widths:
            raise unknown_name_error(f"axis of {network.name}", axis, widths)
    if given >= set(widths):
        raise UsageError(f"no axis of {network.name} is left to grow; fix fewer axes")
    return given | {"L"} & set(network.axes.values())


def _check_covered(network: Network, optimizer: Optimizer, name: str, t: int) -> None:
    """Checks that a formula can state the size of a quantity, that is, that this size is a maximum of monomials.

    Raises:
        UsageError: it is not; the message gives the reason.
    """
    divides = [s for s in network.functions if s.kind.kind == "norm" or s.kind.selects]
    divides += [s for s in network.functions if s.kind.homogeneous]
    if divides:
        s = divides[0]
        raise UsageError(
            f"no formula for {network.name}: {s.name} of {s.inputs[0].name} depends on the size of its argument and "
            "is not a maximum of monomials; use scalecalc signals for exponents on one ray"
        )
    if optimizer.shape != "none":
        raise UsageError(
            f"no formula for {optimizer.name}: its shape factor is a maximum over rows and columns; choose the "
            "optimizer muon"
        )
    if optimizer.constraint and not optimizer.relative:
        raise UsageError(
            f"no formula for {optimizer.name}: its constraint rescales by the norm of the weights, which is not a "
            "monomial; use scalecalc signals"
        )
    if optimizer.relative:
        raise UsageError(
            f"no formula for {optimizer.name}: its steps are relative to the size of the weights, which is not a "
            "monomial; use scalecalc signals"
        )
    if QUOTIENT in name:
        raise UsageError(
            f"no formula for {name}: a quotient of two maxima is not a maximum of monomials; ask for numerator and "
            "denominator separately"
        )
    if t > STEPS:
        raise UsageError(f"the step is {t}; formulas are computed for at most {STEPS} updates")


_search = lru_cache(maxsize=64)(FormulaSearch)


@lru_cache(maxsize=512)
def _formula(search: FormulaSearch, name: str, t: int) -> Formula:
    what = find_quantity(list_quantities(search.network), name)
    try:
        maximum = search.forms(what, t)
    except BeyondPowerCounting as reason:
        raise UsageError(
            f"{name}@{t}: undecided: {reason}; use scalecalc signals for its exponent on one ray"
        ) from None
    except Exhausted:
        raise UsageError(
            f"{name}@{t}: undecided: it has more monomials than the work limit allows; ask for a part of it, or for a "
            "smaller step"
        ) from None
    forms = winning(maximum.forms, search.axes)
    terms = []
    for form in sorted(forms, key=_order):
        alike = tuple(f.power for f in forms if f.unknowns == form.unknowns and f != form)
        terms.append(
            FormulaTerm(form, alike, None if what.tensor else _reconstruct_monomial(search, what, t, form, alike))
        )
    return Formula(search, name, t, tuple(terms), maximum.slack)


def _order(form: Form) -> tuple[Any, ...]:
    """Returns the key by which the monomials of a formula are sorted: those with few factors that are parameters come
    first.
    """
    return sum(abs(n) for _, n in form.unknowns), form.unknowns, form.power.terms


def _reconstruct_monomial(
    search: FormulaSearch, what: Quantity, t: int, form: Form, beside: tuple[Power, ...]
) -> MatchedMonomial | None:
    """Reconstructs the product of initial tensors whose size is a given monomial of a formula, on a ray where this
    monomial is the largest.

    Args:
        search: computes sizes on rays.
        what: the quantity.
        t: number of updates.
        form: the monomial.
        beside: powers of the axes of the other monomials with the same powers of the parameters.

    Returns:
        The product, and which of its factors are paired; None if no term of the signal has this size.
    """
    rays = leading(search.cone, form.power, beside).rays
    run = search.run(tuple(sum(x) for x in zip(*rays, strict=True)))
    signal = what.read(run, t)
    assert isinstance(signal, GradedSignal)
    for grade, part in signal.by_grade.items():
        assert isinstance(part, Signal)
        for k in run.forms.find_leading(part):
            size = part.terms[k] + run.forms.weight(k)
            if run.forms.to_form(grade, size) == form:
                return monomial(run.forms, part, k)
    return None
