"""The parameterization that breaks least: its shortfalls, and that every other one near it is worse."""

from dataclasses import replace
from fractions import Fraction

import pytest
from click.testing import CliRunner

from scaling_algebra import UsageError, derive, relax
from scaling_algebra.cli import main
from scaling_algebra.dynamics.analysis import Analysis

NARROW = {"ray": "N=1,N_e=1/2", "optimizer": "sgd", "parameterization": "mup", "architecture": "bottleneck"}
STEP = Fraction(1, 8)


@pytest.fixture(scope="module")
def narrow():
    return relax(**NARROW)


def worth(d, point):
    """The shortfall of every demand in order, or what grows, as the engine alone sees it."""
    look, structure = Analysis(d.ray, point, d.optimizer, d.network), d.configuration.parameterization
    found = []
    for demand in structure.demanded(d.network, structure.base_structure("maximal")):
        if demand.kind == "scale":
            continue
        sizes = [look.lower(q, t).size for q in demand.quantities for t in range(4)]
        if any(x is not None and x > 0 for x in sizes):
            return "grows"
        if demand.kind == "theta":
            answers = [look(q, t) for q in demand.quantities for t in range(3)]
            assert all(a.decided for a in answers)
            found.append(-max(a.size for a in answers if a.size is not None))
    return found


def moved(point):
    """Every init std and learning rate a little larger or smaller."""
    for letter in "bc":
        for role, x in getattr(point, letter).items():
            for step in (STEP, -STEP):
                yield replace(point, **{letter: {**getattr(point, letter), role: x + step}})


def test_one_demand_of_a_bottleneck_falls_short(narrow):
    """Its narrow side grows slower: the wide side's update vanishes, and all else is as muP wants it."""
    assert narrow.unmet == ("mu-2: effective update dW3 h2 = Theta(1), but h3.effective + h3.cross ~ n^(-1/4)",)
    assert narrow.unique
    short = worth(narrow, narrow.scaling.point(narrow.ray))
    assert [x for x in short if x] == [Fraction(1, 4)]


def test_all_others_near_it_are_worse(narrow):
    """The negative control: one power moved, and a signal grows or an earlier demand falls short."""
    point = narrow.scaling.point(narrow.ray)
    best, others = worth(narrow, point), [worth(narrow, p) for p in moved(point)]
    assert len(others) == 16 and all(x == "grows" or x > best for x in others)
    assert any(x == "grows" for x in others) and any(x != "grows" for x in others)


def test_nothing_grows_later(narrow):
    look = narrow.analysis()
    later = [look.lower(s.out, t).size for s in narrow.network.statements for t in (3, 4, 5)]
    assert all(x <= 0 for x in later)


def test_where_all_demands_can_be_met_it_is_what_is_derived():
    asked = {**NARROW, "ray": "N=1,N_e=1"}
    assert relax(**asked).scaling == derive(**asked).scaling
    assert not relax(**asked).unmet


def test_a_few_experts_whose_width_grows_slower():
    """Under Adam, which is searched as gradient descent and examined as itself."""
    d = relax(ray="N=1,N_e=1/2,M=0", optimizer="adam", parameterization="mup")
    assert [x.partition(" ~ ")[2] for x in d.unmet] == ["n^(-1/4)"] * 2
    assert all("effective update" in x for x in d.unmet) and d.unique


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"parameterization": "mssp"}, "MSSP chooses interventions"),
        ({"given": {"readout.init": "1"}}, "exponents are given"),
        ({"optimizer": "lion"}, "cannot prove: lion divides"),
        ({"parameterization": "sp"}, "derived parameterization"),
    ],
)
def test_what_is_not_relaxed_is_said(more, says):
    asked = {"ray": "N=1,N_e=1/2,M=0", "optimizer": "sgd", "parameterization": "mup", **more}
    with pytest.raises(UsageError, match=says):
        relax(**asked)


def test_the_command_says_what_falls_short_and_exits_with_1():
    asked = ["derive", "--architecture", "bottleneck", "--ray", "N=1,N_e=1/2", "--optimizer", "sgd", "--relax"]
    result = CliRunner().invoke(main, asked)
    assert result.exit_code == 1 and "these fall short" in result.output and "every ray" not in result.output
    assert CliRunner().invoke(main, [*asked[:4], "N=1,N_e=1", *asked[5:]]).exit_code == 0
    refused = CliRunner().invoke(main, [*asked, "--prove"])
    assert refused.exit_code == 2 and "leave out --prove" in refused.stderr


def test_a_conflict_points_to_what_breaks_least():
    result = CliRunner().invoke(main, ["derive", "--architecture", "bottleneck", "--ray", "N=1,N_e=1/2"])
    assert result.exit_code == 1 and result.stderr.rstrip().endswith("derive --relax gives the one that breaks least")


def test_a_zero_readout_has_no_reason_among_the_desiderata():
    d = relax(**NARROW, readout_init="zero")
    assert d.reasons["readout", "init"] == "chosen: zero" and d["readout"].init_std is None
    assert any("effective update dW4 h3" in x for x in d.unmet)
