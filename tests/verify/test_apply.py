"""A plan of live modules: numbers, initial values, groups, folded multipliers; wrappers, shards, tied embeddings."""

import json
import os
import re
import socket
import subprocess
import sys
import warnings
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist
from torch import nn

from scaling_algebra.errors import UsageError
from scaling_algebra.recipes.recipe import recipe
from scaling_algebra.recipes.sizes import read_sizes
from scaling_algebra.solver.demands import Infeasible
from scaling_algebra.spec.level import OpenDemand
from scaling_algebra.spec.networks.library import ARCHITECTURES
from scaling_algebra.spec.optimizers import OPTIMIZERS
from scaling_algebra.verify.apply import plan, planning
from scaling_algebra.verify.apply.folding import find_fold_target, rescale_settings
from scaling_algebra.verify.apply.parts import find_part_sizes as sizes_in_fields
from scaling_algebra.verify.tracing.model_loading import ModelOption
from scaling_algebra.verify.tracing.readings import read_module

BASE, TARGET = "N=16,N_e=8,M=4", "N=32,N_e=16,M=8"
GIVEN = {"lr": 3e-3, "eps": 1e-8, "std": 0.02, "decay": 0.1}


class Block(nn.Module):
    def __init__(self, n, ne, m):
        super().__init__()
        self.norm, self.gate = nn.Parameter(torch.ones(n)), nn.Linear(n, m, bias=False)
        self.up, self.down = nn.Parameter(torch.randn(m, ne, n)), nn.Parameter(torch.randn(m, n, ne))
        self.register_buffer("correction", torch.zeros(m))

    def forward(self, h):
        x = h * self.norm
        return h + torch.einsum("btm,mnk,mka,bta->btn", self.gate(x).sigmoid(), self.down, self.up, x)


class Small(nn.Module):
    """An embedding, one MoE block, a readout, names of nobody."""

    def __init__(self, sizes, tied=False):
        super().__init__()
        n = sizes["N"]
        self.tokens, self.block = nn.Embedding(11, n), Block(n, sizes["N_e"], sizes["M"])
        self.head = nn.Linear(n, 11, bias=False)
        if tied:
            self.head.weight = self.tokens.weight

    def forward(self, x):
        return self.head(self.block(self.tokens(x)))


def made(tied=False):
    torch.manual_seed(0)
    p = plan(lambda z: Small(z, tied), BASE, TARGET, **GIVEN)
    return p.model, p


def stepped(model, groups):
    optimizer, x = torch.optim.AdamW(groups), torch.arange(8)
    nn.functional.cross_entropy(model(x[None])[0], (x + 1) % 11).backward()
    optimizer.step()
    return [[g["name"], g["param_names"], g["lr"], g["eps"]] for g in optimizer.param_groups]


def test_every_parameter_has_numbers_and_a_group():
    model, p = made()
    lr = {e.name: e.settings["lr"].target for e in p.entries}
    slow = {name: 1.5e-3 for name in ("block.gate.weight", "block.up", "block.down", "head.weight")}
    assert lr == {"tokens.weight": 3e-3, "block.norm": 3e-3} | slow
    groups = {g["name"]: g for g in p.param_groups()}
    assert sorted(n for g in groups.values() for n in g["param_names"]) == sorted(lr)
    assert groups["block.up"]["weight_decay"] == 0.2 and p.multipliers == {"alpha": 0.5}
    text = str(p)
    assert "multiply alpha by 0.5 in the model" in text and "never the optimizer's: block.correction" in text
    assert "decay" in text and "decay" not in str(plan(Small, BASE, TARGET, std=0.02))
    assert text.index("block.down") < text.index("look at") and max(map(len, text.splitlines()[:8])) < 100
    assert p.document().record["parameters"][0]["lr"]["target"] == 3e-3
    p.init_(generator=torch.Generator().manual_seed(1))
    assert torch.equal(model.block.norm, torch.ones(32))
    assert model.block.up.std().item() == pytest.approx(p["block.up"].settings["init_std"].target, rel=0.1)


def test_what_the_groups_leave_out_is_told():
    """Weight decay that was not given is zero whatever the optimizer is given; betas follow the batch."""
    given = {"lr": 3e-3, "eps": 1e-8, "std": 0.02}
    p = plan(Small, BASE, TARGET, **given, batch=(64, 512), tokens=(2e9, 40e9))
    text = p.export("torchtitan", dropping=["init", "multiplier"])
    for told in (str(p), text):
        assert "weight_decay 0, whatever" in told or "# weight decay is 0, since none was given" in told
        assert "1-beta1 times 8, 1-beta2 times 8, warmup times 2.5" in told
    assert {row["one_minus_beta2_factor"] for row in p.as_rows()} == {8.0}
    assert (
        json.loads(json.dumps(p.document().record))["parameters"][0]["lr"]["target"]
        == p.entries[0].settings["lr"].target
    )
    with pytest.raises(UsageError, match=r"named 'batchsize'; did you mean 'batch'\? known: fold, optimizer"):
        plan(Small, BASE, TARGET, batchsize=64)
    with pytest.raises(UsageError, match=r"tokens\.weight is on the meta device, which holds no values"):
        p.init_(Small({"N": 32, "N_e": 16, "M": 8}).to("meta"))
    doubt = OpenDemand("a demand", "block.change", 1, tensor="block.up[0]")
    rows = replace(p, recipe=replace(p.recipe, open=(doubt,))).as_rows()
    assert {row["name"] for row in rows if row["undecided"]} == {"block.up"}
    whole = plan(Small, BASE, TARGET, **given, decay=0.1)
    assert "weight_decay 0" not in str(whole) and "one_minus_beta2_factor" not in whole.as_rows()[0]


def test_tied_initial_values():
    p = plan(Small, BASE, TARGET, optimizer="adam", parameterization="mssp", std=0.1)
    model = p.init_()
    assert p.recipe.tied and all(torch.equal(x[0], x[1]) and x.any() for x in (model.block.up, model.block.down))
    assert str(p).startswith("MSSP, adam, ")


def test_without_experts_a_plan_says_of_mssp_that_it_is_mup():
    p = plan(
        lambda s: nn.Sequential(nn.Linear(5, s["N"]), nn.Linear(s["N"], 3)), "N=16", "N=64", parameterization="mssp"
    )
    assert str(p).startswith("MSSP (muP without experts), adamw, certified, N=16 to N=64")
    assert p.recipe.as_json()["parameterization"] == "mssp"


def test_frozen_parameters_and_modules_on_meta():
    """A gain on meta starts as that of the small module does."""

    def build(sizes):
        with torch.device("meta" if sizes["N"] == 128 else "cpu"):
            model = Small(sizes)
        model.block.gate.weight.requires_grad_(False)
        model.extra = nn.Parameter(torch.ones(3), requires_grad=False)
        return model

    p = plan(build, "N=32,N_e=8,M=4", "N=128,N_e=32,M=16", **GIVEN)
    assert [(x["init"], x.get("lr")) for x in p.as_rows() if x["name"] == "extra"] == [("kept", None)]
    assert p["extra"].role == "" and "frozen, in no parameter group: extra, block.gate.weight" in str(p)
    assert not {"extra", "block.gate.weight"} & {n for g in p.param_groups() for n in g["param_names"]}
    assert torch.equal(p.init_(Small({"N": 128, "N_e": 32, "M": 16})).block.norm, torch.ones(128))


def test_tied_embeddings_are_one_tensor_in_one_group():
    model, p = made(tied=True)
    assert p.aliases == {"head.weight": "tokens.weight"} and p["head.weight"].role == "tokens.weight"
    assert sum(len(g["params"]) for g in p.param_groups()) == 5
    assert sorted(p.multipliers.values()) == [0.5, 0.5] and "head.weight is tokens.weight: one tensor" in str(p)
    stepped(model, p.param_groups())


def test_a_compiled_model_has_the_same_groups():
    model, p = made()
    compiled = torch.compile(model, backend="eager")
    assert [g["param_names"] for g in p.param_groups(compiled)] == [g["param_names"] for g in p.param_groups()]
    stepped(compiled, p.param_groups(compiled))


class Adapter(nn.Module):
    """LoRA at one width: a frozen matrix, one to the rank and one from it."""

    def __init__(self, rank):
        super().__init__()
        self.W, self.A, self.B = nn.Linear(16, 16), nn.Linear(16, rank, bias=False), nn.Linear(rank, 16, bias=False)
        self.W.requires_grad_(False)

    def forward(self, x):
        return self.W(x) + self.B(self.A(x))


@pytest.mark.parametrize("falls", [False, True])
def test_a_frozen_tensor_that_is_larger_than_the_numbers_need_is_told(falls):
    """A frozen readout as torch draws it, N^(-1/2), lets the output move by N^(1/2); and what starts at zero."""

    def build(sizes):
        n = sizes["N"]
        model = nn.Sequential(nn.Embedding(8, n), nn.Linear(n, n, bias=False), nn.Linear(n, 8, bias=False))
        model[2].weight.requires_grad_(False).mul_(n**-0.5 if falls else 1.0)
        nn.init.zeros_(model[1].weight)
        return model

    p = plan(build, "N=16", "N=256", **GIVEN)
    assert (
        p.level.certified == falls and ("1.weight: the module initialises it to zero" in str(p)) and p.entries[2].frozen
    )
    if not falls:
        assert p.level.open[0].quantity == "2.weight" and "goes as N^-1" in str(p).split("not certified")[1]
        with pytest.raises(Infeasible, match=r"2\.weight"):
            plan(build, "N=16", "N=256", strict=True, **GIVEN)


def test_a_rank_that_alone_grows_changes_the_matrix_back():
    p = plan(lambda z: Adapter(z["N"]), "N=8", "N=64", lr=2e-4, eps=1e-8, std=0.02)
    assert {name: p[f"{name}.weight"].settings["lr"].factor for name in "AB"} == {"A": 1, "B": 1 / 8}
    assert p["A.weight"].settings["eps"].factor == 1 / 8 and p["W.weight"].frozen


@pytest.mark.parametrize(
    ("model", "sizes", "given", "said"),
    [
        (Small, [BASE], GIVEN, r"give plan\(build, base, target\)"),
        (lambda z: Adapter(z["N"] + 0 * z["rank"]), ["N=8", "N=64"], GIVEN, "'rank'; add rank=NUMBER to base"),
        (Small({"N": 16, "N_e": 8, "M": 4}), [BASE], GIVEN, "Small has no configuration of transformers; give plan"),
        (Small, [BASE, TARGET], {"gauge": "table9"}, "use the gauge table3"),
        (
            Small,
            [BASE, TARGET],
            {"lr": 3e-3},
            "the epsilon of Adam scales, too; give its value at the base, such as eps=",
        ),
        (Small, [BASE, TARGET], {"lr": 3e-3, "eps": {"head.weight": 1e-8}}, "the epsilon of tokens.weight scales"),
        (
            Small,
            [BASE, TARGET],
            {"lr": {"": 1e-3, "gate": 1, "hed.weight": 1}},
            "named 'gate', 'hed.weight'; did you mean",
        ),
        (Small, [BASE, TARGET], {}, "head.weight has no lr at the base; give plan|tokens.weight has no lr"),
        (lambda z: Small(z, True), [BASE, TARGET], {**GIVEN, "fold": True}, "cannot be folded"),
        (lambda n: nn.Linear(n, n), [BASE, TARGET], GIVEN, r'build gets a dict of sizes: read a size as sizes\["N'),
    ],
)
def test_what_is_missing_is_an_error_that_names_it(model, sizes, given, said):
    with pytest.raises(UsageError, match=said):
        plan(model, *sizes, **given).param_groups()


def test_two_optimizers_have_groups_each():
    def build(sizes):
        return nn.Sequential(
            *(nn.Linear(a or sizes["N"], b or sizes["N"], bias=False) for a, b in ((5, 0), (0, 0), (0, 3)))
        )

    given = {"lr": {"muon": 2e-2, "adamw": 3e-3}, "eps": 1e-8, "std": 0.02}
    p = plan(build, "N=16", "N=64", optimizer="muon:match_rms_adamw+adamw", **given)
    muon = torch.optim.Muon(p.param_groups(optimizer="muon"))
    adamw = torch.optim.AdamW(p.param_groups(optimizer="adamw"))
    (matrix,), (first, _) = muon.param_groups, adamw.param_groups
    assert matrix["adjust_lr_fn"] == "match_rms_adamw" and matrix["param_names"] == ["1.weight"]
    assert (matrix["lr"], first["lr"]) == (1e-2, 3e-3)
    assert "muon:match_rms_adamw trains 1.weight, which multiplies a rate by" in str(p)
    with pytest.raises(UsageError, match="this plan uses 2 optimizers"):
        p.param_groups()


class Joint(nn.Module):
    """One matrix with two parts, the second of a fixed number of rows; a buffer that no checkpoint has."""

    def __init__(self, sizes):
        super().__init__()
        n = self.n = sizes["N"]
        self.tokens, self.joint = nn.Embedding(11, n), nn.Linear(n, n + 3, bias=False)
        self.head, self.side = nn.Linear(n, 11, bias=False), nn.Linear(3, 11, bias=False)
        self.register_buffer("turns", torch.arange(3.0) + 1, persistent=False)

    def forward(self, x):
        y, z = self.joint(self.tokens(x)).split([self.n, 3], -1)
        return self.head(y.relu()) + self.side(z)


def test_parts_that_two_optimizers_train_name_their_own_and_are_to_have_one():
    given = {"lr": {"muon": 1e-2, "adamw": 1e-3}, "std": 0.02, "batch": (64, 128)}
    rules = {"": "muon+adamw", "tokens.weight": "adamw"}
    p = plan(Joint, "N=16", "N=64", optimizer=rules, eps=1e-8, **given)
    rows = [(r["part"], r["optimizer"], r["lr"], r["weight_decay"]) for r in p.as_rows() if r["name"] == "joint.weight"]
    assert [(part, rule) for part, rule, *_ in rows] == [("0:64", "muon"), ("64:67", "adamw")]
    assert {x[-1] for x in rows} == {0.0} and rows[0][2] != rows[1][2]
    assert "adamw trains tokens.weight, joint.weight, head.weight, side.weight" in str(p)
    assert "schedule held: these rules are assumed; certificates do not cover them)" in str(p)
    parts = next(x for x in p.document().record["parameters"] if x["name"] == "joint.weight")["parts"]
    assert [x["optimizer"] for x in parts.values()] == ["muon", "adamw"]
    mended = f"plan(..., optimizer={ {**rules, 'joint.weight': 'adamw'} })"
    for one in ("muon", "adamw"):
        with pytest.raises(UsageError, match=re.escape(f"give the whole tensor to one optimizer: {mended}")):
            p.param_groups(optimizer=one)
    eps = {"": 1e-8, "joint.weight[0]": 1e-9}
    q = plan(Joint, "N=16", "N=64", optimizer=rules | {"joint.weight": "adamw"}, eps=eps, lr=1e-3, std=0.02)
    (group,) = (g for g in q.param_groups() if g["name"] == "joint.weight")
    assert group["eps"] == min(s["eps"].target for s in q["joint.weight"].parts.values())
    assert {r["eps"] for r in q.as_rows() if r["name"] == "joint.weight"} == {group["eps"]}
    assert str(q).count(f"  {group['eps']:.4g}") == 2


def test_buffers_without_their_values_are_told():
    p = plan(Joint, "N=16", "N=64", lr=1e-3, eps=1e-8, std=0.02)
    with pytest.raises(UsageError, match="not by to_empty, which leaves no values in its buffers: turns"):
        p.init_(Joint({"N": 64}).to("meta"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        p.init_(Joint({"N": 64}).bfloat16())
    empty = Joint({"N": 64})
    empty.turns.zero_()
    with pytest.warns(UserWarning, match="turns: init_ sets no buffers, and these differ"):
        p.init_(empty)


def test_stacks_of_experts_are_told_where_muon_trains_them():
    p = plan(Small, BASE, TARGET, optimizer="muon+adamw", lr=1e-3, eps=1e-8, std=0.02)
    (told,) = [x for x in p.warnings if "torch.optim.Muon" in x]
    assert told.startswith("block.up, block.down: stacks of matrices")
    with pytest.raises(
        UsageError, match=r"has shape \[.*\] in this model but \[.*\] in the plan; make a plan of this model"
    ):
        p.param_groups(Small(read_sizes(BASE, "base")), optimizer="muon")
    assert not any("Muon" in x for x in made()[1].warnings)


class Branched(nn.Module):
    """Residual branches; with a power of L in the code, or without."""

    def __init__(self, sizes, own):
        super().__init__()
        n, self.own = sizes["N"], 1 / sizes["L"] if own else None
        self.inp, self.head = nn.Linear(5, n), nn.Linear(n, 3, bias=False)
        self.up = nn.ModuleList(nn.Linear(n, 2 * n) for _ in range(sizes["L"]))
        self.down = nn.ModuleList(nn.Linear(2 * n, n, bias=False) for _ in range(sizes["L"]))

    def forward(self, x):
        h = self.inp(x)
        for up, down in zip(self.up, self.down, strict=True):
            y = down(torch.tanh(up(h)))
            h = h + (y if self.own is None else y * self.own)
        return self.head(h)


@pytest.mark.parametrize(("optimizer", "told"), [("muon+adamw", True), ("muon:original+adamw", False)])
def test_a_factor_that_torchs_muon_brings_by_itself_is_told(optimizer, told):
    sizes = {"N": 8, "L": 1}
    made = plan(lambda sizes: Branched(sizes, own=False), sizes, {"N": 16, "L": 1}, optimizer=optimizer)
    lines = [x for x in made.warnings if "unless adjust_lr_fn says" in x]
    assert [x.partition(":")[0] for x in lines] == ["up.*.weight"] * told


def test_a_folded_multiplier_trains_as_one_in_the_code():
    """Powers of two: every output is the same, bit by bit; with its own rate it is not."""
    p, q = (
        plan(lambda z, own=own: Branched(z, own), "N=8,L=1", "N=16,L=4", fold=not own, **GIVEN) for own in (True, False)
    )
    assert p.multipliers == q.multipliers == {"scale": 1}
    names = ("init_std", "lr", "eps", "decay")
    m = [q["down.0.weight"].settings[x].factor / p["down.0.weight"].settings[x].factor for x in names]
    assert m == [1 / 4, 1 / 4, 4, 4] and q["up.0.weight"].settings == p["up.0.weight"].settings
    x, torn = torch.randn(7, 5, dtype=torch.float64), deepcopy(q.model).double()

    def run(plan_, model, **options):
        torch.manual_seed(0)
        plan_.init_(model)
        groups = [g | (options if g["name"].startswith("down") else {}) for g in plan_.param_groups(model)]
        optimizer, outs = torch.optim.AdamW(groups), []
        for _ in range(4):
            outs.append(model(x))
            optimizer.zero_grad()
            (outs[-1] - 1).square().mean().backward()
            optimizer.step()
        return torch.stack(outs)

    inside, folded = run(p, p.model.double()), run(q, q.model.double())
    assert torch.equal(inside, folded) and not torch.equal(inside[0], inside[3])
    assert not torch.equal(inside, run(q, torn, eps=1e-3))


class TiedEmbedding(nn.Module):
    """A head tied to the embedding behind a norm with a gain, whose output is divided by a power of the width."""

    def __init__(self, n, power, gains):
        super().__init__()
        self.divisor, self.tokens, self.norm = n**power / 8, nn.Embedding(64, n), nn.RMSNorm(n)
        self.gains = nn.ParameterList(torch.ones(n) for _ in range(gains))

    def forward(self, ids):
        h = self.norm(self.tokens(ids)) / self.divisor
        for gain in self.gains:
            h = h * gain
        return h @ self.tokens.weight.T


@pytest.mark.parametrize(("power", "gains", "left"), [(1, 0, 1), (1, 1, 1), (0.5, 0, 1 / 2), (0, 0, 1 / 4)])
def test_a_factor_behind_a_gain_belongs_to_the_multiplier_that_follows(power, gains, left):
    """MiniCPM divides by the width behind the gain, as the tied head needs: the gain starts at 1, not 4, and nothing is
    left to multiply by; a recipe says the same. Negative control: what the module lacks is left."""

    def build(z):
        return TiedEmbedding(z["N"], power, gains), torch.arange(6)

    made = plan(build, "N=32", "N=128", **GIVEN)
    gain = made["norm.weight"]
    assert made.multipliers == {"scale": left} and gain.fill == 1 and gain.settings["lr"].target == GIVEN["lr"]
    assert (f"multiply scale by {left:g}" in str(made)) == (left != 1)
    option = ModelOption(read_module(build))
    numbers = recipe("N=32", "N=128", network=option.network)
    (said,) = option.describe_remaining_factors(numbers.multipliers, numbers.way.base, numbers.way.target)
    assert said.startswith(f"scale: its factor is 0.25, of which the module applies {0.25 / left:g}; ")
    assert said.endswith("nothing to do") == (left == 1) and numbers["norm.weight"]["init_std"].factor == 1


class DividedGain(nn.Module):
    """A norm with a gain, divided by the width, before a matrix."""

    def __init__(self, n):
        super().__init__()
        self.n, self.first, self.norm = n, nn.Linear(5, n), nn.RMSNorm(n)
        self.mid, self.head = nn.Linear(n, n, bias=False), nn.Linear(n, 3)

    def forward(self, x):
        return self.head(torch.relu(self.mid(self.norm(self.first(x)) / self.n)))


def test_a_factor_behind_a_gain_belongs_to_the_matrix_that_follows():
    """Nothing fixes where the matrix starts, but the gain starts at 1: the std of the matrix goes as N^(1/2)."""
    made = plan(lambda z: DividedGain(z["N"]), "N=32", "N=128", **GIVEN)
    assert made["norm.weight"].fill == 1 and made["norm.weight"].settings["lr"].factor == 1
    assert made["mid.weight"].settings["init_std"].factor == 2 and made["mid.weight"].settings["lr"].factor == 1


@pytest.mark.parametrize(("rule", "rate", "eps"), [("sgd", 1 / 4, None), ("adamw", 1 / 2, 2), ("muon", 1 / 2, None)])
def test_rates_of_a_folded_tensor(rule, rate, eps):
    """Of a step of gradients m^2, of a normalised one m."""
    from scaling_algebra import recipe
    from scaling_algebra.spec.powers import Power

    settings = recipe("N=16", "N=32", rule)["hidden"]
    after = rescale_settings(settings, Power.of({"N": -1}), 0.5, OPTIMIZERS[rule])
    factors = {what: after[what].factor / settings[what].factor for what in settings}
    assert factors["lr"] == rate and factors.get("eps") == eps and factors["init_std"] == 0.5
    assert str(after["init_std"].rule) == "N^(-3/2)"


def test_a_multiplier_ends_in_the_tensors_that_it_multiplies():
    assert find_fold_target(ARCHITECTURES["deep-moe"], "res").roles == ("expert_out",)
    with pytest.raises(UsageError, match="cannot be folded"):
        find_fold_target(ARCHITECTURES["tied-embedding"].with_frozen(ARCHITECTURES["tied-embedding"].tensors), "out")


@pytest.mark.parametrize("family", ["llama"])
def test_a_model_of_transformers_says_how_it_is_built(family, monkeypatch):
    """Mixtral: ``tests/measure/test_whole_blocks.py``."""
    transformers = pytest.importorskip("transformers")

    def built(n, heads=None):
        given = {"hidden_size": n, "intermediate_size": 2 * n, "num_hidden_layers": 3, "vocab_size": 64}
        given |= {"num_attention_heads": n // 8, "num_key_value_heads": heads or n // 8, "head_dim": 8}
        with torch.device("meta"):
            return transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(family, **given))

    p = plan(built(64), built(32), **{**GIVEN, "decay": {"": 0.1, "*norm.weight": 0}})
    assert {g["name"] for g in p.param_groups() if not g["weight_decay"]} == {n for n in p.groups if "norm" in n}
    assert "weight_decay 0" not in str(p) and "# weight decay is 0" not in p.export("olmo-core", dropping=["init"])
    with (
        monkeypatch.context() as m,
        pytest.raises(UsageError, match=r"parameter in decay named 'model\.norm\.bias'; did"),
    ):
        m.setattr(planning, "read_subject", None)
        plan(built(64), built(32), **{**GIVEN, "decay": {"model.norm.bias": 0, "lm_head.weight": 1, "*norm.w*": 0}})
    group = p.groups["model.layers.*.self_attn.q_proj.weight"]
    assert len(group.entries) == 3 and group.numbers["lr"] == 1.5e-3 and not any("grows as" in x for x in p.warnings)
    assert p["model.norm.weight"].fill == 1 and set(p.multipliers.values()) <= {1.0}
    odd = plan(built(64, heads=2), built(32), **GIVEN).warnings[-1]
    assert odd.startswith(
        "model.layers.*.self_attn.k_proj.weight, model.layers.*.self_attn.v_proj.weight: these dimensions grow"
    )


HOWS = ("ddp", "fsdp2")
"""How a model with tied embeddings is wrapped."""


def worker(rank, port, folder):
    """One of two processes: replicates or shards the model, starts it, trains it, and writes its groups."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port, RANK=rank, WORLD_SIZE="2")
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    seen, p = [], made(tied=True)[1]
    for how in HOWS:
        model = deepcopy(p.model)
        if how == "ddp":
            wrapped = nn.parallel.DistributedDataParallel(model)
        else:
            from torch.distributed.fsdp import fully_shard

            fully_shard(model.block)
            wrapped = fully_shard(model)
        p.init_(wrapped)
        seen.append(stepped(wrapped, p.param_groups(wrapped)))
    (folder / rank).write_text(json.dumps(seen))
    dist.destroy_process_group()


def llama(n, heads, **more):
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": n, "intermediate_size": 2 * n, "num_hidden_layers": 1, "vocab_size": 64}
    sizes |= {"num_attention_heads": heads, "num_key_value_heads": heads}
    with torch.device("meta"):
        config = transformers.LlamaConfig(**sizes | more)
        return transformers.AutoModelForCausalLM.from_config(config)


def test_what_two_configurations_have_alike_stays():
    """A width that stays keeps its numbers; heads that stay are longer, and their products are to be scaled by 1/d
    where the model scales by d^(-1/2)."""
    p = plan(llama(64, 2, intermediate_size=48), llama(32, 2, intermediate_size=48), lr=1e-3, eps=1e-8, std=0.02)
    factors = {e.name.split(".")[-2]: e.settings["lr"].factor for e in p.entries if "proj" in e.name}
    assert factors == dict.fromkeys(("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj"), 0.5) | {
        "down_proj": 1.0
    }
    assert p.multipliers["scale"] == pytest.approx(0.5**0.5) and "taken as if" not in str(p)
    few = plan(llama(64, 4, num_key_value_heads=2), llama(32, 2), lr=1e-3, eps=1e-8, std=0.02)
    assert few["model.layers.0.self_attn.k_proj.weight"].settings["init_std"].factor == 0.5
    more = plan(llama(64, 4), llama(32, 2), lr=1e-3, eps=1e-8, std=0.02)
    assert more["model.layers.0.mlp.down_proj.weight"].settings["lr"].factor == 0.5
    assert set(more.multipliers.values()) <= {1.0}
    odd = plan(llama(64, 4, head_dim=24), llama(32, 2, head_dim=16), lr=1e-3, eps=1e-8, std=0.02)
    assert "q_proj.weight" in str(odd) and "grow by another factor" in str(odd)


def test_heads_grow_in_number_and_in_length_beside_gates_that_are_divided_by_their_sum():
    transformers = pytest.importorskip("transformers")

    def mixtral(n, heads, length):
        sizes = {"hidden_size": n, "intermediate_size": n, "num_hidden_layers": 1, "vocab_size": 64, "head_dim": length}
        counts = {"num_attention_heads": heads, "num_key_value_heads": 2, "num_local_experts": 4}
        return transformers.MixtralConfig(**sizes, **counts, num_experts_per_tok=2)

    def on_meta(config):
        with torch.device("meta"):
            return transformers.MixtralForCausalLM(config)

    p = plan(on_meta(mixtral(256, 8, 32)), on_meta(mixtral(64, 4, 16)), lr=1e-3, eps=1e-8)
    (line,) = (x for x in p.warnings if "heads grow in number" in x)
    assert "dimension 16 to 32: multiply scale of model.layers.*.self_attn by 0.7071" in line


class FewKeys(nn.Module):
    """Attention of one short head, whose keys are normalised, and a choice between two experts."""

    def __init__(self, n, length):
        super().__init__()
        self.e, self.u, self.gate = nn.Embedding(9, n), nn.Linear(n, 9, bias=False), nn.Linear(n, 2, bias=False)
        self.q, self.k = (nn.Linear(n, length, bias=False) for _ in range(2))
        self.norm, self.v = nn.RMSNorm(length), nn.Linear(n, n, bias=False)

    def forward(self, ids):
        x = self.e(ids)
        scores = self.q(x) @ self.norm(self.k(x)).transpose(-1, -2) / self.k.out_features
        h = scores.softmax(-1) @ self.v(x)
        return self.u(h * self.gate(h).softmax(-1)[..., :1])


def test_a_plan_says_why_keys_have_the_numbers_of_a_readout():
    """And how they get those of a hidden matrix; where what they make grows nothing is said."""
    few = plan(lambda z: FewKeys(z["N"], 8), "N=32", "N=128", lr=1e-3, eps=1e-8, std=0.02)
    (narrow,) = (x for x in few.warnings if "as of a readout" in x)
    assert narrow.startswith("q.weight, k.weight, gate.weight: init std N^-1, as of a readout, since they read what")
    assert "for the N^(-1/2) of a hidden matrix let it grow alike" in narrow
    (normed,) = (x for x in few.warnings if "a norm alone reads" in x)
    assert normed.startswith("k.weight: a norm alone reads what they make; after the first update")
    more = plan(lambda z: FewKeys(z["N"], z["N"] // 2), "N=32", "N=128", lr=1e-3, eps=1e-8, std=0.02)
    assert not any("k.weight: " in x or "q.weight" in x for x in more.warnings)
    assert more["k.weight"].settings["init_std"].factor == 2 * few["k.weight"].settings["init_std"].factor


class Guarded(nn.Module):
    """Heads of a fixed length, of which there is one at least (``few``), or none in a model that is too small."""

    def __init__(self, n, few, length=32):
        super().__init__()
        self.heads, self.length = max(few, n // length), length
        self.e, self.u = nn.Embedding(9, n), nn.Linear(n, 9, bias=False)
        self.q, self.k, self.v = (nn.Linear(n, self.heads * length, bias=False) for _ in range(3))
        self.o = nn.Linear(self.heads * length, n, bias=False)

    def forward(self, ids):
        x = self.e(ids)
        q, k, v = (f(x).unflatten(-1, (self.heads, self.length)).transpose(1, 2) for f in (self.q, self.k, self.v))
        return self.u(self.o(nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)))


@pytest.mark.parametrize("few", [4, 0])
def test_a_module_that_is_another_one_at_small_sizes_is_read_at_its_base(few):
    """Two heads at N = 32 and at 64 have a width that stays: o had one rate at every size, certified."""
    length = 32 if few else 128
    p = plan(lambda s: Guarded(s["N"], few, length), "N=128", "N=512", lr=1e-2, eps=1e-8, std=0.1)
    assert p.level.certified and {
        name: (p[name].settings["init_std"].factor, p[name].settings["lr"].factor) for name in ("o.weight", "q.weight")
    } == dict.fromkeys(("o.weight", "q.weight"), (0.5, 0.25))
    odd = plan(lambda s: Guarded(s["N"], 8), "N=128", "N=512", lr=1e-2, eps=1e-8, std=0.1)
    assert odd.level.code == 3 and "o.weight" in odd.level.lines[0] and "grow by another factor" in odd.level.lines[0]


@pytest.mark.parametrize(("heads", "said"), [(8, "scale of model.layers.*.self_attn by 0.7071 in"), (16, "")])
def test_heads_that_grow_in_number_and_in_length_are_scaled_for_both(heads, said):
    """Llama's way from 64 to 128 dimensions a head: 1/d for d^(-1/2), left out of what was called certified."""
    p = plan(llama(256, heads), llama(64, 4), lr=1e-3, eps=1e-8, std=0.02)
    assert ("multiply " in " ".join(p.warnings)) == bool(said) and said in p.warnings[0]


def test_a_frozen_readout_of_two_models_is_told():
    """Their initial values have one std at every width; a model on meta has none to compare."""

    def frozen(n, device):
        model = llama(n, n // 16).to_empty(device=device)
        with torch.no_grad():
            [p.normal_(0.0, 0.02) for p in model.parameters() if device == "cpu"]
        model.lm_head.weight.requires_grad_(False)
        return model

    p, silent = (plan(frozen(64, where), frozen(32, where), lr=1e-3, eps=1e-8, std=0.02) for where in ("cpu", "meta"))
    assert p.level.code == 3 and "lm_head.weight" in p.level.lines[0] and silent.level.certified


def test_groups_survive_two_processes(tmp_path):
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = str(s.getsockname()[1])
    arguments = [[sys.executable, __file__, rank, port, str(tmp_path)] for rank in "01"]
    workers = [subprocess.Popen(a, stderr=subprocess.PIPE) for a in arguments]
    try:
        for w in workers:
            said = w.communicate(timeout=300)[1]
            assert w.returncode == 0, said.decode()
    finally:
        for w in workers:
            w.kill()
    groups = made(tied=True)[1].param_groups()
    wanted = [[[g["name"], g["param_names"], g["lr"], g["eps"]] for g in groups]] * len(HOWS)
    assert [json.loads((tmp_path / rank).read_text()) for rank in "01"] == [wanted, wanted]


if __name__ == "__main__":
    worker(*sys.argv[1:3], Path(sys.argv[3]))


def test_sizes_of_parts_that_two_choices_of_fields_give_are_not_known():
    small = [({"a": n, "b": n, "c": 16, "d": 16}, [n, 16]) for n in (32, 64)]
    assert sizes_in_fields(small, {"a": 512, "b": 500, "c": 64, "d": 128}, 576) == [512, 64]
    assert sizes_in_fields(small, {"a": 512, "b": 500, "c": 64, "d": 76}, 576) == []
