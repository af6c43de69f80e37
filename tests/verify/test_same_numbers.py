"""One module, one answer: ``derive``, ``recipe``, ``plan``, ``explain`` and ``check-model`` give the numbers of a
parameter as the module has it, whatever factor of its own the module multiplies it by."""

import math

import pytest

torch = pytest.importorskip("torch")

from torch import nn

from scaling_algebra import derive, explain, plan
from scaling_algebra.errors import UsageError
from scaling_algebra.recipes.recipe import recipe
from scaling_algebra.spec.networks.files import as_toml, from_toml
from scaling_algebra.spec.powers import Power
from scaling_algebra.verify.apply import checking, model_training
from scaling_algebra.verify.tracing.readings import read_module


def linear(i, o):
    return nn.Linear(i, o, bias=False)


class FactoredLora(nn.Module):
    """A low-rank path beside a frozen matrix, times ``scale``."""

    def __init__(self, n, rank, scale):
        super().__init__()
        self.inp, self.base, self.head = linear(5, n), linear(n, n), linear(n, 3)
        self.A, self.B, self.scale = linear(n, rank), linear(rank, n), scale
        nn.init.zeros_(self.B.weight)
        for layer in (self.inp, self.base, self.head):
            layer.requires_grad_(False)

    def forward(self, x):
        h = self.inp(x)
        return self.head(torch.tanh(self.base(h) + self.scale * self.B(self.A(h))))


class FactoredChain(nn.Module):
    """Three matrices, each times a factor of its own."""

    def __init__(self, n, *times):
        super().__init__()
        self.one, self.two, self.three, self.times = linear(5, n), linear(n, n), linear(n, 3), times

    def forward(self, x):
        a, b, c = self.times
        return c * self.three(torch.tanh(b * self.two(torch.tanh(a * self.one(x)))))


class FactoredMixture(nn.Module):
    """Experts, each times ``after``, and a router whose logits are multiplied by ``router``."""

    def __init__(self, n, e, m, router, after):
        super().__init__()
        self.inp, self.gate, self.head = linear(5, n), linear(n, m), linear(n, 3)
        self.up, self.down = (nn.Parameter(torch.randn(m, *x) * x[1] ** -0.5) for x in ((e, n), (n, e)))
        self.router, self.after = router, after

    def forward(self, x):
        h = torch.tanh(self.inp(x))
        gates = torch.sigmoid(self.router * self.gate(h))
        inner = torch.tanh(torch.einsum("eki,bi->ebk", self.up, h))
        out = self.after * torch.einsum("enk,ebk->ebn", self.down, inner)
        return self.head(torch.einsum("be,ebn->bn", gates, out) / gates.shape[-1])


class Words(nn.Module):
    """An embedding times ``tokens``, places times ``places``, and one hidden matrix."""

    def __init__(self, n, tokens, places):
        super().__init__()
        self.tok, self.pos = nn.Embedding(32, n), nn.Parameter(torch.randn(5, n))
        self.w, self.head, self.times = linear(n, n), linear(n, 32), (tokens, places)

    def forward(self, ids):
        h = self.times[0] * self.tok(ids) + self.times[1] * self.pos
        return self.head(torch.tanh(self.w(h)))


WIDE = "N=16", "N=64"
MODULES = {  # build, base, target, optimizer, and by hand the factor of a rate: (parameter, rate, init std)
    "LoRA": (lambda z: FactoredLora(z["N"], z["rank"], 8 / z["rank"]), "N=16,rank=4", "N=64,rank=16", "adamw",
             [("B.weight", 1, 0), ("A.weight", 1 / 4, 1 / 2)]),
    "rsLoRA": (lambda z: FactoredLora(z["N"], z["rank"], z["rank"] ** -0.5), "N=16,rank=4", "N=64,rank=16", "adamw",
               [("B.weight", 1 / 2, 0), ("A.weight", 1 / 4, 1 / 2)]),
    "LoRA with SGD": (lambda z: FactoredLora(z["N"], z["rank"], 8 / z["rank"]), "N=16,rank=4", "N=64,rank=16", "sgd",
                      [("B.weight", 16, 0)]),
    "readout of mup": (lambda z: FactoredChain(z["N"], 1, 1, 1 / z["N"]), *WIDE, "adamw",
                       [("three.weight", 1, 1), ("two.weight", 1 / 4, 1 / 2)]),
    "readout, SGD": (lambda z: FactoredChain(z["N"], 1, 1, 1 / z["N"]), *WIDE, "sgd", [("three.weight", 4, 1)]),
    "NTK": (lambda z: FactoredChain(z["N"], 1, z["N"] ** -0.5, z["N"] ** -0.5), *WIDE, "adamw",
            [("two.weight", 1 / 2, 1), ("three.weight", 1 / 2, 1 / 2)]),
    "Muon": (lambda z: FactoredChain(z["N"], 1, 4 * z["N"] ** -0.5, 1), *WIDE, "muon+adamw", [("two.weight", 2, 1)]),
    "Gemma": (lambda z: Words(z["N"], z["N"] ** 0.5, 1), *WIDE, "adamw",
              [("tok.weight", 1 / 2, 1 / 2), ("pos", 1, 1), ("w.weight", 1 / 4, 1 / 2)]),
    "places": (lambda z: Words(z["N"], 1, z["N"] ** -0.5), *WIDE, "adamw", [("pos", 2, 2), ("tok.weight", 1, 1)]),
    "experts": (lambda z: FactoredMixture(z["N"], z["N_e"], z["M"], 1 / z["N"], z["N_e"] ** -0.5),
                "N=16,N_e=16,M=4", "N=64,N_e=64,M=4", "adamw",
                [("down", 1 / 2, 1), ("gate.weight", 1, 1), ("up", 1 / 4, 1 / 2)]),
}  # fmt: skip


def rates_of_check(build, base, target, optimizer, monkeypatch):
    """The learning rates and initial sizes that ``check_model`` trains with, by parameter, at its last size over its
    first one; no step is taken."""
    sizes, found = [], {}

    class Enough(Exception):
        pass

    def drawn(p, zero, seed):
        made = set_(p, zero, seed)
        groups = [group for part in model_training.list_optimizers(made) for group in part.param_groups]
        rates = {id(x): group["lr"] for group in groups for x in group["params"]}
        found[at := str(dict(p.recipe.way.target))] = {e.name: rates[id(e.tensor)] for e in p.entries if not e.frozen}
        sizes.append(at)
        if p.recipe.way.target == checking.read_sizes(target, "target"):
            raise Enough
        return made

    set_ = model_training.apply_plan
    monkeypatch.setattr(model_training, "apply_plan", drawn)
    monkeypatch.setattr(model_training, "train_steps", lambda *_: iter(()))
    with pytest.raises(Enough):
        checking.check_model(build, base, target, seeds=4, optimizer=optimizer)
    first, last = found[sizes[0]], found[sizes[-1]]
    return {name: last[name] / first[name] for name in first}


@pytest.mark.parametrize("name", MODULES)
def test_every_verb_gives_the_numbers_of_the_parameter_itself(name, monkeypatch):
    build, base, target, optimizer, by_hand = MODULES[name]
    network = read_module(build).network
    assert network.multiplied.keys() & {x for x, *_ in by_hand}
    d = derive(None, optimizer, "mup", ray=recipe(base, target, optimizer, network=network).way.ray, network=network)
    r, p = recipe(base, target, optimizer, network=network), plan(build, base, target, optimizer=optimizer)
    again = derive(None, optimizer, "mup", ray=d.ray, network=from_toml(as_toml(network)))
    trained = rates_of_check(build, base, target, optimizer, monkeypatch)
    for role, t in d.tensors.items():
        assert (again[role].lr, again[role].init_std, again[role].eps) == (t.lr, t.init_std, t.eps)
        for what, power in {"lr": t.lr, "init_std": t.init_std, "eps": t.eps}.items():
            if what in r[role] and power is not None:
                assert power == r[role][what].rule == p[role].settings[what].rule, (role, what)
        if t.lr is not None:
            assert trained[role] == pytest.approx(r[role]["lr"].factor), role
            assert "multiplier" not in r[role] and not t.multiplier.terms
    for role, rate, std in by_hand:
        assert math.isclose(r[role]["lr"].factor, rate) and math.isclose(r[role]["init_std"].factor, std), role


def test_an_explanation_has_the_number_of_the_parameter_and_that_of_the_product():
    network = read_module(MODULES["LoRA"][0]).network
    said = explain("B.weight.lr", None, "adamw", "mup", ray="N=1,rank=1", network=network)
    assert "value: 1\nthe module multiplies B.weight by rank^-1; of the product: rank^-1" in str(said)
    assert said.document().record["value"] == {} and said.value == Power.of({"rank": -1})


def test_what_a_module_multiplies_is_not_held():
    network = read_module(MODULES["LoRA"][0]).network
    with pytest.raises(UsageError, match=r"fix B\.weight\.lr: the module multiplies B\.weight by rank\^-1; remove"):
        derive(None, "adamw", "mup", ray="N=1,rank=1", network=network, given={"B.weight.lr": "1"})
    frozen = derive(None, "adamw", "mup", ray="N=1,rank=1", network=network, given={"B.weight.init": 0})
    assert frozen["B.weight"].lr == Power()


def test_in_another_gauge_what_the_module_has_is_part_of_it():
    network = read_module(MODULES["readout of mup"][0]).network
    d = derive(None, "adamw", "mup", ray="N=1", network=network)
    assert d.in_gauge("table8")["three.weight"] == d["three.weight"]
    half = d.in_gauge("table9")["three.weight"]
    assert half.multiplier == Power.parse("N^1/2") and half.init_std == Power.parse("N^-1/2")
