"""What the host does for a product on CUDA: its time, its threads, and nothing while capturing."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading

import pytest
import torch
from helpers import assert_host_time

import xgemm
import xgemm.nn

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

mul = torch.ops.xgemm.mul.default


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(
    ("m", "n", "k"),
    [
        (1, 4096, 4096),
        (16, 512, 512),
        (64, 64, 64),
        (64, 4096, 4096),
        (256, 256, 256),
        (64, 64, 4096),
        (65, 67, 69),
    ],
)
def test_mul_is_within_1_1_of_mm(m: int, n: int, k: int, transposed: bool) -> None:
    a = torch.randn(m, k, device="cuda").half()
    b = (
        torch.randn(n, k, device="cuda").half().t()
        if transposed
        else torch.randn(k, n).cuda().half()
    )
    assert_host_time(1.1, lambda: mul(a, b), lambda: torch.mm(a, b))


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("m", [1, 16, 64, 512])
def test_linear_is_within_1_2_of_torchs(m: int, zeros: bool) -> None:
    w = torch.randn(1024, 1024, device="cuda").half()
    packed = xgemm.pack(xgemm.quantize_weight(w, symmetric=not zeros))
    layer, bias = xgemm.nn.QuantLinear.from_packed(packed), torch.randn(1024, device="cuda").half()
    x = torch.randn(m, 1024, device="cuda").half()
    linear = torch.nn.functional.linear
    assert_host_time(1.2, lambda: xgemm.linear(x, packed), lambda: linear(x, w))
    assert_host_time(1.2, lambda: xgemm.linear(x, packed, bias), lambda: linear(x, w, bias))
    theirs = torch.nn.Linear(1024, 1024, bias=False, device="cuda", dtype=torch.float16)
    assert_host_time(1.2, lambda: layer(x), lambda: theirs(x))


def test_a_thread_that_has_not_used_cuda() -> None:
    """It has no context until something makes one current, and the output is not always new."""
    a, b = torch.randn(256, 256, device="cuda").half(), torch.randn(256, 256, device="cuda").half()
    expected, dst = mul(a, b), torch.zeros(256, 256, device="cuda").half()
    failures: list[str] = []

    def work() -> None:
        try:
            torch.ops.xgemm.mul_into.default(dst, a, b)
        except RuntimeError as error:
            failures.append(str(error))

    worker = threading.Thread(target=work)
    worker.start()
    worker.join()
    assert failures == []
    assert torch.equal(dst, expected)


# Each makes the operands of one call, without calling the op, and what it is compared with.
FIRST_CALLS = {
    "dense": """
        def cases():
            for m, n, k in [(256, 256, 256), (1, 4096, 4096), (16, 512, 4096), (64, 64, 32768),
                            (2048, 2048, 512), (300, 333, 555), (8, 77, 4099)]:
                for dtype in (torch.float16, torch.float32):
                    a, b = torch.randn(m, k).to(dtype).cuda(), torch.randn(k, n).to(dtype).cuda()
                    yield lambda: torch.ops.xgemm.mul(a, b), lambda: a.float() @ b.float()
    """,
    "w4a16": """
        def cases():
            for m, n, k in [(1, 4096, 4096), (1, 1024, 1024), (7, 300, 1000), (16, 512, 4096),
                            (64, 2048, 2048), (1000, 2048, 1024)]:
                p = xgemm.pack(xgemm.quantize_weight(torch.randn(n, k))).to("cuda")
                w = xgemm.unpack(p.to("cpu")).dequantize().cuda()
                for dtype in (torch.float16, torch.float32):
                    x = torch.randn(m, k).to(dtype).cuda()
                    yield lambda: xgemm.linear(x, p), lambda: x.float() @ w.t()
    """,
    "reductions": """
        def cases():
            for shape, dims in [((1 << 22,), [0]), ((512, 4096), [1]), ((4096, 512), [0])]:
                for dtype in (torch.float16, torch.float32):
                    x = torch.randn(shape).to(dtype).cuda()
                    yield lambda: torch.ops.xgemm.sum(x, dims), lambda: x.float().sum(dims)
    """,
}


@pytest.mark.parametrize("family", FIRST_CALLS)
def test_the_first_call_may_be_captured(family: str) -> None:
    """In a process of its own: nothing is loaded, allocated or asked that a capture forbids."""
    script = """
        for ours, theirs in cases():
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                y = ours()
            graph.replay()
            torch.testing.assert_close(y.float(), theirs(), rtol=4e-3, atol=0.5)
    """
    parts = ["import torch, xgemm", FIRST_CALLS[family], script]
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(map(textwrap.dedent, parts))],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


def test_a_call_allocates_through_torch_alone() -> None:
    """The device's free memory stays, whatever a product wants beside its operands."""
    cases = [
        (256, 256, 256),
        (64, 64, 32768),
        (1, 4096, 4096),
        (1000, 333, 5555),
        (257, 4097, 4097),
    ]
    operands = [
        (torch.randn(m, k, device="cuda").half(), torch.randn(k, n, device="cuda").half())
        for m, n, k in cases
    ]
    for a, b in operands:  # kernels are loaded on first use
        mul(a, b)

    def outside_torch() -> int:
        torch.cuda.synchronize()
        return torch.cuda.mem_get_info()[0] + torch.cuda.memory_reserved()

    def round_of_calls_keeps_it() -> bool:
        before = outside_torch()
        for a, b in operands * 20:
            mul(a, b)
        return outside_torch() == before

    # Other processes use the GPU, too, and may change it during a round, but not during each.
    assert any(round_of_calls_keeps_it() for _ in range(100))


def test_workspaces_of_a_graph_outlive_other_allocations() -> None:
    """Products of long K and of odd strides, replayed while memory is given to others."""
    cases = [(64, 64, 32768), (128, 264, 16384), (257, 4097, 4097), (1000, 333, 5555)]
    for m, n, k in cases:
        a, b = torch.randn(m, k, device="cuda").half(), torch.randn(k, n, device="cuda").half()
        expected = mul(a, b)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = mul(a, b)
        for turn in range(3):
            y.fill_(float("nan"))
            others = [torch.full((2**16,), float(turn), device="cuda") for _ in range(64)]
            graph.replay()
            assert torch.equal(y, expected), (m, n, k)
            assert all(bool((other == turn).all()) for other in others)
