"""Products of tensors in torch."""

import pytest

torch = pytest.importorskip("torch")

from scaling_algebra.verify.networks.reading import contract


def test_a_tensor_that_stands_twice_in_a_product_is_contracted_twice():
    """sum_axy W_axk V_ayk d_x d_y: what is left of d after the first contraction is another factor."""
    sizes = {"a": 50, "k": 2, "x": 3, "y": 3}
    w, v, d = torch.randn(1, 50, 2, 3), torch.randn(1, 50, 2, 3), torch.randn(1, 3)
    found = contract([("akx", w), ("ayk", v.transpose(2, 3)), ("x", d), ("y", d)], "k", sizes)
    torch.testing.assert_close(found, torch.einsum("Zakx,Zaky,Zx,Zy->Zk", w, v, d, d), rtol=1e-4, atol=1e-4)
