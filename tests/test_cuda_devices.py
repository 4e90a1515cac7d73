"""Every CUDA family runs on the device of its operands, whatever the current one is."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import xgemm
from xgemm import quantize_weight

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available() or torch.cuda.device_count() < 2, reason="needs two GPUs"
    ),
]

ops = torch.ops.xgemm
Result = list[torch.Tensor]


def dense(device: str) -> Result:
    shapes = [
        (2048, 2048, 512),
        (16, 4096, 4096),
        (1, 4096, 4096),
        (64, 4096, 14336),
        (257, 333, 555),
    ]
    results = []
    for m, n, k in shapes:
        a, b = torch.rand(m, k).to(device), torch.rand(n, k).to(device).t()
        results += [ops.mul(a.to(dtype), b.to(dtype)) for dtype in (torch.float16, torch.bfloat16)]
        results += [ops.mul(a, b, precision=p) for p in ("ieee", "tf32x3", "tf32")]
    return results


def w4a16(device: str) -> Result:
    packed = xgemm.pack(quantize_weight(torch.rand(1536, 4096) - 0.5, group_size=128)).to(device)
    results = [packed.dequantize(torch.float16), xgemm.unpack(packed).codes]
    for rows in (1, 16, 40, 128, 700):
        x = torch.rand(rows, 4096).to(device)
        results += [xgemm.linear(x.to(dtype), packed) for dtype in (torch.float16, torch.bfloat16)]
    return results


def reductions(device: str) -> Result:
    results = []
    for shape in [(333, 7777), (2**22,), (4096, 64), (7, 100003)]:
        x = torch.rand(shape).to(device)
        for dim in range(x.dim()):
            results += [ops.sum(x, [dim]), ops.amax(x.half(), [dim]), ops.argmin(x, dim)]
    return results


@pytest.mark.parametrize("family", [dense, w4a16, reductions])
@pytest.mark.parametrize("current", [0, 1])
def test_the_device_is_that_of_the_operands(family: Callable[[str], Result], current: int) -> None:
    """And the bits are those of the other one, where both GPUs are of a kind."""
    results = []
    for device in ("cuda:1", "cuda:0"):
        torch.manual_seed(0)
        with torch.cuda.device(current):
            results.append(family(device))
        assert all(str(y.device) == device for y in results[-1])
    same = torch.cuda.get_device_name(0) == torch.cuda.get_device_name(1)
    for one, other in zip(*results, strict=True):
        if same:
            assert torch.equal(one.cpu(), other.cpu())
        else:
            torch.testing.assert_close(one.cpu(), other.cpu())
