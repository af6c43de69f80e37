"""Checks that the test suite notices planted faults. Each fault replaces one text of one file.

A copy of the tree gets one fault at a time and runs a lane of the tests, the likely killers first. Without a fault the
copy must pass. A fault that survives means that a test is missing.
Run: ``python benchmarks/mutants.py [--lane check] [--room counting] [--only 3,7] [--list]`` (half a minute of one core
for a fault that dies, the time of the lane for one that survives).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import click

ROOT = Path(__file__).resolve().parents[1]
COPIED = ("scaling_algebra", "tables", "verify", "tests", "docs", "benchmarks")
LIMIT = 1500
"""Time limit (seconds) of the tests under one fault; a timeout counts as noticed."""


@dataclass(frozen=True)
class Mutant:
    """A fault.

    Attributes:
        room: part of the project, which selects the likely killers.
        file: where it is planted.
        old: text that occurs once in the file.
        new: the wrong text that replaces it.
    """

    room: str
    file: str
    old: str
    new: str

    def plant(self, text: str) -> str:
        """Returns the text of the file with the fault.

        Raises:
            ValueError: ``old`` does not occur exactly once.
        """
        if text.count(self.old) != 1:
            raise ValueError(f"{self.file} has {self.old!r} {text.count(self.old)} times; it must be there once")
        return text.replace(self.old, self.new)

    def __str__(self) -> str:
        return f"{self.file}: {' '.join(self.old.split())}  ->  {' '.join(self.new.split()) or 'nothing'}"


def _list_mutants(room: str, folder: str, *faults: tuple[str, str, str]) -> list[Mutant]:
    return [Mutant(room, f"{folder}/{file}", old, new) for file, old, new in faults]


MUTANTS = [
    *_list_mutants(
        "counting",
        "scaling_algebra/counting",
        ("kernels.py", "if c in self.open_classes[:k])", "if c in ())"),
        ("kernels.py", 'INDICATOR = "1("', 'INDICATOR = "1"'),
        ("matchings.py", "return weight + other - 1, 0", "return weight + other, 0"),
        ("matchings.py", "partial.upper_bound -= self.half_weights[r]", "partial.upper_bound -= 0"),
        ("matchings.py", "kind[p], kind[q] = ~p, ~q", "kind[p] = ~p"),
        ("matchings.py", "copies |= 1 << z", "copies |= self.partners[z]"),
        ("kernels.py", "if len(left) == len(classes) and (name, classes) not in kept:", "if True:"),
        ("contracting.py", "return sums + sum(sum(halves) - min(halves) for halves in shared.values())", "return sums"),
        ("contracting.py", "return max(rows, cols) + cols - rows + lost", "return cols + lost"),
        ("contracting.py", "max(rows, cols) + cols", "cols + cols"),
        ("sizes.py", "self.exponent(lead) >= self.exponent(bound))", "True)"),
        ("contracting.py", "larger_size(tail_bound, s.tail_bound + most)", "tail_bound"),
        ("contracting.py", "cost = min(extra, coherent - find_saving(algebra, b, k, a, out))", "cost = 0"),
        ("contracting.py", "tail_bound = larger_size(tail_bound, top + cut)", "pass"),
        ("kernels.py", "not centred.isdisjoint(merged[x][1])", "False"),
        ("algebra.py", "if s.may_be_signs:", "if False:"),
        ("algebra.py", "whole.without_centred = {", "whole.without_centred = {} and {"),
    ),
    *_list_mutants(
        "dynamics",
        "scaling_algebra/dynamics",
        ("rules.py", 'tr.part(s, "update", "value", t)', 'tr.part(s, "update", "initial", t)'),
        ("functions.py", "tr.algebra.exponent(size) <= 0:", "tr.algebra.exponent(size) <= 1:"),
        ("functions.py", "if not reason and (tails := self.explain_heavy_tails(tr, s, t)):", "if False:"),
        ("tails.py", "if s.kind.steep or (", "if False and ("),
        ("tails.py", "for indices, _ in x if not indices <= set(out)}", "for indices, _ in x}"),
        ("steps.py", "s.kind.kind != \"stopped\"", "True"),
        ("functions.py", "max(p, most) + more + 1", "p + more + 1"),
        ("steps.py", "most + (3 if more else 1), 2)", "2, 2)"),
        ("steps.py", "if zeros and not all(zeros <= x for x in others):", "if False:"),
        ("functions.py", "tr.algebra.subtract_mean(super().read_argument(tr, s, which, t), s.over)",
         "super().read_argument(tr, s, which, t)"),
        ("functions.py",
         "share = tr.algebra.pack_powers({tr.context.shares.get(s.out, tr.network.indices[s.over]): -1})", "share = 0"),
        ("norms.py", "rest = remove_leading(tr.algebra, above, y)", "rest = above"),
        ("functions.py", "value(moved) < value(spread)", "value(moved) <= value(spread)"),
        ("functions.py", "tr.algebra.contract(self.find_slope(tr, s, t), dx, indices)",
         "tr.algebra.contract(self.find_slope(tr, s, 0), dx, indices)"),
        ("updates.py", "for k in range(step)\n        ]", "for k in range(0)\n        ]"),
        ("updates.py", "size = start if moved.packed is None else max(start, moved.packed)", "size = start"),
        ("sparse_routing.py", 'and network.axes[s.over] == "M"', ""),
        ("sparse_routing.py", "multipliers=(*s.multipliers, SHARE)", "multipliers=(*s.multipliers,)"),
        ("parts.py", "if signal in b.inside - b.after]", "if signal in b.inside]"),
        ("analysis.py", "key = part.point.zero, budget", "key = frozenset(), budget"),
        ("analysis.py", "if t and analysis.network.live and analysis.runs.has_nonlinear_steps(signs=True)", "if False"),
        ("updates.py", "size = own.packed if own.certain else", "size ="),
        ("steps.py", "whole = tr.algebra.forget_centred(s)", "whole = s"),
        ("steps.py", "if not any(f.kind.mixes", 'if not any(f.kind.kind in ("norm",)'),
        ("steps.py", "most = max(most, _find_even_number(tr, few))", "pass"),
        ("steps.py", "if len(s.terms) > 1 and not again else 1", "if len(s.terms) > 2 and not again else 1"),
        ("steps.py", "if len(there) < 2 or most < 3 or again:", "if True:"),
        ("steps.py", 'if not share:\n        return [((), bent)]', 'if True:\n        return [((), bent)]'),
        ("functions.py", "if is_linear(tr.network, s):", "if False:"),
        ("norms.py", "if not outgrown or tr.decays:", "if True:"),
        ("steps.py", "if tr.grows(x)), default=1)", "if not tr.network.live), default=1)"),
        ("steps.py", "return reduce_modulo_basis(1) == 0", "return reduce_modulo_basis(1) != 0"),
        ("bounds.py", "for role in self.update_readers.pop(key, ()):", "for role in ():"),
        ("bounds.py", "key := (rule, signal.content)", "key := (rule, signal.indices)"),
    ),
    *_list_mutants(
        "solver",
        "scaling_algebra/solver",
        ("newton.py", "zero = frozenset(role for role, x in gradients.items() if x.zero)", "return True"),
        ("demands.py", "return x[1].undecided, x[1].step, signal, not x[0].fixes", "return False, 0, 0, False"),
        ("demands.py", "not undecided and (top is None or top < 0)", "not undecided and top is None"),
        ("demands.py", "if later is not None and later > 0:", "if later is not None and later > 9:"),
        ("demands.py", "answer = quick if quick.decided else closer(", "answer = quick if quick else closer("),
        ("demands.py", "if size is None or size == epsilon:", "if size is None or size <= epsilon:"),
        ("search.py", "min(candidates, key", "max(candidates, key"),
        ("newton.py", "unknown(wanted, look) or f", "f"),
        ("search.py", "if unsure and not found:", "if False:"),
        ("layerwise.py", 'made.kind.kind == "softmax"', 'made.kind.kind == "none"'),
        ("layerwise.py", 'if network.axes[x] != "M") * Power', 'if network.axes[x] not in "ML") * Power'),
        ("layerwise.py", "wide = moves and columns", "wide = columns"),
        ("layerwise.py", "layer.union(tensor.fan_in, along)", "layer.union(tensor.fan_in)"),
        ("cones.py", "region = region.between(wall.facing(-size))", "region = region.between(wall.facing(size))"),
    ),
    *_list_mutants(
        "spec",
        "scaling_algebra/spec",
        ("desiderata.py", "n + (mine in zero)", "n"),
    ),
    *_list_mutants(
        "linear",
        "scaling_algebra/linear",
        ("cone.py", "held in faces.items() if at[ray] >= 0}", "held in faces.items() if at[ray] > 0}"),
    ),
    *_list_mutants(
        "proofs",
        "scaling_algebra/proofs",
        ("clauses.py", "if complete:\n", "if complete and not reached:\n"),
        ("clauses.py", 'for sense in ("<=", ">="):', 'for sense in ("<=",):'),
        ("prover.py", "if missing.undecided and not asked.effort:", "if False:"),
        ("prover.py", "Uniqueness.UNIQUE if points else Uniqueness.IMPOSSIBLE", "Uniqueness.UNIQUE"),
        ("every_step.py", "if most is None or value > most:", "if most is None or value > most + 1:"),
    ),
    *_list_mutants(
        "judging",
        "verify/judging",
        ("verdicts.py", "if doubt and self._is_far_from_powers(quantity, step):", "if doubt and not quantity:"),
        ("verdicts.py", "math.isfinite(usual.slope) and not refuted", "math.isfinite(usual.slope)"),
        ("verdicts.py", "and (row.fit.zero or row.fit.high < (asked.most or 0))", "and not row"),
        ("laws.py", "if runs < len(theta) + FREE:", "if not runs:"),
        ("rates.py", "np.mean(drawn >= off)) < UNLIKELY)", "np.mean(drawn >= off)) < 0)"),
        ("fit.py", "DRIFT = 0.1", "DRIFT = 0.6"),
        ("fit.py", "measured.sizes < MIN_SIZES or measured.seeds < MIN_SEEDS", "measured.sizes < MIN_SIZES"),
        ("fit.py", "y, errors = map(np.array, compute_log_means(values))",
         "y, errors = np.array([0.5 * np.log2(s).mean() for s in square]), np.array(compute_log_means(values)[1])"),
        ("gates.py", "and Verdict.AGREES not in verdicts", ""),
        ("gates.py", "len(m.sizes) >= MIN_SIZES", "len(m.sizes) >= 1"),
        ("regions.py", "if touches and self.low", "if self.low"),
        ("resampling.py", "0 if paired else k", "k"),
    ),
    *_list_mutants(
        "apply",
        "verify/apply",
        ("checking.py", "Structure(zero=asleep)", "Structure()"),
        ("suspensions.py", "falls = falls and r.fit.low > (r.predicted or 0) - 1", "falls = falls and True"),
        ("checking.py", "in clean}", "in names}"),
        ("planning.py", "other if r.missing else ()", "()"),
        ("entries.py", "else value * rule.ratio(going.base, going.target)", "else value"),
        ("frozen.py", "isinstance(x, Sum) for x in readers", "True for x in readers"),
        ("frozen.py", "if off > 1 and _is_bias(p.recipe, e.role):", "if off > 1 and e.tensor.dim() < 2:"),
    ),
    *_list_mutants(
        "tracing",
        "verify/tracing",
        ("config_probing.py", "round(max(_round_to_power_of_two(v * fewer), 1) * at / BASE_WIDTH)",
         "round(_round_to_power_of_two(v * fewer) * at / BASE_WIDTH)"),
        ("reader.py", "return View(x.node.derive(StoppedGradient, reader.where), x.dims)", "return x"),
        ("measuring.py", "if not (same or self.chosen):", "if False:"),
        ("linear_probe.py", "signs = (y * part.flatten()[places[near]]).sign()", "signs = y.sign().abs()"),
        ("measuring.py", "again = self.weights.get(number, frozenset()) & values.keys()", "again = ()"),
        ("measuring.py", ".masked_fill(x == before, 0)", ""),
        ("measuring.py", "or len(self.weights[x]) == 1 for", "or True for"),
        ("measuring.py", "if run.tensors[k].numel() > max(result, x)]", "if False]"),
        ("measuring.py", "torch.allclose(twice - once, once - none)", "True"),
        ("measuring.py", "return math.inf if math.isnan(square) and x.numel() else square", "return square"),
        ("measuring.py", "pairs = zip(*map(_iterate_refs, (call, again[call.key])), strict=False)", "pairs = ()"),
        ("products.py", "return any(len(x) > 1 and acted", "return any(len(x) > 2 and acted"),
        ("products.py", 'n != sizes[0] and run.enlarged_axis != "M"', "n != sizes[0]"),
        ("wide_builds.py", "WIDE_RATIO, MAX_WIDE_SIZE = 16, 1024", "WIDE_RATIO, MAX_WIDE_SIZE = 2, 1024"),
        ("function_recognition.py",
         "if any(find_mixed_dims(g, s * v, g(s * v)) != () for s in (0.01, 100)) or _clamps_length(g, v):",
         "if any(find_mixed_dims(g, s * v, g(s * v)) != () for s in (0.01, 100)):"),
        ("elementwise.py", "kept = _find_fixed_sum_slots(x.node)", "kept = set[int]()"),
        ("elementwise.py", "if _push_factor(node.children[k], factor)][:1]", "if False]"),
    ),
    *_list_mutants(
        "store",
        "verify/measuring",
        ("store.py", "if version not in (0, FORMAT):", "if version not in (0, FORMAT, FORMAT + 1):"),
        ("store.py", "if replicas in (None, rows.shape[1]):", "if True:"),
        ("store.py", "== _compute_checksum(key, names, content[CHECKED:])", "!= b''"),
        ("store.py", "elif last != self._writer:", "elif not last:"),
    ),
    *_list_mutants(
        "laws",
        "scaling_algebra/laws",
        ("minima.py", "if not shares or -1 in signs.values():", "if not shares:"),
        ("minima.py", "equal = {k: rows[k] * Monomial(1 / x)", "equal = {k: rows[k]"),
        ("systems.py", '"<" if strict and row.strict else "<="', '"<="'),
        ("systems.py", "if total.is_polynomial() else _sign_numerator(total)", "if False else _sign_numerator(total)"),
        ("systems.py", "dict.fromkeys((*positive, *parameters))", "dict.fromkeys((*positive, *self.unknowns))"),
        ("minima.py", "if open_ := [powers[c] for c, side in signed.items() if side is None]:", "if open_ := []:"),
        ("balance.py", "target = Monomial(above)", "target = Monomial(target.coefficient)"),
        ("law.py", "values = {**law.at, **asked}", "values = {**asked, **law.at}"),
    ),
    *_list_mutants(
        "recipes",
        "scaling_algebra/recipes",
        ("settings.py", "after.ratio(going.base, going.target) * more", "after.ratio(going.base, going.target)"),
        ("recipe.py", "else 1 / t.lr", "else t.lr"),
        ("sizes.py", "if min(ratios.values()) < 1 or", "if"),
        ("next_terms.py", "if p.on(ray) < lead.on(ray)", "if p.on(ray) <= lead.on(ray)"),
    ),
    *_list_mutants(
        "limit",
        "verify/infinite_width",
        ("vectors.py", "source.inner(hat, unit) * target.pad(y)", "0 * target.pad(y)"),
        ("vectors.py", 'return ""', "return source"),
        ("program.py", "max(initial=0.0) <= LARGE", "max(initial=0.0) <= 1e300"),
        ("program.py", "weight.momentum = add_leading([*before, gradient.times(slope)])", "weight.momentum = gradient"),
        ("contraction.py", "if not (np.isfinite(q.values) & np.isfinite(most)).all():", "if False:"),
        ("course.py", "errors <= np.maximum(SHARE * most, LEAST)", "errors >= 0"),
        ("functions.py", "ordered[..., k : k + 1] < MARGIN", "ordered[..., k : k + 1] < 0"),
        ("stepping.py", "gradient.rest >= min(level, gradient.power)", "False"),
        ("stepping.py", "gradient.values * float(gradient.power == self.level)", "gradient.values"),
    ),
]  # fmt: skip

KILLERS = {
    "counting": [f"tests/engine/test_{name}.py" for name in ("products", "signals", "half_weight", "fuzz")],
    "dynamics": [
        "tests/engine/test_analysis.py",
        *(f"tests/engine/test_{name}.py" for name in ("rules", "routing", "parts", "fuzz", "theory", "gate_theory")),
        "tests/engine",
    ],
    "solver": ["tests/engine/test_analysis.py", "tests/engine/test_given.py", "tests/engine"],
    "spec": ["tests/engine/test_given.py", "tests/engine/test_networks.py"],
    "linear": ["tests/engine/test_theorems.py", "tests/engine/test_phases.py"],
    "proofs": ["tests/engine/test_proofs.py", "tests/engine/test_every_step.py"],
    "judging": ["tests/verify/test_fit.py", "tests/verify/test_report.py", "tests/verify"],
    "apply": [f"tests/verify/test_{name}.py" for name in ("check_model", "apply", "measuring")],
    "tracing": [f"tests/verify/test_{name}.py" for name in ("constants", "measuring", "tracing", "calls")],
    "store": ["tests/trusted/test_kept.py", "tests/verify/test_session.py"],
    "laws": ["tests/laws"],
    "recipes": ["tests/engine/test_recipe.py", "tests/engine/test_next_terms.py"],
    "limit": ["tests/verify/test_infinite_width.py"],
}  # fmt: skip
"""Tests that are likely to notice the faults of a room; they run before the whole lane."""


def copy_tree(folder: Path) -> None:
    """Copies the working tree to a folder from which it can be imported."""
    for name in COPIED:
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for path in ROOT.iterdir():
        if path.is_file() and path.suffix in (".md", ".toml", ".txt", ".yml", ".cff", ""):
            shutil.copy(path, folder)
    for name in ("tables", "verify"):
        (folder / "scaling_algebra" / name).symlink_to(folder / name)


def find_failure(folder: Path, lane: str, tests: list[str]) -> str:
    """Runs tests of a lane and returns the first failure, or ""."""
    options = ["-x", "-q", "--lane", lane, "--tb=no", "-p", "no:cacheprovider", "--rootdir", str(folder)]
    options += ["--deselect", "tests/engine/test_benchmarks.py"]  # it says that there is a fault
    environment = {**os.environ, "PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", *options, *tests]
    try:
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=LIMIT)
    except subprocess.TimeoutExpired:
        return "no end"
    if done.returncode == 0:
        return ""
    lines = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    if not lines and "too slow for" in done.stdout:  # a busy machine is no fault
        return ""
    return lines[0].partition(" - ")[0] if lines else f"exit code {done.returncode}"


@click.command()
@click.option("--lane", default="check", show_default=True, type=click.Choice(["check", "test"]))
@click.option("--room", type=click.Choice(list(KILLERS)), help="Faults of one room.")
@click.option("--only", default="", help="Numbers of faults, with commas.")
@click.option("--quick", is_flag=True, help="Likely killers only: what survives them may still be seen.")
@click.option("--list", "listed", is_flag=True, help="Name the faults and stop.")
def main(lane: str, room: str | None, only: str, quick: bool, listed: bool) -> None:
    """Insert faults, one at a time, and report which ones the tests of a lane notice. Exit code 1 if one survives."""
    chosen = [(k, m) for k, m in enumerate(MUTANTS, 1) if room in (None, m.room)]
    chosen = [(k, m) for k, m in chosen if not only or str(k) in only.split(",")]
    if listed:
        for k, m in chosen:
            click.echo(f"{k:3} {m}")
        return
    survived = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "tree"
        folder.mkdir()
        copy_tree(folder)
        for k, m in chosen:
            path, began = folder / m.file, time.monotonic()
            text = path.read_text(encoding="utf-8")
            path.write_text(m.plant(text), encoding="utf-8")
            failure = find_failure(folder, lane, KILLERS[m.room]) or ("" if quick else find_failure(folder, lane, []))
            path.write_text(text, encoding="utf-8")
            survived += 0 if failure else 1
            click.echo(f"{k:3} {'killed' if failure else 'SURVIVED'} {time.monotonic() - began:5.0f} s  {m}  {failure}")
        if dirty := find_failure(folder, lane, sorted({t for _, m in chosen for t in KILLERS[m.room]})):
            raise click.ClickException(f"without a fault the tests fail, too: {dirty}")
    click.echo(f"{survived} of {len(chosen)} survived")
    sys.exit(bool(survived))


if __name__ == "__main__":
    main()
