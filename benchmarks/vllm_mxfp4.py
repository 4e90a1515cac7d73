"""Models with random MXFP4 experts in the directories that vLLM reads: see vllm_models.py.

python benchmarks/vllm_mxfp4.py FOLDER --format gpt-oss

Formats: "gpt-oss" (OpenAI's own), "mxfp4" (a Qwen3-MoE by compressed-tensors) and "mxfp4-xgemm"
(the same model as xgemm's own directory).
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from vllm_models import (
    DTYPES,
    MXFP4_FORMATS,
    SHAPES,
    RandomWeights,
    Shape,
    Variant,
    float_ends,
    llm_config,
)

GROUP_SIZE = 32
RMS = 2.93  # of E2M1 codes drawn evenly


def write(folder: Path, shape: Shape, variant: Variant) -> None:
    from safetensors.torch import save_file

    if variant.format == "mxfp4-xgemm":
        from xgemm.hf import convert

        its = folder.with_name(f"{folder.name}-its")
        if not its.exists():
            write(its, shape, Variant("mxfp4", dtype=variant.dtype))
        convert(its, folder, to="xgemm")
        return
    folder.mkdir(parents=True)
    layer_of = _gpt_oss_layer if variant.format == "gpt-oss" else _qwen3_layer
    random, index = RandomWeights(variant), {}
    for number in range(-1, shape.layers):
        prefix = "" if number < 0 else f"model.layers.{number}."
        tensors = float_ends(random, shape) if number < 0 else dict(layer_of(random, shape))
        file = f"part{number + 1}.safetensors"
        save_file({prefix + k: v.cpu().contiguous() for k, v in tensors.items()}, folder / file)
        index |= dict.fromkeys((prefix + key for key in tensors), file)
    weight_map = json.dumps({"metadata": {}, "weight_map": index})
    (folder / "model.safetensors.index.json").write_text(weight_map)
    (folder / "config.json").write_text(json.dumps(_config(shape, variant)))


def _bytes(random: RandomWeights, n: int, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes, two in a byte, and E8M0 scales of a weight whose products keep their size."""
    low = random.integers(0, 16, n, k // 2)
    packed = low | random.integers(0, 16, n, k // 2) << 4
    middle = 127 - round(math.log2(RMS * k**0.5))
    scales = random.integers(middle - 1, middle + 1, n, k // GROUP_SIZE)
    return packed.byte(), scales.byte()


def _attention(random: RandomWeights, shape: Shape, bias: bool) -> Iterator[tuple[str, Any]]:
    for name, (n, k) in shape.linears().items():
        if name.startswith("self_attn."):
            yield f"{name}.weight", random.normal(n, k, scale=k**-0.5)
            if bias:
                yield f"{name}.bias", random.normal(n, scale=0.1)


def _norms(random: RandomWeights, shape: Shape) -> Iterator[tuple[str, Any]]:
    for name in ("input_layernorm", "post_attention_layernorm"):
        yield f"{name}.weight", torch.ones(shape.hidden, dtype=DTYPES[random.variant.dtype])


def _qwen3_layer(random: RandomWeights, shape: Shape) -> Iterator[tuple[str, Any]]:
    yield from _norms(random, shape)
    yield from _attention(random, shape, bias=False)
    for name in ("q_norm", "k_norm"):
        one = torch.ones(shape.head_dim, dtype=DTYPES[random.variant.dtype])
        yield f"self_attn.{name}.weight", one
    scale = 3 * shape.hidden**-0.5
    yield "mlp.gate.weight", random.normal(shape.experts, shape.hidden, scale=scale)
    for name, (n, k) in shape.linears().items():
        if ".experts." in name:
            packed, scales = _bytes(random, n, k)
            yield f"{name}.weight_packed", packed
            yield f"{name}.weight_scale", scales


def _gpt_oss_layer(random: RandomWeights, shape: Shape) -> Iterator[tuple[str, Any]]:
    yield from _norms(random, shape)
    yield from _attention(random, shape, bias=True)
    yield "self_attn.sinks", random.normal(shape.heads)
    scale = 3 * shape.hidden**-0.5
    yield "mlp.router.weight", random.normal(shape.experts, shape.hidden, scale=scale)
    yield "mlp.router.bias", random.normal(shape.experts, scale=0.1)
    sizes = {
        "gate_up_proj": (2 * shape.intermediate, shape.hidden),
        "down_proj": (shape.hidden, shape.intermediate),
    }
    for name, (n, k) in sizes.items():
        blocks, scales = zip(*(_bytes(random, n, k) for _ in range(shape.experts)), strict=True)
        of_all = torch.stack(blocks).view(shape.experts, n, k // GROUP_SIZE, 16)
        yield f"mlp.experts.{name}_blocks", of_all
        yield f"mlp.experts.{name}_scales", torch.stack(scales)
        yield f"mlp.experts.{name}_bias", random.normal(shape.experts, n, scale=0.1)


def _config(shape: Shape, variant: Variant) -> dict[str, Any]:
    config = llm_config(shape, variant)
    if variant.format == "mxfp4":
        weights = {
            "num_bits": 4, "type": "float", "symmetric": True, "strategy": "group",
            "group_size": GROUP_SIZE, "dynamic": False, "scale_dtype": "torch.uint8",
            "zp_dtype": "torch.uint8",
        }  # fmt: skip
        group = {
            "targets": ["Linear"], "weights": weights, "format": "mxfp4-pack-quantized",
            "input_activations": None, "output_activations": None,
        }  # fmt: skip
        section = {
            "quant_method": "compressed-tensors", "format": "mxfp4-pack-quantized",
            "quantization_status": "compressed", "config_groups": {"group_0": group},
            "ignore": ["lm_head", "re:.*mlp.gate$", "re:.*self_attn.*"], "kv_cache_scheme": None,
        }  # fmt: skip
        return {**config, "quantization_config": section}
    floats = ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens",
              "lm_head"]  # fmt: skip
    rope = {
        "rope_type": "yarn", "rope_theta": config.pop("rope_theta"), "factor": 32.0,
        "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
        "original_max_position_embeddings": 4096,
    }  # fmt: skip
    return {
        **config, "architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss",
        "num_local_experts": shape.experts, "num_experts_per_tok": shape.active,
        "intermediate_size": shape.intermediate, "attention_bias": True, "swiglu_limit": 7.0,
        "sliding_window": 128, "pad_token_id": 0, "rope_parameters": rope,
        "layer_types": [f"{('sliding', 'full')[i % 2]}_attention" for i in range(shape.layers)],
        "quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": floats},
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    shapes = [name for name, shape in SHAPES.items() if shape.experts]
    parser.add_argument("--shape", choices=shapes, default="tinymoe")
    parser.add_argument("--layers", type=int, help="fewer than the shape's")
    parser.add_argument("--format", choices=MXFP4_FORMATS, default="gpt-oss")
    options = parser.parse_args()
    shape = SHAPES[options.shape]
    write(
        options.folder,
        replace(shape, layers=options.layers or shape.layers),
        Variant(options.format),
    )


if __name__ == "__main__":
    main()
