"""quantize_weight and quantize(model): bounds on the error, every option, what is left alone."""

from __future__ import annotations

import logging
import sys
import typing

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import xgemm
from xgemm.formats.packed import GROUP_SIZES
from xgemm.quantize import QuantizationReport
from xgemm.quantize.rtn import quantize_rtn

# Most models here are too small for a share of 80 % in 4 bits; the warning has tests of its own.
pytestmark = pytest.mark.filterwarnings("ignore:quantize. 4 bits hold:UserWarning")

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def weight(n: int, k: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, k, generator=generator, dtype=torch.float64).mul(0.05).to(dtype)


def per_weight(q: xgemm.QuantizedWeight, values: torch.Tensor) -> torch.Tensor:
    """[groups, N] values spread over the weights they belong to, float64 [N, K]."""
    return values.double().index_select(0, q.group_of_channel()).t()


@given(
    n=st.integers(1, 40),
    k=st.integers(1, 300),
    group_size=st.sampled_from(GROUP_SIZES),
    symmetric=st.booleans(),
    dtype=st.sampled_from(FLOATS),
    seed=st.integers(0, 1000),
)
def test_no_weight_is_off_by_more_than_half_a_step(
    n: int, k: int, group_size: int, symmetric: bool, dtype: torch.dtype, seed: int
) -> None:
    w = weight(n, k, dtype, seed)
    q = xgemm.quantize_weight(w, group_size=group_size, symmetric=symmetric, clip="none")
    groups = -(-k // (group_size if group_size > 0 else k))
    assert q.codes.dtype == torch.uint8
    assert q.codes.shape == (n, k)
    assert int(q.codes.max()) <= 15
    assert q.scales.shape == (groups, n)
    assert (q.zeros is None) == symmetric
    if q.zeros is not None:
        assert q.zeros.dtype == torch.float16
        assert torch.equal(q.zeros, q.zeros.round())
        assert float(q.zeros.min()) >= 0
        assert float(q.zeros.max()) <= 15
    step = per_weight(q, q.scales)
    # Half a step; a rounded zero point moves both ends of the range by up to half a step more, and
    # the scale's own rounding (2^-11 in fp16, 2^-8 in bf16) moves the 15 steps of the range.
    eps = torch.finfo(q.scales.dtype).eps
    bound = step * ((0.5 if symmetric else 1.0) + 15 * eps) + 1e-12
    assert bool(((q.dequantize(torch.float64) - w.double()).abs() <= bound).all())
    # Codes are the best there are for the stored scale and zero point.
    zero = 8.0 if q.zeros is None else per_weight(q, q.zeros)
    best = (w.double() / step + zero).clamp(0, 15)
    assert bool(((q.codes.double() - best).abs() <= 0.5 + 1e-4).all())


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("group_size", GROUP_SIZES)
def test_short_last_group_has_its_own_scale(group_size: int, symmetric: bool) -> None:
    k = 300
    w = weight(8, k)
    full = group_size if group_size > 0 else k
    last = (k - 1) // full * full
    w[:, last:] *= 0.01
    q = xgemm.quantize_weight(w, group_size=group_size, symmetric=symmetric)
    alone = xgemm.quantize_weight(w[:, last:], group_size=group_size, symmetric=symmetric)
    assert torch.equal(q.codes[:, last:], alone.codes)
    assert torch.equal(q.scales[-1], alone.scales[0].to(q.scales.dtype))


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("clip", ["none", "mse"])
def test_zeros_stay_exact(symmetric: bool, clip: str) -> None:
    w = weight(8, 256)
    w[:, 64:128] = 0  # a group of nothing
    w[:, 130:140] = 0  # and some zeros in a group of something
    q = xgemm.quantize_weight(w, group_size=64, symmetric=symmetric, clip=clip)
    assert bool((q.dequantize()[w == 0] == 0).all())
    assert bool(torch.isfinite(q.scales).all())
    assert bool((q.scales > 0).all())


@settings(max_examples=25)
@given(
    n=st.integers(1, 20),
    k=st.integers(1, 200),
    group_size=st.sampled_from(GROUP_SIZES),
    symmetric=st.booleans(),
    scale=st.sampled_from((1e-3, 1.0, 1e30)),
)
def test_mse_clipping_is_never_worse(
    n: int, k: int, group_size: int, symmetric: bool, scale: float
) -> None:
    w = weight(n, k) * scale
    errors = []
    for clip in ("none", "mse"):
        q = xgemm.quantize_weight(
            w, group_size=group_size, symmetric=symmetric, clip=clip, scale_dtype=torch.bfloat16
        )
        squares = ((q.dequantize(torch.float64) - w.double()) / scale).square()
        squares *= (w.double() / scale).abs()  # large weights count more
        size = group_size if group_size > 0 else k
        squares = nn.functional.pad(squares, (0, -k % size)).reshape(n, -1, size)
        errors.append(squares.sum(2))
    assert bool((errors[1] <= errors[0] * (1 + 1e-5) + 1e-12).all())


def test_clipping_is_the_default_of_rtn() -> None:
    w = weight(8, 128)
    q, clipped, plain = (xgemm.quantize_weight(w, clip=clip) for clip in (None, "mse", "none"))
    assert torch.equal(q.scales, clipped.scales)
    assert not torch.equal(q.scales, plain.scales)
    model = xgemm.quantize(nn.Sequential(nn.Linear(128, 8)))
    assert model.xgemm_report.clip == "mse"
    assert xgemm.quantize(nn.Sequential(nn.Linear(128, 8)), "hqq").xgemm_report.clip == "none"


def test_mse_clipping_gains_on_a_normal_weight() -> None:
    w = weight(64, 1024)
    plain, clipped = (
        (xgemm.quantize_weight(w, group_size=128, clip=clip).dequantize() - w).square().mean()
        for clip in ("none", "mse")
    )
    assert float(clipped) < 0.9 * float(plain)


@pytest.mark.parametrize("symmetric", [True, False])
def test_clipping_by_importance_serves_the_important_channels(symmetric: bool) -> None:
    w, x = weight(64, 300), weight(500, 300, seed=1)
    x[:, ::7] *= 10
    importance = x.square().sum(0)
    errors = []
    for known in (None, importance):
        q = xgemm.quantize_weight(w, "rtn", 64, symmetric, importance=known)
        squares = (q.dequantize() - w).square()
        errors.append(
            [float((squares * importance).sum()), float((x @ (q.dequantize() - w).t()).norm())]
        )
    assert errors[1][0] < 0.8 * errors[0][0]
    assert errors[1][1] < 0.9 * errors[0][1]
    # A multiple of it is the same importance; equal channels are plain least squares.
    doubled = xgemm.quantize_weight(w, "rtn", 64, symmetric, importance=importance * 2)
    assert torch.equal(doubled.dequantize(), q.dequantize())
    equal = quantize_rtn(w, 64, symmetric, "mse", None, torch.ones(300))
    plain = quantize_rtn(w, 64, symmetric, "none", None)
    by_size = quantize_rtn(w, 64, symmetric, "mse", None)
    losses = [float((q.dequantize() - w).square().sum()) for q in (equal, by_size, plain)]
    assert losses[0] < losses[1] < losses[2]


def test_row_blocks_do_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    w = weight(37, 200)
    whole = quantize_rtn(w, 32, False, "mse", None)
    monkeypatch.setattr(sys.modules["xgemm.quantize.groups"], "BLOCK_WEIGHTS", 1000)
    blocks = quantize_rtn(w, 32, False, "mse", None)
    assert torch.equal(whole.codes, blocks.codes)
    assert torch.equal(whole.scales, blocks.scales)
    assert torch.equal(whole.zeros, blocks.zeros)


@pytest.mark.parametrize(
    ("factor", "expected"),
    [(1.0, torch.float16), (1e-6, torch.bfloat16), (1e7, torch.bfloat16), (1e36, torch.bfloat16)],
)
def test_scales_that_fp16_cannot_hold_are_bf16(factor: float, expected: torch.dtype) -> None:
    w = weight(16, 128) * factor
    q = xgemm.quantize_weight(w)
    assert q.scales.dtype == expected
    error = (q.dequantize(torch.float64) - w.double()).norm() / w.double().norm()
    assert float(error) < 0.15


def test_one_tiny_group_is_kept() -> None:
    w = weight(4, 256)
    w[2, 128:] *= 1e-8
    q = xgemm.quantize_weight(w)
    part = (q.dequantize() - w)[2, 128:].norm() / w[2, 128:].norm()
    assert q.scales.dtype == torch.bfloat16
    assert float(part) < 0.15


def test_denormal_weights_do_no_harm() -> None:
    q = xgemm.quantize_weight(torch.full((2, 64), 1e-41), group_size=32)
    assert bool(torch.isfinite(q.scales).all())
    assert bool((q.dequantize().abs() <= 1e-37).all())


@pytest.mark.parametrize("factor", [1e-6, 1e7])
def test_a_scale_dtype_that_cannot_hold_the_scales_is_refused(factor: float) -> None:
    w = weight(4, 128) * factor
    with pytest.raises(ValueError, match=r"scale_dtype torch.float16 holds scales within"):
        xgemm.quantize_weight(w, scale_dtype=torch.float16)


def test_scales_above_bf16_are_refused() -> None:
    with pytest.raises(ValueError, match=r"needs a scale of .*, above bf16's"):
        xgemm.quantize_weight(torch.full((2, 32), 1e300, dtype=torch.float64))


@pytest.mark.parametrize("shape", [(0, 64), (8, 0), (0, 0)])
def test_empty_weights(shape: tuple[int, int]) -> None:
    for symmetric in (True, False):
        q = xgemm.quantize_weight(torch.empty(shape), symmetric=symmetric)
        assert q.codes.shape == shape
        assert q.dequantize().shape == shape
        assert xgemm.unpack(xgemm.pack(q)).codes.shape == shape


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"method": "magic"}, r"quantize_weight: method must be one of: 'rtn', 'hqq', got 'magic'"),
        ({"method": None}, "method must be one of: 'rtn', 'hqq', got None"),
        ({"group_size": 100}, "group_size must be one of"),
        ({"group_size": True}, "group_size must be an int, got bool"),
        (
            {"importance": torch.ones(64), "clip": "none"},
            "importance is for clip 'mse', got clip 'n",
        ),
        (
            {"importance": torch.ones(63)},
            r"importance must be floating, \[32\], got torch.float32 \[",
        ),
        ({"importance": -torch.ones(32)}, "importance must be finite and not negative"),
        ({"clip": "best"}, r"clip must be one of \('none', 'mse'\) or None, got 'best'"),
        ({"scale_dtype": torch.float32}, "scale_dtype must be torch.float16, torch.bfloat16"),
        ({"w": [1.0]}, "w must be a tensor, got list"),
        ({"w": torch.zeros(4)}, r"w must be .* \[N, K\], got torch.float32 \[4\]"),
        ({"w": torch.zeros(4, 4, dtype=torch.int8)}, "w must be .*, got torch.int8"),
        ({"w": torch.zeros(4, 4, device="meta")}, "w has no data"),
        ({"w": torch.tensor([[1.0, float("nan")]])}, r"w must be finite, got nan at \[0, 1\]"),
        ({"w": torch.tensor([[1.0], [-float("inf")]])}, r"w must be finite, got -inf at \[1, 0\]"),
    ],
)
def test_bad_input_is_refused(arguments: dict, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        xgemm.quantize_weight(**{"w": torch.ones(4, 32), **arguments})


# ---- models ----


class SubclassedLinear(nn.Linear):
    pass


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(48, 96)
        self.down = nn.Linear(96, 48, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.relu(self.up(x)))


class Model(nn.Module):
    def __init__(self, tie: bool = False) -> None:
        super().__init__()
        self.embed = nn.Embedding(100, 48)
        self.layers = nn.ModuleList([Block(), Block()])
        self.special = SubclassedLinear(48, 48)
        self.lm_head = nn.Linear(48, 100, bias=False)
        if tie:
            self.lm_head.weight = self.embed.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.lm_head(self.special(x))


@pytest.fixture
def model() -> Model:
    torch.manual_seed(0)
    return Model().eval()


LINEARS = ["layers.0.up", "layers.0.down", "layers.1.up", "layers.1.down"]


def test_quantize_swaps_the_linears_and_says_so(
    model: Model, caplog: pytest.LogCaptureFixture
) -> None:
    tokens = torch.arange(20)[None]
    model.requires_grad_(False)
    before = model(tokens)
    weights = {name: model.get_submodule(name).weight for name in LINEARS}
    with caplog.at_level(logging.INFO, "xgemm"):
        assert xgemm.quantize(model, group_size=32) is model
    report = model.xgemm_report
    assert isinstance(report, QuantizationReport)
    assert report.quantized == LINEARS
    assert report.left == {
        "special": "a subclass of nn.Linear (SubclassedLinear)",
        "lm_head": "the output head",
    }
    assert report.bytes_before == 4 * 48 * 96 * 4
    assert report.bytes_after == sum(model.get_submodule(n).qweight.numel() for n in LINEARS)
    assert "quantized 4 linear layers (rtn, group_size 32, symmetric)" in caplog.text
    assert "left lm_head: the output head" in caplog.text
    for name, module in model.named_modules():
        assert isinstance(module, xgemm.nn.QuantLinear) == (name in LINEARS)
    for name, w in weights.items():
        layer = model.get_submodule(name)
        assert not layer.training
        q = xgemm.quantize_weight(w, group_size=32)
        assert torch.equal(xgemm.unpack(layer.to_packed()).codes, q.codes)
    after = model(tokens)
    assert float((after - before).norm() / before.norm()) < 0.05


def test_skip_takes_names_and_patterns(model: Model) -> None:
    xgemm.quantize(model, group_size=32, skip=["layers.0.up", "*.down"])
    assert model.xgemm_report.quantized == ["layers.1.up"]
    assert model.xgemm_report.left["layers.0.up"] == "skip names it ('layers.0.up')"
    assert model.xgemm_report.left["layers.1.down"] == "skip names it ('*.down')"


def test_a_skip_that_matches_nothing_is_refused(model: Model) -> None:
    with pytest.raises(ValueError, match=r"skip: 'layers.0.upp' matches no linear layer"):
        xgemm.quantize(model, skip="layers.0.upp")
    assert type(model.layers[0].up) is nn.Linear


def test_lm_head_can_be_asked_for(model: Model) -> None:
    xgemm.quantize(model, group_size=32, lm_head=True)
    assert "lm_head" in model.xgemm_report.quantized


def test_tied_embeddings_are_left_even_so() -> None:
    model = Model(tie=True)
    xgemm.quantize(model, group_size=32, lm_head=True)
    assert model.xgemm_report.left["lm_head"] == "its weight is tied to embed.weight"
    assert model.lm_head.weight is model.embed.weight


def test_a_layer_with_two_names_stays_one_layer() -> None:
    model = nn.Module()
    model.a = nn.Linear(32, 64)
    model.b = model.a
    xgemm.quantize(model, group_size=32)
    assert isinstance(model.a, xgemm.nn.QuantLinear)
    assert model.a is model.b
    assert model.xgemm_report.quantized == ["a", "b"]


def test_output_embeddings_are_left_whatever_their_name() -> None:
    model = nn.Module()
    model.body, model.embed_out = nn.Linear(32, 32), nn.Linear(32, 64)
    model.get_output_embeddings = lambda: model.embed_out
    xgemm.quantize(model, group_size=32)
    assert model.xgemm_report.left == {"embed_out": "the output head"}


def test_hooks_and_odd_weights_are_left() -> None:
    model = nn.Sequential(nn.Linear(32, 32), nn.Linear(32, 32), nn.Linear(32, 32))
    model[0].register_forward_hook(lambda *_: None)
    model[1].weight = nn.Parameter(model[1].weight.detach().to(torch.float8_e4m3fn), False)
    xgemm.quantize(model, group_size=32)
    assert model.xgemm_report.left == {"0": "it has hooks", "1": "its weight is float8_e4m3fn"}
    assert model.xgemm_report.quantized == ["2"]


def test_torchs_own_transformer(monkeypatch: pytest.MonkeyPatch) -> None:
    """In inference, too, it calls its packed layers: its fused path would read their weights."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
    model = nn.TransformerEncoder(layer, 2).eval()
    xgemm.quantize(model, group_size=32)
    linears = [f"layers.{i}.linear{j}" for i in (0, 1) for j in (1, 2)]
    assert model.xgemm_report.quantized == linears
    attention = "torch.nn.MultiheadAttention reads its weight by itself"
    assert model.xgemm_report.left["layers.1.self_attn.out_proj"] == attention
    x = torch.randn(2, 5, 32)
    expected = model(x)  # with gradients: never fused
    monkeypatch.setattr(xgemm.nn.QuantLinear, "dequantize", None)
    with torch.inference_mode():
        torch.testing.assert_close(model(x), expected)


def test_an_error_leaves_the_model_as_it_was(model: Model) -> None:
    with torch.no_grad():
        model.layers[1].down.weight[3, 5] = float("nan")
    with pytest.raises(ValueError, match=r"layers.1.down: .*finite, got nan at \[3, 5\]"):
        xgemm.quantize(model)
    assert not any(isinstance(m, xgemm.nn.QuantLinear) for m in model.modules())
    assert not hasattr(model, "xgemm_report")


def test_progress_is_reported(model: Model) -> None:
    calls: list[tuple[int, int, str]] = []
    xgemm.quantize(model, group_size=32, progress=lambda *call: calls.append(call))
    assert calls == [*((i, 4, name) for i, name in enumerate(LINEARS)), (4, 4, "")]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"method": "obq"}, "must be one of: 'rtn', 'hqq', 'gptq', 'awq', got 'obq'"),
        ({"group_size": 7}, "quantize: group_size must be one of"),
        ({"calibration": [1]}, "method 'rtn' takes no calibration data"),
        ({"model": nn.Linear(4, 4)}, "use QuantLinear.from_linear"),
        ({"model": 3}, "model must be a torch.nn.Module, got int"),
    ],
)
def test_bad_arguments_are_refused(model: Model, arguments: dict, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        xgemm.quantize(**{"model": model, **arguments})


def test_types_keep_the_models_class() -> None:
    hints = typing.get_type_hints(xgemm.quantize)
    assert isinstance(hints["model"], typing.TypeVar)
    assert hints["model"] is hints["return"]
    assert hints["model"].__bound__ is nn.Module
    if sys.version_info < (3, 11):
        return  # get_overloads is new there
    loads = [typing.get_type_hints(overload) for overload in typing.get_overloads(xgemm.load)]
    assert [hints["return"] for hints in loads] == [nn.Module, loads[1]["model"]]


def test_quantize_is_a_function_and_a_package() -> None:
    import importlib

    from xgemm.quantize import quantize_weight
    from xgemm.quantize.rtn import SHRINKS

    assert quantize_weight is xgemm.quantize_weight
    assert SHRINKS[0] == 1.0
    importlib.import_module("xgemm.quantize.model")
    assert callable(xgemm.quantize)
