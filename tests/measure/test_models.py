"""check-model decides: of ten modules that people train none is refuted, and the fault planted in each is found."""

import pytest

torch = pytest.importorskip("torch")

from scaling_algebra.verify.apply.blame import find_first_to_blame
from scaling_algebra.verify.apply.checking import check_model
from scaling_algebra.verify.judging.fit import Verdict

from .zoo import ZOO

DEPENDS = ("derives", "trains", "verify/apply", "verify/tracing", "tests/measure/zoo.py")


def said(report, record_property):
    first = find_first_to_blame(report)
    record_property("said", report.closing + (f"; {first.quantity} at step {first.step}" if first else ""))
    return first


@pytest.mark.parametrize("name", ZOO)
def test_what_scales_agrees(name, record_property):
    report = check_model(ZOO[name].build, *ZOO[name].sizes, seeds=12)
    assert said(report, record_property) is None and report.exit_code == 0, str(report)


@pytest.mark.parametrize("name", ZOO)
def test_what_is_planted_is_refuted_where_it_is(name, record_property):
    model = ZOO[name]
    report = check_model(model.build, *model.sizes, seeds=12, rules={model.where: {model.what: model.powers}})
    first = said(report, record_property)
    assert report.exit_code == 1 and first is not None and first.verdict is Verdict.REFUTED, str(report)
    assert first.quantity == f"{model.where}.{'init' if model.what == 'init_std' else 'update'}", str(report)
