"""The language of networks: what equations say, what is refused and how, and that text, LaTeX and TOML say the same."""

import re
import time
import tomllib
from pathlib import Path

import pytest

from scaling_algebra import derive
from scaling_algebra.dynamics.quantities import list_quantities
from scaling_algebra.errors import UsageError
from scaling_algebra.spec.networks.files import as_toml, from_toml, read_network
from scaling_algebra.spec.networks.functions import FUNCTIONS
from scaling_algebra.spec.networks.grammar import network
from scaling_algebra.spec.networks.indices import rename_apart
from scaling_algebra.spec.networks.language import Function
from scaling_algebra.spec.networks.library import ARCHITECTURES, AXES, TITLES
from scaling_algebra.spec.networks.printing import as_text

from ..shared import scalecalc

FIRST, LAST = "h1[a] = W1[a,x] data[x]", "f = W4[a] h2[a]"
"""A line above and one below what is tried: equations 1 and 3."""


def read(text, axes=AXES, roles=None):
    return network("tried", text, axes, roles)


def between(line):
    return read(f"{FIRST}\n{line}\n{LAST}")


def statements(line):
    """What a line between the two becomes."""
    return between(line).statements[1:-1]


def refusal(*arguments, **named):
    with pytest.raises(UsageError) as caught:
        read(*arguments, **named)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def rows(name):
    """A table beside this file: equations with their parts indented, or with what is said of them behind a bar."""
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


# what equations say --------------------------------------------------------------------------------------------


READ = [
    ("\n".join(x for x in block if x[0] not in " #"), tuple(x.strip() for x in block if x[0] == " "))
    for block in map(str.splitlines, rows("equations_read.txt").split("\n\n"))
]


@pytest.mark.parametrize(("line", "parts"), READ)
def test_parts_of_an_equation_are_signals_of_their_own(line, parts):
    found = between(line)
    assert tuple(re.sub(" +", " ", as_text(found)).splitlines()[1:-1]) == parts
    assert found == read(as_text(found))


def test_one_line_and_many_lines_are_the_same_block():
    """The expert index of W3 is found in either."""
    short = read(f"""
    {FIRST}
    h3[b] = alpha gate(Q[i,j] h1[j]) W3[i,b,k] W2[i,k,a] h1[a]
    f = W4[b] h3[b]
    """)
    found = {t.symbol: (t.fan_out, t.experts) for t in short.tensors.values()}
    assert found == {t.symbol: (t.fan_out, t.experts) for t in ARCHITECTURES["moe"].tensors.values()}


def test_functions_in_functions_are_read_at_once():
    nested = "h1[a]"
    for _ in range(24):
        nested = f"tanh(alpha silu({nested}))"
    assert len(statements(f"h2[a] = {nested}")) == 72


def test_what_stands_between_names_does_not_matter():
    loose = f"{FIRST}\r\n\r\n  # comment\n\th2 [ a ]=tanh( V[a ,b]*h1[b] )\t# another\n\N{NO-BREAK SPACE}{LAST}\n\n"
    assert read(loose) == between("h2[a] = tanh(V[a,b] h1[b])")


def test_letters_and_names_may_be_of_any_alphabet():
    n = read("φ[ω] = W[ω,x] data[x]\nf = V[ω] φ[ω]", {"ω": "N", "x": "D"})
    assert n.axes == {"ω": "N", "x": "D"} and n.signals["φ"] == "ω"


def test_every_letter_of_an_equation_may_meet_another_of_its_axis():
    """The update of a tensor sums along six places in letters of its own, beside those of its use."""
    places = "gelijm"
    n = read(
        "h[g,e,l,a] = W[a] data[g,e,l]\nr[g,e,l,i,j,m,a] = h[g,e,l,a] h[i,j,m,a]\nf = V[a] r[g,e,l,i,j,m,a]",
        {"a": "N", **dict.fromkeys(places, "S")},
    )
    renamed = rename_apart(n, "a", "a", places, taken=places)
    assert len({*renamed.values(), *places}) == 13 and {n.indices[renamed[x]] for x in places} == {"S"}


def test_axes_that_are_not_used_are_left_out():
    assert set(between("h2[a] = V[a,b] h1[b]").axes) == set("xab")


def test_a_lone_router_vector_and_an_expert_index():
    """Fan-in, fan-out and expert index of a tensor, from where it is first used."""
    found = {t.symbol: (t.fan_in, t.fan_out, t.experts) for t in ARCHITECTURES["moe"].tensors.values()}
    assert found == {
        "W1": ("x", "a", ""), "Q": ("a", "i", ""), "W2": ("a", "k", "i"), "W3": ("k", "b", "i"), "W4": ("b", "", ""),
    }  # fmt: skip


# what is refused -----------------------------------------------------------------------------------------------

DEEP = "h2[a] = " + "tanh(" * 51 + "h1[a]" + ")" * 51
LINES = [x.split(" | ") for x in rows("equations_refused.txt").splitlines() if x[0] != "#"]


@pytest.mark.parametrize(("line", "said"), [*LINES, (DEEP, "functions are nested more than 50 deep")])
def test_a_wrong_line_is_quoted(line, said):
    message = refusal(f"{FIRST}\n{line}\n{LAST}")
    assert said in message and len(message) < 350
    number, text = re.match(r'equation (\d): ?|equation (\d), "(.*?)":', message).groups()[1:]
    assert (number, text) in (("1", FIRST), ("3", LAST)) or text.removesuffix("...") in " ".join(line.split())


def test_a_long_equation_is_cut():
    assert len(refusal(f"{FIRST}\nh2[a] = {'h1[a] + ' * 100} - h1[a]\n{LAST}")) < 250


GOOD = f"{FIRST}\nf = alpha W4[a] h1[a]"


# text, TOML ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TITLES)
def test_toml_says_the_same_network(name):
    """That text does, ``test_equations.py`` says."""
    there = ARCHITECTURES[name]
    again = from_toml(as_toml(there))
    assert again == there and list(again.tensors) == list(there.tensors)


CONSTANTS = """
axes = { a = "N", b = "N", x = "D", p = "S", q = "S" }
constants = ["C", "time"]
equations = '''
u[p,a] = W1[a,x] data[p,x]
h[p,a] = tanh(C[p,q] u[q,a])
o[p,b] = T[b,x] time[p,x] + W2[b,a] h[p,a]
f      = W3[b] o[p,b]
'''
"""


def test_a_constant_is_a_signal_that_does_not_train():
    read = from_toml(CONSTANTS)
    assert from_toml(as_toml(read)) == read and [*read.tensors] == ["W1", "T", "W2", "W3"]
    d = derive(ray="N=1", optimizer="adam", parameterization="mup", network=read)
    bare = CONSTANTS.replace('"C", ', "").replace("C[p,q] u[q,a]", "u[p,a]").replace(', q = "S"', "")
    without = derive(ray="N=1", optimizer="adam", parameterization="mup", network=from_toml(bare))
    assert d.tensors == without.tensors and d["T"] == d["W1"]


def test_text_is_aligned():
    assert as_text(ARCHITECTURES["mlp"]) == "h1[a] = W1[a,x] data[x]\nh2[b] = W2[b,a] h1[a]\nf     = W3[b] h2[b]"


def test_a_letter_that_a_function_goes_along_is_written_where_it_must_be():
    n = between("p[t,s] = softmax(U[t,a,s] h1[a]; t)\nh2[a] = p[t,s] V[a,t,s] p[t,s]")
    assert "p[t,s] = softmax(p_1[t,s]; t)" in re.sub(" +", " ", as_text(n))


def test_a_file(tmp_path):
    file = tmp_path / "mine.toml"
    text = 'axes = { a = "N", x = "D" }\nequations = """\nh[a] = W[a,x] data[x]\nf = V[a] h[a]\n"""\n'
    for written in (text.encode(), text.replace("\n", "\r\n").encode(), b"\xef\xbb\xbf" + text.encode()):
        file.write_bytes(written)
        found = read_network(file)
        assert (found.name, found.title, list(found.tensors)) == ("mine", "mine", ["W", "V"])
        assert read_network(str(file)) == found


def test_files_that_cannot_be_read(tmp_path):
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    for file, said in (("none.toml", "cannot read"), ("", "cannot read"), ("binary.toml", "not text in UTF-8")):
        with pytest.raises(UsageError, match=said):
            read_network(tmp_path / file)


def test_a_title_of_any_characters():
    n = network("n", GOOD, AXES, title='a "quoted" title, C:\\x, ü')
    assert from_toml(as_toml(n)) == n and tomllib.loads(as_toml(n))["title"] == n.title


# the library ---------------------------------------------------------------------------------------------------


def test_every_network_has_a_title_of_its_own():
    assert list(TITLES)[: len(ARCHITECTURES)] == list(ARCHITECTURES) and len(set(TITLES.values())) == len(TITLES)
    assert all(ARCHITECTURES[name].title == TITLES[name] for name in TITLES)


def test_every_function_is_in_some_network_or_can_be():
    for name, kind in FUNCTIONS.items():
        argument = "" if kind.kind == "noise" else "V[a,b] h1[b]"
        assert any(
            isinstance(s, Function) and s.name == name for s in statements(f"h2[a] = h1[a] + {name}({argument})")
        )


def test_every_function_is_on_the_page():
    page = (Path(__file__).parents[2] / "docs" / "networks.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`.*?) \|", page.partition("| function |")[2].partition("\n\n")[0], re.M)
    assert {name for row in rows for name in re.findall(r"`(\w+)", row)} == set(FUNCTIONS)


def test_two_functions_may_read_one_signal_along_one_axis_or_two():
    """Of the spreads along two axes each has its letter; one along both functions is one quantity."""
    axes = {"a": "N", "b": "N", "i": "M", "x": "D", "t": "S"}
    head, tail = "h[t,a] = E[a,x] data[t,x]\ng[t,i] = Q[i,a] h[t,a]\n", "f = U[b] o[t,b]"
    middle = "d[t,i] = softmax(g[t,i]; t)\nc[t,i] = softmax(g[t,i]; i)\nz[i,a] = d[t,i] h[t,a]\n"
    soft = network("soft", f"{head}{middle}y[i,b] = W[i,b,a] z[i,a]\no[t,b] = alpha c[t,i] y[i,b]\n{tail}", axes)
    assert {x for x in list_quantities(soft) if ".spread" in x} == {"g.spread.t", "g.spread.i"}
    pair = "p[t,i] = sigmoid(g[t,i])\nq[t,i] = tanh(g[t,i])\nv[t,i,b] = V[i,b,a] h[t,a]\n"
    sums = "w[t,b] = alpha p[t,i] v[t,i,b]\nz[t,b] = beta q[t,i] v[t,i,b]\no[t,b] = w[t,b] + z[t,b]\n"
    assert {"g.propagating.expert", "g.propagating.router"} <= set(
        list_quantities(network("two", head + pair + sums + tail, axes))
    )


def test_the_name_of_a_network_is_no_file():
    result = scalecalc("derive", "--network", "mlp")
    assert result.exit_code == 2 and "--architecture mlp" in result.output


def chain(count):
    """The equations of so many matrices, one after the other."""
    middle = [f"h{k}[a] = W{k}[a,b] h{k - 1}[b]" for k in range(1, count - 1)]
    return "\n".join(["h0[a] = W0[a,x] data[x]", *middle, f"f = R[a] h{count - 2}[a]"])


def test_a_network_of_900_lines_is_read_in_time_linear_in_its_lines():
    """Its quantities, too: each gradient is followed to the next one, and not to the output."""
    axes = {"a": "N", "b": "N", "x": "D"}
    began = time.process_time()
    whole = network("long", chain(900), axes)
    assert len(whole.statements) == 900 and len(list_quantities(whole)) > 900
    assert time.process_time() - began < 20, "today it takes one second"


def test_too_many_lines_are_told_as_lines():
    assert refusal(chain(1100)).startswith("the equations have 1100 lines; give at most 1000")
    assert "characters; give at most 65536" in refusal("f = W[a,x] data[x]".ljust(70_000, "#"))
