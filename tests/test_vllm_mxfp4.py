"""vLLM's MXFP4 experts on xgemm: gpt-oss' and compressed-tensors', on stand-ins."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import vllm_experts_standin as standin
import vllm_standin
from helpers import random_mxfp4

from xgemm.formats.quantized import QuantizedWeight

INTERFACE = json.loads((Path(__file__).parent / "vllm_interface.json").read_text())
E, TOP, HIDDEN, INNER = 6, 2, 288, 96  # hidden: what Marlin would pad
GPT_OSS, COMPRESSED = standin.GptOssMxfp4MoEMethod, standin.CompressedTensorsW4A4Mxfp4MoEMethod


@pytest.fixture(autouse=True)
def vllm(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    made = vllm_standin.install(monkeypatch, INTERFACE["cuda_kernels"])
    from xgemm.vllm import register

    register()
    yield made["vllm"]
    standin.op_registry_oot.clear()


def moe(method: Any, **changes: Any) -> standin.FusedMoEConfig:
    values: dict[str, Any] = {
        "num_experts": E, "experts_per_token": TOP, "hidden_dim": HIDDEN,
        "intermediate_size": INNER, "num_local_experts": E, "num_logical_experts": E,
    }  # fmt: skip
    if method is GPT_OSS:
        values |= {"has_bias": True, "activation": standin.MoEActivation.SWIGLUOAI}
    return standin.FusedMoEConfig(**{**values, **changes})


def layer_of(method: Any, config: standin.FusedMoEConfig) -> Any:
    own = method(config, 32, False)
    quant_config = SimpleNamespace(get_quant_method=lambda layer, prefix: own)
    kind = standin.GptOssRoutedExperts if method is GPT_OSS else standin.RoutedExperts
    return kind("model.layers.0.mlp.experts", config, quant_config)


def fill(layer: Any, part: str, weights: list[QuantizedWeight], bias: torch.Tensor | None) -> None:
    """What vLLM loads: bytes, in the corner of a parameter that may be larger."""
    name = "weight" if hasattr(layer, f"{part}_weight") else "weight_packed"
    for e, q in enumerate(weights):
        packed = q.codes[:, ::2] | q.codes[:, 1::2] << 4
        scales = (q.scales.view(torch.int16) >> 7).to(torch.uint8).t()
        for key, value in ((name, packed), ("weight_scale", scales)):
            rows, columns = value.shape
            getattr(layer, f"{part}_{key}").data[e, :rows, :columns].copy_(value)
    if bias is not None:
        getattr(layer, f"{part}_bias").data[:, : bias.shape[1]].copy_(bias)


def loaded(method: Any, config: standin.FusedMoEConfig) -> tuple[Any, Any, Any, Any]:
    up = [random_mxfp4(2 * INNER, HIDDEN, (117, 122), seed=e) for e in range(E)]
    down = [random_mxfp4(HIDDEN, INNER, (117, 122), seed=50 + e) for e in range(E)]
    g = torch.Generator().manual_seed(3)
    biases = None
    if config.has_bias:
        biases = [torch.randn(E, n, generator=g).bfloat16() for n in (2 * INNER, HIDDEN)]
    layer = layer_of(method, config)
    fill(layer, "w13", up, biases and biases[0])
    fill(layer, "w2", down, biases and biases[1])
    layer.quant_method.process_weights_after_loading(layer)
    return layer, up, down, biases


def routed(tokens: int, dtype: torch.dtype) -> Any:
    g = torch.Generator().manual_seed(tokens)
    x = torch.randn(tokens, HIDDEN, generator=g).to(dtype)
    ids = torch.stack([torch.randperm(E, generator=g)[:TOP] for _ in range(tokens)]).int()
    return x, ids, torch.rand(tokens, TOP, generator=g)


def expected(method: Any, x: Any, ids: Any, scale: Any, up: Any, down: Any, biases: Any) -> Any:
    y = torch.zeros(x.shape[0], HIDDEN, dtype=torch.float64)
    for t, row in enumerate(x.double()):
        for j, e in enumerate(ids[t].tolist()):
            inner = row @ up[e].dequantize(torch.float64).t()
            inner = inner if biases is None else inner + biases[0][e].double()
            if method is GPT_OSS:
                gate, rest = inner[::2].clamp(max=7), inner[1::2].clamp(-7, 7)
                inner = (rest + 1) * gate * torch.sigmoid(1.702 * gate)
            else:
                gate, rest = inner.chunk(2)
                inner = torch.nn.functional.silu(gate) * rest
            out = inner @ down[e].dequantize(torch.float64).t()
            out = out if biases is None else out + biases[1][e].double()
            y[t] += scale[t, j].double() * out
    return y


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("method", [GPT_OSS, COMPRESSED])
def test_experts_multiply_what_vllm_loads(method: Any, dtype: torch.dtype) -> None:
    layer, up, down, biases = loaded(method, moe(method, in_dtype=dtype))
    assert type(layer.quant_method).__name__ == "XgemmExpertsMethod"
    assert layer.moe_config.hidden_dim == HIDDEN  # which is not padded
    form = layer.xgemm_up.form
    assert (form.n, form.k, form.fp4) == (2 * INNER, HIDDEN, True)
    left = {key for key, _ in layer.named_parameters()}
    assert left == {"e_score_correction_bias", "up_qweight", "down_qweight"}
    x, ids, scale = routed(7, dtype)
    y = layer(x, ids, scale)
    assert y.dtype == dtype
    wanted = expected(method, x, ids, scale, up, down, biases)
    size = float(wanted.abs().max())
    torch.testing.assert_close(y.double(), wanted, rtol=2e-2, atol=1e-2 * size)


def test_gpt_oss_loader_finds_mxfp4() -> None:
    layer = layer_of(GPT_OSS, moe(GPT_OSS))
    assert layer.quant_method.weight_dtype == "gpt_oss_mxfp4"


def test_a_gpus_share_is_whole_groups() -> None:
    """Of 2880 inner channels, 720 for each of four GPUs: vLLM's loader gives them 736."""
    parallel = standin.FusedMoEParallelConfig(tp_size=4)
    config = moe(GPT_OSS, intermediate_size=2880, moe_parallel_config=parallel)
    layer = layer_of(GPT_OSS, config)
    assert layer.moe_config.intermediate_size_per_partition == 736
    assert layer.w2_weight.shape == (E, HIDDEN, 368)
    last = [random_mxfp4(HIDDEN, 672, seed=e) for e in range(E)]
    first = [random_mxfp4(2 * 672, HIDDEN, seed=e) for e in range(E)]
    fill(layer, "w2", last, None)  # the last GPU's: the rest stays 0
    fill(layer, "w13", first, None)
    layer.quant_method.process_weights_after_loading(layer)
    x, ids, scale = routed(5, torch.bfloat16)
    wanted = expected(GPT_OSS, x, ids, scale, first, last, None)
    torch.testing.assert_close(
        layer(x, ids, scale).double(), wanted, rtol=2e-2, atol=1e-2 * float(wanted.abs().max())
    )


@pytest.mark.parametrize(
    ("method", "changes", "reason"),
    [
        (GPT_OSS, {"moe_backend": "triton"}, "the backend triton is asked for"),
        (GPT_OSS, {"is_lora_enabled": True}, "LoRA is not taken"),
        (
            GPT_OSS,
            {"activation": standin.MoEActivation.SILU},
            "the activation silu is not taken",
        ),
        (
            COMPRESSED,
            {"activation": standin.MoEActivation.SWIGLUOAI},
            "the activation swigluoai is not taken",
        ),
        (COMPRESSED, {"swiglu_limit": 7.0}, "clamped gates is not taken"),
    ],
)
def test_what_is_not_taken_is_named(method: Any, changes: Any, reason: str) -> None:
    import xgemm.vllm.experts as experts

    config = moe(method, **changes)
    own = method(config, 32, False)
    assert experts.refusal(own, SimpleNamespace(moe_config=config)) == reason
    assert type(layer_of(method, config).quant_method) is method


def test_a_gpu_with_fp4_of_its_own_keeps_vllms_kernel() -> None:
    import xgemm.vllm.experts as experts

    own = COMPRESSED(moe(COMPRESSED), 32, False)
    own.use_cutlass_mxfp4 = True  # type: ignore[misc]
    reason = experts.refusal(own, SimpleNamespace(moe_config=moe(COMPRESSED)))
    assert reason == "MXFP4 on a GPU that multiplies it itself is not taken"


def test_a_scale_that_is_no_number_is_refused() -> None:
    layer = layer_of(GPT_OSS, moe(GPT_OSS))
    layer.w13_weight_scale.data[2, 5, 1] = 255
    with pytest.raises(ValueError, match="scales must be finite, got 255"):
        layer.quant_method.process_weights_after_loading(layer)
