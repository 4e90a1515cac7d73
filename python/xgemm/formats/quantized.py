"""QuantizedWeight: the canonical 4-bit weight, one code a byte, as every quantizer makes it."""

from __future__ import annotations

from dataclasses import dataclass

import torch

SYMMETRIC_ZERO = 8  # the zero point where a weight stores none
# What the codes of E2M1 stand for: bit 3 is the sign.
FP4_VALUES = (
    0.0,
    0.5,
    1.0,
    1.5,
    2.0,
    3.0,
    4.0,
    6.0,
    -0.0,
    -0.5,
    -1.0,
    -1.5,
    -2.0,
    -3.0,
    -4.0,
    -6.0,
)


@dataclass(frozen=True, eq=False)
class QuantizedWeight:
    """A 4-bit weight [N, K] in canonical form: `w[n, k] = (codes - zero) * scale`.

    codes: uint8 [N, K], each 0..15.
    scales: fp16 or bf16 [groups, N], groups = ceil(K / group_size).
    zeros: fp16 [groups, N], or None where the zero point is 8 everywhere (symmetric).
    g_idx: int32 [K], the group of each channel (act-order), or None where it is k // group_size.
    group_size: 32, 64, 128, or -1 for one group over all of K.
    fp4: the codes are E2M1 floats (FP4_VALUES) and the weight is MXFP4: `w = value * scale`, groups
        of 32, bf16 scales, no zeros.
    """

    codes: torch.Tensor
    scales: torch.Tensor
    zeros: torch.Tensor | None = None
    g_idx: torch.Tensor | None = None
    group_size: int = 128
    fp4: bool = False

    @property
    def n(self) -> int:
        return self.codes.shape[0]

    @property
    def k(self) -> int:
        return self.codes.shape[1]

    def to(self, device: torch.device | str | int) -> QuantizedWeight:
        """The same weight with its tensors on `device`."""
        return QuantizedWeight(
            self.codes.to(device),
            self.scales.to(device),
            None if self.zeros is None else self.zeros.to(device),
            None if self.g_idx is None else self.g_idx.to(device),
            self.group_size,
            self.fp4,
        )

    def rows(self, rows: slice) -> QuantizedWeight:
        """The output columns `rows` of the weight, sharing its tensors."""
        return QuantizedWeight(
            self.codes[rows],
            self.scales[:, rows],
            None if self.zeros is None else self.zeros[:, rows],
            self.g_idx,
            self.group_size,
            self.fp4,
        )

    def group_of_channel(self) -> torch.Tensor:
        """The group of each channel, int64 [K]."""
        if self.g_idx is not None:
            return self.g_idx.long()
        size = max(self.k, 1) if self.group_size == -1 else self.group_size
        return torch.arange(self.k, device=self.codes.device) // size

    def dequantize(self, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """The weight [N, K], computed in float32 (float64 for a float64 result)."""
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        group = self.group_of_channel()
        scale = self.scales.to(wide).index_select(0, group).t()
        if self.fp4:
            return (self.fp4_values(wide) * scale).to(dtype)
        codes = self.codes.to(wide)
        if self.zeros is None:
            codes -= SYMMETRIC_ZERO
        else:
            codes -= self.zeros.to(wide).index_select(0, group).t()
        return (codes * scale).to(dtype)

    def fp4_values(self, dtype: torch.dtype) -> torch.Tensor:
        """What the codes of an MXFP4 weight stand for, [N, K]."""
        return torch.tensor(FP4_VALUES, dtype=dtype, device=self.codes.device)[self.codes.long()]
