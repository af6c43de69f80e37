"""A module is read by one list of strategies; the reason why each failed is kept."""

import pytest

torch = pytest.importorskip("torch")

from scaling_algebra.errors import UsageError
from scaling_algebra.verify.apply import checking, subjects
from scaling_algebra.verify.tracing import config_reading, model_loading, readings
from scaling_algebra.verify.tracing.nodes import Unreadable
from scaling_algebra.verify.tracing.readings import AT_BASE, AT_SMALL, BY_SHAPE, READINGS, read_module


class Wide(torch.nn.Module):
    """Raises an error below a width; ``shapes`` of its parameters are known all the same."""

    def __init__(self, n, least, rule=True):
        super().__init__()
        self.a, self.b, self.n = torch.nn.Linear(8, n), torch.nn.Linear(n, 8), n
        self.least, self.rule = least, rule

    def forward(self, x):
        if self.n < self.least:
            raise ValueError(f"n is {self.n}")
        h = self.a(x).relu()
        return self.b(h if self.rule else torch.special.bessel_j0(h.sort(-1).values.cumsum(-1)))


def build(least, rule=True):
    return lambda sizes: (Wide(sizes["N"], least, rule), torch.randn(1, 8))


def test_every_question_reads_by_the_same_list():
    assert (
        checking.read_module
        is subjects.read_module
        is model_loading.read_module
        is config_reading.read_module
        is read_module
    )
    assert [*READINGS][2:3] == [AT_SMALL] and sum(name.startswith(BY_SHAPE) for name in READINGS) == 2


def test_a_module_is_read_by_the_first_strategy_that_succeeds():
    """At the base, where it raises an error at small sizes; by shape, where a call has no rule at any size."""
    assert read_module(build(0)).how == AT_SMALL and not read_module(build(0)).tried
    base = read_module(build(64), smallest={"N": 64})
    assert base.how == AT_BASE and base.base["N"] == 64 and "raises ValueError: n is 32" in base.tried[AT_SMALL]
    assert any(line.startswith(f"read {AT_BASE}; {AT_SMALL} failed: the model raises") for line in base.lines)
    assert read_module(build(64)).how == BY_SHAPE and read_module(build(0, rule=False)).how == BY_SHAPE
    with pytest.raises(UsageError, match="n is 32"):
        read_module(build(64), strict=True)


def test_a_reading_that_is_refused_is_taken_where_no_other_succeeds():
    asked = []

    def refuse(reading):
        asked.append(reading.how)
        return "sizes differ"

    assert read_module(build(0), smallest={"N": 64}, refuse=refuse).base["N"] == 64 and asked == [AT_SMALL, AT_BASE]
    assert read_module(build(0), refuse=refuse).how == AT_SMALL


def test_the_message_has_the_reason_of_every_strategy(monkeypatch):
    def failing(why):
        def strategy(q):
            raise Unreadable(why)

        return strategy

    monkeypatch.setattr(readings, "READINGS", {"one": failing("a"), "two": failing("b"), "three": failing("a")})
    with pytest.raises(Unreadable, match=r"^a; two: b$"):
        read_module(build(0))
