"""How the ops take DTensors: which placements of the inputs give which placement of the result.

A rule lists what needs no communication for one dimension of a mesh; torch redistributes inputs
that lie otherwise (a sharded packed weight is gathered: `parallelize` splits one without that). The
ops without a rule (`pack_w4`, `unpack_w4`, `dequantize_w4` and those that write a given tensor)
refuse DTensors: torch says that they have no sharding strategy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.distributed.tensor import Partial, Placement, Replicate, Shard
from torch.distributed.tensor.experimental import register_sharding

# Placements of the result, and of each argument: None for one that is no tensor.
Rule = tuple[list[Placement | None], list[Placement | None]]

_WHOLE = ("mean", "prod", "norm")  # of parts, their results are not what DTensor can add up
_PARTIAL = {"sum": "sum", "amax": "max", "amin": "min"}


def register() -> None:
    """Tell DTensor the rules of the ops."""
    ops = torch.ops.xgemm
    register_sharding(ops.mul.default)(_mul)
    register_sharding(ops.sgemm.default)(_sgemm)
    register_sharding(ops.mul.w4a16)(_w4a16)
    register_sharding(ops.w4a16_grad_a.default)(_w4a16)
    for name in (*_WHOLE, *_PARTIAL):
        register_sharding(getattr(ops, name).default)(_Reduction(_PARTIAL.get(name)))
    for name in ("argmax", "argmin"):
        register_sharding(getattr(ops, name).default)(_Reduction(None))


def _rule(output: Placement, inputs: dict[int, Placement], arguments: Sequence[Any]) -> Rule:
    """The rule with the placements `inputs` of some arguments; other tensors are replicated."""
    placements: list[Placement | None] = []
    for index, argument in enumerate(arguments):
        is_tensor = hasattr(argument, "placements")
        placements.append(inputs.get(index, Replicate()) if is_tensor else None)
    return [output], placements


def _mul(*arguments: Any, activation: str = "none", precision: str = "ieee") -> list[Rule]:
    """a [..., M, K] times b [..., K, N]: by rows, by columns, by K, by what both have in common."""
    a, b = arguments[:2]
    bias = arguments[2] if len(arguments) > 2 else None
    rules = [_rule(Replicate(), {}, arguments)]
    if a.ndim >= 2 and b.ndim == 2:
        for dim in range(a.ndim - 1):
            rules.append(_rule(Shard(dim), {0: Shard(dim)}, arguments))
        rules.append(_rule(Shard(a.ndim - 1), {1: Shard(1), 2: Shard(0)}, arguments))
        if bias is None and activation == "none":
            by_k: dict[int, Placement] = {0: Shard(a.ndim - 1), 1: Shard(0)}
            rules.append(_rule(Partial(), by_k, arguments))
    elif a.ndim == b.ndim and a.shape[:-2] == b.shape[:-2]:
        for dim in range(a.ndim - 2):
            rules.append(_rule(Shard(dim), {0: Shard(dim), 1: Shard(dim)}, arguments))
    return rules


def _sgemm(*arguments: Any, transa: bool = False, transb: bool = False, **_: Any) -> list[Rule]:
    rows, columns = (1, 0) if transa else (0, 1), (0, 1) if transb else (1, 0)
    rules = [
        _rule(Replicate(), {}, arguments),
        _rule(Shard(0), {0: Shard(rows[0]), 2: Shard(0)}, arguments),
        _rule(Shard(1), {1: Shard(columns[0]), 2: Shard(1)}, arguments),
    ]
    if len(arguments) < 3 or arguments[2] is None:
        by_k: dict[int, Placement] = {0: Shard(rows[1]), 1: Shard(columns[1])}
        rules.append(_rule(Partial(), by_k, arguments))
    return rules


def _w4a16(*arguments: Any, **_: Any) -> list[Rule]:
    """By rows of a; n and k are those of the whole weight, so that stays whole."""
    rules = [_rule(Replicate(), {}, arguments)]
    for dim in range(arguments[0].ndim - 1):
        rules.append(_rule(Shard(dim), {0: Shard(dim)}, arguments))
    return rules


class _Reduction:
    """By dimensions that stay; by those that go where the parts' results can be put together.

    partial: how DTensor puts them together, or None where it cannot.
    """

    def __init__(self, partial: str | None) -> None:
        self.partial = partial

    def __call__(
        self, x: Any, dim: Any = None, keepdim: bool = False, *others: Any, **_: Any
    ) -> list[Rule]:
        dims = [dim] if isinstance(dim, int) else list(dim or range(x.ndim))
        gone = {d % max(x.ndim, 1) for d in dims}
        arguments = (x, dim, keepdim, *others)
        rules = [_rule(Replicate(), {}, arguments)]
        for d in range(x.ndim):
            if d not in gone:
                kept = d if keepdim else d - sum(other < d for other in gone)
                rules.append(_rule(Shard(kept), {0: Shard(d)}, arguments))
            elif self.partial == "sum" or (
                # A greatest element needs elements on every rank.
                self.partial is not None and x.shape[d] % x.mesh.size() == 0 and x.shape[d] > 0
            ):
                rules.append(_rule(Partial(self.partial), {0: Shard(d)}, arguments))
        return rules
