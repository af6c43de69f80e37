"""Laws of single rules of training, each at a point where the answer is another one without it."""

from fractions import Fraction

from scaling_algebra import network
from scaling_algebra.dynamics.analysis import Analysis
from scaling_algebra.spec.axes import Ray
from scaling_algebra.spec.optimizers import optimizer
from scaling_algebra.spec.scaling import Point

AXES = {"x": "D", "a": "N", "b": "N", "i": "M"}
FIRST = "h[a] = W1[a,x] data[x]\n"


def at(equations, rule="sgd", **tensors):
    """Exponents of a network; of every tensor those of its init std and its learning rate, negated."""
    b, c = ({name: Fraction(pair.split()[k]) for name, pair in tensors.items()} for k in (0, 1))
    point = Point(b, c, dict.fromkeys(b, Fraction(0)), {})
    look = Analysis(Ray.parse("N=1,M=1"), point, optimizer(rule), network("ruled", FIRST + equations, AXES))
    return lambda name, t: str(look(name, t))


def test_a_softmax_does_not_see_what_all_its_logits_have_in_common():
    """s is n^(1/2), and half of it is in every logit; logits differ by n^0, so that the softmax does not saturate."""
    equations = "v[i] = Q[i,a] h[a]\ns = U[a] h[a]\nz[i] = s sigmoid(v[i])\np[i] = softmax(z[i]; i)\nf = R[i] p[i]"
    look = at(equations, W1="0 1", Q="3/2 3", U="0 1", R="0 1")
    assert [look(name, 0) for name in ("s", "z", "p")] == ["1/2", "1/2", "-1"]
    assert look("p.change", 1) == "-3"


def test_behind_a_norm_a_gradient_has_lost_what_is_along_the_normed():
    """The readout has learned n^-1 along r, which the norm takes away, up to what r has moved since: n^(-1/2)."""
    look = at("r[a] = rmsnorm(h[a])\nf = W2[a] r[a]", W1="0 -3/2", W2="2 1")
    assert [look(name, 1) for name in ("h.change", "gr", "gh")] == ["-1/2", "-1", "-3/2"]
    assert [look(name, 0) for name in ("gr", "gh")] == ["-2", "-2"]


def test_a_relative_step_is_relative_to_what_its_tensor_has_become():
    """n^(1/4) times the tensor: after one step of n^(-3/4) the tensor, which started at n^-1, has its size."""
    look = at("k[b] = W2[b,a] h[a]\nf = W3[b] k[b]", "adafactor", W1="0 0", W2="1 -1/4", W3="1 0")
    assert [look("dW2", t) for t in (1, 2)] == ["-3/4", "-1/2"]
