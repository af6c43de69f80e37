"""Exports of a plan, read back by matchers that follow the documented rules of each trainer."""

import re
from fnmatch import fnmatchcase

import pytest

torch = pytest.importorskip("torch")
yaml = pytest.importorskip("yaml")

from torch import nn

from scaling_algebra.errors import UsageError
from scaling_algebra.verify.apply import plan
from scaling_algebra.verify.apply.exports import FORMATS, WHAT

from .test_apply import Branched

REST = ["eps", "wd", "init", "multiplier"]
SIZED = {"lr": 3e-3, "eps": 1e-8, "std": 0.02}


@pytest.fixture(scope="module")
def made():
    given = {**SIZED, "lr": {"": 3e-3, "down.*.weight": 1e-3}, "decay": 0.1}
    return plan(lambda z: Branched(z, False), "N=16,L=3", "N=32,L=12", **given)


def wanted(made):
    """The numbers of every parameter."""
    return {e.name: made.groups[e.group].numbers for e in made.entries}


def first_match(groups, names, matches):
    """Values by name: the first group that matches; a group that matches nothing, or a name without one, is wrong."""
    found = {}
    for name in names:
        chosen = [values for pattern, values in groups if matches(pattern, name)]
        assert chosen, f"no group for {name}"
        found[name] = chosen[0]
    assert all(any(matches(pattern, name) for name in names) for pattern, _ in groups), "a group that matches nothing"
    return found


def evaluated(text, name, **words):
    space = dict(words)
    exec(text, space)
    return space[name]


def record(**given):
    return given


def read_torchtitan(text, names):
    config = evaluated(
        text, "optimizers", OptimizersContainer=type("C", (), {"Config": staticmethod(record)}), ParamGroupConfig=record
    )
    groups = [(g["pattern"], g["optimizer_kwargs"]) for g in config["param_groups"]]
    assert all(g["optimizer_name"] == "AdamW" for g in config["param_groups"])
    return first_match(groups, names, re.search)


def read_megatron(text, names):
    found = evaluated(text, "config_overrides", ParamKey=lambda name: name)
    groups = [(key, {"lr": x["max_lr"], "eps": x["eps"], "weight_decay": x["end_wd"]}) for key, x in found.items()]
    assert all(x["start_wd"] == x["end_wd"] for x in found.values())
    return first_match(groups, names, lambda keys, name: any(fnmatchcase(name, key) for key in keys))


def read_olmo_core(text, names):
    """Every glob takes the names that are left, and has to find some."""
    left, found = list(names), {}
    for g in evaluated(text, "group_overrides", OptimGroupOverride=record):
        for x in g["params"]:
            taken = [name for name in left if fnmatchcase(name, x)]
            assert taken, f"{x} matches nothing that is left"
            found |= dict.fromkeys(taken, g["opts"])
            left = [name for name in left if name not in taken]
    return found


def read_automodel(text, names):
    top = yaml.safe_load(text)["optimizer"]
    groups = [
        (g["pattern"], {"lr": top["lr"] * g["lr_mult"], "weight_decay": top["weight_decay"] * g["wd_mult"]})
        for g in top["param_group_overrides"]
    ]
    return first_match(groups, names, re.search)


READERS = {
    "torchtitan": read_torchtitan,
    "megatron": read_megatron,
    "olmo-core": read_olmo_core,
    "nemo-automodel": read_automodel,
}
KEYS = {"lr": "lr", "eps": "eps", "wd": "weight_decay"}


@pytest.mark.parametrize("form", FORMATS)
def test_an_export_reads_back_as_the_plan(made, form):
    """And what a format cannot carry stops it."""
    lost = [what for what in WHAT if what not in FORMATS[form].carries]
    carried = [KEYS[what] for what in FORMATS[form].carries if what in KEYS]
    there = {name: {key: x for key, x in numbers.items() if key in carried} for name, numbers in wanted(made).items()}
    found = READERS[form](made.export(form, dropping=lost), list(there))
    assert set(found) == set(there)
    for name, numbers in there.items():
        assert found[name] == pytest.approx(numbers, rel=1e-12), name
    for what in lost:
        with pytest.raises(UsageError, match=f"{form} cannot carry {what}"):
            made.export(form, dropping=[x for x in lost if x != what])


def test_a_wrong_export_is_seen(made):
    """A value changed in the text is not read back; a role whose pattern is gone is an error."""
    text, there = made.export("torchtitan", ["init", "multiplier"]), wanted(made)
    assert r"down\.\d+\.weight" in text, "layers are one pattern"
    assert read_torchtitan(text.replace("0.0005", "0.003"), list(there)) != there
    with pytest.raises(AssertionError, match="no group for head"):
        read_torchtitan(text.replace("head", "nothing"), list(there))


@pytest.mark.parametrize("form", ["megatron", "torchtitan"])
def test_names_of_a_trainers_own_module(made, form):
    """A pattern matches the trainer's names, and none of the model's; groups that are one tensor there are one line."""
    layers = {name: f"decoder.{name}" for name in made.groups}
    lost = [what for what in WHAT if what not in FORMATS[form].carries]
    text = made.export(form, dropping=lost, names=layers)
    there = {f"decoder.{e.name}": made.groups[e.group].numbers for e in made.entries}
    assert READERS[form](text, list(there)) == there
    with pytest.raises(AssertionError, match="no group for"):
        READERS[form](text, [e.name for e in made.entries])
    joined = made.export(form, dropping=lost, names={**layers, "inp.weight": "all", "inp.bias": "all"})
    assert len(re.findall(r"'all'|\^all\$", joined)) == 1
    with pytest.raises(
        UsageError, match=r"inp\.weight and head\.weight have the same name all but differ in lr; give them"
    ):
        made.export(form, dropping=lost, names={**layers, "inp.weight": "all", "head.weight": "all"})
    del layers["head.weight"]
    with pytest.raises(UsageError, match=r"names leaves out head\.weight; give each of the 6 groups"):
        made.export(form, dropping=lost, names=layers)


def test_a_model_of_transformers_has_other_names_than_megatron(made, monkeypatch):
    monkeypatch.setattr(made.model, "config", type("Config", (), {"model_type": "llama"}), raising=False)
    with pytest.raises(UsageError, match=r"named as in Branched, and megatron has modules of its own \(decoder\.lay"):
        made.export("megatron", ["init", "multiplier"])
    made.export("nemo-automodel", ["init", "multiplier", "eps"])


def test_a_multiplier_that_no_format_carries_is_folded(made):
    with pytest.raises(
        UsageError, match=r"cannot carry multiplier; .*; plan\(\.\.\., fold=True\) puts a multiplier into"
    ):
        made.export("torchtitan", ["init"])


def test_filters_are_no_stacks_of_matrices():
    """Muon of KellerJordan makes a filter of four dimensions a matrix; a stack of experts is many."""

    def build(sizes):
        n = sizes["N"]
        model = nn.Sequential(nn.Conv2d(2, n, 3), nn.ReLU(), nn.Conv2d(n, n, 3), nn.ReLU(), nn.Conv2d(n, 3, 3))
        return model, torch.randn(1, 2, 9, 9, generator=torch.Generator().manual_seed(0))

    p = plan(build, "N=8", "N=16", optimizer="muon:original+adamw", lr=1e-2, eps=1e-8, std=0.1)
    (line,) = (x for x in p.warnings if "as one matrix (out, in k k)" in x)
    assert line.startswith("2.weight: filters of convolutions") and not any(
        "stacks of matrices" in x for x in p.warnings
    )


def test_bad_names(made):
    with pytest.raises(UsageError, match="did you mean 'torchtitan'"):
        made.export("torchtian")
    with pytest.raises(UsageError, match="no number to drop named 'everything'"):
        made.export("megatron", ["everything"])


def test_two_optimizers_are_said_where_a_format_names_them():
    def build(sizes):
        n = sizes["N"]
        return nn.Sequential(nn.Embedding(7, n), nn.Linear(n, n, bias=False), nn.Linear(n, 7, bias=False))

    made = plan(build, "N=16", "N=64", **SIZED, optimizer="muon:match_rms_adamw+adamw")
    text = made.export("torchtitan", ["init"])
    for name, rest in (("AdamW", "'lr': 0.003, 'eps'"), ("Muon", "'adjust_lr_fn': 'match_rms_adamw'")):
        assert re.search(f'optimizer_name="{name}".*{rest}', text)
    for form in set(FORMATS) - {"torchtitan"}:
        with pytest.raises(
            UsageError, match=f"{form} supports one optimizer, but this plan uses adamw and muon:match_rms_adamw;"
        ):
            made.export(form, REST)


def test_a_glob_takes_what_another_would_find():
    """``*`` crosses dots: layers.*.norm finds layers.0.attn.norm, too, and OLMo-core wants every glob to find some."""

    class Normed(nn.Module):
        def __init__(self, n):
            super().__init__()
            self.inp, self.head = nn.Linear(5, n, bias=False), nn.Linear(n, 3, bias=False)
            self.layers = nn.ModuleList(
                nn.ModuleDict({"norm": nn.RMSNorm(n), "attn": nn.ModuleDict({"norm": nn.RMSNorm(n)})}) for _ in range(2)
            )

        def forward(self, x):
            x = self.inp(x)
            for layer in self.layers:
                x = layer["attn"]["norm"](layer["norm"](x))
            return self.head(x)

    made = plan(lambda z: Normed(z["N"]), "N=4", "N=8", **SIZED)
    names = [e.name for e in made.entries]
    assert set(read_olmo_core(made.export("olmo-core", ["eps", "wd", "init"]), names)) == set(names)
