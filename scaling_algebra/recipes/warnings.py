"""Warnings to read before the numbers of a recipe are used. Read next: ``recipe.py`` (which calls this)."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from scaling_algebra.solver.demands import Infeasible
from scaling_algebra.solver.derivation import TIES, Derivation, derive
from scaling_algebra.spec.axes import Ray, describe_axis
from scaling_algebra.spec.networks.language import TRACED, Function

from .settings import Setting
from .sizes import Way

FP16 = 2.0**-24
"""The smallest positive number in fp16."""
SMALL_WIDTH = 8
"""Widths below this are too small for a power law."""
REUSED = "match_rms_adamw"
"""The shape factor that is meant to reuse the learning rate of AdamW."""


def warnings(
    way: Way,
    derivations: Sequence[Derivation],
    tensors: Mapping[str, Mapping[str, Setting]],
    multipliers: Collection[str],
    instead: Ray | None,
) -> Iterator[str]:
    """Yields a line for each risk: small sizes, no parameterization on the ray, fp16, learning rates reused for several
    tensors, weight decay, zero init and gates.
    """
    base, target, ray = way.base, way.target, way.ray
    for axis, size in base.items():
        if size == 1 < target[axis] and axis != "L":
            yield (
                f"{axis} is 1 at the base, so that the values tuned there do not depend on the {describe_axis(axis)}; "
                f"tune a base with a larger {axis}"
            )
        elif size < min(SMALL_WIDTH, target[axis]) and axis in ("N", "N_e"):
            yield (
                f"{axis} is only {size} at the base, and powers of it are valid for large {describe_axis(axis)}; tune "
                f"a base with a larger {axis}"
            )
    if ray is None:
        yield (
            "no ray leads from the base to the target, since an axis shrinks or K outgrows M, and the theory is about "
            "growth and has a kink there: each has the powers of the ray of its own sizes"
        )
    elif instead is None and any(x != ray[axis] for d in derivations for axis, x in d.ray.rates.items()):
        yield (
            f"the powers are those on the rays of the sizes of base and target, not on the ray {ray} from one to the "
            "other, so that the numbers are the same along every path; on that ray without end others hold"
        )
    elif not way.exact:
        yield f"the sizes grow along no ray with simple rates; {ray} lies on the same side of every wall"
    if instead is not None:
        yield f"the powers are those of the ray {instead}; train a model in between before you trust them"
    if kinked := [role for role, settings in tensors.items() if any(s.before is not None for s in settings.values())]:
        yield f"the theory has a kink between base and target, where powers of {', '.join(kinked)} change"
    for role, settings in tensors.items():
        eps = settings["eps"].target if "eps" in settings else None
        if eps is not None and eps < FP16:
            yield f"eps of {role} is {eps:.3g}, which is 0 in fp16: keep gradients and optimizer states in fp32"
            break
    yield from _warn_of_reused_rates(derivations)
    if kept := sorted({d.optimizer.of(role).name for d in derivations for role in d.network.tensors
                       if d.optimizer.of(role).constraint}):  # fmt: skip
        yield (
            f"{' and '.join(kept)} keeps the initial norm of a tensor, with: what starts at zero, as biases mostly do, "
            "stays zero; start it at the init std above, or step it with adamw"
        )
    if any("decay" in s for s in tensors.values()):
        yield "weight decay is torch's, which multiplies it by the learning rate; where it is not multiplied, keep it"
    zero = tensors.get("router", {}).get("init_std")
    if zero is not None and zero.rule is None and target.get("K", 0) < target.get("M", 0):
        yield TIES
    networks = [d.network for d in derivations]
    held = any(isinstance(s, Function) and s.held for network in networks for s in network.statements)
    if "alpha" in multipliers and held and TRACED not in {network.name for network in networks}:  # whose gate is read
        yield (
            "multipliers are for gates that are Theta(1): a softmax that is renormalised over the active experts "
            "brings 1/K itself, one that is not brings 1/M"
        )


def _warn_of_reused_rates(derivations: Sequence[Derivation]) -> Iterator[str]:
    """Warns of tensors whose optimizer scales its steps to the size of AdamW's, so that users reuse a learning rate
    of AdamW, but whose learning rate follows another power of the axes than AdamW's.
    """
    apart = []
    for d in derivations:
        roles = [role for role in d.network.tensors if d.optimizer.of(role).shape == REUSED]
        try:
            theirs = derive(d.configuration.but(optimizer="adamw")).in_gauge(d.gauge) if roles else d
        except Infeasible:  # AdamW has no rule on this ray to reuse
            continue
        for role in roles:
            here, adamw = d[role].lr, theirs[role].lr
            if here and adamw and here.on(d.ray) != adamw.on(d.ray):
                apart.append(f"{role} ({here}, AdamW's {adamw})")
    if apart:
        listed = ", ".join(dict.fromkeys(apart))
        yield (
            f"{REUSED} lets a learning rate of AdamW be reused at one size; its width rule is another one for "
            f"{listed}, where gradients have rank Theta(1)"
        )
