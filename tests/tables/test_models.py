"""The table of public models: facts have sources, powers are derived, and what a published value keeps is a ratio."""

import pytest

from scaling_algebra.errors import UsageError
from scaling_algebra.tables.models.layout import derived, families, parse, rows

GOOD = """[[family]]
name = "f"
title = "F"
optimizer = "adamw"
[[family.model]]
name = "small"
config = "c"
report = "r"
sizes = { N = 8, N_e = 8, M = 4, K = 2, L = 2 }
gate = "1/K"
lr = 4e-4
[[family.model]]
name = "large"
config = "c"
report = "r"
sizes = { N = 16, N_e = 16, M = 4, K = 2, L = 4 }
gate = "1/K"
lr = 2e-4
"""


def table(text):
    (family,) = parse(text)
    mup = derived(family, "mup")
    return {r.label.name: [c.values[0] for c in r.cells] for r in rows(family, mup, mup)}


def test_a_value_that_keeps_its_power_has_the_ratio_one_and_a_planted_one_has_not():
    assert table(GOOD)["router, lr"][-2:] == ["0.5", "1"]
    assert table(GOOD.replace("lr = 2e-4", "lr = 4e-4"))["router, lr"][-2:] == ["0.5", "2"]
    assert table(GOOD.replace("lr = 2e-4\n", ""))["router, lr"][-2:] == ["0.5", None]


def test_what_the_gate_brings_is_taken_off_the_multiplier():
    grown = GOOD.replace("N_e = 16, M = 4, K = 2", "N_e = 16, M = 8, K = 4")
    for gate, power in {"1/K": "K M^-1", "1/M": "1", "1": "M^-1"}.items():
        assert str(table(grown.replace("1/K", gate))["routed scale"][3]) == power


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("lr = 4e-4", "rate = 4e-4"),
        ('report = "r"', ""),
        ('config = "c"', ""),
        ('gate = "1/K"', 'gate = "1/N"'),
        ("K = 2, L = 2", "K = 2"),
        ("K = 2, L = 2", "K = 5, L = 2"),
        ('optimizer = "adamw"', 'optimizer = "adamw"\nsettings = ["eps"]'),
    ],
)
def test_a_fact_without_a_source_or_a_place_is_refused(old, new):
    assert parse(GOOD)
    with pytest.raises(UsageError, match="models: "):
        parse(GOOD.replace(old, new, 1))


def test_the_families_that_ship():
    assert len(families()) >= 11 and all(m.config for family in families() for m in family.model)
