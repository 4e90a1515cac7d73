"""One small problem for each op, compared element by element with float64."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch

import xgemm

# Half a unit in the last place, relative: what one rounding to the type may cost.
ROUNDING = {torch.float32: 2.0**-24, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}
SHORT = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16"}
TIMED_CALLS = 5  # the least of them is reported: a machine is rarely idle
M, N, K = 17, 129, 200  # ragged in every direction, K not a multiple of a group


@dataclass(frozen=True)
class TestResult:
    name: str
    device: str
    passed: bool | None  # None: the op has no kernel for the device yet
    error_of_bound: float | None  # largest error as a share of what is allowed; None: it raised
    milliseconds: float
    message: str


@dataclass(frozen=True)
class Expected:
    """What a result is compared with: |result - value| <= bound, element by element, float64."""

    value: torch.Tensor
    bound: torch.Tensor


Case = tuple[str, Callable[[], torch.Tensor], Expected]


def product_bound(
    magnitude: torch.Tensor, value: torch.Tensor, k: int, dtype: torch.dtype
) -> torch.Tensor:
    """The bound of an fp32-accumulated product of k terms: magnitude is the sum of |terms|.

    Every order of summation stays within (k + 8) roundings of fp32 (8 for scaling, bias and the
    activation), and the result is rounded once more, to its own type (2**-24 absolute covers
    fp16's denormals).
    """
    return (k + 8) * 2.0**-24 * magnitude + ROUNDING[dtype] * value.abs() + 2.0**-24


def run_self_test(device: str) -> Iterator[TestResult]:
    """Every op on `device`, one result at a time."""
    generator = torch.Generator().manual_seed(0)
    for dtype in ROUNDING:
        yield from map(lambda case: _judge(case, device), _dense_cases(dtype, device, generator))
        yield from map(lambda case: _judge(case, device), _w4a16_cases(dtype, device, generator))
    yield from map(lambda case: _judge(case, device), _pack_cases(device, generator))
    yield from map(lambda case: _judge(case, device), _reduce_cases(device, generator))


def _judge(case: Case, device: str) -> TestResult:
    name, call, expected = case
    try:
        result = call()
        milliseconds = min(_milliseconds(call, device) for _ in range(TIMED_CALLS))
    except NotImplementedError:
        # The dispatcher's word for a missing kernel; every op has one on the CPU.
        passed = False if device == "cpu" else None
        return TestResult(name, device, passed, None, 0.0, f"no kernel for {device} yet")
    except Exception as failure:  # a self-test reports, whatever is broken
        return TestResult(name, device, False, None, 0.0, " ".join(str(failure).split()))
    if result.shape != expected.value.shape:
        message = f"shape {list(result.shape)}, expected {list(expected.value.shape)}"
        return TestResult(name, device, False, None, milliseconds, message)
    error = (result.double().cpu() - expected.value).abs() / expected.bound
    share = float(error.max())
    passed = share <= 1  # False for NaN
    message = "" if passed else "differs from float64 by more than rounding explains"
    return TestResult(
        name, device, passed, share if share == share else None, milliseconds, message
    )


def _milliseconds(call: Callable[[], torch.Tensor], device: str) -> float:
    start = time.perf_counter()
    call()
    if device == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - start) * 1e3


def _random(generator: torch.Generator, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=generator)


def _dense_cases(dtype: torch.dtype, device: str, generator: torch.Generator) -> Iterator[Case]:
    a = _random(generator, M, K).to(dtype)
    b = _random(generator, K, N).to(dtype)
    bias = _random(generator, N).to(dtype)
    a64, b64 = a.double(), b.double()
    value = a64 @ b64 + bias.double()
    magnitude = a64.abs() @ b64.abs() + bias.double().abs()
    expected = Expected(value, product_bound(magnitude, value, K, dtype))
    on_device = a.to(device), b.to(device), bias.to(device)
    yield f"mul {SHORT[dtype]}", lambda: torch.ops.xgemm.mul.default(*on_device), expected

    def mul_into() -> torch.Tensor:
        result = torch.empty(M, N, dtype=dtype, device=device)
        torch.ops.xgemm.mul_into.default(result, *on_device)
        return result

    yield f"mul_into {SHORT[dtype]}", mul_into, expected
    if dtype != torch.float32:
        return
    c = _random(generator, M, N)
    value = 0.5 * (a64 @ b64) - 2.0 * c.double()
    magnitude = 0.5 * (a64.abs() @ b64.abs()) + 2.0 * c.double().abs()
    expected = Expected(value, product_bound(magnitude, value, K, dtype))
    a_device, bt_device, c_device = a.to(device), b.t().contiguous().to(device), c.to(device)
    scale = {"transb": True, "alpha": 0.5, "beta": -2.0}
    yield (
        "sgemm",
        lambda: torch.ops.xgemm.sgemm.default(a_device, bt_device, c_device, **scale),
        expected,
    )

    def sgemm_into() -> torch.Tensor:
        result = c_device.clone()
        torch.ops.xgemm.sgemm_into.default(result, a_device, bt_device, **scale)
        return result

    yield "sgemm_into", sgemm_into, expected


def _weight(generator: torch.Generator) -> xgemm.QuantizedWeight:
    weight = _random(generator, N, K)
    return xgemm.quantize_weight(weight, group_size=32, symmetric=False)


def _w4a16_cases(dtype: torch.dtype, device: str, generator: torch.Generator) -> Iterator[Case]:
    q = _weight(generator)
    packed = xgemm.pack(q.to(device))
    options = {"bf16_scales": packed.bf16_scales, "zeros": packed.has_zeros}
    assert q.zeros is not None  # asymmetric
    group = q.group_of_channel()
    scale = q.scales.double()[group].t()
    zero = q.zeros.double()[group].t()
    weight = (q.codes.double() - zero) * scale
    weight_magnitude = (q.codes.double() + zero.abs()) * scale.abs()
    for rows in (1, M):
        x = _random(generator, rows, K).to(dtype)
        value = x.double() @ weight.t()
        magnitude = x.double().abs() @ weight_magnitude.t()
        bound = product_bound(magnitude, value, K, dtype)
        bound += ROUNDING[dtype] * magnitude  # W may be rounded once to the activations' type
        arguments = (x.to(device), packed.qweight, N, K, packed.group_size)
        yield (
            f"mul.w4a16 {SHORT[dtype]} M={rows}",
            partial(torch.ops.xgemm.mul.w4a16, *arguments, **options),
            Expected(value, bound),
        )


def _pack_cases(device: str, generator: torch.Generator) -> Iterator[Case]:
    q = _weight(generator)
    on_device = q.to(device)
    expected = Expected(q.codes.double(), torch.full((N, K), 0.5).double())  # exact
    yield "pack_w4, unpack_w4", lambda: xgemm.unpack(xgemm.pack(on_device)).codes, expected
    value = q.dequantize(torch.float64)
    for dtype, rounding in ROUNDING.items():
        expected = Expected(value, (rounding + 2.0**-22) * value.abs() + 2.0**-24)
        yield (
            f"dequantize_w4 {SHORT[dtype]}",
            partial(xgemm.pack(on_device).dequantize, dtype),
            expected,
        )


def _reduce_cases(device: str, generator: torch.Generator) -> Iterator[Case]:
    x = _random(generator, M, N, K)
    x64 = x.double()
    on_device = x.to(device)
    count = M * K
    ops = torch.ops.xgemm
    total = x64.abs().sum((0, 2))
    for name in ("sum", "mean", "norm", "amax", "amin"):
        op = getattr(ops, name).default
        value = {
            "sum": lambda: x64.sum((0, 2)),
            "mean": lambda: x64.mean((0, 2)),
            "norm": lambda: x64.norm(dim=(0, 2)),
            "amax": lambda: x64.amax((0, 2)),
            "amin": lambda: x64.amin((0, 2)),
        }[name]()
        magnitude = {"sum": total, "mean": total / count, "norm": value}.get(name)
        if magnitude is None:  # picks an element: exact, up to a bound that no other value meets
            bound = torch.full_like(value, 1e-12)
        else:
            bound = count * 2.0**-24 * magnitude
        yield name, partial(op, on_device, [0, 2]), Expected(value, bound)
    near_one = 1 + 0.01 * x
    value = near_one.double().prod(2)
    near_one_device = near_one.to(device)
    yield (
        "prod",
        lambda: ops.prod.default(near_one_device, [2]),
        Expected(value, K * 2.0**-23 * value.abs()),
    )
    for name in ("argmax", "argmin"):
        op = getattr(ops, name).default
        value = getattr(x64, name)(1).double()
        expected = Expected(value, torch.full_like(value, 0.5))
        yield name, partial(op, on_device, 1), expected
