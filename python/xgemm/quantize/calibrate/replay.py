"""The model's own forward, replayed up to one block, with what the blocks before it gave.

A transformers model makes masks and rotary embeddings, runs its blocks in a row, each on what the
one before gave, and then norm and head. To run block i over a batch, the model's forward is called
with the blocks before i replaced by stubs: each returns what block i - 1 gave, so block i gets its
input and all that the model hands to it besides. The forward is left behind block i. In memory is
one output for each batch.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from xgemm.quantize.calibrate.batches import Batch, moved, tree_bytes

# Of a GPU's free memory: activations that would take more are kept in the host's.
ACTIVATIONS_SHARE = 0.25


class Stop(BaseException):
    """Leaves the model's forward where nothing more is needed; no `except Exception` holds it."""


@dataclass(eq=False)
class Stage:
    """A block of the model, or, as module None, the layers that run between blocks.

    stack: which row of blocks it belongs to (an encoder's, a decoder's).
    layers: the linears and experts in it that are to be quantized.
    """

    name: str
    module: nn.Module | None
    stack: int
    layers: list[nn.Module] = field(default_factory=list)


@contextlib.contextmanager
def forward_replaced(module: nn.Module, forward: Callable[..., Any]) -> Iterator[None]:
    """Within, `module(...)` calls `forward`."""
    before = module.__dict__.get("forward")
    module.__dict__["forward"] = forward
    try:
        yield
    finally:
        if before is None:
            del module.__dict__["forward"]
        else:
            module.__dict__["forward"] = before


class Replay:
    """Runs stages over the batches.

    stages: in the order in which the model runs them.
    device: where blocks run; parameters and buffers of a block are brought there by its user.
    """

    def __init__(
        self, model: nn.Module, batches: list[Batch], stages: list[Stage], device: torch.device
    ) -> None:
        self.model, self.batches, self.stages, self.device = model, batches, stages, device
        self.home = home_of(model)
        # What the last finished block of each stack gave: (original, stack, batch) -> output, where
        # original is of the float model.
        self._outputs: dict[tuple[bool, int, int], Any] = {}
        self._keep: torch.device | None = None

    def run(self, index: int, batch: int, keep: bool = False, original: bool = False) -> None:
        """Run stage `index` over a batch, as far as hooks let it (Stop).

        keep: its output is what feeds the next block of its stack from now on.
        original: on what the float model's blocks gave.
        """
        stage = self.stages[index]
        with contextlib.ExitStack() as stack:
            for before in self.stages[:index]:
                if before.module is not None:
                    stub = self._stub(before, (original, before.stack, batch))
                    stack.enter_context(forward_replaced(before.module, stub))
            if stage.module is None:
                later = (s.module for s in self.stages[index + 1 :])
                following = next((module for module in later if module is not None), None)
                if following is not None:
                    stack.enter_context(forward_replaced(following, _stop))
            else:
                key = (original, stage.stack, batch) if keep else None
                inner = self._inner(stage.module, key)
                stack.enter_context(forward_replaced(stage.module, inner))
            with contextlib.suppress(Stop):
                self.batches[batch].call(self.model, self.home)

    def _stub(self, stage: Stage, key: tuple[bool, int, int]) -> Callable[..., Any]:
        if key not in self._outputs:
            # The model did not come by any block of the stack with this batch.
            module: Any = stage.module
            return module.forward
        output = self._outputs[key]

        def stub(*args: Any, **kwargs: Any) -> Any:
            return moved(output, self.home)

        return stub

    def _inner(self, module: nn.Module, key: tuple[bool, int, int] | None) -> Callable[..., Any]:
        forward = module.forward

        def inner(*args: Any, **kwargs: Any) -> Any:
            output = forward(*moved(args, self.device), **moved(kwargs, self.device))
            if key is not None:
                self._outputs[key] = moved(output, self._keep_device(output))
            raise Stop

        return inner

    def _keep_device(self, output: Any) -> torch.device:
        if self._keep is None:
            self._keep = self.home
            if self.home.type == "cuda":
                free, _ = torch.cuda.mem_get_info(self.home)
                if tree_bytes(output) * len(self.batches) > ACTIVATIONS_SHARE * free:
                    self._keep = torch.device("cpu")
        return self._keep

    @property
    def activations_device(self) -> torch.device:
        """Where activations are kept."""
        return self.home if self._keep is None else self._keep


def home_of(model: nn.Module) -> torch.device:
    """The device of the model's inputs: that of its first parameter."""
    first = next(model.parameters(), None)
    return torch.device("cpu") if first is None else first.device


def summary(args: Any, kwargs: Any) -> list[float]:
    """Numbers that tell whether two calls got the same floating point tensors."""
    numbers = []
    for leaf in tree_leaves((args, kwargs)):
        if isinstance(leaf, torch.Tensor) and leaf.is_floating_point():
            wide = leaf.detach().double().nan_to_num()
            numbers += [float(wide.sum()), float(wide.square().sum())]
    return numbers


def _stop(*args: Any, **kwargs: Any) -> Any:
    raise Stop
