"""mul.w4a16 on CUDA against float64 of the dequantized weight, element by element.

Random problems run on the CPU, too, with fewer of them: the comparison is the same. What is done
with the op in a program is in test_w4a16_cuda_runs.py.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable

import pytest
import torch
from helpers import needs_memory
from random_products import Limits, Verdict, failures
from random_w4 import (
    GROUP_SIZES,
    ON_CPU,
    ON_CUDA,
    Format,
    multiply,
    random_weight_on,
    run_gradient,
    run_problem,
)

import xgemm
from xgemm import reference

# XGEMM_RANDOM_PROBLEMS=100000 XGEMM_RANDOM_SEED=1 runs longer, over other problems.
PROBLEMS = int(os.environ.get("XGEMM_RANDOM_PROBLEMS", "6000"))
SEED = int(os.environ.get("XGEMM_RANDOM_SEED", "0"))
CHUNKS = 20
SHOWN = 8  # of the failures
HALVES = (torch.float16, torch.bfloat16)

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

Problem = Callable[[random.Random, Limits, str], Verdict]


def run_many(run: Problem, seed: int, count: int, limits: Limits, device: str) -> None:
    rng = random.Random(seed)
    torch.manual_seed(seed)
    found: list[str] = []
    for start in range(0, count, 50):
        found += failures([run(rng, limits, device) for _ in range(min(50, count - start))])
    assert not found, "\n".join([f"{len(found)} of {count} (seed {seed}):", *found[:SHOWN]])


@pytest.mark.gpu
@needs_cuda
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_random_problems_on_cuda(chunk: int) -> None:
    run_many(run_problem, SEED * CHUNKS + chunk, -(-PROBLEMS // CHUNKS), ON_CUDA, "cuda")


@pytest.mark.gpu
@needs_cuda
@pytest.mark.parametrize("chunk", range(4))
def test_random_gradients_on_cuda(chunk: int) -> None:
    run_many(run_gradient, SEED * 4 + chunk, max(50, PROBLEMS // 40), ON_CUDA, "cuda")


def test_random_problems_on_the_cpu() -> None:
    run_many(run_problem, SEED, 60, ON_CPU, "cpu")


def test_random_gradients_on_the_cpu() -> None:
    run_many(run_gradient, SEED, 40, ON_CPU, "cpu")


def assert_right(
    x: torch.Tensor, q: xgemm.QuantizedWeight, p: xgemm.PackedWeight, invariant: bool = False
) -> torch.Tensor:
    y = multiply(x, p, None, "none", invariant)
    ratio = reference.error_ratio(y, reference.w4a16(x, q), reference.w4a16_bound(x, q))
    assert ratio <= 1, f"{ratio:.3g} of the bound at {tuple(x.shape)}, n={p.n}"
    return y


@pytest.mark.gpu
@needs_cuda
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("group_size", GROUP_SIZES)
def test_every_number_of_rows(group_size: int, dtype: torch.dtype) -> None:
    """All tiles, K in parts and not, each format: rows beside the last one must not matter."""
    torch.manual_seed(0)
    for zeros, scale_dtype in (("none", torch.float16), ("real", torch.bfloat16)):
        q = random_weight_on("cuda", 1096, 1160, Format(group_size, zeros, scale_dtype, False))
        p = xgemm.pack(q)
        for m in (1, 2, 3, 4, 7, 8, 9, 15, 16, 17, 24, 31, 33, 48, 63, 65, 96, 127, 129, 200, 513):
            assert_right(torch.randn(m, 1160, device="cuda").to(dtype), q, p)


@pytest.mark.gpu
@needs_cuda
@pytest.mark.parametrize(("n", "k"), [(4096, 4096), (28672, 4096), (4096, 14336), (5000, 1792)])
def test_layers_of_a_model(n: int, k: int) -> None:
    torch.manual_seed(1)
    q = random_weight_on("cuda", n, k, Format(128, "none", torch.float16, False))
    p = xgemm.pack(q)
    for m in (1, 8, 16, 64, 128, 300, 2048):
        assert_right(torch.randn(m, k, device="cuda").half(), q, p)


@pytest.mark.gpu
@needs_cuda
@pytest.mark.parametrize("dtype", [*HALVES, torch.float32])
@pytest.mark.parametrize("group_size", [32, 128, -1])
def test_a_row_does_not_depend_on_the_others(group_size: int, dtype: torch.dtype) -> None:
    """With batch_invariant=True: its bits are the same for every M, and beside any neighbours."""
    torch.manual_seed(2)
    for n, k in ((4096, 4096), (200, 3000), (520, 136)):
        q = random_weight_on("cuda", n, k, Format(group_size, "real", torch.float16, False))
        p = xgemm.pack(q)
        x = torch.randn(700, k, device="cuda").to(dtype)
        whole = assert_right(x, q, p, invariant=True)
        for first, last in (
            (0, 1),
            (3, 4),
            (5, 13),
            (7, 23),
            (1, 34),
            (2, 66),
            (60, 200),
            (9, 699),
        ):
            part = multiply(x[first:last].clone(), p, None, "none", True)
            assert torch.equal(part, whole[first:last]), (n, k, first, last)


@pytest.mark.gpu
@needs_cuda
@pytest.mark.parametrize("dtype", HALVES)
def test_the_cpu_agrees(dtype: torch.dtype) -> None:
    """Both within the bound of float64, hence within twice it of each other."""
    torch.manual_seed(3)
    for group_size in GROUP_SIZES:
        q = random_weight_on("cpu", 150, 300, Format(group_size, "integer", dtype, True))
        p = xgemm.pack(q)
        moved = p.to("cuda")
        assert torch.equal(xgemm.pack(q.to("cuda")).qweight, moved.qweight)
        x, bias = torch.randn(19, 300).to(dtype), torch.randn(150).to(dtype)
        here = xgemm.linear(x, p, bias, activation="gelu")
        there = xgemm.linear(x.cuda(), moved, bias.cuda(), activation="gelu").cpu()
        bound = reference.w4a16_bound(x, q, bias, "gelu")
        assert bool(((here.double() - there.double()).abs() <= 2 * bound).all())
        step = 2 * torch.finfo(dtype).eps
        torch.testing.assert_close(
            moved.dequantize(dtype).cpu(), p.dequantize(dtype), rtol=step, atol=1e-7
        )


@pytest.mark.gpu
@needs_cuda
def test_single_products_by_real_zero_points() -> None:
    """Nothing hides what a weight's own rounding costs.

    In fp16: bf16 may be off by more, as test_what_the_offset_of_bf16_codes_costs says.
    """
    torch.manual_seed(6)
    for group_size in (32, -1):
        for _ in range(10):
            q = random_weight_on("cuda", 3000, 1, Format(group_size, "real", torch.float16, False))
            q.codes.bitwise_and_(1)
            p = xgemm.pack(q)
            for m in (1, 16, 40, 300):
                assert_right(torch.randn(m, 1, device="cuda").half(), q, p)


@pytest.mark.gpu
@needs_cuda
@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan")])
def test_what_is_not_finite_stays_in_its_row(value: float) -> None:
    torch.manual_seed(4)
    for zeros in ("none", "real"):
        q = random_weight_on("cuda", 300, 500, Format(64, zeros, torch.float16, False))
        p = xgemm.pack(q)
        for m in (1, 5, 20, 100):
            x = torch.randn(m, 500, device="cuda").half()
            x[m // 2, 499] = value
            y = multiply(x, p, None, "none", False)
            finite = y.isfinite().all(1)
            assert not bool(finite[m // 2])
            assert bool(torch.cat([finite[: m // 2], finite[m // 2 + 1 :]]).all())


@pytest.mark.gpu
@needs_cuda
def test_channels_of_perm_out_of_range_are_zero() -> None:
    """Kernels never read outside of x, whatever perm holds."""
    q = random_weight_on("cuda", 64, 96, Format(32, "none", torch.float16, False))
    p = xgemm.pack(q)
    perm = torch.arange(96, device="cuda").int()
    perm[7], perm[50] = -5, 2**30
    x = torch.randn(4, 96, device="cuda").half()
    y = torch.ops.xgemm.mul.w4a16(x, p.qweight, p.n, p.k, p.group_size, None, perm)
    x[:, [7, 50]] = 0
    torch.testing.assert_close(y, multiply(x, p, None, "none", False), rtol=1e-3, atol=1e-3)


@pytest.mark.gpu
@needs_cuda
@pytest.mark.parametrize("dtype", [*HALVES, torch.float32])
def test_dequantize(dtype: torch.dtype) -> None:
    torch.manual_seed(5)
    for group_size in GROUP_SIZES:
        for n, k in ((64, 128), (130, 257), (1, 1), (300, 1000), (4096, 4096)):
            for zeros in ("none", "real"):
                form = Format(group_size, zeros, torch.bfloat16, group_size == 32)
                q = random_weight_on("cuda", n, k, form)
                w, exact = xgemm.pack(q).dequantize(dtype), q.dequantize(torch.float64)
                steps = torch.finfo(dtype).eps / 2 + 2 * torch.finfo(torch.float32).eps
                assert bool(((w.double() - exact).abs() <= steps * exact.abs() + 2.0**-25).all())


@pytest.mark.gpu
@needs_cuda
def test_a_weight_of_more_than_two_to_the_31_elements() -> None:
    needs_memory(16)
    n, k = 2**17 + 72, 2**14 + 128
    assert n * k > 2**31
    q = random_weight_on("cuda", n, k, Format(128, "none", torch.float16, False))
    p = xgemm.pack(q)
    rows = torch.tensor([0, 1, 63, n // 2, n - 73, n - 1], device="cuda")
    part = xgemm.QuantizedWeight(q.codes[rows], q.scales[:, rows], None, None, 128)
    for m in (1, 9, 40, 200):
        x = torch.randn(m, k, device="cuda").half()
        y = multiply(x, p, None, "none", False)[:, rows]
        bound = reference.w4a16_bound(x, part)
        assert reference.error_ratio(y, reference.w4a16(x, part), bound) <= 1
    columns = p.dequantize(torch.float16)[rows]
    torch.testing.assert_close(columns.double(), part.dequantize(torch.float64), rtol=1e-3, atol=0)


@pytest.mark.gpu
@needs_cuda
def test_activations_and_results_of_more_than_two_to_the_31_elements() -> None:
    needs_memory(20)
    m, n, k = 2**20 + 3, 2056, 2112
    assert m * n > 2**31
    q = random_weight_on("cuda", n, k, Format(64, "integer", torch.float16, False))
    p, x = xgemm.pack(q), torch.empty(m, k, device="cuda", dtype=torch.float16).normal_()
    rows = torch.tensor([0, 1, 255, m // 2, m - 130, m - 4, m - 1], device="cuda")
    expected, bound = reference.w4a16(x[rows], q), reference.w4a16_bound(x[rows], q)
    for invariant in (False, True):
        y = multiply(x, p, None, "none", invariant)
        assert reference.error_ratio(y[rows], expected, bound) <= 1
    grad = y.normal_()
    found = torch.ops.xgemm.w4a16_grad_a(grad, p.qweight, n, k, 64, zeros=True)[rows]
    expected, bound = (
        reference.w4a16_grad_a(grad[rows], q),
        reference.w4a16_grad_a_bound(grad[rows], q),
    )
    assert reference.error_ratio(found, expected, bound) <= 1


@pytest.mark.gpu
@needs_cuda
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_strides_beyond_two_to_the_31_elements(dtype: torch.dtype) -> None:
    needs_memory(5 * dtype.itemsize)
    buffer = torch.zeros(2**31 + 4096, device="cuda", dtype=dtype)
    rows = buffer.as_strided((2, 512), (2**31, 1)).normal_()
    for x in (rows, rows.t()):  # far apart along M, and along K
        q = random_weight_on("cuda", 300, x.shape[1], Format(32, "real", torch.float16, False))
        p = xgemm.pack(q)
        assert_right(x, q, p)
        few = x[:2].clone()
        y, dst = multiply(few, p, None, "none", False), buffer.as_strided((2, 300), (2**31, 1))
        assert torch.equal(multiply(few, p, None, "none", False, dst), y)


@pytest.mark.gpu
@needs_cuda
def test_two_to_the_20_rows() -> None:
    m, n, k = 2**20 + 3, 200, 136
    q = random_weight_on("cuda", n, k, Format(32, "integer", torch.float16, False))
    p, x = xgemm.pack(q), torch.randn(m, k, device="cuda").half()
    rows = torch.tensor([0, 1, 255, 256, m // 2, m - 4, m - 1], device="cuda")
    for invariant in (False, True):
        y = multiply(x, p, None, "none", invariant)[rows]
        bound = reference.w4a16_bound(x[rows], q)
        assert reference.error_ratio(y, reference.w4a16(x[rows], q), bound) <= 1


@pytest.mark.gpu
@needs_cuda
def test_empty_sizes() -> None:
    for m, n, k in ((0, 64, 128), (3, 0, 128), (3, 64, 0), (0, 0, 0)):
        q = random_weight_on("cuda", n, k, Format(32, "real", torch.float16, False))
        p = xgemm.pack(q)
        bias = torch.randn(n, device="cuda").half()
        x = torch.randn(m, k, device="cuda").half().requires_grad_()
        y = xgemm.linear(x, p, bias)
        assert y.shape == (m, n)
        if k == 0:
            assert torch.equal(y, bias.expand(m, n))
        y.sum().backward()
        assert x.grad is not None
        assert not bool(x.grad.any())


@pytest.mark.gpu
@needs_cuda
def test_operands_on_two_devices_are_named() -> None:
    q = random_weight_on("cpu", 64, 128, Format(32, "none", torch.float16, False))
    p = xgemm.pack(q)
    with pytest.raises(ValueError, match=r"mul\.w4a16: qweight must be on"):
        xgemm.linear(torch.randn(2, 128, device="cuda").half(), p)
    with pytest.raises(ValueError, match=r"mul\.w4a16: bias must be on"):
        xgemm.linear(
            torch.randn(2, 128, device="cuda").half(), p.to("cuda"), torch.randn(64).half()
        )


@pytest.mark.gpu
@needs_cuda
def test_explain_says_what_runs() -> None:
    for m, dtype in ((1, "float16"), (16, "bfloat16"), (64, "float16"), (4096, "bfloat16")):
        said = xgemm.explain("mul.w4a16", m, 4096, 4096, dtype=dtype, device="cuda")
        assert (said["family"], said["problem"]["m"]) == ("w4a16", m)
        assert said["choice"]["kernel"]
        assert said["choice"]["reason"]
    said = torch.ops.xgemm.explain("mul.w4a16", 4, 64, 64, dtype="float32", device="cuda")
    assert "dequantized" in said
