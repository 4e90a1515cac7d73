"""GPTQ of one weight, against its equations written out, one channel at a time in float64."""

from __future__ import annotations

import pytest
import torch

import xgemm
from xgemm.formats.packed import pack, unpack
from xgemm.formats.quantized import QuantizedWeight
from xgemm.quantize.errors import layer_error
from xgemm.quantize.gptq import Grid, SecondMoment, quantize_channels, upper_factor

pytestmark = pytest.mark.usefixtures("one_thread")


def problem(n: int = 24, k: int = 320, tokens: int = 600) -> tuple[torch.Tensor, torch.Tensor]:
    """A weight, and the second moment of inputs that hang together, as a model's do."""
    generator = torch.Generator().manual_seed(0)
    w = torch.randn(n, k, generator=generator)
    mixed = torch.randn(k, k, generator=generator) / k**0.5
    spread = torch.rand(k, generator=generator) * 3 + 0.1
    x = torch.randn(tokens, k, generator=generator) @ (mixed + torch.eye(k)) * spread
    moment = SecondMoment(k, torch.device("cpu"))
    for part in x.split(100):
        moment.add(part)
    torch.testing.assert_close(moment.mean, (x.t() @ x) / tokens, rtol=1e-4, atol=1e-4)
    return w, moment.mean


def ordered(h: torch.Tensor, act_order: str) -> torch.Tensor:
    if act_order == "none":
        return torch.arange(h.shape[0])
    return h.diagonal().argsort(descending=True, stable=True)


def gptq(
    w: torch.Tensor, h: torch.Tensor, act_order: str, group_size: int, symmetric: bool
) -> QuantizedWeight:
    order = ordered(h, act_order)
    u = upper_factor(h[order][:, order], 0.01)
    assert u is not None
    size = w.shape[1] if group_size == -1 else group_size
    grid = Grid(size, symmetric, "none", torch.float16)
    return quantize_channels(w, order, u, grid, act_order == "static")


def plain_gptq(
    w: torch.Tensor, h: torch.Tensor, act_order: str, group_size: int, symmetric: bool
) -> torch.Tensor:
    """The dequantized weight by eq. 2, with an inverse of its own for every channel, in float64."""
    k = w.shape[1]
    size = k if group_size == -1 else group_size
    order = ordered(h, act_order)
    h = h.double()[order][:, order]
    h = h + 0.01 * h.diagonal().mean() * torch.eye(k, dtype=torch.float64)
    rest = w.double()[:, order].clone()
    result = torch.empty_like(rest)
    inverse_order = order.argsort()
    scale = zero = torch.empty(0)
    for i in range(k):
        if act_order == "static":
            group = int(order[i]) // size
            scale, zero = grid_of(w.double()[:, group * size : (group + 1) * size], symmetric)
        elif i % size == 0:
            scale, zero = grid_of(rest[:, i : i + size], symmetric)
        code = ((rest[:, i] / scale).round() + zero).clamp(0, 15)
        result[:, i] = (code - zero) * scale
        inverse = torch.linalg.inv(h[i:, i:])
        error = (rest[:, i] - result[:, i]) / inverse[0, 0]
        rest[:, i:] -= error[:, None] * inverse[0]
    return result[:, inverse_order]


def grid_of(w: torch.Tensor, symmetric: bool) -> tuple[torch.Tensor, torch.Tensor]:
    low, high = w.amin(1).clamp(max=0), w.amax(1).clamp(min=0)
    if symmetric:
        high = torch.maximum(-low, high)
        low = -high
    scale = ((high - low) / 15).half().double()
    zero = torch.full_like(scale, 8) if symmetric else (-low / scale).round().clamp(0, 15)
    return scale, zero


@pytest.mark.parametrize("act_order", ["static", "desc_act", "none"])
@pytest.mark.parametrize(("group_size", "symmetric"), [(128, True), (32, False), (-1, True)])
def test_it_is_what_the_equations_say(act_order: str, group_size: int, symmetric: bool) -> None:
    w, h = problem(k=200)  # groups of 128 end in a short one, and blocks too
    got = gptq(w, h, act_order, group_size, symmetric).dequantize(torch.float64)
    expected = plain_gptq(w, h, act_order, group_size, symmetric)

    def loss(q: torch.Tensor) -> float:
        return float(((q - w) @ h.double() * (q - w)).sum())

    # A tie that falls the other way in float32 changes what follows it, so not every weight agrees.
    assert float(((got - expected).abs() < 1e-6).double().mean()) > 0.98
    assert loss(got) == pytest.approx(loss(expected), rel=0.01)


@pytest.mark.parametrize("act_order", ["static", "desc_act", "none"])
@pytest.mark.parametrize("symmetric", [True, False])
def test_the_error_of_outputs_is_below_that_of_rounding(act_order: str, symmetric: bool) -> None:
    w, h = problem()
    rounded = xgemm.quantize_weight(w, group_size=64, symmetric=symmetric, clip="none")
    ours = gptq(w, h, act_order, 64, symmetric)
    before = layer_error(w, rounded, hessian=h).outputs
    after = layer_error(w, ours, hessian=h).outputs
    assert before is not None
    assert after is not None
    assert after < 0.75 * before


def test_act_order_is_kept_by_the_packed_weight() -> None:
    w, h = problem()
    ours = gptq(w, h, "desc_act", 64, True)
    assert ours.g_idx is not None
    again = unpack(pack(ours))
    assert torch.equal(again.codes, ours.codes)
    assert torch.equal(again.dequantize(), ours.dequantize())
    assert gptq(w, h, "static", 64, True).g_idx is None


def test_channels_that_are_always_zero_are_rounded() -> None:
    w, h = problem(k=64)
    h[7], h[:, 7] = 0, 0
    ours = gptq(w, h, "none", 64, True)
    assert torch.isfinite(ours.dequantize()).all()
    step = ours.scales[0].float()
    assert bool(((ours.dequantize()[:, 7] - w[:, 7]).abs() <= step * 1.01).all())


def test_fewer_tokens_than_channels() -> None:
    # H has no full rank: the damping makes it one.
    w, h = problem(k=256, tokens=20)
    before = layer_error(w, xgemm.quantize_weight(w, group_size=64, clip="none"), hessian=h)
    after = layer_error(w, gptq(w, h, "static", 64, True), hessian=h)
    assert after.output_error is not None
    assert before.output_error is not None
    assert after.output_error < 0.3 * before.output_error


def test_no_factor_of_what_is_not_positive_definite() -> None:
    h = torch.eye(8)
    assert upper_factor(h, 0.01) is not None
    h[0, 1] = h[1, 0] = 1.05
    u = upper_factor(h, 0.01)  # after more damping
    assert u is not None
    assert torch.isfinite(u).all()
    h[0, 1] = h[1, 0] = 50.0
    assert upper_factor(h, 0.01) is None
    h[0, 0] = torch.nan
    assert upper_factor(h, 0.01) is None
    assert upper_factor(torch.zeros(8, 8), 0.01) is not None


def test_a_layer_of_inputs_that_are_not_finite_is_rounded_and_named() -> None:
    layer = torch.nn.Linear(64, 32)
    model = torch.nn.Sequential(layer, torch.nn.Linear(32, 32))
    x = torch.randn(50, 64)
    x[3, 5] = torch.inf
    expected = xgemm.quantize_weight(layer.weight.detach(), group_size=32).codes
    xgemm.quantize(model, method="gptq", group_size=32, calibration=[x])
    assert "not positive definite" in model.xgemm_report.fallbacks["0"]
    assert torch.equal(xgemm.unpack(model[0].to_packed()).codes, expected)


def test_options_are_checked() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(64, 32))
    for options, text in (
        ({"act_order": True}, "act_order must be one of"),
        ({"damp": 0.0}, "damp must be above 0"),
    ):
        with pytest.raises(ValueError, match=text):
            xgemm.quantize(
                model, method="gptq", group_size=32, calibration=[torch.ones(2, 64)],
                options=options,
            )  # fmt: skip


def test_gptaq_makes_up_for_other_inputs_than_the_float_models() -> None:
    """||W X' - Q X|| is less where the difference of X' and X is carried."""
    w, h = problem(k=128)
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(600, 128, generator=generator) @ torch.linalg.cholesky(h).t()
    floats = x + 0.1 * x @ torch.randn(128, 128, generator=generator) / 128**0.5
    h, shift = SecondMoment(128, x.device), SecondMoment(128, x.device)
    h.add(x)
    shift.add(floats - x, x)
    u = upper_factor(h.mean, 0.01)
    assert u is not None
    order = torch.arange(128)
    grid = Grid(64, True, "mse", torch.float16)

    def lost(carried: torch.Tensor | None) -> float:
        q = quantize_channels(w, order, u, grid, True, carried).dequantize()
        return float((floats @ w.t() - x @ q.t()).norm())

    carried = (shift.mean @ u.t()).triu(1) @ u
    assert lost(carried) < 0.9 * lost(None)
