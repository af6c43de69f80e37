"""``scalecalc check-model``: trains small models to check whether a recipe, or a model's own settings, scale as
derived.

Read next: ``apply/checking.py`` (what a model must be), ``tracing/measuring.py`` (what is measured).
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from scaling_algebra.commands.options import (
    FORMAT,
    Count,
    ModuleName,
    PathType,
    check_output,
    format_examples,
    print_or_write,
)
from scaling_algebra.documents.blocks import Heading, Lines, literal
from scaling_algebra.files import HUGGING_FACE
from scaling_algebra.recipes.files import read_config
from scaling_algebra.solver.presentation import first_lines


@click.command(
    "check-model",
    epilog=format_examples(
        "scalecalc check-model mymodel.py:build --base N=32,N_e=32,M=4,K=2 --target N=128,N_e=128,M=16,K=8",
        "scalecalc check-model hf:config.json --base N=32,N_e=64,M=4,K=2,L=2 --target N=32,N_e=64,M=4,K=2,L=8",
    ),
)
@click.argument("model", type=ModuleName(), metavar="FILE.py:NAME")
@click.option("--base", metavar="SIZES", help="Sizes of the smallest model, such as N=32,N_e=32,M=4,K=2.")
@click.option("--target", metavar="SIZES", help="Sizes of the largest model; by default four times as wide.")
@click.option(
    "--optimizer", metavar="NAME", help="Optimizer, as for derive; by default the one that build returns, or AdamW."
)
@click.option("--points", type=Count(3, 20), metavar="N", help="Number of sizes, from base to target.  [default: 3]")
@click.option("--seeds", type=Count(4, 1000), metavar="N", help="Replicas at every size.  [default: 6]")
@click.option(
    "--steps",
    type=Count(2, 100),
    metavar="T",
    help="Number of optimizer steps; every step is judged. By default two, and one more for each parameter that "
    "starts at zero and delays the gradients of others.",
)
@click.option(
    "--strict", is_flag=True, default=None, help="Fail with exit code 2 if the equations of the module cannot be read."
)
@click.option("--all", "every", is_flag=True, help="Print all rows, including those that agree.")
@FORMAT
@click.option("-o", "--output", type=PathType(), metavar="FILE", help="Write to this file instead of stdout.")
def command(model: str, every: bool, form: str | None, output: Path | None, **sizes: Any) -> int:
    """Read a model, train it at several sizes, and judge whether its signals scale as derived.

    FILE.py:NAME is your function build(sizes), which gets the sizes as a dict and returns a torch.nn.Module, to be
    trained with the derived numbers; or the module and its optimizer, whose own initial values and rates are then
    checked. The file may define SCALING, a dict of these options. Or give hf:config.json, a configuration of
    transformers; no weights are read.

    Weights are random, the input is the same at every size, and real optimizer steps are done on one CPU. Every
    parameter's update and every module's output should grow as the engine certifies. The negative control has one std
    and one learning rate for all parameters.

    Exit codes: 0 agrees, 1 refuted, 2 wrong usage or a module that cannot be built, 3 inconclusive. A module whose
    equations cannot be read is checked by the shapes of its parameters, and its report says so; with --strict it is an
    error (2) before anything is trained.
    """
    check_output(output, form)
    from scaling_algebra.verify.apply.blame import find_first_to_blame
    from scaling_algebra.verify.apply.checking import check_model
    from scaling_algebra.verify.apply.loading import load_build
    from scaling_algebra.verify.judging import presentation
    from scaling_algebra.verify.tracing.config_reading import list_omitted_parts

    build, options = load_build(model, {key: value for key, value in sizes.items() if value is not None})
    report = check_model(build, **options)
    ends = " to ".join(",".join(f"{axis}={n}" for axis, n in report.dims[k].items()) for k in (0, -1))
    document = presentation.build_report_document(report, f"{model}, {ends}", every)
    blocks, read = list(document.blocks), [*map(literal, report.environment["read"])]
    above: list[str] = []
    if model.startswith(HUGGING_FACE):
        above += list_omitted_parts(read_config(Path(model.removeprefix(HUGGING_FACE))), report.dims[-1])
    if level := report.environment["level"]:
        left = first_lines(report.environment["open"], '.environment["open"]')
        above += [f"exponents: {level[0]}", *left, *level[1:]]
    blocks[1:1] = [Lines.of(*map(literal, above))] if above else []
    if (first := find_first_to_blame(report)) is not None:
        said = f"the first that does not scale: {first.quantity} at step {first.step}"
        blocks.insert(2 + bool(above), Lines.of(literal(said)))
        document = replace(document, closing=f"{document.closing}; {said}")
    if read:
        blocks += [Heading("read off the module", 2), Lines.of(*read, listed=True)]
    print_or_write(replace(document, blocks=tuple(blocks)), form, output)
    return report.exit_code
