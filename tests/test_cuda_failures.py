"""What fails on CUDA leaves nothing behind: a launch that is refused, memory that is not there.

Each in a process of its own, as torch itself does not recover from a capture that was lost.
"""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

# Calls of every family, with and without a workspace in which blocks wait for one another.
CALLS = """
import contextlib, gc, torch, xgemm
from functools import partial

def dense(m, n, k, dtype):
    a, b = torch.randn(m, k).to(dtype).cuda(), torch.randn(n, k).to(dtype).cuda().t()
    return partial(torch.ops.xgemm.mul, a, b)

def packed(m, n, k, dtype=torch.float16):
    p = xgemm.pack(xgemm.quantize_weight(torch.randn(n, k, device="cuda")))
    return partial(xgemm.linear, torch.randn(m, k).to(dtype).cuda(), p)

CALLS = [
    *(dense(m, n, k, torch.float16) for m, n, k in [
        (2048, 2048, 512), (264, 1504, 32416), (512, 512, 512), (16, 4096, 4096), (1, 4096, 4096),
        (1000, 333, 555)]),
    *(dense(m, n, k, torch.float32) for m, n, k in [(600, 600, 600), (4, 512, 8192)]),
    *(packed(m, n, k) for m, n, k in [
        (1, 4096, 4096), (1, 512, 1024), (16, 512, 8192), (64, 1024, 4096), (128, 4096, 4096),
        (600, 2048, 1024), (7, 300, 1000)]),
    packed(5, 300, 1000, torch.float32),
    *(partial(torch.ops.xgemm.sum, torch.randn(1 << bits, device="cuda")) for bits in (18, 24)),
]
expected = [call() for call in CALLS]
torch.cuda.synchronize()

def check_all():
    for turn in range(3):
        for call, y in zip(CALLS, expected):
            assert torch.equal(call(), y), call.args[0].shape
"""

LOST_CAPTURE = """
for call in CALLS:
    said = None
    # The end of a lost capture is an error, too.
    with contextlib.suppress(RuntimeError), torch.cuda.graph(torch.cuda.CUDAGraph()):
        with contextlib.suppress(RuntimeError):
            torch.cuda.current_stream().synchronize()  # not allowed here: the capture is lost
        try:
            call()
        except RuntimeError as error:
            said = str(error)
    assert said is not None, call.args[0].shape
    torch.cuda.synchronize()
    check_all()
"""

NO_MEMORY = """
row = torch.ones(1, 4096, device="cuda", dtype=torch.float16)
many = row.expand(2**22, 4096)  # of results of 8 GiB and more
p = xgemm.pack(xgemm.quantize_weight(torch.randn(1024, 4096, device="cuda")))
check_all()
gc.collect(), torch.cuda.synchronize(), torch.cuda.empty_cache()
before = torch.cuda.memory_allocated()
total = torch.cuda.mem_get_info()[1]
torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + (2 << 30)) / total)
for call in (
    lambda: torch.ops.xgemm.mul(many, row.expand(1024, 4096).t()),
    lambda: xgemm.linear(many, p),
    lambda: xgemm.linear(row.float().expand(2**21, 4096), p),
    lambda: torch.ops.xgemm.sum(row.expand(2**33, 4096), [1]),
):
    try:
        call()
    except RuntimeError as error:
        assert "CUDA out of memory" in str(error) and "shape [" in str(error), error
    else:
        raise AssertionError("there was memory")
torch.cuda.set_per_process_memory_fraction(1.0)
gc.collect(), torch.cuda.synchronize()
assert torch.cuda.memory_allocated() == before
check_all()
"""


@pytest.mark.parametrize("failure", ["lost capture", "no memory"])
def test_what_fails_leaves_nothing_behind(failure: str) -> None:
    script = CALLS + {"lost capture": LOST_CAPTURE, "no memory": NO_MEMORY}[failure]
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
