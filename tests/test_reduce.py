"""The eight reductions on the CPU against torch in float64: values, bits, errors, gradients."""

from __future__ import annotations

import math
import os
from typing import Any

import numpy
import pytest
import sampling
import torch
from helpers import num_threads, seeds
from hypothesis import given, settings
from hypothesis import strategies as st
from prepared import run_script

import xgemm  # noqa: F401  (registers the ops)

ops = torch.ops.xgemm
Tensor = torch.Tensor

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
INTEGERS = (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.bool)
OVER_DIMS = ("sum", "mean", "prod", "amax", "amin", "norm")
POSITIONS = ("argmax", "argmin")
ALL = OVER_DIMS + POSITIONS
ORDERS = (0.0, 1.0, 2.0, 3.0, 4.0, 1.5, 0.5, -1.0, -2.0, -3.7, math.inf, -math.inf)


@st.composite
def tensors(draw: st.DrawFn, dtypes: tuple[torch.dtype, ...] = FLOATS + INTEGERS) -> Tensor:
    """Up to four dimensions around the vectors' edges: permuted, sliced, expanded, offset."""
    sides = st.sampled_from((1, 2, 3, 5, 8, 17, 33, 70))
    shape = draw(st.lists(sides, max_size=4))
    while math.prod(shape) > 100_000:
        shape[shape.index(max(shape))] = 2
    if shape and draw(st.integers(0, 5)) == 0:
        shape[0] = max(1, 20_000 // math.prod(shape[1:]))  # long enough to be cut up
    dtype = draw(st.sampled_from(dtypes))
    generator = torch.Generator().manual_seed(draw(seeds))
    if dtype.is_floating_point:
        x = torch.randn(shape, generator=generator, dtype=torch.float64)
        if draw(st.booleans()):
            x = x.round()  # ties, zeros and negative zeros
        x = x.to(dtype)
        if draw(st.integers(0, 4)) == 0:
            where = torch.randint(x.numel(), (2,), generator=generator)
            x.view(-1)[where] = draw(st.sampled_from((math.nan, math.inf, -math.inf)))
    elif dtype == torch.bool:
        x = torch.rand(shape, generator=generator) < 0.7
    else:
        info = torch.iinfo(dtype)
        x = torch.randint(max(info.min, -(2**40)), min(info.max, 2**40), shape, generator=generator)
        x = x.to(dtype)
    if x.dim() and draw(st.booleans()):
        x = x.permute(draw(st.permutations(range(x.dim()))))
    if x.dim() and draw(st.booleans()):
        x = x[tuple(slice(draw(st.integers(0, size - 1)) // 2, None) for size in x.shape)]
        x = x[tuple(slice(None, None, draw(st.integers(1, 3))) for _ in x.shape)]
    if x.dim() and draw(st.integers(0, 3)) == 0:
        d = draw(st.integers(0, x.dim() - 1))
        x = x.narrow(d, 0, 1).expand([40 if i == d else size for i, size in enumerate(x.shape)])
    return x


def draw_dims(data: st.DataObject, ndim: int) -> list[int] | None:
    if ndim == 0 or data.draw(st.integers(0, 4)) == 0:
        return data.draw(st.sampled_from((None, [])))
    dims = data.draw(st.lists(st.integers(0, ndim - 1), min_size=1, unique=True))
    return [d - ndim if data.draw(st.booleans()) else d for d in dims]


def expected(op: str, x: Tensor, dim: Any, keepdim: bool, p: float = 2.0) -> Tensor:
    """torch's result, of x in float64 where it is floating."""
    wide = x.double() if x.dtype.is_floating_point else x
    if op in POSITIONS:
        comparable = x.to(torch.uint8) if x.dtype == torch.bool else x  # torch refuses bool
        return getattr(torch, op)(comparable, dim=dim, keepdim=keepdim)
    dims = [dim] if isinstance(dim, int) else list(dim or range(x.dim()))
    if op == "norm":
        return torch.linalg.vector_norm(wide, p, dims if x.dim() else None, keepdim)
    if op == "prod":
        result = wide if x.dtype.is_floating_point else x.long()
        for d in sorted((d % x.dim() for d in dims), reverse=True):
            result = result.prod(d, keepdim)
        return result
    return getattr(torch, op)(wide, dim=dims, keepdim=keepdim)


def assert_close(op: str, got: Tensor, want: Tensor, x: Tensor, dim: Any, keepdim: bool) -> None:
    """Equal, or for rounded results within the dtype's rounding and the lanes' fp32 sums."""
    assert got.shape == want.shape
    assert got.is_contiguous()
    exact = not x.dtype.is_floating_point or op in ("amax", "amin", *POSITIONS)
    if exact:
        dtype = x.dtype if op in ("amax", "amin") else torch.int64
        assert got.dtype == dtype
        torch.testing.assert_close(got, want.to(dtype), rtol=0, atol=0, equal_nan=True)
        return
    assert got.dtype == x.dtype
    rounded = want.to(x.dtype).double()
    size = rounded.abs()
    if op in ("sum", "mean"):  # rounding errors grow with what was added, not with the result
        size = size + expected(op, x.abs(), dim, keepdim)
    # A lane adds at most 1024 numbers in fp32 (all else is fp64): sqrt(1024) roundings, typically.
    unit = 2.0**-53 * 64 if x.dtype == torch.float64 else 2.0**-24 * 8
    bound = unit * size + torch.finfo(x.dtype).eps * size + torch.finfo(x.dtype).smallest_normal
    if op in ("sum", "mean"):
        bound = bound + torch.finfo(x.dtype).eps * rounded.abs()
    same = (got.double() == rounded) | (got.isnan() & rounded.isnan())
    assert (same | ((got.double() - rounded).abs() <= bound)).all(), (got, want)


@settings(max_examples=150)
@given(st.data(), st.sampled_from(("sum", "mean", "prod", "amax", "amin")), st.booleans())
def test_against_torch(data: st.DataObject, op: str, keepdim: bool) -> None:
    x = data.draw(tensors(FLOATS if op == "mean" else FLOATS + INTEGERS))
    dim = draw_dims(data, x.dim())
    got = getattr(ops, op)(x, dim, keepdim)
    assert_close(op, got, expected(op, x, dim, keepdim), x, dim, keepdim)


@settings(max_examples=100)
@given(st.data(), st.sampled_from(ORDERS), st.booleans())
def test_norm_against_torch(data: st.DataObject, p: float, keepdim: bool) -> None:
    x = data.draw(tensors(FLOATS))
    dim = draw_dims(data, x.dim())
    got = ops.norm(x, dim, keepdim, p)
    assert_close("norm", got, expected("norm", x, dim, keepdim, p), x, dim, keepdim)


@settings(max_examples=100)
@given(st.data(), st.sampled_from(POSITIONS), st.booleans())
def test_positions_against_torch(data: st.DataObject, op: str, keepdim: bool) -> None:
    x = data.draw(tensors())
    dim = data.draw(st.sampled_from((None, *range(-x.dim(), x.dim()))))
    got = getattr(ops, op)(x, dim, keepdim)
    assert_close(op, got, expected(op, x, dim, keepdim), x, dim, keepdim)


@settings(max_examples=40)
@given(st.data(), st.sampled_from(ALL))
def test_threads_do_not_change_the_bits(data: st.DataObject, op: str) -> None:
    shapes = ((300_000,), (600, 700), (4, 100_000), (100_000, 3), (30, 40, 300))
    shape = data.draw(st.sampled_from(shapes))
    generator = torch.Generator().manual_seed(data.draw(seeds))
    x = torch.randn(shape, generator=generator).to(data.draw(st.sampled_from(FLOATS)))
    x = x.abs() + 0.5 if op == "prod" else x
    dim = data.draw(st.sampled_from((None, *range(x.dim()))))
    results = []
    for count in (1, 2, 3):
        with num_threads(count):
            results.append(getattr(ops, op)(x, dim).unsqueeze(0).contiguous().view(torch.uint8))
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


@pytest.mark.parametrize("dtype", FLOATS)
def test_many_ones(dtype: torch.dtype) -> None:
    ones = torch.ones(2**24, dtype=dtype)
    assert ops.mean(ones).item() == 1
    assert ops.norm(ones).item() == 4096
    if dtype != torch.float16:  # whose largest number is 65504
        assert ops.sum(ones).item() == 2**24
        assert ops.norm(ones, None, False, 1.0).item() == 2**24
    assert ops.sum(ones.view(-1, 1024), 1).eq(1024).all()
    assert ops.sum(ones.view(2**13, -1), 0).eq(2**13).all()


@pytest.mark.parametrize("dtype", FLOATS)
def test_from_memory(dtype: torch.dtype) -> None:
    """Inputs that caches do not hold, which are read at several places at once."""
    n = (64 << 20) // dtype.itemsize + 4099
    generator = torch.Generator().manual_seed(n)
    integers = torch.randint(-1, 2, (n,), generator=generator, dtype=torch.int8)
    x = integers.to(dtype)
    whole = n // 3 * 3
    for got, want in (
        *((x, integers), (x[1:], integers[1:])),
        (x[:whole].view(3, -1), integers[:whole].view(3, -1)),
    ):
        assert torch.equal(ops.sum(got, -1), want.sum(-1).to(dtype))  # all sums are exact
        length = want.ne(0).sum(-1).double().sqrt().to(dtype)
        torch.testing.assert_close(ops.norm(got, -1), length, rtol=torch.finfo(dtype).eps, atol=0)
    for place in (0, n // 4, n // 2 + 1, n - 4100, n - 1):
        x[place] = 2
        assert ops.amax(x) == 2
        assert ops.argmax(x) == place
        x[place] = math.nan
        for op in ("sum", "amax", "amin", "norm"):
            assert getattr(ops, op)(x).isnan()
        x[place] = 0
    if dtype in (torch.float32, torch.bfloat16):  # whose squares leave fp32's range
        x.fill_(1e30)
        length = (x[0].double() * math.sqrt(n)).to(dtype)
        torch.testing.assert_close(ops.norm(x), length, rtol=torch.finfo(dtype).eps, atol=0)
    x = torch.randn(n, generator=generator).to(dtype)
    with num_threads(1):
        one = ops.sum(x)
    with num_threads(2):
        assert ops.sum(x) == one


def test_norm_neither_overflows_nor_vanishes() -> None:
    for size in (1e-30, 1e30):
        for dtype in (torch.float32, torch.bfloat16):
            for x in (torch.full((3,), size), torch.full((400, 100), size)):
                x = x.to(dtype)
                for dim in (None, 0):
                    want = torch.linalg.vector_norm(x.double(), dim=dim)
                    got = ops.norm(x, dim).double()
                    torch.testing.assert_close(got, want, rtol=torch.finfo(dtype).eps, atol=0)


def test_results_are_rounded_once() -> None:
    # The mean lies a hair above the tie between 1 and the next number; rounded to fp32 first, as
    # torch converts float64 to the 16-bit types, it would be the tie itself, and then 1.
    for dtype, step in ((torch.float16, 2.0**-11), (torch.bfloat16, 2.0**-8)):
        x = torch.tensor([1.0, 1 + 2 * step], dtype=dtype).repeat(2**14)  # the mean is the tie
        x = torch.cat([x, torch.tensor([1 + 4 * step, 1.0, 1.0], dtype=dtype)])
        assert ops.mean(x).item() == 1 + 2 * step


@pytest.mark.parametrize("dtype", FLOATS)
def test_nan(dtype: torch.dtype) -> None:
    x = torch.zeros(70, 90, dtype=dtype)
    x[3, 5] = x[3, 80] = x[60, 5] = math.nan
    for op in ("sum", "mean", "prod", "amax", "amin", "norm"):
        assert getattr(ops, op)(x).isnan()
        for dim in (0, 1):
            assert torch.equal(getattr(ops, op)(x, dim).isnan(), x.isnan().any(dim))
    for op in POSITIONS:
        assert getattr(ops, op)(x) == 3 * 90 + 5
        assert getattr(ops, op)(x, 1)[[3, 60]].tolist() == [5, 5]
        assert getattr(ops, op)(x, 0)[[5, 80]].tolist() == [3, 3]
        assert getattr(ops, op)(x.T) == 5 * 70 + 3


def test_first_of_equals() -> None:
    for shape in ((5000,), (3, 5000), (5000, 3)):
        x = torch.zeros(shape, dtype=torch.float32)
        for op in POSITIONS:
            for dim in (None, *range(x.dim())):
                assert getattr(ops, op)(x, dim).eq(0).all()
        for dim in range(x.dim()):
            assert ops.argmax(torch.full(shape, -math.inf), dim).eq(0).all()


def test_integer_sums_and_products_wrap_as_in_torch() -> None:
    x = torch.full((1000,), 2**62 + 12345, dtype=torch.int64)
    assert ops.sum(x) == x.sum()
    assert ops.prod(x) == x.prod()
    small = torch.full((300_000,), -128, dtype=torch.int8)
    assert ops.sum(small) == -128 * 300_000
    assert ops.sum(small.view(-1, 3), 0).tolist() == [-12_800_000] * 3


def test_empty() -> None:
    x = torch.zeros(2, 0, 3)
    assert torch.equal(ops.sum(x), torch.tensor(0.0))
    assert torch.equal(ops.sum(x.long(), 1), torch.zeros(2, 3, dtype=torch.int64))
    assert torch.equal(ops.prod(x, 1), torch.ones(2, 3))
    assert ops.mean(x).isnan()
    assert ops.mean(x, 1, True).isnan().all()
    assert torch.equal(ops.norm(x, 1), torch.zeros(2, 3))
    for op in ALL:
        assert getattr(ops, op)(x, 0).shape == (0, 3)
        assert getattr(ops, op)(x, -1, True).shape == (2, 0, 1)


def test_zero_dimensional() -> None:
    x = torch.tensor(-3.0)
    for dim in (None, 0, -1):
        for op in ("sum", "mean", "prod", "amax", "amin"):
            assert torch.equal(getattr(ops, op)(x, dim, True), x)
        assert torch.equal(ops.norm(x, dim), -x)
        assert torch.equal(ops.argmax(x, dim), torch.tensor(0))


def test_more_than_2_to_the_31_elements() -> None:
    row = torch.ones(2**16, dtype=torch.int8)
    row[-1] = 2
    x = row.expand(2**15 + 1, -1)
    assert ops.sum(x) == (2**16 + 1) * (2**15 + 1)
    assert ops.amax(x) == 2
    y = torch.zeros(1, dtype=torch.int8).expand(2**31 + 10)
    z = torch.cat([y[:3], torch.ones(1, dtype=torch.int8)])
    assert ops.argmax(y) == 0
    assert ops.argmax(z) == 3


@pytest.mark.parametrize("op", ALL)
def test_errors(op: str) -> None:
    call = getattr(ops, op)
    x = torch.zeros(2, 3)

    def refused(kind: type[Exception], message: str, *args: Any, **kwargs: Any) -> None:
        for device in ("cpu", "meta"):  # the kernel and the fake kernel say the same
            moved = [a.to(device) if isinstance(a, Tensor) else a for a in args]
            with pytest.raises(kind) as error:
                call(*moved, **kwargs)
            assert message == str(error.value).splitlines()[0]

    allowed = "float16, bfloat16, float32 or float64"
    if op not in ("mean", "norm"):
        allowed = "float16, bfloat16, float32, float64, int8, int16, int32, int64, uint8 or bool"
    refused(ValueError, f"{op}: x must be {allowed}, got complex64", x.to(torch.complex64))
    if op in ("mean", "norm"):
        refused(ValueError, f"{op}: x must be {allowed}, got int64", x.long())
        refused(ValueError, f"{op}: x must be {allowed}, got bool", x.bool())
    refused(IndexError, f"{op}: dim must be in [-2, 1] for a 2-D tensor, got 2", x, 2)
    refused(IndexError, f"{op}: dim must be in [-2, 1] for a 2-D tensor, got -3", x, -3)
    refused(IndexError, f"{op}: dim must be in [-1, 0] for a 0-D tensor, got 1", x.sum(), 1)
    if op not in POSITIONS:
        message = f"{op}: dim must name each dimension once, got -1 again for a 2-D tensor"
        refused(ValueError, message, x, [1, -1])
    if op in POSITIONS:
        rule = f"{op}: dim must be one dimension (an int), or None for all elements, got"
        for dims in ([0, 1], (1,), []):
            refused(TypeError, f"{rule} {type(dims).__name__} {dims}", x, dims)
    else:
        rule = f"{op}: dim must be an int, a list of ints or None, got"
        refused(TypeError, f"{rule} list [0, 1.5]", x, [0, 1.5])
    refused(TypeError, f"{rule} float 1.0", x, 1.0)
    refused(TypeError, f"{rule} str 'rows'", x, dim="rows")
    for array in (numpy.zeros((200, 3)), [1.0] * 100):
        refused(TypeError, f"{op}: x must be a torch.Tensor, got {type(array).__name__}", array)
    message = f"{op}: dim 1 must not be empty where it is reduced, got x of shape [2, 0]"
    if op in ("amax", "amin", *POSITIONS):
        refused(IndexError, message, x[:, :0])
        refused(IndexError, message, x[:, :0], 1)
    if op == "norm":
        for p in (math.inf, -math.inf, -1.5):
            refused(IndexError, message.replace(",", f" with p={p:g},", 1), x[:, :0], 1, p=p)
        refused(TypeError, "norm: p must be a float, got str 'fro'", x, p="fro")


@pytest.mark.parametrize("op", ALL)
def test_opcheck(op: str) -> None:
    call = getattr(ops, op).default
    for index, dim in enumerate((None, 1, -2) if op in POSITIONS else (None, [], [1], [0, -1])):
        for keepdim in (False, True) if sampling.ALL else (index % 2 == 0,):
            x = torch.randn(4, 5, 6, requires_grad=op not in POSITIONS)
            torch.library.opcheck(call, (x, dim, keepdim))
    torch.library.opcheck(call, (torch.randn(6, 5).T, None))
    if op in ("sum", "prod", "amax", "amin", *POSITIONS):
        torch.library.opcheck(call, (torch.arange(12).view(3, 4), None))


def every_reduction(x: Tensor) -> list[Tensor]:
    results = [getattr(ops, op)(x, [0, 2], True) for op in ("sum", "mean", "prod", "amax", "amin")]
    results += [ops.norm(x, [1], False, p) for p in (1.0, 2.0, 3.0, math.inf)]
    return [*results, ops.argmax(x, 1), ops.argmin(x)]


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compile(backend: str) -> None:
    compiled = torch.compile(every_reduction, fullgraph=True, backend=backend, dynamic=True)
    for shape in ((3, 4, 5), (6, 7, 8)):
        x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
        y = x.detach().clone().requires_grad_()
        got, want = compiled(x), every_reduction(y)
        for a, b in zip(got, want, strict=True):
            assert torch.equal(a, b)
        sum(a.sum() for a in got[:-2]).backward()
        sum(b.sum() for b in want[:-2]).backward()
        torch.testing.assert_close(x.grad, y.grad)


def test_export() -> None:
    class Model(torch.nn.Module):
        def forward(self, x: Tensor) -> list[Tensor]:
            return every_reduction(x)

    batch = torch.export.Dim("batch", min=2, max=100)
    program = torch.export.export(
        Model(), (torch.randn(3, 4, 5),), dynamic_shapes={"x": {0: batch}}
    )
    x = torch.randn(9, 4, 5)
    for got, want in zip(program.module()(x), every_reduction(x), strict=True):
        assert torch.equal(got, want)


def grads(function: Any, x: Tensor) -> Tensor:
    x = x.detach().clone().requires_grad_()
    result = function(x)
    weights = torch.linspace(0.5, 2, result.numel(), dtype=x.dtype).view(result.shape)
    # The count of non-zero elements (p = 0) does not depend on x in torch's graph.
    return torch.autograd.grad(result, x, weights, allow_unused=True, materialize_grads=True)[0]


@pytest.mark.parametrize("keepdim", [False, True])
@pytest.mark.parametrize("dim", [None, [1], [0, 2], [-1, 0]])
def test_gradients_equal_torchs(dim: list[int] | None, keepdim: bool) -> None:
    torch.manual_seed(0)
    x = torch.randn(3, 4, 5, dtype=torch.float64)
    dims = dim or [0, 1, 2]
    ties = x.round()  # zeros among them
    for op in ("sum", "mean", "prod", "amax", "amin"):
        for values in (x, ties):
            got = grads(lambda t, op=op: getattr(ops, op)(t, dim, keepdim), values)
            want = grads(lambda t, op=op: expected(op, t, dims, keepdim), values)
            torch.testing.assert_close(got, want)
    for p in ORDERS:
        got = grads(lambda t, p=p: ops.norm(t, dim, keepdim, p), x)
        want = grads(lambda t, p=p: torch.linalg.vector_norm(t, p, dims, keepdim), x)
        torch.testing.assert_close(got, want)


@pytest.mark.parametrize("p", [0.0, 1.0, 2.0, 3.0, 1.5, 0.5, math.inf])
def test_gradient_of_the_zero_vector(p: float) -> None:
    x = torch.zeros(3, 4, dtype=torch.float64)
    got = grads(lambda t: ops.norm(t, 1, False, p), x)
    want = grads(lambda t: torch.linalg.vector_norm(t, p, 1), x)
    torch.testing.assert_close(got, want)
    assert got.eq(0).all()


@pytest.mark.parametrize("op", OVER_DIMS)
def test_double_backward(op: str) -> None:
    torch.manual_seed(0)
    x = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    for dim in (None, [0], [1]):
        assert torch.autograd.gradcheck(lambda t, d=dim: getattr(ops, op)(t, d), (x,))
        assert torch.autograd.gradgradcheck(lambda t, d=dim: getattr(ops, op)(t, d), (x,))


def test_gradient_of_prod_with_zeros() -> None:
    for values in ([2.0, 0.0, 3.0], [0.0, 0.0, 3.0], [2.0, 4.0, 3.0]):
        x = torch.tensor(values, dtype=torch.float64)
        torch.testing.assert_close(grads(ops.prod, x), grads(torch.prod, x))
    half = torch.tensor([300.0, 300.0, 1e-4], dtype=torch.float16)  # 300 * 300 overflows fp16
    got = grads(ops.prod, half)
    want = 0.5 * torch.tensor([0.03, 0.03, 90000.0], dtype=torch.float64)
    torch.testing.assert_close(got.double(), want, rtol=2e-3, atol=0)


def test_positions_and_integers_have_no_gradient() -> None:
    x = torch.randn(3, 4, requires_grad=True)
    assert not ops.argmax(x, 1).requires_grad
    assert not ops.argmin(x).requires_grad
    assert not ops.sum(torch.arange(3)).requires_grad


def test_a_sum_does_not_keep_its_input() -> None:
    x = torch.randn(3, requires_grad=True)
    for op in ("sum", "mean"):
        # Read through the node: what autograd saved for the backward pass.
        assert getattr(ops, op)(x * 2).grad_fn.saved_tensors == ()


@pytest.mark.parametrize("isa", ["generic", "avx2"])
def test_kernels_of_other_cpus(isa: str) -> None:
    """Those of a CPU with less than this one: the same tests in a process told to use them."""
    chosen = "against_torch or threads or nan or many_ones or vanishes or rounded or 2_to_the_31"
    chosen += " or from_memory"
    run = run_script(
        "import pytest, sys; sys.exit(pytest.main(sys.argv[1:]))",
        *("-q", "-x", "-p", "no:cacheprovider", __file__, "-k", chosen),
        env={**os.environ, "XGEMM_CPU_ISA": isa},
    )
    assert run.returncode == 0, run.stdout[-3000:]
