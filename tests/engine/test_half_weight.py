"""The half-weight rule against the full Wick sum over two copies (the engine: ``test_signals.py``)."""

import os
import random
import shutil
import subprocess
import sys
from fractions import Fraction

from hypothesis import given, settings
from hypothesis import strategies as st

from scaling_algebra.counting.canonical import canonicalise
from scaling_algebra.counting.kernels import Contraction

from ..shared import ROOT
from . import brute_force
from .brute_force import TensorNetwork, half_weight, wick_two_copies
from .test_signals import SLOW, factors, plain, size, trees


def one_copy(examples):
    """One copy equals two copies, for monomials drawn at random."""

    @settings(max_examples=examples, deadline=None, suppress_health_check=SLOW)
    @given(trees(leaves=9))
    def check(case):
        *_, net = case
        assert half_weight(net) == wick_two_copies(net)

    check()


def test_one_copy_equals_two_copies():
    one_copy(60)


def test_known_values():
    """W x is CLT; W W^T x is coherent exactly where the inner width is at least the outer one."""
    one, half = Fraction(1), Fraction(1, 2)
    chain = TensorNetwork((("W", "ab"), ("x", "b")), "a", {"a": one, "b": one})
    assert half_weight(chain) == wick_two_copies(chain) == half
    for inner in (Fraction(0), half, one, 2 * one):
        gram = TensorNetwork((("W", "ab"), ("W", "cb"), ("x", "c")), "a", {"a": one, "b": inner, "c": one})
        assert half_weight(gram) == wick_two_copies(gram) == max(inner, (inner + 1) / 2)


def _mismatches(rule):
    """How often a rule for one copy disagrees with two copies on a fixed set of networks."""
    rng, wrong = random.Random(0), 0
    for _ in range(200):
        indices = "abcd"
        dims = {x: Fraction(rng.randint(0, 2)) for x in indices}
        net = TensorNetwork(tuple(("W", rng.choice(indices) + rng.choice(indices)) for _ in range(4)), "", dims)
        used = {x for _, xs in net.leaves for x in xs}
        net = TensorNetwork(net.leaves, "", {x: dims[x] for x in used})
        joins_ok = all(
            dims[x[0]] == dims[y[0]] and dims[x[1]] == dims[y[1]] for _, x in net.leaves for _, y in net.leaves
        )
        wrong += joins_ok and rule(net) != wick_two_copies(net)
    return wrong


def test_a_planted_wrong_rule_is_caught(monkeypatch):
    """Negative control: matched classes weigh 1/2 instead of 1 (CLT where LLN holds)."""
    assert _mismatches(half_weight) == 0
    monkeypatch.setattr(brute_force, "partial_matchings", lambda rest, names: iter([[]]))  # never match
    assert _mismatches(brute_force.half_weight) > 0


def wrong_sizes():
    """How many sizes of three networks the engine gets wrong."""
    one, wrong = Fraction(1), 0
    for opens in ("a", "", "b"):
        net = TensorNetwork((("W", "ab"), ("W", "cb"), ("x", "c"), ("x", "a")), opens, {"a": one, "b": one, "c": one})
        algebra = plain()
        wrong += size(algebra, algebra.contract_all(factors(algebra, net), opens)) != wick_two_copies(net)
    return wrong


def test_a_planted_wrong_weight_in_the_engine_is_caught(tmp_path):
    """Negative control: the engine forgets to merge the indices of matched leaves. What was compiled is of another text
    then, and lies there unused."""
    assert wrong_sizes() == 0
    shutil.copytree(ROOT / "scaling_algebra", tmp_path / "scaling_algebra", ignore=shutil.ignore_patterns("*.pyc"))
    file = tmp_path / "scaling_algebra" / "counting" / "matchings.py"
    text = file.read_text(encoding="utf-8")
    planted = text.replace("[kept if r == gone else r for r in roots]", "roots")
    assert planted != text
    file.write_text(planted, encoding="utf-8")
    ask = [sys.executable, "-c", f"from {__name__} import wrong_sizes; print(wrong_sizes())"]
    here = {**os.environ, "PYTHONPATH": os.pathsep.join((str(tmp_path), str(ROOT)))}
    done = subprocess.run(ask, env=here, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert int(done.stdout) > 0


def test_what_is_compiled_says_what_the_sources_say():
    words = ["derive", "--architecture", "swiglu", "--regime", "III", "--exponents"]
    ask = [sys.executable, "-m", "scaling_algebra", *words]
    both = [{**os.environ, "SCALECALC_PURE": pure} for pure in ("", "1")]
    found = [subprocess.run(ask, env=env, capture_output=True, text=True, check=True).stdout for env in both]
    assert found[0] == found[1] and "lr" in found[0]


@given(
    st.permutations(range(5)),
    st.lists(st.tuples(st.sampled_from("UV"), st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=6),
)
def test_canonical_form_does_not_depend_on_labels(labels, edges):
    types = ["N"] * 5
    leaves = [(name, (x, y)) for name, x, y in edges]
    renamed = [(name, (labels[x], labels[y])) for name, x, y in edges]
    opens = [leaves[0][1][0]]
    assert canonicalise(types, opens, leaves) == canonicalise(types, [labels[opens[0]]], list(reversed(renamed)))


def test_contraction_knows_its_summed_labels():
    assert Contraction((0, 1), (1, 2), (0, 2)).summed_labels == (1,)
