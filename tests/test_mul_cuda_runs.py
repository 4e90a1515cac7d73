"""mul on CUDA in a program: graphs, streams, threads, torch.compile, gradients."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from random_products import PRECISIONS, worst_share
from threads import in_threads

import xgemm  # noqa: F401  (registers the ops)

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

# One of each kind that select_config tells apart: tiles, few rows, one row, long K, odd strides.
SHAPES = [
    (2048, 2048, 512),
    (512, 512, 512),
    (129, 8200, 4104),
    (1, 4096, 4096),
    (16, 4096, 4096),
    (64, 4096, 14336),
    (256, 256, 16384),
    (1000, 333, 555),
    (3, 77, 4099),
    (257, 4097, 4097),
]
mul = torch.ops.xgemm.mul.default
# float16, or float32 in one of the precisions.
WAYS = ("float16", *PRECISIONS)
each_way = pytest.mark.parametrize("way", WAYS)


def product_of(way: str) -> Callable[..., torch.Tensor]:
    return mul if way == "float16" else partial(mul, precision=way)


def operands(
    m: int, n: int, k: int, seed: int = 0, way: str = "float16"
) -> tuple[torch.Tensor, torch.Tensor]:
    """a [m, k] and a linear layer's b [k, n]."""
    dtype = torch.float16 if way == "float16" else torch.float32
    generator = torch.Generator("cuda").manual_seed(seed)
    a = torch.randn(m, k, device="cuda", generator=generator).to(dtype)
    b = torch.randn(n, k, device="cuda", generator=generator).to(dtype).t()
    return a, b


def assert_right(
    y: torch.Tensor, a: torch.Tensor, b: torch.Tensor, way: str = "float16", **fused: object
) -> None:
    precision = "ieee" if way == "float16" else way
    share = worst_share(y, a, b, precision=precision, **fused).item()  # type: ignore[arg-type]
    assert share <= 1, f"{share:.3g} of the bound at {tuple(a.shape)} x {tuple(b.shape)}"


@each_way
def test_the_same_bits_from_run_to_run(way: str) -> None:
    """Also beside another kernel that takes some of the GPU, and over what others left behind."""
    product = product_of(way)
    side, busy = torch.cuda.Stream(), operands(1024, 1024, 4096)
    for shape in SHAPES:
        a, b = operands(*shape, way=way)
        first = product(a, b)
        for turn in range(10):
            with torch.cuda.stream(side):
                torch.matmul(*busy)
            torch.full((2**20,), float(turn), device="cuda")
            assert torch.equal(product(a, b), first), shape


@each_way
@pytest.mark.parametrize("shape", SHAPES)
def test_a_graph_replays_with_changed_inputs(shape: tuple[int, int, int], way: str) -> None:
    product = product_of(way)
    a, b = operands(*shape, way=way)
    bias = torch.randn(shape[1], device="cuda").to(a.dtype)
    product(a, b, bias)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = product(a, b, bias, activation="silu")
        again = product(a, b, bias)
    for seed in (1, 2):
        new_a, new_b = operands(*shape, seed, way)
        a.copy_(new_a), b.copy_(new_b), bias.normal_()
        y.fill_(float("nan"))
        graph.replay()
        assert_right(y, a, b, way, bias=bias, activation="silu")
        assert_right(again, a, b, way, bias=bias)


def test_a_graph_of_a_chain() -> None:
    """Each product reads what the one before has written: no kernel starts too early."""
    weights = [operands(1, 2048, 2048, seed)[1] / 45 for seed in range(4)]
    for rows in (1, 16, 300):
        x = torch.randn(rows, 2048, device="cuda").half()

        def chain(x: torch.Tensor) -> list[torch.Tensor]:
            states = [x]
            for weight in weights:
                states.append(mul(states[-1], weight))
            return states

        chain(x)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            states = chain(x)
        for _ in range(3):
            x.normal_()
            graph.replay()
            for before, after, weight in zip(states, states[1:], weights, strict=False):
                assert_right(after, before, weight)


@each_way
def test_two_streams_at_once(way: str) -> None:
    product = product_of(way)
    streams = [torch.cuda.Stream() for _ in range(2)]
    cases = [[operands(*shape, seed, way) for shape in SHAPES] for seed in (1, 2)]
    alone = [[product(a, b) for a, b in case] for case in cases]
    torch.cuda.synchronize()
    results: list[list[torch.Tensor]] = [[], []]
    for _ in range(5):
        for stream in streams:
            with torch.cuda.stream(stream):
                torch.cuda._sleep(2_000_000)
        for i in range(len(SHAPES)):
            for stream, case, found in zip(streams, cases, results, strict=True):
                with torch.cuda.stream(stream):
                    found.append(product(*case[i]))
    torch.cuda.synchronize()
    for found, expected in zip(results, alone, strict=True):
        for i, y in enumerate(found):
            assert torch.equal(y, expected[i % len(SHAPES)]), SHAPES[i % len(SHAPES)]


@each_way
def test_several_threads_at_once(way: str) -> None:
    """As many host threads as an inference server has, each with its own stream and shapes."""
    product = product_of(way)
    cases = [operands(*shape, seed, way) for seed, shape in enumerate(SHAPES)]
    expected = [product(a, b) for a, b in cases]
    torch.cuda.synchronize()

    def work(index: int) -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            for turn in range(40):
                i = (index + turn) % len(cases)
                assert torch.equal(product(*cases[i]), expected[i]), SHAPES[i]

    in_threads(8, work)


@each_way
def test_the_stream_is_the_current_one(way: str) -> None:
    product = product_of(way)
    for shape in SHAPES:
        a, b = operands(*shape, way=way)
        product(a, b)
        torch.cuda.synchronize()
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            torch.cuda._sleep(10_000_000)
            a.mul_(2)  # a kernel on another stream would see what was there before
            y = product(a, b)
        stream.synchronize()
        assert_right(y, a, b, way)


@pytest.mark.parametrize(
    ("mode", "way"),
    [(None, "float16"), ("reduce-overhead", "float16"), (None, "tf32x3"), (None, "ieee")],
)
def test_torch_compile(mode: str | None, way: str) -> None:
    product = product_of(way)

    def layer(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return torch.relu(product(x, w, bias, activation="gelu")) + 1

    torch.compiler.reset()
    compiled = torch.compile(layer, fullgraph=True, mode=mode)
    for seed in range(3):
        x, w = operands(16, 512, 1024, seed, way)
        bias = torch.randn(512, device="cuda").to(x.dtype)
        torch.testing.assert_close(compiled(x, w, bias), layer(x, w, bias), rtol=0, atol=2e-3)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("shape", [(300, 264, 520), (16, 4096, 1024), (33, 77, 129)])
def test_gradients_are_those_of_float64(shape: tuple[int, int, int], dtype: torch.dtype) -> None:
    """Of a loss that is linear in the product, so that both gradients are products themselves."""
    m, n, k = shape
    a = torch.randn(m, k, device="cuda").to(dtype).requires_grad_()
    w = torch.randn(n, k, device="cuda").to(dtype).requires_grad_()
    bias = torch.randn(n, device="cuda").to(dtype).requires_grad_()
    g = torch.randn(m, n, device="cuda").to(dtype)
    torch.ops.xgemm.mul(a, w.t(), bias).backward(g)
    assert a.grad is not None
    assert w.grad is not None
    assert_right(a.grad, g, w.detach())
    assert_right(w.grad, g.t(), a.detach())
    assert bias.grad is not None
    assert_right(bias.grad[None], torch.ones_like(g[:, :1]).t(), g)


def test_gradients_of_a_batch_equal_torchs() -> None:
    def gradients(product: Callable[..., torch.Tensor]) -> list[torch.Tensor]:
        torch.manual_seed(0)
        a = torch.randn(4, 1, 40, 64, device="cuda", requires_grad=True)
        b = torch.randn(3, 64, 48, device="cuda", requires_grad=True)
        F.gelu(product(a, b)).square().sum().backward()
        assert a.grad is not None
        assert b.grad is not None
        return [a.grad, b.grad]

    ours, theirs = gradients(mul), gradients(lambda a, b: torch.matmul(a.double(), b.double()))
    for mine, expected in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, expected, rtol=1e-4, atol=1e-3)


def test_autocast_casts_as_matmul() -> None:
    a, b = torch.randn(64, 64, device="cuda"), torch.randn(64, 64, device="cuda")
    for dtype in (torch.float16, torch.bfloat16):
        with torch.autocast("cuda", dtype):
            y = torch.ops.xgemm.mul(a, b)
            assert y.dtype == torch.matmul(a, b).dtype == dtype
        assert_right(y, a.to(dtype), b.to(dtype))


def test_nothing_is_left_allocated() -> None:
    """The result, and a workspace while the kernel may run: no other memory is taken."""
    for shape in SHAPES:
        a, b = operands(*shape)
        y = mul(a, b)
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        for _ in range(3):
            mul(a, b)
        torch.cuda.synchronize()
        assert torch.cuda.memory_allocated() == before, shape
        del y
