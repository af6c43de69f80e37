"""Documents of limits: numbers by updates, and the deviations of training at finite width."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from scaling_algebra.documents.blocks import Block, Document, Grid, Heading, Lines
from scaling_algebra.errors import count_noun
from scaling_algebra.verify.judging.fit import Verdict, round_for_json
from scaling_algebra.verify.judging.presentation import format_interval, format_signed

from .course import SETS, Computed
from .vectors import Values

if TYPE_CHECKING:
    from .comparison import Compared

COLUMNS = 10
"""Maximum number of updates that are printed; the record contains all."""


def build_limit_document(t: Computed, compared: Mapping[str, Compared]) -> Document:
    """Returns the output of the command for a limit.

    It lists the output f by updates, all other numbers, the rms of growing vectors, and how far networks trained at
    finite width (``compared``, by signal) are from the limit.
    """
    course, steps = t.course, len(t.states)
    blocks: list[Block] = [Heading(f"limit of infinite width: {course.derivation.configuration}")]
    columns = sorted({round(k) for k in np.linspace(0, steps - 1, min(COLUMNS, steps))}) if steps else []
    named = dict(_list_rows(t))
    rows = [(name, *(f"{values[k]:z.4f}" for k in columns)) for name, values in named.items()]
    if rows:
        blocks.append(Grid.of(("after updates", *map(str, columns)), rows))
    if compared:
        largest = f"largest error at n = {next(iter(compared.values())).sizes[-1]}"
        header = ("trained", largest, "of", "deviation falls as n^", "interval", "verdict")
        found = []
        for c in compared.values():
            slope = format_signed(c.slope.slope), format_interval(c.slope.low, c.slope.high)
            found.append((c.name, f"{c.error:.4f}", f"{c.scale:.4f}", *slope, c.verdict))
        blocks.append(Grid.of(header, found))
    lines = ["d NAME: gradient of f; |NAME|: root-mean-square of the entries, of experts that are alike of one"]
    if t.error:
        lines.append(
            f"expectations are sampled: f is known to {t.error:.1g}, its standard error over {SETS} sets of samples"
        )
    after = f" after {count_noun(steps - 1, 'update')}" if steps else ""
    lines += [f"undecided{after}: {t.why}"] if t.why else []
    if compared:
        lines.append(
            "error: of the mean over seeds, of: the largest value of the limit; a deviation must fall as n^(-1/2)"
        )
        lines.append(_describe_delay(t, compared))
        if not all(np.isfinite(c.error) for c in compared.values()):
            lines.append("nan, inf: a finite network diverges; give a smaller --lr or fewer --steps")
    record = {
        "configuration": course.derivation.configuration.as_json(),
        "steps": course.steps,
        "samples": len(course.inputs),
        "lr": course.lr,
        "limit": {name: [round_for_json(x) for x in values] for name, values in named.items()},
        "undecided": t.why or None,
        "error": round_for_json(t.error),
        "trained": {name: c.as_json() for name, c in compared.items()},
    }
    return Document((*blocks, Lines.of(*lines)), record)


def compute_exit_code(t: Computed, compared: Mapping[str, Compared]) -> int:
    """Returns the exit code: 1 if a difference between trained networks and the limit does not fall as n^(-1/2), 3 if
    the limit ends early or a comparison is inconclusive, else 0.
    """
    verdicts = {c.verdict for c in compared.values()}
    return 1 if Verdict.REFUTED in verdicts else 3 if t.why or Verdict.INCONCLUSIVE in verdicts else 0


MOVED = 0.1
"""Change of the output that ends the delay of learning (MSSP paper, Fig. 1 and App. Q.3)."""


def _describe_delay(t: Computed, compared: Mapping[str, Compared]) -> str:
    """Describes after how many updates the output has changed by ``MOVED``, in the limit and at every trained
    width.
    """
    f = compared[t.limit.network.output]
    courses = {"in the limit": t.outputs, **{f"at n = {n}": x for n, x in zip(f.sizes, f.means, strict=True)}}
    found = []
    for where, values in courses.items():
        late = (np.abs(values - values[0]).max(1) > MOVED).tolist()
        found.append(f"{late.index(True)} {where}" if any(late) else f"more than {len(values) - 1} {where}")
    return f"updates until f has moved by {MOVED}: {', '.join(found)}"


def _list_rows(t: Computed) -> Iterator[tuple[str, Values]]:
    """Yields (label, values after 0, 1, ... updates) for every number of the limit.

    These are the entries of signals and gradients without growing indices, and the rms of growing signals, labelled
    ``|name|``. Of a signal whose entries are all equal for all samples, only one entry is yielded.
    """
    network, output = t.limit.network, t.limit.network.output
    whole: dict[str, Any] = {}
    for prefix, part in (("", "signals"), ("d ", "gradients")):
        for name in getattr(t.states[0][0], part) if t.states else ():
            grows = not prefix and set(network.signals[name]) & t.limit.growing
            whole[f"|{name}|" if grows else prefix + name] = [[getattr(s, part)[name] for s in row] for row in t.states]
    for name in sorted(whole, key=lambda x: (x != output, x.startswith("d "), x.startswith("|"))):
        values = np.array(whole[name])  # updates, samples, indices
        shared = values[:, :1].reshape(len(values), -1)[:, :1]
        if np.allclose(values.reshape(len(values), -1), shared, rtol=1e-9, atol=1e-12):
            yield name, shared[:, 0]
            continue
        for index in np.ndindex(values.shape[1:]):
            taken = index if len(t.course.inputs) > 1 else index[1:]
            yield f"{name}[{','.join(map(str, taken))}]", values[(slice(None), *index)]
