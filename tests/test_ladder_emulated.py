"""Every GPU rung on the emulator, against float64."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from emulator.library import Machine, Memory, library

from xgemm.ladder.problems import ROUNDING, dequantized, quantized_bound
from xgemm.ladder.rungs import LADDERS

ORDERS = (
    Machine(late_copies=True, late_products=True, seed=1),
    Machine(late_copies=True, late_products=True, seed=2),
    Machine(seed=3, descending=True),
)


def orders(machines: tuple[Machine, ...] = ORDERS):
    return pytest.mark.parametrize(
        "machine", machines, ids=[f"seed{machine.seed}" for machine in machines]
    )


@orders()
@pytest.mark.parametrize("rung", range(LADDERS["reduce"].rungs))
def test_reduce(rung: int, machine: Machine):
    memory = Memory()
    tile = library().ladder_reduce_tiles()[rung]
    x = memory.copy(torch.randn(5 * tile, generator=torch.Generator().manual_seed(rung)))
    out = memory.empty((1,), torch.float32)
    machine.use()
    library().ladder_reduce(rung, x.data_ptr(), out.data_ptr(), x.numel(), 1)
    error = (out.double() - x.double().sum()).abs()
    assert error <= 64 * 2.0**-24 * x.double().abs().sum()


PRODUCTS = [
    (name, rung) for name in ("sgemm", "hgemm", "hopper") for rung in range(LADDERS[name].rungs)
]


@orders()
@pytest.mark.parametrize(("name", "rung"), PRODUCTS)
def test_product(name: str, rung: int, machine: Machine):
    """Two tiles of C each way, and more of K than a pipeline holds."""
    tile_m, tile_n, tile_k = library().ladder_product_tiles(name)[rung]
    m, n, k = 2 * tile_m, 2 * tile_n, 6 * tile_k
    generator = torch.Generator().manual_seed(rung)
    dtype = LADDERS[name].dtype
    memory = Memory()
    a = memory.copy(torch.randn(m, k, generator=generator).to(dtype))
    transposed = name == "hopper"
    stored = torch.randn(*((n, k) if transposed else (k, n)), generator=generator).to(dtype)
    b = memory.copy(stored)
    c = memory.empty((m, n), dtype)
    machine.use()
    library().ladder_product(name, rung, a.data_ptr(), b.data_ptr(), c.data_ptr(), (m, n, k), 2)
    b = b.t() if transposed else b
    expected = a.double() @ b.double()
    bound = (k + 8) * 2.0**-24 * (a.double().abs() @ b.double().abs())
    bound += ROUNDING[dtype] * expected.abs()
    assert ((c.double() - expected).abs() <= bound).all()


# One row, as few as rungs have tiles for, and two blocks of rows, the second one not full.
@orders()
@pytest.mark.parametrize("m", [1, 11, 70])
@pytest.mark.parametrize("rung", range(LADDERS["w4a16"].rungs))
def test_w4a16(rung: int, m: int, machine: Machine):
    """Columns that several blocks share, and more of K than a pipeline holds."""
    if machine.descending:  # blocks of rung 5 wait for those before them
        machine = replace(machine, descending=rung != 5)
    tile_n, tile_k = library().ladder_w4a16_tiles()[rung]
    n, k = 2 * tile_n, 6 * tile_k
    generator = torch.Generator().manual_seed(rung)
    memory = Memory()
    x = memory.copy(torch.randn(m, k, generator=generator).half())
    words = torch.randint(-(2**31), 2**31, (k // 8, n), generator=generator)
    codes = memory.copy(words.to(torch.int32))
    scales = memory.copy((0.01 * (1 + torch.rand(k // 128, n, generator=generator))).half())
    y = memory.empty((m, n), torch.float16)
    locks = memory.empty((library().ladder_w4a16_locks(m, n),), torch.int64).zero_()
    machine.use()
    addresses = [tensor.data_ptr() for tensor in (x, codes, scales, y, locks)]
    library().ladder_w4a16(rung, *addresses, (m, n, k), 5)
    weights = dequantized(codes, scales)
    expected = x.double() @ weights
    bound = quantized_bound(x, weights, expected)
    assert ((y.double() - expected).abs() <= bound).all()
    assert not locks.any()


def test_the_peaks_loops_do_the_work_that_they_count():
    """FFMA: x -> x / 2 + 1 / 2 from the thread's number on; a read finds the largest element."""
    Machine().use()
    memory = Memory()
    threads = library().ladder_peak_threads(1)
    x = memory.copy(torch.randn(4 * threads * 2 + 8).abs())
    out = memory.empty((threads,), torch.float32)
    work = library().ladder_peak(0, x.data_ptr(), x.numel(), out.data_ptr(), 1)
    assert work == threads * 16 * 8 * 2
    begin = torch.arange(threads)[:, None] % 256 + torch.arange(8)
    expected = (begin * 2.0**-16 + (1 - 2.0**-16)).sum(1)
    assert torch.allclose(out, expected.float(), atol=1e-4)
    work = library().ladder_peak(1, x.data_ptr(), x.numel(), out.data_ptr(), 2)
    assert work == threads / 32 * 2 * 8 * 2 * 16 * 8 * 16
    assert out.isfinite().all()
    assert out.abs().max() > 0
    work = library().ladder_peak(2, x.data_ptr(), x.numel(), out.data_ptr(), 0)
    assert work == 4 * x.numel()
    assert out.max() == x.max()
    work = library().ladder_peak(3, x.data_ptr(), x.numel(), out.data_ptr(), 1)
    assert work == 2 * 4 * 2 * 64 * 256 * 16
    assert out[:256].isfinite().all()


@pytest.mark.parametrize("width", [4, 8, 16])
def test_the_probe_of_a_pattern_reads_what_it_is_told(width: int):
    Machine(seed=1).use()
    memory = Memory()
    addresses = torch.arange(32, dtype=torch.int32).flip(0) * 3 * width
    bytes_ = 32 * 3 * width
    given = memory.copy(addresses)
    cycles, loads, sums = library().probe_pattern(given.data_ptr(), width, bytes_, 2)
    assert cycles > 0
    assert loads == 2 * 16 * 32
    assert torch.equal(torch.tensor(sums), (addresses / 4 * 2 * 16).repeat(32))


@pytest.mark.parametrize("dependent", [True, False])
def test_the_probe_of_fmas_counts_them(dependent: bool):
    """Each is x / 2 + 1 / 2, from the thread's number on: 128 of them leave 1."""
    Machine().use()
    cycles, sums = library().probe_fma(dependent, 8)
    assert cycles > 0
    chains = 1 if dependent else 8
    assert torch.allclose(torch.tensor(sums), torch.full((32,), float(chains)))


@pytest.mark.parametrize("stride", [1, 3, 32])
def test_the_probe_of_strides_reads_each_strides_element(stride: int):
    Machine().use()
    memory = Memory()
    x = memory.copy(torch.arange(512.0 * stride))
    for index in (0, 300, 511):
        assert library().probe_stride(x.data_ptr(), 512, stride, float(index * stride)) == index
    assert library().probe_stride(x.data_ptr(), 512, stride, -1.0) == -1
    if stride > 1:
        assert library().probe_stride(x.data_ptr(), 512, stride, 1.0) == -1
