"""mul.w4a16 on CUDA in a program: graphs, streams, threads, compile, gradients, modules, memory."""

from __future__ import annotations

import copy
import gc

import pytest
import torch
from random_w4 import Format, random_weight_on
from threads import in_threads

import xgemm
from xgemm import PackedWeight, QuantizedWeight, reference
from xgemm.nn import QuantLinear

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

# Rows, columns and K of each kind: one row, few, many, K in parts, permuted, ragged.
CASES = [
    (1, 4096, 4096, Format(128, "none", torch.float16, False)),
    (4, 512, 8192, Format(32, "real", torch.float16, False)),
    (16, 4096, 1024, Format(-1, "integer", torch.bfloat16, False)),
    (7, 300, 1000, Format(64, "none", torch.float16, True)),
    (64, 1024, 4096, Format(128, "none", torch.float16, False)),
    (600, 2048, 1024, Format(128, "integer", torch.float16, False)),
]
Case = tuple[torch.Tensor, QuantizedWeight, PackedWeight]


def make(index: int, seed: int = 0) -> Case:
    m, n, k, form = CASES[index]
    torch.manual_seed(seed)
    q = random_weight_on("cuda", n, k, form)
    return torch.randn(m, k, device="cuda").half(), q, xgemm.pack(q)


def assert_right(y: torch.Tensor, x: torch.Tensor, q: QuantizedWeight, **fused: object) -> None:
    expected, bound = reference.w4a16(x, q, **fused), reference.w4a16_bound(x, q, **fused)  # type: ignore[arg-type]
    ratio = reference.error_ratio(y, expected, bound)
    assert ratio <= 1, f"{ratio:.3g} of the bound at {tuple(x.shape)}"


@pytest.mark.parametrize("index", range(len(CASES)))
def test_a_graph_replays_with_changed_inputs(index: int) -> None:
    x, q, p = make(index)
    bias = torch.randn(q.n, device="cuda").half()
    xgemm.linear(x, p, bias)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = xgemm.linear(x, p, bias, activation="silu")
        invariant = xgemm.linear(x, p, batch_invariant=True)
    for _ in range(2):
        x.normal_(), bias.normal_(), y.fill_(float("nan"))
        graph.replay()
        assert_right(y, x, q, bias=bias, activation="silu")
        assert_right(invariant, x, q)


def test_a_graph_of_a_chain() -> None:
    """Each product reads what the one before has written: no kernel starts too early."""
    # Products neither grow nor shrink along the chain: random scales may end in infinities, and
    # then in NaN, which equals nothing.
    weights = [torch.randn(2048, 2048, device="cuda") / 11 for _ in range(4)]
    packed = [xgemm.pack(xgemm.quantize_weight(w, group_size=128)) for w in weights]
    for rows in (1, 16, 300):
        x = torch.randn(rows, 2048, device="cuda").half()

        def chain(x: torch.Tensor) -> list[torch.Tensor]:
            states = [x]
            for p in packed:
                states.append(xgemm.linear(states[-1], p) / 4)
            return states

        chain(x)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            states = chain(x)
        for _ in range(3):
            x.normal_()
            graph.replay()
            for before, after, p in zip(states, states[1:], packed, strict=False):
                assert torch.equal(after, xgemm.linear(before, p) / 4)


@pytest.mark.parametrize("rows", [1, 16])
def test_a_weight_written_just_before(rows: int) -> None:
    """A kernel that may start early reads no weight that is still being written."""
    form = Format(128, "none", torch.float16, False)
    n = k = 4096
    weights = [xgemm.pack(random_weight_on("cuda", n, k, form)) for _ in range(2)]
    on_host = [p.qweight.cpu().pin_memory() for p in weights]
    x = torch.randn(rows, k, device="cuda").half()
    expected = [xgemm.linear(x, p) for p in weights]
    current, before = copy.deepcopy(weights[0]), copy.deepcopy(weights[1])
    writers = {
        "a kernel": lambda i: torch.bitwise_or(weights[i].qweight, 0, out=current.qweight.data),
        "a copy": lambda i: current.qweight.data.copy_(weights[i].qweight),
        "the host": lambda i: current.qweight.data.copy_(on_host[i], non_blocking=True),
    }
    for name, write in writers.items():
        for between in (False, True):  # a product of another weight after the write

            def step(i: int, write=write, between=between) -> torch.Tensor:  # type: ignore[no-untyped-def]
                write(i)
                if between:
                    xgemm.linear(x, before)
                return xgemm.linear(x, current)

            found = [(i, step(i)) for i in [0, 1] * 20]
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                captured = [(i, step(i)) for i in [0, 1] * 4]
            for _ in range(10):
                graph.replay()
                found += [(i, y.clone()) for i, y in captured]
            assert all(torch.equal(y, expected[i]) for i, y in found), (name, between)


def test_the_same_bits_from_run_to_run() -> None:
    """Also beside another kernel that takes some of the GPU, and over what others left behind."""
    side, busy = torch.cuda.Stream(), torch.randn(2048, 2048, device="cuda").half()
    for index in range(len(CASES)):
        x, _, p = make(index)
        first = xgemm.linear(x, p)
        for turn in range(10):
            with torch.cuda.stream(side):
                torch.matmul(busy, busy)
            torch.full((2**20,), float(turn), device="cuda")
            assert torch.equal(xgemm.linear(x, p), first), CASES[index]


def test_two_streams_at_once_on_one_layer() -> None:
    streams = [torch.cuda.Stream() for _ in range(2)]
    for index in range(len(CASES)):
        x, _, p = make(index)
        inputs = [x, torch.randn_like(x)]
        alone = [xgemm.linear(each, p) for each in inputs]
        torch.cuda.synchronize()
        results: list[list[torch.Tensor]] = [[], []]
        for stream in streams:
            with torch.cuda.stream(stream):
                torch.cuda._sleep(2_000_000)
        for _ in range(20):
            for stream, each, found in zip(streams, inputs, results, strict=True):
                with torch.cuda.stream(stream):
                    found.append(xgemm.linear(each, p))
        torch.cuda.synchronize()
        for found, expected in zip(results, alone, strict=True):
            assert all(torch.equal(y, expected) for y in found), CASES[index]


def test_several_threads_at_once() -> None:
    cases = [make(index) for index in range(len(CASES))]
    expected = [xgemm.linear(x, p) for x, _, p in cases]
    torch.cuda.synchronize()

    def work(thread: int) -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            for turn in range(30):
                i = (thread + turn) % len(cases)
                x, _, p = cases[i]
                assert torch.equal(xgemm.linear(x, p), expected[i]), CASES[i]

    in_threads(8, work)


def test_the_stream_is_the_current_one() -> None:
    for index in range(len(CASES)):
        x, q, p = make(index)
        xgemm.linear(x, p)
        torch.cuda.synchronize()
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            torch.cuda._sleep(10_000_000)
            x.mul_(2)  # a kernel on another stream would see what was there before
            y = xgemm.linear(x, p)
        stream.synchronize()
        assert_right(y, x, q)


@pytest.mark.parametrize("mode", [None, "reduce-overhead"])
def test_torch_compile(mode: str | None) -> None:
    _, _, p = make(1)
    layer = QuantLinear.from_packed(p, torch.randn(p.n, device="cuda").half(), "gelu")

    def model(x: torch.Tensor) -> torch.Tensor:
        return torch.relu(layer(x)) + 1

    torch.compiler.reset()
    compiled = torch.compile(model, fullgraph=True, mode=mode)
    for rows in (1, 16, 16):
        x = torch.randn(rows, p.k, device="cuda").half()
        # Compiled, what follows the layer is rounded once.
        torch.testing.assert_close(compiled(x), model(x), rtol=2**-10, atol=2**-10)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("index", range(len(CASES)))
def test_gradients_are_those_of_float64(index: int, dtype: torch.dtype) -> None:
    x, q, p = make(index)
    x = x.to(dtype).requires_grad_()
    bias = torch.randn(q.n, device="cuda").to(dtype).requires_grad_()
    grad = torch.randn(x.shape[0], q.n, device="cuda").to(dtype)
    xgemm.linear(x, p, bias).backward(grad)
    assert x.grad is not None
    bound = reference.w4a16_grad_a_bound(grad, q)
    assert reference.error_ratio(x.grad, reference.w4a16_grad_a(grad, q), bound) <= 1
    assert bias.grad is not None
    torch.testing.assert_close(bias.grad, grad.sum(0))


def test_the_backward_of_a_wide_layer_takes_bounded_memory() -> None:
    """Its weight would be 1 GiB in float16; 256 MiB of it are there at a time."""
    q = random_weight_on("cuda", 2**16, 2**13, Format(128, "none", torch.float16, False))
    p = xgemm.pack(q)
    grad = torch.randn(8, q.n, device="cuda").half()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    result = torch.ops.xgemm.w4a16_grad_a(grad, p.qweight, p.n, p.k, p.group_size)
    torch.cuda.synchronize()
    assert torch.cuda.max_memory_allocated() - before < 300 * 2**20
    few = grad[:2]
    expected = few.double() @ p.dequantize(torch.float16).double()
    torch.testing.assert_close(result[:2].double(), expected, rtol=2e-2, atol=2e-1)


def test_autocast_casts_the_activations() -> None:
    x, q, p = make(2)
    for dtype in (torch.float16, torch.bfloat16):
        with torch.autocast("cuda", dtype):
            y = xgemm.linear(x.float(), p)
            assert y.dtype == dtype
        assert_right(y, x.to(dtype), q)


def test_a_module_moves_and_runs() -> None:
    q = random_weight_on("cpu", 200, 300, Format(64, "integer", torch.float16, True))
    bias = torch.randn(200)
    layer = QuantLinear.from_packed(xgemm.pack(q), bias.half(), "silu")
    moved = copy.deepcopy(layer).to("cuda")
    x = torch.randn(2, 5, 300).half()
    y = moved(x.cuda())
    assert_right(y.cpu(), x, q, bias=bias.half(), activation="silu")
    half = moved.bfloat16()
    assert half(x.cuda().bfloat16()).dtype == torch.bfloat16


def test_strided_activations_and_destinations() -> None:
    _, q, p = make(3)
    wide = torch.full((3, 2, 7, 2 * q.k), float("nan"), device="cuda").half()
    view = wide[..., ::2].permute(2, 0, 1, 3)  # leading dimensions without a common stride
    view.normal_()
    y = xgemm.linear(view, p)
    assert_right(y, view, q)
    buffer = torch.full((2, 3, 7, q.n + 5), 7.0, device="cuda").half()
    dst = buffer.permute(2, 1, 0, 3)[..., 5:]
    torch.ops.xgemm.mul_into.w4a16(dst, view, p.qweight, p.n, p.k, p.group_size, None, p.perm)
    assert torch.equal(dst, y)
    assert bool((buffer[..., :5] == 7).all())


def test_nothing_is_left_allocated() -> None:
    for index in range(len(CASES)):
        x, _, p = make(index)
        y = xgemm.linear(x, p)
        torch.cuda.synchronize()
        gc.collect()
        allocated = []
        for _ in range(3):  # the first round may free what another test had left
            for _ in range(3):
                xgemm.linear(x, p)
            torch.cuda.synchronize()
            allocated.append(torch.cuda.memory_allocated())
        assert allocated[2] == allocated[1] <= allocated[0], (CASES[index], allocated)
        del y
