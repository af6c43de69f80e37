"""Random networks of the language, as plain data that both the engine and the interpreter read.

Nothing of the engine is used here but the text that its users write: equations, or a file of TOML.
Read next: ``interpreter.py`` (trains a case), ``judge.py`` (compares), ``campaign.py`` (draws, trains, compares).
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction

AXES = {"a": "N", "b": "N", "c": "N", "d": "N", "k": "N_e", "l": "N_e", "i": "M", "m": "M", "x": "D", "t": "S"}
"""Axis of every letter."""
ENTRYWISE = ("tanh", "sigmoid", "silu", "gelu", "relu")
ALONG = ("softmax", "rmsnorm", "layernorm", "topk_sigmoid", "topk_softmax")
OPTIMIZERS = ("sgd", "adam", "signsgd", "adam-negligible", "lion", "muon", "shampoo", "momentum", "adamw", "rmsprop")
OPTIMIZERS += ("adafactor",)
HALF = Fraction(1, 2)

Read = tuple[str, str]
"""A signal, or a tensor (its name starts with a capital), with the letters it has there."""


@dataclass(frozen=True)
class Line:
    """One equation: ``out[letters] = kind of reads``.

    Attributes:
        kind: ``product`` or ``sum`` of what it reads, or the name of a function.
        over: the letter that a function goes along.
        multipliers: names of factors without letters.
    """

    out: str
    indices: str
    kind: str
    reads: tuple[Read, ...]
    over: str = ""
    multipliers: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        reads = [indexed(*x) for x in self.reads]
        if self.kind == "sum":
            right = " + ".join(reads)
        elif self.kind == "product":
            right = " ".join((*self.multipliers, *reads))
        else:
            right = f"{self.kind}({reads[0]}{'; ' + self.over if self.over else ''})"
        return f"{indexed(self.out, self.indices)} = {right}"


def indexed(name: str, indices: str) -> str:
    return f"{name}[{','.join(indices)}]" if indices else name


def is_tensor(name: str) -> bool:
    return name[0].isupper()


@dataclass(frozen=True)
class TrainingCase:
    """A training run: a network, how it grows, what trains it, and how it is parameterized.

    Attributes:
        rates: of every axis that grows or may.
        optimizer: a name, with ``-negligible`` after it where epsilon is.
        point: exponents ``b.W``, ``c.W``, ``d.W`` and of one over each multiplier; None is zero init. Empty: muP,
            derived by the engine.
        constants: seed of the constants of tensors and multipliers, the same at every size.
        strength: of learning rates, beside that.
        tied: tensors whose initial values all experts share.
    """

    name: str
    lines: tuple[Line, ...]
    rates: Mapping[str, Fraction]
    optimizer: str = "sgd"
    point: Mapping[str, Fraction | None] = field(default_factory=dict)
    constants: int = 0
    strength: float = 1.0
    tied: frozenset[str] = frozenset()

    def __hash__(self) -> int:
        return hash((self.lines, self.optimizer))

    @property
    def text(self) -> str:
        return "\n".join(line.text for line in self.lines)

    @property
    def axes(self) -> dict[str, str]:
        used = "".join(x.indices + "".join(indices for _, indices in x.reads) for x in self.lines)
        return {x: axis for x, axis in AXES.items() if x in used}

    @property
    def ray(self) -> dict[str, Fraction]:
        """The rates of the axes it has."""
        have = {*self.axes.values()} | ({"K"} if self.routed else set())
        return {axis: rate for axis, rate in self.rates.items() if axis in have}

    @property
    def routed(self) -> bool:
        """Every token has its own K of M experts."""
        return "K" in self.rates and "M" in self.axes.values()

    @property
    def slow(self) -> bool:
        """Powers of n may be a quarter apart."""
        return any(rate.denominator > 1 for rate in self.ray.values())

    @property
    def tensors(self) -> dict[str, str]:
        """Letters of every tensor where it is first used."""
        return {n: c for line in reversed(self.lines) for n, c in reversed(line.reads) if is_tensor(n)}

    @property
    def multipliers(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(m for line in self.lines for m in line.multipliers))

    def __str__(self) -> str:
        ray = ",".join(f"{axis}={rate}" for axis, rate in self.ray.items())
        point = ", ".join(f"{k}={v}" for k, v in self.point.items()) or "muP"
        tied = f", tied {','.join(sorted(self.tied))}" if self.tied else ""
        return f"{self.text}\n{self.optimizer}, ray {ray}, point: {point}{tied}, constants {self.constants}"


def from_text(
    name: str, text: str, optimizer: str, rates: str = "N=1", point: str = "", constants: int = 0
) -> TrainingCase:
    """A case from equations that are written one statement on a line, as ``Line.text`` writes them."""
    made: set[str] = set()
    lines = []
    for row in filter(None, map(str.strip, text.splitlines())):
        left, _, right = (x.strip() for x in row.partition("="))
        out, indices = _read(left)
        head, call, rest = right.partition("(")
        kind, over, multipliers = "product", "", ()
        if call:
            inside, _, over = rest.rstrip(")").partition(";")
            kind, reads = head.strip(), [_read(inside)]
        elif "+" in right:
            kind, reads = "sum", [_read(x) for x in right.split("+")]
        else:
            words = right.replace(", ", ",").split()
            multipliers = tuple(w for w in words if "[" not in w and w not in made)
            reads = [_read(w) for w in words if w not in multipliers]
        lines.append(Line(out, indices, kind, tuple(reads), over.strip(), multipliers))
        made.add(out)
    pairs = dict(x.strip().split("=") for x in point.split(",") if x.strip())
    return TrainingCase(
        name,
        tuple(lines),
        {axis: Fraction(rate) for axis, rate in (x.split("=") for x in rates.split(","))},
        optimizer,
        {k: None if v == "None" else Fraction(v) for k, v in pairs.items()},
        constants,
    )


def _read(text: str) -> Read:
    name, _, indices = text.strip().partition("[")
    return name, indices.rstrip("]").replace(",", "").replace(" ", "")


class EquationWriter:
    """Draws equations: mostly one layer after the other, with products, skips, biases, ties, norms and experts."""

    def __init__(self, rng: random.Random, size: int, functions: bool = True) -> None:
        self.rng, self.size, self.functions = rng, size, functions
        self.signals: dict[str, str] = {"data": "x"}
        self.unread: list[str] = []
        self.tensors: dict[str, str] = {}
        self.lines: list[Line] = []

    def drawn(self, routed: bool = False) -> tuple[Line, ...]:
        """``size`` pieces between a first layer and a readout. ``routed``: then experts, and what is linear in them."""
        first = self.rng.choice("aaaaak")
        self.product(first, [("data", "x")], tensor=first + "x")
        pieces = [self.layer] * 6 + ([self.function] * 6 if self.functions else [])
        pieces += [self.elementwise] * 2 + [self.skip] * 2 + [self.bias] + ([self.along] * 2 if self.functions else [])
        pieces += [self.inner] + ([self.experts] if self.size > 1 and not routed else [])
        for _ in range(self.size):
            self.rng.choice(pieces)()
        if routed:
            for piece in (self.experts, *self.rng.choices([self.layer, self.skip, self.bias], k=self.rng.randrange(3))):
                piece()
        self.output()
        return tuple(self.lines)

    def branched(self) -> tuple[Line, ...]:
        """One tensor that acts on the sum and on the product of the same signals, perhaps behind functions: a step
        meets there what it has beside its linear part."""
        parts = [self.at(self.product("a", [("data", "x")], tensor="ax")) for _ in range(self.rng.randrange(2, 5))]
        for kind in ("sum", "product"):
            self.sometimes(self.line("a", kind, parts))
            self.sometimes(self.line("b", "product", [("V", "ba"), self.at(self.unread[-1])]))
        self.output()
        return tuple(self.lines)

    def sometimes(self, u: str) -> None:
        """A function of a signal, or not."""
        if self.rng.random() < 0.4:
            self.line(self.signals[u], self.rng.choice(ENTRYWISE), [self.at(u)])

    def line(self, indices: str, kind: str, reads: list[Read], **more: object) -> str:
        out = f"h{len(self.lines) + 1}"
        self.lines.append(Line(out, indices, kind, tuple(reads), **more))  # type: ignore[arg-type]
        self.signals[out] = indices
        self.unread = [x for x in self.unread if x not in {name for name, _ in reads}] + [out]
        return out

    def product(self, indices: str, reads: list[Read], tensor: str = "", scaled: bool = False) -> str:
        own = [self.weight(tensor)] if tensor else []
        multipliers = (self.rng.choice(("alpha", "beta", "rho")),) if scaled else ()
        return self.line(indices, "product", [*own, *reads], multipliers=multipliers)

    def weight(self, indices: str) -> Read:
        """A new tensor, or one from before whose axes fit, perhaps transposed."""
        fits = [(n, p) for n, own in self.tensors.items() for p in _fitted(own, indices)]
        if fits and self.rng.random() < 0.3:
            return self.rng.choice(fits)
        name = f"W{len(self.tensors) + 1}"
        self.tensors[name] = indices
        return name, indices

    def pick(self) -> str:
        pool = self.unread if self.unread and self.rng.random() < 0.85 else [x for x in self.signals if x != "data"]
        return self.rng.choice([x for x in pool if self.signals[x]] or [x for x in self.signals if x != "data"])

    def at(self, name: str) -> Read:
        return name, self.signals[name]

    def other(self, taken: str, pool: str = "aabbck") -> str:
        return self.rng.choice([x for x in pool if x not in taken])

    def layer(self) -> None:
        u = self.pick()
        own = self.signals[u]
        kept = "".join(x for x in own if AXES[x] == "M")
        new = self.other(own)
        self.product(kept + new, [self.at(u)], tensor=kept + new + own.replace(kept, "", 1) if kept else new + own)

    def function(self) -> None:
        self.line(self.signals[u := self.pick()], self.rng.choice(ENTRYWISE), [self.at(u)])

    def along(self) -> None:
        u = self.pick()
        if own := self.signals[u]:
            self.line(own, self.rng.choice(ALONG), [self.at(u)], over=self.rng.choice(own))

    def elementwise(self) -> None:
        u = self.pick()
        alike = [v for v, c in self.signals.items() if sorted(c) == sorted(self.signals[u]) and v != "data"]
        v = self.rng.choice(alike)
        self.product(self.signals[u], [self.at(u), self.at(v)])

    def skip(self) -> None:
        u = self.pick()
        alike = [v for v, c in self.signals.items() if sorted(c) == sorted(self.signals[u]) and v not in (u, "data")]
        if alike:
            self.line(self.signals[u], "sum", [self.at(u), self.at(self.rng.choice(alike))])

    def bias(self) -> None:
        u = self.pick()
        if own := self.signals[u]:
            b = self.product(own, [("data", "x")], tensor=own + "x")
            self.line(own, "sum", [self.at(u), self.at(b)])

    def inner(self) -> None:
        """A scalar product of two signals, or the sum of one."""
        u = self.pick()
        alike = [v for v, c in self.signals.items() if sorted(c) == sorted(self.signals[u]) and v != "data"]
        if own := self.signals[u]:
            others = [self.at(self.rng.choice(alike))] if self.rng.random() < 0.7 else []
            kept = "".join(x for x in own if AXES[x] == "M" and self.rng.random() < 0.5)
            self.product(kept, [self.at(u), *others], scaled=kept != own)

    def experts(self) -> None:
        u = self.pick()
        own = self.signals[u]
        if not own or "i" in own:
            return
        logits = self.product("i", [self.at(u)], tensor="i" + own)
        gate = logits
        if self.functions:
            name = self.rng.choice(("softmax", "sigmoid", "topk_sigmoid", "topk_softmax", "silu"))
            gate = self.line("i", name, [(logits, "i")], over="i" if name in ALONG else "")
        k = self.other(own, "kkl")
        inside = self.product("i" + k, [self.at(u)], tensor="i" + k + own)
        if self.functions and self.rng.random() < 0.6:
            inside = self.line("i" + k, self.rng.choice(ENTRYWISE), [self.at(inside)])
        out = self.other(own + k, "aab")
        each = self.product("i" + out, [self.at(inside)], tensor="i" + out + k)
        whole = self.product(out, [(gate, "i"), self.at(each)], scaled=True)
        if self.rng.random() < 0.4 and len(own) == 1:  # shared experts
            shared = self.product(out, [self.at(u)], tensor=out + own)
            self.line(out, "sum", [self.at(whole), self.at(shared)])

    def output(self) -> None:
        """Reads out all that is not read yet."""
        ends = []
        for u in list(self.unread):
            ends.append(self.product("", [self.at(u)], tensor=self.signals[u]) if self.signals[u] else u)
        if len(ends) > 1:
            self.line("", "sum", [(u, "") for u in ends])
        elif self.lines[-1].kind != "product":
            self.line("", "product", [(ends[0], ""), (ends[0], "")])


def _fitted(own: str, indices: str) -> Iterator[str]:
    """The same letters in the order of a tensor's axes."""
    if sorted(AXES[x] for x in own) == sorted(AXES[x] for x in indices):
        left, found = list(indices), ""
        for x in own:
            found += left.pop(next(k for k, y in enumerate(left) if AXES[y] == AXES[x]))
        yield found
        if len(own) == len(indices) == 2 and AXES[own[0]] == AXES[own[1]]:
            yield found[::-1]


_RATES = ("1 1 0", "1 1 0", "1 1 1", "1 0 1", "1 3/2 0", "1 1/2 1/2", "1 1/2 1", "1/2 1 0")
RAYS = tuple(dict(zip(("N", "N_e", "M"), map(Fraction, x.split()), strict=True)) for x in _RATES)
ROUTED = 400
"""The cases from this number on have K < M."""
BRANCHED = 800
"""The cases from this number on have products and sums of the same signals."""
ROUTES = tuple(
    dict(zip(("N", "N_e", "M", "K"), map(Fraction, x.split()), strict=True))
    for x in ("1 1 1 1/2", "1 1 1 0", "1 0 1 1/2", "1 1/2 1 1/2")
)


SHAPED = 1200
"""The cases from this number on have one of ``SHAPES``."""
FIRST = "h[a] = W1[a,x] data[x]\n"
SECOND_PATH = "z = rho {}\no = z W9[x] data[x]\nf = y + o"
LOGITS = "l[i] = W1[i,x] data[x]\np[i] = softmax(l[i]; i)\nv[i] = W2[i,x] data[x]\ny = alpha p[i] v[i]\n"
SHAPES = (
    LOGITS + "z = rho l[i]\nf = y + z",
    LOGITS + SECOND_PATH.format("l[i]"),
    FIRST
    + "n[a] = NORM(h[a]; a)\nk[a] = W2[a,x] data[x]\nw[a] = n[a] k[a]\ny = alpha w[a]\n"
    + SECOND_PATH.format("h[a]"),
    FIRST
    + "q[a] = FUNCTION(h[a])\nn[a] = NORM(q[a]; a)\nk[a] = W2[a,x] data[x]\nw[a] = n[a] k[a]\ny = alpha w[a]\n"
    + SECOND_PATH.format("k[a]"),
    FIRST + "k[a] = W2[a,x] data[x]\ns[a] = h[a] + k[a]\nq[a] = s[a] s[a]\nr[a] = FUNCTION(q[a])\np[a] = h[a] k[a]\n"
    "w[a] = p[a] r[a]\nf = rho w[a]",
    FIRST + "n[a] = NORM(h[a]; a)\nz = rho h[a] h[a]\ny = W2[a] n[a]\nf = z + y",
    FIRST
    + "n[a] = NORM(h[a]; a)\nu[k] = W2[k,a] n[a]\nv[k] = FUNCTION(u[k])\nw[a] = W3[a,k] v[k]\ns[a] = h[a] + w[a]\n"
    "m[a] = NORM(s[a]; a)\nc[k] = W4[k,a] m[a]\nd[k] = FUNCTION(c[k])\ne[a] = W5[a,k] d[k]\nr[a] = s[a] + e[a]\n"
    "o[a] = NORM(r[a]; a)\nf = W6[a] o[a]",
    FIRST + "q[k,x] = W2[k,x,a] h[a]\nr[k,x] = rmsnorm(q[k,x]; x)\nu[k,x] = W3[k,x,a] h[a]\nm[k] = r[k,x] u[k,x]\n"
    "p[k] = FUNCTION(m[k])\nf = W4[k] p[k]",
    FIRST + "l[i] = W2[i,a] h[a]\ng[i] = sigmoid(l[i])\nr[i] = NORM(g[i]; i)\ne[i,k] = W3[i,k,a] h[a]\n"
    "o[i,b] = W4[i,b,k] e[i,k]\ny[b] = alpha r[i] o[i,b]\nf = W5[b] y[b]",
)
"""Second paths beside a softmax and norms, means of what is centred, skewed gradients, functions of squares, a norm of
what moves along itself, two pre-norm blocks, normalised queries, normalised gates."""


def shaped(seed: int) -> TrainingCase:
    """A case with one of ``SHAPES``, its functions, norm and optimizer drawn."""
    rng = random.Random(seed)
    text = SHAPES[seed % len(SHAPES)].replace("NORM", rng.choice(("rmsnorm", "layernorm")))
    text = text.replace("FUNCTION", rng.choice(ENTRYWISE))
    rates = RAYS[3] if "i" in text and rng.random() < 0.5 else RAYS[2]
    named = ",".join(f"{axis}={rate}" for axis, rate in rates.items())
    return from_text(f"random-{seed}", text, rng.choice(OPTIMIZERS), named, constants=seed)


def random_case(seed: int) -> TrainingCase:
    """The case of a number: small networks first."""
    if seed >= SHAPED:
        return shaped(seed)
    rng, routed = random.Random(seed), ROUTED <= seed < BRANCHED
    size = (seed % 3) + rng.randrange(2) if routed else 1 + (seed % 4) + rng.randrange(2)
    lines = EquationWriter(rng, size).drawn(routed) if seed < BRANCHED else EquationWriter(rng, size).branched()
    rays = ROUTES if routed else RAYS
    rates = rays[0] if seed % 2 else rng.choice(rays)
    return TrainingCase(f"random-{seed}", lines, rates, rng.choice(OPTIMIZERS), constants=seed)


def natural(case: TrainingCase, rng: random.Random) -> TrainingCase:
    """Random exponents near those at which every signal is Theta(1); learning rates are for the caller to add."""
    point: dict[str, Fraction | None] = {}
    for name, indices in case.tensors.items():
        use = next(x for x in case.lines if any(n == name for n, _ in x.reads))
        acted = {c for n, cs in use.reads if n != name for c in cs}
        fan_in = sum((case.rates.get(AXES[c], 0) for c in indices if c in acted and c not in use.indices), Fraction(0))
        extra = rng.choice((0, HALF)) if not use.indices else rng.choice((0, 0, 0, 0, HALF))
        point[f"b.{name}"] = None if rng.random() < 0.07 else fan_in * (HALF + extra)
    for line in case.lines:
        summed = {c for _, cs in line.reads for c in cs} - set(line.indices)
        axes = ["K" if case.routed and AXES[c] == "M" else AXES[c] for c in summed]
        size = sum((case.rates.get(axis, 0) for axis in axes), Fraction(0))
        for m in line.multipliers:
            point[m] = size * rng.choice((1, 1, HALF))
    return replace(case, point=point)


KNOWN = {
    case.name: case
    for case in (
        from_text(
            "T1",
            "h1[a] = W1[a,x] data[x]\nz[b] = W[b,a] h1[a]\nu[b] = tanh(z[b])\nh3[c] = V[c,b] u[b]\nf = W2[c] h3[c]",
            "sgd",
        ),
        from_text(
            "T2",
            "h[a] = W[a,x] data[x]\nu[a] = tanh(h[a])\np = rho h[a] u[a]\ns = beta h[a]\nq = s s\nf = p + q",
            "sgd",
            point="b.W=0,c.W=-1,d.W=1,rho=1,beta=1",
        ),
        from_text("T3", "h[a] = W1[a,x] data[x]\nu[a] = silu(h[a])\nf = W2[a] u[a]", "signsgd"),
        from_text(
            "T4",
            "h1[a] = W1[a,x] data[x]\nh2[b] = W[b,a] h1[a]\nh3[c] = alpha W[c,b] h2[b]\nh4[c] = h2[c] + h3[c]\n"
            "f = W2[c] h4[c]",
            "muon",
            point="b.W1=0,b.W=1/2,b.W2=1,c.W1=-1/2,c.W=0,c.W2=1/2,alpha=1/2",
        ),
    )
}
"""Networks on which a reading of functions as ``f0 + f1 x``, of a sign with its positive factors, and of a sum of
rank-one gradients by its Frobenius norm are wrong: h3.cross@1 = n^0, s@1 = n^(-1/2), f.cross@1 = n^(-1/2),
h3.effective@1 = n^(-1/2)."""
