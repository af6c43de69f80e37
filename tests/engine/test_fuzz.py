"""Random networks: the engine against a written-out Wick sum, and against itself asked in other words.

``Expansion`` writes training of a network of products and sums out as tensor networks, with nothing of the engine but
the statements of the network, and sizes each of them by brute force.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from itertools import permutations
from itertools import product as choices
from math import prod

import pytest

from scaling_algebra.counting.algebra import Algebra
from scaling_algebra.counting.brute_force import TensorNetwork, half_weight, pairing_count, wick_two_copies
from scaling_algebra.counting.signals import Rung, Scalar, Signal
from scaling_algebra.dynamics import analysis
from scaling_algebra.dynamics.analysis import Analysis
from scaling_algebra.errors import UsageError
from scaling_algebra.spec.axes import AXES, Ray
from scaling_algebra.spec.networks.grammar import network
from scaling_algebra.spec.networks.language import DATA, Network, Product, Sum
from scaling_algebra.spec.networks.roles import adjoints
from scaling_algebra.spec.optimizers import OPTIMIZERS, Optimizer
from scaling_algebra.spec.scaling import Point

LETTERS = {"a": "N", "b": "N", "c": "N", "k": "N_e", "l": "N_e", "i": "M", "m": "M", "x": "D"}
RULES = ("sgd", "adam", "signsgd")
HALF = Fraction(1, 2)

# random networks ------------------------------------------------------------------------------------------------


class Writer:
    """Writes random equations: a grammar of tensors, products, sums, experts and, sparingly, functions."""

    def __init__(self, rng: random.Random, functions: bool = True) -> None:
        self.rng, self.functions = rng, functions
        self.signals, self.unread = {DATA: "x"}, [DATA]
        self.tensors: dict[str, str] = {}
        self.lines: list[str] = []

    def text(self) -> str:
        """Equations of 2 to 6 statements."""
        kinds = ["tensor"] * 8 + ["product"] * 3 + ["sum"] * 3 + ["experts"] * 2 + ["function"] * 2 * self.functions
        self.tensor()
        for _ in range(self.rng.choice((0, 1, 1, 2, 2, 2, 3, 3, 4))):
            getattr(self, self.rng.choice(kinds))()
        terms = []
        while self.unread:
            u = self.unread.pop(0)
            alike = [v for v in self.unread if self.types(self.signals[v]) == self.types(self.signals[u])]
            if alike and self.rng.random() < 0.3:
                self.unread.remove(alike[0])
                terms.append(f"{self.multiplier()}{self.at(u)} {self.named(alike[0], self.signals[u])}")
            else:
                terms.append(f"{self.used(self.signals[u])} {self.at(u)}")
        self.lines.append(f"f = {' + '.join(terms)}")
        return "\n".join(self.lines)

    def tensor(self) -> None:
        u = self.pick()
        own = self.signals[u]
        kept = "".join(x for x in own if LETTERS[x] == "M" and self.rng.random() < 0.7)
        new = self.fresh(own)
        line = f"{self.multiplier(0.2)}{self.used(new + own, new)} {self.at(u)}"
        self.made(kept + new, line)

    def product(self) -> None:
        u, v = self.pick(), self.pick()
        both = "".join(dict.fromkeys(self.signals[u] + self.signals[v]))
        out = "".join(x for x in both if self.rng.random() < 0.6) or both[:1]
        if out != "x":
            self.made(out, f"{self.multiplier()}{self.at(u)} {self.at(v)}")

    def sum(self) -> None:
        u = self.pick()
        own = self.signals[u]
        alike = [v for v in self.signals if v not in (u, DATA) and sorted(self.signals[v]) == sorted(own)]
        if u == DATA:
            return
        if alike and self.rng.random() < 0.5:
            return self.made(own, f"{self.at(u)} + {self.at(self.rng.choice(alike))}")
        at = self.rng.randrange(len(own))
        other = next((x for x in LETTERS if LETTERS[x] == LETTERS[own[at]] and x not in own), None)
        if other is not None:
            read = own.replace(own[at], other)
            kept = "".join(x for x in own if x == own[at] or self.rng.random() < 0.3)
            self.made(own, f"{self.at(u)} + {self.used(kept + other, kept)} {self.named(u, read)}")

    def experts(self) -> None:
        u = self.pick()
        own = self.signals[u]
        if "i" in own or u == DATA:
            return
        gate = self.name()
        inner = self.used("i" + own, "i") + " " + self.at(u)
        self.made("i", f"{self.rng.choice(('gate', 'sigmoid'))}({inner})" if self.functions else inner, gate)
        k = "k" if "k" not in own else "l"
        h = self.name()
        self.made("i" + k, f"{self.used('i' + k + own, 'i' + k)} {self.at(u)}", h)
        out = self.rng.choice("ab")
        self.unread = [x for x in self.unread if x not in (gate, h)]
        self.made(out, f"alpha {self.at(gate)} {self.used('i' + out + k, out)} {self.at(h)}")

    def function(self) -> None:
        u = self.pick()
        if u == DATA:
            return
        own = self.signals[u]
        name = self.rng.choice(("tanh", "relu", "silu", "rmsnorm", "sigmoid", "softmax"))
        along = f"; {self.rng.choice(own)}" if name in ("rmsnorm", "softmax") else ""
        self.made(own, f"{name}({self.at(u)}{along})")

    def pick(self) -> str:
        """A signal to read, mostly one that nothing has read yet."""
        pool = self.unread if self.unread and self.rng.random() < 0.75 else list(self.signals)
        found = self.rng.choice(pool[-2:])
        self.unread = [x for x in self.unread if x != found]
        return found

    def fresh(self, taken: str) -> str:
        pool = [x for x in "abkaikbl" if x not in taken]
        return "".join(dict.fromkeys(self.rng.sample(pool, self.rng.choice((1, 1, 1, 2)))))

    def used(self, letters: str, out: str = "") -> str:
        """A tensor with these letters: a new one, or one of before whose axes they fit."""
        letters = "".join(dict.fromkeys(letters))
        fits = [w for w, own in self.tensors.items() if self.types(own) == self.types(letters)]
        if fits and self.rng.random() < 0.5:
            return self._fitted(self.rng.choice(fits), letters)
        name = f"W{len(self.tensors) + 1}"
        self.tensors[name] = letters
        return self.indexed(name, letters)

    def _fitted(self, name: str, letters: str) -> str:
        pool = self.rng.sample(letters, len(letters))
        found = ""
        for x in self.tensors[name]:
            y = next(y for y in pool if LETTERS[y] == LETTERS[x])
            pool.remove(y)
            found += y
        return self.indexed(name, found)

    def multiplier(self, chance: float = 0.5) -> str:
        return self.rng.choice(("alpha ", "beta ")) if self.rng.random() < chance else ""

    def types(self, letters: str) -> list[str]:
        return sorted(LETTERS[x] for x in letters)

    def name(self) -> str:
        return f"h{len(self.signals)}"

    def made(self, letters: str, right: str, name: str = "") -> None:
        name = name or self.name()
        self.lines.append(f"{self.indexed(name, letters)} = {right}")
        self.signals[name] = letters
        self.unread.append(name)

    def at(self, signal: str) -> str:
        return self.indexed(signal, self.signals[signal])

    def named(self, signal: str, letters: str) -> str:
        """A signal in other letters of the same axes."""
        pool, found = list(letters), ""
        for x in self.signals[signal]:
            y = next(y for y in pool if LETTERS[y] == LETTERS[x])
            pool.remove(y)
            found += y
        return self.indexed(signal, found)

    @staticmethod
    def indexed(name: str, letters: str) -> str:
        return f"{name}[{','.join(letters)}]"


@dataclass(frozen=True)
class Case:
    """A training run to ask about."""

    text: str
    ray: Ray
    rule: str
    point: Point

    @property
    def network(self) -> Network:
        return network("random", self.text, LETTERS)

    @property
    def optimizer(self) -> Optimizer:
        return OPTIMIZERS[self.rule]

    def analysis(self) -> Analysis:
        return Analysis(self.ray, self.point, self.optimizer, self.network)

    def __str__(self) -> str:
        sizes = [f"{x}: {dict(getattr(self.point, x))}" for x in ("b", "c", "d", "multipliers")]
        return "\n".join([self.text, f"ray {self.ray}, {self.rule}", *sizes, f"tied: {set(self.point.tied)}"])


def random_case(rng: random.Random, functions: bool = True, ray: Ray | None = None) -> Case:
    """A random network, ray, optimizer and point."""
    while True:
        text = Writer(rng, functions).text()
        try:
            net = network("random", text, LETTERS)
        except UsageError:
            continue
        break
    if ray is None:
        rates = {axis: rng.choice((0, HALF, 1, 1, Fraction(3, 2))) for axis in ("N", "N_e", "M")}
        ray = Ray(rates if any(rates.values()) else {**rates, "N": 1})
    small = [Fraction(k, 2) for k in range(-1, 4)]
    b = {role: None if rng.random() < 0.08 else rng.choice(small) for role in net.tensors}
    c = {role: rng.choice(small) for role in net.tensors}
    d = {role: rng.choice(small) for role in net.tensors}
    tied = frozenset(role for role, t in net.tensors.items() if t.experts and rng.random() < 0.2)
    point = Point(b, c, d, {m: rng.choice(small) for m in net.free_multipliers}, tied)
    return Case(text, ray, rng.choice(RULES), point)


# written out ----------------------------------------------------------------------------------------------------

Index = tuple[str, int]
"""An axis with a number: below 0 an open index by its position, else a summed one."""
Monomial = tuple[tuple[str, tuple[Index, ...]], ...]
Poly = dict[Monomial, Fraction]
"""Products of initial tensors with the exponents of their coefficients; all coefficients are taken as positive."""


class TooLarge(Exception):
    """Too much to write out."""


class Expansion:
    """Signals of a network of products and sums, written out to products of initial tensors; assumes that a step of an
    optimizer that normalises is along the gradient."""

    def __init__(self, case: Case, most: int = 250) -> None:
        self.net, self.case, self.most = case.network, case, most
        self.kept: dict[tuple[str, str, int], Poly] = {}

    def rate(self, axis: str) -> Fraction:
        return self.case.ray[axis] if axis in AXES else Fraction(0)

    def tensor(self, role: str, t: int) -> Poly:
        if t == 0:
            own, b = self.net.tensors[role], self.case.point.b[role]
            live = [k for k, x in enumerate(own.letters) if role not in self.case.point.tied or x != own.experts]
            leaf = (role, tuple((self.net.axes[own.letters[k]], -1 - k) for k in live))
            return {} if b is None else {(leaf,): -b}
        return self._remembered(
            "tensor", role, t, lambda: self._add([self.tensor(role, t - 1), self.step(role, t - 1)])
        )

    def update(self, role: str, t: int) -> Poly:
        return self._add([self.step(role, s) for s in range(t)])

    def step(self, role: str, t: int) -> Poly:
        grad = self.gradient_of(role, t)
        if not grad:
            return {}
        scale = -self.case.point.c[role]
        rule = self.case.optimizer
        if rule.normalises:
            sizes = [self.size(self.gradient_of(role, s), role) for s in (range(t + 1) if rule.memory else (t,))]
            floor = [-self.case.point.d[role]] if rule.epsilon else []
            scale -= max(x for x in (*sizes, *floor) if x is not None)
        return {m: e + scale for m, e in grad.items()}

    def value(self, signal: str, t: int) -> Poly:
        if signal == DATA:
            return {(): Fraction(0)}
        return self._remembered("value", signal, t, lambda: self._value(signal, t))

    def change(self, signal: str, t: int) -> Poly:
        """What each tensor's update adds, all combinations: the value without its part at initial values."""
        if signal == DATA:
            return {}
        return self._remembered("change", signal, t, lambda: self._change(signal, t))

    def _value(self, signal: str, t: int) -> Poly:
        s = self.net.producer(signal)
        out = self.net.signals[signal]
        if isinstance(s, Sum):
            return self._add([self.multiply([(self.value(x.name, t), x.letters)], out, ()) for x in s.terms])
        assert isinstance(s, Product)
        parts = [(self.value(x.name, t), x.letters) for x in s.factors]
        if s.tensor:
            parts.append((self.tensor(s.tensor.name, t), s.tensor.letters))
        return self.multiply(parts, out, s.multipliers)

    def _change(self, signal: str, t: int) -> Poly:
        s = self.net.producer(signal)
        out = self.net.signals[signal]
        if isinstance(s, Sum):
            return self._add([self.multiply([(self.change(x.name, t), x.letters)], out, ()) for x in s.terms])
        assert isinstance(s, Product)
        sides = [(self.value(x.name, 0), self.change(x.name, t), x.letters) for x in s.factors]
        if s.tensor:
            role = s.tensor.name
            sides.append((self.tensor(role, 0), self.update(role, t), s.tensor.letters))
        whole = []
        for which in choices((0, 1), repeat=len(sides)):
            if any(which):
                whole.append(
                    self.multiply([(x[w], x[2]) for x, w in zip(sides, which, strict=True)], out, s.multipliers)
                )
        return self._add(whole)

    def gradient(self, signal: str, t: int) -> Poly:
        if signal == self.net.output:
            return {(): Fraction(0)}
        return self._remembered("gradient", signal, t, lambda: self._gradient(signal, t))

    def _gradient(self, signal: str, t: int) -> Poly:
        paths = []
        own = self.net.signals[signal]
        for s in self.net.statements:
            for k, x in enumerate(s.inputs):
                if x.name == signal:
                    parts = [(self.gradient(s.out, t), self.net.signals[s.out])]
                    multipliers: tuple[str, ...] = ()
                    if isinstance(s, Product):
                        multipliers = s.multipliers
                        parts += [(self.value(y.name, t), y.letters) for j, y in enumerate(s.factors) if j != k]
                        if s.tensor:
                            parts.append((self.tensor(s.tensor.name, t), s.tensor.letters))
                    found = self.multiply(parts, x.letters, multipliers)
                    paths.append(found)
        assert all(len(own) == len(x.letters) for s in self.net.statements for x in s.inputs if x.name == signal)
        return self._add(paths)

    def gradient_of(self, role: str, t: int) -> Poly:
        """Derivative with respect to a tensor."""
        uses = []
        for s in self.net.statements:
            if isinstance(s, Product) and s.tensor and s.tensor.name == role:
                parts = [(self.gradient(s.out, t), self.net.signals[s.out])]
                parts += [(self.value(y.name, t), y.letters) for y in s.factors]
                uses.append(self.multiply(parts, s.tensor.letters, s.multipliers))
        return self._add(uses)

    def multiply(self, parts: list[tuple[Poly, str]], out: str, multipliers: tuple[str, ...]) -> Poly:
        """The product, letters missing from ``out`` summed."""
        free = self.net.free_multipliers
        scale = -sum((self.case.point.multipliers.get(m, Fraction(0)) for m in multipliers if m in free), Fraction(0))
        letters = dict.fromkeys("".join(x for _, x in parts) + out)
        index = {x: (self.net.axes[x], -1 - out.index(x) if x in out else k) for k, x in enumerate(letters)}
        found: Poly = {}
        if prod(len(p) for p, _ in parts) > 40 * self.most:
            raise TooLarge
        for chosen in choices(*(p.items() for p, _ in parts)):
            e, leaves = scale, []
            for n, ((monomial, size), (_, own)) in enumerate(zip(chosen, parts, strict=True)):
                e += size
                for name, indices in monomial:
                    moved = ((i[0], i[1] + 1000 * (n + 1)) if i[1] >= 0 else index[own[-1 - i[1]]] for i in indices)
                    leaves.append((name, tuple(moved)))
            touched = {i for _, indices in leaves for i in indices}
            e += sum(
                (self.rate(axis) for axis, k in index.values() if k >= 0 and (axis, k) not in touched), Fraction(0)
            )
            key = self._ordered(leaves)
            found[key] = max(e, found.get(key, e))
        return self._bounded(found)

    def size(self, poly: Poly, role: str = "", signal: str = "") -> Fraction | None:
        """Exponent of the root-mean-square: coefficients are positive, so the largest monomial's."""
        letters = self.net.tensors[role].letters if role else self.net.signals[signal]
        opens = [(self.net.axes[x], -1 - k) for k, x in enumerate(letters)]
        sizes = [e + self._size(m, opens) for m, e in poly.items()]
        return max(sizes, default=None)

    def _size(self, monomial: Monomial, opens: list[Index]) -> Fraction:
        symbols: dict[Index, str] = {}
        for i in [*opens, *(i for _, indices in monomial for i in indices)]:
            symbols.setdefault(i, chr(ord("A") + len(symbols)))
        leaves = tuple((name, "".join(symbols[i] for i in indices)) for name, indices in monomial)
        net = TensorNetwork(
            leaves, "".join(symbols[i] for i in opens), {x: self.rate(i[0]) for i, x in symbols.items()}
        )
        count = pairing_count([name for name, _ in leaves])
        if count > 60_000:
            raise TooLarge
        return wick_two_copies(net) if count <= 60 else half_weight(net)

    def _ordered(self, leaves: list[tuple[str, tuple[Index, ...]]]) -> Monomial:
        """One way to number what is summed, the same for most equal monomials."""
        plain = sorted(leaves, key=lambda leaf: (leaf[0], [(i[0], min(i[1], 0)) for i in leaf[1]]))
        number: dict[Index, int] = {}
        for _, indices in plain:
            for i in indices:
                if i[1] >= 0:
                    number.setdefault(i, len(number))
        return tuple((name, tuple((i[0], number.get(i, i[1])) for i in indices)) for name, indices in plain)

    def _add(self, polys: list[Poly]) -> Poly:
        found: Poly = {}
        for poly in polys:
            for m, e in poly.items():
                found[m] = max(e, found.get(m, e))
        return self._bounded(found)

    def _bounded(self, poly: Poly) -> Poly:
        if len(poly) > self.most:
            raise TooLarge
        return poly

    def _remembered(self, what: str, name: str, t: int, compute) -> Poly:
        key = (what, name, t)
        if key not in self.kept:
            self.kept[key] = compute()
        return self.kept[key]

    @cached_property
    def gradients(self) -> dict[str, str]:
        """Names of the gradient quantities, with their signals."""
        return {x.name: x.signal for x in adjoints(self.net) if not x.via}

    def asked(self, t: int) -> dict[str, Fraction | None]:
        """Exponents of all quantities that are written out here; None where one is exactly zero."""
        found = {s.out: self.size(self.value(s.out, t), signal=s.out) for s in self.net.statements}
        found |= {name: self.size(self.gradient(x, t), signal=x) for name, x in self.gradients.items()}
        found |= {f"g{x}": self.size(self.gradient_of(x, t), role=x) for x in self.net.tensors}
        if t:
            found |= {f"{s.out}.change": self.size(self.change(s.out, t), signal=s.out) for s in self.net.statements}
            found |= {f"d{x}": self.size(self.update(x, t), role=x) for x in self.net.tensors}
        return found


def wrong(case: Case, steps: int) -> tuple[list[tuple[str, int, Fraction | None, Fraction | None]], int, int]:
    """Certified exponents that are not those of the written-out sum; how many were compared, and how many undecided."""
    engine, expansion = case.analysis(), Expansion(case)
    found, compared, undecided = [], 0, 0
    for t in range(steps + 1):
        try:
            exact = expansion.asked(t)
        except TooLarge:
            break
        for name, size in exact.items():
            answer = engine(name, t)
            if not answer.decided:
                undecided += 1
                continue
            compared += 1
            if answer.size != size:
                found.append((name, t, answer.size, size))
    return found, compared, undecided


@pytest.mark.parametrize("seed", range(16))
def test_certified_exponents_are_those_of_the_sum_written_out(seed):
    rng, compared = random.Random(seed), 0
    for k in range(8):
        case = random_case(rng, functions=False)
        found, count, _ = wrong(case, steps=int(k < 2))
        assert not found, f"{case}\n{found}"
        compared += count
    assert compared > 50


# asked in other words -------------------------------------------------------------------------------------------


def asked(case: Case, steps: int, order: random.Random | None = None) -> dict[tuple[str, int], Fraction | None]:
    """Certified exponents of all quantities."""
    engine = case.analysis()
    questions = [(name, t) for t in range(steps + 1) for name in engine.table]
    if order is not None:
        order.shuffle(questions)
    return {(name, t): answer.size for name, t in questions if (answer := engine(name, t)).decided}


def relettered(case: Case, rng: random.Random) -> Case:
    """Other letters of the same axes, chosen anew in every equation."""

    def line(text: str) -> str:
        to = {}
        for axis in set(LETTERS.values()):
            own = [x for x in LETTERS if LETTERS[x] == axis]
            to |= dict(zip(own, rng.sample(own, len(own)), strict=True))
        text = re.sub(r"\[([^\]]*)\]", lambda m: f"[{','.join(to[x] for x in m[1].split(','))}]", text)
        return re.sub(r"; (\w)\)", lambda m: f"; {to[m[1]]})", text)

    return _rewritten(case, "\n".join(map(line, case.text.splitlines())))


def reordered(case: Case, rng: random.Random) -> Case:
    """The terms of every sum in another order."""

    def line(text: str) -> str:
        left, right = text.split(" = ")
        terms = right.split(" + ")
        return f"{left} = {' + '.join(rng.sample(terms, len(terms)))}"

    return _rewritten(case, "\n".join(map(line, case.text.splitlines())))


def passed_on(case: Case, rng: random.Random) -> Case:
    """One reading of a signal goes through an identity."""
    lines = case.text.splitlines()
    made = [(k, re.match(r"(\w+)(\[[^\]]*\])", line)) for k, line in enumerate(lines[:-1])]
    k, signal = rng.choice([(k, m) for k, m in made if m])
    readers = [j for j in range(k + 1, len(lines)) if re.search(rf"\b{signal[1]}\[", lines[j].split(" = ")[1])]
    at = rng.choice(readers)
    left, right = lines[at].split(" = ")
    lines[at] = f"{left} = " + re.sub(rf"\b{signal[1]}\[", "same[", right, count=1)
    lines.insert(at, f"same{signal[2]} = {signal[1]}{signal[2]}")
    return _rewritten(case, "\n".join(lines))


def _rewritten(case: Case, text: str) -> Case:
    """The same point for the multipliers that are still free."""
    return Case(text, case.ray, case.rule, case.point)


def differences(case: Case, other: Case, steps: int, seed: int) -> list[tuple[object, ...]]:
    """Quantities that both decide, and not alike."""
    first, second = asked(case, steps), asked(other, steps, random.Random(seed))
    made = [line.split("[")[0].split(" = ")[0] for line in case.text.splitlines()]
    named = {x for name in made for x in (name, f"{name}.change")}
    named |= {f"{x}{role}" for role in case.network.tensors for x in "dg"}
    named |= {x.name for x in adjoints(case.network) if x.signal in made and not x.via}
    return [
        (key, size, second[key])
        for key, size in first.items()
        if key in second and key[0] in named and second[key] != size
    ]


WORDS = {"relettered": relettered, "reordered": reordered, "passed_on": passed_on}


@pytest.mark.parametrize("how", WORDS)
def test_the_same_network_in_other_words_has_the_same_exponents(how):
    for seed in range(2, 12):
        rng = random.Random(seed)
        case = random_case(rng)
        found = differences(case, WORDS[how](case, rng), 1, seed)
        assert not found, f"{case}\n{found}"


# planted errors -------------------------------------------------------------------------------------------------


def test_without_a_certificate_the_sum_written_out_disagrees(monkeypatch):
    """Negative control: only the largest kernel of every signal is kept, and every answer passes as certified."""
    monkeypatch.setattr(analysis, "LADDER", (Rung(Fraction(0), most=1),))
    monkeypatch.setattr(Algebra, "certified", lambda self, s: True)
    assert any(wrong(random_case(random.Random(seed), functions=False), 1)[0] for seed in range(40))


def vectors(gap: int = 0) -> tuple[Algebra, Signal, Signal]:
    """Two independent Gaussian vectors of one letter, on a ray where its axis is n."""
    algebra = Algebra(Ray({"N": 1}), {"a": "N", "b": "N"}, [], Fraction(0)).at(Rung(Fraction(gap)))
    return algebra, algebra.tensor("U", "a", 0), algebra.tensor("V", "a", 0)


def test_pairs_that_a_product_skips_are_bounded():
    """(U + V/n) V: the second product, of exponent 0, lies below the first, 1/2, by more than the gap."""
    algebra, u, v = vectors()
    small = algebra.scaled(v, Scalar("1/n", algebra.pack(Fraction(-1), {}, {})))
    for left, right in permutations((algebra.at(Rung(Fraction(5))).add([u, small]), v)):
        whole = algebra.contract(left, right, "")
        assert algebra.value(algebra.rms(whole)) == HALF and algebra.certified(whole)
        assert len(whole.terms) == 1 and whole.tail is not None and algebra.value(whole.tail) >= 0


def test_what_either_factor_dropped_is_bounded_in_their_product():
    """V may have dropped something as large as n^(1/2), all of it along U: then U V is n^(3/2), not n^(1/2). Where all
    that was dropped is known to be independent of U, it is n."""
    algebra, u, v = vectors()
    for depends, exponent in ((None, 3 * HALF), (frozenset("V"), 2 * HALF), (frozenset("UV"), 3 * HALF)):
        loose = replace(v, tail=algebra.pack(HALF, {}, {}), depends=depends)
        for left, right in permutations((u, loose)):
            whole = algebra.contract(left, right, "")
            assert not algebra.certified(whole) and algebra.value(algebra.bound(whole)) == exponent


def test_nothing_above_the_leading_exponent_is_certified():
    """A bound that lies above it by any amount, however small."""
    algebra, u, _ = vectors()
    for above in (Fraction(-1, 8), Fraction(0), Fraction(1, 8), HALF):
        assert algebra.certified(replace(u, tail=algebra.pack(above, {}, {}))) == (above <= 0)


def test_a_normaliser_with_memory_holds_the_largest_past_gradient():
    """h2 grows by n in the first step, so that the gradient through its norm shrinks by n: Adam's second step is as
    much smaller than its first, that of a sign is not."""
    text = "h1[a] = W1[a,x] data[x]\nh2[b] = W2[b,a] h1[a]\nh3[b] = rmsnorm(h2[b])\nf = W3[b] h3[b]"
    b = {"W1": Fraction(0), "W2": HALF, "W3": HALF}
    c = {"W1": Fraction(3), "W2": Fraction(0), "W3": Fraction(3)}
    for rule, second in (("adam", -1), ("lion", -1), ("signsgd", 0)):
        case = Case(text, Ray({"N": 1}), rule, Point(b, c, dict.fromkeys(b, Fraction(9)), {}))
        run = case.analysis().run("dW2", 2)
        sizes = {step.step: run.algebra.value(size) for step, size in run.update_sizes("W2", 2)}
        assert sizes == {0: 0, 1: second}, rule


def test_gates_that_moved_count_at_the_present_step():
    """f = sum_i p_i h_i of two experts that move: what its gates add is not zero once they moved."""
    text = "h1[a] = W1[a,x] data[x]\np[i] = sigmoid(W2[i,a] h1[a])\nh2[i] = W3[i,a] h1[a]\nf = p[i] h2[i]"
    b = {"W1": Fraction(0), "W2": HALF, "W3": HALF}
    case = Case(text, Ray({"N": 1, "M": 0}), "sgd", Point(b, dict.fromkeys(b, Fraction(1)), {}, {}))
    engine = case.analysis()
    assert engine("f.regated", 0).zero and engine("f.regated", 1).size == 0


def test_the_square_of_a_change_is_a_part_of_it():
    """silu from zero: sum_a of the change is n^(1/2) in its linear part, which is along V, and n in its square."""
    text = "h1[a] = W1[a,x] data[x]\nh2[a] = silu(h1[a])\nm = h2[a]\nn[b] = U[b] m\nf = V[a] h2[a] + W2[b] n[b]"
    b = {"W1": None, "V": Fraction(0), "U": Fraction(9), "W2": Fraction(9)}
    engine = Case(text, Ray({"N": 1}), "sgd", Point(b, dict.fromkeys(b, Fraction(0)), {}, {})).analysis()
    assert (engine("h1.change", 1).size, engine("m.change", 1).size) == (0, 1)
