"""The reductions on a GPU: against float64, the same bits in every run, graphs, huge tensors."""

from __future__ import annotations

import math
import random
import threading

import pytest
import torch
from helpers import needs_memory
from random_reductions import POSITIONS, Case, fault, random_case

import xgemm  # noqa: F401  (registers the ops)

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

ops = torch.ops.xgemm
Tensor = torch.Tensor
ALL = ("sum", "mean", "prod", "amax", "amin", "norm", "argmax", "argmin")
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def call(case: Case, keepdim: bool = False) -> Tensor:
    if case.op in POSITIONS:  # one dimension, or all
        dim = case.dims[0] if len(case.dims) == 1 and case.x.dim() > 1 else None
        return getattr(ops, case.op)(case.x, dim, keepdim)
    dims = list(case.dims)
    if case.op == "norm":
        return ops.norm(case.x, dims, keepdim, case.p)
    return getattr(ops, case.op)(case.x, dims, keepdim)


def poison(like: Tensor) -> None:
    """Leaves memory of the result's size full of ones in the allocator's hands."""
    torch.full((max(like.numel(), 1) * like.element_size(),), 255, dtype=torch.uint8, device="cuda")


def check(case: Case) -> None:
    if case.op in POSITIONS and 1 < len(case.dims) < case.x.dim():
        case = Case(case.op, case.x, case.dims[:1])
    got = call(case)
    poison(got)
    again = call(case)
    wrong = fault(case, again)
    assert not wrong, f"{case}: {wrong}"
    bits = [t.unsqueeze(0).contiguous().view(torch.uint8) for t in (got, again)]
    assert torch.equal(*bits), f"{case}: two runs differ"


@pytest.mark.parametrize("part", range(8))
def test_random(part: int) -> None:
    for seed in range(500):
        check(random_case(random.Random(part * 1000 + seed), 300_000, "cuda"))


@pytest.mark.parametrize("seed", range(60))
def test_random_and_large(seed: int) -> None:
    check(random_case(random.Random(10_000 + seed), 1 << 25, "cuda"))


@pytest.mark.parametrize("op", ALL)
@pytest.mark.parametrize("dtype", FLOATS)
def test_as_on_the_cpu(op: str, dtype: torch.dtype) -> None:
    x = torch.randn(37, 130, 65).to(dtype)
    x = (1 + 0.001 * x).to(dtype) if op == "prod" else x
    for dim in (None, 0, 1, 2):
        for keepdim in (False, True):
            want = getattr(ops, op)(x, dim, keepdim)
            got = getattr(ops, op)(x.cuda(), dim, keepdim)
            assert (got.device.type, got.dtype, got.shape) == ("cuda", want.dtype, want.shape)
            dims = (0, 1, 2) if dim is None else (dim,)
            case = Case(op, x, dims)
            wrong = fault(case, got.cpu().view(want.squeeze().shape))
            assert not wrong, f"{case}: {wrong}"


@pytest.mark.parametrize(
    ("shape", "dims"),
    [
        *(((1 << power,), (0,)) for power in (0, 5, 10, 15, 16, 17, 18, 19, 20, 22, 24, 26)),
        *(((4096, 4096), (d,)) for d in (0, 1)),
        *(((1 << 20, 128), (d,)) for d in (0, 1)),
        *(((128, 1 << 20), (d,)) for d in (0, 1)),
        *(((333, 7777), (d,)) for d in (0, 1)),
        *(((1 << 22, 8), (d,)) for d in (0, 1)),
        *(((50257, 768), (d,)) for d in (0, 1)),
        *(((7, 100003), (d,)) for d in (0, 1)),
        *(((64, 256, 3136), (0, 2)), ((64, 256, 3135), (0, 2)), ((32, 512, 640), (1,))),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_the_benchmarks_shapes(
    shape: tuple[int, ...], dims: tuple[int, ...], dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    x = torch.randn(shape, device="cuda").to(dtype)
    for op in ALL:
        values = (1 + 0.001 * x.float()).to(dtype) if op == "prod" else x
        check(Case(op, values, dims[:1] if op in POSITIONS else dims))


@pytest.mark.parametrize("dtype", FLOATS)
def test_nan_wins_and_the_first_of_equals(dtype: torch.dtype) -> None:
    for shape in ((70, 90), (3, 50_000), (50_000, 3), (600, 512)):
        x = torch.zeros(shape, dtype=dtype, device="cuda")
        for op in POSITIONS:
            for dim in (None, 0, 1):
                assert getattr(ops, op)(x, dim).eq(0).all()
        x[1, 2] = x[2, 1] = math.nan
        for op in ("sum", "mean", "prod", "amax", "amin", "norm"):
            for dim in (0, 1):
                assert torch.equal(getattr(ops, op)(x, [dim]).isnan(), x.isnan().any(dim))
        for op in POSITIONS:
            assert getattr(ops, op)(x) == shape[1] + 2
            assert getattr(ops, op)(x, 1)[[1, 2]].tolist() == [2, 1]
            assert getattr(ops, op)(x.T, 0)[[1, 2]].tolist() == [2, 1]


def test_many_ones() -> None:
    for dtype in (torch.bfloat16, torch.float32, torch.float64):
        ones = torch.ones(2**26, dtype=dtype, device="cuda")
        assert ops.sum(ones).item() == 2**26
        assert ops.norm(ones).item() == 2**13
        assert ops.mean(ones).item() == 1
        assert ops.sum(ones.view(-1, 2**14), [1]).eq(2**14).all()
        assert ops.sum(ones.view(2**14, -1), [0]).eq(2**14).all()


def test_more_than_2_to_the_31_elements() -> None:
    needs_memory(13)
    count = 2**31 + 2**20 + 3
    x = torch.ones(count, dtype=torch.int8, device="cuda")
    x[-1] = 3
    assert ops.sum(x).item() == count + 2
    assert ops.amax(x).item() == 3
    assert ops.argmax(x).item() == count - 1
    wide = x[: 2**31 + 2**20].view(-1, 2)
    assert ops.sum(wide, [1]).eq(2).all()
    assert ops.sum(wide, [0]).tolist() == [2**30 + 2**19] * 2
    assert ops.sum(x[:1].expand(2**33)).item() == 2**33
    assert ops.argmin(x[:1].expand(2**33)).item() == 0


def test_empty() -> None:
    x = torch.zeros(2, 0, 3, device="cuda")
    assert ops.sum(x).item() == 0
    assert torch.equal(ops.prod(x, [1]), torch.ones(2, 3, device="cuda"))
    assert ops.mean(x, [1]).isnan().all()
    assert torch.equal(ops.norm(x, [1]), torch.zeros(2, 3, device="cuda"))
    for op in ALL:
        assert getattr(ops, op)(x, 0).shape == (0, 3)
        assert getattr(ops, op)(x, -1, True).shape == (2, 0, 1)
    with pytest.raises(IndexError, match="must not be empty"):
        ops.amax(x)


def test_more_dimensions_than_merge() -> None:
    x = torch.randn([3] * 12, device="cuda")[(slice(None, None, 2),) * 12]
    for dims in ([0, 2, 4, 6, 8, 10], [1, 3, 5, 7, 9, 11], list(range(12))):
        for op in ("sum", "amax"):
            check(Case(op, x, tuple(dims)))


def test_graphs_and_streams() -> None:
    shapes: list[tuple[tuple[int, ...], list[int]]] = [
        *(((1 << 18,), [0]), ((1 << 22,), [0]), ((1 << 14, 128), [0]), ((999, 1001), [1])),
    ]
    for shape, dims in shapes:
        x = torch.randn(shape, device="cuda")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = ops.sum(x, dims)
        for _ in range(3):
            x.normal_()
            y.fill_(math.nan)
            graph.replay()
            assert torch.equal(y, ops.sum(x, dims))
    side = torch.cuda.Stream()
    x = torch.randn(1 << 20, device="cuda")
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.cuda._sleep(20_000_000)
        x.mul_(2)
        y = ops.sum(x)
    side.synchronize()
    assert torch.equal(y, ops.sum(x))


def test_calls_in_a_row_do_not_disturb_each_other() -> None:
    """A second launch starts early, and the next call's first one must not overtake it."""
    xs = [torch.randn(1 << 21, device="cuda") for _ in range(8)]
    want = [ops.sum(x) for x in xs]
    torch.cuda.synchronize()
    for _ in range(50):
        got = [ops.sum(x) for x in xs]
        for a, b in zip(got, want, strict=True):
            assert torch.equal(a, b)


def test_a_thread_that_has_not_used_cuda() -> None:
    x = torch.randn(1000, 1000, device="cuda")
    want, found = ops.sum(x), []
    worker = threading.Thread(target=lambda: found.append(ops.sum(x)))
    worker.start()
    worker.join()
    assert torch.equal(found[0], want)


@pytest.mark.parametrize("op", ["sum", "mean", "prod", "amax", "amin", "norm"])
def test_gradients(op: str) -> None:
    x = torch.randn(5, 6, 7, dtype=torch.float64)
    for dim in (None, [1], [0, 2]):
        grads = []
        for device in ("cpu", "cuda"):
            leaf = x.to(device, copy=True).requires_grad_()
            getattr(ops, op)(leaf, dim).square().sum().backward()
            assert leaf.grad is not None
            grads.append(leaf.grad.cpu())
        torch.testing.assert_close(*grads)


@pytest.mark.parametrize("op", ALL)
def test_opcheck(op: str) -> None:
    x = torch.randn(4, 5, 6, device="cuda")
    torch.library.opcheck(getattr(ops, op).default, (x, 1 if op in POSITIONS else [1]))
