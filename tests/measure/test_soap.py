"""Why SOAP is no entry among the optimizers: its step has two sizes, by whether its basis has seen the gradient.

Gradients u v^T of rank one, by the rule of Vyas et al. (2024), Algorithm 3: Adam in the eigenvectors of the running
means of g g^T and g^T g; the first gradient makes a basis and no step.
"""

import numpy as np
import pytest
import torch

from scaling_algebra.verify.judging.fit import fit_exponent

DEPENDS = ("verify/judging/fit.py",)

SIZES, SEEDS, BETA, EPSILON = (16, 32, 64, 128), 24, 0.95, 1e-8


def norms(n, seed, before, repeated):
    """Operator norm of each of three steps at learning rate 1.

    Args:
        before: the basis takes the gradient in before the step, not after it.
        repeated: every gradient is the first one again.
    """
    generator = torch.Generator().manual_seed(seed)
    vectors = torch.randn(4, 2, n, generator=generator, dtype=torch.float64)
    if repeated:
        vectors = vectors[:1].expand(4, 2, n)
    squares, seen = [torch.zeros(n, n).double()] * 2, []
    mean, square = torch.zeros(n, n).double(), torch.zeros(n, n).double()
    for t, (u, v) in enumerate(vectors):
        g = torch.outer(u, v)
        after = [BETA * old + (1 - BETA) * new for old, new in zip(squares, (g @ g.T, g.T @ g), strict=True)]
        if t:
            left, right = (torch.linalg.eigh(x)[1] for x in (after if before else squares))
            turned = left.T @ g @ right
            mean, square = BETA * mean + (1 - BETA) * turned, BETA * square + (1 - BETA) * turned**2
            share = 1 - BETA**t
            step = left @ (mean / share / ((square / share).sqrt() + EPSILON)) @ right.T
            seen.append(float(torch.linalg.matrix_norm(step, 2)))
        squares = after
    return seen


@pytest.mark.parametrize(
    ("before", "repeated", "power"), [(False, False, 1.0), (True, False, 0.0), (False, True, 0.0), (True, True, 0.0)]
)
def test_operator_norm_of_a_step(before, repeated, power, record_property):
    """n, as Adam's, where the published basis has not seen the gradient; else 1, as Shampoo's."""
    rows = [np.array([norms(n, seed, before, repeated) for seed in range(SEEDS)]) for n in SIZES]
    found = [fit_exponent(list(SIZES), [row[:, t] for row in rows]) for t in range(3)]
    record_property("slopes", [[x.slope, x.low, x.high] for x in found])
    assert all(x.low - 0.1 < power < x.high + 0.1 for x in found), found
