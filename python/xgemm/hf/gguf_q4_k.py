"""Q4_K, the 4-bit format of most GGUF files, as canonical weights: group 32, real zero points.

A block is 256 weights along K: fp16 d, fp16 dmin, 12 bytes of 8 six-bit scales s and minimums m,
and 128 bytes of codes q. A weight of the block's group j is w = d * s[j] * q - dmin * m[j]. Of the
codes bytes 32 h to 32 h + 31 hold group 2 h in their lower halves and group 2 h + 1 in the upper.

Codes are taken over. The scale d * s is rounded once, to fp16, and so is the zero point
dmin * m / scale: a weight moves by at most 2**-11 of d * s * q + dmin * m, and by nothing where
both fit. Source of the format: ggml's block_q4_K and get_scale_min_k4.
"""

from __future__ import annotations

import numpy as np
import torch

from xgemm.formats.quantized import QuantizedWeight

BLOCK_BYTES = 2 + 2 + 12 + 128
_GROUP, _GROUPS = 32, 8  # weights of a group, groups of a block


def q4_k_weight(blocks: np.ndarray) -> QuantizedWeight:
    """The canonical weight of Q4_K bytes, uint8 [N, K / 256 * 144].

    Where d * s is 0 in fp16, or so small that the zero point does not fit, a group is the constant
    -dmin * m (rounded to fp16): scale dmin * m, every code 0 and the zero point 1 or -1.
    """
    if blocks.dtype != np.uint8 or blocks.ndim != 2 or blocks.shape[1] % BLOCK_BYTES:
        raise ValueError(
            f"q4_k_weight: blocks must be uint8 [N, a multiple of {BLOCK_BYTES}], got "
            f"{blocks.dtype} {list(blocks.shape)}"
        )
    n, count = blocks.shape[0], blocks.shape[1] // BLOCK_BYTES
    raw = torch.from_numpy(np.array(blocks)).view(n, count, BLOCK_BYTES)
    # Products of an fp16 and a six-bit number are exact in float32; quotients are taken in float64.
    d, dmin = raw[..., :4].contiguous().view(torch.float16).float().unbind(-1)
    scales, minimums = _six_bits(raw[..., 4:16])
    minimum = dmin[..., None] * minimums
    scale = (d[..., None] * scales).half()
    zero = (minimum.double() / scale.double()).half()
    constant = ~torch.isfinite(zero)
    scale = torch.where(constant, minimum.abs().half(), scale)
    zero = torch.where(constant, minimum.sign().half(), zero)
    halves = raw[..., 16:].view(n, count, _GROUPS // 2, _GROUP)
    codes = torch.stack((halves & 15, halves >> 4), dim=-2).view(n, count, _GROUPS, _GROUP)
    codes = codes.masked_fill(constant[..., None], 0)
    return QuantizedWeight(
        codes=codes.reshape(n, -1),
        scales=scale.view(n, -1).t().contiguous(),
        zeros=zero.view(n, -1).t().contiguous(),
        group_size=_GROUP,
    )


def _six_bits(packed: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(Scales, minimums) float32 [..., 8] of 12 bytes.

    Of the first four groups they are the lower six bits of bytes 0..3 and 4..7. Of the others the
    lower four bits are the halves of bytes 8..11, and the upper two those left over before.
    """
    first, second, third = packed.unflatten(-1, (3, 4)).unbind(-2)
    scales = torch.cat((first & 63, (third & 15) | (first >> 6 << 4)), dim=-1)
    minimums = torch.cat((second & 63, (third >> 4) | (second >> 6 << 4)), dim=-1)
    return scales.float(), minimums.float()
