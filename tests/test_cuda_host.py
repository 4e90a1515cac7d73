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


def test_the_first_call_may_be_captured() -> None:
    """In a process of its own: nothing is loaded, allocated or asked that a capture forbids."""
    script = """
        import torch, xgemm
        mul = torch.ops.xgemm.mul.default
        for m, n, k in [(256, 256, 256), (1, 4096, 4096), (16, 512, 4096), (64, 64, 32768),
                        (300, 333, 555), (8, 77, 4099)]:
            a, b = torch.randn(m, k, device="cuda").half(), torch.randn(k, n, device="cuda").half()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                y = mul(a, b)
            graph.replay()
            torch.testing.assert_close(y.float(), a.float() @ b.float(), rtol=4e-3, atol=0.5)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True
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
    torch.cuda.synchronize()
    outside = torch.cuda.mem_get_info()[0] + torch.cuda.memory_reserved()
    for _ in range(20):
        for a, b in operands:
            mul(a, b)
    torch.cuda.synchronize()
    assert torch.cuda.mem_get_info()[0] + torch.cuda.memory_reserved() == outside


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
