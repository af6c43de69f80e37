"""Derives init stds and learning rates layer by layer, as the paper does by hand: a readable check of the solver's
numbers.

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
    """Computes init stds, learning rates, epsilons and multipliers layer by layer, from alignments of the solution.

    A sum of fan_in terms is fan_in^p times as large as one of its terms. The exponent p is the alignment of the sum:
    1/2 for independent terms, 1 for terms that agree. It is computed from the sizes that ``look`` gives at the
    exponents of the solution.

    Law: let q be the alignment of W_0 dx, and p that of dW x: |W_0 dx| = fan_in^q |W_0| |dx| and |dW x| = fan_in^p
    |dW| |x|. These must be Theta(1), and so are x and dx. So the init std is fan_in^-q, and an entry of the update dW
    is fan_in^-p. An entry of the gradient at a signal is 1 / (number of entries of the signal), since the inner
    product of this gradient with a Theta(1) change of the signal is Theta(1). Source: MSSP paper, App. I.1.2 (eq.
    I.3). If several axes grow at the same rate, the exponents on the ray do not show which axis a power belongs to;
    this law does. The solver uses a power found here only if it equals the solution on the ray.

    Args:
        look: the analysis at the exponents of the solution.
        structure: which tensors start at zero or alike, and which signals are free.

    Returns:
        By unknown, the inverse of each setting as a power of the axes: 1/init std for ``b.ROLE``, 1/learning rate for
        ``c.ROLE``, 1/epsilon for ``d.ROLE``, and 1/multiplier for a multiplier.
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
    """Computes 1 / (multiplier) of each multiplier as a power of the axes, such that the product that contains it
    changes by Theta(1).

    Two kinds of products are examined: sums over experts, of which only the change that updates of its tensors
    contribute must be Theta(1), and products of one signal without a tensor, of which the whole change must be.

    Args:
        look: the analysis, which gives the sizes.
        counts: for each multiplier, the number of terms of the sum that it scales.
        t: number of updates after which the sizes are taken.
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
    """Computes the inverse weight of each auxiliary loss, as a power of the axes. The weight is such that each entry
    of the loss's gradient at a signal is 1 / (number of entries of this signal).
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
    """Computes 1 / (init std) of a tensor W: the factor by which the sum W_0 dx exceeds one of its terms, where dx is
    the change of the input.

    It is 1 for a tensor whose input is the data, which do not change. Returns None for a tensor that starts at zero,
    or if a size is unknown.
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
    """Returns the factor by which a sum exceeds one of its terms, as a power of the axes that the number of terms
    depends on.

    Example: a sum of N independent terms -> N^(1/2).

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
    """Returns the exponent of the part of a signal that updates of its tensor contribute; None if it is unknown."""
    names = [name for part in _LEARNED if (name := f"{signal}.{part}") in look.table]
    return _largest(look, names or [f"{signal}.change"], t)


def _largest(look: Analysis, names: Sequence[str], t: int) -> Fraction | None:
    """Returns the exponent of the largest of some quantities; None if it is unknown.

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
    """Returns init stds, learning rates, epsilons and multipliers that follow from the shapes of the tensors alone.

    They are a starting point for the solver and assume that updates and signals are fully aligned (the layer-wise law).

    Init stds follow the spectral condition. Learning rates are such that each entry of an update is 1/fan_in. For an
    optimizer that does not normalise gradients, this assumes that each entry of the gradient is 1 / (number of
    entries of the signal that the tensor computes). A multiplier of a sum over experts makes the sum a mean. Each
    layer has a matrix of its own. The solver then changes every unknown until its demand holds.

    Law: std = min(1, sqrt(rows / columns)) / sqrt(columns), where the matrix consists of the matrices of all experts,
    or, if each expert has an input signal of its own, is that of one expert. If the input of the tensor does not
    change in training, std = 1 / sqrt(columns). If the input consists of softmax weights, std is multiplied by their
    number. If the size of the signals before a mean over experts is not constrained, std is multiplied by
    sqrt(experts), so that the mean of independent signals is Theta(1).
    Source: Yang, Simon and Bernstein (2023), A spectral condition for feature learning.

    Args:
        network: the network.
        ray: the ray, which decides whether rows or columns grow faster.
        optimizer: the update rule of every tensor.
        structure: says which signals before a mean over experts are not constrained.

    Returns:
        By unknown, the inverse of each setting as a power of the axes: 1/init std for ``b.ROLE``, 1/learning rate for
        ``c.ROLE``, 1/epsilon for ``d.ROLE``, and 1/multiplier for a multiplier.
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
    """Counts the softmax weights that a product sums over; 1 if there are none. As they sum to 1, each is taken as 1
    / (their number).
    """
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
    """Returns the number of softmax weights that a product with a tensor sums over, 1 if there are none. If several
    products contain the tensor, this is the smallest of their numbers.
    """
    counts = (shares(network, ray, s) if len(s.factors) == 1 else Power() for s in network.uses(role))
    return min(counts, key=lambda x: x.on(ray))


def terms_behind(network: Network, ray: Ray) -> dict[str, Power]:
    """Counts, for each multiplier whose power is derived, the terms of the sum that it scales.

    In a sum with softmax weights, the terms along the index of the softmax count as one, since the weights sum to 1.
    """
    active, found = is_sparse(network, ray), dict[str, Power]()
    for s in (s for s in network.statements if isinstance(s, Product)):
        terms = network.size(network.summed_indices(s))
        if active and summed_expert_indices(network, s):
            terms = network.size(x for x in network.summed_indices(s) if network.axes[x] != "M") * Power.of({"K": 1})
        terms /= shares(network, ray, s)
        found |= {name: terms for name in s.multipliers if name in find_free_multipliers(network)}
    return found


def gradient_power(network: Network, statement: Product) -> Power:
    """Returns 1 / (size of an entry of a tensor's gradient), assuming that all terms of the gradient agree.

    This is the number of entries of the signal that the product computes, counted along the indices that the tensor
    has. Along any other index all entries have the same weights, and their contributions to the gradient add up.
    """
    assert statement.tensor
    return network.size(x for x in network.signals[statement.out] if x in statement.tensor.indices)
