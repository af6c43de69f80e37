"""No certified size is above its bound by norms: the library and random networks."""

import pytest

torch = pytest.importorskip("torch")

from scaling_algebra import Infeasible, UsageError, derive
from scaling_algebra.dynamics.analysis import QUICKLY
from scaling_algebra.spec.networks.library import ARCHITECTURES

from .campaign import EngineTooLong, analysis, drawn, within

DEPENDS = ("derives", "interprets")
PLACES = (("I", "sgd"), ("II", "muon"), ("III", "adam"))
SECONDS = 6.0
BLOCK, BLOCKS = 20, 5


def above(look):
    """How many sizes are held against a bound, and those above it."""
    held, wrong = 0, []
    for name in look.table:
        high = look.upper(name)
        for t in range(2) if high is not None else ():
            answer = look(name, t, QUICKLY)
            if answer.decided and answer.size is not None:
                held += 1
                wrong += [f"{name}@{t}: n^({answer.size}) above n^({high})"] if answer.size > high else []
    return held, wrong


def counted(looks, record_property):
    """Holds every analysis against its bounds; those that cannot be derived in time are left out."""
    held, wrong, left = 0, [], 0
    for made in looks:
        try:
            with within(SECONDS):
                one, more = above(made())
        except (UsageError, Infeasible, EngineTooLong):
            left += 1
            continue
        held, wrong = held + one, wrong + more
    record_property("sizes", held)
    record_property("not derived", left)
    assert not wrong, "\n".join(wrong)
    return held


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_no_size_of_the_library_is_above_its_bound(name, record_property):
    def look(regime, rule):
        return lambda: derive(regime, rule, "mup", architecture=name).analysis()

    counted([look(*place) for place in PLACES], record_property)


@pytest.mark.parametrize("block", range(BLOCKS))
def test_no_size_of_a_random_network_is_above_its_bound(block, record_property):
    looks = [lambda seed=seed: analysis(drawn(seed))[0] for seed in range(BLOCK * block, BLOCK * (block + 1))]
    assert counted(looks, record_property) > 100
