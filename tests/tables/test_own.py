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
        ('power = { N = "-1" }', 'power = { N = "-2" }', "router.lr: stated N^-2, derived N^-1"),
        ('"zero", "0", "0"', '"zero", "0", "1/2"', "h3.change after 2 updates: stated 1/2, derived 0"),
        ('"zero", "0", "0"', '"0", "none", "none"', "h3.change after 0 updates: stated 0, derived zero"),
    ],
)
def test_a_planted_disagreement_is_exit_1(tmp_path, old, new, said):
    answer = audit(tmp_path, SCHEMA.replace(old, new))
    assert answer.exit_code == 1 and said in answer.output, answer.output


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('"III"', '"IV"', "no regime named 'IV'"),
        ('"adam"', '"adamx"', "no optimizer named 'adamx'; did you mean 'adam'"),
        ('"mup"', '"mupp"', "no parameterization named 'mupp'; did you mean 'mup'"),
        ('"moe"', '"moee"', "no network named 'moee'; did you mean 'moe'"),
        ('"router"', '"blocks.0.router"', "named 'blocks.0.router'; did you mean 'router'"),
        ("N =", "N_ee =", "axis of moe, in router.lr = N_ee^-1: named 'N_ee'; did you mean 'N_e'"),
        ('{ N = "-1" }', '"1/NN"', "named 'NN'; did you mean 'N'"),
        ('{ N = "-1" }', '"half"', "named 'half'"),
        ('parameterization = "mup"', "", "has no parameterization"),
    ],
)
def test_names_that_do_not_exist_are_one_line(tmp_path, old, new, said):
    answer = audit(tmp_path, SCHEMA.replace(old, new))
    assert answer.exit_code == 2 and said in answer.output and "mine.toml: " in answer.output, answer.output


HEAD = '[table]\nregime = "I"\noptimizer = "muon+adamw"\nparameterization = "muP"\n'
CELL = '[[cell]]\nrole = "{}"\nquantity = "{}"\npower = "{}"\n'


def test_what_cannot_be_compared_proves_nothing(tmp_path):
    answer = audit(tmp_path, HEAD + CELL.format("expert_in", "eps", "N^-1"))
    assert answer.exit_code == 3 and "muon has no epsilon" in answer.output
    agrees = audit(tmp_path, HEAD + CELL.format("router", "lr", "N^-1"))
    assert agrees.exit_code == 0 and "not comparable\n" not in agrees.output.partition("\nall")[2]
    refused = audit(tmp_path, HEAD + CELL.format("router", "lr", "N^-1"), "--measure")
    assert refused.exit_code == 2 and "no [[row]]" in refused.output


def test_zero_init_agrees_where_every_demand_holds_with_it(tmp_path):
    """As ``derive --given`` says; an embedding that starts at zero fails a demand."""
    zeros = "".join(CELL.format(role, "init_std", "zero") for role in ("router", "readout"))
    assert audit(tmp_path, HEAD + zeros).exit_code == 0
    answer = audit(tmp_path, HEAD + CELL.format("input", "init_std", "zero"))
    assert answer.exit_code == 1 and "input.init_std: stated zero, derived 1" in answer.output
