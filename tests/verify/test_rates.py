"""Adam on digits at matched time, and experts under top-K: what is trained and compared, and wrong rules that fail."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("sklearn")

from scaling_algebra.verify.experiments import expert_rates, matched_time
from scaling_algebra.verify.experiments.findings import By, Plan, bound
from scaling_algebra.verify.judging.fit import Verdict


def test_rules_at_matched_time():
    """Along the batch the square root rule, and three that differ from it in one quantity."""
    powers = {title: {q: str(m) for q, m in rule.items()} for title, (rule, _) in matched_time.RUNS.items()}
    right = {"lr": "B^(1/2)", "eps": "1/B^(1/2)", "one_minus_beta1": "B", "one_minus_beta2": "B"}
    first, *others = powers.values()
    assert first == right and all(sum(p[q] != right[q] for q in right) == 1 for p in others)


def test_a_constant_rate_is_told_from_the_root(monkeypatch):
    monkeypatch.setattr(matched_time, "EXAMPLES", 256)
    monkeypatch.setattr(matched_time, "BATCHES", (1, 2, 4))
    matched_time.trajectory.cache_clear()
    plan = Plan("cpu", (), 6)
    kept = matched_time.compared(*matched_time.RUNS["sde held: lr as the root of the batch"], plan)
    wrong = matched_time.compared(*matched_time.RUNS["lr constant instead"], plan)
    assert len(kept) == 2 * len(wrong) == 4 and {f.by for f in wrong} == {By.PLANTED}
    assert matched_time.trajectory.cache_info().hits == 1, "batch 1 is the same for every rule"
    assert all(f.verdict is Verdict.REFUTED and f.outcome is Verdict.AGREES for f in wrong)
    for right, other in zip(kept[2:], wrong, strict=True):
        assert abs(right.measured) < abs(other.measured) / 2
    matched_time.trajectory.cache_clear()


def test_experts_of_random_examples_have_the_derived_noise(monkeypatch):
    monkeypatch.setattr(expert_rates, "EXPERTS", (2, 4, 8))
    course = expert_rates.Course(-10, steps=10, random=True)
    right, planted = expert_rates.shares(course, Plan("cpu", (), 8))
    assert (right.claimed, right.verdict) == ("s^(1/2)", Verdict.AGREES)
    assert (planted.claimed, planted.outcome) == ("s^0", Verdict.AGREES)


def test_a_published_claim_that_is_wrong_must_be_refuted():
    values = np.array([0.1, 0.2, 0.15, 0.12])
    found = bound("q", values, ">", 0.5, "Fig. 1", By.PUBLISHED, wrong=True)
    assert (found.verdict, found.expected, found.outcome) == (Verdict.REFUTED, Verdict.REFUTED, Verdict.AGREES)
    assert bound("q", values, "<", 0.5, "Fig. 1", By.PUBLISHED, wrong=True).outcome is Verdict.REFUTED
