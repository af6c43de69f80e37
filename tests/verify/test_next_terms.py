"""The term that is named beside the leading one is what bends a measured slope, at sizes off the ray, too."""

from dataclasses import replace
from fractions import Fraction

import pytest

np = pytest.importorskip("numpy")
pytest.importorskip("torch")
nnls = pytest.importorskip("scipy.optimize").nnls

from scaling_algebra import Power, derive
from scaling_algebra.verify import measure
from scaling_algebra.verify.judging.fit import Verdict, judge_exponent
from scaling_algebra.verify.judging.report import fit_of
from scaling_algebra.verify.measuring import sizes

QUANTITY = "h3.A2.2"
WIDTHS = (2, 8, 32)


@pytest.fixture(scope="module")
def generic():
    """muP on a ray where the powers of all three axes show."""
    return derive(None, "adam", "mup", ray="N=1,N_e=1/2,M=3/4")


@pytest.fixture(scope="module")
def named(generic):
    return {generic.scaling.size(form) for form in generic.analysis().forms(QUANTITY, 2)}


@pytest.fixture(scope="module")
def runs(generic):
    """Along regime II at three widths of the experts, each fixed."""
    along, patch = replace(derive("II", "adam", "mup"), scaling=generic.scaling), pytest.MonkeyPatch()
    found = []
    for width in WIDTHS:
        with patch.context() as inside:
            inside.setattr(sizes, "FIXED", width)
            found.append(measure(along, sizes=[20, 40, 80], seeds=8, steps=2, device="cpu"))
    return found


def misfit(runs, terms):
    """Root of the mean squared relative difference between mean squares and a non-negative sum of these monomials."""
    points = [(dims, np.mean(v**2)) for m in runs for dims, v in zip(m.dims, m.cleaned(QUANTITY, 2), strict=True)]
    columns = np.array([[t.at(dims) ** 2 / y for t in terms] for dims, y in points])
    coefficients, _ = nnls(columns, np.ones(len(points)))
    return float(np.mean((columns @ coefficients - 1) ** 2) ** 0.5)


def test_a_slope_is_bent_and_the_named_terms_are_why(runs, named):
    """Leading is M^(-1/2), in regime II n^(-1/2); beside it N_e/N, which falls as n^-1 and is large where experts are
    wide. Without it, with a power of N alone, or of half the experts' width, the same sum fits no more."""
    lead, beside = Power.parse("M^-1/2"), Power.parse("N_e N^-1")
    assert {lead, beside} <= named
    for m in runs:
        fitted = fit_of(m, QUANTITY, 2)
        assert fitted.slope < -0.65 and judge_exponent(fitted, Fraction(-1, 2)) is not Verdict.AGREES
    good = misfit(runs, named)
    without = misfit(runs, [lead])
    wrong = [misfit(runs, [lead, Power.parse(p)]) for p in ("N^-1", "N_e^-1", "N_e^-1 N^-1", "M^-1 N_e^-1/2")]
    assert good < 0.4 and misfit(runs, [lead, beside]) < 0.5, (good, without, wrong)
    assert min(without, *wrong) > 0.65, (good, without, wrong)


def test_wider_experts_raise_it_as_the_named_term_says(runs):
    """At one N and M: a factor 16 in N_e makes the term 16 times as large, the leading one stays."""
    narrow, wide = (np.mean(m.cleaned(QUANTITY, 2)[2] ** 2) ** 0.5 for m in (runs[0], runs[-1]))
    assert 4 < wide / narrow < 16
