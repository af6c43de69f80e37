"""What ``derive`` prints on a terminal: what was asked, within a screen; reasons, exponents and the rest on request."""

import json
import re
from functools import partial

import pytest

from scaling_algebra import derive, network
from scaling_algebra.documents import render
from scaling_algebra.solver.presentation import brief

from ..shared import scalecalc

ADAM = ("--regime", "III", "--optimizer", "adam")

run = partial(scalecalc, "derive")


def rows(text):
    """The cells of the first table, by tensor."""
    lines = text.split("\n\n")[1].splitlines()
    return {line.split()[0]: re.split(r"  +", line)[1:] for line in lines}


def test_a_derivation_fits_a_terminal():
    lines = run(*ADAM).output.splitlines()
    assert len(lines) < 24 and max(map(len, lines)) <= 80
    assert "regime III: width N, expert width N_e and number of experts M grow alike" in lines
    assert "assumes generic-constants, held-gates, first-hermite (--why)" in lines


def test_what_was_not_asked_for_and_what_does_not_grow_is_said():
    """In a line each: MSSP where a network of other experts was asked for nothing, and axes that nothing has."""
    asked, axes = ("--regime", "II", "--optimizer", "sgd", "--architecture"), {"x": "D", "a": "N", "e": "E"}
    swiglu, mlp, both = run(*asked, "swiglu").output, run(*asked, "mlp").output, run(*asked, "moe").output
    line = "for MSSP instead of muP: --parameterization mssp"
    assert [line in x for x in (swiglu, mlp, both)] == [True, False, False]
    assert line not in run(*asked, "swiglu", "--parameterization", "mup").output
    assert "expert width N_e is fixed; M does not occur in this network\n" in mlp and "not occur" not in both + swiglu
    small = network("small", "h[a] = A[a,x] data[x]\nu[e] = W[e,a] h[a]\nf = o[e] u[e]", axes)
    said = render(brief([derive("III", "sgd", network=small)], ()))
    assert "N_e and M do not occur in this network, and E never grows" in said


def test_the_layer_wise_law_of_each_number_is_named():
    """Once, and none of what is not there: gradient descent has no epsilon."""
    why = run("--architecture", "moe-load", "--regime", "I", "--optimizer", "sgd", "--why").output
    assert re.search(r"router +init +layer-wise law: spectral condition", why)
    assert re.search(r"router +lr +layer-wise law: update times input", why) and " eps " not in why
    asked = ("router.init", "--architecture", "moe-load", "--regime", "I", "--optimizer", "sgd")
    assert scalecalc("explain", *asked).output.lower().count("spectral condition") == 1


def test_the_table_says_what_both_parameterizations_are():
    """Every cell is that of the record; a column says where MSSP has another one."""
    shown = rows(run(*ADAM).output)
    assert shown.pop("tensor") == ["init std", "lr", "eps", "MSSP"]
    mup, mssp = json.loads(run(*ADAM, "--format", "json").output)
    for role, (std, rate, _, *changed) in shown.items():
        one, two = mup["tensors"][role], mssp["tensors"][role]
        assert std.count("^") == sum(e != "1" for e in one["init_std"].values())
        assert rate.count("^") == sum(e != "1" for e in one["lr"].values())
        says = [*(["init std 0"] if two["b"] == "zero" else []), *(["tied"] if role in mssp["tied"] else [])]
        assert changed == ([", ".join(says)] if says else [])
        assert two["b"] in (one["b"], "zero") and (one["c"], one["d"]) == (two["c"], two["d"])


def test_reasons_and_exponents_are_printed_on_request():
    plain, why = run(*ADAM).output, run(*ADAM, "--why").output
    assert "because" not in plain and "effective update dQ h1 = Theta(1)" in why
    assert "structures rejected before: 10, since MSSP-3 forward: h3.A1 of the aggregate is Theta(1)" in why
    assert why.count("rejected") == 1 and "assumes held-gates: a gate is replaced by its mean and slope" in why
    assert rows(run(*ADAM, "--exponents").output)["router"][:3] == ["1/2", "1", "1"]


@pytest.mark.parametrize(("rate", "why", "ties"), [("1/2", [], True), ("1/2", ["--why"], True), ("1", [], False)])
def test_a_router_that_starts_at_zero_cannot_select(rate, why, ties):
    asked = run("--ray", f"N=1,N_e=1,M=1,K={rate}", "--optimizer", "adam", "--parameterization", "mssp", *why)
    assert ("makes all logits equal" in asked.output) is ties


@pytest.mark.parametrize(("form", "begins"), [("markdown", "| tensor "), ("latex", r"% \usepackage")])
def test_the_table_alone(form, begins, tmp_path):
    alone, whole = run(*ADAM, "--format", form, "--table-only").output, run(*ADAM, "--format", form).output
    assert alone.startswith(begins) and "because" in whole and "because" not in alone
    assert "rejected" in whole and len(alone) < len(whole) / 4
    assert "aggregation multiplier: $M^{-1}$" in alone  # it is part of the parameterization


def test_what_mssp_changes_is_set_and_two_tables_are_told_apart():
    cells = run("--regime", "II", "--table-only", "--format", "markdown").output
    assert "| init std $M^{1/2}$ |" in cells and "| init std $0$ " in cells and not cells.startswith("#")
    given = run("--regime", "II", "--table-only", "--format", "markdown", "--given", "router.init=N^-1/2").output
    assert [x.split(",")[0] for x in given.splitlines() if x.startswith("#")] == ["# muP", "# MSSP"]
