"""A layer of rows over a nested tensor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def map_nested(layer: Callable[[torch.Tensor], torch.Tensor], nested: torch.Tensor) -> torch.Tensor:
    """`layer` over the last dimension of every tensor in `nested`, jagged or strided."""
    if nested.layout == torch.jagged:
        jagged: Any = nested
        return torch.nested.nested_tensor_from_jagged(layer(jagged.values()), jagged.offsets())
    return torch.nested.as_nested_tensor([layer(tensor) for tensor in nested.unbind()])
