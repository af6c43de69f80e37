"""A ray times a constant is the same ray: the same powers of the axes, and the same proofs."""

import random
from fractions import Fraction

import pytest

from scaling_algebra import derive, prove
from scaling_algebra.counting.packing import Packing
from scaling_algebra.solver.demands import NotFound
from scaling_algebra.spec.axes import REGIMES, Ray
from scaling_algebra.spec.powers import Power

DRAW = random.Random(20261122)
DRAWN = [Ray({axis: Fraction(DRAW.randint(1, 12), DRAW.randint(1, 7)) for axis in ("N", "N_e", "M")}) for _ in "12"]
FACTORS = (Fraction(3), Fraction(1, 7), Fraction(1000), Fraction(97, 101))


def times(ray, factor):
    return Ray({axis: rate * factor for axis, rate in ray.rates.items()})


def powers(ray, optimizer="sgd", rule="mup", network="moe"):
    """What is derived on a ray, as powers of the axes."""
    try:
        return derive(ray=ray, optimizer=optimizer, parameterization=rule, architecture=network).scaling
    except NotFound:
        return None


ADAM, MUON = Ray.parse("N=1,N_e=2/3,M=4/3"), Ray.parse("N=0,N_e=1,M=1")
MULTIPLES = [
    *((REGIMES["III"], FACTORS[2], "sgd", rule, "moe") for rule in ("mup", "mssp")),
    *((ray, factor, "sgd", "mup", "moe") for ray in DRAWN for factor in (FACTORS[0], FACTORS[3])),
    *((ADAM, FACTORS[1], "adam", rule, "moe") for rule in ("mup", "mssp")),
    *((MUON, FACTORS[2], "muon", rule, "moe") for rule in ("mup", "mssp")),
    *((Ray({"N": ray["N_e"]}), FACTORS[3], rule, "mup", "mlp") for ray, rule in ((ADAM, "adam"), (MUON, "muon"))),
]


@pytest.mark.parametrize(("ray", "factor", "optimizer", "rule", "network"), MULTIPLES, ids=str)
def test_a_multiple_of_a_ray_is_the_ray(ray, factor, optimizer, rule, network):
    assert powers(ray, optimizer, rule, network) == powers(times(ray, factor), optimizer, rule, network)


def test_a_multiple_of_a_regime_is_the_regime():
    assert powers(times(REGIMES["III"], FACTORS[2])) == derive("III", "sgd", "mup").scaling


def test_a_proof_on_a_multiple_of_a_ray_is_the_proof():
    ray = REGIMES["I"]
    one, other = (prove(ray=r, optimizer="sgd", parameterization="mssp") for r in (ray, times(ray, FACTORS[1])))
    assert [(a.verdict, a.core) for a in one.attempts] == [(a.verdict, a.core) for a in other.attempts]
    for here, there in zip(one.outcome.points, other.outcome.points, strict=True):
        assert {r: c * FACTORS[1] for r, c in here.c.items()} == there.c


@pytest.mark.parametrize("factor", FACTORS, ids=str)
def test_what_a_ray_times_a_constant_packs_to_is_the_same_integer(factor):
    here, there = Packing(ADAM, ("x",)), Packing(times(ADAM, factor), ("x",))
    packed = here.pack(Fraction(5, 3), {"N": 1}, {"x": -1})
    assert there.pack(Fraction(5, 3) * factor, {"N": 1}, {"x": -1}) == packed
    assert there.exponent(packed) == here.exponent(packed) * factor


@pytest.mark.parametrize("names", [1, 40])
def test_value_and_form_are_those_that_were_packed(names):
    """Counts of either sign: a negative one borrows from the component above."""
    rng, unknowns = random.Random(names), [f"c.{k}" for k in range(names)]
    packing = Packing(ADAM, unknowns)
    for _ in range(50):
        value = Fraction(rng.randrange(-99, 99), rng.choice((1, 2, 3, 4)))
        powers = {axis: Fraction(rng.randrange(-9, 9), 2) for axis in packing.stored_axes}
        counts = {name: rng.randrange(-99, 99) for name in unknowns}
        packed = packing.pack(value, powers, counts)
        form = packing.form(packed)
        assert packing.exponent(packed) == value and form.power == Power.of(powers)
        assert dict(form.unknowns) == {name: k for name, k in counts.items() if k}


def test_another_ray_is_told_apart():
    """The negative control."""
    assert powers(REGIMES["I"]) != powers(REGIMES["III"])
