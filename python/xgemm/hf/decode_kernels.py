"""Triton kernels for what lies between the linears of a decode step: norm, rotary, SiLU, attention.

A decode step has one new token a sequence, so each of these moves a few kilobytes and costs what
its launches cost. transformers computes them by some forty small kernels a layer; here it is one
each (two for attention). Every function rounds where transformers' own code rounds, so that the
logits differ by the order of sums alone. Needs a GPU and triton, which torch for CUDA brings.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

KEY_BLOCK = 64  # positions of the cache that a program of attention reads at a time


@triton.jit
def _rms_norm(x, weight, y, row_stride, size, eps, ONE_PLUS: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    inside = column < size
    values = tl.load(x + row * row_stride + column, mask=inside, other=0.0).to(tl.float32)
    scale = tl.load(weight + column, mask=inside, other=0.0)
    normed = values * tl.rsqrt(tl.sum(values * values, axis=0) / size + eps)
    if ONE_PLUS:
        result = normed * (1.0 + scale.to(tl.float32))
    else:
        result = normed.to(scale.dtype).to(tl.float32) * scale.to(tl.float32)
    tl.store(y + row * size + column, result.to(y.dtype.element_ty), mask=inside)


def rms_norm(
    x: torch.Tensor, weight: torch.Tensor, eps: float, one_plus: bool = False
) -> torch.Tensor:
    """x / sqrt(mean(x^2) + eps) * weight over the last dimension.

    one_plus: Gemma's form, which multiplies by 1 + weight before it rounds.
    """
    size = x.shape[-1]
    rows = x.reshape(-1, size)
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    _rms_norm[(rows.shape[0],)](
        rows, weight, y, rows.stride(0), size, eps, one_plus, triton.next_power_of_2(size)
    )
    return y


@triton.jit
def _rotate(
    q, k, cos, sin, q_out, k_out, q_row, q_head, k_row, k_head, table_row, q_heads, k_heads, half,
    BLOCK: tl.constexpr,
):  # fmt: skip
    row, head = tl.program_id(0), tl.program_id(1)
    column = tl.arange(0, BLOCK)
    inside = column < half
    if head < q_heads:
        source = q + row * q_row + head * q_head
        target = q_out + (row * q_heads + head) * 2 * half
    else:
        source = k + row * k_row + (head - q_heads) * k_head
        target = k_out + (row * k_heads + head - q_heads) * 2 * half
    dtype = q_out.dtype.element_ty
    first = tl.load(source + column, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(source + half + column, mask=inside, other=0.0).to(tl.float32)
    table = row * table_row + column
    cos_first = tl.load(cos + table, mask=inside, other=0.0).to(tl.float32)
    cos_second = tl.load(cos + table + half, mask=inside, other=0.0).to(tl.float32)
    sin_first = tl.load(sin + table, mask=inside, other=0.0).to(tl.float32)
    sin_second = tl.load(sin + table + half, mask=inside, other=0.0).to(tl.float32)
    # Each product is rounded, as torch rounds it.
    upper = (first * cos_first).to(dtype).to(tl.float32) - (second * sin_first).to(dtype).to(
        tl.float32
    )
    lower = (second * cos_second).to(dtype).to(tl.float32) + (first * sin_second).to(dtype).to(
        tl.float32
    )
    tl.store(target + column, upper.to(dtype), mask=inside)
    tl.store(target + half + column, lower.to(dtype), mask=inside)


def rotate(
    q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rotary embedding of q [B, heads, 1, size] and k [B, kv_heads, 1, size], as new tensors.

    cos, sin: [B or 1, 1, size], of q's dtype, the last dimension contiguous.
    """
    rows, heads, _, size = q.shape
    kv_heads = k.shape[1]
    q_out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    k_out = torch.empty(k.shape, dtype=k.dtype, device=k.device)
    table_row = cos.stride(0) if cos.shape[0] > 1 else 0
    _rotate[(rows, heads + kv_heads)](
        q, k, cos, sin, q_out, k_out, q.stride(0), q.stride(1), k.stride(0), k.stride(1),
        table_row, heads, kv_heads, size // 2, triton.next_power_of_2(size // 2),
    )  # fmt: skip
    return q_out, k_out


@triton.jit
def _append(
    key, value, keys, values, slot, k_row, k_head, v_row, v_head, heads, length, k_size, v_size,
    BLOCK: tl.constexpr,
):  # fmt: skip
    row, head = tl.program_id(0), tl.program_id(1)
    at = tl.load(slot)
    column = tl.arange(0, BLOCK)
    position = (row * heads + head).to(tl.int64) * length + at
    inside = column < k_size
    new_key = tl.load(key + row * k_row + head * k_head + column, mask=inside)
    tl.store(keys + position * k_size + column, new_key, mask=inside)
    inside = column < v_size
    new_value = tl.load(value + row * v_row + head * v_head + column, mask=inside)
    tl.store(values + position * v_size + column, new_value, mask=inside)


def append(
    key: torch.Tensor,
    value: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    slot: torch.Tensor,
) -> None:
    """Writes key and value [B, heads, 1, size] to keys and values [B, heads, length, size] at slot.

    slot: int64 [1], within 0..length - 1.
    """
    rows, heads, length, k_size = keys.shape
    v_size = values.shape[-1]
    _append[(rows, heads)](
        key, value, keys, values, slot, key.stride(0), key.stride(1), value.stride(0),
        value.stride(1), heads, length, k_size, v_size,
        triton.next_power_of_2(max(k_size, v_size)),
    )  # fmt: skip


@triton.jit
def _silu_mul(gate, up, y, gate_row, up_row, size, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < size
    g = tl.load(gate + row * gate_row + column, mask=inside, other=0.0)
    u = tl.load(up + row * up_row + column, mask=inside, other=0.0).to(tl.float32)
    wide = g.to(tl.float32)
    activated = (wide / (1.0 + tl.exp(-wide))).to(g.dtype).to(tl.float32)
    tl.store(y + row * size + column, (activated * u).to(y.dtype.element_ty), mask=inside)


def silu_mul(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """silu(gate) * up of two tensors of one shape, each with a contiguous last dimension."""
    size = gate.shape[-1]
    gates, ups = gate.reshape(-1, size), up.reshape(-1, size)
    y = torch.empty(gate.shape, dtype=gate.dtype, device=gate.device)
    _silu_mul[(gates.shape[0], triton.cdiv(size, 1024))](
        gates, ups, y, gates.stride(0), ups.stride(0), size, 1024
    )
    return y


@triton.jit
def _attend(
    q, keys, values, mask, parts, logsums, q_row, q_head, mask_row, scale, kv_heads, group, length,
    share, k_size, v_size,
    GROUP: tl.constexpr, KEY: tl.constexpr, K: tl.constexpr, V: tl.constexpr,
):  # fmt: skip
    """Attention of the queries of one key head over one share of the positions."""
    pair, split = tl.program_id(0), tl.program_id(1)
    splits = tl.num_programs(1)
    row, kv_head = pair // kv_heads, pair % kv_heads
    member, k_column, v_column = tl.arange(0, GROUP), tl.arange(0, K), tl.arange(0, V)
    head = kv_head * group + member
    query = tl.load(
        q + row * q_row + head[:, None] * q_head + k_column[None, :],
        mask=(member[:, None] < group) & (k_column[None, :] < k_size),
        other=0.0,
    )
    most = tl.full((GROUP,), -1e30, tl.float32)
    total = tl.zeros((GROUP,), tl.float32)
    sums = tl.zeros((GROUP, V), tl.float32)
    base = pair.to(tl.int64) * length
    begin = split * share
    for start in range(begin, tl.minimum(begin + share, length), KEY):
        position = start + tl.arange(0, KEY)
        seen = tl.load(mask + row * mask_row + position, mask=position < length, other=0) != 0
        if tl.max(seen.to(tl.int32), axis=0) > 0:  # a block without a token is not read
            key = tl.load(
                keys + (base + position[None, :]) * k_size + k_column[:, None],
                mask=seen[None, :] & (k_column[:, None] < k_size),
                other=0.0,
            )
            value = tl.load(
                values + (base + position[:, None]) * v_size + v_column[None, :],
                mask=seen[:, None] & (v_column[None, :] < v_size),
                other=0.0,
            )
            score = tl.dot(query, key, input_precision="ieee") * scale
            score = tl.where(seen[None, :], score, -1e30)
            highest = tl.maximum(most, tl.max(score, axis=1))
            weight = tl.where(seen[None, :], tl.exp(score - highest[:, None]), 0.0)
            shrink = tl.exp(most - highest)
            total = total * shrink + tl.sum(weight, axis=1)
            sums = sums * shrink[:, None] + tl.dot(
                weight.to(value.dtype), value, input_precision="ieee"
            )
            most = highest
    place = (pair * splits + split) * group + member
    kept = member < group
    tl.store(logsums + place * 2, most, mask=kept)
    tl.store(logsums + place * 2 + 1, total, mask=kept)
    tl.store(
        parts + place[:, None] * v_size + v_column[None, :],
        sums,
        mask=kept[:, None] & (v_column[None, :] < v_size),
    )


@triton.jit
def _join(
    parts, logsums, y, splits, group, v_size, SPLITS: tl.constexpr, V: tl.constexpr
):  # fmt: skip
    """The shares of one head's attention as one."""
    pair, member = tl.program_id(0), tl.program_id(1)
    split, column = tl.arange(0, SPLITS), tl.arange(0, V)
    inside = split < splits
    place = (pair * splits + split) * group + member
    most = tl.load(logsums + place * 2, mask=inside, other=-1e30)
    total = tl.load(logsums + place * 2 + 1, mask=inside, other=0.0)
    weight = tl.exp(most - tl.max(most, axis=0))
    part = tl.load(
        parts + place[:, None] * v_size + column[None, :],
        mask=inside[:, None] & (column[None, :] < v_size),
        other=0.0,
    )
    result = tl.sum(part * weight[:, None], axis=0) / tl.sum(total * weight, axis=0)
    target = y + (pair * group + member) * v_size + column
    tl.store(target, result.to(y.dtype.element_ty), mask=column < v_size)


def attend(
    q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, seen: torch.Tensor, scale: float
) -> torch.Tensor:
    """Attention of one query a head over a static cache; positions that are not seen are not read.

    Args:
        q: [B, heads, 1, k_size], the last dimension contiguous.
        keys, values: [B, kv_heads, length, size], contiguous.
        seen: bool [B, length], the last dimension contiguous; at least one position of each row.
        scale: of the scores.

    Returns:
        [B, 1, heads, v_size] contiguous, of q's dtype.
    """
    rows, heads, _, k_size = q.shape
    _, kv_heads, length, _ = keys.shape
    v_size, group, pairs = values.shape[-1], heads // keys.shape[1], rows * keys.shape[1]
    processors = torch.cuda.get_device_properties(q.device).multi_processor_count
    # Two programs a multiprocessor, but never more of them than there are blocks of positions.
    splits = max(1, min(2 * processors // pairs, triton.cdiv(length, KEY_BLOCK), 64))
    share = triton.cdiv(triton.cdiv(length, splits), KEY_BLOCK) * KEY_BLOCK
    splits = triton.cdiv(length, share)
    parts = torch.empty(pairs, splits, group, v_size, dtype=torch.float32, device=q.device)
    logsums = torch.empty(pairs, splits, group, 2, dtype=torch.float32, device=q.device)
    y = torch.empty(rows, 1, heads, v_size, dtype=q.dtype, device=q.device)
    _attend[(pairs, splits)](
        q, keys, values, seen, parts, logsums, q.stride(0), q.stride(1), seen.stride(0), scale,
        kv_heads, group, length, share, k_size, v_size,
        max(16, triton.next_power_of_2(group)), KEY_BLOCK, triton.next_power_of_2(k_size),
        triton.next_power_of_2(v_size),
    )  # fmt: skip
    _join[(pairs, group)](
        parts, logsums, y, splits, group, v_size, triton.next_power_of_2(splits),
        triton.next_power_of_2(v_size),
    )  # fmt: skip
    return y
