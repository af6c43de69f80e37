"""``scalecalc recipe``: numbers for a large model from those tuned on a small one."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from scaling_algebra.errors import UsageError
from scaling_algebra.recipes.files import Start, config_sizes, read_config, read_start, values
from scaling_algebra.recipes.presentation import FORMS
from scaling_algebra.recipes.recipe import with_either_epsilon
from scaling_algebra.spec.level import OpenDemand

from .horizon import answer_horizon, parse_change
from .options import (
    CONFIGS,
    GAUGE,
    OPTIMIZER,
    READOUT_INIT,
    STRICT,
    Answer,
    PathType,
    choose_network,
    combine_options,
    find_config_file,
    find_traced,
    format_examples,
    network_options,
    parameterization_option,
    prints_answer,
)

ENDINGS = {"toml": ".toml", "python": ".py"}
"""Endings of the files of ``FORMS``."""
TUNED = {"lr": "Learning rate", "eps": "Adam's epsilon", "std": "Init std", "decay": "Weight decay, as torch takes it,"}
"""Values tuned at the base, by option."""
SCOPE = "for all tensors, or for those of ROLE, which is a tensor or an optimizer (repeatable)."
GENERAL = "the rows are those of a generic Transformer, not of {}; give --model hf:{} to read the model's own code"
ALONE = ("optimizer", "hold", "batch", "tokens", "base", "axes", "experts", "form", "output")
"""Parameters that a question about batch and tokens alone may have."""


@click.command(
    "recipe",
    epilog=format_examples(
        "scalecalc recipe --base N=1024,N_e=512,M=64,K=8 --target N=4096,N_e=1024,M=256,K=8 --lr 3e-3 --std 0.02",
        "scalecalc recipe --base N=512,L=8 --target N=4096,L=32 --lr 3e-3 --lr embedding=1e-2 --decay 0.1",
        "scalecalc recipe --base base.toml --target-hf config.json --format toml -o target.toml",
        "scalecalc recipe --model hf:config.json --base-hf tuned.json --lr 3e-3 --eps 1e-8 --std 0.02",
        "scalecalc recipe --optimizer adamw --batch 256:1024 --tokens 20e9:200e9 --base lr=3e-3,beta2=0.95,wd=0.1",
        "scalecalc recipe --hold sde,sde-time",
    ),
)
@click.option(
    "--base", metavar="SIZES|FILE.toml", help="Sizes of the tuned model, or a TOML file with them and the tuned values."
)
@click.option("--target", metavar="SIZES|FILE.toml", help="Sizes of the model to be trained.")
@click.option(
    "--base-hf",
    type=PathType(),
    metavar="CONFIG.json",
    help="Hugging Face configuration of the base, instead of --base.",
)
@click.option(
    "--target-hf",
    type=PathType(),
    metavar="CONFIG.json",
    help="Hugging Face configuration of the target, instead of --target.",
)
@combine_options(OPTIMIZER, parameterization_option())
@combine_options(
    *(
        click.option(f"--{name}", multiple=True, metavar="[ROLE=]NUMBER", help=f"{what} at the base: {SCOPE}")
        for name, what in TUNED.items()
    )
)
@click.option(
    "--batch", metavar="FROM:TO", help="Batch size at the base and at the target, if it changes, such as 256:1024."
)
@click.option(
    "--tokens", metavar="FROM:TO", help="Number of training tokens at the base and at the target, such as 20e9:200e9."
)
@click.option(
    "--hold",
    metavar="NAME,NAME",
    help="Invariants to keep when batch and tokens change, separated by commas: sde, sde-time, bias, timescale, "
    "averages, half-life, loss, schedule, mup, or all; by default sde, timescale and schedule. For example, "
    "half-life keeps the number of tokens after which Adam's averages have forgotten half. recipe --hold all "
    "--optimizer adamw explains each.",
)
@click.option(
    "--axes", metavar="B,T", help="Without sizes: the quantities that change, which are batch B, tokens T, or both."
)
@click.option(
    "--experts",
    is_flag=True,
    help="Without sizes: also print how the values of a top-K expert differ, as powers of K/M.",
)
@combine_options(network_options("the Transformer above"), READOUT_INIT, GAUGE, STRICT)
@prints_answer(ENDINGS)
def command(
    base: str | None,
    target: str | None,
    base_hf: Path | None,
    target_hf: Path | None,
    architecture: str | None,
    network: Path | None,
    batch: str | None,
    tokens: str | None,
    hold: str | None,
    axes: str | None,
    experts: bool,
    form: str | None,
    strict: bool,
    **where: Any,
) -> tuple[Answer, int]:
    """Compute init std, learning rate, epsilon and weight decay of every tensor at a target size from those at a base
    size.

    Without --architecture the model is a Transformer with depth L: embedding, norm gains, hidden matrices (attention
    and dense layers), biases, router, experts and readout (the unembedding). Without sizes, --batch, --tokens or --hold
    give the powers of batch and tokens alone, and --base has values such as lr=3e-3,beta2=0.95; exit code 1 where
    invariants contradict each other. Where no parameterization exists on the ray between the sizes, the powers of the
    nearest ray with one are printed, and a warning says which signal they let grow. Exit code 3: the numbers are
    printed, but some size that they rest on is not certified.
    """
    held = None if hold is None else [name.strip() for name in hold.split(",")]
    if target is None and target_hf is None and base_hf is not None:
        target_hf = find_config_file()
    if target is None and target_hf is None and (experts or any(x is not None for x in (hold, axes, batch, tokens))):
        context = click.get_current_context()
        said = (n for n in context.params if context.get_parameter_source(n) is ParameterSource.COMMANDLINE)
        if (strange := [n for n in said if n not in ALONE]) or form in FORMS:
            what = f"--{strange[0].replace('_', '-')}" if strange else f"the format {form}"
            raise UsageError(
                f"{what} needs a model; give --target, or leave it out for the effect of batch and tokens alone"
            )
        return answer_horizon(where["optimizer"], held, axes, batch, tokens, base, experts)
    if axes is not None or experts:
        raise UsageError("--axes and --experts have no effect with --target; leave them out")
    start = _read_side("base", base, base_hf or (find_config_file() if base is None else None))
    end = _read_side("target", target, target_hf)
    other = next((x for x in (base_hf, target_hf) if x not in (None, find_config_file())), None)
    find_traced(f"L={end.sizes.get('L', 0) - start.sizes.get('L', 0)}", beside=other)
    where |= {name: {**start.values.get(name, {}), **values(name, where[name])} or None for name in TUNED}
    where |= {"batch": parse_change("batch", batch), "tokens": parse_change("tokens", tokens)}
    where |= {"hold": held, "network": choose_network(architecture, network), "strict": strict}
    asked = {name: value for name, value in where.items() if value is not None}
    say = partial(click.echo, err=True)
    r = with_either_epsilon(start.sizes, end.sizes, lambda line: say(f"scalecalc: {line}"), **asked)
    if find_traced() is not None:
        model, sizes = find_traced(), r.way.sizes
        odd = tuple(OpenDemand("both models are read", "the configurations", 0, line) for line in model.odd)
        shares = model.model.find_open_shares(*sizes)
        r = replace(r, notes=tuple(model.describe_remaining_factors(r.multipliers, *sizes)), open=(*shares, *odd))
    if where["network"] is None and (file := target_hf or base_hf) is not None:
        r = replace(r, notes=(GENERAL.format(read_config(file)["model_type"], file),))
    answer = FORMS[form](r) if form and form in FORMS else r.document()
    if r.instead is not None:
        grows = max(r.breaks, key=lambda x: x.factor, default=None)
        kept = (
            ""
            if grows is None
            else f"; with them {grows.signal} grows by a factor of {grows.factor:.3g} from base to target"
        )
        line = (
            f"there is no {r.configuration.parameterization.title} on the ray {r.way.ray} from base to target; the "
            f"powers are those of the ray {r.instead}{kept}"
        )
        click.echo(f"scalecalc: warning: {line}", err=True)
    if strict and (unread := r.configuration.network.unread):
        raise UsageError(unread)
    return answer, 1 if strict and r.instead is not None else 0 if r.level is None else r.level.code


def _read_side(label: str, given: str | None, config: Path | None) -> Start:
    """Reads the sizes of the base or the target, and the values tuned there.

    Raises:
        UsageError: not exactly one of the two options is given, or it cannot be read.
    """
    if (given is None) == (config is None):
        raise UsageError(f"give either --{label}, with sizes such as N=1024,N_e=512,M=64,K=8, or --{label}-hf")
    if config is not None and (file := find_config_file()) is not None:  # read the code of its family
        return Start(import_module(CONFIGS).read_config_sizes(file, config))
    if config is not None:
        return Start(config_sizes(config))
    assert given is not None
    return read_start(given, label)
