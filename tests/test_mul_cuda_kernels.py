"""Every kernel and tile that select_config gives out, each on the smallest problem that gets it.

The problems are found by asking `explain`, so a kernel that is added is visited, too. They are
small enough for compute-sanitizer: CONTRIBUTING.md has the command.
"""

from __future__ import annotations

from functools import cache

import pytest
import torch
from kernel_visits import Choice, Visit, find_visits
from random_products import SENTINEL, worst_share

import xgemm

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)


@cache
def visits() -> tuple[Visit, ...]:
    def explain(m: int, n: int, k: int, transa: bool, transb: bool) -> Choice:
        options = {"dtype": "float16", "device": "cuda", "transa": transa, "transb": transb}
        choice: Choice = xgemm.explain("mul", m, n, k, candidates=False, **options)["choice"]
        return choice

    return find_visits(explain)


def make(visit: Visit, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    m, n, k = visit.m, visit.n, visit.k
    a = torch.randn((k, m) if visit.transa else (m, k), device="cuda").to(dtype)
    b = torch.randn((n, k) if visit.transb else (k, n), device="cuda").to(dtype)
    return a.t() if visit.transa else a, b.t() if visit.transb else b


@pytest.mark.skipif(not HOPPER, reason="needs a GPU of compute capability 9.0")
def test_the_search_finds_the_kernels() -> None:
    kernels = [visit.kernel for visit in visits()]
    assert {"sm90_persistent", "gemv", "sm80"} <= {kernel.name for kernel in kernels}
    assert any(kernel.flags & {"copy_a", "copy_b"} for kernel in kernels)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_every_kernel(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    for visit in visits():
        a, b = make(visit, dtype)
        bias = torch.randn(visit.n, device="cuda").to(dtype)
        torch.full((visit.m, visit.n), float("nan"), device="cuda", dtype=dtype)
        y = torch.ops.xgemm.mul(a, b, bias, activation="gelu")
        share = worst_share(y, a, b, bias, "gelu").item()
        assert share <= 1, f"{share:.3g} of the bound: {visit}"
        assert torch.equal(y, torch.ops.xgemm.mul(a, b, bias, activation="gelu")), visit


def test_every_kernel_stores_into_a_strided_destination() -> None:
    torch.manual_seed(1)
    for visit in visits():
        a, b = make(visit, torch.float16)
        buffer = torch.full((visit.n, visit.m + 3), SENTINEL, device="cuda", dtype=a.dtype)
        y = buffer.t()[: visit.m].fill_(float("nan"))
        torch.ops.xgemm.mul_into(y, a, b)
        share = worst_share(y, a, b).item()
        assert share <= 1, f"{share:.3g} of the bound: {visit}"
        assert (buffer[:, visit.m :] == SENTINEL).all(), visit


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_every_kernel_rounds_once_and_to_nearest(dtype: torch.dtype) -> None:
    """Sums of such integers are exact in fp32 in any order, so every bit of the result is known."""
    torch.manual_seed(2)
    for visit in visits():
        a, b = make(visit, dtype)
        for operand in (a, b):
            operand.copy_(torch.randint(-15, 16, operand.shape, device="cuda"))
        expected = (a.double() @ b.double()).to(dtype)
        assert torch.equal(torch.ops.xgemm.mul(a, b), expected), visit


def test_every_kernel_keeps_partial_sums_beyond_fp16() -> None:
    """The first half of K sums to far more than fp16 holds, and the second takes it back."""
    for visit in visits():
        a, b = make(visit, torch.float16)
        half = visit.k // 2
        a.zero_(), b.fill_(250.0)
        a[:, :half], a[:, half : 2 * half], b[0] = 240.0, -240.0, 252.0
        assert (torch.ops.xgemm.mul(a, b) == 480.0).all(), visit


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (65504.0, 0.0, 65504.0),
        (65504.0, 15.0, 65504.0),
        (65504.0, 16.0, float("inf")),  # half way to 65536, and 65504 is odd in its last place
        (-65504.0, -32.0, float("-inf")),
    ],
)
def test_every_kernel_overflows_as_torch_does(first: float, second: float, expected: float) -> None:
    assert torch.tensor(first + second).half().item() == expected
    for visit in visits():
        a, b = make(visit, torch.float16)
        a.zero_(), b.fill_(1.0)
        a[:, 0], a[:, 1] = first, second
        assert (torch.ops.xgemm.mul(a, b) == expected).all(), visit


def test_every_kernel_passes_nan_and_infinity_on() -> None:
    torch.manual_seed(3)
    for visit in visits():
        a, b = make(visit, torch.bfloat16)
        a[-1, -1], a[0, 0], b[0, 0], b[-1, -1] = float("nan"), float("inf"), float("-inf"), 1e37
        y, expected = torch.ops.xgemm.mul(a, b), a.double() @ b.double()
        assert torch.equal(y.isnan(), expected.isnan()), visit
        assert torch.equal(y.isinf(), expected.isinf()), visit
        assert torch.equal(y[y.isinf()].double(), expected[expected.isinf()]), visit


def test_every_kernel_keeps_subnormal_numbers() -> None:
    for visit in visits():
        a, b = make(visit, torch.float16)
        a.fill_(2.0**-24)
        for value in (1.0, 2.0**-10):  # products that fp16 holds, and that only fp32 does
            b.fill_(value)
            expected = torch.tensor(visit.k * value * 2.0**-24).half().item()
            assert (torch.ops.xgemm.mul(a, b) == expected).all(), visit
