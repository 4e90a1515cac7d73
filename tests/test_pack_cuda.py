"""pack_w4 and unpack_w4 on the GPU write the same bytes as on the CPU."""

from __future__ import annotations

import pytest
import torch

import xgemm  # noqa: F401  (registers the ops)

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

SHAPES = [
    (1, 1),
    (16, 128),
    (17, 129),
    (64, 64),
    (65, 576),
    (129, 1000),
    (576, 576),
    (200, 0),
    (0, 64),
]


def canonical(
    n: int, k: int, group_size: int, zeros: bool, bf16: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    groups = (1 if k else 0) if group_size == -1 else -(-k // group_size)
    dtype = torch.bfloat16 if bf16 else torch.float16
    return (
        torch.randint(0, 16, (n, k), dtype=torch.uint8),
        torch.randn(groups, n).to(dtype),
        torch.rand(groups, n).mul(15).half() if zeros else None,
    )


def cuda(t: torch.Tensor | None) -> torch.Tensor | None:
    return None if t is None else t.cuda()


@pytest.mark.parametrize("group_size", [32, 64, 128, -1])
@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("bf16", [False, True])
def test_same_bytes_as_on_the_cpu(group_size: int, zeros: bool, bf16: bool) -> None:
    for n, k in SHAPES:
        codes, scales, zero = canonical(n, k, group_size, zeros, bf16)
        expected = torch.ops.xgemm.pack_w4(codes, scales, zero, group_size)
        packed = torch.ops.xgemm.pack_w4(codes.cuda(), scales.cuda(), cuda(zero), group_size)
        assert packed.is_cuda
        assert torch.equal(packed.cpu(), expected), (n, k)
        back = torch.ops.xgemm.unpack_w4(packed, n, k, group_size, bf16_scales=bf16, zeros=zeros)
        assert torch.equal(back[0].cpu(), codes), (n, k)
        assert torch.equal(back[1].cpu(), scales), (n, k)
        if zero is not None:
            assert torch.equal(back[2].cpu(), zero), (n, k)


def test_a_wide_layer_packs_in_bounded_memory() -> None:
    n, k = 57344, 8192
    codes = torch.randint(0, 16, (n, k), dtype=torch.uint8, device="cuda")
    scales = torch.rand(k // 128, n, device="cuda").half()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    packed = torch.ops.xgemm.pack_w4(codes, scales, None, 128)
    assert torch.cuda.max_memory_allocated() - before <= 1.3 * packed.nbytes


def test_strided_and_misaligned_input() -> None:
    codes, scales, _ = canonical(128, 256, 64, False, False)
    expected = torch.ops.xgemm.pack_w4(codes, scales, None, 64)
    buffer = torch.empty(128 * 256 + 1, dtype=torch.uint8, device="cuda")
    misaligned = buffer[1:].view(128, 256)
    misaligned.copy_(codes)
    transposed = codes.cuda().t().contiguous().t()
    for given in (misaligned, transposed):
        assert torch.equal(torch.ops.xgemm.pack_w4(given, scales.cuda(), None, 64).cpu(), expected)


def test_runs_on_the_current_stream() -> None:
    codes, scales, _ = canonical(512, 1024, 128, False, False)
    expected = torch.ops.xgemm.pack_w4(codes, scales, None, 128)
    stream = torch.cuda.Stream()
    late = torch.zeros_like(codes, device="cuda")
    source, device_scales = codes.cuda(), scales.cuda()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)  # a kernel on another stream would read zeros
        late.copy_(source)
        packed = torch.ops.xgemm.pack_w4(late, device_scales, None, 128)
        codes_back = torch.ops.xgemm.unpack_w4(packed, 512, 1024, 128)[0]
    stream.synchronize()
    assert torch.equal(packed.cpu(), expected)
    assert torch.equal(codes_back.cpu(), codes)


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("codes", r"pack_w4: codes must be in 0\.\.15, got 16 at \[3, 70\]"),
        ("scales", r"pack_w4: scales must be finite, got nan at \[1, 5\]"),
        ("zeros", r"pack_w4: zeros must be finite, got inf at \[0, 7\]"),
    ],
)
def test_faulty_values_are_named(argument: str, message: str) -> None:
    codes, scales, zeros = canonical(20, 100, 64, True, False)
    assert zeros is not None
    if argument == "codes":
        codes[3, 70] = 16
    elif argument == "scales":
        scales[1, 5] = float("nan")
    else:
        zeros[0, 7] = float("inf")
    with pytest.raises(ValueError, match=message):
        torch.ops.xgemm.pack_w4(codes.cuda(), scales.cuda(), zeros.cuda(), 64)
    with pytest.raises(ValueError, match=message):
        torch.ops.xgemm.pack_w4(codes, scales, zeros, 64)


def test_refuses_graph_capture() -> None:
    codes, scales, _ = canonical(64, 128, 128, False, False)
    device_codes, device_scales = codes.cuda(), scales.cuda()
    torch.ops.xgemm.pack_w4(device_codes, device_scales, None, 128)
    graph = torch.cuda.CUDAGraph()
    with pytest.raises(RuntimeError, match="capturing a CUDA graph"), torch.cuda.graph(graph):
        torch.ops.xgemm.pack_w4(device_codes, device_scales, None, 128)
