"""What scenarios are asserted with: analyses in words, exponents in columns, and what is broken."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache

from scaling_algebra import derive
from scaling_algebra.dynamics.analysis import Analysis
from scaling_algebra.solver.demands import violation
from scaling_algebra.spec.axes import REGIMES, Ray
from scaling_algebra.spec.desiderata import mssp_demands
from scaling_algebra.spec.networks.grammar import network
from scaling_algebra.spec.networks.language import Network
from scaling_algebra.spec.networks.library import architecture
from scaling_algebra.spec.networks.multipliers import find_free_multipliers
from scaling_algebra.spec.optimizers import Optimizer, optimizer
from scaling_algebra.spec.powers import Power
from scaling_algebra.spec.scaling import Point, Scaling, TensorScaling

HALF = Fraction(1, 2)
RULES = ("sgd", "adam")
ROUTERS = ("softmax", "sigmoid", "softmax-bias", "softmax-topk", "sigmoid-topk")
LETTERS = {"a": "N", "b": "N", "c": "N", "k": "N_e", "i": "M", "x": "D", "e": "E"}


def N(power):
    """A power of the width."""
    return Power.of({"N": power})


# analyses -----------------------------------------------------------------------------------------------------------


def placed(
    net: Network | str,
    rule: Optimizer | str = "sgd",
    rates: str | Mapping = "N=1",
    point: str | Mapping = "",
    tied=(),
) -> Analysis:
    """The engine on a network, or equations, at a point, ``b.W=1/2,c.W=zero,alpha=1``: 0 where nothing is said. Without
    a point: at its muP."""
    net = network("placed", net, LETTERS) if isinstance(net, str) else net
    rule = optimizer(rule) if isinstance(rule, str) else rule
    ray = Ray.parse(rates) if isinstance(rates, str) else Ray(rates)
    if not point:
        epsilon = {"epsilon": rule.regime} if rule.regime else {}
        return derive(ray=ray, optimizer=rule.name, parameterization="mup", network=net, **epsilon).analysis()
    if isinstance(point, str):
        pairs = (pair.split("=") for pair in point.split(","))
        point = {name: None if value == "zero" else Fraction(value) for name, value in pairs}
    b, c, d = ({role: point.get(f"{x}.{role}", Fraction(0)) for role in net.tensors} for x in "bcd")
    free = {m: point.get(m, Fraction(0)) for m in find_free_multipliers(net)}
    return Analysis(ray, Point(b, c, d, free, frozenset(tied)), rule, net)


@lru_cache(maxsize=16)
def published(words: str) -> Analysis:
    """A parameterization of a regime, and what is other than derived, in words:
    ``II adam mup maximal net=moe-rmsnorm tied=expert_in,expert_out router.lr=N^-1*M``.

    ``from=NAME``: the network whose parameterization it is, if not its own; what that lacks has the powers 0.
    """
    regime, rule, name, *more = words.split()
    readout = {"readout_init": more.pop(0)} if more and more[0] in ("zero", "maximal") else {}
    options = dict(word.split("=", 1) for word in more)
    net = architecture(options.pop("net", "moe"))
    source = options.pop("from", net.name)
    scaling = derive(regime, rule, name, architecture=source, **readout).scaling
    missing = TensorScaling(Power(), Power(), Power() if optimizer(rule).epsilon else None)
    scaling = replace(scaling, tensors={role: scaling.tensors.get(role, missing) for role in net.tensors})
    tied = options.pop("tied", None)
    scaling = scaling if tied is None else replace(scaling, tied=tuple(filter(None, tied.split(","))))
    for option, text in options.items():
        role, _, field = option.partition(".")
        power = None if text == "0" else Power.parse(text.replace("*", " "))
        scaling = changed(scaling, role, **{{"init": "init_std"}.get(field, field): power})
    return Analysis(REGIMES[regime], scaling.point(REGIMES[regime]), optimizer(rule), net)


def changed(scaling: Scaling, role: str, **what) -> Scaling:
    """A scaling with other powers for one tensor."""
    return replace(scaling, tensors={**scaling.tensors, role: replace(scaling.tensors[role], **what)})


def look(d, scaling=None, network=None) -> Analysis:
    """The engine at a derivation, with another scaling or network if given."""
    return Analysis(d.ray, (scaling or d.scaling).point(d.ray), d.optimizer, network or d.network)


# exponents ----------------------------------------------------------------------------------------------------------


def size(analysis: Analysis, name: str, t: int) -> Fraction | None:
    """Certified exponent; None for exactly zero."""
    answer = analysis(name, t)
    assert answer.decided, (name, t, answer.why)
    return answer.exponent


def at(analysis: Analysis, *steps: int) -> list[tuple[Analysis, int]]:
    """Columns of ``check``: one analysis at these steps."""
    return [(analysis, t) for t in steps]


def shown(analysis: Analysis, name: str, t: int) -> str:
    """An exponent as it is written in tables: a dot is exactly zero, a question mark undecided."""
    answer = analysis(name, t)
    return "?" if not answer.decided else "." if answer.exponent is None else str(answer.exponent)


def check(columns, text: str) -> None:
    """Every line of the text is a quantity and its exponent in each column, as ``shown``.

    Args:
        columns: pairs of an analysis and a step, or text: ``II adam mup maximal @0,1 | ...`` (``published``).
    """
    if isinstance(columns, str):
        runs = [column.split("@") for column in columns.split("|")]
        columns = [pair for words, steps in runs for pair in at(published(words.strip()), *map(int, steps.split(",")))]
    wanted = {name: cells for name, *cells in (line.split() for line in text.strip().splitlines())}
    assert {name: [shown(analysis, name, t) for analysis, t in columns] for name in wanted} == wanted


def sizes(analysis: Analysis, text: str) -> None:
    """``h2.change@1 -1/2, gh@0 .``: quantities with their step and exponent, as ``shown``."""
    wanted = dict(entry.split() for entry in text.split(","))
    assert {key: shown(analysis, *_asked(key)) for key in wanted} == wanted


def _asked(key: str) -> tuple[str, int]:
    name, _, t = key.partition("@")
    return name, int(t)


def broken(analysis, structure, demands=mssp_demands):
    """The desiderata that fail, and the quantities they are about."""
    failed = [d for d in demands(analysis.network, structure) if violation(d, analysis)]
    return {d.name for d in failed}, {name for d in failed for name in d.quantities}
