"""A network of one's own wherever a name goes: configurations, JSON, options, ``scalecalc list``; rays that fit it."""

import json
from dataclasses import replace

import click
import pytest
from click.testing import CliRunner

from scaling_algebra.commands.list import command as listed
from scaling_algebra.commands.options import configured
from scaling_algebra.errors import UsageError
from scaling_algebra.spec.axes import Ray
from scaling_algebra.spec.configuration import Configuration
from scaling_algebra.spec.networks.files import as_toml
from scaling_algebra.spec.networks.grammar import network
from scaling_algebra.spec.networks.library import ARCHITECTURES, AXES

MINE = network("mine", "h1[a] = W1[a,x] data[x]\nh2[k] = W2[k,a] h1[a]\nf = W3[k] h2[k]", AXES, title="a title")


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(as_toml(MINE), encoding="utf-8")
    return str(path)


@click.command()
@configured
def asks(asked):
    click.echo(str(asked))


def run(command, *options):
    return CliRunner().invoke(command, list(options))


def refusal(function):
    with pytest.raises(UsageError) as caught:
        function()
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    "asked",
    [
        Configuration.of("III"),
        Configuration.of("II", "sgd", architecture="stack7"),
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
    assert "either" in refusal(lambda: Configuration.of("I", network=MINE, architecture="mlp"))
    for wrong in (None, 3, "mpl"):
        assert "no architecture named" in refusal(lambda wrong=wrong: Configuration.of("I", network=wrong))


def test_a_name_that_ships_is_taken():
    assert "give yours another name" in refusal(lambda: Configuration.of("I", network=replace(MINE, name="moe")))
    assert Configuration.of("I", network=replace(ARCHITECTURES["moe"], origin="other")) == Configuration.of("I")


def test_a_ray_names_the_axes_of_its_network():
    assert str(Ray.parse("N=1")) == "N=1,L=0" and Ray.parse("N=1")["M"] == 0
    assert str(Ray.parse("M=1/2,N=1")) == "N=1,M=1/2,K=1/2,L=0"
    assert Configuration.of(ray="N=1,M=1/2", architecture="routers-softmax")
    for ray, name, said in (
        ("N=1", "bottleneck", "the ray leaves out N_e (expert width); give it, for example N_e=0 if it is fixed"),
        ("N=1,N_e=1", "moe", "the ray leaves out M (number of experts)"),
        ("N_e=1", "mlp", "the ray leaves out N (width)"),
        ("N=1,K=1", "mlp", "the ray has K but leaves out M"),
    ):
        assert said in refusal(lambda ray=ray, name=name: Configuration.of(ray=ray, architecture=name))


def test_options(file):
    assert run(asks, "--ray", "N=1,N_e=1", "--network", file).output.startswith("muP, a title, adam, N=1,N_e=1,L=0")
    assert "30 MoE blocks" in run(asks, "--regime", "I", "--architecture", "stack30").output
    for options, said in (
        (("--network", file, "--architecture", "moe"), "leave out one of them"),
        (("--network", "none.toml"), "cannot read none.toml"),
        (("--architecture", "stack0"), "no architecture named 'stack0'"),
        (("--ray", "N=1", "--network", file), "leaves out N_e"),
    ):
        regime = () if "--ray" in options else ("--regime", "I")
        result = run(asks, *regime, *options)
        assert isinstance(result.exception, UsageError) and said in str(result.exception)


def test_a_network_is_listed_as_equations(file):
    text = run(listed, "--network", file).output
    assert "mine: a title\n" in text and "\n  h2[k] = W2[k,a] h1[a]\n" in text and "k     N_e (expert width)" in text
    assert r"$h_{2,k} = \sum_{a} W_{2,ka} h_{1,a}$" in run(listed, "--network", file, "--format", "latex").output
    record = json.loads(run(listed, "--architecture", "moe", "--format", "json").output)
    assert record["tensors"]["expert_out"] == "W3[i,b,k]" and record["letters"]["i"] == "M"
    assert record["multipliers"] == ["alpha"] and "phi[i]   = gate(psi[i])" in record["equations"].splitlines()
    assert isinstance(run(listed, "--glossary", "--network", file).exception, UsageError)
