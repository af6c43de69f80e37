"""A table of one's own: the schema is an example that is read, and faults are found; what cannot be read is a line."""

import json

import pytest

from ..shared import scalecalc

SCHEMA = scalecalc("audit", "--schema").output


def audit(folder, text, *options):
    (folder / "mine.toml").write_text(text)
    return scalecalc("audit", str(folder / "mine.toml"), *options)


def test_the_schema_is_read_and_agrees(tmp_path):
    answer = audit(tmp_path, SCHEMA, "--format", "json")
    assert answer.exit_code == 0
    record = json.loads(answer.output)
    assert (record["cells"], record["agree"], record["disagreements"]) == (4, 4, [])


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('power = { N = "-1" }', 'power = { N = "-2" }', "router.lr: printed N^-2, derived N^-1"),
        ('"zero", "0", "0"', '"zero", "0", "1/2"', "h3.change after 2 updates: printed 1/2, derived 0"),
        ('"zero", "0", "0"', '"0", "none", "none"', "h3.change after 0 updates: printed 0, derived zero"),
    ],
)
def test_a_planted_disagreement_is_exit_1(tmp_path, old, new, said):
    answer = audit(tmp_path, SCHEMA.replace(old, new))
    assert answer.exit_code == 1 and said in answer.output, answer.output


def test_what_cannot_be_compared_proves_nothing(tmp_path):
    answer = audit(tmp_path, SCHEMA.replace('"III"', '"IV"'))
    assert answer.exit_code == 3 and "no regime named 'IV'" in answer.output
