"""Requantizing: a packed weight that was changed a little, packed again in its own format."""

from __future__ import annotations

import torch

from xgemm.formats.packed import PackedWeight, pack, unpack
from xgemm.formats.quantized import QuantizedWeight
from xgemm.quantize.groups import MAX_CODE
from xgemm.quantize.weight import quantize_weight

# Root mean square of a group's change, in steps of its scale, from which the group gets a new
# scale. benchmarks/merge_loss.py: changes of 0.11 and 0.22 steps lose far less with the old scales,
# those of 0.7 and 2.1 steps a little less with new ones.
NEW_SCALE_STEPS = 0.5


def requantize(packed: PackedWeight, w: torch.Tensor) -> PackedWeight:
    """`w` in the format of `packed`, which holds nearly the same weight.

    packed: the 4-bit weight [n, k] that `w` was made from.
    w: float [n, k], finite, its channels as x has them.

    Group size, zeros, scale dtype and act-order are packed's. A weight that did not change keeps
    its code. Where the change of a group is small beside its scale the group keeps the scale, and
    each weight goes to one of the two codes beside it, the nearer one more often: rounding to
    nearest would give the old codes back, and the change would be lost. The random numbers are the
    same every time. Where the change is large the group is quantized anew (rtn, clip="mse").
    """
    if tuple(w.shape) != (packed.n, packed.k) or not w.dtype.is_floating_point:
        raise ValueError(
            f"requantize: w must be a float tensor [{packed.n}, {packed.k}], "
            f"got {w.dtype} {list(w.shape)}"
        )
    if packed.fp4:
        raise ValueError("requantize: packed must hold int4 codes, got MXFP4")
    old = unpack(packed)
    group = old.group_of_channel()
    groups = old.scales.shape[0]
    wide = w.detach().to(device=old.codes.device, dtype=torch.float32)
    steps = (wide - old.dequantize()) / old.scales.float().t()[:, group]
    squares = torch.zeros(packed.n, groups, device=wide.device)
    squares.index_add_(1, group, steps.square())
    counts = torch.bincount(group, minlength=groups)
    anew = squares > counts * NEW_SCALE_STEPS**2  # [n, groups]
    codes, scales, zeros = _dither(old.codes, steps), old.scales, old.zeros
    if bool(anew.any()):
        order = group.argsort(stable=True)  # as `pack` sorts the channels
        new = quantize_weight(
            wide[:, order],
            group_size=packed.group_size,
            symmetric=zeros is None,
            clip="mse",
            scale_dtype=scales.dtype,
        )
        restored = torch.empty_like(codes).index_copy_(1, order, new.codes)
        codes = torch.where(anew[:, group], restored, codes)
        scales = torch.where(anew.t(), new.scales, scales)
        if zeros is not None and new.zeros is not None:
            zeros = torch.where(anew.t(), new.zeros, zeros)
    return pack(QuantizedWeight(codes, scales, zeros, old.g_idx, packed.group_size))


def _dither(codes: torch.Tensor, steps: torch.Tensor) -> torch.Tensor:
    """uint8 codes + steps, rounded up as often as their fraction says."""
    generator = torch.Generator(codes.device).manual_seed(0)
    uniform = torch.rand(steps.shape, generator=generator, device=steps.device)
    below = steps.floor()
    moved = codes + below + (uniform < steps - below)
    return moved.clamp_(0, MAX_CODE).to(torch.uint8)
