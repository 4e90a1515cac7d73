"""Which layers of a block read the same tensor, in which order they run, and which never do."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import torch
from torch import nn

from xgemm.quantize.calibrate.block import Block, Layer, first_input
from xgemm.quantize.calibrate.experts import expert_rows

# Of second moments of inputs held at a time: the experts of a large module are taken by turns.
GROUP_BYTES = 8 << 30


def find_groups(block: Block, layers: list[Layer]) -> None:
    """Set `groups` and `calls_of` of the block, by running batches until all layers were reached.

    What one batch shows is taken for the rest: a layer belongs with those that read the same
    tensor, and groups run in the order of their first layers.
    """
    of_module: dict[nn.Module, list[Layer]] = {}
    for layer in layers:
        of_module.setdefault(layer.module, []).append(layer)
    order: dict[nn.Module, tuple[Any, ...]] = {}  # module -> what tells its first input's tensor
    reached: set[Layer] = set()
    for batch in range(len(block.replay.batches)):
        calls: Counter[nn.Module] = Counter()
        held: list[torch.Tensor] = []  # so that no two tensors of a batch have one address

        def hook(
            module: nn.Module, args: Any, kwargs: Any, batch: int = batch, calls: Any = calls,
            held: Any = held,
        ) -> None:  # fmt: skip
            x = first_input(args, kwargs)
            held.append(x)
            calls[module] += 1
            order.setdefault(module, (batch, x.data_ptr(), x.shape, x.stride(), x._version))
            reached.update(_served(block, batch, of_module[module], args, kwargs))

        block.run_hooked(batch, list(of_module), hook)
        for module, count in calls.items():
            block.calls_of[module] = max(count, block.calls_of.get(module, 0))
        if len(reached) == len(layers):
            break
    groups: dict[Any, list[Layer]] = {}
    first: dict[Any, Layer] = {}
    for module, key in order.items():
        for layer in of_module[module]:
            if layer in reached:
                expert = _expert_kind(layer)
                groups.setdefault(key if expert is None else expert, []).append(layer)
                alone = layer.projection is not None
                block.leaders[layer] = layer if alone else first.setdefault(key, layer)
    block.groups = [part for group in groups.values() for part in _split(group)]


def _served(block: Block, batch: int, layers: list[Layer], args: Any, kwargs: Any) -> list[Layer]:
    """Those of `layers`, of one module, that a call serves with at least a row."""
    one = block.replay.batches[batch]
    if layers[0].projection is None:
        return layers if one.counted(first_input(args, kwargs)).shape[0] > 0 else []
    rows = expert_rows(layers[0].module, args, kwargs, one.mask_of_rows)
    with_rows = {expert for expert, x in rows if x.shape[0] > 0}
    return [layer for layer in layers if layer.expert in with_rows]


def _expert_kind(layer: Layer) -> str | None:
    """What the layer is in each expert, so that those of all experts are taken together."""
    if layer.projection is not None:
        return f"{layer.name.rpartition('.')[0]}"
    kind, count = re.subn(r"(experts?\.)\d+\.", r"\1*.", layer.name)
    if count == 0:
        return None
    # Of one expert, gate and up (or w1 and w3) read one tensor.
    return re.sub(r"\.(gate_proj|up_proj|w1|w3|v1)$", ".first", kind)


def _split(group: list[Layer]) -> list[list[Layer]]:
    """The group in parts whose second moments fit GROUP_BYTES; one where they all do."""
    parts: list[list[Layer]] = [[]]
    size = 0
    for layer in group:
        bytes_of = 4 * layer.k**2 if layer.projection is not None else 0
        if parts[-1] and size + bytes_of > GROUP_BYTES:
            parts.append([])
            size = 0
        parts[-1].append(layer)
        size += bytes_of
    return parts
