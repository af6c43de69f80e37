"""A ray times a constant is the same ray: the same powers of the axes, exponents of n times the constant."""

from __future__ import annotations

import random
from fractions import Fraction

import pytest

from scaling_algebra import derive, prove, signals
from scaling_algebra.counting.packing import Packing
from scaling_algebra.solver.demands import NotFound
from scaling_algebra.spec.axes import REGIMES, Ray

SEED = 20261122
FACTORS = (Fraction(3), Fraction(1, 7), Fraction(1000), Fraction(97, 101))


def times(ray: Ray, factor: Fraction) -> Ray:
    return Ray({axis: rate * factor for axis, rate in ray.rates.items()})


def rays(count: int) -> list[Ray]:
    draw = random.Random(SEED)

    def rate() -> Fraction:
        return Fraction(draw.randint(1, 12), draw.randint(1, 7))

    return [Ray({"N": rate(), "N_e": rate(), "M": rate()}) for _ in range(count)]


def powers(ray: Ray, optimizer: str, rule: str, network: str) -> object:
    """What is derived on a ray, as powers of the axes."""
    try:
        return derive(ray=ray, optimizer=optimizer, parameterization=rule, architecture=network).scaling
    except NotFound:
        return None


def same(ray: Ray, factor: Fraction, optimizer: str, rule: str, network: str = "moe") -> bool:
    return powers(ray, optimizer, rule, network) == powers(times(ray, factor), optimizer, rule, network)


@pytest.mark.parametrize("rule", ["mup", "mssp"])
@pytest.mark.parametrize("factor", FACTORS[2:3], ids=str)
def test_a_multiple_of_a_regime_is_the_regime(factor: Fraction, rule: str) -> None:
    ray = times(REGIMES["III"], factor)
    assert powers(ray, "sgd", rule, "moe") == derive("III", "sgd", rule).scaling


@pytest.mark.parametrize("factor", FACTORS[::3], ids=str)
@pytest.mark.parametrize("ray", rays(2), ids=str)
def test_a_multiple_of_a_ray_is_the_ray(ray: Ray, factor: Fraction) -> None:
    assert same(ray, factor, "sgd", "mup")


@pytest.mark.parametrize(
    ("optimizer", "ray"), [("adam", Ray.parse("N=1,N_e=2/3,M=4/3")), ("muon", Ray.parse("N=0,N_e=1,M=1"))]
)
def test_a_multiple_of_a_ray_is_the_ray_for_every_kind_of_optimizer(ray: Ray, optimizer: str) -> None:
    factor = FACTORS[sum(map(ord, f"{ray}{optimizer}")) % len(FACTORS)]
    assert same(ray, factor, optimizer, "mup")
    assert same(ray, factor, optimizer, "mssp")
    assert same(Ray({"N": ray["N_e"]}), factor, optimizer, "mup", "mlp")


@pytest.mark.parametrize("factor", FACTORS[:2], ids=str)
def test_sizes_on_a_multiple_of_a_ray_are_multiples(factor: Fraction) -> None:
    ray = Ray({"N": 1, "N_e": "1/2", "M": "3/2"})
    names = ["h1", "h3.A1", "h3.A2.2", "psi.effective", "gQ"]
    asked = {"optimizer": "sgd", "parameterization": "mup", "quantities": names, "steps": 2}
    one, other = signals(ray=ray, **asked), signals(ray=times(ray, factor), **asked)  # type: ignore[arg-type]
    for name in names:
        for here, there in zip(one.quantities[name], other.quantities[name], strict=True):
            assert here.decided == there.decided
            assert there.size == (None if here.size is None else here.size * factor)


@pytest.mark.parametrize(("rule", "rates"), [("mssp", "N=1,N_e=1,M=1")])
def test_a_proof_on_a_multiple_of_a_ray_is_the_proof(rule: str, rates: str) -> None:
    ray = Ray.parse(rates)
    one, other = (prove(ray=r, optimizer="sgd", parameterization=rule) for r in (ray, times(ray, FACTORS[1])))
    assert [a.verdict for a in one.attempts] == [a.verdict for a in other.attempts]
    assert [a.core for a in one.attempts] == [a.core for a in other.attempts]
    for here, there in zip(one.outcome.points, other.outcome.points, strict=True):
        assert {r: c * FACTORS[1] for r, c in here.c.items()} == there.c


def test_what_a_ray_times_a_constant_packs_to_is_the_same_integer() -> None:
    ray = Ray.parse("N=1,N_e=2/3,M=4/3")
    for factor in FACTORS:
        here, there = Packing(ray, ("x",)), Packing(times(ray, factor), ("x",))
        packed = here.pack(Fraction(5, 3), {"N": 1}, {"x": -1})
        assert there.pack(Fraction(5, 3) * factor, {"N": 1}, {"x": -1}) == packed
        assert there.value(packed) == here.value(packed) * factor


def test_another_ray_is_told_apart() -> None:
    """The negative control."""
    assert powers(REGIMES["I"], "sgd", "mup", "moe") != powers(REGIMES["III"], "sgd", "mup", "moe")
