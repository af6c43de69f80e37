"""Checks by training: models of one's own, what they must be, the plugin of pytest; families of transformers."""

import re
import subprocess
import sys
from functools import partial

import pytest

torch = pytest.importorskip("torch")

from torch import nn

from scaling_algebra.errors import UsageError
from scaling_algebra.recipes.recipe import recipe
from scaling_algebra.spec.powers import Power
from scaling_algebra.verify.apply.checking import LAYERS, between, check_model
from scaling_algebra.verify.apply.contract import examined
from scaling_algebra.verify.apply.families import build_family, roles_of
from scaling_algebra.verify.apply.loading import load
from scaling_algebra.verify.apply.predictions import predicted
from scaling_algebra.verify.judging.fit import Verdict

from ..docs.pages import ROOT, write_files

pytest_plugins = ("pytester",)

DENSE = ("N=32", "N=128")
EXPERTS = ("N=32,N_e=32,M=4,K=2", "N=128,N_e=128,M=4,K=2")
SIZE = {"N": 8, "N_e": 6, "M": 4, "K": 2}


def checked(family, sizes, **given):
    pytest.importorskip("transformers")
    return check_model(partial(build_family, family), *sizes, seeds=4, **given)


@pytest.mark.parametrize(("family", "sizes"), [("llama", DENSE), ("mixtral", EXPERTS), ("qwen3_moe", EXPERTS)])
def test_a_recipe_holds_on_a_family_and_the_default_does_not(family, sizes):
    report = checked(family, sizes)
    assert not report.tally.refuted
    assert report.tally.exponents[Verdict.AGREES] >= 0.9 * report.tally.judged
    gates = {g.name: g for g in report.gates}
    assert gates["standard parameterization refuted"].passed and gates["planted wrong exponents refuted"].passed


@pytest.mark.parametrize(
    ("role", "what", "part"),
    [
        ("router", "lr", "mlp.gate.update"),
        ("router", "init_std", "mlp.gate.init"),
        ("expert_out", "lr", "mlp.experts.A3"),
        ("expert_in", "lr", "mlp.experts.A2.2"),
        ("hidden", "lr", "self_attn.q_proj.update"),
    ],
)
def test_a_planted_rule_is_refuted_where_it_is_planted(role, what, part):
    report = checked("mixtral", EXPERTS, rules={role: {what: Power()}})
    assert report.exit_code == 1
    verdicts = {(r.quantity, r.step): r.verdict for r in report.rows}
    assert verdicts[f"layer0.{part}", 0 if what == "init_std" else 2] is Verdict.REFUTED


def test_the_gate_of_a_family_decides_what_a_router_passes_on():
    """A softmax over the chosen experts takes away what all of them share; held gates do not know of it."""
    numbers = recipe("N=32,N_e=32,M=4,K=2", "N=64,N_e=64,M=4,K=2", readout_init="zero", epsilon="negligible")
    held, chosen, whole = (predicted(numbers, gate) for gate in ("", "1/K", "1/M"))
    assert held["router", "propagating"][2] == 0
    # behind a softmax the square of a sign counts for nothing known: at t = 2 nothing is claimed
    assert len(chosen["router", "propagating"]) == len(whole["router", "propagating"]) == 2
    assert chosen["router", "update"][2] == held["router", "update"][2] == 0


# a model of one's own -------------------------------------------------------------------------------------------------


class Mix(nn.Module):
    """A router and its experts in one module; experts in a list, or stacked; the router a module, or its weight."""

    def __init__(self, gate="1/K", stacked=True, more=0.0, bare=False):
        super().__init__()
        n, n_e, m, self.k = SIZE.values()
        self.kind, self.more, self.route = gate, more, nn.Linear(n, m, bias=False)
        if bare:
            weight = self.route.weight
            del self.route
            self.route = weight
        if stacked:
            self.a, self.b = nn.Parameter(torch.randn(m, n_e, n)), nn.Parameter(torch.randn(m, n, n_e))
        else:
            self.a, self.b = (
                nn.ModuleList(nn.Linear(*io, bias=False) for _ in range(m)) for io in ((n, n_e), (n_e, n))
            )

    def forward(self, x):
        logits = self.route(x) if isinstance(self.route, nn.Module) else x @ self.route.T
        top, chosen = logits.topk(self.k)
        weight = {"1/K": top.softmax(-1), "1/M": logits.softmax(-1).gather(-1, chosen), "1": top.sigmoid()}[self.kind]
        gates = torch.zeros_like(logits).scatter(-1, chosen, weight)
        a, b = ((w if isinstance(w, torch.Tensor) else torch.stack([x.weight for x in w])) for w in (self.a, self.b))
        return torch.einsum("bte,enk,eki,bti->btn", gates, b, a, x) + self.more * x


class Layer(nn.Module):
    def __init__(self, mix):
        super().__init__()
        self.mix = mix

    def forward(self, h):
        return h + self.mix(h)


class Own(nn.Module):
    """A model of one's own; its head is called, used by its weight alone, or left out."""

    def __init__(self, mix, words=64, head="called"):
        super().__init__()
        self.tokens, self.blocks = nn.Embedding(words, 8), nn.ModuleList([Layer(mix)])
        self.head, self.read = nn.Linear(8, words, bias=False), head

    def forward(self, ids):
        h = self.blocks[0](self.tokens(ids))
        return {"called": self.head, "weight": lambda h: h @ self.head.weight.T, "none": lambda h: h}[self.read](h)


class Narrow(nn.Module):
    """A map to few entries within a layer, which scales as a readout, and the way back."""

    def __init__(self, n, rank):
        super().__init__()
        self.tokens, self.layers = nn.Embedding(64, n), nn.ModuleList([nn.Linear(n, n)])
        self.small, self.back = nn.Linear(n, rank, bias=False), nn.Linear(rank, n, bias=False)
        self.head = nn.Linear(n, 64, bias=False)

    def forward(self, ids):
        h = self.layers[0](self.tokens(ids))
        return self.head(h + self.back(self.small(h)))


@pytest.mark.parametrize("rank", [8, 64])
def test_only_the_map_that_gives_the_logits_is_judged_as_a_readout(rank):
    """Rows of words are those of the last; a matrix within a layer has few rows, or as many as there are words."""
    roles = {"tokens": "embedding", "small": "readout", "back": "hidden_out", "head": "readout"}
    roles |= {"layers.0.weight": "hidden", "layers.0.bias": "bias"}
    with pytest.raises(UsageError, match=r"^small \(readout\) does not give the logits: .*derive"):
        check_model(lambda sizes: Narrow(sizes["N"], rank), *DENSE, roles=roles)


OWN = {"tokens": "embedding", "route": "router", r"\.a\b": "expert_in", r"\.b\b": "expert_out", "head": "readout"}


@pytest.fixture(scope="module")
def numbers():
    return recipe(*EXPERTS, readout_init="zero", epsilon="negligible")


@pytest.mark.parametrize("stacked", [True, False])
@pytest.mark.parametrize("gate", ["1/K", "1/M", "1"])
def test_experts_are_found_by_shape_and_their_gate_is_measured(numbers, stacked, gate):
    found = examined(lambda s: Own(Mix(gate, stacked)), SIZE, numbers, OWN, LAYERS)
    assert found.stacks == ("blocks.0.mix",) and found.gate == gate


def ends():
    """A model whose forward pass ends the program, as if all were well."""
    model = Own(Mix())
    model.forward = lambda ids: sys.exit(0)
    return model


def lacking(model):
    return model, torch.optim.AdamW(list(model.parameters())[1:])


@pytest.mark.parametrize(
    ("built", "roles", "said"),
    [
        (lambda s: {}, OWN, r"build\(.*\) returns {}; return a torch.nn.Module"),
        (lambda s: (nn.Linear(2, 2), 3), OWN, r"returns \(Linear, int\)"),
        (lambda s: s["heads"], OWN, "raises KeyError: 'heads'"),
        (lambda s: exit(0), OWN, r"build\(.*\) ends the program"),
        (lambda s: ends(), OWN, "the model ends the program"),
        (lambda s: lacking(Own(Mix())), OWN, "the optimizer lacks tokens.weight"),
        (lambda s: Own(Mix()), {**OWN, r"\.b\b": "hidden_out"}, "no module that is called has 4 experts"),
        (lambda s: Own(Mix()), {k: v for k, v in OWN.items() if k != "head"}, "no role .* head.weight"),
        (lambda s: Own(Mix(more=1.0)), OWN, "blocks.0.mix returns more than the sum over its experts"),
        (lambda s: Own(Mix(bare=True)), OWN, r"blocks.0.mix.route \(router\) is a bare parameter"),
        (lambda s: Own(Mix(), words=32), OWN, "the model raises IndexError.*let it take ids of shape"),
        (lambda s: Own(Mix(), head="weight"), OWN, r"head \(readout\) is never called"),
        (lambda s: Own(Mix(), head="none"), OWN, r"to \(1, 4, 8\); return logits of shape"),
        (lambda s: Own(Mix()), None, "no module that is called matches layers='none'"),
    ],
)
def test_what_breaks_the_contract_is_one_line_before_training(numbers, built, roles, said):
    with pytest.raises(UsageError, match=said) as error:
        examined(built, SIZE, numbers, roles or OWN, LAYERS if roles else "none")
    assert "\n" not in str(error.value)


def test_sizes_lie_on_a_ray_and_are_whole():
    middle = between({"N": 32, "N_e": 8, "M": 4, "K": 2}, {"N": 128, "N_e": 8, "M": 16, "K": 2}, 3)[1]
    assert middle == {"N": 64, "N_e": 8, "M": 8, "K": 2}
    for base, target, points, said in (
        ({"N": 32}, {"N": 128}, 1, "points is 1"),
        ({"N": 32, "L": 2}, {"N": 128, "L": 4}, 3, "the depth L grows"),
        ({"N": 32, "N_e": 8, "M": 4, "K": 2}, {"N": 128, "N_e": 8, "M": 12, "K": 2}, 3, "lie on no ray"),
        ({"N": 2}, {"N": 6}, 3, "no 3 whole sizes"),
    ):
        with pytest.raises(UsageError, match=said):
            between(base, target, points)


def test_a_model_that_cannot_be_loaded_is_one_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    texts = {"a": "import nowhere", "b": "build = 3", "c": "def build(s): ...\nSCALING = {'bas': 1}"}
    texts |= {"e": "print('agrees'); raise SystemExit", "f": "class Stop(BaseException): ...\nraise Stop('here')"}
    for name, text in texts.items():
        (tmp_path / f"{name}.py").write_text(text)
    for text, said in (
        ("build", "write FILE.py:NAME"),
        ("d.py:build", "no file d.py"),
        ("nowhere.at.all:build", "nowhere.at.all raises ModuleNotFoundError"),
        ("a.py:build", "a.py raises ModuleNotFoundError: No module named 'nowhere'"),
        ("b.py:build", "build is 3, no function"),
        ("e.py:build", "e.py ends the program; it must run by itself"),
        ("f.py:build", "f.py raises Stop: here"),
        ("c.py:build", "no keyword in SCALING of c.py named 'bas'; did you mean 'base'"),
    ):
        with pytest.raises(UsageError, match=re.escape(said)):
            load(text, {"base": "N=8", "target": "N=16"})
    with pytest.raises(UsageError, match="no base of b"):
        (tmp_path / "b.py").write_text("from builtins import print")
        load("b.py:print", {})


def test_the_plugin_passes_what_scales_and_fails_a_planted_rate(pytester):
    """The model of the guide: alone, and with one rate that does not scale."""
    write_files(ROOT / "docs" / "guide" / "check.md", pytester.path)
    pytester.makepyfile(test_own="def test_scaling(coordinate_check):\n    coordinate_check('mymodel.py:build')\n")
    told = pytester.runpytest_subprocess("--scaling-model", "wrong.py:build", "--scaling-model", "none.py:build")
    told.assert_outcomes(passed=1, failed=2)
    told.stdout.re_match_lines(
        [r".*layer0\.moe\.A3 .*REFUTED", r".*no file none\.py", r"FAILED wrong\.py::build - Failed: REFUTED: "]
    )


def test_the_plugin_costs_nothing_where_it_is_not_used():
    heavy = {"torch", "sympy", "numpy", "z3", "click"}
    code = f"import sys, scaling_algebra.pytest_plugin; assert not {heavy} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_bad_input():
    with pytest.raises(UsageError, match="jetmoe has no adapter"):
        roles_of("jetmoe")
    with pytest.raises(UsageError, match="did you mean 'mixtral'"):
        build_family("mixtrl", {"N": 32})
    with pytest.raises(UsageError, match="no family to check named 'mistral'"):
        build_family("mistral", {"N": 32})
