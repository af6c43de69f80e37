"""Reads the optimizer of every tensor from ``muon+adamw``, ``adamw,hidden=muon`` or a dict."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from fnmatch import translate

from scaling_algebra.errors import UsageError, quote_value, unknown_name_error

from .axes import FIXED
from .networks.auxiliary import find_buffers
from .networks.language import Network
from .networks.sums import experts
from .optimizers import LOAD, Optimizer, Optimizers, OptimizerSpec, optimizer

HIDDEN = "hidden"
"""Name for the matrices of hidden layers and of experts, in a network without a tensor of this name."""

OptimizerInput = str | Mapping[str, str] | Optimizer | Optimizers
"""``"adamw"``, ``"muon+adamw"``, ``"adamw,hidden=muon"``, ``{"": "adamw", "hidden": "muon"}``, or an optimizer."""


def read_optimizers(given: OptimizerInput, network: Network, model: Sequence[Network] = ()) -> OptimizerSpec:
    """Reads the optimizers of a network's tensors.

    By convention, ``A+B`` trains the matrices of hidden layers and of experts with A, and embedding, readout, router,
    gains and biases with B.

    Args:
        given: the optimizers.
        network: the network.
        model: all networks of the model that ``network`` is a part of; ``given`` may name tensors of any of them.

    Raises:
        UsageError: an unknown optimizer or tensor, a tensor that is named twice, or no optimizer for the rest.
    """
    if isinstance(given, Optimizer | Optimizers):
        return _with_buffers(given, network)
    rest, matrices, named = parse_optimizers(given)
    text = ",".join([f"{matrices.name}+{rest.name}" if matrices else rest.name, *(f"{k}={x.name}" for k, x in named)])
    roles = dict.fromkeys(role for x in (network, *model) for role in x.tensors)
    symbols = {tensor.symbol: role for x in (network, *model) for role, tensor in x.tensors.items()}
    asked: dict[str, Optimizer] = {}
    for name, rule in named:
        role = name if name in roles else symbols.get(name, name)
        if role in asked:
            raise UsageError(f"the optimizer of {role} is given twice, in {quote_value(given)}; give it once")
        asked[role] = rule
    found = resolve_names(f"tensor of {network.name}", asked, roles, {name: (name,) for name in (HIDDEN, *symbols)})
    rules = {role: asked[name] for name, those in found for role in those}
    if HIDDEN not in roles:
        matrices = rules.pop(HIDDEN, matrices)
    _check_blocks((network, *model), rest, matrices, rules)
    rules = (dict.fromkeys(hidden_matrices(network), matrices) if matrices else {}) | rules
    pairs = tuple((role, rules[role]) for role in network.tensors if rules.get(role, rest) != rest)
    return _with_buffers(Optimizers(text, rest, pairs) if pairs else rest, network)


def resolve_names(
    kind: str, names: Iterable[str], roles: Collection[str], sets: Mapping[str, Collection[str]]
) -> list[tuple[str, tuple[str, ...]]]:
    """Resolves names to roles of tensors, and sorts them so that a more specific name comes later.

    From the least to the most specific, a name is that of a set of roles, a glob (``*``, ``?``), a parameter that is
    split into parts, or one role.

    Args:
        kind: what the names are names of, for the message.
        names: the names.
        roles: all roles.
        sets: roles by the name of a set.

    Returns:
        Pairs (name, roles).

    Raises:
        UsageError: a name matches nothing.

    Examples:
        >>> resolve_names("tensor", ["qkv", "*norm", "", "*"], ["qkv[0]", "qkv[1]", "norm"], {"": ["norm"]})
        [('', ('norm',)), ('*', ('qkv[0]', 'qkv[1]', 'norm')), ('*norm', ('norm',)), ('qkv', ('qkv[0]', 'qkv[1]'))]
    """

    def meaning(name: str) -> tuple[int, int, tuple[str, ...]]:
        pattern, literal = compile_glob(name), len(re.sub(r"[*?]", "", name))
        if name in roles:
            return 3, 0, (name,)
        if name in sets:
            return 0, literal, tuple(sets[name])
        parts = tuple(x for x in roles if parameter_of(x) == name)
        matched = tuple(x for x in roles if pattern.fullmatch(x) or pattern.fullmatch(parameter_of(x)))
        return (2, 0, parts) if parts else (1, literal, matched)

    found = {name: meaning(name) for name in names}
    if wrong := [name for name, (*_, those) in found.items() if not those and name not in sets]:
        raise unknown_name_error(kind, wrong, (*roles, *filter(None, sets)))
    return [(name, found[name][-1]) for name in sorted(found, key=lambda name: found[name][:2])]


def parameter_of(role: str) -> str:
    """Returns the parameter that a role is a part of: ``qkv`` for ``qkv[0]`` and for ``qkv``."""
    return re.sub(r"(\[\d+\])+$", "", role)


def compile_glob(name: str) -> re.Pattern[str]:
    """Compiles a pattern with ``*`` for any text and ``?`` for any character; brackets are literal, as they name parts.

    A name that a plan prints shortened (``...self_attn.q.weight``) matches with any text instead of the dots.
    """
    name = f"*{name[3:]}" if name.startswith("...") else name
    return re.compile(translate(name.replace("[", "[[]")))


def _with_buffers(rules: OptimizerSpec, network: Network) -> OptimizerSpec:
    """Assigns the update rule ``LOAD``, the sign of a count of tokens, to every tensor that only shifts a top-K
    selection.

    Such tensors have no gradient (``find_buffers``).
    """
    added = tuple((role, LOAD) for role in find_buffers(network) if rules.of(role) != LOAD)
    if not added:
        return rules
    others = (
        () if isinstance(rules, Optimizer) else tuple(x for x in rules.tensors if x[0] not in find_buffers(network))
    )
    return Optimizers(rules.name, rules if isinstance(rules, Optimizer) else rules.rest, (*others, *added))


def _check_blocks(
    networks: Sequence[Network], rest: Optimizer, matrices: Optimizer | None, rules: Mapping[str, Optimizer]
) -> None:
    """Checks that every index in the suffix ``per(...)`` of an optimizer's name is an index of the tensor that it
    trains; for a rule of several tensors, an index of any tensor.

    Args:
        networks: the networks of the model.
        rest: the rule of the tensors without a rule of their own.
        matrices: the rule of hidden matrices; None if they have none of their own.
        rules: the rules of single tensors, by role.

    Raises:
        UsageError: an index does not exist.
    """
    every = {role: tensor.indices for x in networks for role, tensor in x.tensors.items()}
    for role, rule in (("", rest), ("", matrices), *rules.items()):
        indices = every.get(role, "".join(every.values()))
        for x in rule.per if rule else "":
            if x not in indices:
                known = ", ".join(dict.fromkeys(indices))
                raise UsageError(f"per({x}): {role or networks[0].name} has no index {x!r}; it has {known}")


def require_single(given: OptimizerInput, what: str) -> Optimizer:
    """Returns the one optimizer of all tensors.

    Args:
        given: the optimizer.
        what: the function that supports only one, for the message.

    Raises:
        UsageError: there are several, or it is unknown.
    """
    if isinstance(given, Optimizer):
        return given
    text = given.name if isinstance(given, Optimizers) else given
    if isinstance(text, str) and not set(text) & set("+,="):
        return optimizer(text)
    raise UsageError(f"{what} takes one optimizer for all tensors, not {quote_value(text)}; give its name alone")


def hidden_matrices(network: Network) -> tuple[str, ...]:
    """Lists the roles of the matrices of hidden layers and experts: tensors whose rows and columns may both grow,
    routers excepted.
    """
    routers = {role for e in experts(network) for role in e.routers}
    return tuple(
        role
        for role, x in network.tensors.items()
        if role not in routers
        and all(any(network.axes[c] not in FIXED for c in side) for side in (x.fan_in, x.fan_out))
    )


def parse_optimizers(given: str | Mapping[str, str]) -> tuple[Optimizer, Optimizer | None, list[tuple[str, Optimizer]]]:
    """Parses the optimizers of a model, such as ``muon+adamw`` or ``adamw,hidden=muon``, without checking whether the
    tensors exist.

    Returns:
        The rule of the remaining tensors, the rule of hidden matrices (``A`` of ``A+B``, or None), and pairs (name,
        rule).

    Raises:
        UsageError: an optimizer is unknown, or there is not exactly one for the remaining tensors.
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
        matrices += map(_read_rule, before)
        if name:
            named.append((name, _read_rule(rule)))
        else:
            rest.append(_read_rule(rule))
    if len(rest) != 1:
        what = "gives two optimizers for" if rest else "leaves out"
        raise UsageError(
            f"optimizer {quote_value(given)} {what} the other tensors; write for example 'adamw,hidden=muon'"
        )
    return rest[0], matrices[0] if matrices else None, named


def _read_rule(text: str) -> Optimizer:
    return optimizer(text.strip() if isinstance(text, str) else text)
