"""The optimizer of every tensor: read from ``muon+adamw``, ``adamw,hidden=muon`` or a dict."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from fnmatch import translate

from scaling_algebra.errors import UsageError, quote_value, unknown_name

from .axes import FIXED
from .networks.auxiliary import buffers
from .networks.language import Network
from .networks.sums import experts
from .optimizers import LOAD, Optimizer, Optimizers, Trained, optimizer

HIDDEN = "hidden"
"""In a network without a tensor of this name: the matrices of hidden layers and of experts."""

OptimizerInput = str | Mapping[str, str] | Optimizer | Optimizers
"""``"adamw"``, ``"muon+adamw"``, ``"adamw,hidden=muon"``, ``{"": "adamw", "hidden": "muon"}``, or a value."""


def trained(given: OptimizerInput, network: Network, model: Sequence[Network] = ()) -> Trained:
    """The optimizers that train a network.

    ``A+B`` is the convention for an optimizer A of matrices: it trains those of hidden layers and of experts, and B
    embedding, readout, router, gains and biases.

    Args:
        model: networks that it is a part of; tensors of all of them may be named.

    Raises:
        UsageError: an unknown optimizer or tensor, a tensor that is named twice, or no optimizer for the rest.
    """
    if isinstance(given, Optimizer | Optimizers):
        return _with_buffers(given, network)
    rest, matrices, named = read(given)
    text = ",".join([f"{matrices.name}+{rest.name}" if matrices else rest.name, *(f"{k}={x.name}" for k, x in named)])
    roles = dict.fromkeys(role for x in (network, *model) for role in x.tensors)
    symbols = {tensor.symbol: role for x in (network, *model) for role, tensor in x.tensors.items()}
    asked: dict[str, Optimizer] = {}
    for name, rule in named:
        role = name if name in roles else symbols.get(name, name)
        if role in asked:
            raise UsageError(f"the optimizer of {role} is given twice, in {quote_value(given)}; give it once")
        asked[role] = rule
    found = meant(f"tensor of {network.name}", asked, roles, {name: (name,) for name in (HIDDEN, *symbols)})
    rules = {role: asked[name] for name, those in found for role in those}
    if HIDDEN not in roles:
        matrices = rules.pop(HIDDEN, matrices)
    _check_blocks((network, *model), rest, matrices, rules)
    rules = (dict.fromkeys(hidden(network), matrices) if matrices else {}) | rules
    pairs = tuple((role, rules[role]) for role in network.tensors if rules.get(role, rest) != rest)
    return _with_buffers(Optimizers(text, rest, pairs) if pairs else rest, network)


def meant(
    kind: str, names: Iterable[str], roles: Collection[str], sets: Mapping[str, Collection[str]]
) -> list[tuple[str, tuple[str, ...]]]:
    """What every name stands for, the least specific first: a set, what matches a glob (``*``, ``?``), all parts of a
    parameter, one tensor.

    Examples:
        >>> meant("tensor", ["qkv", "*norm", "", "*"], ["qkv[0]", "qkv[1]", "norm"], {"": ["norm"]})
        [('', ('norm',)), ('*', ('qkv[0]', 'qkv[1]', 'norm')), ('*norm', ('norm',)), ('qkv', ('qkv[0]', 'qkv[1]'))]

    Raises:
        UsageError: a name that stands for nothing.
    """

    def meaning(name: str) -> tuple[int, int, tuple[str, ...]]:
        pattern, literal = glob(name), len(re.sub(r"[*?]", "", name))
        if name in roles:
            return 3, 0, (name,)
        if name in sets:
            return 0, literal, tuple(sets[name])
        parts = tuple(x for x in roles if whole(x) == name)
        matched = tuple(x for x in roles if pattern.fullmatch(x) or pattern.fullmatch(whole(x)))
        return (2, 0, parts) if parts else (1, literal, matched)

    found = {name: meaning(name) for name in names}
    if wrong := [name for name, (*_, those) in found.items() if not those and name not in sets]:
        raise unknown_name(kind, wrong, (*roles, *filter(None, sets)))
    return [(name, found[name][-1]) for name in sorted(found, key=lambda name: found[name][:2])]


def whole(role: str) -> str:
    """The parameter that a role is a part of, or is: ``qkv`` of ``qkv[0]``."""
    return re.sub(r"(\[\d+\])+$", "", role)


def glob(name: str) -> re.Pattern[str]:
    """A name with ``*`` for any text and ``?`` for any letter; brackets stand for themselves, as they name parts. What
    a plan prints shortened (``...self_attn.q.weight``) begins with any text."""
    name = f"*{name[3:]}" if name.startswith("...") else name
    return re.compile(translate(name.replace("[", "[[]")))


def _with_buffers(rules: Trained, network: Network) -> Trained:
    """The rules, with that of a count of tokens for buffers."""
    added = tuple((role, LOAD) for role in buffers(network) if rules.of(role) != LOAD)
    if not added:
        return rules
    others = () if isinstance(rules, Optimizer) else tuple(x for x in rules.tensors if x[0] not in buffers(network))
    return Optimizers(rules.name, rules if isinstance(rules, Optimizer) else rules.rest, (*others, *added))


def _check_blocks(
    networks: Sequence[Network], rest: Optimizer, matrices: Optimizer | None, rules: Mapping[str, Optimizer]
) -> None:
    """Letters that count blocks are those of the tensor, or of some tensor where several have the rule.

    Raises:
        UsageError: a letter that is not there.
    """
    every = {role: tensor.letters for x in networks for role, tensor in x.tensors.items()}
    for role, rule in (("", rest), ("", matrices), *rules.items()):
        letters = every.get(role, "".join(every.values()))
        for x in rule.per if rule else "":
            if x not in letters:
                known = ", ".join(dict.fromkeys(letters))
                raise UsageError(f"per({x}): {role or networks[0].name} has no index {x!r}; it has {known}")


def single(given: OptimizerInput, what: str) -> Optimizer:
    """The optimizer of all tensors.

    Raises:
        UsageError: several, which ``what`` does not take; an unknown one.
    """
    if isinstance(given, Optimizer):
        return given
    text = given.name if isinstance(given, Optimizers) else given
    if isinstance(text, str) and not set(text) & set("+,="):
        return optimizer(text)
    raise UsageError(f"{what} takes one optimizer for all tensors, not {quote_value(text)}; give its name alone")


def hidden(network: Network) -> tuple[str, ...]:
    """Roles of the matrices of hidden layers and of experts: rows and columns grow, and it is no router."""
    routers = {role for e in experts(network) for role in e.routers}
    return tuple(
        role
        for role, x in network.tensors.items()
        if role not in routers
        and all(any(network.axes[c] not in FIXED for c in side) for side in (x.fan_in, x.fan_out))
    )


def read(given: str | Mapping[str, str]) -> tuple[Optimizer, Optimizer | None, list[tuple[str, Optimizer]]]:
    """The rule of the rest, that of hidden matrices, and those of tensors by name.

    Raises:
        UsageError: an unknown optimizer, or not exactly one for the rest.
    """
    if isinstance(given, Mapping):
        items = [(str(name), rule) for name, rule in given.items()]
    elif isinstance(given, str):
        items = [
            ("", x) if "=" not in x else (x.split("=", 1)[0].strip(), x.split("=", 1)[1]) for x in given.split(",")
        ]
    else:
        items = [("", given)]
    rest, matrices, named = list[Optimizer](), list[Optimizer](), list[tuple[str, Optimizer]]()
    for name, text in items:
        *before, rule = text.split("+", 1) if isinstance(text, str) and not name else [text]
        matrices += map(_rule, before)
        if name:
            named.append((name, _rule(rule)))
        else:
            rest.append(_rule(rule))
    if len(rest) != 1:
        what = "gives two optimizers for" if rest else "leaves out"
        raise UsageError(
            f"optimizer {quote_value(given)} {what} the other tensors; write for example 'adamw,hidden=muon'"
        )
    return rest[0], matrices[0] if matrices else None, named


def _rule(text: str) -> Optimizer:
    return optimizer(text.strip() if isinstance(text, str) else text)
