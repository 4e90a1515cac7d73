"""mul on CUDA beyond 2^31 elements, and wherever torch.matmul takes what is unusual."""

from __future__ import annotations

import pytest
import torch
from helpers import needs_memory
from random_products import PRECISIONS, worst_share

import xgemm  # noqa: F401  (registers the ops)

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

BEYOND = 2**31  # elements


def large(rows: int, columns: int, dtype: torch.dtype = torch.float16) -> torch.Tensor:
    return torch.empty(rows, columns, device="cuda", dtype=dtype).normal_()


def ends(extent: int) -> torch.Tensor:
    """Indices at the start, around the middle and at the end."""
    middle, few = extent // 2, min(extent, 40)
    index = [*range(few), *range(middle, min(middle + few, extent)), *range(extent - few, extent)]
    return torch.tensor(sorted(set(index)), device="cuda")


@pytest.mark.parametrize("way", ["float16", *PRECISIONS])
@pytest.mark.parametrize("layout", ["rows", "columns", "odd rows"])
@pytest.mark.parametrize("which", ["a", "b", "d"])
def test_operands_beyond_two_to_the_31_elements(which: str, layout: str, way: str) -> None:
    dtype, precision = (torch.float16, "ieee") if way == "float16" else (torch.float32, way)
    needs_memory(8 * dtype.itemsize)
    wide = 32776 + (layout == "odd rows")
    tall = BEYOND // wide + 520
    m, n, k = {"a": (tall, 64, wide), "b": (48, tall, wide), "d": (tall, wide, 64)}[which]
    if layout == "columns":
        a, b = large(k, m, dtype).t(), large(n, k, dtype).t()
    else:
        a, b = large(m, k, dtype), large(k, n, dtype)
    assert max(a.numel(), b.numel(), m * n) > BEYOND
    y = torch.ops.xgemm.mul(a, b, precision=precision)
    rows, columns = ends(m), ends(n)
    few = y[rows][:, columns], a[rows], b[:, columns]
    share = worst_share(*few, precision=precision).item()
    assert share <= 1, f"{share:.3g} of the bound"


def test_a_batch_beyond_two_to_the_31_elements() -> None:
    needs_memory(20)
    batch, side = 2056, 1024
    a = torch.empty(batch, side, side, device="cuda", dtype=torch.bfloat16).normal_()
    b = large(side, 72, torch.bfloat16)
    last = torch.tensor([0, 1, batch // 2, batch - 1], device="cuda")
    assert a.numel() > BEYOND
    y = torch.ops.xgemm.mul(a.mT, b)
    assert worst_share(y[last], a[last].mT, b).item() <= 1
    y = torch.ops.xgemm.mul(b.t(), a)
    assert worst_share(y[last], b.t(), a[last]).item() <= 1


def test_strides_beyond_two_to_the_31_elements() -> None:
    needs_memory(12)
    buffer = torch.zeros(BEYOND + 4096, device="cuda", dtype=torch.float16)
    a = buffer.as_strided((2, 512), (BEYOND, 1)).normal_()
    b = large(512, 256)
    assert worst_share(torch.ops.xgemm.mul(a, b), a, b).item() <= 1
    assert worst_share(torch.ops.xgemm.mul(b.t(), a.t()), b.t(), a.t()).item() <= 1
    y = buffer.as_strided((2, 256), (BEYOND, 1))
    expected = torch.ops.xgemm.mul(a.clone(), b)
    torch.ops.xgemm.mul_into(y, a.clone(), b)
    assert torch.equal(y, expected)


def test_more_rows_than_an_int_holds() -> None:
    needs_memory(20)
    a = torch.empty(BEYOND + 8, 1, device="cuda", dtype=torch.float16).normal_()
    b = torch.full((1, 1), 2.0, device="cuda", dtype=torch.float16)
    assert torch.equal(torch.ops.xgemm.mul(a, b), a * 2)


def test_more_batches_than_a_grid_holds() -> None:
    a, b = large(70000 * 3, 16).view(70000, 3, 16), large(70000 * 16, 8).view(70000, 16, 8)
    assert worst_share(torch.ops.xgemm.mul(a, b), a, b).item() <= 1
    assert worst_share(torch.ops.xgemm.mul(a[:, :, 1:], b[:, 1:]), a[:, :, 1:], b[:, 1:]) <= 1


@pytest.mark.parametrize(
    ("a_shape", "b_shape"),
    [
        ((0,), (0,)),
        ((0, 5), (5, 3)),
        ((4, 0), (0, 3)),
        ((4, 5), (5, 0)),
        ((4, 5), (5,)),
        ((5,), (5, 3)),
        ((5,), (2, 5, 3)),
        ((2, 0, 5), (5, 3)),
        ((0, 4, 5), (5, 3)),
        ((0, 4, 5), (0, 5, 3)),
        ((2, 4, 0), (2, 0, 3)),
        ((3, 1, 4, 5), (2, 5, 6)),
        ((1, 1, 1, 5), (1, 5, 1)),
        ((6, 5, 4, 3, 2, 2), (4, 1, 2, 2)),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_shapes_that_matmul_takes(
    a_shape: tuple[int, ...], b_shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    a = torch.randn(a_shape, device="cuda").to(dtype)
    b = torch.randn(b_shape, device="cuda").to(dtype)
    y = torch.ops.xgemm.mul(a, b)
    assert y.shape == torch.matmul(a, b).shape
    assert y.dtype == dtype
    assert worst_share(y, a, b).item() <= 1


@pytest.mark.parametrize("activation", ["none", "gelu", "silu"])
def test_without_k_the_bias_is_what_is_left(activation: str) -> None:
    a, b = large(300, 0), large(0, 200)
    bias = torch.randn(200, device="cuda").half()
    y = torch.ops.xgemm.mul(a, b, bias, activation=activation)
    assert worst_share(y, a, b, bias, activation).item() <= 1


def test_views_that_matmul_takes() -> None:
    """Repeated, overlapping, sliced, permuted and complex-part views."""
    signal = torch.randn(5000, device="cuda").half()
    square = large(512, 512)
    pairs = torch.randn(256, 512, 2, device="cuda").half()
    cube = torch.randn(8, 64, 512, device="cuda").half()
    for a in (
        signal.as_strided((300, 512), (1, 1)),
        signal.as_strided((300, 512), (8, 1)),
        signal.as_strided((300, 512), (0, 1)),
        signal.as_strided((300, 512), (0, 0)),
        signal.as_strided((300, 512), (3, 5)),
        square[100:301],
        square[::2],
        square.t()[::3],
        pairs[..., 1],
        cube[:, 5],
        cube.permute(1, 0, 2),
        cube.transpose(1, 2)[:, :, :8].transpose(1, 2),
    ):
        for b in (square, square.t(), signal.as_strided((512, 40), (1, 0))):
            y = torch.ops.xgemm.mul(a, b)
            assert worst_share(y, a, b).item() <= 1, (a.shape, a.stride(), b.stride())
