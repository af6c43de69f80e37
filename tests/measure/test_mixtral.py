"""One layer of Mixtral (attention, pre-norm, held gates, four SwiGLU experts): its muP, trained at five sizes."""

import pytest

from scaling_algebra import network, signals
from scaling_algebra.verify import judge, measure

DEPENDS = (
    "scaling_algebra/counting",
    "scaling_algebra/dynamics",
    "scaling_algebra/solver",
    "scaling_algebra/spec",
    "verify/decomposition",
    "verify/judging",
    "verify/measuring",
    "verify/networks",
)
AXES = {"x": "D", "a": "N", "b": "N", "s": "S", "t": "S", "j": "N", "y": "R", "e": "E", "i": "M", "k": "N_e"}
LAYER = """
h0[s,a] = E[a,x] data[s,x]
r1[s,a] = rmsnorm(h0[s,a]; a)
n1[s,a] = G1[a] r1[s,a]
q[s,j,y,e] = Wq[j,y,e,a] n1[s,a]
k[s,j,e] = Wk[j,e,a] n1[s,a]
v[s,j,e] = Wv[j,e,a] n1[s,a]
p[j,y,t,s] = softmax(q[t,j,y,e] k[s,j,e]; s)
o[t,j,y,e] = p[j,y,t,s] v[s,j,e]
u[t,b] = Wo[b,j,y,e] o[t,j,y,e]
h1[t,a] = h0[t,a] + u[t,a]
r2[t,a] = rmsnorm(h1[t,a]; a)
n2[t,a] = G2[a] r2[t,a]
psi[t,i] = Q[i,a] n2[t,a]
phi[t,i] = gate(psi[t,i])
w[t,i,k] = W1[i,k,a] n2[t,a]
h2[t,i,k] = silu(w[t,i,k]) W2[i,k,a] n2[t,a]
h3i[t,i,b] = W3[i,b,k] h2[t,i,k]
h3[t,b] = alpha phi[t,i] h3i[t,i,b]
h4[t,b] = h1[t,b] + h3[t,b]
r4[t,b] = rmsnorm(h4[t,b]; b)
f = U[b] F[b] r4[t,b]
"""
SIZES, SEEDS = (64, 128, 256, 512, 1024), 24


@pytest.mark.parametrize(("rule", "least"), [("adam", 0.9), ("sgd", 0.7)])
def test_nothing_certified_is_refuted(rule, least, record_property):
    """``least``: of the exponents, how many agree; under SGD the rest comes to its power above these sizes."""
    look = signals(None, rule, "mup", ray="N=1,N_e=1,M=0", network=network("mixtral", LAYER, AXES))
    report = judge(measure(look.derivation, sizes=SIZES, seeds=SEEDS, device="cpu"), look.prediction())
    record_property("exponents", {str(k): v for k, v in report.tally.exponents.items()})
    record_property("zeros", {str(k): v for k, v in report.tally.zeros.items()})
    assert report.tally.refuted == 0 and all(gate.passed for gate in report.gates), str(report)
    assert report.tally.exponents["AGREES"] > least * sum(report.tally.exponents.values())
