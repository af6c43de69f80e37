"""Every signal on every ray of a cone: against the engine on random rays, and at the regimes."""

import csv
import io
import json
import random
from dataclasses import replace
from fractions import Fraction
from functools import cache

import pytest
from click.testing import CliRunner

from scaling_algebra import REGIMES, Power, signals
from scaling_algebra.cli import main
from scaling_algebra.dynamics.analysis import Analysis
from scaling_algebra.formulas.every_ray import every_ray
from scaling_algebra.solver.cones import rays_of
from scaling_algebra.spec.axes import Ray
from scaling_algebra.spec.configuration import Configuration

INSIDE = {"B": "N=1,N_e=1/2,M=3/2", "C": "N=1,N_e=3/4,M=1/2", "D": "N=1,N_e=3/2,M=1/2", "E": "N=1,N_e=5/4,M=3/2"}
"""Cells of the map of muP, a ray inside each."""
WALLS = {"M + N_e = N": "N=1,N_e=1/3,M=2/3", "N_e = N": "N=1,N_e=1,M=1/2"}
"""Where MSSP is."""
NAMES = (
    "psi.init",
    "h3.A2.1",
    "h3.A2.2",
    "h2.change",
    "g1.router.Q0.init-init",
    "gphi.init-init",
    "gphi",
    "dW2",
    "gW1",
    "f",
)


@cache
def found(ray, optimizer="sgd", parameterization="mup", names=()):
    asked = Configuration.of(None, optimizer, parameterization, ray=ray)
    return every_ray(asked, quantities=names or None)


def inside(cone, rng):
    """A random ray of a cone: now and then on its boundary."""
    rays = rays_of(cone)
    weights = [Fraction(rng.randint(0, 4)) for _ in rays]
    weights = weights if any(weights) else [Fraction(1) for _ in rays]
    return Ray({a: sum(w * r[a] for w, r in zip(weights, rays, strict=True)) for a in ("N", "N_e", "M")})


def disagreements(table, rays=2):
    """Cells that are not what the engine says on random rays on which M grows."""
    rng, wrong = random.Random(11), []
    for _ in range(rays):
        ray = inside(table.cone, rng)
        while not ray["M"] or not ray["N"]:
            ray = inside(table.cone, rng)
        point = table.scaling.point(ray)
        look = Analysis(ray, point, table.configuration.optimizer, table.configuration.network)
        wrong += [
            (name, t, str(ray))
            for name, row in table.sizes.items()
            for t, size in enumerate(row)
            if look(name, t).exponent != size.on(ray)
        ]
    return wrong


@pytest.mark.parametrize("cell, optimizer", [("C", "adam"), ("E", "sgd")])
def test_every_size_is_the_one_of_the_engine(cell, optimizer):
    assert not disagreements(found(INSIDE[cell], optimizer, names=NAMES))


@pytest.mark.parametrize("wall", WALLS)
def test_on_a_wall_powers_are_written_in_two_axes(wall):
    table = found(WALLS[wall], "sgd", "mssp", NAMES)
    assert not disagreements(table)
    used = {axis for row in table.sizes.values() for x in row for p in x.powers for axis, _ in p.terms}
    assert used == {"N", "M"}, used
    sides = [Power.parse("N"), Power.parse("N_e" if wall == "N_e = N" else "M N_e")]
    assert all(sides[0].on(ray) == sides[1].on(ray) for ray in rays_of(table.cone))


def test_a_planted_power_and_a_missing_one_are_seen():
    table = found(INSIDE["C"], names=NAMES)
    row = table.sizes["h3.A2.2"]
    assert [str(x) for x in row] == ["0", "N_e N^-1", "max(M^(-1/2), N_e N^-1)"]
    for k, power in enumerate(row[2].powers):
        rest = tuple(p for p in row[2].powers if p != power)
        for powers in (rest, (*rest, power * Power.of({"N": Fraction(1, 4)}))):
            planted = (*row[:2], replace(row[2], powers=powers))
            assert disagreements(replace(table, sizes={"h3.A2.2": planted}), 8), k


@cache
def column(regime):
    return signals(regime, "sgd", "mup").prediction()


@pytest.mark.parametrize("regime", REGIMES)
def test_columns_of_the_regimes_are_specialisations(regime):
    """All three lie on the boundary of one cell: every quantity of its table, every step, at the ray of the regime
    (II: App. J.3.2, III: App. J.4.3 of the MSSP paper)."""
    sizes = found(INSIDE["C"]).sizes
    assert len(sizes) > 90 and all(x.decided for row in sizes.values() for x in row)
    for name, row in sizes.items():
        assert tuple(x.on(REGIMES[regime]) for x in row) == column(regime)[name], name


def test_one_regime_is_not_another():
    """Negative control of the test above."""
    sizes = found(INSIDE["C"]).sizes
    wrong = [q for q, row in sizes.items() if tuple(x.on(REGIMES["II"]) for x in row) != column("III")[q]]
    assert len(wrong) > 20


def run(*arguments):
    return CliRunner().invoke(main, ["signals", "--every-ray", *arguments])


def test_the_command():
    asked = ("--ray", INSIDE["C"], "--optimizer", "sgd", "--quantity", "h3.A2.2")
    assert "max(M^(-1/2), N_e N^-1)" in run(*asked).output
    record = json.loads(run(*asked, "--format", "json").output)
    assert record["quantities"]["h3.A2.2"] == [[], [{"N": "-1", "N_e": "1"}], [{"M": "-1/2"}, {"N": "-1", "N_e": "1"}]]
    assert record["cone"] == ["M <= N", "N_e <= N", "N_e + M >= N"] and record["steps"] == [0, 1, 2]
    assert r"$\max(M^{-1/2}, N_{e} N^{-1})$" in run(*asked, "--format", "latex").output
    assert r"\max" in run(*asked, "--format", "markdown").output
    rows = list(csv.reader(io.StringIO(run(*asked, "--format", "csv").output)))
    assert rows[-1] == ["h3.A2.2", "0", "N_e N^-1", "max(M^(-1/2), N_e N^-1)"]


@pytest.mark.parametrize(
    "arguments, words",
    [
        (("--regime", "III", "--steps", "3"), "give at most 2"),
        (("--regime", "I", "--architecture", "mlp"), "proved for the network moe, not for mlp"),
        (("--regime", "III", "--parameterization", "sp"), "no derived parameterization"),
        (("--regime", "III", "--optimizer", "signsgd"), "normalises without an epsilon"),
        (("--ray", "N=1,N_e=3/4,M=1/2,K=1/4"), "proved for K = M"),
        (("--regime", "III", "--readout-init", "zero"), "with readout init maximal"),
        (("--regime", "III", "--quantity", "nope"), "no quantity named"),
        (("--regime", "III", "--quantity", "f.update.normalised"), "a quotient of maxima is none"),
    ],
)
def test_what_no_cone_is_proved_of_is_one_line(arguments, words):
    answer = run(*arguments)
    assert answer.exit_code == 2 and words in answer.output and answer.output.count("\n") == 1


@pytest.mark.parametrize(
    ("rule", "ray", "face"),
    [
        ("mup", "N=1,N_e=3/2,M=1/2", (1, 2, 0)),
        ("mssp", "N=1,N_e=1/2,M=1/2", (1, 1, 0)),
        ("mssp", "N=1,N_e=1,M=1/2", (1, 1, 0)),
    ],
)
def test_where_the_number_of_experts_is_fixed_sizes_are_the_same(rule, ray, face):
    """A face of the cone, where gates do not average out: the engine on such a ray, without what grows near by."""
    found = every_ray(Configuration.of(None, "sgd", rule, ray=ray))
    on = Ray({axis: Fraction(x) for axis, x in zip(("N", "N_e", "M"), face, strict=True)})
    look = Analysis(on, found.scaling.point(on), found.configuration.optimizer, found.configuration.network)
    compared = [(look.lower(q, t), x.on(on)) for q, row in found.sizes.items() for t, x in enumerate(row)]
    assert len(compared) > 250 and not any(a.unknown for a, _ in compared)
    assert all(a.size == size for a, size in compared)
