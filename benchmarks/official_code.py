"""Compares the scaling functions of the MSSP paper's own code with `derive`, cell by cell.

That code (github.com/vankadara-lab/mssp-moe, MIT) sets init std, learning rate and Adam epsilon of every tensor by
functions of N, M and N_e. They are called at sizes along each regime, the powers are read off, and every one is
compared with the exponent that is derived. Nothing of that code is needed here but a checkout that the user has.
Run: ``python benchmarks/official_code.py CHECKOUT``; exit code 0 if every cell is equal, 1 if not.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple
from unittest.mock import patch

import click
from tabulate import tabulate

from scaling_algebra import derive
from scaling_algebra.errors import UsageError
from scaling_algebra.spec.axes import regime

DOUBLINGS = 4
"""Of the width, each of which must change a cell by the same factor."""
WIDTH, EXPERTS, EXPERT_WIDTH, INPUTS, CLASSES = 256, 16, 128, 48, 10
"""Base sizes."""

MLP = "mlp-moe-experiments/scaling_configs.py"
ROLES = {"w_in": "input", "w_router": "router", "w_expert1": "expert_in", "w_expert2": "expert_out", "w_out": "readout"}
MLP_CONFIGS = (
    ("I", "sgd", "mup", "fixed_E_mup_multfree"),
    ("I", "sgd", "mssp", "fixed_E_mup_multfree"),
    ("I", "adam", "mup", "fixed_E_mup_adam"),
    ("I", "adam", "mssp", "fixed_E_mup_adam"),
    ("II", "sgd", "mup", "mup_bottleneck_stdinit"),
    ("II", "sgd", "mssp", "mup_bottleneck_ours"),
    ("II", "adam", "mup", "mup_bottleneck_adam_stdinit_multfree"),
    ("II", "adam", "mssp", "mup_bottleneck_adam_multfree"),
    ("III", "sgd", "mup", "mup_stdinit_allscaling_multfree"),
    ("III", "sgd", "mssp", "mup_stdinit_allscaling_multfree"),
    ("III", "adam", "mup", "mup_adam_allscaling_stdinit_ours"),
    ("III", "adam", "mssp", "mup_adam_allscaling_stdinit_ours"),
)
"""The correspondence of their configurations; tied experts and a router at zero are flags there, not functions."""

TRANSFORMER = "transformer-moe-experiments/scaling.py"
TRANSFORMER_ROLES = {
    "embedding": ("moe", "input"),
    "router": ("moe", "router"),
    "expert_up": ("moe", "expert_in"),
    "expert_down": ("moe", "expert_out"),
    "attn_qkv": ("mlp", "hidden"),
    "attn_proj": ("mlp", "hidden"),
    "output": ("moe", "readout"),
}
"""Network and role whose powers each of theirs has: attention those of a hidden layer."""
TRANSFORMER_CONFIGS = (
    ("I", "mssp", "zero", "mup_fixed_e"),
    ("II", "mup", "zero", "mup_bottleneck_no_expert_down_init"),
    ("II", "mssp", "zero", "mup_bottleneck"),
    ("III", "mup", "maximal", "mup_baseline_allscale"),
    ("III", "mssp", "zero", "mup_allscale"),
)


Values = dict[tuple[str, str], float]
"""By tensor and by what is scaled."""


class OfficialCell(NamedTuple):
    """One number of theirs and ours: exponents of n, None for exactly zero."""

    config: str
    regime: str
    optimizer: str
    parameterization: str
    tensor: str
    what: str
    theirs: Fraction | None
    ours: Fraction | None


def power(values: Sequence[float], where: str) -> Fraction | None:
    """The exponent of values at sizes that double each time, or None where they are zero throughout.

    Raises:
        UsageError: it is no power.
    """
    if not any(values):
        return None
    steps = [math.log2(b / a) if a > 0 < b else math.nan for a, b in pairwise(values)]
    exponent = Fraction(steps[0]).limit_denominator(4) if math.isfinite(steps[0]) else Fraction(0)
    if not all(abs(step - exponent) < 1e-9 for step in steps):
        raise UsageError(
            f"{where} is {values} at sizes that double, which is no power; is the checkout the expected one?"
        )
    return exponent


def mlp_values(config: Any, growth: int) -> Values:
    """Init, learning rate, epsilon of the five tensors and the aggregation of the MLP MoE, the width grown so often."""
    n = WIDTH * growth
    m, n_e = config.adjust_dimensions(n, EXPERTS, EXPERT_WIDTH)
    fans = {"w_in": INPUTS, "w_expert2": n_e}
    values = {("sum", "multiplier"): m ** -config.get_default_alpha()}
    for tensor in ROLES:
        fan_in = fans.get(tensor, n)
        values[tensor, "init"] = config.get_init_scale(tensor, n, m, n_e, fan_in, CLASSES)
        values[tensor, "lr"] = config.get_lr_scale(tensor, n, m, n_e, 1.0, fan_in)
        values[tensor, "eps"] = config.get_adam_eps_scale(tensor, n, m, n_e)
    return {key: float(x) for key, x in values.items()}


def transformer_values(config: Any, place: str, growth: int) -> Values:
    """Init, learning rate and epsilon of the tensors of the Transformer; the init is what is asked of torch."""
    ray = regime(place)
    sizes = {"N": WIDTH, "M": EXPERTS, "N_e": EXPERT_WIDTH}
    n, m, n_e = (size * growth ** int(ray[axis]) for axis, size in sizes.items())
    shape = SimpleNamespace(n_embd=n, n_exp=m)
    values = {}
    for tensor in TRANSFORMER_ROLES:
        fan_in = {"embedding": CLASSES, "expert_down": n_e}.get(tensor, n)
        with patch("torch.nn.init.normal_") as normal, patch("torch.nn.init.zeros_"):
            config.init_weight(tensor, None, fan_in, n, shape)
        values[tensor, "init"] = normal.call_args.kwargs["std"] if normal.called else 0.0
        values[tensor, "lr"] = config.lr_scale(tensor, shape)
        values[tensor, "eps"] = config.eps_scale(tensor, shape)
    return {key: float(x) for key, x in values.items()}


def fitted(of: Callable[[int], Values], name: str) -> dict[tuple[str, str], Fraction | None]:
    """The exponent of every value."""
    tables = [of(2**k) for k in range(DOUBLINGS + 1)]
    return {key: power([t[key] for t in tables], f"{' of '.join(key[::-1])} in {name}") for key in tables[0]}


def derived(roles: Mapping[str, tuple[str, str]], place: str, **options: Any) -> dict[tuple[str, str], Fraction | None]:
    """The exponents of n that `derive` gives, by tensor and by what is scaled."""
    ray, exponents = regime(place), {}
    for tensor, (network, role) in roles.items():
        rule = "mup" if network == "mlp" else options["parameterization"]
        d = derive(regime=place, architecture=network, **{**options, "parameterization": rule})
        scale = d.scaling.tensors[role]
        for what, power in {"init": scale.init_std, "lr": scale.lr, "eps": scale.eps}.items():
            if what != "eps" or options["optimizer"] != "sgd":
                exponents[tensor, what] = None if power is None else power.on(ray)
        if network == "moe":
            exponents["sum", "multiplier"] = -d.scaling.alpha.on(ray)
    return exponents


def cells(checkout: Path) -> list[OfficialCell]:
    """Every cell of both parts of the code.

    Raises:
        UsageError: a file is missing, or a cell is no power.
    """
    rows = []
    module, roles = loaded(checkout / MLP), {tensor: ("moe", role) for tensor, role in ROLES.items()}
    for place, optimizer, rule, name in MLP_CONFIGS:
        theirs = fitted(partial(mlp_values, module.CONFIGS[name]), name)
        ours = derived(roles, place, optimizer=optimizer, parameterization=rule, readout_init="maximal")
        rows += [OfficialCell(name, place, optimizer, rule, *key, theirs[key], x) for key, x in ours.items()]
    module = loaded(checkout / TRANSFORMER)
    for place, rule, readout, name in TRANSFORMER_CONFIGS:
        theirs = fitted(partial(transformer_values, module.SCALING_CONFIGS[name](), place), name)
        ours = derived(TRANSFORMER_ROLES, place, optimizer="adamw", parameterization=rule, readout_init=readout)
        rows += [OfficialCell(name, place, "adamw", rule, *key, theirs[key], ours[key]) for key in theirs]
    return rows


def loaded(path: Path) -> ModuleType:
    """A file of theirs as a module."""
    if not path.is_file():
        raise UsageError(f"there is no {path}; give a checkout of github.com/vankadara-lab/mssp-moe")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def shown(exponent: Fraction | None) -> str:
    """``0`` is exactly zero, as everywhere."""
    return "0" if exponent is None else f"n^{exponent}"


@click.command()
@click.argument("checkout", type=click.Path(exists=True, file_okay=False, path_type=Path))
def main(checkout: Path) -> None:
    """Compare the scaling functions in CHECKOUT with `derive`, cell by cell."""
    try:
        compared = cells(checkout)
    except UsageError as error:
        click.echo(f"official_code: {error}", err=True)
        raise SystemExit(2) from None
    counts: dict[tuple[str, ...], list[bool]] = {}
    for c in compared:
        counts.setdefault((c.regime, c.optimizer, c.parameterization, c.config), []).append(c.theirs == c.ours)
    rows = [(*key, f"{sum(equal)} of {len(equal)}") for key, equal in counts.items()]
    click.echo(tabulate(rows, ("regime", "optimizer", "parameterization", "their configuration", "equal")))
    differ = [c for c in compared if c.theirs != c.ours]
    for c in differ:
        where = f"regime {c.regime}, {c.optimizer}, {c.parameterization}"
        click.echo(f"differs: {where}: {c.what} of {c.tensor} is {shown(c.theirs)} there, {shown(c.ours)} here")
    click.echo(f"\n{len(compared) - len(differ)} of {len(compared)} cells are equal")
    raise SystemExit(1 if differ else 0)


if __name__ == "__main__":
    main()
