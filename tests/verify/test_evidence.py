"""Committed evidence against today's predictions: runs, sweeps of learning rates, the blind test, the headline plan.

Records are those of their plans, verdicts follow from the numbers kept with them, and changed ones would be seen."""

from __future__ import annotations

import json
import math
import shlex
from collections import Counter
from dataclasses import replace

import click
import numpy as np
import pytest
from click.testing import CliRunner

pytest.importorskip("torch")

from scaling_algebra.errors import UsageError
from scaling_algebra.spec.configuration import Configuration
from scaling_algebra.verify.campaigns.plans import Effort, Job, build_job, load_campaign
from scaling_algebra.verify.campaigns.session import Session
from scaling_algebra.verify.hardware import Hardware
from scaling_algebra.verify.judging.report import REQUIRED
from scaling_algebra.verify.measuring.cells import STREAMS
from scaling_algebra.verify.measuring.pool import Here
from scaling_algebra.verify.measuring.store import Store
from scaling_algebra.verify.networks import scales
from scaling_algebra.verify.reports.output import EVIDENCE
from scaling_algebra.verify.studies.curves import LossCurve, compare, measure_drift, measure_improvement
from scaling_algebra.verify.studies.figures import KINDS, build_picture

from ..shared import ROOT, benchmark

FOLDER = ROOT / "verify" / "evidence"


def page(name):
    return (ROOT / name).read_text(encoding="utf-8")


RECORDS = {path.parent.name: json.loads(path.read_text()) for path in sorted(FOLDER.glob(f"*/{EVIDENCE}"))}


def differences(run):
    """Recorded predictions that are not those of today's engine."""
    prediction = Job.from_json(run["job"]).prediction()
    today = {(q, t): None if p is None else str(p) for q, row in prediction.items() for t, p in enumerate(row)}
    return {(q, t) for q, t, predicted, *_ in run["rows"] if today.get((q, t), "none") != predicted}


@pytest.mark.parametrize("name", RECORDS)
def test_evidence_matches_todays_predictions(name):
    for run in RECORDS[name]["runs"]:
        assert run["rows"] and not differences(run), run["job"]


@pytest.mark.parametrize("name", RECORDS)
def test_evidence_says_where_it_comes_from_and_what_it_shows(name):
    record = RECORDS[name]
    assert record["command"].startswith("scalecalc ")
    told = {"device", "machine", "torch", "dtype", "sizes"}  # a report in a folder is without the time that was spent
    told |= set() if name == "gpu" else {"wall_seconds", "peak_memory_bytes"}
    assert all(told <= set(run["environment"]) and run["environment"]["gates"] for run in record["runs"])
    counts = Counter(row[-1] for run in record["runs"] for row in run["rows"])
    assert {k: v for k, v in record["total"].items() if v} == {"predicted": counts.total(), **counts}
    assert not counts["REFUTED"]


STEEP = {("quick", "III", "sgd", "mup")}
"""Sizes from 44 to 110 leave more than one in five open: nothing is refuted, and the run alone is INCONCLUSIVE."""


@pytest.mark.parametrize("name", RECORDS)
def test_committed_runs_pass_the_rule_but_for_those_that_are_named(name):
    short = set()
    for run in RECORDS[name]["runs"]:
        verdicts = [row[-1] for row in run["rows"] if row[2] is not None]
        assert all(row[-1] == "AGREES" for row in run["rows"] if row[2] is None)
        asked = run["job"]["configuration"]
        if verdicts.count("AGREES") < REQUIRED * len(verdicts):
            short.add((name, asked["regime"], asked["optimizer"], asked["parameterization"]))
    assert short == {key for key in STEEP if key[0] == name}


def test_a_changed_exponent_would_be_seen():
    run = RECORDS["quick"]["runs"][0]
    assert not differences(run)
    row = next(r for r in run["rows"] if r[2] not in (None, "0"))
    assert differences({**run, "rows": [[row[0], row[1], "0", *row[3:]]]}) == {(row[0], row[1])}


def test_the_quick_campaign_is_the_committed_one():
    assert [Job.from_json(run["job"]) for run in RECORDS["quick"]["runs"]] == load_campaign("quick")


# learning-rate transfer ------------------------------------------------------------------------------------------


def curves(sweep):
    """Curves of every parameterization, from the committed losses of every seed."""
    found = {}
    for name, run in sweep["parameterizations"].items():
        kept = [(w, np.array(w["losses"]), np.array(w["held_out_losses"])) for w in run["widths"]]
        found[name] = [LossCurve(w["width"], w["dims"], w["parameters"], tuple(w["grid"]), *x) for w, *x in kept]
    return found


def complete(sweep, name):
    """Curves of one parameterization, of the rates that every seed has."""
    made = []
    for w in sweep["parameterizations"][name]["widths"]:
        rows = [(x, row) for x, row in zip(w["grid"], w["losses"], strict=True) if None not in row]
        grid, losses = (list(part) for part in zip(*rows, strict=True))
        made.append(LossCurve(w["width"], w["dims"], w["parameters"], tuple(grid), *(np.array(losses),) * 2))
    return made


TEXT = {path.stem: json.loads(path.read_text()) for path in sorted((FOLDER / "text").glob("*.json"))}


def test_on_the_gpu_the_best_rate_stays_with_the_plan_and_moves_without_it():
    """What the README says, from the committed losses; a shifted optimum would be seen."""
    sweep = TEXT["h100_experts_fixed"]
    plan, one = (complete(sweep, name) for name in ("mup", "sp"))
    assert [c.log2_lr[c.best] for c in plan] == [-8] * 5 and abs(measure_drift(plan).estimate.value) < 0.15
    assert measure_drift(one).estimate.high < -0.4
    assert [c.loss[0] for c in one][1:] < [c.loss[0] for c in plan][1:]  # against the plan
    moved = [replace(c, log2_lr=tuple(x + k / 2 for x in c.log2_lr)) for k, c in enumerate(plan)]
    assert measure_drift(moved).estimate.low > 0.25


def test_the_page_of_tuning_shows_what_the_evidence_says():
    said = CliRunner().invoke(benchmark("tuned").main, ["judge"]).output
    shown = "\n".join(line.rstrip() for line in said.strip().splitlines())
    assert shown in page("docs/guide/tuning.md")


def test_the_rates_of_groups_in_the_page_are_those_of_the_runs():
    rows = [json.loads(line) for line in (FOLDER / "tuned" / "llama.jsonl").read_text().splitlines()]

    def loss(kind, n, log2, **rates):
        found = [r["loss"] for r in rows if (r["kind"], r["N"], r["log2_lr"], r["rates"]) == (kind, n, log2, rates)]
        return f"{np.mean(found):.2f}"

    told = page("docs/guide/tuning.md")
    for name, rates in (("one rate for all at the base", {}), ("rate of the embedding times 4", {"embedding": 2})):
        assert f"plan, {name} | {loss('mup', 32, -6, **rates)} | {loss('mup', 256, -6, **rates)} |" in told
    assert f"(2^-8) | | {loss('sp', 256, -8)} |" in told


def test_the_tuned_mixtral_in_the_page_is_that_of_the_runs():
    rows = [json.loads(line) for line in (FOLDER / "tuned" / "mixtral.jsonl").read_text().splitlines()]

    def losses(kind, n, **rates):
        found = {}
        for r in rows:
            if (r["kind"], r["N"], r["rates"]) == (kind, n, rates):
                found.setdefault(r["log2_lr"], []).append(r["loss"])
        return {x: np.mean(y) for x, y in found.items() if len(y) == 2}

    told, sizes = page("docs/guide/tuning.md"), (64, 256, 512)
    chosen = {"embedding": 3, "router": 1, "readout": 4}
    for name, rates in (
        ("one rate for all at the base", {}),
        ("rate of the embedding times 8", {"embedding": 3}),
        ("embedding times 8, router times 2, readout times 16", chosen),
    ):
        shown = [f"{losses('mup', n, **rates)[-8]:.2f}" for n in sizes]
        assert f"plan, {name} | {' | '.join(shown)} |" in told
    tuned = [min(losses("sp", n).values()) for n in sizes[1:]]
    assert f"at 512) | | {' | '.join(f'{x:.2f}' for x in tuned)} |" in told
    plain = losses("mup", 64)
    assert min(plain, key=plain.get) == -8 and losses("mup", 512, **chosen)[-8] < tuned[1]


# the blind test ------------------------------------------------------------------------------------------------------


blind = benchmark("blind")
DRAWS = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(blind.EVIDENCE.glob("draw_*.json"))]


def test_settings_are_fixed_differ_and_stay_within_a_factor_of_three():
    drawn = [blind.draw_setting(k) for k in range(blind.DRAWS)]
    assert drawn == [blind.draw_setting(k) for k in range(blind.DRAWS)]
    for what, usual in (("init", scales.INIT), ("lr", scales.LR)):
        factors = np.log([[d[what][role] / x for role, x in usual.items()] for d in drawn]) / math.log(3)
        assert (abs(factors) <= 1).all() and len(set(factors.flat)) == factors.size
        assert abs(factors.mean()) < 0.2 and factors.std() == pytest.approx(3**-0.5, abs=0.1)
    assert len({d["stream"] for d in drawn} | {0}) == blind.DRAWS + 1


def test_what_is_drawn_is_what_is_trained_and_only_inside():
    one = build_job(Configuration.of("I", "sgd", "mup"), Effort(sizes=(8, 12, 18), seeds=4))
    chosen, before = blind.draw_setting(0), (dict(scales.INIT), dict(STREAMS), one.setup().digest)

    def trained():
        store = Store()
        Session(store, Here(Hardware.of("cpu"))).perform([one])
        return one.report(store)

    usual = trained()
    with blind.use_setting(chosen):
        other = trained()
        assert one.setup().constants["init"] == chosen["init"] != before[0]
        assert replace(one.setup()).digest != before[2]
    assert (dict(scales.INIT), dict(STREAMS), replace(one.setup()).digest) == before
    size = {name: report.means["h1", 0][0][0] for name, report in {"usual": usual, "other": other}.items()}
    grown = math.log2(chosen["init"]["input"] / scales.INIT["input"])
    assert size["other"] - size["usual"] == pytest.approx(grown, abs=0.5)


def test_the_draws_are_the_first_ones_of_the_generator():
    assert DRAWS and [r["draw"] for r in DRAWS] == list(range(len(DRAWS)))
    for record in DRAWS:
        drawn = blind.draw_setting(record["draw"])
        assert all(record["setting"][k] == pytest.approx(drawn[k]) for k in ("eps", "stream", "largest"))
        assert all(record["setting"][k] == pytest.approx(drawn[k]) for k in ("init", "lr"))
        assert [(x["regime"], x["optimizer"], x["parameterization"]) for x in record["runs"]] == list(blind.RUNS)


def test_what_a_failed_gate_leaves_unproved_is_named_and_not_counted(tmp_path):
    """Counted are the runs in which every gate passed; the negative control is a record with a gate that failed."""

    def told(record):
        (tmp_path / "draw_00.json").write_text(json.dumps(record), encoding="utf-8")
        return CliRunner().invoke(blind.main, ["tell", str(tmp_path)]).output

    sound = next(r for r in DRAWS if not any(x["failed_gates"] for x in r["runs"]))
    spoiled = {**sound, "runs": [{**sound["runs"][0], "failed_gates": ["planted"]}, *sound["runs"][1:]]}
    before, after = (next(x for x in told(r).splitlines() if x.startswith("all")) for r in (sound, spoiled))
    assert int(before.split()[1]) - int(after.split()[1]) == sound["runs"][0]["counts"]["AGREES"] > 0
    assert "I sgd mup: planted" in told(spoiled) and "since a gate failed: none" in told(sound)
    failed = {(r["draw"], *x["failed_gates"]) for r in DRAWS for x in r["runs"] if x["failed_gates"]}
    assert failed == {(k, "width-independent control flat") for k in (8, 9, 23, 28)}


def test_the_page_and_the_readme_quote_the_counts():
    told = CliRunner().invoke(blind.main, ["tell"]).output.strip().splitlines()
    last = next(k for k, line in enumerate(told) if line.startswith("all"))
    assert "\n".join(told[: last + 1]) in page("docs/results.md")
    assert told[last + 2] in page("docs/results.md")
    agree, refuted, open_ = map(int, told[last].split()[1:4])
    quoted = f"{agree:,} of {agree + refuted + open_:,} agree, {refuted} are refuted, {open_:,} are"
    assert quoted in page("README.md")


# the library ---------------------------------------------------------------------------------------------------------


library = benchmark("library")


def test_every_network_of_the_library_was_asked_and_the_pages_say_what_was_answered():
    assert [(x["network"], x["where"], x["optimizer"]) for x in library.read_records()] == list(library.list_cases())
    assert library.build_page() == library.WRITTEN.read_text(encoding="utf-8")
    assert library.build_verdict_table() in page("docs/library.md") and library.summarise_times() in page(
        "docs/speed.md"
    )


@pytest.mark.parametrize("case", [("moe", "III", "adam"), ("deep-mlp", "N=1,L=1", "sgd"), ("bottleneck", "II", "sgd")])
def test_answers_are_what_derive_says_today(case):
    kept = {(x["network"], x["where"], x["optimizer"]): x for x in library.read_records()}
    assert {**library.derive_case(*case, 60), "seconds": 0} == {**kept[case], "seconds": 0}


def test_a_command_that_fails_is_no_answer():
    with pytest.raises(click.ClickException, match="exit code 2"):
        library.derive_case("moe", "IV", "adam", 60)


# the headline plan ---------------------------------------------------------------------------------------------------


headline = benchmark("headline")
RUNS, ASKED = headline.read_records(), headline.read_plan()


def test_records_are_those_of_the_plan():
    by = {run["name"]: run for run in ASKED["run"]}
    assert RUNS and set(RUNS) <= set(by)
    for name, record in RUNS.items():
        assert shlex.split(record["command"])[1:] == headline.build_arguments(ASKED, by[name])
        assert {"machine", "torch", "dtype", "wall_seconds"} <= {*record["environment"], *record.get("spent", ())}


@pytest.mark.parametrize("name", RUNS)
def test_verdicts_follow_from_the_committed_losses(name):
    record = RUNS[name]
    seen = curves(record)
    for rule, kept in record["parameterizations"].items():
        assert measure_improvement(seen[rule]).verdict == kept["improvement"]["verdict"]
        assert measure_drift(seen[rule]).verdict == kept["drift"]["verdict"]
    said = headline.find_largest_gap(record)
    pair = tuple(next(c for c in seen[rule] if c.width == said["width"]) for rule in ("mup", "mssp"))
    assert compare(*pair).verdict == said["verdict"]


def test_the_headline_page_shows_what_the_evidence_says():
    """All runs of the plan were made, and none is left out of the page."""
    said = CliRunner().invoke(headline.main, ["judge"]).output.strip()
    told = page("docs/headline.md")
    table = said.split("\n\n")[0]
    assert table in told and "not run" not in said and set(RUNS) == {run["name"] for run in ASKED["run"]}


def planted(mup="WORSENS", mssp="IMPROVES", gap="WORSE", drifts=("DRIFTS", "TRANSFERS"), slope=0.5, low=0.1):
    scale = {"mup": mup, "mssp": mssp}
    moved = dict(zip(scale, drifts, strict=True))
    return {
        "parameterizations": {
            name: {"improvement": {"verdict": scale[name]}, "drift": {"verdict": moved[name], "slope": slope}}
            for name in scale
        },
        "comparisons": [
            {"one": "mup", "other": "mssp", "width": 8, "verdict": "EQUAL", "low": 0.0, "high": 0.0},
            {"one": "mup", "other": "mssp", "width": 64, "verdict": gap, "low": low, "high": 0.2},
        ],
    }


@pytest.mark.parametrize(
    ("given", "loss", "moved"),
    [
        ({}, "SHOWN", "SHOWN"),
        ({"mup": "STALLS", "slope": -0.5}, "SHOWN", "OPEN"),
        ({"mup": "IMPROVES", "drifts": ("TRANSFERS", "TRANSFERS")}, "GAP ONLY", "REFUTED"),
        ({"mssp": "INCONCLUSIVE", "drifts": ("DRIFTS", "DRIFTS")}, "GAP ONLY", "OPEN"),
        ({"gap": "BETTER", "drifts": ("INCONCLUSIVE", "TRANSFERS")}, "REFUTED", "OPEN"),
        ({"gap": "EQUAL"}, "OPEN", "SHOWN"),
    ],
)
def test_the_rule_of_the_plan(given, loss, moved):
    """Each record is the negative control of the others."""
    record = planted(**given)
    assert (headline.judge_losses(record), headline.judge_drift(record)) == (loss, moved)


def test_the_control_fails_where_the_two_differ():
    assert headline.judge_control(planted(gap="WORSE")) == "FAILS"
    assert headline.judge_control(planted(gap="EQUAL")) == "HOLDS"
    assert headline.judge_control(planted(gap="INCONCLUSIVE", low=-0.1)) == "HOLDS"


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "limits"])
def test_every_picture_of_rates_is_drawn(kind, tmp_path):
    record = json.loads((headline.EVIDENCE / f"{next(iter(RUNS))}.json").read_text())
    record["parameterizations"]["mup"]["widths"][0]["low"] = None  # one seed knows no interval
    (tmp_path / "r.json").write_text(json.dumps(record))
    build_picture(kind, tmp_path / "p.png", [tmp_path / "r.json"])
    assert (tmp_path / "p.png").stat().st_size > 10_000
    with pytest.raises(UsageError, match="has no entry 'trained'"):
        build_picture("limits", tmp_path / "q.png", [tmp_path / "r.json"])
