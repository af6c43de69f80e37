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
from scaling_algebra.verify.apply.families import AGGREGATION, family

BASE, TARGET = "N=16,N_e=8,M=4,K=2", "N=32,N_e=8,M=8,K=4"
GIVEN = {"lr": 3e-3, "eps": 1e-8, "std": 0.02, "decay": 0.1}


class Block(nn.Module):
    def __init__(self, n=32, ne=8, m=8):
        super().__init__()
        self.norm = nn.Parameter(torch.ones(n))
        self.gate = nn.Linear(n, m, bias=False)
        self.up = nn.Parameter(torch.randn(m, ne, n))
        self.down = nn.Parameter(torch.randn(m, n, ne))
        self.register_buffer("correction", torch.zeros(m))

    def forward(self, h):
        x = h * self.norm
        w = self.gate(x).sigmoid()
        return h + torch.einsum("bm,mnk,mka,ba->bn", w, self.down, self.up, x)


class Small(nn.Module):
    """An embedding, one MoE block, a readout; module labels and names that no family has."""

    def __init__(self, tied=False, n=32, ne=8, m=8):
        super().__init__()
        self.tokens, self.block, self.head = nn.Embedding(11, n), Block(n, ne, m), nn.Linear(n, 11, bias=False)
        if tied:
            self.head.weight = self.tokens.weight
        self.block.scaling_roles = {"up": "expert_in", "down": "expert_out"}

    def forward(self, x):
        return self.head(self.block(self.tokens(x)))


ROLES = {r"^tokens\.": "embedding", r"^block\.norm$": "gain", r"gate\.weight$": "router", r"^head\.": "readout"}


@pytest.fixture(scope="module")
def numbers():
    return recipe(BASE, TARGET, **GIVEN)


def roles_of(tied):
    return {r: x for r, x in ROLES.items() if not (tied and x == "readout")}


def made(numbers, tied=False):
    torch.manual_seed(0)
    model = Small(tied)
    return model, plan(model, numbers, roles=roles_of(tied))


def loss_of(model):
    x = torch.arange(8) % 11
    return nn.functional.cross_entropy(model(x), (x + 1) % 11)


def stepped(model, groups, steps=2):
    optimizer = torch.optim.AdamW(groups)
    for _ in range(steps):
        optimizer.zero_grad()
        loss_of(model).backward()
        optimizer.step()
    return optimizer


def test_every_parameter_has_role_rule_and_numbers(numbers):
    _, p = made(numbers)
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
    assert p.buffers == ("block.correction",)
    text = str(p)
    assert "block.down" in text and "buffers, never the optimizer's: block.correction" in text
    assert p.document().record["parameters"][0]["lr"]["target"] == 3e-3


def test_groups_carry_the_numbers_of_the_recipe(numbers):
    model, p = made(numbers)
    groups = {g["name"]: g for g in p.param_groups()}
    assert sorted(n for g in groups.values() for n in g["param_names"]) == sorted(
        n for n, _ in model.named_parameters()
    )
    for role, g in groups.items():
        kept = (g["lr"], g["eps"], g["weight_decay"])
        assert kept == tuple(numbers[role][what].target for what in ("lr", "eps", "decay"))
    torch.optim.AdamW(p.param_groups())


def test_initial_values_have_the_stds_of_the_recipe(numbers):
    model, p = made(numbers)
    p.init_(generator=torch.Generator().manual_seed(1))
    assert torch.equal(model.block.norm, torch.ones(32))
    for name in ("block.up", "block.down", "block.gate.weight"):
        wanted = numbers[p[name].role]["init_std"].target
        assert dict(model.named_parameters())[name].std().item() == pytest.approx(wanted, rel=0.1)


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
    assert p.multipliers["out"] == pytest.approx(1 / 2)
    assert "multiply out by 0.5 in the model" in str(p)
    stepped(model, p.param_groups())


def test_a_compiled_model_and_a_wrapped_one_have_the_same_groups(numbers):
    model, p = made(numbers)
    compiled = torch.compile(model, backend="eager")
    assert [g["param_names"] for g in p.param_groups(compiled)] == [g["param_names"] for g in p.param_groups()]
    assert [e.name for e in plan(compiled, numbers, roles=ROLES).entries] == [e.name for e in p.entries]
    stepped(compiled, p.param_groups(compiled))


@pytest.mark.parametrize(
    ("roles", "said"),
    [
        ({k: v for k, v in ROLES.items() if v != "router"}, "no role for parameter block.gate.weight"),
        ({**ROLES, "nowhere": "gain"}, "'nowhere' is the rule of no parameter"),
        ({**ROLES, r"^tokens\.": "embeding"}, "did you mean 'embedding'"),
        ({**ROLES, "(": "gain"}, "no regular expression"),
    ],
)
def test_what_does_not_match_is_an_error_that_names_it(numbers, roles, said):
    with pytest.raises(UsageError, match=said.replace("(", r"\(")):
        plan(Small(), numbers, roles=roles)


LLAMA4 = Small()
LLAMA4.config = type("C", (), {"model_type": "llama4"})()


@pytest.mark.parametrize(
    ("model", "sizes", "options", "said"),
    [
        (Small(), [BASE], {"roles": ROLES}, "give the sizes of the target"),
        (Small(), [BASE, TARGET], {"roles": ROLES, "gauge": "table9", **GIVEN}, "take the gauge table3"),
        (nn.Linear(4, 4, bias=False), [BASE, TARGET], {"roles": {"weight": "hidden"}}, "the model has none"),
        (LLAMA4, [BASE, TARGET], {}, "llama4 has no adapter: its gate scales the input"),
        (Small(), [BASE, TARGET], {"roles": ROLES}, "no lr at the base; give plan"),
    ],
)
def test_missing_numbers_and_sizes_are_errors(model, sizes, options, said):
    with pytest.raises(UsageError, match=said):
        plan(model, *sizes, **options).param_groups()


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
        optimizer = stepped(wrapped, p.param_groups(wrapped), steps=1)
        seen.append([[g["name"], g["param_names"], g["lr"], g["eps"]] for g in optimizer.param_groups])
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


@pytest.mark.parametrize(
    ("family_name", "renormalised", "gate"),
    [
        ("qwen3_moe", True, "1/K"),
        ("qwen3_moe", False, "1/M"),
        ("mixtral", None, "1/K"),
        ("deepseek_v3", True, "1/K"),
        ("deepseek_v3", False, "1"),
    ],
)
def test_what_a_gate_brings_is_read_from_the_configuration(family_name, renormalised, gate):
    config = SimpleNamespace() if renormalised is None else SimpleNamespace(norm_topk_prob=renormalised)
    assert family(family_name, config).gate == gate and gate in AGGREGATION


if __name__ == "__main__":
    worker(*sys.argv[1:3], Path(sys.argv[3]))
