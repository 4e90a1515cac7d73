"""The most that the hardware does, measured in the same run: what a ladder's share is taken of."""

from __future__ import annotations

from typing import Any

from xgemm.ladder.library import ops
from xgemm.ladder.rungs import Ladder

CPU_SECONDS = 0.2


def measure_peak(ladder: Ladder) -> dict[str, Any]:
    """`rate` in the ladder's unit (None where it is not measured), and of what."""
    if ladder.device == "cpu":
        rate = ops().cpu_peak(CPU_SECONDS) * 1e-9
        return {"rate": rate, "of": "independent AVX2 FMAs in registers"}
    return {"rate": None, "of": ""}
