"""Is the base large enough: terms beside the leading ones, at numbers that are calculated by hand."""

import random
from dataclasses import replace
from fractions import Fraction

import pytest

from scaling_algebra import Power, derive, network, recipe, signals
from scaling_algebra.spec.axes import Ray

BLOCK = {"optimizer": "sgd", "architecture": "moe"}


@pytest.fixture(scope="module")
def found():
    return recipe("N=1024,N_e=256,M=32", "N=4096,N_e=1024,M=128", **BLOCK).next_terms


def test_ratios_are_powers_of_the_sizes(found):
    rows = {str(x.ratio): x for x in found.terms}
    wall, few = rows["N^(1/2) N_e^(-1/2) M^(-1/2)"], rows["M^(-1/2)"]
    assert found.examined and not found.unknown
    assert wall.base == pytest.approx((1024 / (256 * 32)) ** 0.5) and wall.target == pytest.approx(0.5 * wall.base)
    assert few.base == pytest.approx(32**-0.5) and ("h3.change", 2) in few.of
    bases = [x.base for x in found.terms]
    assert bases == sorted(bases, reverse=True) and all(max(x.base, x.target) >= 0.1 for x in found.terms)


def test_from_the_sizes_that_are_said_a_term_is_small(found):
    """And at half of them it is not: negative control."""
    for x in found.terms:
        sizes = {"N": 1, "N_e": 1, "M": 1, "K": 1} | dict(x.small_from)
        assert x.ratio.at(sizes) == pytest.approx(0.1)
        assert x.ratio.at({axis: size / 2 for axis, size in sizes.items()}) > 0.1


def test_a_large_base_has_no_other_term():
    text = str(recipe("N=1024", "N=4096", architecture="mlp"))
    assert "no other term is larger than 1/10 times the leading one" in text
    assert not recipe("N=99999,N_e=999,M=99999", "N=199998,N_e=1998,M=199998", **BLOCK).next_terms.terms


def test_below_the_wall_another_term_is_larger():
    """N_e M < N (the map of rays): what leads on the ray is hidden at the base."""
    r = recipe("N=4096,N_e=16,M=16", "N=16384,N_e=256,M=256", **BLOCK)
    assert any(x.base > 1 > x.target for x in r.next_terms.terms)
    near = recipe("N=4096,N_e=64,M=256", "N=16384,N_e=256,M=1024", **BLOCK)
    assert near.next_terms.terms[0].base < 1


def test_every_monomial_is_a_lower_bound():
    """Of the certified size, on random rays; one that is planted is not."""
    rng, planted = random.Random(7), 0
    for _ in range(2):
        ray = Ray({"N": 1, "N_e": Fraction(rng.randint(2, 6), 4), "M": Fraction(rng.randint(2, 6), 4)})
        d = derive(None, "adam", "mup", ray=ray)
        for name in ("h3.A2.2", "h2.effective", "psi.propagating"):
            (_, _, size), forms = signals(d.configuration, quantities=[name]).quantities[name], None
            forms = [d.scaling.size(form) for form in d.analysis().runs.list_lower_forms(name, 2)]
            assert max(p.on(ray) for p in forms) == size.exponent
            planted += any((p * Power.of({"N": Fraction(1, 2)})).on(ray) > size.exponent for p in forms)
    assert planted == 6


def test_what_starts_elsewhere_is_not_asked():
    assert not recipe("N=1", "N=64").next_terms.examined
    assert not recipe("N=64,N_e=64,M=8", "N=256,N_e=256,M=32", parameterization="sp", **BLOCK).next_terms.examined


def test_where_no_ray_leads_no_size_is_said():
    terms = recipe("N=512,N_e=512,M=8", "N=1024,N_e=256,M=32", **BLOCK).next_terms.terms
    assert terms and all(x.small_from is None for x in terms)


def test_off_its_walls_mssp_is_that_of_the_recipe():
    """Constants and all: MSSP for these sizes exists on the ray, not at the ray of the base."""
    r = recipe("N=256,N_e=256,M=4", "N=1024,N_e=1024,M=16", parameterization="mssp", **BLOCK)
    assert r.next_terms.examined and not r.next_terms.unknown
    assert any("M" in dict(x.ratio.terms) for x in r.next_terms.terms)


def test_next_to_a_wall_no_size_is_said():
    """There a term falls so slowly that nobody has the size at which it is small."""
    found = recipe("N=4096,N_e=64,M=64", "N=16384,N_e=80,M=205", "sgd", architecture="moe")
    terms = {str(x.ratio): x for x in found.next_terms.terms}
    assert terms["N^(1/2) N_e^(-1/2) M^(-1/2)"].small_from is None and "e+" not in str(found)
    assert terms["M^(-1/2)"].small_from is not None


def test_behind_a_norm_the_law_has_the_powers_that_a_search_finds_on_another_ray():
    """Negative controls: a rate that is not that of the law, and a network without norms, whose powers are solved."""
    equations = "h[a] = W1[a,x] data[x]\nr[a] = rmsnorm(h[a])\nz[b] = W2[b,a] r[a]\nf = W3[b] z[b]"
    net = network("normed", equations, {"a": "N", "b": "N_e", "x": "D"})
    d, other = derive(None, "adam", ray="N=1,N_e=1", network=net), Ray({"N": 1, "N_e": Fraction(1, 2)})
    assert d.apply_law(other) == derive(d.configuration.but(ray=other)).scaling != d.scaling
    tensors = {**d.scaling.tensors, "W2": replace(d.scaling.tensors["W2"], lr=Power())}
    assert replace(d, scaling=replace(d.scaling, tensors=tensors)).apply_law(other) is None
    assert derive(None, "adam", ray="N=1", architecture="mlp").apply_law(Ray({"N": 1})) is None
