"""The blind test: what is drawn, and that it is what is trained."""

import importlib.util
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

from scaling_algebra.spec.configuration import Configuration
from scaling_algebra.verify.campaigns.plans import Effort, job
from scaling_algebra.verify.campaigns.session import Session
from scaling_algebra.verify.hardware import Hardware
from scaling_algebra.verify.measuring.cells import STREAMS
from scaling_algebra.verify.measuring.store import Store
from scaling_algebra.verify.networks import scales

PATH = Path(__file__).parents[2] / "benchmarks" / "blind.py"
SPEC = importlib.util.spec_from_file_location("blind", PATH)
blind = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(blind)


def test_settings_are_fixed_differ_and_stay_within_a_factor_of_three():
    drawn = [blind.setting(k) for k in range(blind.DRAWS)]
    assert drawn == [blind.setting(k) for k in range(blind.DRAWS)]
    for what, usual in (("init", scales.INIT), ("lr", scales.LR)):
        factors = np.log([[d[what][role] / x for role, x in usual.items()] for d in drawn]) / math.log(3)
        assert (abs(factors) <= 1).all() and len(set(factors.flat)) == factors.size
        assert abs(factors.mean()) < 0.2 and factors.std() == pytest.approx(3**-0.5, abs=0.1)
    assert len({d["stream"] for d in drawn} | {0}) == blind.DRAWS + 1


def trained(one):
    store = Store()
    Session(store, Hardware.of("cpu")).perform([one])
    return one.report(store)


def test_what_is_drawn_is_what_is_trained_and_only_inside():
    one = job(Configuration.of("I", "sgd", "mup"), Effort(sizes=(8, 12, 18), seeds=4))
    chosen, before = blind.setting(0), (dict(scales.INIT), dict(STREAMS), one.setup().recipe)
    usual = trained(one)
    with blind.measured_with(chosen):
        other = trained(one)
        assert one.setup().constants["init"] == chosen["init"] != before[0]
        assert replace(one.setup()).recipe != before[2]
    assert (dict(scales.INIT), dict(STREAMS), replace(one.setup()).recipe) == before
    size = {name: report.means["h1", 0][0][0] for name, report in {"usual": usual, "other": other}.items()}
    grown = math.log2(chosen["init"]["input"] / scales.INIT["input"])
    assert size["other"] - size["usual"] == pytest.approx(grown, abs=0.5)
