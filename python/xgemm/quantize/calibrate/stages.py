"""Which blocks a model has, and in which order it runs them and the layers outside of them."""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from torch import nn

from xgemm.quantize.calibrate.batches import Batch
from xgemm.quantize.calibrate.replay import Replay, Stage, forward_replaced, home_of, summary

# Of the sums over a block's inputs: what summing in another order may change.
_SAME = 1e-4


def find_stages(model: nn.Module, layers: Iterable[nn.Module], batch: Batch) -> list[Stage]:
    """The stages that hold the `layers` which `batch` reaches, in the model's order.

    Blocks are the elements of an outermost nn.ModuleList with some of the layers in it. The model
    runs once, to see that each runs once, and once more replayed: a model whose blocks are no chain
    (a block gets what an earlier one than its predecessor gave) has no blocks, and its layers are
    calibrated together.
    """
    wanted = set(layers)
    rows = _rows_of_blocks(model, wanted)
    probe = _Probe(model, rows, wanted, batch)
    rows = [row for row in rows if all(probe.calls[block] <= 1 for _, block in row)]
    stages = probe.stages(rows)
    broken = _first_broken(model, batch, stages, probe.inputs)
    while broken is not None:
        rows.pop(broken)
        stages = probe.stages(rows)
        broken = _first_broken(model, batch, stages, probe.inputs)
    return stages


def _rows_of_blocks(model: nn.Module, layers: set[nn.Module]) -> list[list[tuple[str, nn.Module]]]:
    rows: list[list[tuple[str, nn.Module]]] = []
    within: list[str] = []
    for name, module in model.named_modules():
        if not isinstance(module, nn.ModuleList) or any(name.startswith(w) for w in within):
            continue
        blocks = [(f"{name}.{i}", block) for i, block in enumerate(module)]
        holds = any(m in layers for _, block in blocks for m in block.modules() if m is not block)
        if holds and not any(block in layers for _, block in blocks):
            within.append(f"{name}.")
            rows.append(blocks)
    return rows


class _Probe:
    """What one forward shows: how often blocks run, in which order, and on what."""

    def __init__(
        self,
        model: nn.Module,
        rows: list[list[tuple[str, nn.Module]]],
        layers: set[nn.Module],
        batch: Batch,
    ) -> None:
        self.model, self.layers = model, layers
        self.calls: Counter[nn.Module] = Counter()
        self.inputs: dict[nn.Module, list[float]] = {}
        self._order: list[nn.Module] = []  # blocks and layers, as they are first called
        blocks = {block for row in rows for _, block in row}
        with contextlib.ExitStack() as stack:
            for module in blocks | layers:
                is_block = module in blocks
                hook = module.register_forward_pre_hook(self._hook(is_block), with_kwargs=True)
                stack.callback(hook.remove)
            batch.call(model, home_of(model))

    def _hook(self, is_block: bool) -> Callable[..., None]:
        def called(module: nn.Module, args: Any, kwargs: Any) -> None:
            if module not in self.calls:
                self._order.append(module)
                if is_block:
                    self.inputs[module] = summary(args, kwargs)
            self.calls[module] += 1

        return called

    def stages(self, rows: list[list[tuple[str, nn.Module]]]) -> list[Stage]:
        found = {
            block: Stage(name, block, stack)
            for stack, row in enumerate(rows)
            for name, block in row
            if block in self.calls
        }
        owner: dict[nn.Module, Stage] = {}
        for block, stage in found.items():
            for module in block.modules():
                if module in self.layers and module not in owner:
                    owner[module] = stage
                    stage.layers.append(module)
        stages: list[Stage] = []
        for module in self._order:
            if module in found:
                stages.append(found[module])
            elif module not in owner and module in self.layers:
                if not stages or stages[-1].module is not None:
                    stages.append(Stage("layers outside of blocks", None, -1))
                stages[-1].layers.append(module)
        return stages


def _first_broken(
    model: nn.Module, batch: Batch, stages: list[Stage], inputs: dict[nn.Module, list[float]]
) -> int | None:
    """The row (stack) of the first block whose input the replay gets wrong."""
    replay = Replay(model, [batch], stages, home_of(model))
    for index, stage in enumerate(stages):
        module = stage.module
        if module is None:
            continue
        seen: list[list[float]] = []
        forward: Any = module.forward

        def watched(*args: Any, seen: Any = seen, forward: Any = forward, **kwargs: Any) -> Any:
            seen.append(summary(args, kwargs))
            return forward(*args, **kwargs)

        with forward_replaced(module, watched):
            replay.run(index, 0, keep=True)
        if not seen or not _close(seen[0], inputs[module]):
            return stage.stack
    return None


def _close(one: list[float], other: list[float]) -> bool:
    return len(one) == len(other) and all(
        math.isclose(a, b, rel_tol=_SAME, abs_tol=_SAME) for a, b in zip(one, other, strict=True)
    )
