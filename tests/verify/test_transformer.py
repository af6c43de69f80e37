"""The scaled networks: powers, ties, top-K, and a Transformer written out with loops as an independent reference."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from scaling_algebra.errors import UsageError
from scaling_algebra.spec.configuration import Configuration
from scaling_algebra.verify.measuring.text import standard_library, windows
from scaling_algebra.verify.networks.base_shapes import Multipliers, balance, chosen, recipe
from scaling_algebra.verify.networks.transformer import Transformer

BASE = {"N": 8, "N_e": 4, "M": 4, "K": 2}
TINY = {"vocabulary": 11, "context": 6, "blocks": 2, "head": 4}


def network(name="mup", reg="III", width=8, seeds=(0, 1), rule="adamw", base=BASE, **options):
    made = recipe(Configuration.of(reg, rule, name), base, True)
    return Transformer(made, made.dims(width), seeds, "cpu", **{**TINY, **options})


def test_text_is_split_by_file_and_deterministic(tmp_path):
    text = standard_library()
    assert text == standard_library() and len(text.train) > 5 * len(text.held) > 10**5
    assert text.files[1] == sum(text.files) // 10
    for k in range(23):
        (tmp_path / f"{k:02}.py").write_bytes(bytes([97 + k]) * 40)
    found = standard_library(tmp_path)
    assert not set(found.train) & set(found.held) - {10} and found.files == (21, 2)
    cut = windows(found.train, 5, 8, np.random.default_rng(0))
    assert cut.shape == (5, 9) and cut.max() < 256
    with pytest.raises(UsageError, match="shorter"):
        windows(found.held, 1, 10**6, np.random.default_rng(0))
    (tmp_path / "few").mkdir()
    with pytest.raises(UsageError, match="Python files"):
        standard_library(tmp_path / "few")


def test_forward_agrees_with_loops():
    """One replica, one sequence, token by token and expert by expert, from the formulas of the module text."""
    model = network(seeds=(3,))
    w = {k: p.detach()[0].double() for k, p in model.weights.items()}
    w["readout"] = torch.randn(w["readout"].shape, dtype=torch.float64)
    model.double().weights["readout"].data[0] = w["readout"]
    tokens = [3, 1, 4, 1, 5, 9]

    def norm(v):
        return v / (v.square().mean() + torch.finfo(v.dtype).eps).sqrt()

    x = [w["embedding"][t] + w["position"][k] for k, t in enumerate(tokens)]
    for block in range(2):
        seen = [norm(v) for v in x]
        parts = {p: [w[f"{p}_{block}"] @ v for v in seen] for p in ("query", "key", "value")}
        for t in range(len(x)):
            mixed = []
            for h in range(0, 8, 4):
                q = norm(parts["query"][t][h : h + 4])
                scores = torch.stack([q @ norm(parts["key"][s][h : h + 4]) / 2 for s in range(t + 1)]).softmax(0)
                mixed.append(sum(a * parts["value"][s][h : h + 4] for s, a in enumerate(scores)))
            x[t] = x[t] + w[f"mix_{block}"] @ torch.cat(mixed)
        for t, v in enumerate(map(norm, x)):
            psi = w[f"router_{block}"] @ v
            for i in psi.argsort(descending=True)[:2].tolist():
                h2 = w[f"expert_in_{block}"][i] @ v
                gelu = 0.5 * h2 * (1 + torch.erf(h2 / math.sqrt(2)))
                x[t] = x[t] + 0.5 * torch.sigmoid(psi[i]) * w[f"expert_out_{block}"][i].T @ gelu  # multiplier 1/K
    logits = torch.stack([w["readout"] @ norm(v) for v in x])
    found, _ = model(torch.tensor([[tokens]]))
    torch.testing.assert_close(found[0, 0], logits)


def test_replicas_do_not_meet_and_the_future_is_not_seen():
    both, alone = network(seeds=(0, 1)), network(seeds=(1,))
    for model in (both, alone):
        model.weights["readout"].data.fill_(0.1).mul_(torch.arange(8))
    tokens = torch.randint(0, 11, (2, 3, 6), generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(both(tokens)[0][1:], alone(tokens[1:])[0])
    later = tokens.clone()
    later[..., 4:] = (later[..., 4:] + 1) % 11
    change = (both(later)[0] - both(tokens)[0]).abs().amax((0, 1, 3))
    assert (change[:4] < 1e-5).all() and (change[4:] > 1e-4).all()


@pytest.mark.parametrize("reg", ["I", "II", "III"])
@pytest.mark.parametrize("name", ["mup", "mssp", "sp"])
def test_stds_rates_and_epsilons_follow_the_derived_powers(reg, name):
    small, large = (network(name, reg, width, seeds=range(3), base={**BASE, "K": 4}) for width in (8, 32))
    scaling, ray = small.recipe.scaling, small.recipe.configuration.ray
    for key, role in small.roles.items():
        scale = scaling.tensors[role]
        stds = [m.weights[key].std().item() for m in (small, large)]
        if scale.init_std is None:
            assert stds == [0.0, 0.0]
        else:
            assert math.log(stds[1] / stds[0], 4) == pytest.approx(float(scale.init_std.on(ray)), abs=0.15), key
    groups = [m.optimizer(0.01, decay=0.1, betas=(0.9, 0.95)).param_groups for m in (small, large)]
    for key, a, b in zip(small.roles, *groups, strict=True):
        scale = scaling.tensors[small.roles[key]]
        assert math.log(b["lr"] / a["lr"], 4) == pytest.approx(float(scale.lr.on(ray)))
        assert math.log(b["eps"] / a["eps"], 4) == pytest.approx(float(scale.eps.on(ray)))
        assert a["lr"] == pytest.approx(0.01) and a["betas"] == (0.9, 0.95)
        for group in (a, b):
            assert group["lr"] * group["weight_decay"] == pytest.approx(0.001)
    assert math.log(large.multiplier / small.multiplier, 4) == pytest.approx(-float(scaling.alpha.on(ray)))


def test_parameterizations_are_one_network_at_the_base_size():
    mup, sp, mssp = (network(name) for name in ("mup", "sp", "mssp"))
    for key in mup.roles:
        torch.testing.assert_close(mup.weights[key], sp.weights[key])
    experts = mssp.weights["expert_in_0"]
    assert mssp.recipe.scaling.tied == ("expert_in", "expert_out")
    free = mup.weights["expert_in_0"]
    assert (experts == experts[:, :1]).all() and not (free == free[:, :1]).all()


def test_multipliers_multiply():
    plain = recipe(Configuration.of("I", "adam", "mup"), BASE, True)
    tuned = replace(plain, multipliers=Multipliers(2.0, 3.0))
    a, b = (Transformer(r, BASE, [0], "cpu", **TINY) for r in (plain, tuned))
    torch.testing.assert_close(2 * a.weights["mix_0"], b.weights["mix_0"])
    assert b.multiplier == pytest.approx(3 * a.multiplier)


def test_fewer_active_experts_change_the_aggregation_alone():
    asked = Configuration.of(None, "adamw", "mup", ray="N=1,N_e=1,M=1,K=1/2")
    sparse = recipe(asked, {**BASE, "M": 8, "K": 2}, True)
    assert sparse.dims(32) == {"N": 32, "N_e": 16, "M": 32, "K": 4}
    wide = Transformer(sparse, sparse.dims(32), [0], "cpu", **TINY)
    assert wide.multiplier == pytest.approx(1 / 4)
    _, layers = wide.stream(torch.randint(0, 11, (1, 2, 6)))
    assert all(((layer.gates > 0).sum(-1) == 4).all() for layer in layers)


def test_top_k_and_load_balance():
    psi = torch.tensor([[[3.0, 1.0, 2.0, 0.0], [0.0, 1.0, 2.0, 3.0]]])
    assert chosen(psi, 2).tolist() == [[[1, 0, 1, 0], [0, 0, 1, 1]]]
    even = torch.zeros(1, 4, 4)
    assert balance(even, torch.eye(4)[None]).item() == pytest.approx(1)
    crowded = 9 * torch.tensor([1.0, -1, -1, -1]).expand(1, 4, 4)
    assert balance(crowded, chosen(crowded, 1)).item() == pytest.approx(4, rel=1e-2)
