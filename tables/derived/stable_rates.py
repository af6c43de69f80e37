"""Derives the largest stable learning rate of every layer of a dense MLP, for given inits and multipliers.

Two ways: by formula, from sizes and an assumed alignment; and with the alignment that the engine certifies. The
problem, the parameterizations and the two assumptions are those of Everett et al. (2024), Scaling exponents across
parameterizations and optimizers (arXiv 2407.05872). No number is read from there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from fractions import Fraction
from functools import cache

from scaling_algebra.documents.blocks import Cell, Grid, Label, Row
from scaling_algebra.dynamics.analysis import Analysis
from scaling_algebra.solver.derivation import Derivation, derive
from scaling_algebra.spec.desiderata import HORIZON
from scaling_algebra.spec.gauges import gauge_powers
from scaling_algebra.spec.networks.language import Network
from scaling_algebra.spec.networks.library import architecture
from scaling_algebra.spec.optimizers import Optimizer, optimizer
from scaling_algebra.spec.parameterizations import Abc, mean_field, ntp, sp
from scaling_algebra.spec.powers import Power
from scaling_algebra.spec.scaling import Scaling

from .texts import read_texts

HALF = Fraction(1, 2)

MLP = architecture("mlp")
SIGNALS = ("h1", "h2", "f")
"""Signals that stay O(1) if training is stable."""
STEP = Fraction(1, 4)
"""A learning rate larger by N^STEP must be seen to be unstable."""


def mup(network: Network, role: str) -> Abc:
    """Returns muP in the form with multipliers: std N^-1/2 everywhere, multiplier N^1/2 at the first layer and N^-1/2
    at the last.
    """
    multiplier = {"input": HALF, "readout": -HALF}.get(role, Fraction(0))
    return Abc(Power.of({"N": multiplier}), Power.of({"N": -HALF}), Power())


GAUGES: Mapping[str, tuple[Label, Callable[[Network, str], Abc]]] = {
    "sp": (Label("standard"), sp),
    "ntp": (Label("NTK"), ntp),
    "mup": (Label("muP", r"$\mu$P"), mup),
    "mean-field": (Label("mean field"), mean_field),
}
"""Inits and multipliers, by name."""
OPTIMIZERS: Mapping[str, tuple[Label, Optimizer]] = {
    "sgd": (Label("SGD"), optimizer("sgd")),
    "adam": (Label("Adam"), optimizer("adam").with_epsilon("negligible")),
    "adafactor": (Label("Adafactor"), optimizer("adafactor")),
}
LAYERS = {"input": "embedding", "hidden": "hidden", "readout": "readout"}
ALIGNMENTS: Mapping[str, Fraction] = {"full": Fraction(1), "none": HALF}
"""Assumed power p of fan_in in ``|dW x| = fan_in^p |dW| |x|``."""


def assume_rates(gauge: str, rule: Optimizer, p: Fraction) -> dict[str, Power]:
    """Computes learning rates by layer from sizes alone, under the assumption ``|dW x| = fan_in^p |dW| |x|``.

    Law: ``dW x`` is Theta(1) if the entries of dW have size fan_in^-p. With SGD this size is lr times that of the
    gradient. The gradient is Theta(1) for the readout; for the layers below it has the size of the readout's
    entries, at init or after the first update, whichever is larger. With Adam the entries of dW have size lr,
    with Adafactor lr times the init std.
    Assumes: activations are Theta(1), and W_0 times a change adds up at random, as at init (omega = 1/2 in the
    paper), so that it never limits a rate.

    Args:
        gauge: name of the parameterization, which gives init stds and multipliers.
        rule: the optimizer.
        p: the assumed power.
    """
    abc = _abc(gauge)
    std = {role: (x.multiplier * x.init_std)["N"] for role, x in abc.items()}
    step = {role: -p * len([x for x in MLP.tensors[role].fan_in if MLP.axes[x] == "N"]) for role in abc}
    above = max(std["readout"], step["readout"])
    gradient = {role: Fraction(0) if role == "readout" else above for role in abc}
    normaliser = {role: std[role] if rule.relative else Fraction(0) for role in abc}
    factor = normaliser if rule.normalises else gradient
    return _in_gauge(abc, rule, {role: Power.of({"N": step[role] - factor[role]}) for role in abc})


def certify_rates(gauge: str, rule: Optimizer) -> dict[str, Power]:
    """Computes the largest learning rate of each layer at which nothing diverges, from sizes that the engine certifies.

    Method: take the rates at which every layer's own ``dW x`` is Theta(1). If the change of the features makes the
    logits diverge, reduce the rates of the layers that move them by as much. Then the engine certifies that h1, h2 and
    f stay O(1) for t = 0 .. 2, and that they do not if any one rate is N^(1/4) larger.
    """
    abc = _abc(gauge)
    given = {f"{role}.init": x.multiplier * x.init_std for role, x in abc.items()}
    d = derive("I", rule.name, "mup", architecture=MLP.name, epsilon=rule.regime, given=given)
    grown = max((d.analysis()("f.propagating", t).exponent or Fraction(0) for t in range(1, HORIZON + 1)), default=0)
    scaling = d.scaling
    for role in ("input", "hidden") if grown > 0 else ():
        scaling = _scale_rate(scaling, role, -Fraction(grown))
    assert _largest(d, scaling) == 0, (gauge, rule.name)
    assert all(_largest(d, _scale_rate(scaling, role, STEP)) > 0 for role in abc), (gauge, rule.name)
    return _in_gauge(abc, rule, {role: s.lr or Power() for role, s in scaling.tensors.items()})


@cache
def table_everett() -> Grid:
    """Derives the largest stable learning rates by layer, for assumed alignments and the certified one."""
    rows, changed = [], []
    for gauge, (title, _) in GAUGES.items():
        cells: dict[str, list[Cell]] = {role: [] for role in LAYERS}
        for label, rule in OPTIMIZERS.values():
            columns = [assume_rates(gauge, rule, p) for p in ALIGNMENTS.values()] + [certify_rates(gauge, rule)]
            for role, row in cells.items():
                row += [Cell((rates[role],)) for rates in columns]
            if columns[0] != columns[-1]:
                changed.append(f"{title.text or title.name} with {label.name}")
        rows += [Row(title, Label(LAYERS[role]), tuple(row)) for role, row in cells.items()]
    return Grid(
        "everett",
        **read_texts("everett", changed=", ".join(changed)),
        heads=(Label("parameterization", "Parameterization"), Label("layer", "Layer")),
        columns=tuple((label, tuple(map(Label, (*ALIGNMENTS, "engine")))) for label, _ in OPTIMIZERS.values()),
        rows=tuple(rows),
    )


def _abc(gauge: str) -> dict[str, Abc]:
    return {role: GAUGES[gauge][1](MLP, role) for role in MLP.tensors}


def _in_gauge(abc: Mapping[str, Abc], rule: Optimizer, rates: Mapping[str, Power]) -> dict[str, Power]:
    """Converts learning rates for tensors without multipliers to those for the multipliers of a parameterization."""
    return {role: rates[role] / abc[role].multiplier ** gauge_powers(rule)["lr"] for role in abc}


def _scale_rate(scaling: Scaling, role: str, by: Fraction) -> Scaling:
    s = scaling.tensors[role]
    return replace(scaling, tensors={**scaling.tensors, role: replace(s, lr=(s.lr or Power()) * Power.of({"N": by}))})


def _largest(d: Derivation, scaling: Scaling) -> Fraction:
    """Returns the largest exponent that any of the signals that must stay O(1) reaches in training with these settings.

    Args:
        d: network, ray and optimizer.
        scaling: the settings of all tensors.
    """
    look = Analysis(d.ray, scaling.point(d.ray), d.optimizer, d.network)
    answers = [look(name, t) for name in SIGNALS for t in range(HORIZON + 1)]
    assert all(a.decided for a in answers), d.about
    return max(a.exponent for a in answers if a.exponent is not None)
