"""Models with random 4-bit weights in the directories that vLLM reads, for the scripts beside this.

python benchmarks/vllm_models.py FOLDER --shape tiny --format awq
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

GROUP_SIZE = 128
DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16}
# Which of the 8 columns that share a word AWQ has in each nibble, lowest first.
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


@dataclass(frozen=True)
class Shape:
    """A Llama's sizes; with experts, a Qwen3-MoE's."""

    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    layers: int
    head_dim: int = 128
    vocabulary: int = 32768
    experts: int = 0  # of a layer, each `intermediate` wide
    active: int = 0  # of them, for a token

    def linears(self) -> dict[str, tuple[int, int]]:
        """(N, K) of a layer's linears."""
        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        linears = {
            "self_attn.q_proj": (q, self.hidden),
            "self_attn.k_proj": (kv, self.hidden),
            "self_attn.v_proj": (kv, self.hidden),
            "self_attn.o_proj": (self.hidden, q),
        }
        mlps = [f"mlp.experts.{e}" for e in range(self.experts)] or ["mlp"]
        for mlp in mlps:
            linears[f"{mlp}.gate_proj"] = (self.intermediate, self.hidden)
            linears[f"{mlp}.up_proj"] = (self.intermediate, self.hidden)
            linears[f"{mlp}.down_proj"] = (self.hidden, self.intermediate)
        return linears


SHAPES = {
    "8b": Shape(4096, 14336, 32, 8, 32),
    "70b": Shape(8192, 28672, 64, 8, 80),
    # A third of the vocabulary, 151936, as 16 layers are a third of the 48.
    "qwen3moe": Shape(2048, 768, 32, 4, 48, vocabulary=50688, experts=128, active=8),
    "tiny": Shape(1024, 2816, 16, 8, 4, head_dim=64, vocabulary=8192),
    "tinymoe": Shape(1024, 512, 16, 8, 4, head_dim=64, vocabulary=8192, experts=16, active=4),
}


@dataclass(frozen=True)
class Variant:
    """How the weights are stored: the same numbers in every format that can hold them."""

    format: str = "compressed-tensors"
    zeros: bool = False
    act_order: bool = False
    dtype: str = "bfloat16"


FORMATS = ("compressed-tensors", "gptq", "awq", "xgemm", "dense")
MXFP4_FORMATS = ("gpt-oss", "mxfp4", "mxfp4-xgemm")  # of vllm_mxfp4.py


def make_model(folder: Path, shape: Shape, variant: Variant) -> None:
    """Write a model of this shape. Its weights depend on `zeros` and `act_order` alone."""
    if variant.format in MXFP4_FORMATS:
        import vllm_mxfp4  # which is made of this module's parts

        vllm_mxfp4.write(folder, shape, variant)
        return
    if variant.format not in FORMATS:
        raise ValueError(f"make_model: format must be one of {FORMATS}, got {variant.format!r}")
    if variant.format in ("awq", "gptq") and (variant.format == "awq") != variant.zeros:
        kind = "without" if variant.zeros else "with"
        raise ValueError(f"make_model: {variant.format} is written {kind} zero points only")
    if variant.act_order and variant.format not in ("xgemm", "dense", "gptq"):
        raise ValueError(f"make_model: {variant.format} is written without act-order only")
    folder.mkdir(parents=True)
    if variant.format in ("xgemm", "dense"):
        _save_with_transformers(folder, shape, variant)
        return
    from safetensors.torch import save_file

    index = {}
    for file, tensors in _files(shape, variant):
        save_file(tensors, folder / file)
        index |= dict.fromkeys(tensors, file)
    weight_map = json.dumps({"metadata": {}, "weight_map": index})
    (folder / "model.safetensors.index.json").write_text(weight_map)
    write_config(folder, shape, variant)


def write_config(folder: Path, shape: Shape, variant: Variant) -> None:
    """config.json alone, which is all that an engine with `load_format="dummy"` reads."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {**llm_config(shape, variant), "quantization_config": _quantization_config(variant)}
    (folder / "config.json").write_text(json.dumps(config))


class RandomWeights:
    """Draws the same tensors for every format; on a GPU where there is one."""

    def __init__(self, variant: Variant) -> None:
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self.generator = torch.Generator(self.device).manual_seed(0)
        self.variant = variant

    def normal(self, *size: int, scale: float = 1.0) -> torch.Tensor:
        values = torch.randn(*size, generator=self.generator, device=self.device) * scale
        return values.to(DTYPES[self.variant.dtype]).cpu()

    def integers(self, low: int, high: int, *size: int) -> torch.Tensor:
        return torch.randint(low, high, size, generator=self.generator, device=self.device)

    def weight(self, n: int, k: int) -> Any:
        """Codes around the zero point: another mean would end every prompt in one token."""
        from xgemm import QuantizedWeight

        groups = k // GROUP_SIZE
        scales = torch.rand(groups, n, generator=self.generator, device=self.device)
        scales = ((0.5 + scales) / (4.3 * k**0.5)).bfloat16()  # a bf16 number is one in fp16, too
        zeros, codes = None, self.integers(1, 16, n, k)
        if self.variant.zeros:
            zeros = self.integers(5, 11, groups, n)
            codes = (codes - 8).clamp(-5, 5) + zeros.t().repeat_interleave(GROUP_SIZE, dim=1)
            zeros = zeros.half()
        g_idx = None
        if self.variant.act_order:
            order = torch.randperm(k, generator=self.generator, device=self.device)
            g_idx = (torch.arange(k, device=self.device) // GROUP_SIZE)[order].int()
        scales = scales.to(DTYPES[self.variant.dtype])
        return QuantizedWeight(codes.byte(), scales, zeros, g_idx, GROUP_SIZE)


def float_ends(random: RandomWeights, shape: Shape) -> dict[str, torch.Tensor]:
    """What lies before and after a model's layers."""
    return {
        "model.embed_tokens.weight": random.normal(shape.vocabulary, shape.hidden),
        "lm_head.weight": random.normal(shape.vocabulary, shape.hidden, scale=0.1),
        "model.norm.weight": torch.ones(shape.hidden, dtype=DTYPES[random.variant.dtype]),
    }


def _layers(shape: Shape, variant: Variant) -> Iterator[tuple[str, dict[str, Any]]]:
    """(Prefix, its tensors and quantized weights) of the model's ends and of each layer."""
    random = RandomWeights(variant)
    yield "", float_ends(random, shape)
    for layer in range(shape.layers):
        norm = torch.ones(shape.hidden, dtype=DTYPES[variant.dtype])
        tensors: dict[str, Any] = {
            "input_layernorm.weight": norm,
            "post_attention_layernorm.weight": norm.clone(),
        }
        if shape.experts:
            for name in ("q_norm", "k_norm"):
                tensors[f"self_attn.{name}.weight"] = norm[: shape.head_dim].clone()
            # Logits of size 3: the last of the chosen experts, which rounding may change, counts
            # for little, as in trained models.
            tensors["mlp.gate.weight"] = random.normal(
                shape.experts, shape.hidden, scale=3 * shape.hidden**-0.5
            )
        for name, (n, k) in shape.linears().items():
            tensors[name] = random.weight(n, k)
        yield f"model.layers.{layer}.", tensors


def _files(shape: Shape, variant: Variant) -> Iterator[tuple[str, dict[str, torch.Tensor]]]:
    for index, (prefix, tensors) in enumerate(_layers(shape, variant)):
        stored: dict[str, torch.Tensor] = {}
        for name, tensor in tensors.items():
            if isinstance(tensor, torch.Tensor):
                stored[prefix + name] = tensor
            else:
                parts = _STORED[variant.format](tensor)
                stored |= {f"{prefix}{name}.{key}": part.cpu() for key, part in parts.items()}
        yield f"part{index}.safetensors", stored


def _words(codes: torch.Tensor, dim: int, order: tuple[int, ...] = tuple(range(8))) -> torch.Tensor:
    """Eight codes along `dim` in an int32, order[i] in the i-th nibble from the lowest."""
    parts = codes.long().unfold(dim, 8, 8)[..., list(order)]
    packed = (parts << torch.arange(0, 32, 4, device=codes.device)).sum(-1)
    return torch.where(packed >= 2**31, packed - 2**32, packed).int().contiguous()


def _compressed_tensors(weight: Any) -> dict[str, torch.Tensor]:
    parts = {
        "weight_packed": _words(weight.codes, 1),
        "weight_scale": weight.scales.t().contiguous(),
        "weight_shape": torch.tensor(weight.codes.shape),
    }
    if weight.zeros is not None:
        parts["weight_zero_point"] = _words(weight.zeros.t(), 0)
    return parts


def _gptq(weight: Any) -> dict[str, torch.Tensor]:
    groups, n = weight.scales.shape
    return {
        "qweight": _words(weight.codes.t(), 0),
        "qzeros": torch.full((groups, n // 8), 0x77777777, dtype=torch.int32),  # 8, less one
        "scales": weight.scales,
        "g_idx": weight.group_of_channel().int(),
    }


def _awq(weight: Any) -> dict[str, torch.Tensor]:
    return {
        "qweight": _words(weight.codes.t(), 1, AWQ_ORDER),
        "qzeros": _words(weight.zeros, 1, AWQ_ORDER),
        "scales": weight.scales,
    }


_STORED = {"compressed-tensors": _compressed_tensors, "gptq": _gptq, "awq": _awq}


def _quantization_config(variant: Variant) -> dict[str, Any]:
    if variant.format == "gptq":
        return {
            "quant_method": "gptq", "bits": 4, "group_size": GROUP_SIZE,
            "desc_act": variant.act_order, "sym": True, "checkpoint_format": "gptq",
        }  # fmt: skip
    if variant.format == "awq":
        return {
            "quant_method": "awq", "bits": 4, "group_size": GROUP_SIZE, "zero_point": True,
            "version": "gemm",
        }  # fmt: skip
    weights = {
        "num_bits": 4, "type": "int", "symmetric": not variant.zeros, "group_size": GROUP_SIZE,
        "strategy": "group", "dynamic": False, "observer": "minmax", "actorder": None,
    }  # fmt: skip
    group = {
        "targets": ["Linear"],
        "weights": weights,
        "input_activations": None,
        "output_activations": None,
    }
    return {
        "quant_method": "compressed-tensors", "format": "pack-quantized",
        "quantization_status": "compressed", "ignore": ["lm_head", "re:.*mlp.gate$"],
        "kv_cache_scheme": None,
        "config_groups": {"group_0": group},
    }  # fmt: skip


def llm_config(shape: Shape, variant: Variant) -> dict[str, Any]:
    config = _llama(shape, variant)
    if not shape.experts:
        return config
    return {
        **config, "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe",
        "num_experts": shape.experts, "num_experts_per_tok": shape.active,
        "moe_intermediate_size": shape.intermediate, "norm_topk_prob": True,
        "decoder_sparse_step": 1, "mlp_only_layers": [], "use_sliding_window": False,
    }  # fmt: skip


def _llama(shape: Shape, variant: Variant) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama",
        "hidden_size": shape.hidden, "intermediate_size": shape.intermediate,
        "num_hidden_layers": shape.layers, "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads, "head_dim": shape.head_dim,
        "vocab_size": shape.vocabulary, "max_position_embeddings": 8192, "rms_norm_eps": 1e-5,
        "hidden_act": "silu", "rope_theta": 500000.0, "tie_word_embeddings": False,
        "bos_token_id": 1, "eos_token_id": 2, "torch_dtype": variant.dtype,
        "attention_bias": False,
    }  # fmt: skip


def _save_with_transformers(folder: Path, shape: Shape, variant: Variant) -> None:
    """As xgemm's own directory, or as a float one of the dequantized weights."""
    import transformers

    import xgemm
    from xgemm.nn import QuantExperts, QuantLinear

    dtype = DTYPES[variant.dtype]
    config = llm_config(shape, variant)
    kind = config.pop("architectures")[0].removesuffix("ForCausalLM")
    with torch.device("meta"):
        made = getattr(transformers, f"{kind}Config")(**config)
        model = getattr(transformers, f"{kind}ForCausalLM")(made).to(dtype)
    state: dict[str, torch.Tensor] = {}
    for prefix, tensors in _layers(shape, variant):
        for name, tensor in _experts_joined(tensors).items():
            if isinstance(tensor, torch.Tensor):
                state[prefix + name] = tensor
            elif isinstance(tensor, dict):
                module = model.get_submodule(prefix + name)
                packed = {
                    key: [xgemm.pack(q).to("cpu") for q in own] for key, own in tensor.items()
                }
                model.set_submodule(prefix + name, QuantExperts.from_packed(module, packed))
            elif variant.format == "dense":
                state[f"{prefix}{name}.weight"] = tensor.dequantize(torch.float32).to(dtype).cpu()
            else:
                layer = QuantLinear.from_packed(xgemm.pack(tensor).to("cpu"), None, dtype=dtype)
                model.set_submodule(prefix + name, layer)
    model.load_state_dict(state, strict=False, assign=True)
    if variant.format == "dense":
        model.save_pretrained(folder)
    else:
        xgemm.save(model, folder)


def _experts_joined(tensors: dict[str, Any]) -> dict[str, Any]:
    """The same with a layer's experts as transformers has them, gate above up, in one entry."""
    joined = {name: one for name, one in tensors.items() if ".experts." not in name}
    experts = {name: one for name, one in tensors.items() if ".experts." in name}
    for name, gate in experts.items():
        parent, _, leaf = name.rpartition(".")
        if leaf != "gate_proj":
            continue
        up, down = experts[f"{parent}.up_proj"], experts[f"{parent}.down_proj"]
        zeros = None if gate.zeros is None else torch.cat((gate.zeros, up.zeros), dim=1)
        both = replace(
            gate, codes=torch.cat((gate.codes, up.codes)),
            scales=torch.cat((gate.scales, up.scales), dim=1), zeros=zeros,
        )  # fmt: skip
        own = joined.setdefault(parent.rpartition(".")[0], {"gate_up_proj": [], "down_proj": []})
        own["gate_up_proj"].append(both)
        own["down_proj"].append(down)
    return joined


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--shape", choices=SHAPES, default="tiny")
    parser.add_argument("--layers", type=int, help="fewer than the shape's")
    parser.add_argument(
        "--format", choices=(*FORMATS, *MXFP4_FORMATS), default="compressed-tensors"
    )
    parser.add_argument("--zeros", action="store_true", help="zero points; awq has them always")
    parser.add_argument("--dtype", choices=DTYPES, default="bfloat16")
    options = parser.parse_args()
    shape = SHAPES[options.shape]
    shape = replace(shape, layers=options.layers or shape.layers)
    zeros = options.zeros or options.format == "awq"
    make_model(options.folder, shape, Variant(options.format, zeros, dtype=options.dtype))


if __name__ == "__main__":
    main()
