"""A small Llama over packed layers, its float twin, and adapters on both."""

from __future__ import annotations

import copy
from typing import Any

import peft
import torch
import transformers
from torch import nn

from xgemm.hf import attach
from xgemm.nn import QuantExperts, QuantLinear

GROUP_SIZE = 32
LINEARS = 7  # of a decoder layer
LAYERS = 2


def lora(**options: Any) -> peft.LoraConfig:
    options = {"r": 4, "target_modules": "all-linear", "task_type": "CAUSAL_LM", **options}
    return peft.LoraConfig(**options)


def llama(dtype: torch.dtype = torch.float32) -> Any:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=96,
        max_position_embeddings=64,
        initializer_range=0.1,
        attention_bias=True,
        tie_word_embeddings=False,
    )
    return transformers.LlamaForCausalLM(config).to(dtype).eval()


def quantized(dtype: torch.dtype = torch.float32, symmetric: bool = False) -> Any:
    """The model with every linear but the head packed."""
    model = llama(dtype)
    for name, module in list(model.named_modules()):
        if type(module) is nn.Linear and name != "lm_head":
            layer = QuantLinear.from_linear(module, group_size=GROUP_SIZE, symmetric=symmetric)
            model.set_submodule(name, layer)
    return model


def float_twin(model: nn.Module) -> Any:
    """A copy of `model` with float layers that hold the dequantized weights."""
    twin = copy.deepcopy(model)
    for name, module in list(twin.named_modules()):
        if isinstance(module, QuantLinear):
            twin.set_submodule(name, module.to_linear())
    return twin


def adapted(model: Any, config: Any, seed: int = 1) -> Any:
    """`model` with an adapter whose parameters are random, in eval mode."""
    torch.manual_seed(seed)
    wrapped = peft.get_peft_model(model, copy.deepcopy(config))
    scatter(wrapped, "default", seed)
    return wrapped.eval()


def scatter(model: nn.Module, adapter: str, seed: int) -> None:
    """Make the parameters of an adapter random: a new one changes nothing."""
    torch.manual_seed(seed)
    for name, parameter in model.named_parameters():
        trained = parameter.requires_grad and adapter == "default"
        if trained or f".{adapter}." in name:
            parameter.data += torch.randn_like(parameter) * 0.02


def tokens(rows: int = 2, length: int = 12) -> torch.Tensor:
    return torch.randint(96, (rows, length), generator=torch.Generator().manual_seed(3))


def logits(model: Any, **options: Any) -> torch.Tensor:
    return model(input_ids=tokens(), **options).logits


def loss(model: Any) -> torch.Tensor:
    return model(input_ids=tokens(), labels=tokens()).loss


def gradients(model: Any) -> dict[str, torch.Tensor]:
    """Of the loss, by the parameters that are trained."""
    model.zero_grad()
    loss(model).backward()
    return {n: p.grad for n, p in model.named_parameters() if p.requires_grad}


def mixtral() -> Any:
    """A small mixture of experts; the experts are packed."""
    torch.manual_seed(0)
    config = transformers.MixtralConfig(
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=96,
        num_local_experts=4,
        max_position_embeddings=64,
    )
    model = transformers.MixtralForCausalLM(config).eval()
    for layer in model.model.layers:
        layer.mlp.experts = QuantExperts.from_experts(layer.mlp.experts, group_size=GROUP_SIZE)
    return attach(model)
