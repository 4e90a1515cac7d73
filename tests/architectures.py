"""The architectures that xgemm is tested with: a tiny random model of each, and a real one's size.

Every entry names transformers' classes and two sets of configuration values: `tiny`, which makes a
model that a test runs in a fraction of a second, and `real`, which makes a well-known model's
shapes on the meta device, where only sizes are looked at. Nothing is downloaded.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

VOCABULARY = 128
TOKENS = 12  # of a test's prompt

Inputs = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Architecture:
    """One of transformers' model classes, tiny and at a real size."""

    name: str
    model: str  # class in transformers
    config: str  # class in transformers
    tiny: dict[str, Any]
    real_name: str
    real: dict[str, Any]
    inputs: Callable[[], Inputs] = field(default=lambda: {"input_ids": tokens()})
    generates: bool = True

    def make_tiny(self, seed: int = 0) -> nn.Module:
        """The tiny model in float32 and eval mode, every parameter random."""
        torch.manual_seed(seed)
        model = self._make(self.tiny)
        _randomize(model)
        generation = getattr(model, "generation_config", None)
        if generation is not None:  # no token ends a text early: all lengths are as asked for
            generation.eos_token_id = None
            generation.pad_token_id = 0
        return model.eval()

    def make_real(self) -> nn.Module:
        """The model named `real_name`, its parameters on the meta device."""
        with torch.device("meta"):
            return self._make(self.real)

    def _make(self, values: dict[str, Any]) -> nn.Module:
        import transformers

        # A copy: transformers writes into the values that it is given.
        config = getattr(transformers, self.config)(**copy.deepcopy(values))
        return getattr(transformers, self.model)(config)


def _randomize(model: nn.Module) -> None:
    """Weights of the size that keeps activations near 1; biases and norms that a test can see.

    transformers starts biases at 0, norms at 1 and some experts at 0, which would hide a bias that
    is lost or an expert that is never asked.
    """
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim < 2:
                parameter.add_(torch.randn_like(parameter), alpha=0.1)
            elif not name.endswith("A_log"):  # a state space's decay: its start is its meaning
                parameter.normal_(std=parameter.shape[-1] ** -0.5)


def tokens(batch: int = 2, seed: int = 1) -> torch.Tensor:
    """int64 [batch, TOKENS], ids from 3: lower ones may mean padding or an end."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, VOCABULARY - 1, (batch, TOKENS), generator=generator)


def _noise(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(2))


def _sequence_to_sequence() -> Inputs:
    return {"input_ids": tokens(), "decoder_input_ids": tokens(seed=3)[:, :5]}


def _pixels() -> Inputs:
    return {"pixel_values": _noise(2, 3, 32, 32)}


def _pixels_and_text() -> Inputs:
    return {"input_ids": tokens(), "pixel_values": _noise(2, 3, 32, 32)}


def _audio() -> Inputs:
    return {"input_features": _noise(2, 16, 64), "decoder_input_ids": tokens(seed=3)[:, :5]}


def _image_in_text() -> Inputs:
    """A picture of 4 patches: its 4 places hold the id of <image>."""
    ids = tokens()
    ids[:, 2:6] = VOCABULARY - 1
    return {"input_ids": ids, "pixel_values": _noise(2, 3, 32, 32)}


def _decoder(
    hidden: int,
    intermediate: int,
    layers: int,
    heads: int,
    kv_heads: int,
    vocabulary: int = VOCABULARY,
    **others: Any,
) -> dict[str, Any]:
    """The values that configurations descended from Llama's share."""
    return {
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "vocab_size": vocabulary,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        **others,
    }


def _tiny(hidden: int = 64, intermediate: int = 160, **others: Any) -> dict[str, Any]:
    # 160 = 128 + 32: the last unit of K is short.
    values = _decoder(hidden, intermediate, 2, 4, 2)
    return {**values, "max_position_embeddings": 64, **others}


_VISION_L14 = {
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "patch_size": 14,
}
_TINY_VISION = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "image_size": 32,
    "patch_size": 16,
}

_DENSE = (
    Architecture(
        "Llama",
        "LlamaForCausalLM",
        "LlamaConfig",
        _tiny(hidden=96),
        "Llama-3.1-8B",
        _decoder(4096, 14336, 32, 32, 8, 128256),
    ),
    Architecture(
        "Qwen2",
        "Qwen2ForCausalLM",
        "Qwen2Config",
        _tiny(tie_word_embeddings=True),
        "Qwen2.5-7B",
        _decoder(3584, 18944, 28, 28, 4, 152064),
    ),
    Architecture(
        "Qwen3",
        "Qwen3ForCausalLM",
        "Qwen3Config",
        _tiny(head_dim=32),
        "Qwen3-8B",
        _decoder(4096, 12288, 36, 32, 8, 151936, head_dim=128),
    ),
    Architecture(
        "Mistral",
        "MistralForCausalLM",
        "MistralConfig",
        _tiny(sliding_window=8),
        "Mistral-7B-v0.3",
        _decoder(4096, 14336, 32, 32, 8, 32768),
    ),
    Architecture(
        "Gemma 2",
        "Gemma2ForCausalLM",
        "Gemma2Config",
        _tiny(head_dim=16, query_pre_attn_scalar=16, sliding_window=8),
        "Gemma-2-9B",
        _decoder(3584, 14336, 42, 16, 8, 256000, head_dim=256),
    ),
    Architecture(
        "Gemma 3",
        "Gemma3ForCausalLM",
        "Gemma3TextConfig",
        _tiny(head_dim=16, query_pre_attn_scalar=16, sliding_window=8),
        "Gemma-3-1B",
        _decoder(1152, 6912, 26, 4, 1, 262144, head_dim=256),
    ),
    Architecture(
        "Phi 3",
        "Phi3ForCausalLM",
        "Phi3Config",
        _tiny(),
        "Phi-3-mini",
        _decoder(3072, 8192, 32, 32, 32, 32064),
    ),
    Architecture(
        "OPT",
        "OPTForCausalLM",
        "OPTConfig",
        {
            "hidden_size": 64,
            "ffn_dim": 160,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "vocab_size": VOCABULARY,
            "word_embed_proj_dim": 32,
            "max_position_embeddings": 64,
        },
        "OPT-6.7B",
        {
            "hidden_size": 4096,
            "ffn_dim": 16384,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "word_embed_proj_dim": 4096,
        },
    ),
    Architecture(
        "GPT-2",
        "GPT2LMHeadModel",
        "GPT2Config",
        {"n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": VOCABULARY, "n_positions": 64},
        "GPT-2 XL",
        {"n_embd": 1600, "n_layer": 48, "n_head": 25},
    ),
    Architecture(
        "GPT-NeoX",
        "GPTNeoXForCausalLM",
        "GPTNeoXConfig",
        {
            "hidden_size": 64,
            "intermediate_size": 160,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "vocab_size": VOCABULARY,
            "max_position_embeddings": 64,
        },
        "GPT-NeoX-20B",
        {},
    ),
    Architecture(
        "Bloom",
        "BloomForCausalLM",
        "BloomConfig",
        {"hidden_size": 64, "n_layer": 2, "n_head": 4, "vocab_size": VOCABULARY},
        "BLOOM-7B1",
        {"hidden_size": 4096, "n_layer": 30, "n_head": 32, "vocab_size": 250880},
    ),
    Architecture(
        "Falcon",
        "FalconForCausalLM",
        "FalconConfig",
        {
            "hidden_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "vocab_size": VOCABULARY,
        },
        "Falcon-7B",
        {"hidden_size": 4544, "num_hidden_layers": 32, "num_attention_heads": 71},
    ),
    Architecture(
        "Mamba",
        "MambaForCausalLM",
        "MambaConfig",
        {"hidden_size": 64, "num_hidden_layers": 2, "state_size": 8, "vocab_size": VOCABULARY},
        "Mamba-2.8B",
        {"hidden_size": 2560, "num_hidden_layers": 64, "vocab_size": 50280},
    ),
    Architecture(
        "Mamba 2",
        "Mamba2ForCausalLM",
        "Mamba2Config",
        {
            "hidden_size": 64,
            "num_hidden_layers": 2,
            "num_heads": 8,
            "head_dim": 16,
            "state_size": 16,
            "n_groups": 2,
            "chunk_size": 8,
            "vocab_size": VOCABULARY,
        },
        "Mamba-Codestral-7B",
        {},
    ),
)

_ENCODERS = (
    Architecture(
        "T5",
        "T5ForConditionalGeneration",
        "T5Config",
        {
            "d_model": 64,
            "d_kv": 16,
            "d_ff": 160,
            "num_layers": 2,
            "num_heads": 4,
            "vocab_size": VOCABULARY,
            "decoder_start_token_id": 0,
            "feed_forward_proj": "gated-gelu",
        },
        "Flan-T5-XL",
        {
            "d_model": 2048,
            "d_ff": 5120,
            "num_layers": 24,
            "num_heads": 32,
            "feed_forward_proj": "gated-gelu",
        },
        _sequence_to_sequence,
    ),
    Architecture(
        "BERT",
        "BertForSequenceClassification",
        "BertConfig",
        {
            "hidden_size": 64,
            "intermediate_size": 160,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "vocab_size": VOCABULARY,
            "max_position_embeddings": 64,
            "num_labels": 3,
        },
        "bert-large-uncased",
        {
            "hidden_size": 1024,
            "intermediate_size": 4096,
            "num_hidden_layers": 24,
            "num_attention_heads": 16,
        },
        generates=False,
    ),
    Architecture(
        "Sentence encoder (BERT)",
        "BertModel",
        "BertConfig",
        {
            "hidden_size": 96,
            "intermediate_size": 160,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "vocab_size": VOCABULARY,
            "max_position_embeddings": 64,
        },
        "all-MiniLM-L6-v2",
        {
            "hidden_size": 384,
            "intermediate_size": 1536,
            "num_hidden_layers": 6,
            "num_attention_heads": 12,
        },
        generates=False,
    ),
    Architecture(
        "ViT",
        "ViTForImageClassification",
        "ViTConfig",
        {**_TINY_VISION, "num_labels": 5},
        "ViT-L/16",
        {**_VISION_L14, "patch_size": 16, "num_labels": 1000},
        _pixels,
        generates=False,
    ),
    Architecture(
        "CLIP",
        "CLIPModel",
        "CLIPConfig",
        {
            "projection_dim": 32,
            "text_config": {
                "hidden_size": 64,
                "intermediate_size": 128,
                "num_hidden_layers": 2,
                "num_attention_heads": 4,
                "vocab_size": VOCABULARY,
                "max_position_embeddings": 16,
                "eos_token_id": 2,
            },
            "vision_config": _TINY_VISION,
        },
        "CLIP ViT-L/14",
        {
            "projection_dim": 768,
            "text_config": {
                "hidden_size": 768,
                "intermediate_size": 3072,
                "num_attention_heads": 12,
            },
            "vision_config": _VISION_L14,
        },
        _pixels_and_text,
        generates=False,
    ),
    Architecture(
        "Whisper",
        "WhisperForConditionalGeneration",
        "WhisperConfig",
        {
            "d_model": 64,
            "encoder_layers": 2,
            "decoder_layers": 2,
            "encoder_attention_heads": 4,
            "decoder_attention_heads": 4,
            "encoder_ffn_dim": 160,
            "decoder_ffn_dim": 160,
            "vocab_size": VOCABULARY,
            "num_mel_bins": 16,
            "max_source_positions": 32,
            "max_target_positions": 64,
            "decoder_start_token_id": 1,
            "pad_token_id": 0,
            "bos_token_id": 1,
            "eos_token_id": 2,
        },
        "Whisper large-v3",
        {
            "d_model": 1280,
            "encoder_layers": 32,
            "decoder_layers": 32,
            "encoder_attention_heads": 20,
            "decoder_attention_heads": 20,
            "encoder_ffn_dim": 5120,
            "decoder_ffn_dim": 5120,
            "vocab_size": 51866,
            "num_mel_bins": 128,
        },
        _audio,
    ),
    Architecture(
        "LLaVA",
        "LlavaForConditionalGeneration",
        "LlavaConfig",
        {
            "text_config": {"model_type": "llama", **_tiny()},
            "vision_config": {"model_type": "clip_vision_model", **_TINY_VISION},
            "image_token_id": VOCABULARY - 1,
        },
        "LLaVA-1.5-7B",
        {
            "text_config": {"model_type": "llama", **_decoder(4096, 11008, 32, 32, 32, 32064)},
            "vision_config": {
                "model_type": "clip_vision_model",
                **_VISION_L14,
                "image_size": 336,
            },
        },
        _image_in_text,
    ),
)

_EXPERTS = (
    Architecture(
        "Mixtral",
        "MixtralForCausalLM",
        "MixtralConfig",
        _tiny(num_local_experts=4),
        "Mixtral-8x7B",
        _decoder(4096, 14336, 32, 32, 8, 32000),
    ),
    Architecture(
        "Qwen3-MoE",
        "Qwen3MoeForCausalLM",
        "Qwen3MoeConfig",
        _tiny(
            head_dim=16,
            moe_intermediate_size=96,
            num_experts=4,
            num_experts_per_tok=2,
            mlp_only_layers=[0],
        ),
        "Qwen3-30B-A3B",
        _decoder(2048, 6144, 48, 32, 4, 151936, head_dim=128, moe_intermediate_size=768),
    ),
    Architecture(
        "GPT-OSS",
        "GptOssForCausalLM",
        "GptOssConfig",
        _tiny(intermediate=96, head_dim=16, num_local_experts=4, num_experts_per_tok=2),
        "GPT-OSS-20B",
        _decoder(2880, 2880, 24, 64, 8, 201088, head_dim=64, num_local_experts=32),
    ),
    Architecture(
        "DeepSeek-V3",
        "DeepseekV3ForCausalLM",
        "DeepseekV3Config",
        _tiny(
            moe_intermediate_size=96,
            n_routed_experts=4,
            num_experts_per_tok=2,
            num_key_value_heads=4,
            n_group=2,
            topk_group=1,
            first_k_dense_replace=1,
            kv_lora_rank=32,
            q_lora_rank=32,
            qk_rope_head_dim=8,
            qk_nope_head_dim=16,
            v_head_dim=16,
        ),
        "DeepSeek-V3",
        {},
    ),
    Architecture(
        "Llama 4 (text)",
        "Llama4ForCausalLM",
        "Llama4TextConfig",
        _tiny(
            intermediate=96,
            intermediate_size_mlp=160,
            head_dim=16,
            num_local_experts=4,
            interleave_moe_layer_step=2,
        ),
        "Llama-4-Scout",
        _decoder(5120, 8192, 48, 40, 8, 202048, num_local_experts=16, interleave_moe_layer_step=1),
    ),
    Architecture(
        "Qwen3-Next",
        "Qwen3NextForCausalLM",
        "Qwen3NextConfig",
        _tiny(
            head_dim=16,
            num_experts=4,
            num_experts_per_tok=2,
            moe_intermediate_size=96,
            shared_expert_intermediate_size=96,
            linear_key_head_dim=16,
            linear_value_head_dim=16,
            linear_num_key_heads=2,
            linear_num_value_heads=4,
            layer_types=["linear_attention", "full_attention"],
        ),
        "Qwen3-Next-80B-A3B",
        {},
    ),
    Architecture(
        "Phi-MoE",
        "PhimoeForCausalLM",
        "PhimoeConfig",
        _tiny(num_local_experts=4, num_experts_per_tok=2),
        "Phi-3.5-MoE",
        _decoder(4096, 6400, 32, 32, 8, 32064, num_local_experts=16),
    ),
    Architecture(
        "Granite MoE",
        "GraniteMoeForCausalLM",
        "GraniteMoeConfig",
        _tiny(intermediate=96, num_local_experts=4, num_experts_per_tok=2),
        "Granite-3.1-3B-A800M",
        _decoder(1536, 512, 32, 24, 8, 49155, num_local_experts=40, tie_word_embeddings=True),
    ),
)

ARCHITECTURES = (*_DENSE, *_ENCODERS, *_EXPERTS)
