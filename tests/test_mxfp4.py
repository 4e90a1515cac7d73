"""MXFP4 weights: their packing, and moe.w4a16 and dequantize_w4 over them, against float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from emulator import moe as emulated
from emulator.library import Machine
from helpers import randn, random_mxfp4
from moe import Mixture, check, mixture, run_op

import xgemm
from xgemm import reference
from xgemm.formats.mxfp4 import e8m0_to_bfloat16, mxfp4_weight
from xgemm.formats.packed_format import PackedFormat
from xgemm.formats.quantized import FP4_VALUES
from xgemm.quantize.requantize import requantize

HALVES = (torch.float16, torch.bfloat16)
FLOATS = (torch.float32, *HALVES)
MACHINES = (Machine(80, 4), Machine(90, 132, True, seed=1))
Run = Callable[[Mixture], torch.Tensor]


def _on_cuda(m: Mixture) -> torch.Tensor:
    return run_op(m.to("cuda")).cpu()


def _emulated(m: Mixture) -> torch.Tensor:
    return emulated.run(m, MACHINES[m.a.shape[0] % 2])


RUNS = [run_op, _emulated, pytest.param(_on_cuda, marks=pytest.mark.gpu)]


def test_from_checkpoint_bytes() -> None:
    """The low nibble is the earlier channel; a scale is 2^(e - 127)."""
    blocks = torch.tensor([[0x21 + 0x22 * (i % 7) for i in range(16)]], dtype=torch.uint8)
    q = mxfp4_weight(blocks, torch.tensor([[129]], dtype=torch.uint8))
    assert q.codes[0, :4].tolist() == [1, 2, 3, 4]
    assert q.dequantize()[0, :4].tolist() == [2.0, 4.0, 6.0, 8.0]
    split = mxfp4_weight(blocks.view(1, 1, 16), torch.tensor([[129]], dtype=torch.uint8))
    assert torch.equal(split.codes, q.codes)
    every = torch.arange(255, dtype=torch.uint8)
    assert torch.equal(e8m0_to_bfloat16(every).double(), 2.0 ** (every.double() - 127))
    with pytest.raises(ValueError, match=r"scales must be finite, got 255, .* at \[0, 1\]"):
        mxfp4_weight(torch.zeros(1, 32, dtype=torch.uint8), torch.tensor([[1, 255]]).byte())
    with pytest.raises(ValueError, match=r"scales must be \[N, K / 32\] for blocks"):
        mxfp4_weight(torch.zeros(1, 32, dtype=torch.uint8), torch.zeros(1, 1).byte())
    with pytest.raises(ValueError, match="blocks must be uint8"):
        mxfp4_weight(torch.zeros(1, 32), torch.zeros(1, 1).byte())


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize(("n", "k"), [(1, 1), (70, 300), (128, 256), (33, 97)])
def test_pack_and_dequantize(n: int, k: int, device: str) -> None:
    q = random_mxfp4(n, k, (0, 253))
    p = xgemm.pack(q.to(device))
    assert p.fp4
    back = xgemm.unpack(p).to("cpu")
    assert back.fp4
    assert torch.equal(back.codes, q.codes)
    assert torch.equal(back.scales, q.scales)
    for dtype in FLOATS:  # one rounding: of a product that float32 holds
        expected = reference.dequantize(q).to(dtype)
        assert torch.equal(p.dequantize(dtype).cpu(), expected), dtype
    assert torch.equal(q.dequantize(), p.dequantize().cpu())
    ordered = random_mxfp4(n, k, act_order=True)
    expected = reference.dequantize(ordered).float()
    assert torch.equal(xgemm.pack(ordered.to(device)).dequantize().cpu(), expected)


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_products(dtype: torch.dtype, run: Run) -> None:
    options: dict[str, Any] = {"dtype": dtype, "fp4": True, "bias": True}
    check(mixture(6, 2, 5, 70, 300, **options, strangers=True), run)
    check(mixture(40, 3, 4, 33, 129, **options, act_order=True, rows="slots"), run)
    gated: dict[str, Any] = {"weights": dtype, "activation": "silu_and_mul"}
    check(mixture(1, 4, 8, 128, 512, **options, **gated), run)
    check(mixture(2, 2, 3, 66, 96, **options, **gated), run)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("block_m", [8, 16, 32])
def test_emulated_tiles(block_m: int, dtype: torch.dtype) -> None:
    """Each, with a pipeline that is passed several times."""
    m = mixture(18, 1, 2, 33, 1700, dtype, fp4=True, bias=True)
    first = check(m, lambda m: emulated.run(m, MACHINES[0], block_m=block_m, stages=2))
    second = emulated.run(m, MACHINES[1], block_m=block_m, stages=2)
    assert torch.equal(first, second)


@pytest.mark.parametrize("tokens", [1, 20, 100])
def test_many_rows(tokens: int) -> None:
    check(mixture(tokens, 2, 3, 200, 400, torch.bfloat16, fp4=True))


@pytest.mark.parametrize("run", RUNS[1:])
@pytest.mark.parametrize("activation", ["none", "silu_and_mul"])
def test_so_many_rows_that_int4_has_other_kernels(activation: str, run: Run) -> None:
    """MXFP4 keeps its own."""
    check(mixture(160, 1, 1, 128, 256, torch.bfloat16, fp4=True, activation=activation), run)


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_every_code_with_every_scale(dtype: torch.dtype, run: Run) -> None:
    """A product of one weight and one activation is what float64 gives, rounded once.

    Column n has the scale 2^(n - 127), channel c the code c. Codes of the two largest scales that
    bfloat16 cannot hold with them are left out: they are no weights of a model in bfloat16.
    """
    e8m0 = torch.arange(255)
    codes = torch.arange(16, dtype=torch.uint8).repeat(255, 2)
    weights = torch.tensor(FP4_VALUES).double() * 2.0 ** (e8m0[:, None].double() - 127)
    codes[:, :16][weights.abs() > torch.finfo(torch.bfloat16).max] = 0
    codes[:, 16:] = codes[:, :16]
    scales = e8m0_to_bfloat16(e8m0.to(torch.uint8)[None])
    q = xgemm.QuantizedWeight(codes, scales, group_size=32, fp4=True)
    powers = (0, 14, -14) if dtype == torch.float16 else (0, 60, -60, 120, -126)
    for power in powers:
        a = torch.zeros(16, 32, dtype=dtype).fill_diagonal_(2.0**power)
        ids = torch.zeros(16, 1, dtype=torch.int32)
        y = run(Mixture([q], ids, a))
        expected = (a.double() @ reference.dequantize(q).t()).to(dtype)
        assert torch.equal(y, expected), power


@pytest.mark.parametrize("run", RUNS)
def test_sums_under_scales_far_apart(run: Run) -> None:
    """fp16 activations under scales far beyond fp16's range, which cancel nothing."""
    for low, high in ((0, 20), (60, 190), (230, 250)):
        ids = torch.zeros(5, 1, dtype=torch.int32)
        q = random_mxfp4(40, 200, (low, high))
        for dtype in HALVES:
            check(Mixture([q], ids, randn((5, 200), dtype)), run)


def test_bad_forms() -> None:
    m = mixture(4, 2, 3, 64, 128, fp4=True)
    args = list(m.args(torch.ops.xgemm.moe_sort(m.ids, 3)))
    for device in ("cpu", "meta"):
        moved = [x.to(device) if isinstance(x, torch.Tensor) else x for x in args]
        message = r"moe.w4a16: fp4 must have group_size=32, .* got group_size=32, bf16_scales=false"
        with pytest.raises(ValueError, match=message):
            torch.ops.xgemm.moe.w4a16(*moved, fp4=True)
        with pytest.raises(ValueError, match=r"dequantize_w4: fp4 must have .* zeros=true"):
            torch.ops.xgemm.dequantize_w4(
                moved[1][0], 64, 128, 32, bf16_scales=True, zeros=True, fp4=True
            )
    q = m.weights_4bit[0]
    with pytest.raises(ValueError, match="pack: fp4 must have group_size 32, bf16 scales"):
        xgemm.pack(xgemm.QuantizedWeight(q.codes, q.scales.half(), group_size=32, fp4=True))
    with pytest.raises(ValueError, match="linear: p must hold int4 codes, got MXFP4"):
        xgemm.linear(m.a, m.packed[0])
    with pytest.raises(ValueError, match="from_packed: packed must hold int4 codes, got MXFP4"):
        xgemm.nn.QuantLinear.from_packed(m.packed[0])
    with pytest.raises(ValueError, match="requantize: packed must hold int4 codes, got MXFP4"):
        requantize(m.packed[0], m.packed[0].dequantize())


def test_the_format_that_travels() -> None:
    """Another kind of codes is refused, by readers from before there was another, too."""
    int4 = PackedFormat(64, 128, 32, True, False)
    fp4 = int4._replace(fp4=True)
    assert int4.to_tensor().tolist() == [1, 64, 128, 32, 1, 0]
    assert fp4.to_tensor().tolist() == [1, 64, 128, 32, 1, 0, 1]
    fp4.check("x", fp4.to_tensor())
    with pytest.raises(ValueError, match=r"packed_format must be int64 \[6\] .*got int64 \[7\]"):
        int4.check("x", fp4.to_tensor())
    with pytest.raises(ValueError, match=r"packed_format must be int64 \[7\] .*fp4.*, got int64"):
        fp4.check("x", int4.to_tensor())
