"""Exports of a plan, read back by matchers that follow the documented rules of each trainer."""

import re
from fnmatch import fnmatchcase

import pytest

torch = pytest.importorskip("torch")
yaml = pytest.importorskip("yaml")

from torch import nn

from scaling_algebra import recipe
from scaling_algebra.errors import UsageError
from scaling_algebra.verify.apply import plan
from scaling_algebra.verify.apply.exports import FORMATS, WHAT

ROLES = {
    r"^tokens\.": "embedding",
    r"gate\.weight$": "router",
    r"\d\.up$": "expert_in",
    r"down$": "expert_out",
    r"\d\.norm$": "gain",
    r"^final$": "final_gain",
    r"^head\.": "readout",
}
REST = ["eps", "wd", "init", "multiplier"]
SIZED = {"lr": 3e-3, "eps": 1e-8, "std": 0.02}


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.head = nn.Embedding(7, 32), nn.Linear(32, 7, bias=False)
        self.layers, self.final = nn.ModuleList(nn.Module() for _ in range(12)), nn.Parameter(torch.ones(32))
        for layer in self.layers:
            layer.norm, layer.gate = nn.Parameter(torch.ones(32)), nn.Linear(32, 8, bias=False)
            layer.up, layer.down = nn.Parameter(torch.zeros(8, 8, 32)), nn.Parameter(torch.zeros(8, 32, 8))


@pytest.fixture(scope="module")
def made():
    rates = {"": 3e-3, "router": 1e-3}
    numbers = recipe(
        "N=16,N_e=8,M=4,K=2", "N=32,N_e=8,M=8,K=4", lr=rates, eps=1e-8, std=0.02, decay=0.1, optimizer="adamw"
    )
    return plan(Model(), numbers, roles=ROLES)


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


def read_python(text, names):
    model = Model()
    by_id = {id(p): name for name, p in model.named_parameters()}
    groups = evaluated(text, "param_groups")(model)
    torch.optim.AdamW([dict(g) for g in groups])
    kept = ("lr", "eps", "weight_decay")
    return {by_id[id(p)]: {key: g[key] for key in kept} for g in groups for p in g["params"]}


def read_automodel(text, names):
    top = yaml.safe_load(text)["optimizer"]
    groups = [
        (g["pattern"], {"lr": top["lr"] * g["lr_mult"], "weight_decay": top["weight_decay"] * g["wd_mult"]})
        for g in top["param_group_overrides"]
    ]
    return first_match(groups, names, re.search)


UNDECAYED = r"bias|layernorm|rmsnorm|(?:^|\.)norm(?:$|\.)|_norm(?:$|\.)"
"""Names that the HF Trainer does not decay: axolotl has no group for them."""


def read_axolotl(text, names):
    top = yaml.safe_load(text)
    groups = [(g["modules"], {"lr": g["lr"]}) for g in top["lr_groups"]]
    found = first_match(groups, names, lambda parts, name: any(part in name for part in parts))
    for name in names:
        if "embed_tokens" in name or "lm_head" in name:
            found[name] = {"lr": top["embedding_lr"]}
        elif re.search(UNDECAYED, name.lower()):
            found[name] = {"lr": top["learning_rate"]}
    return found


READERS = {
    "torchtitan": read_torchtitan,
    "megatron": read_megatron,
    "olmo-core": read_olmo_core,
    "hf": read_python,
    "nemo-automodel": read_automodel,
    "axolotl": read_axolotl,
    "deepspeed": read_python,
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


def test_hf_carries_initial_values(made):
    model = Model()
    evaluated(made.export("hf", ["multiplier"]), "init_")(model)
    assert model.layers[3].down.std().item() == pytest.approx(made.groups["expert_out"].std, rel=0.1)
    assert torch.equal(model.final, torch.ones(32))


def test_a_wrong_export_is_seen(made):
    """A value changed in the text is not read back; a role whose pattern is gone is an error."""
    text, there = made.export("torchtitan", ["init", "multiplier"]), wanted(made)
    assert r"layers\.\d+\.gate\.weight" in text, "layers are one pattern"
    assert read_torchtitan(text.replace("0.0015", "0.003"), list(there)) != there
    with pytest.raises(AssertionError, match="no group for head"):
        read_torchtitan(text.replace("head", "nothing"), list(there))


def test_bad_names(made):
    with pytest.raises(UsageError, match="did you mean 'torchtitan'"):
        made.export("torchtian")
    with pytest.raises(UsageError, match="no number to drop named 'everything'"):
        made.export("hf", ["everything"])


def quoted(**given):
    """A model with a quote in the names of its parameters."""
    model = nn.ModuleDict({'a"b': nn.Embedding(7, 64), "c'd": nn.Linear(64, 64, bias=False)})
    return plan(model, "N=16", "N=64", roles={"a": "embedding", "c": "hidden"}, **SIZED, **given)


@pytest.mark.parametrize("form", FORMATS)
def test_a_quote_in_a_name_breaks_no_export(form):
    text = quoted().export(form, REST)
    yaml.safe_load(text) if form in ("nemo-automodel", "axolotl") else compile(text, form, "exec")


def test_two_optimizers_are_said_where_a_format_names_them():
    made = quoted(optimizer="muon:match_rms_adamw+adamw")
    text = made.export("torchtitan", ["init"])
    for name, rest in (("AdamW", "'lr': 0.003, 'eps'"), ("Muon", "'adjust_lr_fn': 'match_rms_adamw'")):
        assert re.search(f'optimizer_name="{name}".*{rest}', text)
    for form in set(FORMATS) - {"torchtitan"}:
        with pytest.raises(UsageError, match=f"{form} takes one optimizer, and adamw and muon:match_rms_adamw train"):
            made.export(form, REST)


@pytest.mark.parametrize(("head", "tied"), [("lm_head", False), ("head", False), ("lm_head", True)])
def test_axolotl_trains_embeddings_and_head_alike(head, tied):
    """Its own order of rules: these names come before lr_groups, so that two learning rates cannot be said."""
    model = nn.ModuleDict({
        "embed_tokens": nn.Embedding(7, 64),
        "up": nn.Linear(64, 64, bias=False),
        "norm": nn.LayerNorm(64, bias=False),
        head: nn.Linear(64, 7, bias=False),
    })  # fmt: skip
    roles = {"^embed_tokens": "embedding", "^up": "hidden", "^norm": "final_gain", f"^{head}": "readout"}
    if tied:
        model[head].weight = model["embed_tokens"].weight
        del roles[f"^{head}"]
    made = plan(model, "N=16", "N=64", roles=roles, **SIZED)
    if head == "lm_head" and not tied:
        with pytest.raises(UsageError, match=r"one learning rate, but they have embedding 0.003, readout 0.00075"):
            made.export("axolotl", REST)
        return
    text, rates = made.export("axolotl", REST), {name: {"lr": x["lr"]} for name, x in wanted(made).items()}
    assert yaml.safe_load(text)["embedding_lr"] == 3e-3
    assert read_axolotl(text, list(rates)) == rates


def test_a_glob_takes_what_another_would_find():
    """``*`` crosses dots: layers.*.norm finds layers.0.attn.norm, too, and OLMo-core wants every glob to find some."""
    model = nn.Module()
    model.layers = nn.ModuleList(
        nn.ModuleDict({"norm": nn.LayerNorm(8), "attn": nn.ModuleDict({"norm": nn.LayerNorm(8)})}) for _ in range(2)
    )
    made = plan(model, "N=4", "N=8", roles={"weight$": "gain", "bias$": "bias"}, lr=3e-3, eps=1e-8)
    names = [e.name for e in made.entries]
    assert set(read_olmo_core(made.export("olmo-core", ["eps", "wd", "init"]), names)) == set(names)
