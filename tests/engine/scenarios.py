"""What scenarios of the papers are asserted with: sizes of named quantities in columns, and what is broken."""

from dataclasses import replace
from fractions import Fraction

from scaling_algebra.dynamics.analysis import Analysis
from scaling_algebra.solver.demands import violation
from scaling_algebra.spec.desiderata import mssp_demands
from scaling_algebra.spec.powers import Power

HALF = Fraction(1, 2)
RULES = ("sgd", "adam")
ROUTERS = ("softmax", "sigmoid", "softmax-bias", "softmax-topk", "sigmoid-topk")


def N(power):
    """A power of the width."""
    return Power.of({"N": power})


def look(d, scaling=None, network=None):
    """The engine at a derivation, with another scaling or network if given."""
    return Analysis(d.ray, (scaling or d.scaling).point(d.ray), d.optimizer, network or d.network)


def changed(scaling, role, **what):
    """A scaling with other powers for one tensor."""
    return replace(scaling, tensors={**scaling.tensors, role: replace(scaling.tensors[role], **what)})


def size(analysis, name, t):
    """Certified exponent; None for exactly zero."""
    answer = analysis(name, t)
    assert answer.decided, (name, t, answer.why)
    return answer.exponent


def at(analysis, *steps):
    """Columns of ``check``: one analysis at these steps."""
    return [(analysis, t) for t in steps]


def check(columns, text):
    """Every line of the text is a quantity and its exponent in each column; a dot is exactly zero."""
    rows = [line.split() for line in text.strip().splitlines()]
    wanted = {name: [None if x == "." else Fraction(x) for x in cells] for name, *cells in rows}
    assert {name: [size(analysis, name, t) for analysis, t in columns] for name in wanted} == wanted


def broken(analysis, structure, demands=mssp_demands):
    """The desiderata that fail, and the quantities they are about."""
    failed = [d for d in demands(analysis.network, structure) if violation(d, analysis)]
    return {d.name for d in failed}, {name for d in failed for name in d.quantities}
