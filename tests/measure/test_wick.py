"""Thousands of random tensor networks against the written-out Wick sum."""

from ..engine.test_half_weight import one_copy
from ..engine.test_signals import many_factors, pruned_products

DEPENDS = ("scaling_algebra/counting", "tests/engine/test_half_weight.py", "tests/engine/test_signals.py")


def test_one_copy_equals_two_copies(record_property):
    one_copy(1500)
    record_property("networks", 1500)


def test_pruned_products(record_property):
    pruned_products(4000)
    record_property("networks", 4000)


def test_products_of_many_factors(record_property):
    many_factors(1500)
    record_property("networks", 1500)
