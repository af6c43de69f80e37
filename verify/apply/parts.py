"""Packed parameters whose parts have different numbers, such as query, key and value in one matrix.

Determines where the parts lie, and which numbers the common parameter group uses. Read next: ``exports.py`` (groups).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import combinations_with_replacement, pairwise, product
from typing import Any

from scaling_algebra.recipes.settings import Setting
from scaling_algebra.spec.optimizer_reading import parameter_of
from scaling_algebra.spec.optimizers import Optimizer
from scaling_algebra.spec.powers import Power
from scaling_algebra.verify.tracing import TracedModel

from .modules import Entry

Settings = Mapping[str, Setting]
Records = Sequence[tuple[Mapping[str, int], Mapping[str, Any]]]
"""(sizes, configuration) pairs of one model: at small sizes, and last at the target."""
MOST = 10**5
"""Maximum number of combinations of configuration fields that are tried."""


def locate_parts(
    e: Entry,
    parts: Iterable[str],
    reading: TracedModel,
    target: Mapping[str, int],
    records: Callable[[], Records] | None = None,
) -> dict[str, tuple[int, int, int]]:
    """Returns the positions of the parts of a packed parameter, such as query, key and value in one matrix, at the
    target sizes.

    Args:
        e: the parameter.
        parts: names of its parts.
        reading: the traced model, with the positions of parts at small sizes.
        target: the target sizes.
        records: returns configurations of a model of the library transformers at several sizes; they are used if parts
            do not grow as the axes do.

    Returns:
        Part -> (dimension, start, length); empty if the parts found do not fill the parameter without gaps.
    """
    found = sorted((*reading.spans[x], x) for x in parts if x in reading.spans)
    places = [(dim, at, at + count) for dim, at, count, *_ in found]
    joined = all(a[0] == b[0] and a[2] == b[1] for a, b in pairwise(places))
    if not found or places[0][1] or not joined or {x[-1] for x in found} != {*parts}:
        return {}

    def at(sizes: Mapping[str, int]) -> list[int]:
        return [round(count * Power.of(powers).ratio(reading.base, sizes)) for *_, count, powers, _ in found]

    dim, whole = places[0][0], e.shape[places[0][0]]
    counts: Sequence[int] = at(target)
    if sum(counts) != whole and records is not None:
        *small, (_, real) = records()
        counts = find_part_sizes([(record, at(sizes)) for sizes, record in small], real, whole)
    if sum(counts) != whole:
        return {}
    return {role: (dim, sum(counts[:k]), counts[k]) for k, (*_, role) in enumerate(found)}


def find_part_sizes(
    small: Sequence[tuple[Mapping[str, Any], Sequence[int]]], real: Mapping[str, Any], whole: int
) -> list[int]:
    """Finds the sizes of the parts of a packed parameter at the target, from the fields of the model's configuration.

    The size of each part is taken to be a field of the configuration, or a product of two fields, that equals it in all
    small configurations.

    Args:
        small: pairs (configuration, sizes of the parts) at small sizes, where both are known.
        real: the configuration at the target.
        whole: the sum of the parts' sizes at the target.

    Returns:
        The sizes of the parts at the target; empty if there is not exactly one choice.

    Examples:
        >>> small = {"lora_rank": 16, "rope_dim": 16, "v_dim": 16}, {"lora_rank": 32, "rope_dim": 16, "v_dim": 16}
        >>> real = {"lora_rank": 512, "rope_dim": 64, "v_dim": 128}
        >>> find_part_sizes([(small[0], [16, 16]), (small[1], [32, 16])], real, 576)
        [512, 64]
    """
    records = [{**record, "": 1} for record in (*(x for x, _ in small), real)]
    names = [k for k in records[0] if all(type(r.get(k)) is int and r[k] > 0 for r in records)]
    sizes = {tuple(r[a] * r[b] for r in records) for a, b in combinations_with_replacement(names, 2)}
    choices = [{real for *seen, real in sizes if seen == [*part]} for part in zip(*(x for _, x in small), strict=True)]
    if math.prod(map(len, choices)) > MOST:
        return []
    found = [x for x in product(*choices) if sum(x) == whole]
    return [*found[0]] if len(found) == 1 else []


def merge_settings(parts: Mapping[str, Settings]) -> dict[str, Setting]:
    """Returns the settings that are the same for all parts of a parameter, and the smallest of their epsilons.

    The smallest epsilon serves all parts, since an epsilon below the gradient does not change the size of an update.
    """
    common = {what: s for what, s in next(iter(parts.values())).items() if what not in list_differences(parts)}
    if all("eps" in s for s in parts.values()):
        common["eps"] = min(
            (s["eps"] for s in parts.values()), key=lambda s: s.factor if s.target is None else s.target
        )
    return common


def list_differences(parts: Mapping[str, Settings]) -> list[str]:
    """Returns the names of the settings in which the parts of a parameter differ."""
    first, *more = parts.values()
    return [what for what, s in first.items() if any(s != other.get(what) for other in more)]


def advise_on_parts(rules: Mapping[str, Optimizer], group: str, given: str) -> str:
    """Returns advice to the user on a parameter whose parts have different optimizers or numbers.

    Args:
        rules: the optimizer of each part.
        group: name of the parameter.
        given: the optimizers of the model, as ``read_optimizers`` reads them.
    """
    names = {rule.name: rule for rule in rules.values()}
    if len(names) < 2:
        return f"make {' and '.join(rules)} parameters of their own, as torch has one number for each"
    one = next((name for name, rule in names.items() if rule.normalises != "matrix"), [*names][-1])
    first, *named = given.split(",")
    others = {name: rule for name, _, rule in (x.partition("=") for x in named) if parameter_of(name) != group}
    asked = {"": first, **others, group: one}
    return f"give the whole tensor to one optimizer: plan(..., optimizer={asked})"


def describe_parts(e: Entry) -> str:
    """Returns the warning for a parameter whose parts have different numbers: what is done, and what is left to do."""
    several = len({rule.name for rule in e.rules.values()}) > 1
    found = [*(["optimizer"] if several else []), *list_differences(e.parts)]
    drawn = "init_std" in found and bool(e.spans)
    done = [*(["init_ draws each by its own std"] if drawn else [])]
    done += ["the least eps is that of the group"] if "eps" in found and not several else []
    left = [x for x in found if not (x == "eps" or (x == "init_std" and drawn))]
    done += [f"for {' and '.join(left)} {e.apart}"] if left else []
    return f"{e.group}: its parts differ in {', '.join(found)}; {'; '.join(done)}"
