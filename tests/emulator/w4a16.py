"""Emulated products with a packed 4-bit weight, of torch's CPU tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from helpers import randn

import xgemm
from xgemm import QuantizedWeight, reference

from .library import ACTIVATIONS, DTYPES, Machine, Memory, library

MOST_COMPARED = 1 << 24  # elements, around a result
# (late copies, seed of the threads' order)
ORDERS = ((False, 0), (True, 1), (False, 2), (True, 3))


def machine_of(index: int, sm_count: int = 4) -> Machine:
    late, seed = ORDERS[index % len(ORDERS)]
    return Machine(90, sm_count, late, seed=seed)


def problem_of(
    q: QuantizedWeight, packed: torch.Tensor | None, dtype: torch.dtype, **others: Any
) -> Any:
    """One with q's layout, and nothing else unless `others` names it."""
    nothing = {"m": 0, "x": (0, 1, 1), "d": (0, 1, 1)}
    return library().W4A16Problem(
        layout=(q.n, q.k, q.group_size),
        zeros=q.zeros is not None,
        bf16_scales=q.scales.dtype == torch.bfloat16,
        dtype=DTYPES[dtype],
        weight=0 if packed is None else packed.data_ptr(),
        **{**nothing, **others},
    )


def linear(
    x: torch.Tensor,
    q: QuantizedWeight,
    bias: torch.Tensor | None = None,
    activation: str = "none",
    *,
    machine: Machine,
    perm: torch.Tensor | None = None,
    x_strides: Sequence[int] | None = None,
    d_strides: tuple[int, int] | None = None,
    d_offset: int = 0,
    batch_invariant: bool = False,
    memory: Memory | None = None,
    kernel: str = "",
    **config: int,
) -> tuple[torch.Tensor, str]:
    """activation(x [m, k] W^T + bias) by `kernel` or by the choice, and its explanation.

    `config` overrides fields of the choice; `perm` that of the weight; `kernel` is sm80,
    sm90_skinny, sm90_register_resident or sm90_wgmma. x_strides: others than its own, however
    large. d_offset: elements from an aligned address to the result. RuntimeError: what the kernel
    did that the hardware would not have forgiven.
    """
    packed = xgemm.pack(q)
    perm = packed.perm if perm is None else perm
    (m, _), memory = x.shape, memory or Memory()
    row, column = d_strides or (q.n, 1)
    whole = memory.empty((d_offset + (m - 1) * row + (q.n - 1) * column + 1,), x.dtype)
    d = whole.as_strided((m, q.n), (row, column), d_offset)
    inputs = [None if t is None else memory.copy(t) for t in (packed.qweight, perm, bias)]
    weight, perm, bias = inputs
    x = memory.copy(x) if x_strides is None else memory.spread(x, x_strides)
    emulated = library()
    problem = problem_of(
        q,
        weight,
        x.dtype,
        m=m,
        x=(x.data_ptr(), *x.stride()),
        d=(d.data_ptr(), *d.stride()),
        perm=0 if perm is None else perm.data_ptr(),
        bias=0 if bias is None else bias.data_ptr(),
        bias_stride=1 if bias is None else bias.stride(0),
        activation=ACTIVATIONS.index(activation),
        batch_invariant=batch_invariant,
        overlaps_previous=batch_invariant,
    )
    machine.use()
    select = getattr(emulated, f"select_w4a16_{kernel}" if kernel else "select_w4a16")
    chosen = select(problem, machine.capability, machine.sm_count)
    assert chosen is not None, "no kernel takes the problem"
    if config:
        chosen = emulated.with_fields_w4a16(problem, chosen, config)
    emulated.launch_w4a16(problem, chosen)
    y = d.clone()
    if whole.numel() <= MOST_COMPARED:
        d.fill_(math.nan)
        assert whole.isnan().all(), "written between the elements of the destination"
    return y, emulated.explain_w4a16(problem, chosen)


def check_linear(
    x: torch.Tensor,
    q: QuantizedWeight,
    bias: torch.Tensor | None = None,
    activation: str = "none",
    machine: Machine | None = None,
    **options: Any,
) -> torch.Tensor:
    """What `linear` with `options` gives, which is within the bound of float64."""
    y, said = linear(x, q, bias, activation, machine=machine or machine_of(0), **options)
    expected = reference.w4a16(x, q, bias, activation)
    bound = reference.w4a16_bound(x, q, bias, activation)
    ratio = reference.error_ratio(y, expected, bound)
    assert ratio <= 1, f"{ratio:.3g} of the bound: {said}"
    return y


def check_each_weight(
    q: QuantizedWeight,
    dtype: torch.dtype,
    kernel: str,
    rows: int,
    roundings: float,
    absolute: float = 0.0,
) -> None:
    """The identity as activations, `rows` at a time, reads W itself, each weight at its own place.

    Each is off by as many of dtype's `roundings` of itself, and by `absolute`, at the most.
    """
    w = reference.dequantize(q).t()
    bound = w.abs() * roundings * reference.unit_roundoff(dtype) + absolute
    for first in range(0, q.k, rows):
        part = slice(first, first + rows)
        x = torch.eye(q.k, dtype=dtype)[part]
        y, _ = linear(x, q, machine=machine_of(first), kernel=kernel)
        assert ((y.double() - w[part]).abs() <= bound[part]).all()


def check_one_bad_row(
    q: QuantizedWeight, dtype: torch.dtype, m: int, value: float, kernel: str
) -> None:
    """`value`, which is not finite, in the last of m rows makes that row of the result so alone."""
    x = randn((m, q.k), dtype)
    x[m - 1, 50] = value
    y, _ = linear(x, q, machine=machine_of(m), kernel=kernel)
    assert not y[m - 1].isfinite().any()
    assert y[: m - 1].isfinite().all()


def dequantize(
    q: QuantizedWeight,
    dtype: torch.dtype,
    machine: Machine,
    begin: tuple[int, int] = (0, 0),
    dst: torch.Tensor | None = None,
) -> torch.Tensor:
    """The weight [n, k] in `dtype`, in the order in which its channels are packed.

    With `dst`, which is guarded memory, the part of its size that begins at `begin`.
    """
    memory = Memory()
    packed = memory.copy(xgemm.pack(q).qweight)
    dst = memory.empty((q.n, q.k), dtype) if dst is None else dst
    machine.use()
    library().dequantize_w4(
        problem_of(q, packed, dtype),
        begin,
        tuple(dst.shape),
        dst.data_ptr(),
        dst.stride(0),
        DTYPES[dtype],
    )
    return dst.clone()
