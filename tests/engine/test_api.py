"""The Python interface: names, arguments, errors, what a notebook shows, and a network of one's own."""

import inspect
import json
import subprocess
import sys
from dataclasses import replace

import click
import pytest
from click.testing import CliRunner

import scaling_algebra
from scaling_algebra import Configuration, Ray, UsageError, derive, explain, prove, signals
from scaling_algebra.cli import main
from scaling_algebra.commands.options import with_configuration
from scaling_algebra.spec.networks.files import as_toml
from scaling_algebra.spec.networks.grammar import network
from scaling_algebra.spec.networks.library import AXES, MOE_BLOCK, architecture

ASKED = ("regime", "optimizer", "parameterization")
MINE = network("mine", "h1[a] = W1[a,x] data[x]\nh2[k] = W2[k,a] h1[a]\nf = W3[k] h2[k]", AXES, title="a title")
MOE_NAMED = replace(MINE, name="moe")

REFUSED = [
    ("did you mean", lambda: derive("I", "adam", "msp")),
    ("either a regime", lambda: derive()),
    ("either a regime", lambda: derive("I", ray="N=1")),
    ("no readout init named", lambda: derive("I", readout_init="big")),
    ("has no depth", lambda: derive(ray="N=1,M=1,N_e=1,L=1")),
    ("axes cannot shrink", lambda: Ray.parse("N=-1,M=1,N_e=1")),
    ("not a rational", lambda: Ray.parse("N=pi,M=1,N_e=1")),
    ("no axis that grows named", lambda: Ray.parse("N=1,M=1,N_e=1,S=1")),
    ("at most M experts can be active", lambda: Ray.parse("N=1,M=1,N_e=1,K=3/2")),
    ("no axis grows", lambda: Ray.parse("N=0,M=0,N_e=0")),
    ("cannot read the rate", lambda: Ray.parse("N;1")),
    ("each name once", lambda: Ray.parse("N=1,N=1,M=1,N_e=1")),
    ("no quantity named", lambda: signals("I", quantities=["h9"])),
    ("leave out one of them", lambda: Configuration.of("I", network=MINE, architecture="mlp")),
    ("no architecture named", lambda: Configuration.of("I", network="mpl")),
    ("give yours another name", lambda: Configuration.of("I", network=MOE_NAMED)),
    ("N_e (expert width); give it, for example N_e=0", lambda: Configuration.of(ray="N=1", architecture="bottleneck")),
    ("the ray leaves out M (number of experts)", lambda: Configuration.of(ray="N=1,N_e=1", architecture="moe")),
    ("did you mean 'M'", lambda: Configuration.of(ray="N=1,N_e=1,m=1", architecture="moe")),
    ("the ray leaves out N (width)", lambda: Configuration.of(ray="N_e=1", architecture="mlp")),
    ("the ray gives K but not M", lambda: Configuration.of(ray="N=1,K=1", architecture="mlp")),
]


@pytest.mark.parametrize(("words", "wrong"), REFUSED)
def test_wrong_arguments_are_usage_errors_of_one_line(words, wrong):
    with pytest.raises(UsageError) as error:
        wrong()
    assert "\n" not in str(error.value) and str(error.value) and words in str(error.value)


def test_every_exported_name_is_there_and_importing_costs_nothing():
    assert all(getattr(scaling_algebra, name) is not None for name in scaling_algebra.__all__)
    heavy = {"click", "z3", "sympy", "numpy", "inspect", "typing"}
    code = (
        f"import sys; there = {{*sys.modules}}; import scaling_algebra; assert not {heavy} & ({{*sys.modules}} - there)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0


@pytest.mark.parametrize("function", [derive, signals, explain, prove, Configuration.of])
def test_functions_that_ask_take_the_same_arguments(function):
    taken = inspect.signature(function).parameters
    assert [name for name in taken if name in ASKED] == list(ASKED)
    assert [taken[name].default for name in ASKED] == [None, "adam", "mup"]
    assert taken["where"].kind is inspect.Parameter.VAR_KEYWORD
    with pytest.raises(UsageError, match="no argument named 'rays'; did you mean 'ray'"):
        function(*["h3"] * ("what" in taken), "III", rays="N=1")


def test_a_ray_is_a_text_a_dict_or_a_ray_and_names_the_axes_of_its_network():
    rates = {"N": 1, "N_e": "1/2", "M": "3/2"}
    found = [derive(ray=ray, optimizer="sgd") for ray in ("N=1,N_e=1/2,M=3/2", rates, Ray(rates))]
    assert {str(d["router"].lr) for d in found} == {"M N^-1"}
    asked = found[0].configuration
    assert derive(asked).scaling == found[0].scaling and Configuration.from_json(asked.as_json()) == asked
    assert str(Ray.parse("N=1")) == "N=1,L=0" and Ray.parse("N=1")["M"] == 0
    assert str(Ray.parse("M=1/2,N=1")) == "N=1,M=1/2,K=1/2,L=0"
    assert Configuration.of(ray="N=1,M=1/2", architecture="routers-softmax")


def test_nothing_is_kept_by_name():
    """A network that is edited and keeps its name gets its own answer."""
    asked = Configuration.of("III", "sgd", "mup", network=replace(MOE_BLOCK, name="mine"))
    block = derive(asked)
    edited = derive(asked.but(network=replace(architecture("mlp"), name="mine")))
    assert list(block) == ["input", "router", "expert_in", "expert_out", "readout"]
    assert list(edited) == ["input", "hidden", "readout"]
    assert derive(asked).scaling == block.scaling


def test_alignment_and_inner_products_are_explained_too():
    found = explain("alignment", "III", "sgd")
    assert [a.role for a in found] == list(derive("III", "sgd")) and "p backward" in str(found)
    assert str(explain("<h1@0, h1@1>", "III", "sgd")).startswith("<h1@0, h1@1> after 1 update")
    assert list(signals("III", "sgd", quantities="h3").quantities) == ["h3"]


# a network of one's own ---------------------------------------------------------------------------------------------


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(as_toml(MINE), encoding="utf-8")
    return str(path)


@click.command()
@with_configuration
def asks(asked):
    click.echo(str(asked))


def run(command, *options):
    return CliRunner().invoke(command, list(options))


@pytest.mark.parametrize(
    "asked",
    [
        Configuration.of("III"),
        Configuration.of("II", "sgd", architecture="stack2"),
        Configuration.of(ray="N=1", architecture="mlp"),
        Configuration.of(ray="N=1,N_e=1/2", network=MINE),
        Configuration.of("I", network=MINE),
    ],
    ids=str,
)
def test_json_says_the_whole_question(asked):
    record = json.loads(json.dumps(asked.as_json()))
    assert Configuration.from_json(record) == asked
    assert ("network" in record) == (asked.network == MINE)


def test_a_network_is_given_as_itself_or_by_name():
    assert Configuration.of("I", network="mlp") == Configuration.of("I", architecture="mlp")
    assert Configuration.of("I").but(network=MINE) == Configuration.of("I", network=MINE)


def test_options(file):
    assert run(asks, "--ray", "N=1,N_e=1", "--network", file).output.startswith("muP, a title, adam, N=1,N_e=1,L=0")
    for options, words in (
        (("--regime", "I", "--network", file, "--architecture", "moe"), "leave out one of them"),
        (("--regime", "I", "--network", "none.toml"), "cannot read none.toml"),
        (("--regime", "I", "--architecture", "stack3"), "did you mean 'stack2'?"),
        (("--regime", "I", "--architecture", "qwen3-mo"), "did you mean 'qwen3-moe'?"),
        (("--ray", "N=1", "--network", file), "leaves out N_e"),
    ):
        result = run(asks, *options)
        assert isinstance(result.exception, UsageError) and words in str(result.exception)


def test_a_network_is_listed_as_equations(file):
    text = run(main, "list", "--network", file).output
    assert "mine: a title\n" in text and "\n  h2[k] = W2[k,a] h1[a]\n" in text and "k     N_e (expert width)" in text
    assert r"\texttt{h2[k] =" in run(main, "list", "--network", file, "--format", "latex").output
    record = json.loads(run(main, "list", "--architecture", "moe", "--format", "json").output)
    assert record["tensors"]["expert_out"] == "W3[i,b,k]" and record["letters"]["i"] == "M"
    assert record["multipliers"] == ["alpha"] and "phi[i]   = gate(psi[i])" in record["equations"].splitlines()
    refused = run(main, "list", "--glossary", "--network", file)
    assert refused.exit_code == 2 and len(refused.stderr.splitlines()) == 1 and "--glossary" in refused.stderr


@pytest.mark.parametrize(
    ("verb", "names"),
    [
        ("derive", {"optimizer"}),
        ("signals", {"optimizer"}),
        ("recipe", {"optimizer", "parameterization", "gauge"}),
    ],
)
def test_defaults_of_python_are_those_of_the_command_line(verb, names):
    """Of every option that is named as an argument and has a text for its default."""
    function = inspect.unwrap(getattr(scaling_algebra, verb.replace("-", "_")))
    python = {name: p.default for name, p in inspect.signature(function).parameters.items()}
    typed = {p.name: p.default for p in main.get_command(None, verb).params}
    typed = {name: x[0] if isinstance(x, list | tuple) and len(x) == 1 else x for name, x in typed.items()}
    assert names <= {name for name, x in typed.items() if isinstance(x, str)} & set(python), typed
    assert {name: python[name] for name in names} == {name: typed[name] for name in names}
