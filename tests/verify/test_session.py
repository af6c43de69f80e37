"""Runs as folders: cells, interrupts, campaigns."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from scaling_algebra.errors import UsageError
from scaling_algebra.solver import derivation
from scaling_algebra.spec.configuration import Configuration
from scaling_algebra.spec.networks.library import MOE_BLOCK
from scaling_algebra.verify.campaigns import list_campaigns, session
from scaling_algebra.verify.campaigns.plans import Effort, Job, build_job, load_campaign
from scaling_algebra.verify.campaigns.schema import MOST_RUNS
from scaling_algebra.verify.hardware import Hardware
from scaling_algebra.verify.judging.measurement import GRADIENTS
from scaling_algebra.verify.measuring import predictions, runs
from scaling_algebra.verify.measuring.cells import CELL, CHECKED, list_cells
from scaling_algebra.verify.measuring.cells import load_record as cells_kept
from scaling_algebra.verify.measuring.pool import Here
from scaling_algebra.verify.measuring.sizes import count_elements
from scaling_algebra.verify.measuring.store import Store, read_plan, write_plan
from scaling_algebra.verify.networks.scales import MOE_CONSTANTS

from ..shared import scalecalc

SIZES = (8, 12, 18, 27)
ASKED = Configuration.of("III", "sgd", "mup")
VERIFY = ["verify", "--regime", "III", "--optimizer", "sgd", "--parameterization", "mup"]
VERIFY += ["--steps", "1", "--device", "cpu"]
OTHERS = (("optimizer", "adam"), ("parameterization", "mssp"))
SMALL = [*VERIFY, "--sizes", "8,12,18,27", "--seeds", "16"]
TRAIN = runs.train_network


def small(**options):
    return build_job(ASKED, Effort(**({"steps": 1, "sizes": SIZES, "seeds": 16} | options)))


def invoke(*arguments):
    return scalecalc(*[str(a) for a in arguments])


def closing(found):
    """The line of a printed report that says what was found."""
    return next(line for line in found.stdout.splitlines() if " exponents agree" in line)


def without_time(report):
    """A report as JSON, less what differs from run to run."""
    data = json.loads(json.dumps(report.as_json()))
    return {key: value for key, value in data.items() if key not in ("environment", "spent")}


@pytest.fixture(scope="module")
def whole():
    """One run, done at once."""
    run, store = small(), Store()
    session.Session(store, Here(Hardware())).perform([run])
    return run, store, run.report(store)


# cells ---------------------------------------------------------------------------------------------------------


def test_cells_cover_every_replica_once_and_more_seeds_only_add_cells():
    few, many = small(together=8).setup(), small(seeds=40, together=8).setup()
    for setup in (few, many):
        seen = Counter((c.kind, c.size, seed) for c in list_cells(setup) for seed in c.seeds)
        assert set(seen.values()) == {1}
        assert sum(n for (kind, _, _), n in seen.items() if kind == "values") == sum(setup.seeds)
        streams = Counter(seed for c in list_cells(setup) if c.kind != "exact" for seed in c.seeds)
        assert set(streams.values()) == {1}, "random streams of kinds and sizes never meet"
        assert all(c.count == 1 or c.count * count_elements(setup.dims(c.size)) <= CELL for c in list_cells(setup))
    assert set(list_cells(few)) < set(list_cells(many))


def test_a_campaign_derives_each_configuration_once(tmp_path):
    rays = [f"N={k}/53,N_e=1,M=1" for k in range(1, 7)]
    lines = [f"rays = {rays}", "sizes = [8, 12, 18]", "seeds = 4", "optimizers = ['sgd']", "architectures = ['mlp']"]
    (tmp_path / "mine.toml").write_text("\n".join(["[[run]]", *lines]))
    before = derivation.search_cached.cache_info().misses
    assert len(load_campaign("library")) > 40 and derivation.search_cached.cache_info().misses == before, (
        "planning derives nothing"
    )
    for _ in range(3):
        for run in load_campaign(str(tmp_path / "mine.toml")):
            assert run.setup().digest
    assert derivation.search_cached.cache_info().misses == before + len(rays)
    assert derivation.search_cached.cache_parameters()["maxsize"] >= MOST_RUNS


@pytest.mark.parametrize("network", ["moe", "mlp"])
def test_gates_do_not_depend_on_how_cells_are_stacked(network):
    """Neither on how replicas are cut into cells, nor on how many of a cell fit the memory."""
    run, seen = build_job(ASKED.but(network=network), Effort(steps=0, sizes=(8, 12, 18), seeds=6)), []
    first = {}
    one = runs.estimate_replica_bytes(run.setup(), run.setup().dims(2))
    for together, room in ((32, None), (2, None), (32, 3 * one)):
        cut, store = replace(run, together=together), Store()
        session.Session(store, Here(Hardware("cpu", room))).perform([cut])
        tables = [(c, cells_kept(cut.setup(), c, store)) for c in list_cells(cut.setup()) if c.kind == "values"]
        checked = Counter(c.size for c, table in tables for x in table[GRADIENTS, 0] if not x < 0)
        assert checked == dict.fromkeys(range(3), CHECKED)
        m = cut.collect_measurement(store)
        slopes = {(r.quantity, r.step): r.fit.slope for r in cut.report(store).rows}
        assert slopes == pytest.approx(first := first or slopes, rel=1e-9, nan_ok=True), "no value changes"
        seen.append([(g.name, g.passed) for g in cut.report(store).gates] + [len(m.gradients), m.parameters, m.inputs])
    assert all(one == seen[0] for one in seen) and ("gradients equal autograd's", True) in seen[0]


def test_a_gradient_that_is_no_number_fails_its_gate(whole):
    run, store, _ = whole
    poisoned = Store()
    for cell in list_cells(run.setup()):
        table = cells_kept(run.setup(), cell, store)
        wrong = {(GRADIENTS, 0): np.full(cell.count, np.inf)} if cell.checked else {}
        poisoned.save(run.name, run.setup().name(cell), {**table, **wrong})
    assert not next(g for g in run.report(poisoned).gates if g.name == "gradients equal autograd's").passed


def test_a_cell_of_another_number_of_replicas_is_measured_again(whole):
    run, store, _ = whole
    setup, cut = run.setup(), Store()
    for cell in list_cells(setup):
        table = cells_kept(setup, cell, store)
        cut.save(run.name, setup.name(cell), {key: values[:-1] for key, values in table.items()})
    assert not cells_kept(setup, list_cells(setup)[0], cut)
    assert run.collect_measurement(cut).missing == len(list_cells(setup))


def test_plans_keep_epsilon_and_what_is_given():
    asked = Configuration.of("III", "adam", "mup", epsilon="negligible", given={"router.init": "N^-1/2"})
    one = build_job(asked, Effort(sizes=(8, 12, 16), seeds=4))
    assert Job.from_json(json.loads(json.dumps(one.as_json()))) == one
    assert one.name == "III-adam-negligible-mup-router.init=N^(-1_2)"
    standard, derived = one.setup().standard, replace(one, configuration=asked.but(epsilon="derived"))
    assert standard.configuration.given.as_json() == {} and standard.optimizer == asked.optimizer
    assert one.setup().digest != derived.setup().digest


def test_campaigns_take_an_epsilon(tmp_path):
    (tmp_path / "a.toml").write_text(
        'steps = 1\n[[run]]\nregimes = ["I"]\noptimizers = ["adam", "adamw"]\nepsilon = "negligible"\n'
        "sizes = [8, 12, 16]\nseeds = 4\n"
    )
    assert all(one.configuration.optimizer.negligible for one in load_campaign(str(tmp_path / "a.toml")))


@pytest.mark.parametrize(
    "wrong", [{"together": 0}, {"together": "x"}, {"configuration": {}}, {"testbed": "transformer"}]
)
def test_a_plan_with_unusable_values_is_refused(wrong):
    with pytest.raises(UsageError, match=r"run in plan.json.*; start again with another -o DIR"):
        Job.from_json(small().as_json() | wrong)


# folders ---------------------------------------------------------------------------------------------------------


def test_a_folder_keeps_what_memory_keeps(whole, tmp_path):
    run, kept, report = whole
    store = Store(tmp_path)
    for cell in list_cells(run.setup()):
        store.save(run.name, run.setup().name(cell), kept.load(run.name, run.setup().name(cell)))
    assert without_time(run.report(Store(tmp_path))) == without_time(report)


def stopping(monkeypatch, at):
    """From now on training is interrupted at this cell; the calls so far."""
    done = []

    def train(*arguments):
        done.append(arguments)
        if len(done) == at:
            raise KeyboardInterrupt
        return TRAIN(*arguments)

    monkeypatch.setattr(runs, "train_network", train)
    return done


def test_an_interrupted_run_goes_on_where_it_stopped(whole, tmp_path, monkeypatch):
    run, _, report = whole
    done = stopping(monkeypatch, 7)
    first = session.Session(Store(tmp_path), Here(Hardware()))
    first.perform([run])
    assert first.interrupted and run.report(Store(tmp_path), interrupted=True).exit_code == 130
    session.Session(Store(tmp_path), Here(Hardware())).perform([run])
    trained = Counter(seed for _, replicas, _ in done for seed in replicas.seeds)
    again = set(done[6][1].seeds)  # nothing twice but the cell that was cut off
    assert {seed for seed, times in trained.items() if times > 1} == again
    assert sum(trained.values()) == len(again) + sum(cell.count for cell in list_cells(run.setup()))
    assert len(done) == 1 + len(list_cells(run.setup()))
    assert without_time(run.report(Store(tmp_path))) == without_time(report)


def test_an_interrupted_run_writes_its_file(tmp_path, monkeypatch):
    stopping(monkeypatch, 1)
    found = invoke(*SMALL, "-o", tmp_path / "verdicts.md")
    assert found.exit_code == 130 and "give -o DIR" in found.stderr
    report = (tmp_path / "verdicts.md").read_text(encoding="utf-8")
    verdict, _, place = found.stdout.partition("; rows in ")
    assert verdict.endswith("interrupted, so the run is INCONCLUSIVE") and f"{verdict}\n" in report
    assert place == f"{tmp_path / 'verdicts.md'}\n"


def test_pieces_of_another_recipe_are_not_mixed_in(tmp_path, monkeypatch):
    run, store = small(), Store(tmp_path)
    session.Session(store, Here(Hardware())).perform([run])
    assert run.setup().digest == small(seeds=4, together=8).setup().digest
    others = [replace(run, configuration=ASKED.but(**{part: name})) for part, name in OTHERS]
    assert len({job.setup().digest for job in (run, *others)}) == 3
    monkeypatch.setitem(MOE_CONSTANTS, "eps", 0.5)
    assert run.report(Store(tmp_path)).incomplete == f"{len(list_cells(run.setup()))} cells missing"
    session.Session(Store(tmp_path), Here(Hardware())).perform([run])
    assert not run.report(Store(tmp_path)).incomplete


def test_a_folder_of_another_run_is_left_alone(tmp_path):
    write_plan(tmp_path, {"runs": [small().as_json()]})
    write_plan(tmp_path, {"runs": [small().as_json()]})
    with pytest.raises(UsageError, match="holds another run"):
        write_plan(tmp_path, {"runs": [small(seeds=8).as_json()]})
    assert len(read_plan(tmp_path)["runs"]) == 1


def test_parts_in_several_folders_are_merged(whole, tmp_path):
    run, kept, report = whole
    folders = [tmp_path / "a", tmp_path / "b"]
    for k, cell in enumerate(list_cells(run.setup())):
        name = run.setup().name(cell)
        Store(folders[k % 2]).save(run.name, name, kept.load(run.name, name))
    for folder in folders:
        Store(folder).describe(run.name, {**kept.environment(run.name), "device": folder.name})
        write_plan(folder, {"runs": [run.as_json()], "command": "scalecalc verify"})
    merged = invoke("verify", "--merge", *folders, "-o", tmp_path / "c", "--format", "json")
    said = json.loads(merged.stdout)
    assert said["counts"] == report.counts and merged.exit_code == report.exit_code
    assert said["environment"]["device"] == "a, b"
    assert {p.name for p in (tmp_path / "c").iterdir()} == {"report.json", "report.md", "report.html"}
    write_plan(folders[1], {"runs": [small(seeds=8).as_json()]}, again=True)
    wrong = invoke("verify", "--merge", *folders)
    assert wrong.exit_code == 2 and "other runs" in wrong.stderr


# campaigns -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", list_campaigns())
def test_every_campaign_can_be_run(name):
    found = load_campaign(name)
    assert len({run.name for run in found}) == len(found)
    assert all(len(run.sizes) >= 3 and min(run.seeds) >= 8 for run in found)
    runs.check_run(found[0].setup())


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("steps = ", "write TOML"),
        ("steps = 2", "no table"),
        ("[[run]]\nregime = 'III'", "did you mean 'regimes'"),
        ("[[run]]\noptimizers = ['sgd']", "neither regimes nor rays"),
        ("[[run]]\nregimes = ['III']\nseeds = 8.5", "write an integer"),
        ("together = 3\n[[run]]\nregimes = ['III']", "give a power of two"),
        ("[[run]]\nregimes = ['III']\noptimizers = ['adm']", "did you mean 'adam'"),
    ],
)
def test_a_wrong_campaign_is_one_clear_line(text, says, tmp_path):
    (tmp_path / "mine.toml").write_text(text)
    found = invoke("verify", "--campaign", tmp_path / "mine.toml")
    assert found.exit_code == 2 and says in found.stderr and len(found.stderr.splitlines()) == 1, found.output


def test_a_folder_that_was_never_begun_says_what_to_do(tmp_path):
    found = scalecalc("verify", "--resume", str(tmp_path / "none"))
    assert found.exit_code == 2 and "plan.json: No such file" in found.stderr
    assert "or begin again with -o DIR" in found.stderr and found.stderr.count("\n") == 1


def test_of_a_network_of_ones_own_claims_are_certified_and_the_rest_with_bounded_work(monkeypatch):
    own = replace(MOE_BLOCK, name="mine")
    monkeypatch.setattr(predictions, "ALL", 0)
    d = derivation.derive("II", "sgd", "mup", network=own)
    rows = predictions.predict_signals(d, 2, ["h3.A2.2"]).quantities
    assert [x.size for x in rows["h3.A2.2"]] == [None, -1, Fraction(-1, 2)]
    assert not rows["f.change"][2].decided and len(rows) == len(d.analysis().table)
    ships = derivation.derive("II", "sgd", "mup")  # control: all of it
    assert predictions.predict_signals(ships, 1).quantities["f.change"][1].decided


def test_a_planted_power_is_trained_with_and_refuted(tmp_path):
    """First where it acts: the effective update of its signal; a stored run keeps what was planted."""
    asked = ["verify", "--regime", "I", "--optimizer", "sgd", "--sizes", "16,48,144", "--seeds", "24", "--steps", "1"]
    folder = tmp_path / "run"
    found = invoke(*asked, "--planted", "readout.lr=1", "--device", "cpu", "-o", folder)
    assert found.exit_code == 1 and "trained with readout.lr=1 instead" in found.stdout
    rows = [line.split() for line in (folder / "report.md").read_text().splitlines() if "REFUTED" in line]
    assert rows and rows[0][1] == "f.effective"
    assert closing(invoke("verify", "--resume", folder)) == closing(found)
    for planted, said in (("readout.lr=0", "give a power such as N^-1/2"), ("foo.lr=1", "no tensor or multiplier")):
        refused = invoke(*asked, "--planted", planted)
        assert refused.exit_code == 2 and said in refused.output
