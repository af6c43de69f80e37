"""The Python interface: names, arguments, errors, what a notebook shows, and that equal names are no equal networks."""

import inspect
import subprocess
import sys
from dataclasses import replace

import pytest

import scaling_algebra
from scaling_algebra import Configuration, Ray, UsageError, derive, explain, prove, signals, table
from scaling_algebra.spec.networks.library import MOE_BLOCK, architecture

ASKED = ("regime", "optimizer", "parameterization")


def test_every_exported_name_is_there_and_importing_costs_nothing():
    assert all(getattr(scaling_algebra, name) is not None for name in scaling_algebra.__all__)
    code = "import sys, scaling_algebra; assert not {'click', 'z3', 'sympy', 'numpy'} & set(sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0


@pytest.mark.parametrize("function", [derive, signals, explain, prove, Configuration.of])
def test_functions_that_ask_take_the_same_arguments(function):
    taken = inspect.signature(function).parameters
    assert [name for name in taken if name in ASKED] == list(ASKED)
    assert [taken[name].default for name in ASKED] == [None, "adam", "mup"]
    assert taken["where"].kind is inspect.Parameter.VAR_KEYWORD
    with pytest.raises(UsageError, match="no argument named 'rays'; did you mean 'ray'"):
        function(*["h3"] * ("what" in taken), "III", rays="N=1")


def test_a_ray_is_a_text_a_dict_or_a_ray():
    rates = {"N": 1, "N_e": "1/2", "M": "3/2"}
    found = [derive(ray=ray, optimizer="sgd") for ray in ("N=1,N_e=1/2,M=3/2", rates, Ray(rates))]
    assert {str(d["router"].lr) for d in found} == {"M N^-1"}
    asked = found[0].configuration
    assert derive(asked).scaling == found[0].scaling and Configuration.from_json(asked.as_json()) == asked


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: derive(3),
        lambda: derive("III", None),
        lambda: derive("III", "adam", 5),
        lambda: derive(ray=("N", 1)),
        lambda: derive(ray={"N": "x", "N_e": 1, "M": 1}),
        lambda: derive("III", readout_init=0),
        lambda: derive("III", architecture=None),
        lambda: derive("III")["W9"],
        lambda: explain("h3.A9", "III"),
        lambda: explain(3, "III"),
        lambda: explain("<h2@0, h3@1>", "III"),
        lambda: explain("<h1@0, psi@0>", "III"),
        lambda: derive(Configuration.of("III"), optimizer="sgd"),
        lambda: derive(Configuration.of("III"), ray="N=1,N_e=1,M=1"),
        lambda: derive(ray={"N": None, "N_e": 1, "M": 1}),
        lambda: Ray("N=1,N_e=1,M=1"),
        lambda: signals("III", steps="2"),
        lambda: table("b9"),
        lambda: table("g1", ray="N=1,N_e=1,M=1"),
    ],
)
def test_wrong_arguments_are_usage_errors_of_one_line(wrong):
    with pytest.raises(UsageError) as error:
        wrong()
    assert "\n" not in str(error.value) and str(error.value)


def test_nothing_is_kept_by_name():
    """A network that is edited and keeps its name gets its own answer."""
    asked = Configuration.of("III", "sgd", "mup", network=replace(MOE_BLOCK, name="mine"))
    block = derive(asked)
    edited = derive(asked.but(network=replace(architecture("mlp"), name="mine")))
    assert list(block) == ["input", "router", "expert_in", "expert_out", "readout"]
    assert list(edited) == ["input", "hidden", "readout"]
    assert derive(asked).scaling == block.scaling


def test_values_have_a_short_repr():
    d = derive("III", "sgd")
    assert repr(d["router"].lr) == "<Power: M N^-1>" and len(repr(d["router"])) < 120
    assert repr(d.configuration) == f"<Configuration: {d.configuration}>" and len(repr(d.ray)) < 80


def test_alignment_is_explained_too():
    found = explain("alignment", "III", "sgd")
    assert [a.role for a in found] == list(derive("III", "sgd")) and "p backward" in str(found)


def test_an_inner_product_is_of_the_step_that_it_names():
    assert str(explain("<h1@0, h1@1>", "III", "sgd")).startswith("<h1@0, h1@1> after 1 update")
    assert list(signals("III", "sgd", quantities="h3").quantities) == ["h3"]
