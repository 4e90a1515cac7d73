"""MXFP4 as checkpoints hold it: E2M1 codes, two in a byte, and E8M0 scales of 32 channels."""

from __future__ import annotations

import torch

from xgemm.formats.quantized import QuantizedWeight

GROUP_SIZE = 32


def mxfp4_weight(blocks: torch.Tensor, scales: torch.Tensor) -> QuantizedWeight:
    """The weight [N, K] of its bytes.

    blocks: uint8 [N, K / 2], or [N, K / 32, 16]; the low nibble is the earlier channel.
    scales: uint8 [N, K / 32], E8M0. ValueError where shapes and types are others, and where a
        scale is 255, which stands for NaN.
    """
    blocks = blocks.flatten(1) if blocks.dim() == 3 else blocks
    for name, tensor in (("blocks", blocks), ("scales", scales)):
        if tensor.dtype != torch.uint8 or tensor.dim() != 2:
            raise ValueError(
                f"MXFP4: {name} must be uint8 and of two dimensions, got "
                f"{tensor.dtype} {list(tensor.shape)}"
            )
    n, packed_k = blocks.shape
    if packed_k % 16 != 0 or tuple(scales.shape) != (n, packed_k // 16):
        raise ValueError(
            f"MXFP4: scales must be [N, K / 32] for blocks [N, K / 2], got {list(scales.shape)} "
            f"for {list(blocks.shape)}"
        )
    bf16_scales = e8m0_to_bfloat16(scales).t().contiguous()
    return QuantizedWeight(e2m1_codes(blocks), bf16_scales, group_size=GROUP_SIZE, fp4=True)


def e2m1_codes(packed: torch.Tensor) -> torch.Tensor:
    """uint8 [..., K] of the codes in uint8 [..., K / 2], the low nibble first."""
    return torch.stack((packed & 15, packed >> 4), dim=-1).flatten(-2)


def e8m0_to_bfloat16(scales: torch.Tensor) -> torch.Tensor:
    """2^(e - 127) for each byte e, exactly: 2^-127 is a subnormal bfloat16. ValueError of 255."""
    if bool((scales == 255).any()):
        place = (scales == 255).nonzero()[0].tolist()
        raise ValueError(f"MXFP4: scales must be finite, got 255, which is NaN, at {place}")
    bits = scales.to(torch.int16) << 7
    return torch.where(scales == 0, bits.new_tensor(1 << 6), bits).view(torch.bfloat16)
