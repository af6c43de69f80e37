"""The layer-wise system of alignment exponents: a readable derivation of the numbers that the solver finds.

Source: MSSP paper, App. I.1.2 (eq. I.3).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction

from scaling_algebra.dynamics.analysis import QUICKLY, WITNESS, Analysis
from scaling_algebra.dynamics.sparse_routing import is_sparse
from scaling_algebra.spec.axes import Ray
from scaling_algebra.spec.desiderata import Structure, last_step
from scaling_algebra.spec.networks.ancestors import is_trained
from scaling_algebra.spec.networks.auxiliary import name_weight
from scaling_algebra.spec.networks.indices import summed_expert_indices
from scaling_algebra.spec.networks.language import Function, Network, Product
from scaling_algebra.spec.networks.multipliers import find_free_multipliers
from scaling_algebra.spec.networks.roles import find_meetings
from scaling_algebra.spec.networks.sums import experts
from scaling_algebra.spec.optimizers import OptimizerSpec
from scaling_algebra.spec.powers import Power

PLAIN = Structure()
"""The structure without interventions."""
_LEARNED = ("effective", "cross")
"""Parts of a signal produced by an update of its tensor."""


def layerwise(look: Analysis, structure: Structure) -> dict[str, Power]:
    """Computes the powers of the parameters from the alignment exponents of every layer, which the engine measures.

    Law: |W_0 dx| = fan_in^q |W_0| |dx| and |dW x| = fan_in^p |dW| |x| with activations Theta(1), so the init std is
    fan_in^-q and entries of dW are fan_in^-p. A gradient with respect to a signal is one over its number of entries,
    since its inner product with a Theta(1) change is Theta(1). Source: MSSP paper, App. I.1.2 (eq. I.3). Where several
    axes grow at one rate, this decides which of them has a power. The solver keeps an entry only if it equals the
    solution on the ray.
    """
    network, t = look.network, last_step(look.network, structure)
    counts = terms_behind(network, look.ray)
    powers = _multipliers(look, counts, t)
    powers |= _weights(look, t)
    above = {x: e.aggregation for e in experts(network) for x in e.last if x in structure.exempt}
    for statement in network.linear:
        assert statement.tensor
        role = statement.tensor.name
        if f"d.{role}" in powers or len(statement.factors) != 1:
            continue  # the first use of a tensor speaks for it
        if (init := _init(look, statement, t)) is not None:
            powers[f"b.{role}"] = init
            aggregate = above.get(statement.out)
            multiplier = next((m for m in aggregate.multipliers if m in powers), "") if aggregate else ""
            if aggregate and multiplier:
                parts = _size(look, f"{statement.out}.propagating", t), -look.point.multipliers[multiplier]
                more = _alignment_power(
                    look, counts[multiplier], _size(look, f"{aggregate.out}.propagating", t), *parts
                )
                if more is not None:
                    powers[f"b.{role}"] *= more / powers[multiplier]
        gradient, rule = gradient_power(network, statement), look.optimizer.of(role)
        update = _size(look, f"d{network.tensors[role].symbol}", t)
        rate = _alignment_power(
            look, network.size(network.tensors[role].fan_in), _learned_size(look, statement.out, t), update
        )
        if rate is not None:
            shaped = rule.shape_factor(network, role, look.ray) / rule.entry_count_root(network, role)
            powers[f"c.{role}"] = rate * (shaped if rule.normalises else 1 / gradient)
            if rule.relative and look.point.b[role] is not None:
                powers[f"c.{role}"] /= powers.get(f"b.{role}", Power())
        powers[f"d.{role}"] = gradient
    return powers


def _multipliers(look: Analysis, counts: Mapping[str, Power], t: int) -> dict[str, Power]:
    """Computes powers of the multipliers, such that the products that contain them change by Theta(1).

    For a sum over experts the learned part of its terms counts, for any other product of one signal the whole change.
    """
    network = look.network
    read = {e: [x for x in (e.source, *e.weights) if is_trained(network, x)] for e in experts(network)}
    sums = [(e.aggregation, names[0], _learned_size) for e, names in read.items() if names]
    single = (s for s in network.statements if isinstance(s, Product) and _single(s))
    sums += [(s, s.factors[0].name, _change_size) for s in single if is_trained(network, s.factors[0].name)]
    powers: dict[str, Power] = {}
    for statement, source, size in sums:
        for multiplier in set(statement.multipliers) & set(counts) - set(powers):
            parts = size(look, source, t), -look.point.multipliers[multiplier]
            power = _alignment_power(look, counts[multiplier], size(look, statement.out, t), *parts)
            if power is not None:
                powers[multiplier] = power
    return powers


def _weights(look: Analysis, t: int) -> dict[str, Power]:
    """Computes powers of the weights of auxiliary losses, such that entries of a loss's gradient at a signal are one
    over the number of entries of this signal.
    """
    powers: dict[str, Power] = {}
    for loss, x, g in find_meetings(look.network):
        count, weight = look.network.size(look.network.signals[x]), name_weight(look.network, loss)
        own = _alignment_power(look, count, _size(look, f"{g}.by-{loss}", t), -look.point.multipliers[weight])
        powers |= {} if own is None else {weight: count * own}
    return powers


def _single(statement: Product) -> bool:
    """Tests whether a product consists of one signal, without a tensor."""
    return not statement.tensor and len(statement.factors) == 1


def _init(look: Analysis, statement: Product, t: int) -> Power | None:
    """Computes the inverse init std of a tensor, from the alignment of its initial value with the signal change that
    it propagates.

    It is 1 for a tensor that reads the data, which propagates no change. None for a tensor that starts at zero, or if
    a size is unknown.
    """
    assert statement.tensor
    role, read = statement.tensor.name, statement.factors[0].name
    if (b := look.point.b[role]) is None:
        return None
    if not look.network.producer(read):
        return Power()
    change, propagating = _change_size(look, read, t), _size(look, f"{statement.out}.propagating", t)
    return _alignment_power(look, look.network.size(look.network.tensors[role].fan_in), propagating, -b, change)


def _alignment_power(look: Analysis, over: Power, total: Fraction | None, *parts: Fraction | None) -> Power | None:
    """Returns the alignment as a power of the number of summed terms: the factor by which a sum exceeds one of its
    terms.

    Args:
        look: the analysis.
        over: the number of terms.
        total: exponent of the sum.
        *parts: exponents of the factors of a term.

    Returns:
        The power, or None if an exponent is unknown.
    """
    sizes, rate = [x for x in parts if x is not None], over.on(look.ray)
    if total is None or len(sizes) < len(parts):
        return None
    return over ** ((total - sum(sizes)) / rate) if rate else Power()


def _size(look: Analysis, name: str, t: int) -> Fraction | None:
    return look(name, t, QUICKLY).lead


def _change_size(look: Analysis, signal: str, t: int) -> Fraction | None:
    return _size(look, f"{signal}.change", t)


def _learned_size(look: Analysis, signal: str, t: int) -> Fraction | None:
    """Returns the size of the part of a signal that an update of its tensor produces; None if it is unknown."""
    names = [name for part in _LEARNED if (name := f"{signal}.{part}") in look.table]
    return _largest(look, names or [f"{signal}.change"], t)


def _largest(look: Analysis, names: Sequence[str], t: int) -> Fraction | None:
    """Returns the size of the largest of some quantities; None if it is unknown.

    It is known if a monomial has the size of the upper bound of all quantities. Otherwise all of them are computed
    with the smallest budget.
    """
    uppers = [look.upper(name) for name in names]
    top = max((x for x in uppers if x is not None), default=None)
    for name in names if None not in uppers and t else ():
        if top is not None and look(name, t, WITNESS).low == top:
            return top
    answers = [look(name, t, QUICKLY) for name in names]
    if not all(x.decided for x in answers):
        return None
    return max((x.size for x in answers if x.size is not None), default=None)


def at_full_alignment(
    network: Network, ray: Ray, optimizer: OptimizerSpec, structure: Structure = PLAIN
) -> dict[str, Power]:
    """Returns a starting point for the solver: the layer-wise law, under the assumption that updates and signals are
    fully aligned.

    Init stds follow the spectral condition. Learning rates make the entries of an update 1/fan_in; for rules that do
    not normalise, this assumes that entries of a gradient are 1 / (number of outputs of the tensor). A multiplier of a
    sum over experts makes it a mean. Layers are counted as separate matrices. The solver then moves every unknown to
    where its demand holds.

    Law: std = min(1, sqrt(rows / columns)) / sqrt(columns) for the operator of all experts stacked, or, if each expert
    reads a signal of its own, for that of one expert. If the tensor reads nothing that trains, no change meets it, and
    std = 1 / sqrt(columns). If it reads weights of a softmax, std is larger by their number. If the size of signals
    before a mean over experts is not constrained, std is larger by sqrt(experts), so that the mean of independent
    signals is Theta(1).
    Source: Yang, Simon and Bernstein (2023), A spectral condition for feature learning.

    Args:
        network: the network.
        ray: the ray, which decides whether rows or columns grow faster.
        optimizer: the update rule of every tensor.
        structure: says which signals before a mean over experts are not constrained.

    Returns:
        The powers by unknown (``b.ROLE``, ``c.ROLE``, ``d.ROLE``, multipliers), inverted as in ``Given.held``.
    """
    powers: dict[str, Power] = {}
    half = Fraction(1, 2)
    for role, tensor in network.tensors.items():
        rule, uses, small = optimizer.of(role), network.uses(role), shares_read(network, ray, role)
        gradient, columns = gradient_power(network, uses[0]) * small, network.size(tensor.fan_in)
        layer = {x for x in tensor.indices if network.axes[x] == "L"}
        read = ({*f.indices} for s in uses for f in s.factors)
        along = set.intersection(*(x for x in read if x.intersection(tensor.fan_in)), {*tensor.indices})
        rows = network.size(x for x in tensor.indices if x not in layer.union(tensor.fan_in, along))
        entries = rule.entry_count_root(network, role) / rule.shape_factor(network, role, ray)
        moves = bool(network.unread) or any(is_trained(network, x.name) for s in uses for x in s.factors)
        wide = moves and columns.on(ray) > rows.on(ray)
        powers[f"b.{role}"] = columns**half * ((columns / rows) ** half if wide else Power()) / small
        powers[f"c.{role}"] = columns / small / {"": gradient, "entry": Power(), "matrix": entries}[rule.normalises]
        powers[f"c.{role}"] /= powers[f"b.{role}"] if rule.relative else Power()
        powers[f"d.{role}"] = gradient
    for e in experts(network):
        for role in e.outer if structure.exempt.intersection(e.last) else ():
            powers[f"b.{role}"] /= network.size(network.summed_indices(e.aggregation)) ** half
    return powers | terms_behind(network, ray)


def shares(network: Network, ray: Ray, s: Product) -> Power:
    """Counts the softmax weights that a product sums over, each of which is one over this number; 1 if there are
    none."""
    count = Power()
    for x in s.factors:
        made = network.producer(x.name)
        if isinstance(made, Function) and made.kind.kind == "softmax":
            over = x.indices[network.signals[made.out].index(made.over)]
            few = made.kind.selects and is_sparse(network, ray)
            count *= (
                (Power.of({"K": 1}) if few else network.size(over)) if over in network.summed_indices(s) else Power()
            )
    return count


def shares_read(network: Network, ray: Ray, role: str) -> Power:
    """Returns the number of softmax weights that a tensor multiplies and sums. If it has several uses, this is the
    smallest number; 1 for a use without softmax weights.
    """
    counts = (shares(network, ray, s) if len(s.factors) == 1 else Power() for s in network.uses(role))
    return min(counts, key=lambda x: x.on(ray))


def terms_behind(network: Network, ray: Ray) -> dict[str, Power]:
    """Counts, for each multiplier that is derived, the terms of the sum that it scales. Weights that sum to 1 count
    as one."""
    active, found = is_sparse(network, ray), dict[str, Power]()
    for s in (s for s in network.statements if isinstance(s, Product)):
        terms = network.size(network.summed_indices(s))
        if active and summed_expert_indices(network, s):
            terms = network.size(x for x in network.summed_indices(s) if network.axes[x] != "M") * Power.of({"K": 1})
        terms /= shares(network, ray, s)
        found |= {name: terms for name in s.multipliers if name in find_free_multipliers(network)}
    return found


def gradient_power(network: Network, statement: Product) -> Power:
    """Returns 1 / (size of an entry of a tensor's gradient) at full alignment.

    This is the number of entries of the signal that the tensor produces. Gradients of entries that share weights add
    up, so only indices of the tensor count.
    """
    assert statement.tensor
    return network.size(x for x in network.signals[statement.out] if x in statement.tensor.indices)
