"""Draws cases, asks the engine, trains them, judges, and follows disagreements to larger sizes."""

from __future__ import annotations

import json
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import chain, product
from math import prod

import numpy as np
import torch

from scaling_algebra import Infeasible, network
from scaling_algebra.dynamics.analysis import Analysis
from scaling_algebra.errors import UsageError
from scaling_algebra.spec.optimizers import Optimizer, optimizer

from ..engine.scenarios import placed
from .evidence import ROOMS, ROOT, digest
from .interpreter import TOKENS, InterpretedRun, matrices, sizes
from .judge import MeasuredVerdict, judge
from .networks import AXES, TrainingCase, natural, random_case

Key = tuple[str, int]
"""A quantity and a step."""
Judged = tuple["Fraction | None", MeasuredVerdict]
STEPS = 2
SCALES, FURTHER = (1.0, 2.0, 4.0, 8.0, 16.0), (32.0, 64.0, 256.0, 1024.0, 4096.0, 16384.0)
"""Sizes of every case, and those of what does not agree, as far as they fit: of n^0 with a small factor beside n^(-1/2)
only the last is seen (case 140)."""
ENTRIES = 2_500_000
"""Entries of all replicas of a case at one size: what limits the seeds."""
SEEDS, FEWEST = (10, 400), 40
"""Fewest and most seeds; and the fewest beyond the sizes of every case, where noise must not hide what was seen."""
KEPT = ROOT / "runs" / "random-networks.jsonl"
SETTLED = {
    76: "g2@2 is a product of many Gaussians: its median, 90 % and 99 % are n^(-1/2) to 1 % from n = 16 to 2^20, and"
    " its root-mean-square is with a tenth of the rate",
    204: "h4.cross@2 is .045 n^(-1/2) beside n^(-3/2): times n^(1/2) .067, .054, .049 at n = 2048, 4096, 8192",
    229: "the gradient of W1 at t = 1 is exactly zero (measured below 2e-18), and a sign of its rounding is a step",
    254: "h7.cross@2 comes to its n^0 from below: n^.18, then n^.07 at n = 4096 to 16384, and norms bound it by n^0",
    410: "gW3@1 and gW4@1 hold what they are at t=0, n^(-5/2), which agrees there; beside it is n^(-3) from dW5, 12"
    " times as large at these sizes, since the learning rate that was drawn for W5 is large",
    423: "n^(-1/2) over all tokens (K/M in place of what 400 draw), of epsilon ten times as large -.48, -.52, -.50 to"
    " n = 1024: as drawn, the gradient begins at epsilon, and 400 tokens leave a share of n^(-1/4)",
    426: "as 423: h1.effective@1 is n^-.51, n^-.49, n^-.51",
    817: "g3@1 and g4@1 hold g8 h1 h2 h4, which comes to n^(-1/2) (g8@1: n^-.42), beside g5, n^(-3/2), larger at these"
    " sizes; what W1, W2 and W3 learn from them is at t = 2",
    836: "h4.effective@1 is n^(-1/2) log^2 n (slope -.22 at n = 1024): the smaller use of V has the sign where the"
    " product W4 h1 h2 of the larger one is near zero",
    825: "gV@0 is .72 n^-1 beside n^(-1/2): of .0238, .0124 at the last sizes that leaves .0075, .0050",
    1228: "silu of a square times h k is of degree four, of which a normalised step of its gradient makes 20: a few"
    " entries carry the mean square at n = 2^14. Medians over entries are n^0 and n^-1 to 1 %, and the mean square is"
    " so at a tenth of the rate",
    1264: "as 1228, with gelu and Shampoo: at a tenth of the rate all 108 agree to n = 4096",
    1268: "as 423: of epsilon ten times as large o.propagating@1 is n^-.47 to n = 256 and n^-.48 to n = 1024",
    1309: "as 1228, with gelu and Muon",
    273: "h11.change@1 is a sum: h10.change is 15 at all sizes, h9.change comes to n^(1/2), 1.2 at n = 512",
}
"""What sizes that every case can have refute, and larger ones do not."""
Answers = dict[tuple[str, int], "tuple[str, Fraction | None]"]


class EngineTooLong(Exception):
    """The engine took more time than it has, in seconds of this process."""


@contextmanager
def within(seconds: float) -> Iterator[None]:
    def late(*_: object) -> None:
        raise EngineTooLong

    before = signal.signal(signal.SIGPROF, late)
    signal.setitimer(signal.ITIMER_PROF, max(seconds, 0.01))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def analysis(case: TrainingCase) -> tuple[Analysis, dict[str, Fraction | None]]:
    """The engine on a case, and the point: the case's own, or the engine's muP."""
    net = network(case.name, case.text, case.axes)
    look = placed(net, rule(case), case.ray, case.point)
    at = look.point
    point = {f"{x}.{role}": p for x in "bcd" for role, p in getattr(at, x).items()} | dict(at.multipliers)
    return look, {**point, **case.point}


def rule(case: TrainingCase) -> Optimizer:
    found = optimizer(case.optimizer.removesuffix("-negligible"))
    return found.with_epsilon("negligible") if case.optimizer.endswith("-negligible") else found


def paced(case: TrainingCase, rng: random.Random) -> TrainingCase:
    """A case with exponents near natural ones: a step changes what its tensor makes by Theta(1), or by less."""
    case = natural(case, rng)
    flat = {f"{x}.{name}": Fraction(0) for x in "cd" for name in case.tensors}
    look, _ = analysis(replace(case, point={**case.point, **flat}))
    point = dict(case.point)
    stepper = rule(case)
    for name in case.tensors:
        gradient = look(f"g{name}", 0)
        size = gradient.size if gradient.decided and gradient.size is not None else Fraction(0)
        _, out, into = matrices(case, name)
        rate = {x: sum((case.rates.get(AXES[c], Fraction(0)) for c in x), Fraction(0)) for x in (out, into)}
        point[f"d.{name}"] = -size
        matrix = rate[out] / 2 + rate[into] / 2
        own = {"": size, "entry": Fraction(0), "matrix": -matrix}[stepper.normalises]
        own -= (point[f"b.{name}"] or Fraction(0)) if stepper.relative else 0
        point[f"c.{name}"] = own + rate[into] + rng.choice((0, 0, 0, 0, Fraction(1, 2)))
    return replace(case, point=point)


def answers(case: TrainingCase, seconds: float = 16.0) -> tuple[Answers, dict[str, Fraction | None]]:
    """What the engine says: (``decided`` or why not, exponent) by quantity and step.

    Raises:
        UsageError: it derives nothing. EngineTooLong: no time for that.
    """
    said: Answers = {}
    with within(seconds):
        look, point = analysis(case)
    end, late = time.process_time() + seconds, 0
    for name, t in product(list(look.table), range(STEPS + 1)):
        said[name, t] = ("time", None)
        if time.process_time() > end or late > 3:
            continue
        try:
            with within(min(2.0, end - time.process_time())):
                answer = look(name, t)
            said[name, t] = ("decided" if answer.decided else answer.why or "budget", answer.size)
        except EngineTooLong:  # what was interrupted is not asked again
            late, look = late + 1, Analysis(look.ray, look.point, look.optimizer, look.network)
    return said, point


Measured = dict[tuple[str, int], list[np.ndarray]]


def entries(case: TrainingCase, scale: float) -> int:
    """Of its tensors and signals."""
    dims = sizes(case, scale)
    seen = sum(prod(dims[c] for c in x.indices) for x in case.lines if "i" not in x.indices)
    tokens = TOKENS * (seen + dims["i"]) if case.routed else 0
    return tokens + sum(
        prod(dims[c] for c in indices) for indices in (*case.tensors.values(), *(x.indices for x in case.lines))
    )


def measured(
    case: TrainingCase, point: Mapping[str, object], scales: Sequence[float], more: int = 1, least: int = SEEDS[0]
) -> Measured:
    """Root-mean-squares of each replica, one array for every scale."""
    found: Measured = {}
    for scale in scales:
        each = entries(case, scale)
        seeds = int(min(max(more * ENTRIES // each, least), more * SEEDS[1]))
        parts: list[dict[tuple[str, int], np.ndarray]] = []
        chunk = max(1, min(seeds, 3 * ENTRIES // each) // 2 * 2)  # even, so no probe
        for k in range(0, seeds, chunk):
            run, part = InterpretedRun(case, point, scale, min(chunk, seeds - k), k), {}
            for t in range(STEPS + 1):
                part |= {(name, t): x.numpy() for name, x in run.quantities()}
                if t < STEPS:
                    run.step()
            parts.append(part)
        for key in parts[0]:
            found.setdefault(key, []).append(np.concatenate([p[key] for p in parts]))
    return found


@dataclass
class CaseReport:
    """What came of one case."""

    case: TrainingCase
    point: Mapping[str, object] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    refuted: dict[Key, Judged] = field(default_factory=dict)
    open: dict[Key, Judged] = field(default_factory=dict)

    def counted(self, word: str) -> None:
        self.counts[word] = self.counts.get(word, 0) + 1

    def lines(self) -> Iterator[str]:
        for (name, t), (e, v) in self.refuted.items():
            numbers = " ".join(f"{x:.3g}" for x in v.values)
            said = "0 (exact)" if e is None else f"n^({e})"
            yield f"{name}@{t}: engine {said}, slope {v.slope:+.2f} +- {v.error:.2f} ({v.why}): {numbers}"


def follow(case: TrainingCase, further: Sequence[float] = FURTHER, most: float = 5e7) -> CaseReport:
    """Asks, trains, judges; what does not agree is followed to larger sizes.

    Args:
        most: entries of a network that is still trained.
    """
    report = CaseReport(case)
    said, report.point = answers(case)
    scales = [s for k, s in enumerate(SCALES) if k < 4 or SEEDS[0] * entries(case, s) <= most]
    found = measured(case, report.point, scales)
    left: dict[Key, Judged] = {}
    for key, (state, e) in said.items():
        if key in found and state != "decided":
            report.counted(f"undecided: {state}")
        elif key in found:
            verdict = judge(scales, found[key], e, case.slow)
            if verdict.word == "AGREES":
                report.counted("AGREES, zero" if e is None else "AGREES")
            else:
                left[key] = e, verdict
    for scale in further:
        least = SEEDS[0] if scale <= 64 else FEWEST
        if not left or least * entries(case, scale) > most:
            break
        for key, values in measured(case, report.point, (scale,), more=2, least=least).items():
            found[key] += values
        scales.append(scale)
        judged = {key: (e, judge(scales, found[key], e, case.slow)) for key, (e, _) in left.items()}
        left = {key: x for key, x in judged.items() if x[1].word != "AGREES"}
        for _ in range(len(judged) - len(left)):
            report.counted("AGREES")
    if below := {key for key, (e, v) in left.items() if v.word == "REFUTED" and e is not None and v.slope < e}:
        left |= {key: (e, v) for key, (e, v) in _with_others(report, left).items() if key in below}
    for key, (e, verdict) in left.items():
        report.counted(verdict.word)
        if verdict.word != "AGREES":
            (report.refuted if verdict.word == "REFUTED" else report.open)[key] = e, verdict
    return report


def planted(case: TrainingCase, off: Fraction) -> Counter[str]:
    """Verdicts of certified exponents that are off by a number: a negative control."""
    said, point = answers(case)
    values = measured(case, point, SCALES)
    predicted = {key: e for key, (state, e) in said.items() if key in values and state == "decided" and e is not None}
    return Counter(judge(SCALES, values[key], e + off).word for key, e in predicted.items())


def _with_others(report: CaseReport, left: Mapping[Key, Judged]) -> dict[Key, Judged]:
    """What seems smaller than its exponent says, with other constants: what leads may have a small factor with some."""
    found = dict(left)
    for k, strength in ((1, 1.0), (2, 2.5)):
        case = replace(report.case, constants=report.case.constants + 7919 * k, strength=strength)
        scales = SCALES[: max(4, min(len(v.values) for _, v in left.values()))]
        values = measured(case, report.point, scales)
        for key, (e, verdict) in list(found.items()):
            other = judge(scales, values[key], e, case.slow)
            if verdict.word == "REFUTED" and (other.word == "AGREES" or "sum of powers" in other.why):
                why = f"{verdict.why}; {other.word} with other constants: {other.why}, slope {other.slope:+.2f}"
                found[key] = e, replace(verdict, word=other.word, why=why)
    return found


def drawn(seed: int) -> TrainingCase:
    """The case of a number, with exponents: muP in two of five."""
    rng = random.Random(10_000_019 + seed)
    case = random_case(seed)
    network(case.name, case.text, case.axes)  # raises UsageError where the language does not have it
    if seed % 5 in (1, 3):
        try:
            with within(8.0):
                analysis(case)
                return case
        except (UsageError, Infeasible):
            pass
    with within(8.0):
        return paced(case, rng)


def settled(seed: int) -> dict[str, object]:
    """What became of the case of a number, as it is kept in ``KEPT``: trained and judged, or why not."""
    begin, found = time.process_time(), {"seed": seed, "engine": digest(ROOMS["derives"])}
    try:
        report = follow(drawn(seed))
    except (UsageError, Infeasible, EngineTooLong, torch.linalg.LinAlgError) as reason:
        return {**found, "outcome": type(reason).__name__}
    found |= {"outcome": "trained", "case": str(report.case), "values": report.counts}
    found |= {"refuted": list(report.lines()), "open": [f"{name}@{t}" for name, t in report.open]}
    return {**found, "seconds": round(time.process_time() - begin)}


def kept() -> dict[int, dict[str, object]]:
    """The cases that this engine has settled, by number."""
    lines = KEPT.read_text(encoding="utf-8").splitlines() if KEPT.exists() else []
    engine = digest(ROOMS["derives"])
    return {x["seed"]: x for x in map(json.loads, lines) if x["engine"] == engine}


def case_of(seed: int) -> dict[str, object]:
    """The case of a number, settled once."""
    found = kept()
    if seed not in found:
        found[seed] = settled(seed)
        KEPT.parent.mkdir(exist_ok=True)
        with open(KEPT, "a", encoding="utf-8") as file:
            print(json.dumps(found[seed]), file=file)
    return found[seed]


if __name__ == "__main__":  # in pieces: FIRST LAST FIRST LAST ...
    torch.set_num_threads(1)
    ends = [*map(int, sys.argv[1:])]
    for number in chain.from_iterable(map(range, ends[::2], ends[1::2])):
        found = case_of(number)
        print(number, found["outcome"], found.get("values"), found.get("refuted"), flush=True)
