"""Prints medians and ratios: cold commands against ``import sympy``, cold signals of every configuration, and the
engine against the brute force on single monomials.

Run: ``make bench`` or ``python benchmarks/run.py [--runs 5]``. Every cold figure is a fresh process.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import click
from fresh import command
from fresh import median as cold
from tabulate import tabulate

from scaling_algebra.counting.algebra import Algebra
from scaling_algebra.counting.kernels import Kernel
from scaling_algebra.counting.signals import Rung, Signal
from scaling_algebra.spec.axes import REGIMES, Ray
from scaling_algebra.spec.optimizers import OPTIMIZERS

sys.path.append(str(Path(__file__).parents[1] / "tests" / "engine"))
from brute_force import TensorNetwork, pairing_count, wick_two_copies

WHOLE = (
    ["explain", "--formula", "h3.A2.2@1", "--optimizer", "sgd"],
    ["explain", "--formula", "h3@1", "--optimizer", "sgd"],
    ["derive", "--architecture", "attention", "--ray", "N=1,M=1"],
    ["explain", "h3.A2.2@2", "--regime", "II", "--optimizer", "sgd", "--parameterization", "mup"],
    ["audit", "--source", "mssp"],
    ["table", "--all", "--check"],
    ["rays", "--parameterization", "mup", "--optimizer", "sgd"],
    ["derive", "--regime", "III", "--optimizer", "adam", "--parameterization", "mup", "--prove"],
    ["derive", "--regime", "III", "--optimizer", "adam", "--parameterization", "mssp", "--prove"],
    ["derive", "--regime", "II", "--optimizer", "adam", "--parameterization", "mup", "--prove"],
    ["signals", "--regime", "II", "--optimizer", "adam", "--parameterization", "mssp", "--steps", "3"],
)
"""Commands that are timed as a user runs them."""


def median(run: Callable[[], object], runs: int) -> float:
    """Median seconds."""
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def chain(leaves: int) -> TensorNetwork:
    """``W W^T W W^T ... x``: the same matrix alternating with its transpose, on a vector."""
    letters = "abcdefghij"[: leaves + 1]
    net = [("W", letters[k : k + 2] if k % 2 == 0 else letters[k + 1] + letters[k]) for k in range(leaves - 1)]
    net.append(("x" if leaves % 2 else "y", letters[leaves - 1]))
    used = {x for _, xs in net for x in xs}
    return TensorNetwork(tuple(net), "a", {x: Fraction(1) for x in used})


def engine(net: TensorNetwork) -> Fraction:
    """The same monomial by the engine."""
    algebra = Algebra(Ray({"N": 1, "N_e": 1, "M": 1}), {x: "N" for x in net.dims}, [], Fraction(100))
    algebra.climb(Rung(Fraction(100), work=10**9))
    total = algebra.constant("")
    for k, (name, xs) in enumerate(net.leaves):
        kernel = Kernel(("N",) * len(xs), tuple(range(len(xs))), ((name, tuple(range(len(xs)))),))
        later = {x for _, ys in net.leaves[k + 1 :] for x in ys} | set(net.opens)
        out = "".join(x for x in dict.fromkeys(total.letters + xs) if x in later)
        total = algebra.contract(total, Signal(xs, {algebra.intern(kernel): 0}), out)
    lead = algebra.rms(total)
    assert lead is not None
    return algebra.value(lead)


@click.command()
@click.option("--runs", default=5, show_default=True, help="Runs per figure.")
def main(runs: int) -> None:
    """Print all figures."""
    base = cold("import sympy", runs)
    rows = [("import sympy", f"{base:.2f}", "1.0")]
    for regime in REGIMES:
        for optimizer in ("sgd", "adam"):
            args = ["derive", "--regime", regime, "--optimizer", optimizer]
            seconds = cold(command(*args), runs)
            rows.append((f"derive {regime} {optimizer} (muP and MSSP)", f"{seconds:.2f}", f"{seconds / base:.1f}"))
    for args in WHOLE:
        seconds = cold(command(*args), max(1, runs // 3))
        rows.append((" ".join(args), f"{seconds:.2f}", f"{seconds / base:.1f}"))
    print(tabulate(rows, ("cold command", "median CPU s", "x import sympy"), tablefmt="github"), "\n")
    rows, total = [], 0.0
    for regime in REGIMES:
        for optimizer in OPTIMIZERS:
            for name in ("mup", "mssp"):
                for readout in ("maximal", "zero"):
                    args = ["signals", "--regime", regime, "--optimizer", optimizer, "--parameterization", name]
                    seconds = cold(command(*args, "--readout-init", readout), max(1, runs // 3))
                    rows.append((regime, optimizer, name, readout, f"{seconds:.2f}"))
                    total += seconds
    rows.append(("all", "", "", "", f"{total:.1f}"))
    print(
        tabulate(rows, ("regime", "optimizer", "parameterization", "readout", "signals, CPU s"), tablefmt="github"),
        "\n",
    )
    rows = []
    for leaves in (3, 5, 7):
        net = chain(leaves)
        assert engine(net) == wick_two_copies(net)
        brute, fast = median(lambda net=net: wick_two_copies(net), runs), median(lambda net=net: engine(net), runs)
        pairings = pairing_count([name for name, _ in net.leaves])
        rows.append((str(leaves), str(pairings), f"{brute * 1e3:.2f}", f"{fast * 1e3:.2f}", f"{brute / fast:.1f}"))
    print(tabulate(rows, ("leaves", "pairings", "brute force ms", "engine ms", "ratio"), tablefmt="github"))


if __name__ == "__main__":
    main()
