"""What every method that uses calibration data is told."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Settings:
    """The arguments of `xgemm.quantize`."""

    group_size: int
    symmetric: bool
    clip: str
    scale_dtype: torch.dtype | None
    seed: int
