"""The emulator itself: it finds what each of the kernels of emulator/mistakes.cu does wrong."""

from __future__ import annotations

import pytest
import torch
from emulator.library import Machine, Memory, library

THREADS = 128
AT_ONCE, LATE_COPIES = Machine(), Machine(late_copies=True)
LATE_PRODUCTS = Machine(late_products=True)
ORDERS = (AT_ONCE, LATE_COPIES, LATE_PRODUCTS, Machine(late_copies=True, seed=3))

# What is said of a mistake, on a machine that shows it.
REFUSED = {
    "exit_before_store": (AT_ONCE, "exits without having waited until its bulk stores"),
    "inner_coordinate": (AT_ONCE, "inner coordinate is not a multiple of 16 bytes"),
    "barrier_without_arrival": (AT_ONCE, r"deadlock\n.*mbarrier .* lacks 1 arrivals and 0 bytes"),
    "barrier_without_init": (AT_ONCE, "nobody has initialised"),
    "named_barrier": (AT_ONCE, r"deadlock\n.*barrier 1, with 64 of 96 threads"),
    "partial_warp": (AT_ONCE, r"deadlock\n.*__shfl_xor_sync, with 16 of 32 threads"),
    "read_beyond": (AT_ONCE, r"thread \(127, 0, 0\): an illegal address .* 0 bytes behind 512"),
    "read_before": (AT_ONCE, r"thread \(0, 0, 0\): an illegal address .* 4 bytes before 512"),
    "write_before": (AT_ONCE, "written outside of 512 bytes of global memory: before"),
    "write_input": (AT_ONCE, "an illegal address .* written in 512 bytes of global memory"),
    "misaligned": (AT_ONCE, r"thread \(0, 0, 0\): a misaligned access"),
    "shared_beyond": (AT_ONCE, "wrote outside of its shared memory: 16384 bytes from the begin"),
    "gone_block": (AT_ONCE, "shared memory of a block that has exited"),
    "product_without_fence": (AT_ONCE, "wgmma without wgmma.fence"),
}
# Those that give wrong numbers, and what is right.
SHIFTED, PRODUCT = "shifted", "product"
WRONG = {
    "shared_without_sync": (AT_ONCE, SHIFTED),
    "copy_without_wait": (LATE_COPIES, SHIFTED),
    "load_without_wait": (LATE_COPIES, SHIFTED),
    "store_without_wait": (LATE_COPIES, SHIFTED),
    "product_without_wait": (AT_ONCE, PRODUCT),
    "operand_given_away": (LATE_PRODUCTS, PRODUCT),
}


def run(name: str, machine: Machine, mistake: bool) -> tuple[torch.Tensor, torch.Tensor]:
    machine.use()
    memory = Memory(at_front=name == "read_before")
    data = memory.copy(torch.arange(THREADS).float())
    out = memory.empty((THREADS,), torch.float32)
    library().run_mistake(name, data.data_ptr(), out.data_ptr(), mistake)
    return data.clone(), out.clone()


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_hardware_would_not_forgive_is_refused(name: str) -> None:
    machine, said = REFUSED[name]
    with pytest.raises(RuntimeError, match=said):
        run(name, machine, mistake=True)


@pytest.mark.parametrize("name", WRONG)
def test_what_was_not_waited_for_is_wrong(name: str) -> None:
    machine, right = WRONG[name]
    data, out = run(name, machine, mistake=True)
    assert not torch.equal(out, data.roll(-1) if right == SHIFTED else torch.full_like(out, 16.0))


@pytest.mark.parametrize("name", [*REFUSED, *WRONG])
@pytest.mark.parametrize("machine", ORDERS)
def test_without_the_mistake_they_are_right(name: str, machine: Machine) -> None:
    data, out = run(name, machine, mistake=False)
    right = WRONG.get(name, (machine, ""))[1]
    if right == SHIFTED:
        assert torch.equal(out, data.roll(-1))
    if right == PRODUCT:
        assert torch.equal(out, torch.full_like(out, 16.0))


def test_tensor_maps_are_checked_as_the_driver_does() -> None:
    memory = Memory()
    data = memory.empty((THREADS,), torch.float32)
    assert library().encodes(data.data_ptr(), 128)
    assert not library().encodes(data.data_ptr() + 8, 128)
    assert not library().encodes(data.data_ptr(), 120)
