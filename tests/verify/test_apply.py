"""A recipe on live modules: roles, numbers, initial values, groups; wrappers, shards, checkpoints, tied embeddings."""

import json
import os
import pickle
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist
from torch import nn

from scaling_algebra import recipe
from scaling_algebra.errors import UsageError
from scaling_algebra.verify.apply import plan
from scaling_algebra.verify.apply.gates import Gate, gate_from
from scaling_algebra.verify.apply.shapes import refitted

BASE, TARGET = "N=16,N_e=8,M=4,K=2", "N=32,N_e=8,M=8,K=4"
GIVEN = {"optimizer": "adamw", "lr": 3e-3, "eps": 1e-8, "std": 0.02, "decay": 0.1}


class Block(nn.Module):
    scaling_roles = {"up": "expert_in", "down": "expert_out"}  # noqa: RUF012

    def __init__(self, ne):
        super().__init__()
        self.norm, self.gate = nn.Parameter(torch.ones(32)), nn.Linear(32, 8, bias=False)
        self.up, self.down = nn.Parameter(torch.randn(8, ne, 32)), nn.Parameter(torch.randn(8, 32, ne))
        self.register_buffer("correction", torch.zeros(8))

    def forward(self, h):
        x = h * self.norm
        return h + torch.einsum("bm,mnk,mka,ba->bn", self.gate(x).sigmoid(), self.down, self.up, x)


class Small(nn.Module):
    """An embedding, one MoE block, a readout; module labels and names that no family has."""

    def __init__(self, tied=False, ne=8):
        super().__init__()
        self.tokens, self.block, self.head = nn.Embedding(11, 32), Block(ne), nn.Linear(32, 11, bias=False)
        if tied:
            self.head.weight = self.tokens.weight

    def forward(self, x):
        return self.head(self.block(self.tokens(x)))


ROLES = {r"^tokens\.": "embedding", r"^block\.norm$": "gain", r"gate\.weight$": "router", r"^head\.": "readout"}


@pytest.fixture(scope="module")
def numbers():
    return recipe(BASE, TARGET, **GIVEN)


def made(numbers, tied=False):
    torch.manual_seed(0)
    model = Small(tied)
    return model, plan(model, numbers, roles={r: x for r, x in ROLES.items() if not (tied and x == "readout")})


def stepped(model, groups):
    optimizer, x = torch.optim.AdamW(groups), torch.arange(8) % 11
    nn.functional.cross_entropy(model(x), (x + 1) % 11).backward()
    optimizer.step()
    return [[g["name"], g["param_names"], g["lr"], g["eps"]] for g in optimizer.param_groups]


def test_every_parameter_has_role_rule_and_numbers(numbers):
    model, p = made(numbers)
    assert {e.name: e.role for e in p.entries} == {
        "tokens.weight": "embedding",
        "block.norm": "gain",
        "block.up": "expert_in",
        "block.down": "expert_out",
        "block.gate.weight": "router",
        "head.weight": "readout",
    }
    assert p["block.up"].rule == "scaling_roles of block" and p["head.weight"].rule == r"^head\."
    assert p["block.up"].settings["lr"].target == numbers["expert_in"]["lr"].target == 1.5e-3
    assert "block.down" in str(p) and "buffers, never the optimizer's: block.correction" in str(p)
    assert p.document().record["parameters"][0]["lr"]["target"] == 3e-3
    groups = {g["name"]: g for g in p.param_groups()}
    assert sorted(n for g in groups.values() for n in g["param_names"]) == sorted(e.name for e in p.entries)
    for role, g in groups.items():
        kept = (g["lr"], g["eps"], g["weight_decay"])
        assert kept == tuple(numbers[role][what].target for what in ("lr", "eps", "decay"))
    p.init_(generator=torch.Generator().manual_seed(1))
    assert torch.equal(model.block.norm, torch.ones(32))
    for name in ("block.up", "block.down", "block.gate.weight"):
        wanted = numbers[p[name].role]["init_std"].target
        assert model.get_parameter(name).std().item() == pytest.approx(wanted, rel=0.1)


def test_zero_and_tied_initial_values():
    sizes = ("N=16,N_e=8,M=4,K=4", "N=32,N_e=16,M=8,K=8")
    numbers = recipe(*sizes, optimizer="adam", parameterization="mssp", std=0.1, architecture="moe")
    model = Small(ne=16)
    model.block.norm.requires_grad_(False)
    p = plan(model, numbers, roles={**{r: x for r, x in ROLES.items() if x != "gain"}, r"^tokens\.": "input"})
    p.init_()
    assert not model.head.weight.any()
    assert numbers.tied and all(torch.equal(x[0], x[1]) and x.any() for x in (model.block.up, model.block.down))


def test_frozen_parameters_are_reported_and_left_alone(numbers):
    model = Small()
    model.block.gate.weight.requires_grad_(False)
    model.extra = nn.Parameter(torch.ones(3), requires_grad=False)
    before = model.block.gate.weight.clone()
    p = plan(model, numbers, roles=ROLES)
    p.init_()
    assert p["extra"].frozen and p["extra"].role == "" and "frozen" in str(p)
    assert torch.equal(model.block.gate.weight, before)
    assert not {"extra", "block.gate.weight"} & {n for g in p.param_groups() for n in g["param_names"]}


def test_tied_embeddings_are_one_tensor_in_one_group(numbers):
    model, p = made(numbers, tied=True)
    assert p.aliases == {"head.weight": "tokens.weight"} and p["head.weight"].role == "embedding"
    assert sum(len(g["params"]) for g in p.param_groups()) == 5
    assert p.multipliers["out"] == pytest.approx(1 / 2) and "multiply out by 0.5 in the model" in str(p)
    stepped(model, p.param_groups())


def test_a_compiled_model_has_the_same_groups(numbers):
    model, p = made(numbers)
    compiled = torch.compile(model, backend="eager")
    assert [g["param_names"] for g in p.param_groups(compiled)] == [g["param_names"] for g in p.param_groups()]
    assert [e.name for e in plan(compiled, numbers, roles=ROLES).entries] == [e.name for e in p.entries]
    stepped(compiled, p.param_groups(compiled))


LLAMA4 = Small()
LLAMA4.config = SimpleNamespace(model_type="llama4")
SWAPPED = {"up$": "expert_out", "down$": "expert_in", **ROLES}


BOTH, LINEAR = [BASE, TARGET], nn.Linear(4, 4, bias=False)
WRONG = [
    (BOTH, {k: v for k, v in ROLES.items() if v != "router"}, {}, "no role for parameter block.gate"),
    (BOTH, {"tokens": "embedding"}, {}, r"no role for parameters block\..*, .*head.weight; give roles="),
    (BOTH, {**ROLES, "nowhere": "gain"}, {}, "'nowhere' is the rule of no parameter"),
    (BOTH, {**ROLES, r"^tokens\.": "embeding"}, {}, "did you mean 'embedding'"),
    (BOTH, {**ROLES, "(": "gain"}, {}, r"'\(' is no regular expression"),
    ([BASE], ROLES, {}, "give the sizes of the target"),
    (BOTH, ROLES, {"gauge": "table9", **GIVEN}, "take the gauge table3"),
    (BOTH, {"weight": "hidden"}, {"model": LINEAR}, "the model has none"),
    (BOTH, None, {"model": LLAMA4}, "llama4 has no adapter: its gate scales the input"),
    (BOTH, ROLES, {}, "no lr at the base; give plan"),
    ([BASE, "N=64,N_e=8,M=16,K=8"], ROLES, {}, "is 11 x 32, but embedding with these sizes has N = 64"),
    (["N=16,N_e=8,M=8,K=4", "N=32,N_e=8,M=16,K=8"], ROLES, {}, "block.up is 8 x 8 x 32, but expert_in .* has M"),
    (BOTH, SWAPPED, {}, "swap the roles of w1 and w2"),
]


@pytest.mark.parametrize(("sizes", "roles", "more", "said"), WRONG, ids=[said for *_, said in WRONG])
def test_what_is_missing_or_does_not_match_is_an_error_that_names_it(sizes, roles, more, said):
    with pytest.raises(UsageError, match=said):
        plan(
            more.get("model", Small()), *sizes, roles=roles, **{k: x for k, x in more.items() if k != "model"}
        ).param_groups()


@pytest.mark.parametrize("rule", ["adamw", "muon", "muon:original", "muon:match_rms_adamw"])
def test_a_layer_of_other_fans_is_derived_as_one_between_the_two(rule):
    """As wide as N it has the role's numbers; to or from a fixed width those of a layer at an end of the network."""
    numbers = recipe("N=16", "N=64", rule)
    role, of = numbers["hidden"], numbers.configuration.optimizer
    wide, narrow = (refitted(role, "hidden", of, x, numbers)[0] for x in (((8, 16), (8, 64)), ((16, 8), (64, 8))))
    assert refitted(role, "hidden", of, ((5, 7), (20, 28)), numbers)[0] == role
    assert (wide["init_std"].factor, narrow["init_std"].factor) == (1, 1 / 4)
    rates = {"adamw": (1, 1 / 4), "muon": (2, 1 / 2), "muon:original": (1, 1 / 2), "muon:match_rms_adamw": (1, 1 / 4)}
    assert (wide["lr"].factor, narrow["lr"].factor) == rates[rule]
    if rule == "adamw":
        assert (wide["eps"].factor, narrow["eps"].factor) == (1 / 4, 1)


class Latent(nn.Module):
    """A matrix to a fixed rank and one from it, with a bias; an embedding and a readout."""

    def __init__(self, n):
        super().__init__()
        self.tokens, self.head = nn.Embedding(11, n), nn.Linear(n, 11, bias=False)
        self.layers = nn.ModuleList([nn.ModuleDict({"q_a": nn.Linear(n, 6, bias=False), "q_b": nn.Linear(6, 2 * n)})])


def test_fans_come_from_the_two_models():
    roles = {"tokens": "embedding", "head": "readout", "bias$": "bias", "weight$": "hidden"}
    small = {"none": None, "meta": Latent(16).to("meta"), "other": nn.Linear(16, 16)}
    plans = {k: plan(Latent(64), "N=16", "N=64", roles=roles, base_model=x, **GIVEN) for k, x in small.items()}
    assert [e.group for e in plans["none"].entries] == ["embedding", "readout", "hidden", "hidden", "bias"]
    assert "layers.*.q_a.weight (6 x 64), layers.*.q_b.weight (128 x 6)" in plans["none"].warnings[0]
    p = plans["meta"]
    assert not p.warnings and {g["name"]: g["lr"] for g in p.param_groups()}["hidden_3"] == 3e-3
    assert p["layers.0.q_a.weight"].settings["init_std"].factor == 1 / 4
    assert "hidden_2" in str(p) and "hidden_2" in p.export("deepspeed", ["init"])
    assert plans["other"].warnings[0].startswith("tokens.weight (11 x 64)")
    assert "not shown by the base model" in plans["other"].warnings[0]


def test_a_rank_that_alone_grows_is_shown_by_the_two_models():
    """LoRA at one width, rank 8 to 64: the matrix back has rate 1/rank; without both models nothing changes."""

    def adapter(rank):
        model = nn.ModuleDict({"W": nn.Linear(64, 64), "A": nn.Linear(64, rank), "B": nn.Linear(rank, 64)})
        model["W"].requires_grad_(False)
        return model

    roles = {"bias": "bias", "weight": "hidden"}
    p = plan(adapter(64), "N=64", "N=64", roles=roles, base_model=adapter(8), lr=2e-4, eps=1e-8, std=0.02)
    factors = {name: p[f"{name}.weight"].settings["lr"].factor for name in "AB"}
    assert factors == {"A": 1, "B": 1 / 8} and p["B.weight"].settings["init_std"].factor == 1 / 8
    assert p["A.weight"].settings["eps"].factor == 1 / 8 and p["W.weight"].frozen
    with pytest.raises(UsageError, match="nothing is to be transferred"):
        plan(adapter(64), "N=64", "N=64", roles=roles)


def test_two_optimizers_have_groups_each():
    model = nn.ModuleDict({"tokens": nn.Embedding(11, 64), "up": nn.Linear(64, 64, bias=False)})
    given = {"lr": {"muon": 2e-2, "adamw": 3e-3}, "eps": 1e-8, "std": 0.02}
    roles = {"tokens": "embedding", "up": "hidden"}
    p = plan(model, "N=16", "N=64", roles=roles, optimizer="muon:match_rms_adamw+adamw", **given)
    muon = torch.optim.Muon(p.param_groups(optimizer="muon"))
    adamw = torch.optim.AdamW(p.param_groups(optimizer="adamw"))
    (matrix,), (embedding,) = muon.param_groups, adamw.param_groups
    assert matrix["adjust_lr_fn"] == "match_rms_adamw" and matrix["param_names"] == ["up.weight"]
    assert (matrix["lr"], embedding["lr"]) == (1e-2, 3e-3)
    assert "muon:match_rms_adamw trains hidden, which multiplies a rate by" in str(p)
    with pytest.raises(UsageError, match="2 optimizers train this model"):
        p.param_groups()


class Router(nn.Module):
    """Chooses K of M, in the way of published families: (logits, weights, indices)."""

    def __init__(self, kind, scale=1.0, width=4):
        super().__init__()
        self.weight, self.kind, self.scale = nn.Parameter(torch.zeros(8, width)), kind, scale

    def forward(self, x):
        logits = nn.functional.linear(x, self.weight)
        scores = {"sigmoid": logits.sigmoid(), "softmax": logits.softmax(-1)}.get(self.kind.split()[0], logits)
        weights, indices = scores.topk(2)
        weights = weights / weights.sum(-1, keepdim=True) if "renormalised" in self.kind else weights
        return logits, self.scale * (weights.softmax(-1) if self.kind == "chosen" else weights), indices


@pytest.mark.parametrize(
    ("router", "brings", "scale"),
    [
        (Router("softmax"), "1/M", 1),
        (Router("softmax renormalised"), "1/K", 1),
        (Router("chosen").to("meta"), "1/K", 1),
        (Router("sigmoid renormalised", 2.5), "1/K", 2.5),
        (Router("sigmoid"), "1", 1),
        (Router("softmax", 3.0), "", 1),
        (nn.Linear(4, 8), "", 1),
    ],
)
def test_what_a_gate_brings_is_measured(router, brings, scale):
    """Softmaxes times a number that no configuration names are not told from others: nothing is said."""
    assert gate_from(None, router) == (Gate(brings, scale, measured=True) if brings else Gate())


@pytest.mark.parametrize(
    ("given", "brings"),
    [
        ({"norm_topk_prob": True}, "1/K"),
        ({"norm_topk_prob": False, "scoring_func": "softmax"}, "1/M"),
        ({"norm_topk_prob": False, "scoring_func": "sigmoid"}, "1"),
        ({"norm_topk_prob": False}, ""),
        ({}, ""),
    ],
)
def test_what_a_router_does_not_show_is_read_from_the_configuration(given, brings):
    config = SimpleNamespace(**given, routed_scaling_factor=2.5, n_shared_experts=2)
    assert gate_from(config, nn.Linear(4, 8)) == Gate(brings, 2.5, 2)


def test_the_gate_decides_what_is_left_to_multiply():
    for kind, alpha in (("softmax", 1), ("sigmoid", 0.5)):
        model = Small()
        model.block.gate = Router(kind, width=32)
        p = plan(model, BASE, TARGET, roles=ROLES, **GIVEN)
        assert p.gate.measured and p.multipliers["alpha"] == alpha
        assert ("multiply alpha by 0.5 in the model" in str(p)) == (alpha != 1)
    known, unknown = (plan(Small(), BASE, TARGET, roles=ROLES, gate=gate, **GIVEN) for gate in ("1/K", None))
    assert (known.multipliers["alpha"], known.warnings) == (1, ()) and "give gate=" in unknown.warnings[-1]


FAMILIES = {"mixtral": "1/K", "qwen2_moe": "1/M", "qwen3_moe": "1/M", "olmoe": "1/M", "granitemoe": "1/K"}
FAMILIES |= {"deepseek_v3": "1/K", "glm4_moe": "1/K", "gpt_oss": "1/K", "mellum": "1/K"}


@pytest.mark.parametrize(("name", "brings"), FAMILIES.items())
def test_a_plan_of_a_published_family_needs_its_models_alone(name, brings):
    """Heads and ranks are the same in both; mellum is in no table."""
    transformers = pytest.importorskip("transformers")

    def built(n):
        given = dict.fromkeys(("num_local_experts", "num_experts", "n_routed_experts"), n // 4)
        given |= {"hidden_size": n, "intermediate_size": n, "moe_intermediate_size": n, "num_experts_per_tok": n // 16}
        given |= {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 64}
        given |= {"n_group": 1, "topk_group": 1, "first_k_dense_replace": 1}
        given |= dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"))
        with torch.device("meta"):
            config = transformers.AutoConfig.for_model(name, **given)
            return transformers.AutoModelForCausalLM.from_config(config)

    small, large = built(32), built(64)
    sizes = ("N=32,N_e=32,M=8,K=2", "N=64,N_e=64,M=16,K=4") if name == "mellum" else (small,)
    p = plan(large, *sizes, base_model=small, **GIVEN)
    assert p.gate.measured and p.gate.brings == brings and p.multipliers["alpha"] == 1
    assert p.gate.scale == (2.5 if name == "deepseek_v3" else 1)
    assert len(p.warnings) == (name == "mellum")
    if name == "deepseek_v3":
        lr = {
            part: p[f"model.layers.0.self_attn.{part}.weight"].settings["lr"].factor
            for part in ("q_a_proj", "q_b_proj")
        }
        assert lr == {"q_a_proj": 1 / 2, "q_b_proj": 1}


HOWS = {"ddp": False, "fsdp2": True}
"""How a model is wrapped, and whether its embeddings are tied."""


def worker(rank, port, folder):
    """One of two processes: replicates or shards the model, starts it, trains it, and writes its groups."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port, RANK=rank, WORLD_SIZE="2")
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    seen = []
    for how, tied in HOWS.items():
        model, p = made(pickle.loads((folder / "numbers").read_bytes()), tied)
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


def test_groups_survive_two_processes(numbers, tmp_path):
    (tmp_path / "numbers").write_bytes(pickle.dumps(numbers))
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
    plans = [made(numbers, tied)[1] for tied in HOWS.values()]
    wanted = [[[g["name"], g["param_names"], g["lr"], g["eps"]] for g in p.param_groups()] for p in plans]
    assert [json.loads((tmp_path / rank).read_text()) for rank in "01"] == [wanted, wanted]


if __name__ == "__main__":
    worker(*sys.argv[1:3], Path(sys.argv[3]))
