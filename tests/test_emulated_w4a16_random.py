"""Random products with packed weights, by the kernels that the choice takes, and conversions of
such weights, on the CPU (emulator/README.md), against float64 and the CPU's own."""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest
import torch
from emulator.library import ACTIVATIONS, Machine, library
from emulator.w4a16 import dequantize, linear, problem_of
from random_emulated import (
    BEFORE_HOPPER,
    FAR,
    MOST_FAR,
    draw_machine,
    draw_memory,
    far_strides,
    kernel_of,
    reordered,
    run_problems,
)
from random_products import draw_bias, draw_matrix, sprinkle
from random_w4 import Format, draw_format, random_weight_on

from xgemm import QuantizedWeight, reference

pytestmark = pytest.mark.usefixtures("one_thread")

MOST_WORK = 5 * 10**6
HALVES = (torch.float16, torch.bfloat16)
FAMILIES = {  # capabilities, kernels that their problems must get, problems
    "sm90": ((90,), {"sm90 skinny", "sm90 wgmma", "sm90 register-resident"}, 160),
    "sm80": (BEFORE_HOPPER, {"sm80"}, 80),
}


def draw_extents(rng: random.Random) -> tuple[int, int, int]:
    while True:
        m = rng.randint(*rng.choice(((1, 2), (1, 8), (9, 70), (60, 140), (130, 600))))
        n = rng.randint(1, rng.choice((40, 300, 1400)))
        k = rng.randint(1, rng.choice((300, 300, 4200, 4200, 20_000)))
        if m * n * k <= MOST_WORK:
            return m, n, k if rng.random() < 0.99 else 0


def draw_strides(rng: random.Random, m: int, n: int) -> tuple[int, int]:
    pad = rng.choice((1, 8))
    return rng.choice(((n, 1), (n, 1), (n + pad, 1), (2 * n + pad, 2), (1, m + pad)))


def run_problem(rng: random.Random, capabilities: tuple[int, ...]) -> tuple[str, str]:
    """The kernel that one problem got, and what was wrong, or nothing."""
    m, n, k = draw_extents(rng)
    dtype, machine = rng.choice(HALVES), draw_machine(rng, capabilities)
    form, (x, kind) = draw_format(rng), draw_matrix(rng, m, k, dtype, [], "cpu")
    if rng.random() < 0.4:  # what some kernels and loops take alone
        form, x, kind = Format(128, "none", dtype, act_order=False), x.contiguous(), "contiguous"
    q = random_weight_on("cpu", n, k, form)
    bias, activation = draw_bias(rng, n, dtype, "cpu"), rng.choice(ACTIVATIONS)
    if rng.random() < 0.1:
        sprinkle(rng, x)
        kind, activation = f"{kind}, not finite", "none"
    strides, offset, x_strides = draw_strides(rng, m, n), rng.choice((0, 0, 1, 8)), None
    if rng.random() < FAR and k > 0 and max(m * k, m * n) <= MOST_FAR:
        x_strides = far_strides(rng, x)
        strides = rng.choice((strides, far_strides(rng, torch.empty(m, n))))
    invariant = rng.random() < 0.2
    text = (
        f"{m}x{n}x{k} {dtype} {form} {machine} x {x_strides or x.stride()} ({kind})"
        f" d {strides} + {offset} bias {bias is not None} {activation},"
        f" batch_invariant {invariant}"
    )

    def run(first: int, last: int, machine: Machine) -> tuple[torch.Tensor, str]:
        memory = draw_memory(rng)
        return linear(
            x[first:last], q, bias, activation, machine=machine, x_strides=x_strides,
            d_strides=strides, d_offset=offset, batch_invariant=invariant, memory=memory,
        )  # fmt: skip

    try:
        y, said = run(0, m, machine)
        again, first, last = y, 0, m
        if invariant or rng.random() < 0.1:
            if invariant:
                first, last = sorted((rng.randrange(m), rng.randint(1, m)))
                last = max(last, first + 1)
            again, _ = run(first, last, reordered(rng, machine))
    except (AssertionError, RuntimeError) as error:
        return "", f"{text}: {error}"
    expected = reference.w4a16(x, q, bias, activation)
    bound = reference.w4a16_bound(x, q, bias, activation)
    share = reference.error_ratio(y, expected, bound)
    if not share <= 1:
        return kernel_of(said), f"an error of {share:.3g} times the bound: {text}\n{said}"
    if not torch.equal(again.view(torch.int16), y[first:last].view(torch.int16)):
        return kernel_of(said), f"other bits in rows {first} to {last} alone: {text}\n{said}"
    return kernel_of(said), ""


@pytest.mark.parametrize("name", FAMILIES)
def test_random_problems(name: str) -> None:
    capabilities, kernels, problems = FAMILIES[name]
    visited = run_problems(lambda rng: run_problem(rng, capabilities), problems)
    assert kernels <= set(visited), visited


def check_part(rng: random.Random, q: QuantizedWeight, machine: Machine) -> str:
    """Dequantizes a part of the weight, into rows of any stride."""
    column, channel = rng.randrange(0, q.n, 64), rng.randrange(0, q.k, 128)
    columns, channels = rng.randint(1, q.n - column), rng.randint(1, q.k - channel)
    stride, dtype = channels + rng.choice((0, 1, 8)), rng.choice((*HALVES, torch.float32))
    offset = rng.choice((0, 0, 1, 8))
    memory = draw_memory(rng)
    buffer = memory.empty((offset + (columns - 1) * stride + channels,), dtype)
    dst = buffer.as_strided((columns, channels), (stride, 1), offset)
    part = dequantize(q, dtype, machine, (column, channel), dst).double()
    exact = reference.dequantize(q)[column : column + columns, channel : channel + channels]
    steps = torch.finfo(dtype).eps / 2 + 2 * torch.finfo(torch.float32).eps
    if not bool(((part - exact).abs() <= steps * exact.abs() + 2.0**-25).all()):
        return f"part {columns}x{channels} from {column}, {channel}, {dtype}, stride {stride}"
    dst.fill_(float("nan"))
    return "" if buffer.isnan().all() else "written outside of the destination"


def addresses(tensors: Iterable[torch.Tensor]) -> list[int]:
    """Of codes, scales and zeros, which a weight may not have."""
    found = [tensor.data_ptr() for tensor in tensors]
    return found + [0] * (3 - len(found))


def check_pack(rng: random.Random, q: QuantizedWeight, machine: Machine) -> str:
    """Packs and unpacks it, and looks for codes that have no place in a weight."""
    expected = torch.ops.xgemm.pack_w4(q.codes, q.scales, q.zeros, q.group_size)
    memory, emulated, dtype = draw_memory(rng), library(), q.scales.dtype
    tensors = [t for t in (q.codes, q.scales, q.zeros) if t is not None]
    copies = addresses(map(memory.copy, tensors))
    packed = memory.empty(tuple(expected.shape), torch.uint8)
    machine.use()
    emulated.pack_w4(problem_of(q, None, dtype), *copies, packed.data_ptr())
    if not torch.equal(packed, expected):
        return "packed otherwise than by the CPU"
    back = [memory.empty(tuple(t.shape), t.dtype) for t in tensors]
    emulated.unpack_w4(problem_of(q, packed, dtype), *addresses(back))
    if not all(map(torch.equal, back, tensors)):
        return "unpacked otherwise than it was packed"
    at, codes = rng.randrange(q.codes.numel()), q.codes.clone()
    faults = memory.empty((3,), torch.int64)
    for first in (-1, at):
        emulated.find_faults_w4(problem_of(q, None, dtype), *copies, faults.data_ptr())
        if faults.tolist() != [first, -1, -1]:
            return f"faults at {faults.tolist()}, expected at {first}"
        codes.view(-1)[at:] = 16
        copies[0] = memory.copy(codes).data_ptr()
    return ""


def check_gather(rng: random.Random, machine: Machine) -> str:
    """Columns in another order, some of them from nowhere, by a permutation and by its inverse."""
    rows, columns = rng.randint(1, 70), rng.randint(1, rng.choice((40, 1500)))
    more_rows, more_columns = rng.choice((0, 0, 3)), rng.choice((0, 0, 1, 8))
    dtype = rng.choice((torch.int16, torch.int32))
    memory, emulated = draw_memory(rng), library()
    values = torch.randint(-(2**15), 2**15, (rows, columns + 1), dtype=dtype)[:, :columns]
    src = memory.copy(rng.choice((values, values.t().contiguous().t(), values.contiguous())))
    perm = torch.randperm(columns, dtype=torch.int32)
    inverse = memory.empty((columns,), torch.int32)
    machine.use()
    emulated.invert_permutation(memory.copy(perm).data_ptr(), columns, inverse.data_ptr())
    if not torch.equal(inverse.long(), perm.long().argsort()):
        return f"the inverse of a permutation of {columns}"
    chosen, to = rng.choice((None, perm, inverse)), (rows + more_rows, columns + more_columns)
    stride = to[1] + rng.choice((0, 1, 8))
    buffer = memory.empty((to[0] * stride,), dtype)
    dst = buffer.view(to[0], stride)[:, : to[1]]
    emulated.gather_columns(
        to, (rows, columns), dtype.itemsize, (src.data_ptr(), *src.stride()),
        (dst.data_ptr(), *dst.stride()), 0 if chosen is None else memory.copy(chosen).data_ptr(),
    )  # fmt: skip
    expected = torch.zeros(to, dtype=dtype)
    order = torch.arange(columns) if chosen is None else chosen.long()
    expected[:rows, :columns] = values[:, order]
    if not torch.equal(dst, expected):
        return f"columns of {rows}x{columns} {dtype} in {to}, stride {stride}"
    dst.fill_(-1)
    return "" if (buffer == -1).all() else "written outside of the destination"


def run_conversion(rng: random.Random) -> tuple[str, str]:
    machine = draw_machine(rng, (80, 90))
    n, k = rng.randint(1, rng.choice((40, 300))), rng.randint(1, rng.choice((300, 1200)))
    q = random_weight_on("cpu", n, k, draw_format(rng, act_order=0.0))
    what = rng.choice(("part", "pack", "gather"))
    try:
        if what == "gather":
            wrong = check_gather(rng, machine)
        else:
            wrong = (check_part if what == "part" else check_pack)(rng, q, machine)
    except RuntimeError as error:
        wrong = str(error)
    shape = f"{n}x{k} group_size {q.group_size} zeros {q.zeros is not None}"
    return what, wrong and f"{what}: {wrong}: {shape} {machine}"


def test_conversions() -> None:
    assert len(run_problems(run_conversion, 100)) == 3
