"""The least time that a product can take on a GPU: the larger of its bytes' and its arithmetic's.

Only a GPU model that was measured has a floor; the others get none rather than a guess.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Ceiling:
    """What a GPU model reaches: the time of a read from a cold L2, and the arithmetic's rate."""

    read: tuple[tuple[float, float], ...]  # (megabytes, microseconds, launch included), rising
    flops: float  # a second, 16-bit operands on the tensor cores
    source: str

    def read_seconds(self, count: float) -> float:
        """Linear between the points, and beyond the last one at the rate of the last two."""
        megabytes = count * 1e-6
        segments = zip(self.read, self.read[1:], strict=False)
        x0, y0, x1, y1 = next(
            ((x0, y0, x1, y1) for (x0, y0), (x1, y1) in segments if megabytes <= x1),
            (*self.read[-2], *self.read[-1]),
        )
        return (y0 + (y1 - y0) * (megabytes - x0) / (x1 - x0)) * 1e-6


CEILINGS = {
    "NVIDIA H200": Ceiling(
        # 0 MB is an empty kernel.
        read=(
            *((0, 2.9), (2, 4.7), (4, 5.6), (8, 6.9), (12, 7.9), (16, 9.0), (32, 13.2)),
            *((64, 20.9), (128, 36.9), (240, 65.1), (512, 130.0), (1024, 246.0)),
        ),
        flops=800e12,
        source="the best of 7 read kernels, medians, torch 2.11 with CUDA 13.0, November 2026; the "
        "12 of benchmarks/read_floor.py came within 4 % of them from 8 MB on; 800 TFLOP/s is what "
        "the best dense kernels hold at 8192^3",
    ),
}


def floor_seconds(device: str, count: float, flops: float) -> float | None:
    """Of `count` bytes and `flops` operations on the GPU of this name; None where it is unknown."""
    ceiling = CEILINGS.get(device)
    if ceiling is None:
        return None
    return max(ceiling.read_seconds(count), flops / ceiling.flops)
