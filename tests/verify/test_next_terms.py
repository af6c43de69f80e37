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
from scaling_algebra.verify.judging.verdicts import fit_quantity
from scaling_algebra.verify.measuring import sizes

QUANTITY = "h3.A2.2"


def misfit(runs, terms):
    """Root of the mean squared relative difference between mean squares and a non-negative sum of these monomials."""
    points = [(dims, np.mean(v**2)) for m in runs for dims, v in zip(m.dims, m.get_cleaned(QUANTITY, 2), strict=True)]
    columns = np.array([[t.at(dims) ** 2 / y for t in terms] for dims, y in points])
    coefficients, _ = nnls(columns, np.ones(len(points)))
    return float(np.mean((columns @ coefficients - 1) ** 2) ** 0.5)


def test_a_slope_is_bent_and_the_named_terms_are_why(monkeypatch):
    """Leading is M^(-1/2), in regime II n^(-1/2); beside it N_e/N, which falls as n^-1 and is large where experts are
    wide. Without it, with a power of N alone, or of half the experts' width, the same sum fits no more."""
    generic, runs = derive(None, "adam", "mup", ray="N=1,N_e=1/2,M=3/4"), []
    named = {generic.scaling.size(form) for form in generic.analysis().runs.list_lower_forms(QUANTITY, 2)}
    lead, beside = Power.parse("M^-1/2"), Power.parse("N_e N^-1")
    assert {lead, beside} <= named
    along = replace(derive("II", "adam", "mup"), scaling=generic.scaling)
    for width in (2, 8, 32):
        monkeypatch.setattr(sizes, "FIXED", width)
        runs.append(measure(along, sizes=[20, 40, 80], seeds=8, steps=2, device="cpu"))
        fitted = fit_quantity(runs[-1], QUANTITY, 2)
        assert fitted.slope < -0.65 and judge_exponent(fitted, Fraction(-1, 2)) is not Verdict.AGREES
    good, without = misfit(runs, named), misfit(runs, [lead])
    wrong = [misfit(runs, [lead, Power.parse(p)]) for p in ("N^-1", "N_e^-1", "N_e^-1 N^-1", "M^-1 N_e^-1/2")]
    assert good < 0.4 and misfit(runs, [lead, beside]) < 0.5, (good, without, wrong)
    assert min(without, *wrong) > 0.65, (good, without, wrong)
