"""Does the router learn, freeze or saturate as the width grows? Experiments of the routers paper.

Every exponent is the engine's, for the configuration that is trained. What power counting gives no name to follows from
the spread of the logits over the experts: ``relative_update``, ``entropy`` and ``deficit`` say how.
Read next: ``measuring/runs.py`` (trains the block), ``findings.py`` (claims and verdicts).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import partial

import numpy as np

from scaling_algebra.errors import UsageError
from scaling_algebra.solver.derivation import Derivation, derive
from scaling_algebra.verify.judging.fit import Fit, fit
from scaling_algebra.verify.judging.measurement import Measurement
from scaling_algebra.verify.judging.report import fit_of
from scaling_algebra.verify.measuring.runs import measure
from scaling_algebra.verify.networks.scales import constants

from .findings import By, Experiment, Finding, Plan, Trial, exponent, steeper

Predicted = Callable[[Derivation, int], Fraction | None]
"""Exponent of a quantity after t updates of a configuration."""

SIZES, SEEDS = (64, 100, 160, 256), 192
FAST = Fraction(-6)
"""No signal of this block has a power of n this small, so a steeper fall is none."""


@dataclass(frozen=True)
class Asked:
    """A question about one quantity.

    Attributes:
        quantity, step: what, after how many updates.
        source: section of the routers paper.
        published, planted: other exponents claimed of it, in print or as a control.
    """

    quantity: str
    step: int
    source: str
    published: Fraction | None = None
    planted: Fraction | None = None


def signal(name: str) -> Predicted:
    """A quantity that the engine names."""
    return lambda d, t: d.analysis()(name, t).exponent


def relative_update(d: Derivation, t: int) -> Fraction | None:
    """Law: entries of Q_t - Q_0 over their init std. Source: Sec. 3.2, Fig. 1 (relative router-weight update norm)."""
    size, b = d.analysis()("dQ", t).exponent, d.exponents("router")[0]
    return None if size is None or b is None else size + b


def deficit(d: Derivation, t: int) -> Fraction | None:
    """Law: 1 - entropy ~ spread^2 for a small spread of the logits over experts, Theta(1) otherwise.

    Assumes: softmax; entropy in units of its largest value. A softmax of logits psi differs from uniform by its
    centred logits, and the entropy is stationary there.
    """
    spread = d.analysis()("psi.spread", t).exponent
    return None if spread is None else min(2 * spread, Fraction(0))


def entropy(d: Derivation, t: int) -> Fraction | None:
    """Law: the root-mean-square entropy over seeds ~ spread^(-1/2) for a large spread, Theta(1) otherwise.

    Assumes: softmax; a smooth law of the logits over spread. Then one seed in ``spread`` has its two largest logits
    within Theta(1) of each other and keeps an entropy of Theta(1); all others lose theirs faster than any power.
    """
    spread = d.analysis()("psi.spread", t).exponent
    return None if spread is None else min(-spread / 2, Fraction(0))


PREDICTED: dict[str, Predicted] = {"relative dQ": relative_update, "phi.deficit": deficit, "phi.entropy": entropy}
"""Quantities that are not signals of the engine but follow from some."""

HALF = Fraction(1, 2)
ZERO = Fraction(0)
SATURATION = "Prop. 2, App. D.1"
DIVERGES = (
    Asked("h1.change", 1, SATURATION, published=ZERO),
    Asked("psi.propagating", 1, "Sec. 3.1", published=HALF),
    Asked("psi.change", 1, SATURATION, planted=ZERO),
)
TIES = Asked("phi.entropy", 1, f"{SATURATION}, Fig. 1(a)", planted=ZERO)
"""Takes many seeds: under Adam one in n of them ties. Under SGD it is one in n^(3/2), too rare for a minute."""

FREEZES = (
    Asked("psi.effective", 1, "Remark 26, Fig. 3", published=-HALF),
    Asked("psi.effective", 2, "Remark 26, Fig. 3", published=-HALF, planted=ZERO),
    Asked("gpsi", 2, "Remark 25", published=-HALF),
    Asked("relative dQ", 2, "Sec. 3.2, Fig. 1(d)", planted=ZERO),
    Asked("phi.deficit", 2, "Prop. 3, Fig. 1(c)", planted=ZERO),
)
SYNCHRONOUS = (
    Asked("psi.change", 1, "App. D.2 (331), Def. 6", published=ZERO),
    Asked("psi.effective", 2, "Sec. 3.2, Fig. 4", published=ZERO, planted=-HALF),
    Asked("relative dQ", 2, "Sec. 3.2", planted=-HALF),
    Asked("psi.spread", 2, "Prop. 3", planted=ZERO),
)
LEARNS = (
    Asked("logits.effective", 2, "Sec. 3.2, App. F.1", published=ZERO, planted=-HALF),
    Asked("relative dQ", 2, "Sec. 3.2", planted=-HALF),
    Asked("psi.spread", 2, "Sec. 3.2", planted=-HALF),
    Asked("phi.deficit", 2, "Sec. 3.2", planted=Fraction(-1)),
)
NOISY = (
    Asked("logits.effective", 2, "Sec. 3.2, App. F.1", published=ZERO, planted=-HALF),
    Asked("relative dQ", 2, "Sec. 3.2", planted=-HALF),
    Asked("logits.change", 2, "App. F.1", planted=-HALF),
)
SELECTS = (
    Asked("psi.effective", 3, "Prop. 4, Fig. 5, Fig. 6", published=ZERO, planted=-HALF),
    Asked("relative dQ", 3, "Prop. 4", planted=-HALF),
    Asked("psi.spread", 3, "Prop. 4", planted=-HALF),
)
"""One step later: under top-K a router learns in the seeds whose mask has switched, and after one step few have."""


def saturates(rule: str, asked: tuple[Asked, ...], shrink: int, more: int, plan: Plan) -> list[Finding]:
    """Standard parameterization at the learning rate that moves the first layer by Theta(1).

    Args:
        shrink, more: sizes are n / shrink, because entropies soon underflow, with ``more`` times the seeds.
    """
    d = derive("I", rule, "sp-feature", architecture="routers-softmax")
    sizes = tuple(n // shrink for n in plan.sizes)
    if len(set(sizes)) < len(sizes) or sizes[0] < 2:
        raise UsageError(
            f"sizes are {list(plan.sizes)}; a saturated router is trained at n / {shrink}, so give larger ones"
        )
    run = measure(d, sizes=sizes, seeds=plan.seeds * more, steps=1, device=plan.device)
    frozen = (("phi.entropy", "Fig. 1(a)"), ("gQ", "Fig. 1(b)"))
    typical = [
        steeper(f"{q}@1, typical", run.sizes, run.values[q, 1], FAST, f"routers paper, {SATURATION}, {s}")
        for q, s in frozen
    ]
    return [*judged(d, run, asked), *typical]


def learns(gate: str, asked: tuple[Asked, ...], plan: Plan, stretch: int = 1) -> list[Finding]:
    """The paper's muP (its Table 1) with a gate, trained by SGD.

    Args:
        stretch: sizes are n * stretch, where small networks have not settled.
    """
    d = derive("I", "sgd", "mup-sigmoid", architecture=f"routers-{gate}")
    steps, sizes = max(a.step for a in asked), [n * stretch for n in plan.sizes]
    run = measure(d, sizes=sizes, seeds=plan.seeds, steps=steps, device=plan.device)
    return judged(d, run, asked)


def judged(d: Derivation, run: Measurement, asked: tuple[Asked, ...]) -> list[Finding]:
    """The engine's answer to every question, and the other claims about it, judged by a measurement."""
    found = []
    for a in asked:
        predicted = PREDICTED.get(a.quantity, signal(a.quantity))(d, a.step)
        slope, source = measured(d, run, a.quantity, a.step), f"routers paper, {a.source}"
        claims = [(By.PREDICTED, predicted), (By.PUBLISHED, a.published), (By.PLANTED, a.planted)]
        for by, claimed in claims[:1] + [c for c in claims[1:] if c[1] is not None]:
            found.append(exponent(f"{a.quantity}@{a.step}", slope, claimed, predicted, by, source, run.sizes))
    return found


def measured(d: Derivation, run: Measurement, quantity: str, step: int) -> Fit:
    """Slope of a quantity; the relative update is measured in units of the init std."""
    if quantity != "relative dQ":
        return fit_of(run, quantity, step)
    std = d.scaling.tensors["router"].init_std
    assert std is not None
    unit = [constants(d.network).init_of("router") * std.at(dims) for dims in run.dims]
    return fit(run.sizes, [np.asarray(v) / u for v, u in zip(run.values["dQ", step], unit, strict=True)])


ROUTERS = Experiment(
    name="routers",
    title="does the router learn, freeze or saturate with width",
    source="routers paper",
    trials=(
        Trial("SP, softmax, SGD: saturates", partial(saturates, "sgd", DIVERGES, 4, 5)),
        Trial("SP, softmax, Adam: saturates", partial(saturates, "adam", DIVERGES, 2, 1)),
        Trial("SP, softmax, Adam: ties keep their entropy", partial(saturates, "adam", (TIES,), 4, 20)),
        Trial("muP, softmax: freezes at uniform", partial(learns, "softmax", FREEZES)),
        Trial("muP, sigmoid: learns the same for every expert", partial(learns, "sigmoid", SYNCHRONOUS)),
        Trial("muP, softmax and bias: learns", partial(learns, "softmax-bias", LEARNS)),
        Trial("muP, softmax and noise: learns", partial(learns, "softmax-noise", NOISY, stretch=2)),
        Trial("muP, softmax top-2 of noisy logits: learns", partial(learns, "softmax-noise-topk", NOISY, stretch=2)),
        Trial("muP, softmax top-2: learns", partial(learns, "softmax-topk", SELECTS)),
        Trial("muP, sigmoid top-2: learns", partial(learns, "sigmoid-topk", SELECTS)),
    ),
    sizes=SIZES,
    seeds=SEEDS,
)
