"""The optimizer of every tensor: read from ``muon+adamw``, ``adamw,hidden=muon`` or a dict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from scaling_algebra.errors import UsageError, shown, unknown_name

from .axes import FIXED
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
    rules: dict[str, Optimizer] = {}
    for name, rule in named:
        role = name if name in roles else symbols.get(name, name)
        if role in rules:
            raise UsageError(f"the optimizer of {role} is given twice, in {shown(given)}; give it once")
        if role not in roles and role != HIDDEN:
            raise unknown_name(f"tensor of {network.name}", name, (*roles, *symbols, HIDDEN))
        rules[role] = rule
    if HIDDEN in rules and HIDDEN not in roles:
        matrices = rules[HIDDEN]
    _check_blocks((network, *model), rest, matrices, rules)
    rules = (dict.fromkeys(hidden(network), matrices) if matrices else {}) | rules
    pairs = tuple((role, rules[role]) for role in network.tensors if rules.get(role, rest) != rest)
    return _with_buffers(Optimizers(text, rest, pairs) if pairs else rest, network)


def _with_buffers(rules: Trained, network: Network) -> Trained:
    """The rules, with that of a count of tokens for buffers."""
    added = tuple((role, LOAD) for role in network.buffers if rules.of(role) != LOAD)
    if not added:
        return rules
    others = () if isinstance(rules, Optimizer) else tuple(x for x in rules.tensors if x[0] not in network.buffers)
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
    raise UsageError(f"{what} takes one optimizer for all tensors, not {shown(text)}; give its name alone")


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
        raise UsageError(f"optimizer {shown(given)} {what} the other tensors; write for example 'adamw,hidden=muon'")
    return rest[0], matrices[0] if matrices else None, named


def _rule(text: str) -> Optimizer:
    return optimizer(text.strip() if isinstance(text, str) else text)
