"""``scalecalc study limit``: computes a network's limit of infinite width, and trains finite widths for comparison."""

from __future__ import annotations

from dataclasses import replace

import click

from scaling_algebra import limits
from scaling_algebra.commands.options import Answer, Count, Name, format_examples, prints_answer, with_configuration
from scaling_algebra.documents.blocks import Lines
from scaling_algebra.errors import UsageError
from scaling_algebra.spec.configuration import Configuration
from scaling_algebra.spec.networks.language import TRACED

from .shared import DEVICE, explain_interrupts, option_with_default, parse_integers, parse_positive, show_progress

SAMPLES = 64
"""Maximum number of inputs."""
LOSSES = ("squared", "output")
READ = "computed from the equations as read (scalecalc list --model), with all constant factors and init stds set to 1"
"""Note for a module."""


@click.command(
    "study limit",
    epilog=format_examples(
        "scalecalc study limit --regime I --optimizer sgd --parameterization mup --architecture routers-sigmoid",
        "scalecalc study limit --regime III --optimizer sgd --parameterization mssp --sizes 16,32,64 --seeds 32",
        "scalecalc study limit --ray N=1 --optimizer momentum --parameterization mup --architecture mlp --samples 3",
        "scalecalc study limit --regime I --optimizer adam --parameterization mup --architecture routers-sigmoid",
    ),
)
@with_configuration
@option_with_default("--steps", default=8, type=Count(0, limits.STEPS), help="Number of updates.")
@option_with_default(
    "--lr", default="0.1", metavar="NUMBER", help="Learning rate of every tensor, to be multiplied by its power of n."
)
@option_with_default(
    "--samples",
    default=1,
    type=Count(1, SAMPLES),
    help="Number of inputs. Each has unit length; the targets are 1, -1, 1, ...",
)
@option_with_default(
    "--loss",
    default="squared",
    type=Name("loss", LOSSES),
    metavar="NAME",
    help="Loss to train with. squared: 1/2 (f - y)^2, averaged over inputs; output: f itself.",
)
@click.option("--sizes", metavar="N,N,...", help="Also train networks of these n, and compare them with the limit.")
@option_with_default("--seeds", default=16, type=Count(1, limits.SEEDS), help="Number of networks at each n.")
@DEVICE
@prints_answer()
def command(
    asked: Configuration,
    steps: int,
    lr: str,
    samples: int,
    loss: str,
    sizes: str | None,
    seeds: int,
    device: str,
) -> tuple[Answer, int]:
    """Compute the infinite-width limit: the output f, every scalar and the size of every vector after each update.

    This applies the master theorem of Tensor Programs to networks of products, sums and functions with a fixed number
    of layers, trained with SGD, momentum, or entrywise steps such as Adam's. A function of growing vectors is
    integrated exactly if it depends on at most three Gaussian vectors. Expectations are sampled, and the error of f is
    printed, for functions of more vectors, for entrywise steps, and if the number of experts grows. Exit codes: 0
    computed, and trained networks approach the limit as n^(-1/2); 1 they do not; 2 wrong usage; 3 undecided from some
    update on, for example where f diverges or its error exceeds 5 %.
    """
    rate = parse_positive("learning rate", lr)
    values = None if sizes is None else parse_integers("sizes", sizes)
    if why := asked.network.stands:
        raise UsageError(f"{why}, and a limit needs the equations; give them with --network")

    import numpy  # noqa: F401  torch warns where it is missing

    from scaling_algebra.solver.derivation import derive
    from scaling_algebra.verify.infinite_width.course import Descent, compute_trajectory
    from scaling_algebra.verify.infinite_width.presentation import build_limit_document, compute_exit_code
    from scaling_algebra.verify.measuring.sizes import plan_sizes

    derivation, found = derive(asked), {}
    planned = None if values is None else plan_sizes(asked.ray, values)
    t = compute_trajectory(Descent.of(derivation, steps, rate, samples, loss))
    if planned is not None:
        from scaling_algebra.verify.hardware import Hardware, use_one_thread
        from scaling_algebra.verify.infinite_width.comparison import compare_widths
        from scaling_algebra.verify.measuring.cells import Setup
        from scaling_algebra.verify.measuring.runs import check_run

        hardware = Hardware.of(device)
        check_run(Setup(derivation, steps, tuple(planned)), free=hardware.free)
        with explain_interrupts(None), show_progress() as watch, use_one_thread():
            found = compare_widths(t, planned, seeds, hardware.device, lambda what: watch(None, 0, what))
    limit = build_limit_document(t, found)
    said = [Lines.of("", READ)] if asked.network.name == TRACED else []
    return replace(limit, blocks=(*limit.blocks, *said)), compute_exit_code(t, found)
