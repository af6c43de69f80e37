"""Laws of single rules of training, each at a point where the answer would be another one without it.

A row is a network, an optimizer, a point (none: muP; ``scenarios.placed``), the ray where it is not N=1, and exponents:
a dot is exactly zero, a question mark undecided. Last: a part of the reason why the first quantity is undecided.
"""

import pytest

from scaling_algebra.explanations.monomials import monomial

from ..measure.networks import KNOWN
from .scenarios import placed, shown, sizes

TANH, EVEN, SILU, TWICE = (KNOWN[name].text for name in ("T1", "T2", "T3", "T4"))
"""What the engine had wrong once; training shows these sizes (tests/measure/test_faults.py)."""
H = "h[a] = W1[a,x] data[x]\n"
SHARES = H + "u[a] = softmax(h[a]; a)\nf = W2[a] u[a]"
BOUNDED_SHARES = SHARES.replace("softmax", "bounded_softmax")
NORMED_SHARES = H + "u[a] = rmsnorm(h[a]; a)\nv[a] = softmax(u[a]; a)\nf = W2[a] v[a]"
LAYER_OF_SHARES = H + "u[a] = softmax(h[a]; a)\nh3[b] = W2[b,a] u[a]\nf = W3[b] h3[b]"
PRODUCT_OF_SHARES = H + "u[a] = softmax(h[a]; a)\nv[a] = W3[a,x] data[x]\nr[a] = u[a] v[a]\nf = W2[a] r[a]"
COMMON_LOGITS = H + "v[i] = Q[i,a] h[a]\ns = U[a] h[a]\nz[i] = s sigmoid(v[i])\np[i] = softmax(z[i]; i)\nf = R[i] p[i]"
NORM = H + "r[a] = rmsnorm(h[a])\nf = W2[a] r[a]"
CURVED = H + "r[a] = layernorm(h[a]; a)\ng[a] = gelu(r[a])\nf = W2[a] g[a]"
QUERIES = H + "q[b,e] = W2[b,e,a] h[a]\nr[b,e] = rmsnorm(q[b,e]; e)\n"
ALONE = QUERIES + "m[b] = r[b,e] r[b,e]\nf = W3[b] m[b]"
UNIT = QUERIES + "k[b,e] = W4[b,e,a] h[a]\nm[b] = r[b,e] k[b,e]\nf = W3[b] m[b]"
TWO_NORMED = (
    "h1[a] = W1[a,x] data[x]\nh2[c] = W2[c,a] h1[a]\nh4 = W3[c] h2[c]\nh3[a] = rmsnorm(h1[a]; a)\nh5 = W4[a] h3[a]\n"
    "f = h4 + h5"
)
DEEP = H + "k[b] = W2[b,a] h[a]\nf = W3[b] k[b]"
GATES = H + "p[i] = sigmoid(W2[i,a] h[a])\nh2[i] = W3[i,a] h[a]\nf = p[i] h2[i]"
SQUARE = H + "h2[a] = silu(h[a])\nm = h2[a]\nn[b] = U[b] m\nf = V[a] h2[a] + W2[b] n[b]"
NUMBER = H + "p = alpha h[a]\nr = relu(p)\nf = r r"
TOP = H + "h2[a] = topk_sigmoid(h[a]; a)\nf = W2[a] h2[a]"
CHAIN = "h1[a] = W1[a,x] data[x]\nh2[b] = W[b,a] h1[a]\nh3[c] = W[c,b] h2[b]\nf = W2[c] h3[c]"
SELECTED = (
    "h1[a] = W1[a,x] data[x]\nh2[a] = topk_sigmoid(h1[a]; a)\nh3[b] = W[b,a] h2[a]\nw[i,k] = W2[i,k,b] h3[b]\n"
    "h4i[i,b] = W3[i,b,k] w[i,k]\nh4[b] = alpha h4i[i,b]\nf = W4[b] h4[b]"
)
GATED = (
    "h1[a] = W1[a,x] data[x]\npsi[i] = Q[i,a] h1[a]\nphi[i] = {}(psi[i]; i)\nh2[i,k] = W2[i,k,a] h1[a]\n"
    "h3i[i,b] = W3[i,b,k] h2[i,k]\nh3[b] = {}phi[i] h3i[i,b]\nf = W4[b] h3[b]"
)
WIDTH, EXPERTS, FEW = "N=1", "N=1,M=1", "N=1,N_e=1,M=1,K=1/2"
GATED_AT = "b.Q=1/2,b.W2=1/2,b.W3=1/2,b.W4=1,c.W1=-1,c.W2=-1,c.W3=-1,c.W4=1"
TWICE_AT = "b.W=1/2,b.W2=1,c.W1=-1/2,c.W2=1/2,alpha=1/2"
VALUES = "r[i] = A[i,x] data[x]\nl[i] = B[i,x] data[x]\np[i] = softmax(l[i]; i)\ns[i] = r[i] r[i]\nf = {}p[i] s[i]"
SUMS = (
    "r[i,a] = A[i,a,x] data[x]\nl[i] = B[i,x] data[x]\np[i] = softmax(l[i]; i)\ns[i] = r[i,a] r[i,a]\n"
    "h[a] = W1[a,x] data[x]\nf = rho p[i] s[i] + W2[a] h[a]"
)
NORMED_SQUARE = H + "u[a] = h[a] h[a]\nr[a] = layernorm(u[a]; a)\nf = W2[a] r[a]"
POLYNOMIAL = (
    "k[a] = A[a,x] data[x]\nl[a] = B[a,x] data[x]\nj[a] = C[a,x] data[x]\nm[a] = G[a,x] data[x]\n"
    "o[a] = E[a,x] data[x]\ns[a] = k[a] + l[a] + j[a] + m[a]{}\np[a] = k[a] l[a] j[a] m[a]{}\n"
    "r[a] = {}(s[a])\nf = rho p[a] r[a]{}"
)
SILU4 = POLYNOMIAL.format("", "", "silu", " + E2[a] o[a]")
TANH5 = POLYNOMIAL.format(" + o[a]", " o[a]", "tanh", "")
FAMILIES = (
    "k[a] = A[a,x] data[x]\nl[a] = B[a,x] data[x]\n{}z[b] = V[b,a] s[a]\ny[b] = V[b,a] p[a]\n"
    "f2 = W4[b] z[b]\nf3 = W5[b] y[b]\nf = f2 + f3"
)
CUBIC = FAMILIES.format("j[a] = C[a,x] data[x]\ns[a] = k[a] + l[a] + j[a]\np[a] = k[a] l[a] j[a]\n")
CURVED_CUBIC = CUBIC.replace("f2 = W4[b] z[b]", "q[b] = tanh(z[b])\nf2 = W4[b] q[b]")
GAPS = FAMILIES.format("s[a] = {}\np[a] = {}\n")
FAMILY_AT = "b.V=1/2,b.W4=1,b.W5=2,c.V=1,c.W4=1,c.W5=2,d.V=1"
LOGITS = "l[i] = Q[i,x] data[x]\np[i] = softmax(l[i]; i)\nv[i] = R[i,x] data[x]\ny = p[i] v[i]\nz = rho l[i]\n"
SUM_OF_LOGITS, MEAN_OF_LOGITS = LOGITS + "f = y + z", LOGITS + "o = z W2[x] data[x]\nf = y + o"
MEAN_AT = "b.W2=zero,rho=1,c.Q=1,c.R=1,c.W2=1,d.Q=1,d.R=1"
SKEWED = (
    "h[a] = A[a,x] data[x]\nq[a] = relu(h[a])\nn[a] = layernorm(q[a]; a)\nk[a] = B[a,x] data[x]\nw[a] = n[a] k[a]\n"
    "y = beta w[a]\nz = rho k[a]\no = z W2[x] data[x]\nf = y + o"
)
SKEWED_AT = "b.W2=zero,beta=1,rho=1,c.A=1,c.B=1,c.W2=1,d.A=1,d.B=1"
OF_SQUARE = (
    "k[a] = A[a,x] data[x]\nl[a] = B[a,x] data[x]\nj[a] = C[a,x] data[x]\nm[a] = G[a,x] data[x]\n"
    "s[a] = k[a] + l[a] + j[a] + m[a]\np[a] = k[a] l[a] j[a] m[a]\nq[a] = s[a] s[a]\nr[a] = relu(q[a])\n"
    "f = rho p[a] r[a]"
)
PARALLEL = H + "n[a] = rmsnorm(h[a]; a)\nz = rho h[a] h[a]\ny = W2[a] n[a]\nf = z + y"
SMALL_SHARES = "b.W1=1/2,b.W2=0,c.W1=-1,c.W2=-1"

ROWS = [
    # A function is a polynomial of its parity. T1: tanh''(z) dz^2 / 2 is coherent with tanh(z); mean and slope alone
    # gave n^(-1/2).
    *((TANH, rule, "", WIDTH, "h3.cross@1 0, f.cross@1 0", "") for rule in ("sgd", "adam", "muon")),
    # T2: the slope of an odd function is even, and replacing W by -W is a symmetry.
    *(
        (EVEN, "sgd", "c.W=-1,rho=1,beta=1", WIDTH, f"s@{t} -1/2, s.change@{t} -1/2, gs@{t} -1/2, q@{t} -1", "")
        for t in (1, 2)
    ),
    # silu from zero: sum_a of the change is n^(1/2) in its linear part, which is along V, and n in its square.
    (SQUARE, "sgd", "b.W1=zero,b.U=9,b.W2=9", WIDTH, "h.change@1 0, m.change@1 1", ""),
    # The sign of a number is averaged over nothing.
    (NUMBER, "sgd", "alpha=1,c.W1=1/2", WIDTH, "r@2 ?", "no index that grows"),
    # T3: a positive factor changes no sign; where squares of signs meet a function, nothing is claimed.
    (SILU, "signsgd", "", WIDTH, "u.change@1 0, f.cross@1 ?", ""),
    (SILU, "sgd", "", WIDTH, "f.cross@1 0", ""),
    # The sign of a share is 1, also behind a norm, and changes of shares sum to zero.
    (SHARES, "signsgd", "b.W2=1/2,c.W1=1/2,c.W2=3/2", WIDTH, "f.cross@1 .", ""),
    (NORMED_SHARES, "signsgd", "b.W2=zero,c.W2=1", WIDTH, "gu@1 .", ""),
    # The sign of a sum over steps depends on the shares.
    (LAYER_OF_SHARES, "lion", "b.W2=-1/2,b.W3=1,c.W3=1", WIDTH, "h3.cross@1 ., h3.cross@2 ?", ""),
    # T4: each orthogonal part of a gradient of two uses is normalised by itself, unless their directions overlap.
    *((TWICE, rule, TWICE_AT, WIDTH, "h3.effective@1 ?", "directions of its gradient") for rule in ("muon", "shampoo")),
    (CHAIN, "muon", "b.W=1/2,b.W2=1/2,c.W2=1/2", WIDTH, "h2.effective@1 0, h3.effective@1 0, dW@1 -1", ""),
    # A selection whose argument moves little swaps a share; entries that move where they were selected all go up.
    (TOP, "sgd", "b.W2=1/2,c.W2=1/2", WIDTH, "h.change@1 -1/2, h2.change@1 -1/4, f.cross@1 ?", ""),
    (TOP, "sgd", "b.W1=zero,b.W2=zero,c.W1=1/2", WIDTH, "h.change@2 -1/2, h2.change@2 ?", ""),
    # What a mean is taken from keeps the fluctuation of a square: r r is a constant and He2(r), and so is sum_a r r,
    # with n^(-1/2) of it (gl@0: slopes -0.97 to M = 8,192 and -1.43 to 1,024; gh@0 of a normed square: -0.50).
    (VALUES.format("beta "), "sgd", "c.A=-1,c.B=-1", "M=1", "gl@0 -1, l.change@1 0, gB@0 -1", ""),
    (VALUES.format(""), "signsgd", "b.A=4,c.B=9", "M=1", "gl@1 ?, gl@0 -9, s.change@1 0", "square of a sign"),
    (SUMS, "sgd", "rho=1,b.W2=1/2", EXPERTS, "gl@0 -3/2, s@0 1", ""),
    (NORMED_SQUARE, "sgd", "b.W2=1/2,c.W2=1", WIDTH, "r@0 0, gh@0 -1/2, r.change@1 -1/2", ""),
    # A function has as many powers as products see: k l j m is a part of the fourth power of their sum (trained: .050,
    # .050, .048 to n = 262,144; with five factors .030).
    (SILU4, "sgd", "rho=1,b.E2=1", WIDTH, "f@0 0", ""),
    (TANH5, "sgd", "rho=1", WIDTH, "f@0 0", ""),
    # So has a step, entry by entry: sign(k + l + j) has k l j (trained: .16 from n = 512 to 2,048; over epsilon .061).
    *((CUBIC, rule, FAMILY_AT, WIDTH, "y.effective@1 0, z.effective@1 0", "") for rule in ("signsgd", "lion", "adam")),
    # Beside a function, too (trained to n = 4,096: .035, .036, .029); and where the gradient has three terms from the
    # second step on (.097, .108, .108, .097, .105).
    *((CURVED_CUBIC, rule, FAMILY_AT, WIDTH, "y.effective@1 0, y.change@1 0", "") for rule in ("adam", "rmsprop")),
    (CUBIC, "adam", FAMILY_AT.replace("b.W4=1", "b.W4=zero"), WIDTH, "y.effective@1 -1, y.effective@2 0", ""),
    # Where the larger of two uses is exactly zero the smaller has the sign (trained: n^0, not n^(-1/2)); not where it
    # is zero, too.
    (GAPS.format("relu(k[a])", "l[a]"), "signsgd", FAMILY_AT, WIDTH, "y.effective@1 ?", "exactly zero where s is"),
    (GAPS.format("relu(k[a])", "s[a] l[a]"), "signsgd", FAMILY_AT, WIDTH, "dV@1 -1", ""),
    # The gradient behind a norm is orthogonal to what it divides: this inner product is exactly zero, so not claimed.
    (TWO_NORMED, "sgd", "b.W2=zero,b.W3=1/2,b.W4=1,c.W1=-1", WIDTH, "h2.cross@1 ?", ""),
    # Behind a norm a gradient has lost what is along the normed: the readout has learned n^-1 along r, which the norm
    # takes away, up to what r has moved since, n^(-1/2).
    (NORM, "sgd", "c.W1=-3/2,b.W2=2,c.W2=1", WIDTH, "h.change@1 -1/2, gr@1 -1, gh@1 -3/2, gr@0 -2, gh@0 -2", ""),
    # Of a function of what is divided only the linear part is along it: n^-1 is left (trained: -1.00).
    (CURVED, "sgd", "c.W1=-3/2,b.W2=2,c.W2=1", WIDTH, "gh@1 -1, gr@1 -1, gh@0 -2", ""),
    # Vectors of length one that meet themselves have no gradient; those that meet others have.
    (ALONE, "sgd", "b.W2=1/2,b.W3=1,c.W1=-1,c.W3=1", WIDTH, "gq@0 ?, gr@0 -1", ""),
    (UNIT, "sgd", "b.W2=1/2,b.W4=1/2,b.W3=1,c.W1=-1,c.W3=1", WIDTH, "gq@0 -1, gq@1 -1, r.change@1 0, gh@0 -1", ""),
    # The gradient behind a softmax sums to zero; so does a step along it (trained: -5.00), beside another gradient,
    # too; a step of its entries by themselves does not (trained: 1.96e-3, 3.82e-4, 6.5e-5, 1.06e-5 at M = 64 to 4,096):
    # over a large epsilon less of it, by one power (-2.50, -2.53 to M = 65,536).
    (SUM_OF_LOGITS, "sgd", "rho=3", "M=1", "z.change@1 -5, gl@0 -1", ""),
    *((MEAN_OF_LOGITS, rule, MEAN_AT, "M=1", "z.change@1 -3/2", "") for rule in ("signsgd", "adam", "lion")),
    (MEAN_OF_LOGITS, "adam", "b.W2=zero,rho=1", "M=1", "z.change@1 -5/2", ""),
    # A step of a gradient that is not symmetric has a mean (trained: -1.02, -1.00, -1.01).
    (SKEWED, "adam", SKEWED_AT, WIDTH, "z.change@1 -1", ""),
    *((SKEWED, rule, SKEWED_AT, WIDTH, "z.change@1 ?", "square of a sign") for rule in ("signsgd", "lion")),
    # ReLU of a square is the square, which has no product of four signals (trained: -0.54, and -0.62 of medians).
    (OF_SQUARE, "sgd", "rho=1", WIDTH, "f@0 -1/2, r@0 0", ""),
    # A vector that loses more than there is of it turns its sign behind a norm (trained: the change is exactly 2).
    (PARALLEL, "sgd", "rho=1,b.W2=2,c.W1=-1,c.W2=3", WIDTH, "n.change@1 ?, y.change@1 ?, n@0 0", "turns sign"),
    # A softmax does not see what all logits have in common: s is n^(1/2), and half of it is in every logit; logits
    # differ by n^0, so that the softmax does not saturate.
    (COMMON_LOGITS, "sgd", "c.W1=1,b.Q=3/2,c.Q=3,c.U=1,c.R=1", EXPERTS,
     "s@0 1/2, z@0 1/2, p@0 -1, p.change@1 -3", ""),
    # An entry of softmax along a letter that grows is one over their number (measured -1.00).
    (SHARES, "sgd", "b.W2=1/2,c.W2=1/2", WIDTH, "h@0 0, u@0 -1, f@0 -1, u@1 -1", ""),
    # e^x of a Gaussian x has all moments; a step of descent moves x by e^x, and e to the power of that has none.
    (SHARES, "sgd", "c.W1=-1,c.W2=-1", WIDTH, "u@1 ?, f@1 ?, u@0 -1, f@0 -1/2", "no second moment"),
    (BOUNDED_SHARES, "sgd", "c.W1=-1,c.W2=-1", WIDTH, "u@1 -1, f@1 0, u@0 -1, f@0 -1/2", ""),
    # Small logits move by a Gaussian first, and Theta(1) ones at whatever step they move by Theta(1).
    (SHARES, "sgd", SMALL_SHARES, WIDTH, "h@1 0, u@1 -1, h@2 0, u@2 ?", ""),
    (SHARES, "sgd", "b.W2=1/2,c.W1=-1,c.W2=-1", WIDTH, "h.change@1 -1/2, u@1 -1, h.change@2 0, u@2 ?", ""),
    # A product of two Gaussians is heavier, where the shares move to one.
    (PRODUCT_OF_SHARES, "sgd", "b.W1=1/2,c.W1=-1,c.W2=-1,c.W3=-1", WIDTH, "h.change@1 0, u@1 ?", ""),
    # A step that Adam bounds, or a sign, has no tails.
    *((SHARES, rule, "d.W1=1,d.W2=1", WIDTH, "u@2 -1, f@2 0", "") for rule in ("adam", "signsgd")),
    # n^(1/4) times the tensor: after one step of n^(-3/4) the tensor, which started at n^-1, has its size.
    (DEEP, "adafactor", "b.W2=1,c.W2=-1/4,b.W3=1", WIDTH, "dW2@1 -3/4, dW2@2 -1/2", ""),
    # Gates that moved count at the present step: two experts, and what their gates add is not zero once they moved.
    (GATES, "sgd", "b.W2=1/2,b.W3=1/2,c.W1=1,c.W2=1,c.W3=1", "N=1,M=0", "f.regated@0 ., f.regated@1 0", ""),
    # Of K active experts a share is 1/K, also in the batch (measured: tests/measure/test_sparse_gates.py) ...
    (GATED.format("topk_softmax", "alpha "), "sgd", GATED_AT, FEW,
     "phi@1 -1/2, h2.change@1 0, h3i.change@1 0, gphi@1 0", ""),
    # ... of all experts 1/M, and a token's gradient at the logits is not known.
    (GATED.format("softmax", "alpha "), "sgd", f"{GATED_AT},alpha=-1/2", FEW,
     "phi@1 -1, gpsi@1 ?, h2.change@1 0, h3i.change@1 0, gphi@1 1/2", ""),
    # A selection along another index is no routing: what it selects before the experts is the same for every token
    # (measured: case 407 of tests/measure/random_networks.py), where the engine had -1/2.
    *((SELECTED, "sgd", "", ray, "h2.change@1 -1/4", "") for ray in ("N=1,N_e=1,M=1", FEW)),
]  # fmt: skip


@pytest.mark.parametrize("net, rule, point, ray, wanted, why", ROWS, ids=[f"{row[1]}: {row[4]}" for row in ROWS])
def test_the_rule_gives_these_exponents(net, rule, point, ray, wanted, why):
    look = placed(net, rule, ray, point)
    sizes(look, wanted)
    name, t = wanted.split(" ")[0].split("@") if why else ("f", 0)
    assert why in look(name, int(t)).why


def test_a_fluctuation_is_explained_by_two_equal_factors():
    run = placed(VALUES.format("beta "), "sgd", "M=1", "c.A=-1").run("gl", 0)
    gradient = run.gradient("l", 0)
    found = monomial(run.algebra, gradient, run.algebra.leading(gradient)[0])
    assert found.exponent == -1 and [x.tensor for x in found.factors] == ["A", "A"] and not found.pairs


def test_shares_of_active_experts_are_known_and_assume_random_routing():
    for gate, alpha in (("topk_softmax", "0"), ("softmax", "-1/2")):
        look = placed(GATED.format(gate, "alpha "), "sgd", FEW, f"{GATED_AT},alpha={alpha}")
        assert look("gpsi", 1).decided == (gate == "topk_softmax")
        assert "random-routing" in look("phi.change", 1).assumes


@pytest.mark.parametrize("multipliers", ["", "alpha beta "])
def test_every_sum_over_experts_has_the_share_of_the_batch_once(multipliers):
    """Whatever multipliers it has: gradients of experts are those with one, of the power 0."""
    point = ",".join(f"{x}.{name}=1/2" for x in "bcd" for name in ("Q", "W2", "W3")) + ",b.W4=1/2,c.W4=1/2,d.W4=1/2"
    looks = [placed(GATED.format("topk_softmax", text), "sgd", FEW, point) for text in ("alpha ", multipliers)]
    one, other = ([shown(look, name, 0) for name in ("gW2", "gW3", "gW4")] for look in looks)
    assert one == other


@pytest.mark.parametrize(("rule", "second"), [("adam", -1), ("lion", -1), ("signsgd", 0)])
def test_a_normaliser_with_memory_holds_the_largest_past_gradient(rule, second):
    """h2 grows by n in the first step, so that the gradient through its norm shrinks by n: Adam's second step is as
    much smaller than its first, that of a sign is not."""
    text = H + "h2[b] = W2[b,a] h[a]\nh3[b] = rmsnorm(h2[b])\nf = W3[b] h3[b]"
    run = placed(text, rule, WIDTH, "b.W2=1/2,b.W3=1/2,c.W1=3,c.W3=3,d.W1=9,d.W2=9,d.W3=9").run("dW2", 2)
    assert {step.step: run.algebra.value(size.packed) for step, size in run.update_sizes("W2", 2)} == {0: 0, 1: second}
