"""Recipes on models of transformers, trained at several sizes; nothing is downloaded."""

import pytest

pytest.importorskip("torch")

from scaling_algebra.errors import UsageError
from scaling_algebra.verify.apply.checking import check_model
from scaling_algebra.verify.apply.families import family, names
from scaling_algebra.verify.apply.models import build
from scaling_algebra.verify.judging.fit import Verdict


@pytest.mark.slow
def test_llama_keeps_its_changes_and_the_default_does_not():
    pytest.importorskip("transformers")
    report = check_model(lambda s: build("llama", s), [{"N": n} for n in (32, 64, 128)], seeds=4)
    verdicts = {(r.quantity, r.step): r.verdict for r in report.rows}
    assert verdicts["logits", 3] is Verdict.AGREES and verdicts["layer1", 3] is Verdict.AGREES
    gates = {g.name: g for g in report.gates}
    assert gates["standard parameterization refuted"].passed


@pytest.mark.parametrize("name", names())
def test_every_family_has_roles(name):
    found = family(name)
    assert "readout" in found.roles.values()
    assert ("router" in found.roles.values()) == bool(found.gate)


def test_bad_input():
    with pytest.raises(UsageError, match="jetmoe has no adapter"):
        family("jetmoe")
    with pytest.raises(UsageError, match="did you mean 'mixtral'"):
        family("mixtrl")
    with pytest.raises(UsageError, match="two or more sizes"):
        check_model(lambda s: None, [{"N": 8}])
    with pytest.raises(UsageError, match="no family to check named 'glm4_moe'"):
        build("glm4_moe", {"N": 32})
