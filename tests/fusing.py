"""Small models with siblings, and how often they multiply, for the tests of fuse."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import xgemm


class Attention(nn.Module):
    """q, k and v of one tensor, and what a test does between them."""

    def __init__(self, sizes: tuple[int, int, int] = (64, 128, 64), bias: bool = True) -> None:
        super().__init__()
        self.q = nn.Linear(96, sizes[0], bias)
        self.k = nn.Linear(96, sizes[1], bias=False)
        self.v = nn.Linear(96, sizes[2], bias)
        self.between: Any = None

    def forward(self, x: torch.Tensor, other: torch.Tensor | None = None) -> tuple:
        states = x if other is None else other
        q = self.q(x)
        if self.between is not None:
            q = self.between.run()
        return q, self.k(states), self.v(states)


class Block(nn.Module):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.attention = Attention(**options)
        self.gate = nn.Linear(96, 70)
        self.up = nn.Linear(96, 70)
        self.down = nn.Linear(70, 96)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.attention(x)
        x = x + F.pad(q * v, (0, 32)) + k.mean()
        return self.down(F.silu(self.gate(x)) * self.up(x))


def block(seed: int = 0, **options: Any) -> Block:
    torch.manual_seed(seed)
    return xgemm.quantize(Block(**options).eval(), group_size=32)


def inputs(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


X = inputs(2, 3, 96)


class Products(TorchDispatchMode):
    """Counts the calls of mul.w4a16."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func is torch.ops.xgemm.mul.w4a16
        return func(*args, **(kwargs or {}))


def products(module: nn.Module, *args: Any, **kwargs: Any) -> int:
    with torch.no_grad(), Products() as mode:
        module(*args, **kwargs)
    return mode.count


def equal(a: Any, b: Any) -> None:
    torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)
