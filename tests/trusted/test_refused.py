"""What is no expression, law, optimizer, exponent or network: one line that says what is wrong.

``refused.txt`` has a row for each: the text, or what a file holds (``{x*3}`` is ``xxx``), or what changes in one that
is right, and words of what is said.
"""

import re
from pathlib import Path

import pytest

from scaling_algebra import Configuration, UsageError, law, read_network
from scaling_algebra.laws.expressions import expression
from scaling_algebra.recipes.files import config_sizes
from scaling_algebra.spec.networks.files import from_toml
from scaling_algebra.spec.networks.grammar import network
from scaling_algebra.spec.networks.library import AXES, MOE_BLOCK
from scaling_algebra.spec.optimizer_reading import read_optimizers
from scaling_algebra.spec.optimizers import optimizer
from scaling_algebra.tables.implementations.shipped import parse
from scaling_algebra.tables.published.printed import SCHEMA, read

from ..engine.test_networks import CONSTANTS
from ..tables.test_implementations import HEAD

READERS = {
    "expression": expression,
    "law": law,
    "optimizer file": optimizer,
    "optimizers": lambda text: read_optimizers(text, MOE_BLOCK),
    "given": lambda text: Configuration.of("III", "sgd", given=text.split("; "), readout_init="maximal"),
    "network": lambda text: network("tried", text, AXES),
    "network file": read_network,
    "own table": lambda file: read(Path(file)),
    "public code": lambda text: parse("mine", text),
    "constants": from_toml,
    "configuration": lambda file: config_sizes(Path(file)),
}
FILES = {"law", "optimizer file", "network file", "own table", "configuration"}
RULE = HEAD.format(epsilon="derived") + '[rule.tensors]\nhidden = { lr = "1" }\n'
CONFIG = (
    '{"model_type": "mixtral", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, '
    '"rms_norm_eps": 1e-6, "num_attention_heads": 4, "num_key_value_heads": 2, '
    '"num_local_experts": 8, "num_experts_per_tok": 2}'
)
RIGHT = {"own table": SCHEMA, "public code": RULE, "constants": CONSTANTS, "configuration": CONFIG}
"""Texts that are right, in which a row puts one thing in place of another: ``old => new``."""
TEXT = Path(__file__).with_name("refused.txt").read_text(encoding="utf-8")
TABLE = re.findall(r"^\[([a-z ]+)\]\n(.*?)(?=^\[[a-z ]+\]$|\Z)", TEXT, re.M | re.S)
ROWS = [(kind, *line.rsplit(" | ", 1)) for kind, lines in TABLE for line in lines.splitlines() if line]


def text_of(row):
    """A row's text: repeated where it says so, on the lines that it has."""
    repeated = re.sub(r"\{([^{}]+)\*(\d+)\}", lambda m: m[1] * int(m[2]), row)
    return re.sub(r"\\(.)", lambda m: "\n" if m[1] == "n" else m[1], repeated)


@pytest.mark.parametrize(("kind", "row", "words"), ROWS)
def test_what_is_wrong_is_said_in_one_line(kind, row, words, tmp_path):
    old, changed, new = text_of(row).partition(" => ")
    assert not changed or old in RIGHT[kind]
    asked = RIGHT[kind].replace(old, new) if changed else old
    if kind in FILES:
        (tmp_path / "mine.toml").write_text(asked, encoding="utf-8")
        asked = str(tmp_path / "mine.toml")
    with pytest.raises(UsageError) as error:
        READERS[kind](asked)
    said = str(error.value)
    assert re.search(".*".join(map(re.escape, words.split("..."))), said) and "\n" not in said, said
    assert kind != "network file" or said.startswith(f"{asked}: ")


def test_the_configuration_that_rows_change_is_read(tmp_path):
    """With key-value heads and a dimension of heads left open, too, as published ones have them."""
    for instead in ("2", "null"):
        (tmp_path / "config.json").write_text(
            CONFIG.replace('"num_key_value_heads": 2', f'"num_key_value_heads": {instead}')
        )
        assert config_sizes(tmp_path / "config.json") == {"N": 64, "N_e": 128, "M": 8, "K": 2, "L": 2}


def test_every_reader_has_rows():
    assert {kind for kind, *_ in ROWS} == set(READERS) and len(ROWS) > 90
