"""Tiny random transformers models, for the tests of xgemm.hf."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn

from xgemm.nn import QuantExperts, QuantLinear

TOKENS = torch.arange(1, 21)[None]


def llama(tie: bool = False, seed: int = 0, **options: Any) -> transformers.LlamaForCausalLM:
    config = transformers.LlamaConfig(
        hidden_size=64,
        intermediate_size=160,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        vocab_size=128,
        max_position_embeddings=128,
        pad_token_id=0,
        tie_word_embeddings=tie,
        **options,
    )
    torch.manual_seed(seed)
    return transformers.LlamaForCausalLM(config).eval()


def gpt2(seed: int = 0) -> transformers.GPT2LMHeadModel:
    config = transformers.GPT2Config(
        n_embd=64, n_layer=2, n_head=2, vocab_size=128, n_positions=64, n_inner=96
    )
    torch.manual_seed(seed)
    return transformers.GPT2LMHeadModel(config).eval()


def mixtral(seed: int = 0) -> transformers.MixtralForCausalLM:
    config = transformers.MixtralConfig(
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        vocab_size=128,
        num_local_experts=4,
        num_experts_per_tok=2,
    )
    torch.manual_seed(seed)
    return transformers.MixtralForCausalLM(config).eval()


def gpt_oss(seed: int = 0) -> transformers.GptOssForCausalLM:
    """Experts that are transposed and have biases, not 0."""
    config = transformers.GptOssConfig(
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        vocab_size=128,
        num_local_experts=4,
        num_experts_per_tok=2,
        layer_types=["full_attention", "full_attention"],
        pad_token_id=0,
    )
    torch.manual_seed(seed)
    model = transformers.GptOssForCausalLM(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.normal_(std=0.1)
    return model


def clip(seed: int = 0) -> transformers.CLIPModel:
    tower = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2}
    tower["num_attention_heads"] = 2
    config = transformers.CLIPConfig(
        text_config={**tower, "vocab_size": 128, "bos_token_id": 1, "eos_token_id": 2},
        vision_config={**tower, "image_size": 32, "patch_size": 16},
        projection_dim=64,
    )
    torch.manual_seed(seed)
    return transformers.CLIPModel(config).eval()


def quantized_names(model: nn.Module) -> list[str]:
    packed = QuantLinear | QuantExperts
    return [name for name, module in model.named_modules() if isinstance(module, packed)]


def output(model: nn.Module, tokens: torch.Tensor = TOKENS) -> torch.Tensor:
    """Logits, or the last hidden state of a model without a head."""
    with torch.inference_mode():
        return model(tokens)[0]


def assert_same(one: nn.Module, other: nn.Module, tokens: torch.Tensor = TOKENS) -> None:
    assert torch.equal(output(one, tokens), output(other, tokens))


def float_directory(path: Path, model: Any, **options: Any) -> Path:
    """`model` as save_pretrained writes it."""
    model.save_pretrained(path, **options)
    return path
