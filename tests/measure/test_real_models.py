"""The guide's page on real models: each command prints what is shown, within the CPU time that its table states."""

import json
import re
import resource
import shlex
import subprocess
import sys

import pytest

from ..docs.pages import ROOT, cut
from ..docs.test_examples import OWN_TESTS, plain, shows
from ..lanes import SPARE

DEPENDS = ("derives", "scaling_algebra/recipes", "verify/tracing")

PAGE = ROOT / "docs" / "guide" / OWN_TESTS[0]
SMALLER = 8
"""The width of a published model over that of the model that is tuned."""
WIDTHS = ("hidden_size", "intermediate_size", "moe_intermediate_size", "num_attention_heads")
FOLLOWS = {
    "mixtral": ("num_key_value_heads",),
    "olmoe": ("num_key_value_heads",),
    "deepseek_v3": ("num_key_value_heads", "q_lora_rank", "kv_lora_rank"),
}
"""By model type, the numbers that shrink with the width beside ``WIDTHS``."""
COMMANDS = [block for block in cut(PAGE) if block.language == "console"]
ROWS = re.findall(r"^\| \[(.+?)\]\(models/.+?\) \|.*\| (.+?) \| ([\d.]+) \|$", PAGE.read_text(encoding="utf-8"), re.M)


def read(name):
    return json.loads((PAGE.parent / "models" / f"{name}.json").read_text(encoding="utf-8"))


def children():
    """CPU seconds of the processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@pytest.mark.parametrize("block", COMMANDS, ids=lambda b: re.search(r"hf:models/(\S+)\.json", b.text)[1])
def test_a_plan_is_printed_as_shown(block, record_property):
    (command, shown), (_, code) = block.examples()
    before = children()
    words = [sys.executable, "-m", "scaling_algebra", *shlex.split(command)[1:]]
    done = subprocess.run(words, cwd=PAGE.parent, capture_output=True, text=True)
    spent = children() - before
    record_property("cpu_seconds", round(spent, 1))
    printed = done.stdout.splitlines()
    assert done.returncode == int(code[0]), done.stderr
    assert shows(plain(shown, command), plain(printed, command)), "\n".join(printed[:12])
    ((_, level, stated),) = (row for row in ROWS if f"hf:models/{row[0]}.json" in command)
    assert level in printed[0] and spent < SPARE * float(stated)


@pytest.mark.parametrize("name", [name for name, _, _ in ROWS])
def test_the_tuned_model_is_the_published_one_at_an_eighth_of_its_width(name):
    large, small = read(name), read(f"{name}-small")
    smaller = {*WIDTHS, *FOLLOWS.get(large["model_type"], ())} & large.keys()
    assert small == {key: n // SMALLER if key in smaller else n for key, n in large.items()}


@pytest.mark.parametrize("name", ["deepseek-v3", "gpt-oss-120b"])
def test_what_transformers_takes_for_the_model_is_what_is_published(name):
    """Its defaults are the numbers of these two models. Negative control: those of another size are not."""
    config = read(name)
    from transformers import AutoConfig

    usual = AutoConfig.for_model(config["model_type"]).to_dict()
    names = [key for key, x in config.items() if isinstance(x, int) and key in usual]
    assert len(names) > 9 and all(config[key] == usual[key] for key in names)
    assert any(read(f"{name}-small")[key] != usual[key] for key in names)
