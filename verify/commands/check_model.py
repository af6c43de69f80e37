"""``scalecalc check-model``: does a recipe hold on a model, or do its own rates scale? Trains small ones.

Read next: ``apply/contract.py`` (what a model must be), ``apply/checking.py`` (what is measured), ``apply/families.py``
(families that are built).
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import click

from scaling_algebra.commands.options import FORMAT, Count, PathType, emit, examples, tried
from scaling_algebra.documents.blocks import Document, Lines
from scaling_algebra.errors import UsageError


@click.command(
    "check-model",
    epilog=examples(
        "scalecalc check-model mymodel.py:build --base N=32,N_e=32,M=4,K=2 --target N=128,N_e=128,M=16,K=2",
        "scalecalc check-model --family mixtral --target N=128,N_e=32,M=16,K=8",
        "scalecalc check-model --family llama --seeds 8",
    ),
)
@click.argument("model", metavar="[FILE.py:NAME]", required=False)
@click.option(
    "--family", metavar="NAME", help="Instead, a family of transformers: llama, mixtral, qwen3_moe, olmoe, ..."
)
@click.option("--base", metavar="SIZES", help="Of the smallest model; of a family N=32 or N=32,N_e=32,M=4,K=2.")
@click.option("--target", metavar="SIZES", help="Of the largest; of a family four times as wide.")
@click.option("--points", type=Count(2, 20), metavar="N", help="Sizes between them, both included.  [default: 3]")
@click.option("--role", "roles", multiple=True, metavar="PATTERN=ROLE", help="Role of parameters, as plan takes it.")
@click.option("--seeds", type=Count(1, 1000), metavar="N", help="Replicas at every size.  [default: 6]")
@click.option("--steps", type=Count(2, 100), metavar="T", help="Steps; two are judged.  [default: 2]")
@click.option("--all", "every", is_flag=True, help="Print every row, not only those that do not agree.")
@FORMAT
@click.option("-o", "--output", type=PathType(), metavar="FILE", help="Write to this file instead of stdout.")
def command(
    model: str | None,
    family: str | None,
    roles: tuple[str, ...],
    every: bool,
    form: str | None,
    output: Path | None,
    **sizes: Any,
) -> int:
    """Train a model at several sizes, and judge the parts of its signals.

    FILE.py:NAME: a function of your own that gets the sizes as a dict and returns a torch.nn.Module, which is trained
    with the numbers of a recipe; or the module and its optimizer: then its own initial values and rates are checked.
    Beside it SCALING, a dict, may hold these options and the roles. All that is asked of it: docs/guide/check.md.

    Random weights, the same tokens at every size, real steps, on one CPU. Every part is to grow as the engine
    certifies; one std and one learning rate for all is the control.

    Exit codes as of verify: 0 agrees, 1 refuted, 2 wrong usage, 3 inconclusive. A family needs transformers.
    """
    tried(output, form)
    if (model is None) is (family is None):
        raise UsageError("give a model as FILE.py:NAME, or --family NAME; one of them")
    options = {key: value for key, value in sizes.items() if value is not None}
    if roles:
        options["roles"] = dict(_role(text) for text in roles)

    from scaling_algebra.verify.apply.checking import check_model
    from scaling_algebra.verify.apply.families import build_family, dense
    from scaling_algebra.verify.apply.gates import AGGREGATION
    from scaling_algebra.verify.apply.loading import load
    from scaling_algebra.verify.judging import presentation

    build: Any
    if model is not None:
        build, options = load(model, options)
    else:
        assert family is not None
        build = partial(build_family, family)
        usual = ("N=32", "N=128") if dense(family) else ("N=32,N_e=32,M=4,K=2", "N=128,N_e=128,M=4,K=2")
        options = {"base": usual[0], "target": usual[1], **options}
    report = check_model(build, **options)
    gate = report.environment["gate"]
    heading = f"{model or family}, {_text(options['base'])} to {_text(options['target'])}"
    document = presentation.report(report, heading, every)
    blocks = [*document.blocks, *([Lines.of(f"gate: {AGGREGATION[gate]}", listed=True)] if gate else [])]
    emit(Document(tuple(blocks), {**document.record, "gate": gate or None}), form, output)
    return report.exit_code


def _role(text: str) -> tuple[str, str]:
    pattern, equals, role = text.rpartition("=")
    if not (equals and pattern and role):
        raise UsageError(f"cannot read --role {text!r}; write PATTERN=ROLE, for example 'gate=router'")
    return pattern, role


def _text(sizes: Any) -> str:
    return sizes if isinstance(sizes, str) else ",".join(f"{axis}={n}" for axis, n in sizes.items())
