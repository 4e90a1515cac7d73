"""Packed linears that share a layer of vLLM's: which rows are whose, and their product."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from xgemm.formats.manifest import ExpertsSpec, ModuleSpec
from xgemm.formats.packed import ROW_COLUMNS


@dataclass(frozen=True)
class Part:
    """Rows of a packed weight that are one linear to the kernels.

    rows: the rows of qweight; n: the output columns that they hold.
    perm: int32 [K], the order of channels (act-order), or None.
    """

    rows: slice
    n: int
    perm: torch.Tensor | None = None


def members(prefix: str, packed: Container[str], joined: dict[str, list[str]]) -> list[str]:
    """Names of the packed linears that vLLM's layer `prefix` is made of; none where it is float.

    joined: vLLM's names of joined layers, and the leaves that they are made of.
    """
    parent, _, leaf = prefix.rpartition(".")
    names = [prefix]
    if prefix not in packed:  # a file may hold as one layer what vLLM joins (Phi-3)
        leaves = joined.get(leaf, [leaf])
        names = [f"{parent}.{name}" if parent else name for name in leaves]
    found = [name for name in names if name in packed]
    if found and len(found) < len(names):
        missing = next(name for name in names if name not in found)
        raise ValueError(
            f"xgemm: vLLM joins {', '.join(names)} into {prefix}: all of them must be packed, "
            f"{missing} is not"
        )
    return found


def load_order(param: Any, loaded: torch.Tensor, shard_id: Any = None) -> None:
    """The order of channels of one of the linears, or of all where the file holds them as one."""
    orders = param.data if shard_id is None else param.data[shard_index(shard_id)]
    orders.copy_(loaded)


def shard_index(shard_id: Any) -> int:
    """vLLM calls the linears of a joined layer "q", "k", "v", or by number."""
    return {"q": 0, "k": 1, "v": 2, None: 0}.get(shard_id, shard_id)


def check_parts(prefix: str, specs: dict[str, ModuleSpec | ExpertsSpec]) -> list[ModuleSpec]:
    """The formats of the linears that form the layer `prefix`, which must be one but for n.

    Raises ValueError where two differ: they cannot lie in one packed weight.
    """
    found: list[ModuleSpec] = []
    for name, spec in specs.items():
        if isinstance(spec, ExpertsSpec):
            raise ValueError(f"xgemm: {name}: packed experts cannot be served by vLLM yet")
        if found and replace(spec, n=found[0].n, bias=found[0].bias) != found[0]:
            first = next(iter(specs))
            raise ValueError(
                f"xgemm: vLLM joins {first} and {name} into {prefix}, but their formats differ: "
                f"{found[0]} and {spec}"
            )
        found.append(spec)
    return found


def join(columns: list[int], perms: Sequence[torch.Tensor | None] | None) -> list[Part]:
    """Parts for linears of `columns` output columns each, with as few products as may be.

    Linears in the same order of channels are one part, if each but the last fills its rows.
    perms: one int32 [K], or None, for each linear, or None where no order is stored.
    """
    parts: list[Part] = []
    start = 0
    for index, n in enumerate(columns):
        perm = None if perms is None else perms[index]
        stop = start + -(-n // ROW_COLUMNS)
        last = parts[-1] if parts else None
        if last is not None and last.n % ROW_COLUMNS == 0 and _equal(last.perm, perm):
            parts[-1] = Part(slice(last.rows.start, stop), last.n + n, perm)
        else:
            parts.append(Part(slice(start, stop), n, perm))
        start = stop
    return parts


def _equal(one: torch.Tensor | None, other: torch.Tensor | None) -> bool:
    if one is None or other is None:
        return one is other
    return torch.equal(one, other)


def multiply(
    x: torch.Tensor,
    qweight: torch.Tensor,
    parts: list[Part],
    spec: ModuleSpec,
    k: int,
    bias: torch.Tensor | None,
    batch_invariant: bool,
) -> torch.Tensor:
    """x W^T + bias of all parts side by side, [..., sum of n], with the layer's activation."""
    options: dict[str, bool | str] = {}
    if spec.bf16_scales:
        options["bf16_scales"] = True
    if spec.zeros:
        options["zeros"] = True
    if spec.activation != "none":
        options["activation"] = spec.activation
    if batch_invariant:
        options["batch_invariant"] = True
    w4a16 = torch.ops.xgemm.mul.w4a16
    if len(parts) == 1:
        part = parts[0]
        return w4a16(x, qweight, part.n, k, spec.group_size, bias, part.perm, **options)
    products, column = [], 0
    for part in parts:
        own = None if bias is None else bias[column : column + part.n]
        rows = qweight[part.rows]
        products.append(w4a16(x, rows, part.n, k, spec.group_size, own, part.perm, **options))
        column += part.n
    return torch.cat(products, dim=-1)
