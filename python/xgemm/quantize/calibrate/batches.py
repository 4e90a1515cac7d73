"""Calibration batches: what the model is called with, and which positions count."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_map

# Masks of a tokenizer's and of an encoder-decoder's inputs, the decoder's first.
_MASKS = ("decoder_attention_mask", "attention_mask")


def moved(tree: Any, device: torch.device) -> Any:
    """`tree` with its tensors on `device`."""
    return tree_map(lambda x: x.to(device) if isinstance(x, torch.Tensor) else x, tree)


def tree_bytes(tree: Any) -> int:
    """Bytes of the tensors in `tree`."""
    total = 0

    def count(x: Any) -> None:
        nonlocal total
        if isinstance(x, torch.Tensor):
            total += x.numel() * x.element_size()

    tree_map(count, tree)
    return total


@dataclass(frozen=True)
class Batch:
    """One call of the model.

    masks: bool [B, T] each, on the CPU: True where a position counts.
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    masks: tuple[torch.Tensor, ...]

    def call(self, model: Callable[..., Any], device: torch.device) -> Any:
        return model(*moved(self.args, device), **moved(self.kwargs, device))

    def mask_of(self, x: torch.Tensor) -> torch.Tensor | None:
        """The mask of the positions of `x`, [B, T, ...] or [B * T, ...]; None: all of them count.

        The shape tells: a tensor of other positions (chosen tokens, patches) counts as a whole.
        """
        for mask in self.masks:
            flat = x.dim() == 2 and x.shape[0] == mask.numel()
            if x.shape[:2] == mask.shape or flat:
                return mask
        return None

    def mask_of_rows(self, rows: int) -> torch.Tensor | None:
        """The mask of as many positions as there are `rows`, as a vector."""
        return next((mask.reshape(-1) for mask in self.masks if mask.numel() == rows), None)

    def counted(self, x: torch.Tensor) -> torch.Tensor:
        """The rows [rows, K] of `x` that count."""
        mask = self.mask_of(x)
        rows = x.reshape(-1, x.shape[-1])
        return rows if mask is None else rows[mask.reshape(-1).to(x.device)]


def read_batches(calibration: Any) -> list[Batch]:
    """The batches of `calibration`, an iterable of what the model takes; refuses anything else."""
    if isinstance(calibration, (str, bytes, Mapping, torch.Tensor)) or not isinstance(
        calibration, Iterable
    ):
        raise TypeError(
            "quantize: calibration must be an iterable of batches (dicts of tensors, tensors or "
            f"tuples), such as a list of one, got {type(calibration).__name__}"
        )
    batches = [_batch(batch, index) for index, batch in enumerate(calibration)]
    if not batches:
        raise ValueError("quantize: calibration has no batch")
    return batches


def _batch(batch: Any, index: int) -> Batch:
    if isinstance(batch, Mapping):
        kwargs = dict(batch)
        masks = [kwargs[name] for name in _MASKS if name in kwargs]
        # A mask of more dimensions says who sees whom, not which positions there are.
        flat = tuple(
            mask.detach().to("cpu").bool()
            for mask in masks
            if isinstance(mask, torch.Tensor) and mask.dim() == 2
        )
        if any(not bool(mask.any()) for mask in flat):
            raise ValueError(f"quantize: calibration: every position of batch {index} is masked")
        return Batch((), kwargs, tuple(mask for mask in flat if not bool(mask.all())))
    if isinstance(batch, torch.Tensor):
        return Batch((batch,), {}, ())
    if isinstance(batch, (tuple, list)):
        return Batch(tuple(batch), {}, ())
    raise TypeError(
        f"quantize: calibration: batch {index} must be a dict of tensors, a tensor or a tuple, "
        f"got {type(batch).__name__}"
    )
