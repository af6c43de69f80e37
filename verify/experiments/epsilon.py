"""What Adam does when its epsilon does not shrink with the gradients: d is an exponent like any other.

Where epsilon is above the gradients, Adam's step is ``gradient / epsilon``: its updates, and the features they move,
vanish at exponents that the engine reads off the same scaling with another epsilon. Where it is below a gradient that a
symmetry cancels, noise is amplified to a Theta(1) step.
Read next: ``measuring/runs.py`` (trains), ``findings.py`` (claims and verdicts).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial

from scaling_algebra.solver.derivation import Derivation, derive
from scaling_algebra.spec.powers import Power
from scaling_algebra.verify.judging.report import fit_of, spacing_of
from scaling_algebra.verify.measuring.runs import measure

from .findings import By, Experiment, Finding, Plan, Trial, exponent

Change = Callable[[Derivation], Mapping[str, Power]]
"""Adam's epsilon by role, for the tensors whose epsilon is changed."""

SIZES, SEEDS = (16, 24, 32, 48, 64), 32


@dataclass(frozen=True)
class Changed:
    """A configuration, the change of its epsilon, and the parts of the forward pass that show it.

    Attributes:
        parts: quantities with the number of updates; each is one product of tensors, so no sum blurs its slope.
        claim: who claims that the changed epsilon leaves the exponents of the derived one as they are.
        wider, more: factors on sizes and seeds, for blocks that are cheap, and for what shows late or has few entries.
    """

    architecture: str
    regime: str
    parameterization: str
    change: Change
    parts: tuple[tuple[str, int], ...]
    source: str
    claim: By = By.PLANTED
    wider: int = 4
    more: int = 1


def as_derived(d: Derivation) -> Mapping[str, Power]:
    """Nothing is changed."""
    return {}


def order_one(d: Derivation) -> Mapping[str, Power]:
    """epsilon = Theta(1) for every tensor: one number for all, as in practice."""
    return {role: Power() for role in d.scaling.tensors}


def literal(d: Derivation) -> Mapping[str, Power]:
    """``sqrt(v + n^-d eps)``, as printed in Sec. 2 of the routers paper: an epsilon of ``n^(-d/2)`` next to sqrt(v)."""
    return {role: s.eps * Fraction(1, 2) for role, s in d.scaling.tensors.items() if s.eps is not None}


def rescaled_router(d: Derivation) -> Mapping[str, Power]:
    """d = 1/2 for the router, the size of the gradient that the softmax leaves it (routers paper, Remark 27)."""
    return {"router": Power.of({"N": Fraction(-1, 2)})}


def with_epsilon(d: Derivation, changed: Mapping[str, Power]) -> Derivation:
    """The same scaling with other epsilons, by role."""
    tensors = {r: replace(s, eps=changed.get(r, s.eps)) for r, s in d.scaling.tensors.items()}
    return replace(d, scaling=replace(d.scaling, tensors=tensors))


def judged_parts(setup: Changed, plan: Plan) -> list[Finding]:
    """Trains with the changed epsilon; judges the engine's exponents, and the derived ones where they differ."""
    derived = derive(setup.regime, "adam", setup.parameterization, architecture=setup.architecture)
    d = with_epsilon(derived, setup.change(derived))
    steps = max(step for _, step in setup.parts)
    sizes, seeds = [setup.wider * n for n in plan.sizes], setup.more * plan.seeds
    run = measure(d, sizes=sizes, seeds=seeds, steps=steps, device=plan.device)
    claims = []
    for quantity, step in setup.parts:
        predicted, normal = (look.analysis()(quantity, step).exponent for look in (d, derived))
        for by, claimed in ((By.PREDICTED, predicted), *([(setup.claim, normal)] if normal != predicted else [])):
            name, fit = f"{quantity}@{step}", fit_of(run, quantity, step)
            claims.append(exponent(name, fit, claimed, predicted, by, setup.source, run.sizes, spacing_of(run)))
    return claims


MOE = (("h1.change", 2), ("psi.effective", 1), ("h2.effective", 1), ("h3i.effective", 1), ("h3.A3", 1))
FIXED_PARTS = (("h1.change", 1), ("h3i.effective", 1), ("f.effective", 1))
EARLY = (("h1.change", 1), ("f.effective", 1))
"""For an epsilon only n^(1/2) above the gradients: the slope of h3i.effective still bends (-0.33 at n = 64 to 256)."""

ROUTER = (("psi.effective", 1),)
"""After one step: at the second one the router's gradient has epsilon's size at small n, and the slope bends."""

block = partial(Changed, "moe", "III", "mup", source="MSSP paper, Sec. 3 (mu-3), Table B.1", wider=1)
sigmoid, softmax = (partial(Changed, f"routers-{gate}", "I", "mup-sigmoid") for gate in ("sigmoid", "softmax"))
CONFIGURATIONS = {
    "MoE block, regime III: derived epsilon": block(as_derived, MOE),
    "MoE block, regime III: epsilon of order one": block(order_one, MOE),
    "fixed experts, sigmoid: derived epsilon": sigmoid(as_derived, FIXED_PARTS, "routers paper, Table 2, (178)"),
    "fixed experts, sigmoid: epsilon of order one": sigmoid(order_one, FIXED_PARTS, "routers paper, Def. 7"),
    "fixed experts, sigmoid: epsilon inside the root": sigmoid(
        literal, EARLY, "routers paper, Sec. 2 with Table 2", By.PUBLISHED, wider=8
    ),
    "fixed experts, softmax: derived epsilon": softmax(as_derived, ROUTER, "routers paper, Remark 26", more=3),
    "fixed experts, softmax: router epsilon n^(-1/2)": softmax(
        rescaled_router, ROUTER, "routers paper, Remark 27, Fig. 2", more=3
    ),
}

EPSILON = Experiment(
    name="epsilon",
    title="feature updates under Adam with another epsilon than the derived one",
    source="MSSP paper, Table B.1; routers paper, Table 2",
    trials=tuple(Trial(title, partial(judged_parts, one)) for title, one in CONFIGURATIONS.items()),
    sizes=SIZES,
    seeds=SEEDS,
)
