"""Merging adapters into packed layers: refused by default, done on request, taken back exactly."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

peft = pytest.importorskip("peft")

from adapters import adapted, logits, lora, loss, quantized, scatter  # noqa: E402
from torch import nn  # noqa: E402
from torch.testing import assert_close  # noqa: E402

import xgemm  # noqa: E402
from xgemm.hf import peft as ours  # noqa: E402
from xgemm.nn import QuantLinear  # noqa: E402
from xgemm.quantize.requantize import requantize  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")

Q = {"target_modules": ["q_proj", "v_proj"]}
CONFIGS = {
    "lora": lora(),
    "lora_bias": lora(lora_bias=True, **Q),
    "dora": lora(use_dora=True),
    "ia3": peft.IA3Config(feedforward_modules=[], **Q),
    "vera": peft.VeraConfig(r=4, **Q),
    "loha": peft.LoHaConfig(r=4, **Q),
    "oft": peft.OFTConfig(oft_block_size=4, **Q),
}
each_config = pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)


def layers(model: nn.Module) -> list[Any]:
    kind = peft.tuners.tuners_utils.BaseTunerLayer
    return [module for module in model.modules() if isinstance(module, kind)]


@each_config
def test_pefts_merge_is_refused_and_changes_nothing(config: Any) -> None:
    model = adapted(quantized(), config)
    before = logits(model)
    for safe_merge in (False, True):
        with pytest.raises(RuntimeError, match=r"To merge an adapter: xgemm\.hf\.merge_adapter"):
            model.merge_adapter(safe_merge=safe_merge)
        with pytest.raises(RuntimeError, match="4-bit weight that is stored packed"):
            copy.deepcopy(model).merge_and_unload(safe_merge=safe_merge)
    assert not any(layer.merged for layer in layers(model))
    assert torch.equal(logits(model), before)


@each_config
def test_merged_into_float_layers(config: Any) -> None:
    model = adapted(quantized(), config)
    before, calls = logits(model), list[tuple[int, int, str]]()
    ours.merge_adapter(model, requantize=False, progress=lambda *call: calls.append(call))
    assert all(layer.merged for layer in layers(model))
    assert [done for done, *_ in calls] == list(range(len(layers(model)) + 1))
    assert all(type(layer.get_base_layer()) is nn.Linear for layer in layers(model))
    assert_close(logits(model), before, rtol=1e-4, atol=1e-5)
    ours.unmerge_adapter(model)
    assert torch.equal(logits(model), before)
    base = ours.merge_and_unload(model, requantize=False)
    assert_close(logits(base), before, rtol=1e-4, atol=1e-5)
    assert type(base.model.layers[0].self_attn.q_proj) is nn.Linear


@each_config
def test_merged_and_requantized(config: Any) -> None:
    model = adapted(quantized(), config)
    exact = copy.deepcopy(model)
    ours.merge_adapter(exact, requantize=False)
    before = logits(model)
    with model.disable_adapter():
        bare = logits(model)
    bases = [layer.get_base_layer() for layer in layers(model)]
    ours.merge_adapter(model, requantize=True)
    for layer, wide, base in zip(layers(model), layers(exact), bases, strict=True):
        merged = layer.get_base_layer()
        assert type(merged) is QuantLinear
        assert merged.format == base.format
        scales = xgemm.unpack(merged.to_packed()).scales.float().t()
        off = (merged.dequantize(torch.float32) - wide.get_base_layer().weight).abs()
        off = off.reshape(off.shape[0], -1, base.group_size) / scales[:, :, None]
        assert off.max() < 1.5  # steps; a change at the end of a group's range may be cut off
        assert off.square().mean().sqrt() < 0.5
    # Taken out by peft's own call, and by the switch that peft's forward acts upon.
    model.unmerge_adapter()
    assert torch.equal(logits(model), before)
    ours.merge_adapter(model, requantize=True)
    with model.disable_adapter():
        assert torch.equal(logits(model), bare)
    assert torch.equal(logits(model), before)
    assert [layer.get_base_layer() for layer in layers(model)] == bases


def test_a_copy_of_a_merged_model_is_unmerged_by_itself() -> None:
    model = adapted(quantized(), lora())
    before = logits(model)
    ours.merge_adapter(model, requantize=True)
    merged = logits(model)
    twin = copy.deepcopy(model)
    twin.unmerge_adapter()
    assert torch.equal(logits(twin), before)
    assert torch.equal(logits(model), merged)


def trained(model: Any, steps: int) -> Any:
    torch.manual_seed(0)
    model = peft.get_peft_model(model, lora(r=8)).train()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=2e-3)
    for _ in range(steps):
        loss(model).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model.eval()


@torch.no_grad()
def losses_after_merging(model: Any) -> tuple[float, float, float]:
    adapter = loss(model).item()
    with model.disable_adapter():
        base = loss(model).item()
    return base, adapter, loss(ours.merge_and_unload(model, requantize=True)).item()


def test_what_an_adapter_learned_is_not_lost_by_requantizing() -> None:
    """Its weights change by a small part of a step: rounding to nearest would lose them all."""
    model = trained(quantized(symmetric=True), steps=12)
    nearest = copy.deepcopy(model)
    base, adapter, merged = losses_after_merging(model)
    assert adapter < base - 1.0
    assert merged < base - 0.6 * (base - adapter), (base, adapter, merged)
    for layer in layers(nearest):
        old = xgemm.unpack(layer.base_layer.to_packed())
        scales = old.scales.float().repeat_interleave(old.group_size, 0).t()[:, : old.k]
        steps = layer.get_delta_weight("default") / scales
        assert steps.square().mean().sqrt() < 0.5
        wide = old.dequantize() + (steps.round() * scales)
        layer.lora_B["default"].weight.data.zero_()
        layer.base_layer = QuantLinear.from_packed(requantize(layer.base_layer.to_packed(), wide))
    assert merged < loss(nearest).item() - 0.2


def test_an_adapter_is_merged_beside_another() -> None:
    model = adapted(quantized(), lora())
    model.add_adapter("second", lora(r=2))
    scatter(model, "second", seed=5)
    before = logits(model)
    exact = copy.deepcopy(model)
    exact.base_model.set_adapter(["default", "second"])
    ours.merge_adapter(model, ["default"], requantize=False)
    ours.merge_adapter(model, ["second"], requantize=False)
    assert layers(model)[0].merged_adapters == ["default", "second"]
    assert_close(logits(model), logits(exact), rtol=1e-4, atol=1e-5)
    ours.unmerge_adapter(model)
    assert torch.equal(logits(model), before)


def test_layers_that_are_not_packed_are_merged_by_peft() -> None:
    model = adapted(quantized(), lora(target_modules=["q_proj", "lm_head"]))
    before = logits(model)
    base = ours.merge_and_unload(model, requantize=False)
    assert_close(logits(base), before, rtol=1e-4, atol=1e-5)
    assert type(base.lm_head) is nn.Linear


def test_a_failure_leaves_the_model_unmerged(monkeypatch: pytest.MonkeyPatch) -> None:
    model = adapted(quantized(), lora())
    before, calls = logits(model), []

    def failing(*arguments: Any) -> Any:
        calls.append(1)
        if len(calls) == 3:
            raise ValueError("the third one")
        return requantize(*arguments)

    monkeypatch.setattr(ours, "requantize_weight", failing)
    with pytest.raises(ValueError, match="the third one"):
        ours.merge_adapter(model, requantize=True)
    assert not any(layer.merged for layer in layers(model))
    assert torch.equal(logits(model), before)


def test_what_cannot_be_merged_is_named() -> None:
    with pytest.raises(ValueError, match=r"adapters are \['default'\], got 'other'"):
        ours.merge_adapter(adapted(quantized(), lora()), ["other"], requantize=True)
    with pytest.raises(ValueError, match="expected one with peft's adapters"):
        ours.merge_adapter(quantized(), requantize=True)
    linear = QuantLinear.from_linear(nn.Linear(64, 64), activation="gelu")
    model = adapted(nn.Sequential(linear), peft.LoraConfig(r=2, target_modules=["0"]))
    with pytest.raises(ValueError, match=r"0 applies 'gelu' before the adapter is added"):
        ours.merge_adapter(model, requantize=True)


def packed(symmetric: bool, g_idx: torch.Tensor | None, dtype: torch.dtype) -> xgemm.PackedWeight:
    torch.manual_seed(0)
    q = xgemm.quantize_weight(torch.randn(70, 192), "rtn", 64, symmetric, scale_dtype=dtype)
    return xgemm.pack(xgemm.QuantizedWeight(q.codes, q.scales, q.zeros, g_idx, 64))


@pytest.mark.parametrize("act_order", [False, True])
@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_requantize(act_order: bool, symmetric: bool, dtype: torch.dtype) -> None:
    g_idx = (torch.randperm(192) // 64).int() if act_order else None
    old = packed(symmetric, g_idx, dtype)
    w = old.dequantize()
    same = requantize(old, w)
    assert torch.equal(same.qweight, old.qweight)
    assert (same.perm is None) == (not act_order)
    # A small change: each weight moves to a code beside it, and the sum is kept on average.
    step = xgemm.unpack(old).scales.float().t()[:, xgemm.unpack(old).group_of_channel()]
    inner = (xgemm.unpack(old).codes > 0) & (xgemm.unpack(old).codes < 15)
    small = requantize(old, w + 0.1 * step)
    moved = ((small.dequantize() - w) / step).round()
    assert set(moved.unique().tolist()) == {0, 1}
    assert moved[inner].mean() == pytest.approx(0.1, abs=0.01)
    # A large one: what quantizing anew gives.
    new = torch.randn(70, 192)
    large = requantize(old, new)
    assert large.bf16_scales == (dtype == torch.bfloat16)
    assert large.has_zeros == (not symmetric)
    order = torch.arange(192) if g_idx is None else g_idx.long().argsort(stable=True)
    fresh = xgemm.quantize_weight(new[:, order], "rtn", 64, symmetric, "mse", dtype)
    assert_close(large.dequantize()[:, order], fresh.dequantize())


def test_requantize_names_what_does_not_fit() -> None:
    with pytest.raises(ValueError, match=r"float tensor \[70, 192\], got torch.float32 \[2, 2\]"):
        requantize(packed(True, None, torch.float16), torch.zeros(2, 2))
