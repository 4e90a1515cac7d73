"""method="hqq": its equations, what it gains, and every road that leads to it."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import xgemm
from xgemm.formats.packed import GROUP_SIZES
from xgemm.quantize.hqq import BETA, KAPPA, TURNS

pytestmark = pytest.mark.filterwarnings("ignore:quantize. 4 bits hold:UserWarning")


def weight(n: int, k: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    """Normal weights, every 50th an outlier."""
    generator = torch.Generator().manual_seed(seed)
    w = torch.randn(n, k, generator=generator, dtype=torch.float64).mul(0.05)
    w.view(-1)[::50] *= 3
    return w.to(dtype)


def group_errors(w: torch.Tensor, q: xgemm.QuantizedWeight) -> torch.Tensor:
    """Squared error of each group, [N, groups]."""
    squares = (q.dequantize(torch.float64) - w.double()).square()
    sums = torch.zeros(w.shape[0], q.scales.shape[0], dtype=torch.float64)
    return sums.index_add_(1, q.group_of_channel(), squares)


def over_the_range(w: torch.Tensor, like: xgemm.QuantizedWeight) -> xgemm.QuantizedWeight:
    """`w` on the grid from each group's least to its largest weight, with real zero points."""
    if like.zeros is None:
        options = {"group_size": like.group_size, "scale_dtype": like.scales.dtype}
        return xgemm.quantize_weight(w, clip="none", **options)
    group = like.group_of_channel()
    wide = w if w.dtype == torch.float64 else w.float()  # so that scales are rounded alike
    low = torch.stack([wide[:, group == g].amin(1).clamp(max=0) for g in group.unique()])
    high = torch.stack([wide[:, group == g].amax(1).clamp(min=0) for g in group.unique()])
    tiny = torch.finfo(like.scales.dtype).tiny
    scales = (high * (1 / 15) - low * (1 / 15)).clamp(min=tiny).to(like.scales.dtype)
    zeros = (-low / scales.to(wide.dtype)).to(torch.float16)
    steps = wide / scales.to(wide.dtype)[group].t()
    codes = (steps + zeros.to(wide.dtype)[group].t()).round().clamp(0, 15)
    return xgemm.QuantizedWeight(codes.to(torch.uint8), scales, zeros, None, like.group_size)


def hqq(w: torch.Tensor, **options) -> xgemm.QuantizedWeight:
    return xgemm.quantize_weight(w, "hqq", **options)


def relative(w: torch.Tensor, q: xgemm.QuantizedWeight) -> float:
    return float(group_errors(w, q).sum() / w.double().square().sum())


@settings(max_examples=40)
@given(
    n=st.integers(1, 40),
    k=st.integers(1, 300),
    group_size=st.sampled_from(GROUP_SIZES),
    symmetric=st.booleans(),
    dtype=st.sampled_from((torch.float16, torch.bfloat16, torch.float32, torch.float64)),
    scale_dtype=st.sampled_from((None, torch.bfloat16)),
    factor=st.sampled_from((1.0, 1e-6, 1e3)),
)
def test_no_group_is_worse_than_on_the_grid_over_its_range(
    n: int,
    k: int,
    group_size: int,
    symmetric: bool,
    dtype: torch.dtype,
    scale_dtype: torch.dtype | None,
    factor: float,
) -> None:
    w = weight(n, k, dtype) * factor
    options = {"group_size": group_size, "symmetric": symmetric, "scale_dtype": scale_dtype}
    q = hqq(w, **options)
    groups = -(-k // (group_size if group_size > 0 else k))
    assert q.codes.dtype == torch.uint8
    assert int(q.codes.max()) <= 15
    assert q.scales.shape == (groups, n)
    assert bool((q.scales > 0).all())
    assert (q.zeros is None) == symmetric
    if q.zeros is not None:
        assert q.zeros.dtype == torch.float16
        assert bool(torch.isfinite(q.zeros).all())
    bounds = group_errors(w, over_the_range(w, q))
    assert bool((group_errors(w, q) <= bounds * (1 + 1e-4) + 1e-12 * factor**2).all())


@pytest.mark.parametrize("symmetric", [True, False])
def test_it_is_the_equations(symmetric: bool) -> None:
    """One group after the other, in Python's floats, from the docstring."""
    w = weight(6, 96, torch.float64)
    q = hqq(w, group_size=32, symmetric=symmetric)
    for row in range(6):
        for group in range(3):
            values = w[row, 32 * group : 32 * group + 32].tolist()
            codes, scale, zero = solve(values, symmetric)
            found = q.codes[row, 32 * group : 32 * group + 32].tolist()
            assert found == codes
            assert float(q.scales[group, row]) == scale
            assert q.zeros is None or float(q.zeros[group, row]) == zero


def solve(w: list[float], symmetric: bool) -> tuple[list[int], float, float]:
    def half(value: float) -> float:
        return float(torch.tensor(value, dtype=torch.float64).to(torch.float16))

    low, high = min(*w, 0.0), max(*w, 0.0)
    if symmetric:
        high = max(-low, high)
        low = -high
    step = scale = half((high - low) / 15)
    zero = 8.0 if symmetric else half(-low / step)
    best = (math.inf, [0], scale, zero)
    for turn in range(TURNS):
        beta = BETA * KAPPA**turn
        codes = [min(max(round(v / scale + zero), 0), 15) for v in w]
        errors = [v - scale * (c - zero) for v, c in zip(w, codes, strict=True)]
        squares = math.fsum(e * e for e in errors)
        if squares < best[0]:
            best = (squares, codes, scale, zero)
        target = []
        for value, error in zip(w, errors, strict=True):
            x = abs(error) / step
            kept = max(x - max(x, 1e-6) ** -0.5 / beta, 0) * step
            target.append(value - math.copysign(kept, error))
        mean_code = 8.0 if symmetric else math.fsum(codes) / 32
        mean_target = 0.0 if symmetric else math.fsum(target) / 32
        products = [(c - mean_code) * (t - mean_target) for c, t in zip(codes, target, strict=True)]
        squared = math.fsum((c - mean_code) ** 2 for c in codes)
        scale = half(min(max(math.fsum(products) / squared, step / 2), step))
        if not symmetric:
            zero = half(mean_code - mean_target / scale)
    return best[1], best[2], best[3]


@pytest.mark.parametrize(("symmetric", "gain"), [(False, 0.88), (True, 0.9)])
def test_gains_over_round_to_nearest(symmetric: bool, gain: float) -> None:
    w = weight(64, 1024)
    nearest = xgemm.quantize_weight(w, symmetric=symmetric, clip="none")
    assert relative(w, hqq(w, symmetric=symmetric)) < gain * relative(w, nearest)


def test_a_weight_of_4_bits_is_found_again() -> None:
    """As GGUF's Q4_1 holds it: real zero points, the codes 0 and 15 in every group."""
    generator = torch.Generator().manual_seed(0)
    codes = torch.randint(0, 16, (32, 8, 32), generator=generator)
    codes[:, :, 0], codes[:, :, 1] = 0, 15
    scales = torch.rand(32, 8, 1, generator=generator).add(0.5).div(100).half().float()
    zeros = torch.rand(32, 8, 1, generator=generator).mul(13).add(1).half().float()
    w = ((codes - zeros) * scales).reshape(32, 256)
    nearest = xgemm.quantize_weight(w, group_size=32, symmetric=False)
    q = hqq(w, group_size=32, symmetric=False)
    assert relative(w, q) < 1e-4 * relative(w, nearest)
    assert torch.equal(q.codes, codes.reshape(32, 256).to(torch.uint8))


def test_not_above_the_error_of_the_library_hqq() -> None:
    quantizer = pytest.importorskip("hqq.core.quantize").Quantizer
    w = weight(64, 1024)
    codes, meta = quantizer.quantize(
        w, nbits=4, group_size=64, axis=1, device="cpu", bitpack=False, compute_dtype=torch.float32
    )
    theirs = (codes.float() - meta["zero"].float()) * meta["scale"].float()
    error = (theirs.reshape(w.shape) - w).double().square().sum() / w.double().square().sum()
    assert relative(w, hqq(w, group_size=64, symmetric=False)) < float(error)


@pytest.mark.parametrize("symmetric", [True, False])
def test_short_last_group_and_a_group_of_zeros(symmetric: bool) -> None:
    w = weight(8, 300)
    w[:, 64:128] = 0
    w[:, 256:] *= 0.01
    q = hqq(w, group_size=64, symmetric=symmetric)
    assert bool((q.dequantize()[:, 64:128] == 0).all())
    alone = hqq(w[:, 256:], group_size=64, symmetric=symmetric, scale_dtype=q.scales.dtype)
    assert torch.equal(q.codes[:, 256:], alone.codes)
    assert torch.equal(q.scales[-1], alone.scales[0])


@pytest.mark.parametrize("symmetric", [True, False])
def test_row_blocks_do_not_show(symmetric: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    w = weight(37, 200)
    whole = hqq(w, group_size=32, symmetric=symmetric)
    monkeypatch.setattr(sys.modules["xgemm.quantize.groups"], "BLOCK_WEIGHTS", 1000)
    blocks = hqq(w, group_size=32, symmetric=symmetric)
    assert torch.equal(whole.codes, blocks.codes)
    assert torch.equal(whole.scales, blocks.scales)
    assert symmetric or torch.equal(whole.zeros, blocks.zeros)


@pytest.mark.parametrize("symmetric", [True, False])
def test_a_multiple_of_the_weight_has_the_same_codes(symmetric: bool) -> None:
    w = weight(16, 256)
    one, other = (hqq(w * factor, symmetric=symmetric) for factor in (1.0, 16.0))
    assert torch.equal(one.codes, other.codes)
    assert torch.equal(one.scales * 16, other.scales)


@pytest.mark.parametrize("shape", [(0, 64), (4, 0)])
@pytest.mark.parametrize("symmetric", [True, False])
def test_no_weights(shape: tuple[int, int], symmetric: bool) -> None:
    q = hqq(torch.empty(shape), group_size=32, symmetric=symmetric)
    assert q.codes.shape == shape


def test_clipping_is_refused() -> None:
    with pytest.raises(ValueError, match="clip must be 'none' for method 'hqq', got 'mse'"):
        hqq(weight(4, 64), clip="mse")
    model = nn.Sequential(nn.Linear(64, 64))
    with pytest.raises(ValueError, match="quantize: clip must be 'none' for method 'hqq'"):
        xgemm.quantize(model, "hqq", clip="mse")
    pytest.importorskip("transformers")
    from xgemm.hf import XgemmConfig

    with pytest.raises(ValueError, match="XgemmConfig: clip must be 'none' for method 'hqq'"):
        XgemmConfig("hqq", clip="mse")


def test_linears_compute_with_real_zero_points() -> None:
    model = nn.Sequential(nn.Linear(256, 64))
    w = model[0].weight.detach().clone()
    x = torch.randn(5, 256)
    xgemm.quantize(model, "hqq", symmetric=False)
    expected = nn.functional.linear(x, hqq(w, symmetric=False).dequantize(), model[0].bias)
    torch.testing.assert_close(model(x), expected)
    assert model.xgemm_report.recipe["method"] == "hqq"


@pytest.mark.parametrize("symmetric", [True, False])
def test_while_loading_with_experts_and_saved(symmetric: bool, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    from hf_models import assert_same, float_directory, mixtral

    from xgemm.hf import XgemmConfig

    config = XgemmConfig("hqq", group_size=32, symmetric=symmetric)
    loaded = transformers.AutoModelForCausalLM.from_pretrained(
        float_directory(tmp_path / "float", mixtral()), quantization_config=config
    )
    expected = xgemm.quantize(mixtral(), "hqq", group_size=32, symmetric=symmetric)
    assert loaded.xgemm_report.experts == expected.xgemm_report.experts
    assert loaded.xgemm_report.experts
    assert_same(loaded, expected)
    xgemm.save(loaded, tmp_path / "packed")
    assert_same(xgemm.load(tmp_path / "packed"), expected)
    nearest = xgemm.quantize(mixtral(), group_size=32, symmetric=symmetric, clip="none")
    assert expected.xgemm_report.error.weights < nearest.xgemm_report.error.weights
