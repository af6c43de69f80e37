"""Recipes: the ray between two models, numbers of every tensor, files, and everything that can be wrong with them."""

import json
import math
import tomllib
from dataclasses import replace
from fractions import Fraction
from functools import partial
from itertools import permutations, product

import pytest

from scaling_algebra import Power, UsageError, derive, recipe
from scaling_algebra.recipes.recipe import with_either_epsilon
from scaling_algebra.recipes.sizes import read_sizes, through, way
from scaling_algebra.spec.networks.files import from_toml
from scaling_algebra.spec.networks.language import TRACED
from scaling_algebra.spec.networks.library import MOE_BLOCK

from ..shared import scalecalc

BASE, TARGET = "N=1024,N_e=512,M=64,K=8", "N=4096,N_e=1024,M=256,K=8"
TUNED = {"lr": 3e-3, "eps": 1e-8, "std": 0.02, "decay": 0.1}

run = partial(scalecalc, "recipe")


@pytest.fixture(scope="module")
def found():
    return recipe(BASE, TARGET, "adamw", **TUNED)


def test_every_number_is_the_derived_power_of_the_ratio(found):
    ray = "N=1,N_e=1/2,M=1,K=0"
    own = {**derive(ray=ray, optimizer="adamw", architecture="deep-mlp", parameterization="mup").scaling.tensors}
    own |= derive(ray=ray, optimizer="adamw", architecture="deep-moe", parameterization="mup").scaling.tensors
    ratio = {"N": 4, "N_e": 2, "M": 4, "K": 1}
    assert str(found.way.ray) == f"{ray},L=0" and found.way.exact
    for role, t in own.items():
        wanted = {"init_std": t.init_std, "lr": t.lr, "eps": t.eps, "decay": 1 / t.lr}
        for what, power in wanted.items():
            setting = found[role][what]
            assert setting.rule == power, (role, what)
            factor = math.prod(ratio[axis] ** float(e) for axis, e in power.terms)
            assert setting.factor == pytest.approx(factor), (role, what)
            tuned = TUNED["std" if what == "init_std" else what]
            if what != "init_std" or role not in ("gain", "final_gain", "bias"):
                assert setting.target == pytest.approx(tuned * factor)
            else:
                assert setting.target is None  # norms start at one, biases at zero
        lr, decay = found[role]["lr"], found[role]["decay"]
        assert lr.target * decay.target == pytest.approx(lr.base * decay.base)  # torch multiplies them


def test_a_wrong_power_would_be_seen(found):
    """Negative control of the test above: another power of another axis has another factor."""
    assert found["expert_out"]["lr"].rule != Power.parse("N^-1")
    assert found["expert_out"]["lr"].factor != pytest.approx(1 / 4)


def test_values_by_role():
    r = recipe("N=256,L=2", "N=1024,L=8", lr={"": 1e-3, "embedding": 1e-2})
    assert r["hidden"]["lr"].target == pytest.approx(1e-3 / 4) and r["embedding"]["lr"].target == 1e-2
    assert r["hidden"]["init_std"].target is None and r["hidden"]["init_std"].factor == 0.5
    assert r.multipliers["res"].factor == 0.25 and str(r.multipliers["res"].rule) == "L^-1"
    assert "router" not in r.tensors  # no experts, no router


def test_the_more_specific_name_wins():
    decay = {"hidden": 0.3, "": 0.1, "*gain": 0, "hid*": 0.5, "*": 0.2, "final_*": 0.4}
    r = recipe("N=256", "N=1024", "adamw", lr=1e-3, eps=1e-8, decay=decay)
    found = {role: r[role]["decay"].base for role in ("embedding", "gain", "hidden", "hidden_out", "final_gain")}
    assert found == {"embedding": 0.2, "gain": 0, "hidden": 0.3, "hidden_out": 0.5, "final_gain": 0.4}
    assert r["gain"]["decay"].target == 0
    for wrong, said in (
        ({"*gian": 0}, r"named '\*gian'; did you mean 'gain'"),
        ({"gain": -1}, "number or 0 up to 1e9"),
    ):
        with pytest.raises(UsageError, match=said):
            recipe("N=256", "N=1024", "adamw", decay=wrong)
    with pytest.raises(UsageError, match="lr of gain is 0; give a positive number up to 1e9"):
        recipe("N=256", "N=1024", "adamw", lr={"gain": 0})


def test_one_std_for_all_is_not_that_of_gains_and_biases():
    """Whatever their names are. One that is named has its own."""
    text = "h[a] = E[a,x] data[x]\nu[b] = W[b,a] h[a] + c[b] C\nv[b] = m[b] u[b]\nf = U[b] v[b]"
    axes = 'constants = ["C"]\naxes = { a = "N", b = "N", x = "D" }'
    mine = from_toml(f"{axes}\nequations = '''{text}'''", "m.toml", "m")
    r = recipe("N=64", "N=256", network=mine, lr=1e-3, std=0.02)
    assert {role: r[role]["init_std"].base for role in r.tensors} == dict.fromkeys("EWU", 0.02) | dict.fromkeys("cm")
    assert recipe("N=64", "N=256", network=mine, std={"m": 1.0})["m"]["init_std"].target == 1


def test_the_configuration_that_is_the_model_says_the_base_sizes(tmp_path):
    (tmp_path / "c.json").write_text('{"model_type": "mixtral"}')
    wrong = run("--model", f"hf:{tmp_path / 'c.json'}", "--target", "N=64")
    assert wrong.exit_code == 2 and "the target does not; add N_e=14336,M=8,K=2,L=32 to the" in wrong.output


def test_batch_and_tokens_multiply():
    """Factors of the horizon, within those of the sizes; nothing else changes."""
    plain, more = (recipe("N=256", "N=1024", "adamw", **x) for x in ({}, {"batch": (256, 1024), "tokens": (20, 200)}))
    wanted = {"init_std": 1.0, "lr": 2.0, "eps": 0.5, "decay": 0.2}
    for role, settings in plain.tensors.items():
        for what, setting in settings.items():
            assert more[role][what].factor == pytest.approx(setting.factor * wanted[what]), (role, what)
    assert more.run["adamw"]["one_minus_beta2"] == 4 and not plain.run
    half = recipe("N=256", "N=1024", "muon+adamw", batch=(256, 1024), hold=["half-life"])
    assert half.run["muon"] == {"lr": 1, "beta1_power": 4, "wd": 1, "warmup": 1} and half.run["adamw"]["eps"] == 1
    assert "beta1 to the power of 4, beta2 to the power of 4" in "".join(half.by_run) and "1-beta" not in str(
        half.by_run
    )
    both = recipe("N=256", "N=1024", "muon:original+adamw", batch=(256, 1024), tokens=(20, 200))
    for role, settings in both.tensors.items():
        assert ("eps" in settings) == (role not in ("hidden", "hidden_out"))
        if role in ("hidden", "embedding"):
            assert settings["lr"].factor == pytest.approx(settings["lr"].rule.ratio({"N": 256}, {"N": 1024}) * 2)
    (numbers, betas, means) = recipe("N=64,N_e=64,M=8,K=2", "N=128,N_e=64,M=32,K=2", batch=(64, 1024)).by_run
    assert numbers.endswith("contained in the numbers: lr 4, eps 0.25")
    assert "recipe --hold sde --experts" in means and "K/M" not in "".join(both.by_run)
    assert "1-beta1 times 16, 1-beta2 times 16, warmup times 0.0625, which needs betas of 0.9375 or more" in betas
    with pytest.raises(UsageError, match="there are no rules for batch and tokens with lion"):
        recipe("N=256", "N=1024", "lion", batch=(1, 2))


def test_another_batch_at_the_same_sizes_grows_along_no_ray():
    same = "N=64,N_e=32,M=8,K=2"
    r = recipe(same, same, "adamw", lr=1e-3, batch=(64, 128))
    assert r.instead is None and not r.missing and not r.breaks
    factors = {settings["init_std"].factor for settings in r.tensors.values()}
    assert factors == {1.0} and r.tensors["hidden"]["lr"].target == pytest.approx(1e-3 * 2**0.5)


def test_rows_have_level_multipliers_and_betas_and_no_column_twice(tmp_path):
    asked = ("--base", "N=64,N_e=64,M=8", "--target", "N=128,N_e=64,M=32", "--optimizer", "adamw", "--batch", "64:128")
    asked = (*asked, "--architecture", "moe")
    header, *rows = (line.split(",") for line in run(*asked, "--format", "csv").stdout.splitlines())
    assert not [x for x in header if x.endswith("_value")] and header.count("lr.factor") == 1
    found = {row[0]: dict(zip(header, row, strict=True)) for row in rows}
    assert (found["alpha"]["multiplier.rule"], found["alpha"]["multiplier.factor"]) == ("M^-1", "0.25")
    assert {x["level"] for x in found.values()} == {"certified"}
    assert found["router"]["adamw.one_minus_beta1_factor"] == "2.0"
    assert "plan(model, base, target).export('torchtitan')" in run(*asked, "--format", "torchtitan").output
    said = run(*asked, "--hold", "all").output
    assert "lr^2/B (sde) and T*lr^2/B (sde-time) cannot both stay" in said
    (tmp_path / "t.toml").write_text("N = 64\nbeta1 = 0.9\n")
    assert (
        "t.toml gives beta1, but the file of a model may have only sizes, lr"
        in run("--base", str(tmp_path / "t.toml")).output
    )
    odd = config(tmp_path, model_type="llama", num_attention_heads=16, num_key_value_heads=5)
    assert "16 num_attention_heads and 5 num_key_value_heads" in run("--base", "N=64", "--target-hf", odd).output


def test_sides_of_walls_are_kept_exactly():
    """M + N_e = N is on the wall, however awkward the numbers; one more expert is not."""
    on, _ = through({"N": Fraction(35, 3), "N_e": Fraction(5), "M": Fraction(7, 3)})
    off, _ = through({"N": Fraction(35, 3), "N_e": Fraction(5), "M": Fraction(8, 3)})
    assert on["N"] == on["N_e"] + on["M"] and off["N"] < off["N_e"] + off["M"]


@pytest.mark.parametrize("n, e, m", [*product((2, 3, 8), (1, 2, 9), (1, 4, 6))])
def test_rays_are_the_logarithms(n, e, m):
    ray, exact = through({"N": Fraction(n), "N_e": Fraction(e), "M": Fraction(m)})
    largest = max(n, e, m)
    for axis, ratio in {"N": n, "N_e": e, "M": m}.items():
        assert abs(float(ray[axis]) - math.log(ratio, largest)) < (1e-12 if exact else 0.25)
        assert (ray[axis] == 0) == (ratio == 1)


def test_an_axis_that_shrinks_has_two_formulas():
    """Eight wide experts to 64 narrow ones: every factor is the ratio of what each side has by its own sizes."""
    r = recipe("N=4096,N_e=14336,M=8,K=2", "N=8192,N_e=2048,M=64,K=8", lr=3e-4)
    out = r["expert_out"]["init_std"]
    assert r.way.ray is None and (str(out.before), str(out.rule)) == ("N^(1/2) N_e^-1", "N_e^(-1/2)")
    assert out.factor == pytest.approx(2048**-0.5 / (4096**0.5 / 14336))
    assert any("no ray leads" in line for line in r.warnings)


def moe_factors(base, target):
    """Every factor of a block with experts; None where no parameterization exists on the ray."""
    back = all(target[axis] <= n for axis, n in base.items())
    r = recipe(*((target, base) if back else (base, target)), "adamw", architecture="moe")
    found = {(role, what): s.factor for role, x in r.tensors.items() for what, s in x.items()}
    found |= {name: s.factor for name, s in r.multipliers.items()}
    return None if r.instead else {name: 1 / x if back else x for name, x in found.items()}


def along_steps(base, target, order):
    """The product of the factors of steps that each change one axis; None where a step has none, or K exceeds M."""
    at, product_of = dict(base), None
    for axis in order:
        after = {**at, axis: target[axis]}
        if after["K"] > after["M"] or (step := moe_factors(at, after)) is None:
            return None
        product_of = step if product_of is None else {name: product_of[name] * x for name, x in step.items()}
        at = after
    return product_of


WAYS = [
    ((64, 128, 8, 2), (64, 64, 16, 4)),  # experts of finer grain
    ((64, 128, 8, 2), (64, 127, 32, 2)),
    ((64, 512, 4, 2), (64, 48, 64, 4)),
    ((256, 64, 16, 4), (256, 512, 4, 2)),
]


@pytest.mark.parametrize(("base", "target"), WAYS)
def test_numbers_are_the_same_along_every_path(base, target):
    """In one step, and one axis after another in every order: over walls, where axes shrink, where K outgrows M."""
    start, end = (dict(zip(("N", "N_e", "M", "K"), sizes, strict=True)) for sizes in (base, target))
    whole = moe_factors(start, end)
    orders = permutations(axis for axis in start if start[axis] != end[axis])
    paths = [x for order in orders if (x := along_steps(start, end, order)) is not None]
    assert paths and all(x == pytest.approx(whole, rel=1e-9) for x in paths)


@pytest.mark.parametrize("axis", ["N", "N_e", "M"])
@pytest.mark.parametrize(("base", "target"), [((64, 128, 8, 2), (64, 128, 32, 2)), ((64, 64, 8, 4), (128, 128, 8, 4))])
def test_a_size_that_changes_little_changes_numbers_little(base, target, axis):
    start, end = (dict(zip(("N", "N_e", "M", "K"), sizes, strict=True)) for sizes in (base, target))
    found = [moe_factors(start, {**end, axis: end[axis] + more}) for more in (-1, 0, 1)]
    known = [x for x in found if x is not None]
    little = (end[axis] + 1) / end[axis]
    assert len(known) > 1 and all(
        x[name] == pytest.approx(known[0][name], rel=3 * little - 3) for x in known for name in x
    )


def test_powers_of_the_sizes_themselves_and_kinks_are_said():
    """M alone grows while it is below N; then past N, where the power of the router is another one."""
    r = recipe("N=64,N_e=128,M=8,K=2,L=2", "N=64,N_e=128,M=32,K=2,L=2")
    assert r["router"]["init_std"].factor == 2 and any("rays of the sizes of base and target" in x for x in r.warnings)
    past = recipe("N=64,N_e=128,M=8,K=2,L=2", "N=64,N_e=128,M=256,K=2,L=2")
    assert past["router"]["init_std"].factor == pytest.approx(8**0.5)
    assert any("a kink between base and target, where powers of router change" in x for x in past.warnings)
    usual = recipe("N=64,N_e=128,M=8,K=2,L=2", "N=128,N_e=256,M=16,K=4,L=2")
    assert not any("kink" in x or "rays of the sizes" in x for x in usual.warnings)


def test_where_none_exists_the_nearest_is_said():
    """A fixed number of experts narrower than the network: the powers of another ray, and what they do not keep."""
    asked = ("--base", "N=1024,N_e=1024,M=8,K=8", "--target", "N=4096,N_e=2048,M=8,K=8", "--format", "json")
    answer = run(*asked)
    assert answer.exit_code == 0 and run(*asked, "--strict").exit_code == 1
    assert "certified on another ray, N=1024" in run(*asked[:-2]).stdout.splitlines()[0]
    assert answer.stderr.count("\n") == 1 and "warning: there is no muP on the ray N=1" in answer.stderr
    assert "grows by a factor of 1.41 from base to target" in answer.stderr
    record = json.loads(answer.stdout)
    assert record["instead"] and "h1 stays O(1)" in record["missing"]
    grown = {x["signal"]: x["factor"] for x in record["breaks"]}
    assert grown["h2"] == pytest.approx(2**0.5)


def test_where_none_has_a_derived_epsilon_that_of_a_negligible_one_is_said(tmp_path):
    """A low rank beside a frozen matrix: what is bounded by epsilon cannot reach both of its sides."""
    file = tmp_path / "adapted.toml"
    file.write_text(
        'axes = { a = "N", b = "N", x = "D", r = "E" }\nfrozen = ["W"]\nzero = ["B"]\nequations = """\n'
        "h[a] = I[a,x] data[x]\nu[a] = relu(h[a])\nw[b] = W[b,a] u[a]\nz[r] = A[r,a] u[a]\ny[b] = B[b,r] z[r]\n"
        's[b] = w[b] + y[b]\nv[b] = relu(s[b])\nf = R[b] v[b]\n"""\n'
    )
    asked = ("--network", str(file), "--optimizer", "adam", "--base", "N=16", "--target", "N=64")
    answer = run(*asked)
    assert (
        answer.exit_code == 3
        and "the numbers below have --epsilon negligible" in answer.stderr
        and "eps" not in answer.stdout
    )
    assert answer.stdout == (given := run(*asked, "--epsilon", "negligible")).stdout and not given.stderr
    derived = run(*asked, "--epsilon", "derived")
    assert derived.exit_code == 1 and "no common solution" in derived.stderr


@pytest.mark.parametrize("rule, warned", [("muonh", True), ("muon", False)])
def test_a_norm_that_stays_is_said(rule, warned):
    lines = recipe("N=64", "N=128", rule, architecture="mlp").warnings
    assert any(x.startswith("muonh keeps the initial norm of a tensor, with") for x in lines) == warned


@pytest.mark.parametrize(("name", "said"), [("mine", True), (TRACED, False)])
def test_a_line_on_gates_in_general_is_of_networks_whose_gate_is_held_and_not_read(name, said):
    sizes = "N=64,N_e=64,M=8", "N=128,N_e=128,M=16"
    lines = recipe(*sizes, "sgd", network=replace(MOE_BLOCK, name=name)).warnings
    assert any("a softmax that is renormalised" in x for x in lines) == said


def test_mssp_says_what_is_tied_and_zero():
    r = recipe("N=64,N_e=64,M=8", "N=256,N_e=256,M=32", "adamw", "mssp")
    assert "share their initial values: expert_in, expert_out" in str(r)
    assert r["readout"]["init_std"].rule is None and r["readout"]["init_std"].target == 0.0  # no tuned value is needed


def test_toml_and_python_hold_the_same_numbers(found, tmp_path):
    arguments = ["--base", BASE, "--target", TARGET, "--optimizer", "adamw", "--lr", "3e-3", "--eps", "1e-8"]
    arguments += ["--std", "0.02", "--decay", "0.1"]
    toml = tomllib.loads(run(*arguments, "--format", "toml").output)
    space: dict = {}
    exec(run(*arguments, "--format", "python").output, space)
    assert toml == space["RECIPE"]
    assert toml["tensors"]["router"]["lr"] == found["router"]["lr"].target
    assert toml["multipliers"]["alpha"] == {"factor": 1.0}
    assert run(*arguments, "-o", str(tmp_path / "x.toml")).exit_code == 0
    assert tomllib.loads((tmp_path / "x.toml").read_text()) == toml


def test_a_file_is_what_the_options_are(tmp_path):
    file = tmp_path / "base.toml"
    file.write_text("N = 256\nL = 2\nstd = 0.02\n[lr]\nall = 1e-3\nembedding = 1e-2\n")
    one = run("--base", str(file), "--target", "N=1024,L=8", "--format", "json")
    two = run(
        *("--base", "N=256,L=2", "--target", "N=1024,L=8", "--format", "json"),
        *("--std", "0.02", "--lr", "1e-3", "--lr", "embedding=1e-2"),
    )
    assert one.exit_code == 0 and json.loads(one.output) == json.loads(two.output)


def config(folder, **keys):
    path = folder / f"{len(list(folder.iterdir()))}.json"
    path.write_text(json.dumps(keys))
    return str(path)


def test_published_configurations(tmp_path):
    small = {"model_type": "mixtral", "hidden_size": 1024, "num_hidden_layers": 8, "num_attention_heads": 8}
    small |= {"num_local_experts": 8, "intermediate_size": 2048, "num_experts_per_tok": 2}
    large = {**small, "hidden_size": 2048, "intermediate_size": 4096, "num_hidden_layers": 16}
    asked = ("--base-hf", config(tmp_path, **small), "--target-hf", config(tmp_path, **large), "--format", "json")
    record = json.loads(run(*asked).output)
    said = f"generic Transformer, not of mixtral; give --model hf:{asked[3]} to read the model's own code"
    assert record["warnings"][0].endswith(said)
    assert said not in run(*asked[:4], "--architecture", "qwen3-moe").output
    assert record["base"] == {"N": 1024, "N_e": 2048, "M": 8, "K": 2, "L": 8} and record["ray"]["L"] == "1"
    dense = {"model_type": "llama", "hidden_size": 1024, "num_hidden_layers": 8}
    assert run("--base-hf", config(tmp_path, **dense), "--target", "N=2048,L=8").exit_code == 0


def test_python_refuses_what_the_command_does():
    with pytest.raises(UsageError, match="leave out regime"):
        recipe("N=64", "N=128", regime="I")
    with pytest.raises(UsageError, match="which moe has"):
        recipe("N=64", "N=128", architecture="moe")
    with pytest.raises(UsageError, match="no tensor named"):
        recipe("N=64", "N=128")["nope"]
    for wrong in ((0, 1), None, (1,), (1, float("nan")), ("1", "2")):
        with pytest.raises(UsageError, match=r"give two (positive|finite) numbers"):
            recipe("N=64", "N=128", "adamw", tokens=wrong)
    with pytest.raises(UsageError, match="or a dict"):
        recipe(None, "N=2")
    with pytest.raises(UsageError, match="give an integer"):
        way(read_sizes({"N": 1.5}, "base"), {"N": 2})


def test_at_another_size_all_experts_stay_active_where_they_are():
    sizes = {"N": 64, "N_e": 64, "M": 4}
    one = recipe(sizes, {**sizes, "N": 128}, lr=1e-3, eps=1e-8).at({**sizes, "N": 256})
    assert one.way.target["K"] == one.way.base["K"] == 4


TWO_ADAPTERS = """
name = "two"
axes = { a = "N", b = "N", k = "N_e", x = "D", r = "rank", s = "rank" }
frozen = ["E", "W", "V", "U"]
zero = ["B1", "B2"]
equations = '''
h[a] = E[a,x] data[x]
z[a] = rmsnorm(h[a])
p[r] = A1[r,a] z[a]
w[k] = W[k,a] z[a] + B1[k,r] p[r]
u[k] = relu(w[k])
q[s] = A2[s,k] u[k]
d[b] = V[b,k] u[k] + B2[b,s] q[s]
o[b] = h[b] + d[b]
f    = U[b] o[b]
'''
"""


def test_a_negligible_epsilon_on_the_ray_itself_is_taken_before_a_derived_one_on_another():
    """Two adapters behind each other: on another ray A2 had init N^(-1/2), and its output grew as N^0.34."""
    net, said = from_toml(TWO_ADAPTERS), []
    sizes = "N=64,N_e=128,rank=4", "N=1024,N_e=2048,rank=4"
    r = with_either_epsilon(*sizes, said.append, optimizer="adamw", network=net)
    assert r.instead is None and r.configuration.optimizer.negligible and "epsilon negligible" in said[0]
    assert r.tensors["A2"]["init_std"].factor == r.tensors["A2"]["lr"].factor == 1 / 16
