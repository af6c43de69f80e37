"""Reads networks from equations.

    h1[a]    = W1[a,x] data[x]
    phi[i]   = sigmoid(Q[i,a] h1[a])
    h2[i,k]  = W2[i,k,a] h1[a]
    h3[b]    = alpha phi[i] W3[i,b,k] h2[i,k]
    f        = W4[b] h3[b]

Adjacent factors are multiplied. Indices that are missing on the left are summed; inside the argument of a function,
indices that occur in several factors are summed. A name that an earlier equation defines is a signal, and ``data`` is
the input. Any other name is a tensor if it has indices, and a multiplier if it has none. A tensor acts on the factors
to its right; factors to its left multiply the result. A part of a larger expression becomes a signal of its own, named
``h_1`` in the equation of ``h``. Constants are signals that no equation computes, like the input.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from scaling_algebra import limits
from scaling_algebra.errors import UsageError, quote_value, unknown_name_error
from scaling_algebra.spec.axes import AXES, FIXED, is_axis_name

from .ancestors import find_tensors
from .functions import FUNCTIONS
from .language import DATA, Factor, Function, Network, Product, Statement, Sum, Tensor
from .parsing import HINTS, Equation, Factors, FunctionCall, NamedTerm, parse_equation, write_indexed

ROLE = re.compile(r"[^\W\d]\w*|\w+([.\[][\w*]+\]?)+")
"""Pattern of a role: a word, or the name of a torch parameter such as ``experts.*.w1.weight`` or ``qkv.weight[0]``."""
LONG, MOST = 2**16, 1_000
"""Maximum number of characters and of lines of equations."""


def network(
    name: str,
    equations: str,
    axes: Mapping[str, str],
    roles: Mapping[str, str] | None = None,
    title: str = "",
    constants: Iterable[str] = (),
    losses: Iterable[str] = (),
) -> Network:
    """Builds a network from a text with one equation to a line. The last equation defines the scalar output.

    Args:
        name: name of the network.
        equations: the text.
        axes: axis of each index, such as ``{"a": "N", "i": "M", "x": "D"}``.
        roles: role of a tensor by its name in the equations; by default the role is that name.
        title: one line for reports; by default the name.
        constants: names of signals with entries of size 1 that do not train.
        losses: names of scalars, each a product with a weight, that are added to the loss besides the output.

    Raises:
        UsageError: one line that quotes the equation and its number.
    """
    limits.check_line("name", name)
    limits.check_line("title", title)
    if not isinstance(constants, tuple | list | frozenset | set) or not all(isinstance(x, str) for x in constants):
        raise UsageError(f"constants are {quote_value(constants)}; give the names of signals, such as ('C',)")
    if (lines := len(equations.strip().splitlines())) > MOST:
        raise UsageError(
            f"the equations have {lines} lines; give at most {MOST}; write equal layers once, with an index"
        )
    if len(equations) > LONG:
        raise UsageError(f"the equations have {len(equations)} characters; give at most {LONG}")
    for letter, axis in axes.items():
        if not (isinstance(letter, str) and len(letter) == 1 and letter.isalpha()):
            raise UsageError(f"axes: {letter!r} is not an index; an index is a single letter, such as a or k")
        known = (*AXES, *FIXED)
        if axis not in known and str(axis).lower() in map(str.lower, known):
            raise UsageError(f"axes: {unknown_name_error('axis', str(axis), known)}")
        if not is_axis_name(axis):
            raise UsageError(f"axes: {quote_value(axis)} is no name of an axis; write a word, such as N, M or rank")
    numbered = enumerate(equations.removeprefix("\n").splitlines(), 1)
    texts = {number: " ".join(line.partition("#")[0].split()) for number, line in numbered}
    parsed_equations = [parse_equation(number, text) for number, text in texts.items() if text]
    if not parsed_equations:
        raise UsageError("there are no equations; write one on a line, such as f = W[a,x] data[x]")
    return _EquationReader(axes, roles or {}, parsed_equations, (DATA, *constants), tuple(losses)).network(
        name, title or name
    )


def needs_index(name: str) -> bool:
    """Tests whether a function acts along one index of its argument, as a softmax does."""
    kind = FUNCTIONS[name]
    return kind.mixes or kind.selects


def _check_calls(at: Equation, terms: Iterable[Factors], names: Container[str]) -> None:
    """Checks that called names are functions, with an argument and an index if they need them.

    Args:
        at: the equation, for messages.
        terms: the terms of a sum.
        names: names that are no functions.
    """
    for call in (x for product in terms for x in product if isinstance(x, FunctionCall)):
        name = call.name
        if name not in FUNCTIONS:
            what = (
                f"{name} is not a function; {HINTS['(']}"
                if name in names
                else unknown_name_error("function", name, FUNCTIONS)
            )
            raise at.wrong(str(what))
        noise = FUNCTIONS[name].kind == "noise"
        if noise and call.argument:
            raise at.wrong(f"{name} takes no argument; write {name}()")
        if not noise and not call.argument:
            raise at.wrong(f"{name} needs an argument, such as {name}(psi[i])")
        if call.over and not needs_index(name):
            raise at.wrong(f"{name} acts on single entries and takes no index; leave out '; {call.over}' in {call}")
        _check_calls(at, call.argument, names)


def _write_product(product: Factors) -> str:
    return " ".join(map(str, product))


@dataclass
class _EquationReader:
    """Converts equations to statements, one after the other.

    Attributes:
        axes: axis of each index.
        roles: role of a tensor by its name in the equations.
        equations: the parsed equations.
        steady: names of the signals that do not train: the data and the constants.
        losses: names of auxiliary losses.
        at: the present equation.
        made_in: for every name on a left side, the number of its equation.
        first: for every signal and tensor, its indices where it occurs first, and the number of this equation.
        kinds: for every name that no equation defines: ``tensor`` or ``multiplier``.
        words: every name that is in use.
        signals: indices of every signal so far.
        symbols: every tensor so far, by its name in the equations.
        statements: the statements so far.
    """

    axes: Mapping[str, str]
    roles: Mapping[str, str]
    equations: Sequence[Equation]
    steady: tuple[str, ...]
    losses: tuple[str, ...] = ()
    at: Equation = field(init=False)
    made_in: dict[str, int] = field(default_factory=dict)
    first: dict[str, tuple[str, int]] = field(default_factory=dict)
    kinds: dict[str, str] = field(default_factory=dict)
    words: set[str] = field(default_factory=set)
    signals: dict[str, str] = field(default_factory=dict)
    symbols: dict[str, Tensor] = field(default_factory=dict)
    statements: list[Statement] = field(default_factory=list)

    def network(self, name: str, title: str) -> Network:
        """Converts all equations and returns the network."""
        self._name_signals()
        for equation in self.equations:
            self.at = equation
            _check_calls(equation, equation.terms, {*self.made_in, *self.kinds, *self.steady})
            self._add_sum(equation.out.name, self._check_indices(equation.out), equation.terms)
        self._check_reading()
        self._check_roles()
        order = [*self.roles, *(x for x in self.symbols if x not in self.roles)]
        tensors = {self.roles.get(x, x): self.symbols[x] for x in order}
        signals = {x: self.first[x][0] for x in self.steady} | self.signals
        used = "".join((*signals.values(), *(x.indices for s in self.statements for x in s.inputs)))
        used += "".join(s.tensor.indices for s in self.statements if isinstance(s, Product) and s.tensor)
        axes = {x: axis for x, axis in self.axes.items() if x in used}
        whole = Network(name, title, tensors, axes, signals, tuple(self.statements), constants=self.steady[1:])
        if still := [x for x in self.losses if not find_tensors(whole, x)]:
            raise UsageError(f"losses: {still[0]} depends on no tensor, so that it has no gradient")
        return replace(whole, losses=self.losses) if self.losses else whole

    def _name_signals(self) -> None:
        """Collects all names, and checks that no signal is defined twice or has a reserved name."""
        self.words = {x for e in self.equations for x in re.findall(r"\w+", e.text)}
        self.words |= set(map(str, self.roles.values()))
        for e in self.equations:
            name = e.out.name
            if name in self.steady or name in FUNCTIONS:
                what = "the input" if name == DATA else "a function" if name in FUNCTIONS else "a constant"
                raise e.wrong(f"{name} is {what}; choose another name")
            first = self.made_in.setdefault(name, e.number)
            if first != e.number:
                raise e.wrong(f"{name} is already computed in equation {first}; choose another name")

    # expressions -----------------------------------------------------------------------------------------------

    def _add_sum(self, out: str, indices: str, terms: Sequence[Factors]) -> None:
        """Adds the statements for ``out = terms[0] + terms[1] + ...``."""
        if len(terms) == 1:
            return self._add_product(out, indices, terms[0])
        factors = []
        for product in terms:
            factor = self._find_lone_signal(product)
            if factor is None or set(factor.indices) != set(indices):
                factor = Factor(self._make_name(), indices)
                self._add_product(factor.name, indices, product)
            factors.append(factor)
        self._add(Sum(out, tuple(factors)), indices)

    def _add_product(self, out: str, indices: str, product: Factors) -> None:
        """Adds the statements for ``out = product``. If it has several tensors, the last one acts first, and the
        result of each but the first becomes a new signal.
        """
        whole = product[0]
        if len(product) == 1 and isinstance(whole, FunctionCall) and set(self._list_indices(whole)) <= set(indices):
            return self._add_function(out, indices, whole)
        kinds = ["function" if isinstance(x, FunctionCall) else self._classify(x) for x in product]
        if set(kinds) == {"multiplier"}:
            raise self.at.wrong(f"{_write_product(product)} multiplies nothing; a product needs a tensor or a signal")
        self._check_letters(indices, product)
        multipliers = tuple(x.name for x, kind in zip(product, kinds, strict=True) if kind == "multiplier")
        factors = []
        for k, (x, kind) in enumerate(zip(product, kinds, strict=True)):
            if isinstance(x, FunctionCall):
                outside = indices + "".join(map(self._list_indices, (*product[:k], *product[k + 1 :])))
                factors.append(("signal", self._lift_call(x, outside)))
            elif kind != "multiplier":
                factors.append((kind, self._make_factor(x)))
        while tensors := [k for k, (kind, _) in enumerate(factors) if kind == "tensor"]:
            at = tensors[-1]
            before, (_, tensor), after = factors[:at], factors[at], factors[at + 1 :]
            if len(tensors) == 1 and not after:
                before, after = after, before
            if not after:
                name = write_indexed(tensor.name, tensor.indices)
                read, _ = self.first.get(DATA, ("x", 0))
                bias = (
                    f"a bias acts on the data, as in {write_indexed(tensor.name, tensor.indices + read)} data[{read}]"
                )
                raise self.at.wrong(
                    f"no equation above computes {name}; if it is a tensor, it needs a factor on its right; {bias}"
                )
            acted = [f for _, f in after]
            if not before:
                return self._add_linear(out, indices, tensor, acted, multipliers)
            kept = {x for _, f in before for x in f.indices} | set(indices)
            there = dict.fromkeys("".join(f.indices for f in (tensor, *acted)))
            inner = Factor(self._make_name(), "".join(x for x in there if x in kept))
            self._add_linear(inner.name, inner.indices, tensor, acted, ())
            factors = [*before, ("signal", inner)]
        self._add(Product(out, tuple(f for _, f in factors), None, multipliers), indices)

    def _add_linear(
        self, out: str, kept: str, tensor: Factor, acted: Sequence[Factor], multipliers: tuple[str, ...]
    ) -> None:
        """Adds the statement ``out = multipliers * tensor * acted``, whose result has the indices ``kept``.

        The first use of a tensor determines its fan-in, fan-out and expert index.
        """
        symbol, indices = tensor.name, tensor.indices
        if symbol not in self.symbols:
            read = "".join(f.indices for f in acted)
            produced = "".join(x for x in indices if x in kept)
            bare = "".join(x for x in produced if self.axes[x] != "M")
            experts = next((x for x in produced if self.axes[x] == "M" and (x in read or bare)), "")
            shared = "".join(x for x in produced if x in read and x != experts)
            fan_out = "".join(x for x in produced if x != experts and x not in shared)
            fan_in = "".join(x for x in indices if x not in produced)
            self.symbols[symbol] = Tensor(symbol, indices, fan_in, fan_out, experts)
        role = self.roles.get(symbol, symbol)
        self._add(Product(out, tuple(acted), Factor(role, indices), multipliers), kept)

    def _add_function(self, out: str, indices: str, call: FunctionCall) -> None:
        """Adds the statement ``out = call``, after the statements that compute the argument of the call."""
        name = call.name
        if FUNCTIONS[name].kind == "noise":
            return self._add(Function(out, name), indices)
        source = self._find_lone_signal(call.argument[0]) if len(call.argument) == 1 else None
        if source is None:
            source = Factor(self._make_name(), indices)
            self._add_sum(source.name, indices, call.argument)
        if missing := [x for x in indices if x not in source.indices]:
            raise self.at.wrong(f"index {missing[0]!r} of {self.at.out.name} is not in {call}")
        self._add(Function(out, name, source, self._find_index(call, indices)), indices)

    def _find_index(self, call: FunctionCall, indices: str) -> str:
        """Returns the index that a function acts along: the one that the call names, or else the only one."""
        if call.over and call.over not in indices:
            raise self.at.wrong(f"{call.name} acts along index {call.over!r}, which its argument does not have")
        if needs_index(call.name) and not indices:
            raise self.at.wrong(f"{call.name} acts along an index, but its argument has none")
        if needs_index(call.name) and not call.over and len(indices) > 1:
            which = f"{', '.join(indices)}; say which, as in {call.name}(...; {indices[-1]})"
            raise self.at.wrong(f"{call.name} acts along a single index, but its argument has the indices {which}")
        return call.over or indices[-1:]

    def _lift_call(self, call: FunctionCall, outside: str) -> Factor:
        """Replaces a function call inside a product by a new signal, and adds the statements that compute it.

        The signal has those indices of the argument that are not summed inside it. These sums must not use any index in
        ``outside``, the indices of the result and of the other factors.
        """
        if FUNCTIONS[call.name].kind == "noise":
            raise self.at.wrong(f"{call.name}() has no indices inside a product; give it an equation of its own")
        kept, summed = self._split_indices(call)
        if both := [x for x in summed if x in outside]:
            raise self.at.wrong(f"index {both[0]!r} is summed in {call} and also used outside; rename it inside")
        inner = Factor(self._make_name(), kept)
        self._add_function(inner.name, inner.indices, call)
        return inner

    def _find_lone_signal(self, product: Factors) -> Factor | None:
        """Returns the signal if a product is a single signal, else None."""
        x = product[0]
        single = len(product) == 1 and isinstance(x, NamedTerm) and self._classify(x) == "signal"
        return self._make_factor(x) if single and isinstance(x, NamedTerm) else None

    def _check_letters(self, indices: str, product: Factors) -> None:
        """Checks that indices of the left side occur on the right, and that each index of a tensor occurs elsewhere,
        too."""
        tensors = [x for x in product if isinstance(x, NamedTerm) and self._classify(x) == "tensor"]
        for x in product:
            if isinstance(x, NamedTerm) and self._classify(x) != "multiplier":
                self._make_factor(x)
        for letter in indices:
            if not any(letter in self._list_indices(x) for x in product):
                raise self.at.wrong(f"index {letter!r} of {self.at.out.name} is not in {_write_product(product)}")
        for x in tensors:
            elsewhere = indices + "".join(self._list_indices(y) for y in product if y is not x)
            if lone := set(self._list_indices(x)) - set(elsewhere):
                raise self.at.wrong(
                    f"index {min(lone)!r} of {x} occurs in no other factor and not in {self.at.out.name}"
                )

    def _list_indices(self, x: NamedTerm | FunctionCall) -> str:
        """Returns the indices of a factor. For a function these are the indices of its argument that are not summed
        there.
        """
        return self._check_indices(x) if isinstance(x, NamedTerm) else self._split_indices(x)[0]

    def _split_indices(self, call: FunctionCall) -> tuple[str, str]:
        """Returns the indices that a function's argument keeps, and those that it sums."""
        products = ["".join(map(self._list_indices, factors)) for factors in call.argument]
        summed = "".join(c for indices in products for c in indices if indices.count(c) > 1)
        return "".join(c for c in dict.fromkeys("".join(products)) if c not in summed), summed

    # names -----------------------------------------------------------------------------------------------------

    def _classify(self, x: NamedTerm) -> str:
        """Returns ``signal``, ``tensor`` or ``multiplier``, and checks that a name is the same kind everywhere."""
        if x.name in self.steady or x.name in self.signals:
            return "signal"
        if x.name == self.at.out.name:
            raise self.at.wrong(f"{x.name} is computed from itself; give the left side another name")
        if x.name in self.made_in:
            raise self.at.wrong(f"{x.name} is used before it is computed in equation {self.made_in[x.name]}")
        if x.name in FUNCTIONS:
            raise self.at.wrong(f"{x.name} is a function; write {x.name}(...)")
        kind = "multiplier" if x.indices is None else "tensor"
        if kind == "multiplier" and x.name in {*AXES, *self.axes.values()} - set(FIXED):
            raise self.at.wrong(
                f"{x.name} is an axis, not a multiplier; write a multiplier such as alpha, whose power is then derived"
            )
        if self.kinds.setdefault(x.name, kind) != kind:
            raise self.at.wrong(
                f"{x.name} has indices only in some places; a tensor always has them, a multiplier never"
            )
        return kind

    def _check_indices(self, x: NamedTerm) -> str:
        """Returns the indices of a name, and checks that each has an axis and occurs once."""
        indices = x.indices or ""
        for letter in indices:
            if letter not in self.axes:
                raise self.at.wrong(f'index {letter!r} of {x} has no axis; add it to the axes, such as {letter} = "N"')
        if len(set(indices)) < len(indices):
            raise self.at.wrong(f"{x} has an index twice; diagonals of tensors are not supported")
        return indices

    def _make_factor(self, x: NamedTerm) -> Factor:
        """Returns a signal or tensor as a factor, and checks that its indices have the same axes everywhere."""
        indices = self._check_indices(x)
        first, number = self.first.setdefault(x.name, (indices, self.at.number))
        here, there = ([self.axes[c] for c in side] for side in (indices, first))
        if here != there:
            axes = " and ".join(", ".join(side) or "none" for side in (here, there))
            raise self.at.wrong(
                f"{x} does not fit {write_indexed(x.name, first)} of equation {number}: the axes are {axes}"
            )
        return Factor(x.name, indices)

    def _make_name(self) -> str:
        """Returns an unused name for a part of the present equation."""
        name, k = self.at.out.name, 1
        while f"{name}_{k}" in self.words:
            k += 1
        self.words.add(f"{name}_{k}")
        return f"{name}_{k}"

    def _add(self, statement: Statement, indices: str) -> None:
        self.signals[statement.out] = indices
        self.first[statement.out] = indices, self.at.number
        self.statements.append(statement)

    # the whole -------------------------------------------------------------------------------------------------

    def _check_reading(self) -> None:
        """Checks that every signal is used, that the output is a scalar, and that the data are read."""
        read = {x.name for s in self.statements for x in s.inputs}
        *others, last = self.equations
        self._check_losses(read)
        for e in others:
            if e.out.name not in read and e.out.name not in self.losses:
                alike = [x for x, t in self.symbols.items() if len(t.indices) == len(e.out.indices or "")]
                near = difflib.get_close_matches(e.out.name, alike, n=1)
                hint = f"is {near[0]} a misspelling of it?" if near else "the output is the last equation"
                raise e.wrong(f"{e.out.name} is never read; {hint}")
        if last.out.indices:
            raise last.wrong(
                f"the output {last.out} has indices; let the last equation compute a scalar, such as f = W[a] h[a]"
            )
        if not self.symbols:
            raise last.wrong(
                f"{last.out.name} depends on no tensor; a tensor is a name with indices that no equation computes"
            )
        for name in self.steady:
            if name not in read:
                what = "the input" if name == DATA else f"the constant {name}"
                raise last.wrong(f"no equation reads {what}; write one that does, such as h1[a] = W1[a,x] {name}[x]")

    def _check_losses(self, read: set[str]) -> None:
        """Checks that an auxiliary loss is a scalar with a weight, and that no equation reads it."""
        made = {s.out: s for s in self.statements}
        for name in self.losses:
            if name not in made or name in read or self.signals[name] or name == self.equations[-1].out.name:
                what = (
                    "is read"
                    if name in read
                    else "is the output, or has indices"
                    if name in made
                    else "is not computed"
                )
                raise UsageError(
                    f"losses: {name} {what}; a loss is a scalar that no equation reads, other than the output"
                )
            if not (isinstance(s := made[name], Product) and s.multipliers and not s.tensor):
                raise UsageError(f"losses: {name} has no weight; multiply it, as in {name} = weight load[i] phi[i]")

    def _check_roles(self) -> None:
        """Checks that roles belong to tensors, are valid names, and are distinct."""
        for symbol, role in self.roles.items():
            if self.kinds.get(symbol) == "multiplier":
                raise UsageError(f"roles: {symbol} is a multiplier, as it has no indices; only tensors have roles")
            if symbol not in self.symbols:
                raise UsageError(f"roles: {unknown_name_error('tensor', symbol, self.symbols)}")
            if not (isinstance(role, str) and ROLE.fullmatch(role)):
                raise UsageError(f"roles: {symbol} has the role {role!r}; give a name, such as expert_in")
            if role in self.steady or role in self.signals:
                raise UsageError(f"roles: {symbol} has the role {role}, but {role} is a signal; choose another name")
        symbol_of: dict[str, str] = {}
        for symbol in self.symbols:
            first = symbol_of.setdefault(self.roles.get(symbol, symbol), symbol)
            if first != symbol:
                role = self.roles.get(symbol, symbol)
                raise UsageError(
                    f"roles: {first} and {symbol} have the same role {role}; give each its own, "
                    "or tie them by using one tensor twice"
                )
