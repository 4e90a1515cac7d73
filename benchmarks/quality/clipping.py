"""Round to nearest whose ranges are shrunk by errors that are weighted in several ways.

Not options of xgemm: what its choice (|w|; the inputs' x^2 where they are known) was made from.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from quality.peers import linears
from xgemm.quantize.groups import encode, grouped_channels
from xgemm.quantize.rtn import choose_grid

__all__ = ["clippings"]

Tensor = torch.Tensor
# Of the weights w [N, G, g] and the mean square of their inputs x2 [1, G, g]; None: no clipping.
WEIGHTS: dict[str, Callable[[Tensor, Tensor], Tensor] | None] = {
    "no clipping": None,
    "1": lambda w, x2: torch.ones_like(w),
    "|w|": lambda w, x2: w.abs(),
    "sqrt(w^2 + its mean in the group)": lambda w, x2: (w**2 + (w**2).mean(2, True)).sqrt(),
    "x^2": lambda w, x2: x2,
    "sqrt(x^2)": lambda w, x2: x2.sqrt(),
}


def clippings() -> list[tuple[str, Callable[..., None]]]:
    """(name, quantize(model, group_size, symmetric, batches)): the model's weights are replaced."""
    moments: list[list[Tensor]] = []  # of the float model, which is the same in each call

    def entry(weights: Callable[[Tensor, Tensor], Tensor] | None) -> Callable[..., None]:
        def quantize(model: nn.Module, group_size: int, symmetric: bool, batches: Any) -> None:
            layers = linears(model)
            if not moments:
                moments.append(_mean_squares(model, layers, batches))
            for linear, moment in zip(layers, moments[0], strict=True):
                w = linear.weight.data
                grouped = grouped_channels(w, group_size)
                x2 = grouped_channels(moment[None], group_size)
                importance = None if weights is None else weights(grouped, x2)
                clip = "none" if weights is None else "mse"
                scale, zero = choose_grid(grouped, symmetric, clip, torch.float16, importance)
                codes = encode(grouped, scale, zero)
                values = (codes - zero[:, :, None]) * scale[:, :, None]
                linear.weight.data = values.flatten(1)[:, : w.shape[1]].to(w.dtype)

        return quantize

    return [(name, entry(weights)) for name, weights in WEIGHTS.items()]


def _mean_squares(model: nn.Module, layers: list[nn.Linear], batches: list[Tensor]) -> list[Tensor]:
    """Of each input channel of each layer, over all tokens."""
    sums = [torch.zeros(layer.in_features, device=layer.weight.device) for layer in layers]
    rows = sum(batch.numel() for batch in batches)

    def add(total: Tensor) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any) -> None:
            total.add_(args[0].flatten(0, -2).float().square().sum(0))

        return hook

    handles = [
        layer.register_forward_pre_hook(add(total))
        for layer, total in zip(layers, sums, strict=True)
    ]
    with torch.inference_mode():
        for batch in batches:
            model(batch)
    for handle in handles:
        handle.remove()
    return [total / rows for total in sums]
