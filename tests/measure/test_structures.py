"""Proofs on the rays of the regimes: those that ``tests/engine/test_proofs.py`` leaves out."""

import pytest

from ..engine.test_proofs import mssp_is_unique, mup_is_unique, which_interventions

DEPENDS = ("proves", "tests/engine/test_proofs.py")


@pytest.mark.parametrize(("name", "rule"), [("I", "sgd"), ("II", "adam"), ("III", "sgd")])
def test_mup_is_unique(name, rule):
    mup_is_unique(name, rule)


@pytest.mark.parametrize(("name", "rule"), [("I", "adam"), ("II", "sgd"), ("III", "adam")])
def test_mssp_is_unique(name, rule):
    mssp_is_unique(name, rule)


@pytest.mark.parametrize("name", ["I", "II"])
def test_which_interventions_mssp_needs(name):
    which_interventions(name)
