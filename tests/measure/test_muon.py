"""A step of Muon is of its own gradient: what momentum and Newton-Schulz steps make of a small difference.

With momentum a step has two nearly parallel directions. An exact orthogonalisation brings both to one, which is another
optimizer; five Newton-Schulz steps multiply the smaller by 485 at most: slopes bend where it falls below 1/485.
"""

from fractions import Fraction
from itertools import pairwise

import pytest
import torch

from ..engine.scenarios import placed
from .interpreter import spanned

DEPENDS = ("derives", "tests/measure/interpreter.py")

CHAIN = "h1[a] = W1[a,x] data[x]\nh2[b] = W[b,a] h1[a]\nf = W2[b] h2[b]"
POINT = "b.W=1/2,b.W2=1,c.W1=0,c.W=1/2,c.W2=1"
SIZES, SEEDS = (64, 256, 1024), 12


def exact(m):
    u, s, v = torch.linalg.svd(m)
    return (u * (s > 1e-9 * s[0])) @ v


def newton_schulz(m):
    m = m / m.norm()
    for _ in range(5):
        square = m @ m.mT
        m = 3.4445 * m + (-4.775 * square + 2.0315 * square @ square) @ m
    return m


def cross(n, momentum, orthogonal, seed):
    """``dW dh1`` after two steps, root-mean-square."""
    g = torch.Generator().manual_seed(seed)
    stds, rates = (1.0, n**-0.5, 1 / n), (1.6, 2 / n**0.5, 2 / n)
    dims = ((n, 3), (n, n), (1, n))
    first = [s * torch.randn(*d, generator=g, dtype=torch.float64) for s, d in zip(stds, dims, strict=True)]
    x = torch.tensor([[0.6], [0.0], [0.8]], dtype=torch.float64)
    now, past = [w.clone() for w in first], [torch.zeros_like(w) for w in first]
    for _ in range(2):
        h1, back = now[0] @ x, now[2] @ now[1]
        gradients = [back.mT @ x.mT, now[2].mT @ h1.mT, (now[1] @ h1).mT]
        past = [momentum * p + (1 - momentum) * y for p, y in zip(past, gradients, strict=True)]
        for w, p, y, rate in zip(now, past, gradients, rates, strict=True):
            seen = momentum * p + (1 - momentum) * y  # Nesterov's, as torch.optim.Muon
            q, r = spanned(seen), spanned(seen.mT)
            w -= rate * q @ orthogonal(q.mT @ seen @ r) @ r.mT
    return ((now[1] - first[1]) @ ((now[0] - first[0]) @ x)).square().mean()


@pytest.mark.parametrize("orthogonal", [exact, newton_schulz])
@pytest.mark.parametrize("momentum", [0, 0.95])
def test_what_a_step_moves_along_the_last_one_is_its_own(momentum, orthogonal, record_property):
    assert placed(CHAIN, "muon", "N=1", POINT)("h2.cross", 2).size == Fraction(-3, 2)
    found = [torch.stack([cross(n, momentum, orthogonal, k) for k in range(SEEDS)]).mean().sqrt() for n in SIZES]
    slopes = [(torch.log(y / x) / torch.log(torch.tensor(4.0))).item() for x, y in pairwise(found)]
    record_property("slopes", [round(x, 2) for x in slopes])
    if momentum and orthogonal is newton_schulz:
        assert slopes[1] < -1.75  # beyond, -1.5
    else:
        assert abs(slopes[1] - (-1 if momentum else -1.5)) < 0.15
