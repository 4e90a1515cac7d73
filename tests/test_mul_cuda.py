"""mul, mul_into, sgemm and sgemm_into on CUDA against float64, element by element.

tests/test_mul_random.py has thousands of random problems, the other tests/test_mul_cuda_*.py every
kernel, the limits, and use in a program.
"""

from __future__ import annotations

import pytest
import torch
from random_products import SENTINEL, worst_share

import xgemm

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

HALVES = (torch.float16, torch.bfloat16)


def randn(*shape: int, dtype: torch.dtype = torch.float16) -> torch.Tensor:
    return torch.randn(*shape, device="cuda").to(dtype)


def assert_right(y: torch.Tensor, a: torch.Tensor, b: torch.Tensor, **fused: object) -> None:
    share = worst_share(y, a, b, **fused).item()  # type: ignore[arg-type]
    assert share <= 1, f"{share:.3g} of the bound at {tuple(a.shape)} x {tuple(b.shape)}"


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize(
    ("m", "n", "k"),
    [
        (2048, 2048, 2048),
        (4096, 264, 1000),
        (16, 4096, 4096),
        (1, 28672, 4096),
        (28672, 1, 4096),
        (64, 4096, 14336),
        (512, 512, 512),
        (256, 256, 16384),
        (129, 8200, 4104),
        (1000, 3333, 5555),
    ],
)
def test_large_products_in_all_layouts(m: int, n: int, k: int, dtype: torch.dtype) -> None:
    a, b = randn(m, k, dtype=dtype), randn(k, n, dtype=dtype)
    for a_view in (a, a.t().contiguous().t()):
        for b_view in (b, b.t().contiguous().t()):
            assert_right(torch.ops.xgemm.mul(a_view, b_view), a_view, b_view)


@pytest.mark.parametrize("extent", [8, 16, 64, 120, 128, 136, 256, 264, 1024])
def test_few_rows_and_few_columns(extent: int) -> None:
    """The wide side of a skinny product may be either operand, in any layout."""
    for few in (1, 2, 3, 5, 8, 13, 16, 31, 64, 127, 128):
        x, w = randn(few, 1032), randn(extent, 1032)
        assert_right(torch.ops.xgemm.mul(x, w.t()), x, w.t())
        assert_right(torch.ops.xgemm.mul(w, x.t()), w, x.t())
        w = w.t().contiguous()
        assert_right(torch.ops.xgemm.mul(x, w), x, w)


def test_into_a_strided_destination() -> None:
    a, b = randn(100, 64), randn(64, 80)
    for shape in ((100, 200), (200, 100), (100, 161)):
        buffer = torch.full(shape, SENTINEL, device="cuda", dtype=a.dtype)
        dst = buffer[:, 1:161:2] if shape[1] >= 161 else buffer.t()[:, :80]
        torch.ops.xgemm.mul_into(dst, a, b)
        assert_right(dst, a, b)
        assert (buffer == SENTINEL).sum() >= buffer.numel() - dst.numel()


def test_more_batch_dimensions_than_a_launch_takes() -> None:
    shape = [2] * 10
    a = randn(*shape, 2, 3, dtype=torch.float32).permute(*reversed(range(10)), 10, 11)
    b = randn(*shape, 3, 2, dtype=torch.float32)
    assert_right(torch.ops.xgemm.mul(a, b), a, b)


@pytest.mark.parametrize("shape", [(256, 512, 128), (16, 2048, 512), (1, 512, 256), (100, 77, 33)])
def test_batches_of_every_kind(shape: tuple[int, int, int]) -> None:
    m, n, k = shape
    for batch_a, batch_b in (([6], [6]), ([6], []), ([], [6]), ([2, 1], [3]), ([2, 3], [2, 1])):
        a, w = randn(*batch_a, m, k), randn(*batch_b, n, k)
        assert_right(torch.ops.xgemm.mul(a, w.mT), a, w.mT)
        apart = randn(*batch_a, m, k + 8)[..., :k]
        assert_right(torch.ops.xgemm.mul(apart, w.mT), apart, w.mT)


def test_sgemm_has_blas_semantics() -> None:
    torch.manual_seed(0)
    for transa in (False, True):
        for transb in (False, True):
            a, b = (randn(*shape, dtype=torch.float32) for shape in ((70, 50), (50, 90)))
            c = randn(70, 90, dtype=torch.float32)
            given = (a.t().contiguous() if transa else a, b.t().contiguous() if transb else b)
            options = {"transa": transa, "transb": transb}
            y = torch.ops.xgemm.sgemm(*given, c, alpha=0.5, beta=2.0, **options)
            expected = 0.5 * (a.double() @ b.double()) + 2 * c.double()
            torch.testing.assert_close(y.double(), expected, rtol=1e-5, atol=1e-5)
            unread = torch.full_like(c, float("nan"))
            torch.ops.xgemm.sgemm_into(unread, *given, **options)
            assert_right(unread, a, b)


def test_operands_on_two_devices_are_named() -> None:
    with pytest.raises(ValueError, match="mul: b must be on"):
        torch.ops.xgemm.mul(randn(3, 3), torch.randn(3, 3).half())


def test_explain_names_the_kernel_of_each_kind_of_problem() -> None:
    """What is asked without a tensor is what runs on aligned ones: a kernel, a tile and why."""
    for m, n, k, dtype in (
        (4096, 4096, 4096, "float16"),
        (16, 4096, 4096, "bfloat16"),
        (1, 4096, 4096, "float16"),
        (1000, 3333, 5555, "bfloat16"),
        (128, 128, 128, "float32"),
        (0, 4, 4, "float16"),
        (4, 4, 0, "float16"),
    ):
        said = xgemm.explain("mul", m, n, k, dtype=dtype, device="cuda")
        assert {"m": m, "n": n, "k": k, "dtype": dtype}.items() <= said["problem"].items()
        assert said["choice"]["reason"]
        words = torch.ops.xgemm.explain("mul", m, n, k, dtype=dtype, device="cuda")
        assert f"because: {said['choice']['reason']}\n" in words
