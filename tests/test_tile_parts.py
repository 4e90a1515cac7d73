"""The shared parts of csrc/cuda/tile, each by a kernel of its own under the emulator."""

from __future__ import annotations

import itertools

import pytest
import torch
from emulator.library import ACTIVATIONS, Machine, Memory, library

MACHINES = (Machine(), Machine(late_copies=True), Machine(late_copies=True, seed=3))


def accumulators(ctas: int = 1) -> torch.Tensor:
    generator = torch.Generator().manual_seed(ctas)
    shape = (ctas, library().TILE_THREADS, library().TILE_SIZE)
    return torch.randn(shape, generator=generator)


@pytest.mark.parametrize("step", [1, 4, 8])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activation_in_turns_leaves_each_value_in_its_place(activation: str, step: int) -> None:
    memory = Memory()
    x = memory.copy(accumulators())
    out = memory.empty(tuple(x.shape), torch.float32)
    library().tile_activate(x.data_ptr(), out.data_ptr(), ACTIVATIONS.index(activation), step)
    expected = {
        "none": lambda t: t,
        "relu": torch.relu,
        "gelu": torch.nn.functional.gelu,
        "gelu_tanh": lambda t: torch.nn.functional.gelu(t, approximate="tanh"),
        "silu": torch.nn.functional.silu,
    }[activation](x.double())
    torch.testing.assert_close(out.double(), expected, rtol=1e-5, atol=1e-6)


def test_a_quad_is_two_columns_of_two_rows() -> None:
    memory = Memory()
    x = memory.copy(accumulators())
    out = memory.empty(tuple(x.shape), torch.float32)
    library().tile_add_rows(x.data_ptr(), out.data_ptr())
    rows = torch.tensor([100.0, 100.0, 200.0, 200.0]).repeat(library().TILE_SIZE // 4)
    assert torch.equal(out, x + rows)


@pytest.mark.parametrize("machine", MACHINES, ids=str)
def test_cluster_reduction_adds_what_the_other_cta_sent(machine: Machine) -> None:
    machine.use()
    memory = Memory()
    x = memory.copy(accumulators(2))
    out = memory.empty(tuple(x.shape), torch.float32)
    library().tile_cluster_reduction(x.data_ptr(), out.data_ptr())
    half = library().TILE_SIZE // 2
    total = x[0] + x[1]
    assert torch.equal(out[0, :, :half], total[:, :half])
    assert torch.equal(out[1, :, half:], total[:, half:])


@pytest.mark.parametrize("machine", MACHINES, ids=str)
def test_fix_up_completes_a_sum_and_takes_the_flag_down(machine: Machine) -> None:
    machine.use()
    memory = Memory()
    x = memory.copy(accumulators(2))
    out = memory.empty(tuple(x.shape), torch.float32)
    left = memory.empty((library().TILE_THREADS * library().TILE_SIZE,), torch.float32)
    flags = memory.empty((1,), torch.int64)
    library().tile_fix_up(x.data_ptr(), out.data_ptr(), left.data_ptr(), flags.data_ptr())
    assert torch.equal(out[1], x[0] + x[1])
    assert flags.item() == 0


@pytest.mark.parametrize("parts", [1, 2, 3, 5])
@pytest.mark.parametrize("quads", [1, 31, 32, 100])
def test_split_k_reduction_adds_each_quad_once_in_the_order_of_k(parts: int, quads: int) -> None:
    memory = Memory()
    x = memory.copy(torch.randn(parts, quads * 4, generator=torch.Generator().manual_seed(quads)))
    out = memory.empty((quads * 4,), torch.float32)
    out.zero_()
    library().tile_add_parts(x.data_ptr(), out.data_ptr(), parts, quads * 4, quads)
    expected = torch.zeros(quads * 4)
    for part in x:
        expected += part
    assert torch.equal(out, expected)


@pytest.mark.parametrize(("total", "clusters"), [(7, 7), (100, 7), (132, 132), (1000, 66)])
def test_stream_k_ranges_are_even_and_cover_everything(total: int, clusters: int) -> None:
    each, extra = divmod(total, clusters)
    begins = [library().tile_range_begin(i, each, extra) for i in range(clusters + 1)]
    sizes = [end - begin for begin, end in itertools.pairwise(begins)]
    assert begins[0] == 0
    assert begins[-1] == total
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(
    ("count", "stride", "vector"),
    [(4, 1, True), (7, 1, True), (4, 1, False), (3, 1, True), (1, 5, False)],
)
def test_quads_end_where_columns_do(bias: bool, count: int, stride: int, vector: bool) -> None:
    threads, row_stride = library().TILE_THREADS, 24
    memory = Memory()
    generator = torch.Generator().manual_seed(count)
    x = memory.copy(torch.randn(threads, 4, generator=generator))
    added = memory.copy(torch.randn(min(count, 4), generator=generator).half())
    out = memory.empty((threads, row_stride), torch.float16)
    out.fill_(-7)
    library().tile_finish_quads(
        x.data_ptr(), added.data_ptr() if bias else 0, out.data_ptr(), row_stride, stride, count,
        vector, ACTIVATIONS.index("relu"),
    )  # fmt: skip
    there = min(count, 4)
    expected = torch.full((threads, row_stride), -7.0, dtype=torch.float16)
    values = x[:, :there] + (added.float() if bias else 0)
    expected[:, : there * stride : stride] = values.relu().half()
    assert torch.equal(out, expected)


@pytest.mark.parametrize("pending", [0, 1, 2, 3])
@pytest.mark.parametrize("machine", MACHINES, ids=str)
def test_copies_are_waited_for_but_the_last(machine: Machine, pending: int) -> None:
    machine.use()
    memory = Memory()
    x = memory.copy(torch.randn(4, library().TILE_THREADS, 4, generator=torch.Generator()))
    out = memory.empty(tuple(x.shape), torch.float32)
    library().tile_copy_groups(x.data_ptr(), out.data_ptr(), pending)
    assert torch.equal(out[: 4 - pending], x[: 4 - pending])


@pytest.mark.parametrize("stages", [1, 2, 3, 5])
def test_pipeline_state_walks_the_stages_and_flips_the_parity_each_pass(stages: int) -> None:
    seen = library().tile_pipeline(stages, 4 * stages + 1)
    assert seen == [(i % stages, i // stages % 2) for i in range(4 * stages + 1)]


@pytest.mark.parametrize("period", [1, 2, 3, 6])
@pytest.mark.parametrize("first", [0, 1, 5, 6, 17])
def test_pipeline_state_of_consumers_that_alternate(first: int, period: int) -> None:
    seen = library().tile_pipeline_by(first, period, 20)
    stages = [first + i * period for i in range(20)]
    assert seen == [(stage % 6, stage // 6 % 2) for stage in stages]


@pytest.mark.parametrize("shape", [(1, 1), (5, 3), (8, 8), (9, 2), (16, 5)])
@pytest.mark.parametrize("group_rows", [1, 4, 8])
def test_rasterization_visits_each_tile_once_in_groups_of_rows(
    shape: tuple[int, int], group_rows: int
) -> None:
    tiles_m, tiles_n = shape
    places = library().tile_places(tiles_m, tiles_n, group_rows)
    expected = [
        (row, column)
        for first in range(0, tiles_m, group_rows)
        for column in range(tiles_n)
        for row in range(first, min(first + group_rows, tiles_m))
    ]
    assert places == expected
