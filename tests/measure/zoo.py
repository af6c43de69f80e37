"""Ten modules that people train, small, and a fault of each: the wrong power of one parameter."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import nn
from torch.nn import functional as F

from scaling_algebra.spec.powers import Power

Dims = Mapping[str, int]


class Feedforward(nn.Module):
    """Three layers, one hidden."""

    def __init__(self, n: int, act: Callable, bias: bool = False, norm: bool = False) -> None:
        super().__init__()
        self.inp, self.mid, self.head = nn.Linear(5, n, bias), nn.Linear(n, n, bias), nn.Linear(n, 3, bias=False)
        self.norm, self.act = nn.LayerNorm(n) if norm else nn.Identity(), act

    def forward(self, x):
        return self.head(self.act(self.mid(self.norm(self.act(self.inp(x))))))


class Gated(nn.Module):
    """SwiGLU on a residual stream."""

    def __init__(self, n: int, wide: int) -> None:
        super().__init__()
        self.inp, self.head = nn.Linear(8, n, bias=False), nn.Linear(n, 5, bias=False)
        self.gate, self.up, self.down = nn.Linear(n, wide, False), nn.Linear(n, wide, False), nn.Linear(wide, n, False)

    def forward(self, x):
        h = self.inp(x)
        return self.head(h + self.down(F.silu(self.gate(h)) * self.up(h)))


class Experts(nn.Module):
    """A softmax over experts that are stacked."""

    def __init__(self, n: int, wide: int, m: int) -> None:
        super().__init__()
        self.inp, self.router, self.head = nn.Linear(5, n, False), nn.Linear(n, m, False), nn.Linear(n, 3, False)
        self.up, self.down = nn.Parameter(torch.randn(m, wide, n)), nn.Parameter(torch.randn(m, n, wide))

    def forward(self, x):
        h = self.inp(x)
        inside = torch.einsum("eki,bi->bek", self.up, h).relu()
        return self.head(h + torch.einsum("be,enk,bek->bn", self.router(h).softmax(-1), self.down, inside))


class PreNorm(nn.Module):
    """Pre-norm, heads of eight, a feed-forward part four times as wide."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.qkv, self.out, self.heads = nn.Linear(n, 3 * n, bias=False), nn.Linear(n, n, bias=False), n // 8
        self.up, self.down = nn.Linear(n, 4 * n, bias=False), nn.Linear(4 * n, n, bias=False)
        self.first, self.second = nn.RMSNorm(n), nn.RMSNorm(n)

    def forward(self, h):
        b, t, n = h.shape
        q, k, v = (y.view(b, t, self.heads, -1).transpose(1, 2) for y in self.qkv(self.first(h)).chunk(3, -1))
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        h = h + self.out(a.transpose(1, 2).reshape(b, t, n))
        return h + self.down(F.gelu(self.up(self.second(h))))


class Transformer(nn.Module):
    """Blocks between an embedding and a head, perhaps its transpose."""

    def __init__(self, n: int, layers: int, tied: bool = False) -> None:
        super().__init__()
        self.tokens, self.blocks = nn.Embedding(32, n), nn.ModuleList(PreNorm(n) for _ in range(layers))
        self.norm, self.head = nn.RMSNorm(n), nn.Linear(n, 32, bias=False)
        if tied:
            self.head.weight = self.tokens.weight

    def forward(self, ids):
        h = self.tokens(ids)
        for block in self.blocks:
            h = block(h)
        return self.head(self.norm(h))


class Tied(nn.Module):
    """An embedding that reads out, too."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.tokens, self.mid = nn.Embedding(32, n), nn.Linear(n, n, bias=False)

    def forward(self, ids):
        h = self.tokens(ids)
        return F.linear(h + self.mid(h).tanh(), self.tokens.weight) / h.shape[-1]


class Adapted(nn.Module):
    """A frozen matrix and a product of rank four beside it."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.inp, self.mid, self.head = nn.Linear(5, n, bias=False), nn.Linear(n, n, bias=False), nn.Linear(n, 3, False)
        self.a, self.b = nn.Linear(n, 4, bias=False), nn.Linear(4, n, bias=False)
        self.mid.weight.requires_grad_(False)

    def forward(self, x):
        h = self.inp(x).tanh()
        return self.head((self.mid(h) + self.b(self.a(h))).tanh())


class Convolutions(nn.Module):
    """Three convolutions and a mean over places."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.inp, self.mid = nn.Conv1d(3, n, 3, padding=1, bias=False), nn.Conv1d(n, n, 3, padding=1, bias=False)
        self.head = nn.Linear(n, 4, bias=False)

    def forward(self, x):
        return self.head(self.mid(self.inp(x).relu()).relu().mean(-1))


def fixed(*shape: int) -> torch.Tensor:
    """One input at every size."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


@dataclass(frozen=True)
class Checked:
    """A model, and what is wrong with it where a fault is planted.

    Attributes:
        build: of sizes.
        sizes: base and target; by default those of ``check_model``. With the readout drawn, what an adapter of small
            models does is led by a random sum for long.
        where, what: the parameter (as a plan names it), and ``lr`` or ``init_std``: it does not scale.
    """

    build: Callable[[Dims], object]
    where: str
    what: str = "lr"
    powers: Power = field(default_factory=Power)
    sizes: tuple[str, ...] = ()


ZOO = {
    "mlp": Checked(lambda z: Feedforward(z["N"], torch.tanh), "mid.weight"),
    "silu": Checked(lambda z: Feedforward(z["N"], F.silu), "mid.weight", "init_std"),
    "gelu": Checked(lambda z: Feedforward(z["N"], F.gelu, bias=True), "mid.bias", "lr", Power.parse("N^-1")),
    "layernorm": Checked(lambda z: Feedforward(z["N"], torch.tanh, norm=True), "mid.weight"),
    "swiglu": Checked(lambda z: (Gated(z["N"], 2 * z["N"]), fixed(4, 8)), "up.weight"),
    "moe": Checked(lambda z: Experts(z["N"], z["N_e"], z["M"]), "down"),
    "transformer": Checked(lambda z: Transformer(z["N"], 2), "blocks.1.up.weight"),
    "tied": Checked(lambda z: Tied(z["N"]), "mid.weight"),
    "lora": Checked(lambda z: Adapted(z["N"]), "a.weight", sizes=("N=128", "N=512")),
    "conv": Checked(lambda z: (Convolutions(z["N"]), fixed(4, 3, 8)), "mid.weight"),
}
