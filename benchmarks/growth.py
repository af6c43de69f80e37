"""Times muP for networks that grow in layers, steps and number of indices, and draws docs/assets/growth.png.

Run: ``python benchmarks/growth.py`` (some minutes; every point is a fresh process, and a curve ends at the first point
without an answer within ``SECONDS``).
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

from fresh import build_command, run_fresh
from matplotlib.figure import Figure

TARGET = Path(__file__).parents[1] / "docs" / "assets" / "growth.png"
SECONDS = 30
LAYERS, STEPS, LETTERS = (2, 5, 10, 20, 50, 100), (1, 2, 3, 4, 5, 6), (1, 2, 3, 4, 5)


def write_chain(layers: int, function: str = "", indices: int = 1) -> str:
    """Returns the file of a chain: an input, hidden layers, a readout.

    Args:
        layers: number of matrices.
        function: applied to every hidden signal; "" for none.
        indices: number of indices of every signal, each of its own growing axis.
    """
    inner, outer = "abcdeg"[:indices], "ijklmn"[:indices]
    one, two = ",".join(inner), ",".join(outer)
    lines = [f"h1[{one}] = W1[{one},x] data[x]"]
    for k in range(2, layers):
        read = f"{function}(h{k - 1}[{one}])" if function else f"h{k - 1}[{one}]"
        lines.append(f"h{k}[{two}] = W{k}[{two},{one}] {read}")
    lines.append(f"f = W{layers}[{one}] h{layers - 1}[{one}]")
    axes = {"x": "D"} | {x: f"A{k}" for side in (inner, outer) for k, x in enumerate(side)}
    said = ", ".join(f'{x} = "{axis}"' for x, axis in axes.items())
    equations = "\n".join(lines)
    return f'name = "chain"\naxes = {{ {said} }}\nequations = """\n{equations}\n"""\n'


def time_answer(text: str, indices: int, verb: str, *more: str) -> float | None:
    """Returns the CPU seconds of one answer; None if they exceed ``SECONDS``."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "chain.toml"
        file.write_text(text, encoding="utf-8")
        where = ["--network", str(file), "--ray", ",".join(f"A{k}=1" for k in range(indices))]
        asked = [verb, *where, "--optimizer", "sgd", "--parameterization", "mup", *more]
        done = run_fresh(build_command(*asked), limit=SECONDS)
    return done.cpu if done.status == 0 else None


def measure_curve(sizes: tuple[int, ...], of: Callable[[int], float | None]) -> tuple[list[int], list[float]]:
    """Returns the points of a curve, up to the first without an answer."""
    points: list[tuple[int, float]] = []
    for n in sizes:
        if (taken := of(n)) is None:
            break
        points.append((n, taken))
        print(n, round(taken, 2), flush=True)
    return [n for n, _ in points], [taken for _, taken in points]


def main() -> None:
    """Times all curves and draws them."""
    figure = Figure(figsize=(10, 3.2), layout="constrained")
    titles = ("layers", "steps (four layers)", "indices of a signal (three layers)")
    for axes, title in zip(figure.subplots(1, 3, sharey=True), titles, strict=True):
        for function in ("", "tanh"):
            asked: tuple[tuple[int, ...], Callable[[int], float | None]] = {
                "layers": (LAYERS, lambda n, f=function: time_answer(write_chain(n, f), 1, "derive")),
                "steps": (STEPS, lambda n, f=function: time_answer(write_chain(4, f), 1, "signals", "--steps", str(n))),
                "indices": (LETTERS, lambda n, f=function: time_answer(write_chain(3, f, n), n, "derive")),
            }[title.split()[0]]
            axes.loglog(*measure_curve(*asked), "o-", label=function or "linear")
        axes.set(xlabel=title)
        axes.set_xticks(asked[0], labels=map(str, asked[0]))
        axes.minorticks_off()
        axes.legend()
    figure.axes[0].set(ylabel="CPU seconds of one answer")
    figure.savefig(TARGET, dpi=110)


if __name__ == "__main__":
    main()
