"""Equations against numbers: what statements compute is what the text says, for shipped and random networks."""

import random
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scaling_algebra.errors import UsageError
from scaling_algebra.spec.networks.grammar import network
from scaling_algebra.spec.networks.language import DATA, Function, Sum
from scaling_algebra.spec.networks.library import ARCHITECTURES, AXES, TEXTS
from scaling_algebra.spec.networks.parsing import FunctionCall, parse_equation
from scaling_algebra.spec.networks.printing import as_text

SIZES = {x: 2 + k % 3 for k, x in enumerate(dict.fromkeys(AXES.values()))}


def softmax(x, axis):
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def applied(name, x, axis):
    if "softmax" in name:
        return softmax(x, axis)
    if "norm" in name:
        return x / np.sqrt((x**2).mean(axis, keepdims=True) + 1)
    return np.tanh(x) + 0.1 * len(name)


class Arrays:
    """Random arrays for tensors, multipliers and data by name."""

    def __init__(self, axes):
        self.axes, self.known = axes, {}

    def shape(self, indices):
        return tuple(SIZES[self.axes[x]] for x in indices)

    def get(self, name, indices):
        if name not in self.known:
            self.known[name] = np.random.default_rng(sum(map(ord, name))).normal(size=self.shape(indices))
        return self.known[name]


def by_text(text, axes, arrays):
    """The output, from the equations as written: one sum over all letters of a product at once."""
    made = {}

    def value(terms, indices):
        return sum(product(factors, indices) for factors in terms)

    def call(x, indices):
        if not x.argument:
            return np.ones(arrays.shape(indices))
        over = indices.index(x.over or indices[-1]) if indices else None
        return applied(x.name, value(x.argument, indices), over)

    def letters_of(x):
        """Of a function: those that are in each product once."""
        if not isinstance(x, FunctionCall):
            return x.indices or ""
        products = ["".join(map(letters_of, factors)) for factors in x.argument]
        return "".join(dict.fromkeys(c for p in products for c in p if all(q.count(c) < 2 for q in products)))

    def product(factors, indices):
        x = factors[0]
        if len(factors) == 1 and isinstance(x, FunctionCall) and set(letters_of(x)) <= set(indices):
            return call(x, indices)
        parts = []
        for x in factors:
            own = letters_of(x)
            array = call(x, own) if isinstance(x, FunctionCall) else made.get(x.name)
            parts.append((own, arrays.get(x.name, own) if array is None else array))
        return np.einsum(",".join(own for own, _ in parts) + "->" + indices, *(array for _, array in parts))

    for line in text.splitlines():
        if line := " ".join(line.partition("#")[0].split()):
            e = parse_equation(1, line)
            made[e.out.name] = value(e.terms, e.out.indices or "")
    return float(made[e.out.name])


def by_statements(n, arrays):
    """The output, statement by statement."""
    made = {DATA: arrays.get(DATA, n.signals[DATA])}

    def read(x, out=None):
        return np.einsum(f"{x.indices}->{out or x.indices}", made[x.name])

    for s in n.statements:
        indices = n.signals[s.out]
        if isinstance(s, Function):
            axis = indices.index(s.over) if s.over else None
            made[s.out] = applied(s.name, read(s.source, indices), axis) if s.source else np.ones(arrays.shape(indices))
        elif isinstance(s, Sum):
            made[s.out] = sum(read(x, indices) for x in s.terms)
        else:
            parts = [(x.indices, made[x.name]) for x in s.factors]
            parts += [("", arrays.get(m, "")) for m in s.multipliers]
            if s.tensor:
                parts.append((s.tensor.indices, arrays.get(n.tensors[s.tensor.name].symbol, s.tensor.indices)))
            made[s.out] = np.einsum(",".join(own for own, _ in parts) + "->" + indices, *(array for _, array in parts))
    return float(made[n.output])


def agree(text, roles=None, title=""):
    n = network("tried", text, AXES, roles, title)
    arrays = Arrays(n.axes)
    found = by_statements(n, arrays)
    assert found == pytest.approx(by_text(text, n.axes, arrays), rel=1e-9, abs=1e-12)
    again = network(n.name, as_text(n), n.axes, {t.symbol: role for role, t in n.tensors.items()}, n.title)
    assert again == n


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_shipped_networks(name):
    agree(TEXTS[name]["equations"], TEXTS[name]["roles"], TEXTS[name]["title"])


def test_other_equations_have_other_numbers():
    """Negative control."""
    n, text = ARCHITECTURES["swiglu"], TEXTS["swiglu"]["equations"]
    for wrong in (text.replace("W2[i,k,a] h1[a]", "W2[i,k,b] h1[b] h1[b]"), text.replace("silu", "tanhh")):
        assert by_text(wrong, AXES, Arrays(AXES)) != pytest.approx(by_statements(n, Arrays(AXES)), rel=1e-6)


def anything(rng):
    """A network of random products, sums and functions; some texts are refused."""
    pool, signals, lines = "abikjs", {"h": "a"}, ["h[a] = W[a,x] data[x]"]

    def named(name, indices):
        return f"{name}[{','.join(indices)}]" if indices else name

    def product(out, depth, indices):
        """A tensor that reads a signal, and other factors between."""
        read = rng.choice(list(signals))
        own = "".join(
            rng.choice([y for y in pool if AXES[y] == AXES[x] and y not in indices] or pool) for x in signals[read]
        )
        tensor = "".join(dict.fromkeys(indices + own))
        factors = [named(f"V{rng.randrange(999)}", "".join(rng.sample(tensor, len(tensor)))), named(read, own)]
        for _ in range(rng.choice([0, 0, 1, 2])):
            some = "".join(rng.sample(tensor, min(len(tensor), rng.randint(1, 2))))
            plain = rng.choice(["alpha", named(f"U{rng.randrange(999)}", some)])
            more = function(out, depth + 1, some) if depth < 2 and rng.random() < 0.5 else plain
            factors.insert(rng.randint(0, len(factors)), more)
        return " ".join(factors)

    def function(out, depth, indices):
        over = f"; {rng.choice(indices)}" if indices and rng.random() < 0.7 else ""
        return f"{rng.choice(['tanh', 'softmax', 'silu'])}({total(out, depth, indices)}{over})"

    def total(out, depth, indices):
        terms = [function(out, depth + 1, indices)] if depth < 2 and rng.random() < 0.3 else []
        return " + ".join(terms + [product(out, depth, indices) for _ in range(rng.choice([1, 1, 2]))])

    for k in range(rng.randint(1, 3)):
        out, indices = f"s{k}", "".join(rng.sample(pool, rng.randint(1, 2)))
        lines.append(f"{named(out, indices)} = {total(out, 0, indices)}")
        signals[out] = indices
    unread = [x for x in signals if not any(re.search(rf"\b{x}\b", y.partition("=")[2]) for y in lines)]
    lines.append("f = " + " + ".join(f"{named(f'T{x}', signals[x])} {named(x, signals[x])}" for x in unread))
    return "\n".join(lines)


def test_random_networks():
    """Negative control of the count: enough of them are accepted, with a function in a product."""
    rng, accepted, inside = random.Random(1), 0, 0
    for _ in range(600):
        text = anything(rng)
        try:
            agree(text)
        except UsageError:
            continue
        accepted += 1
        inside += bool(re.search(r"[\])] (tanh|silu|softmax)\(", text))
    assert accepted > 80 and inside > 8


WORDS = ["h1[a]", "h2[b]", "W[a,x]", "V[b,a]", "data[x]", "alpha", "tanh(", "softmax(", ")", "; a", "=", "+", "*"]
WORDS += ["-", "[", "]", ",", "(", "#", "\n", "\t", "2", "f", "N", "φ", "'", '"', "noise()", "h1", "data", "%", "\\"]
WORDS += ["{x}", "silu"]


@settings(max_examples=400, deadline=None)
@given(st.lists(st.sampled_from(WORDS), max_size=14))
def test_any_text_is_a_network_or_one_line(words):
    for text in (" ".join(words), "h1[a] = W[a,x] data[x]\nh2[b] = " + " ".join(words) + "\nf = U[b] h2[b]"):
        try:
            agree(text)
        except UsageError as error:
            assert "\n" not in str(error) and len(str(error)) < 500
