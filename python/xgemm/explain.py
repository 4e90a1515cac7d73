"""Which kernel a problem gets, as data: the choice, its reason, and the candidates' estimates."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import torch

REDUCTIONS = ("sum", "mean", "prod", "amax", "amin", "norm", "argmax", "argmin")


def explain(
    op: str, *sizes: int, dim: int | Sequence[int] | None = None, **options: Any
) -> dict[str, Any]:
    """What `torch.ops.xgemm.explain` and `explain_reduce` say of a problem, parsed.

    Args:
        op: mul, mul.w4a16 or sgemm, or a reduction.
        sizes: m, n and k; of a reduction, the tensor's shape.
        dim: the dimensions that a reduction reduces; None for all.
        options: dtype, device and what else the op of the same name takes.

    Returns:
        family: dense, w4a16 or reduce. device: cpu or cuda. problem: what the choice looked at.
        choice: the kernel, its configuration and `reason`; on CUDA `estimate_us`, where the kernel
            was weighed against others.
        candidates: all that were weighed, each with `estimate_us`, the least first. Empty on the
            CPU, where a rule gives each problem its kernel.

    Raises:
        ValueError: an argument does not fit; the message names it.
    """
    if op in REDUCTIONS:
        said = torch.ops.xgemm.explain_reduce(op, sizes, dim, json=True, **options)
    else:
        if dim is not None:
            raise ValueError(f"explain: dim must be left out for op {op!r}, got {dim!r}")
        said = torch.ops.xgemm.explain(op, *sizes, json=True, **options)
    found: dict[str, Any] = json.loads(said)
    return found
