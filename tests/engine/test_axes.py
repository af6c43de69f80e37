"""Axes are the reader's own names: one without a rate is fixed, and every reading takes them like those that ship."""

from fractions import Fraction

import pytest

from scaling_algebra import Ray, derive, explain, formula, network, recipe
from scaling_algebra.errors import UsageError
from scaling_algebra.recipes.files import read_start
from scaling_algebra.recipes.sizes import through
from scaling_algebra.spec.axes import sort_axes
from scaling_algebra.spec.networks.files import as_toml, from_toml
from scaling_algebra.spec.networks.indices import find_aggregations
from scaling_algebra.spec.networks.printing import as_text
from scaling_algebra.spec.powers import Power

AXES = {"a": "N", "b": "N", "r": "rank", "x": "D"}
LORA = network(
    "any-rank",
    """
    h0[a] = E[a,x] data[x]
    z[r]  = A[r,a] h0[a]
    h[b]  = W[b,a] h0[a] + B[b,r] z[r]
    f     = U[b] h[b]
    """,
    AXES,
)
HEADS = """
h[s,a]   = W1[a,x] data[s,x]
q[s,j,e] = Wq[j,e,a] h[s,a]
k[s,j,e] = Wk[j,e,a] h[s,a]
v[s,j,e] = Wv[j,e,a] h[s,a]
p[j,t,s] = softmax(q[t,j,e] k[s,j,e]; s)
o[t,j,e] = p[j,t,s] v[s,j,e]
u[t,b]   = Wo[b,j,e] o[t,j,e]
f        = W4[b] u[t,b]
"""


ADAPTER = {"U.init": "N^-1", "B.init": 0}


def mup(net, ray, optimizer="adam", given=None):
    return derive(None, optimizer, "mup", ray=ray, network=net, given=given)


def adapter(axis):
    """Everything but the adapter is frozen."""
    return network(f"adapter-{axis}", as_text(LORA), {**AXES, "r": axis}).with_frozen(["E", "W", "U"])


def same_powers(d, other, renamed):
    """The powers of two derivations, the axes of the second renamed."""
    old, new = renamed
    return all(
        str(x) == str(y).replace(old, new)
        for role in d
        for x, y in zip(vars(d[role]).values(), vars(other[role]).values(), strict=True)
    )


@pytest.mark.parametrize("rate", ["1/2", "1", "2"])
def test_an_axis_of_ones_own_is_one_that_ships_by_another_name(rate):
    mine, theirs = (mup(adapter(x), f"N=1,{x}={rate}", given=ADAPTER) for x in ("rank", "N_e"))
    assert same_powers(mine, theirs, ("N_e", "rank")) and mine["B"].lr == Power.of({"rank": -1})


def test_an_axis_without_a_rate_is_fixed():
    mine, fixed = (mup(adapter(x), "N=1", given=ADAPTER) for x in ("rank", "R"))
    assert same_powers(mine, fixed, ("", "")) and mine.configuration.network.frozen == {"E", "W", "U"}
    assert [str(mine["A"].init_std), str(mine["A"].lr), str(mine["B"].lr)] == ["N^(-1/2)", "N^-1", "1"]
    assert Ray.parse("N=1")["rank"] == 0 and Ray.parse("N=1,rank=1").axes[-1] == "rank"


def test_heads_are_an_axis_and_never_make_a_router():
    net = network(
        "heads", HEADS, {"a": "N", "b": "N", "j": "heads", "e": "E", "x": "D", "s": "S", "t": "S"}, {"W4": "readout"}
    )
    d = mup(net, "N=1,heads=1")
    assert (str(d["Wq"].lr), str(d["Wo"].init_std), str(d["Wo"].lr)) == ("N^-1", "heads^(-1/2)", "heads^-1")
    assert not find_aggregations(net) and all(not t.experts for t in net.tensors.values())


def test_every_reading_takes_them():
    """Powers, files, explanations and formulas; what a formula says holds on each ray."""
    assert from_toml(as_toml(LORA)) == LORA and sort_axes({"rank", "M", "N"}) == ["N", "M", "rank"]
    d = mup(LORA, "N=1,rank=1", given={"B.init": "rank^-1/2"})
    assert str(d["B"].init_std) == "rank^(-1/2)" and not d.unmet
    assert "runs over" in str(explain("z.effective@1", d.configuration))
    size = formula("h_2.init@0", "sgd", network=LORA)
    assert "rank" in str(size)


def test_a_recipe_follows_an_axis_of_ones_own(tmp_path):
    """Rank 8 to 64 of an adapter, at one width or a larger one; of what is frozen there is an initial value alone."""
    net = adapter("rank")
    still = recipe("N=64,rank=8", "N=64,rank=64", network=net, lr=2e-4)
    assert str(still.way.ray) == "N=0,L=0,rank=1" and still["B"]["lr"].target == pytest.approx(2.5e-5)
    assert still["A"]["lr"].factor == 1 and set(still["W"]) == {"init_std"}
    wide = recipe({"N": 64, "rank": 8}, {"N": 256, "rank": 64}, network=net)
    assert (wide["A"]["lr"].factor, wide["B"]["lr"].factor) == (1 / 4, 1 / 8)
    file = tmp_path / "base.toml"
    file.write_text("N = 64\nrank = 8\nlr = 2e-4")
    assert read_start(str(file), "base").sizes == {"N": 64, "rank": 8}
    for base, target, words in (
        ("N=64,rnk=8", "N=64,rnk=64", "'rnk'; did you mean 'rank'"),
        ("N=64,rank=8", "N=128", "the target does not; add rank=8 to the target"),
        ("rank=8", "rank=64", "leave out N"),
    ):
        with pytest.raises(UsageError, match=words):
            recipe(base, target, network=net)


def test_a_ray_of_many_axes_keeps_every_side():
    """Ten axes: every wall between two or three of them, and in no more time than few have."""
    ray, exact = through({f"x{k}": Fraction(2**k) for k in range(1, 11)})
    assert exact and [ray[f"x{k}"] for k in range(1, 11)] == [Fraction(k, 10) for k in range(1, 11)]


def test_a_name_that_the_network_lacks_is_one_line():
    rays = {"N=1,rnak=1": "did you mean 'rank'", "N=1,R=1": "axis that grows", "N=1,2r=1": "axis that"}
    for ray, words in rays.items():
        with pytest.raises(UsageError, match=words):
            mup(LORA, ray)
    for given, words in (({"B.lr": "rnak"}, "'rnak'"), ({"B.lr": "M"}, "axis of any-rank")):
        with pytest.raises(UsageError, match=words):
            mup(LORA, "N=1,rank=1", given=given)
    with pytest.raises(UsageError, match="no name of an axis"):
        network("wrong", as_text(LORA), {**AXES, "r": "two words"})
