"""Every GPU rung on the emulator, against float64."""

from __future__ import annotations

import pytest
import torch
from emulator.library import Machine, Memory, library

from xgemm.ladder.problems import ROUNDING
from xgemm.ladder.rungs import LADDERS

ORDERS = (
    Machine(late_copies=True, late_products=True, seed=1),
    Machine(late_copies=True, seed=2),
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
    """Two tiles of C each way, and more of K than a ring holds."""
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
