"""The kinds of adapter that peft has, over packed layers and the float layers they stand for."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from architecture import tokens
from architectures import ARCHITECTURES

import xgemm
from xgemm.nn import QuantLinear

pytest.importorskip("accelerate")
pytest.importorskip("transformers")
peft = pytest.importorskip("peft")
pytestmark = pytest.mark.usefixtures("one_thread")

LAYERS = ["q_proj", "v_proj", "down_proj"]
# kind of adapter -> its configuration's class in peft, and values for it
CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "LoRA": ("LoraConfig", {"target_modules": LAYERS, "init_lora_weights": False}),
    "LoRA all-linear": (
        "LoraConfig",
        {"target_modules": "all-linear", "init_lora_weights": False},
    ),
    "DoRA": (
        "LoraConfig",
        {"target_modules": LAYERS, "use_dora": True, "init_lora_weights": False},
    ),
    "AdaLoRA": (
        "AdaLoraConfig",
        {"target_modules": LAYERS, "total_step": 10, "init_lora_weights": False},
    ),
    "IA3": ("IA3Config", {"target_modules": LAYERS, "feedforward_modules": ["down_proj"]}),
    "LoHa": ("LoHaConfig", {"target_modules": LAYERS, "init_weights": False}),
    "LoKr": ("LoKrConfig", {"target_modules": LAYERS, "init_weights": False}),
    "OFT": ("OFTConfig", {"target_modules": LAYERS, "oft_block_size": 32, "r": 0}),
    "BOFT": ("BOFTConfig", {"target_modules": LAYERS, "boft_block_size": 4}),
    "VeRA": ("VeraConfig", {"target_modules": ["q_proj", "o_proj"]}),
    "RandLora": ("RandLoraConfig", {"target_modules": ["q_proj", "o_proj"], "r": 4}),
    "HRA": ("HRAConfig", {"target_modules": LAYERS}),
    "HiRA": ("HiraConfig", {"target_modules": LAYERS}),
    "DeLoRA": ("DeloraConfig", {"target_modules": LAYERS}),
    "OSF": ("OSFConfig", {"target_modules": LAYERS}),
    "FourierFT": ("FourierFTConfig", {"target_modules": LAYERS, "n_frequency": 10}),
    "VBLoRA": (
        "VBLoRAConfig",
        {"target_modules": ["q_proj"], "vector_length": 32, "num_vectors": 16, "topk": 2},
    ),
    "MiSS": ("MissConfig", {"target_modules": ["q_proj"]}),
    "RoAd": ("RoadConfig", {"target_modules": ["q_proj"], "group_size": 32}),
    "SHiRA": ("ShiraConfig", {"target_modules": ["q_proj"]}),
    "C3A": ("C3AConfig", {"target_modules": ["q_proj"], "block_size": 32}),
    "LNTuning": ("LNTuningConfig", {"target_modules": ["input_layernorm"]}),
    "TrainableTokens": ("TrainableTokensConfig", {"token_indices": [3, 4]}),
    "PrefixTuning": (
        "PrefixTuningConfig",
        {"task_type": "CAUSAL_LM", "num_virtual_tokens": 3},
    ),
    "PromptTuning": (
        "PromptTuningConfig",
        {"task_type": "CAUSAL_LM", "num_virtual_tokens": 3},
    ),
}


@pytest.fixture(scope="module")
def pair() -> tuple[Any, Any]:
    """A quantized model, and the float model that it stands for."""
    llama = next(entry for entry in ARCHITECTURES if entry.name == "Llama")
    quantized = xgemm.quantize(llama.make_tiny(), group_size=32)
    reference = llama.make_tiny()
    with torch.no_grad():
        for name, module in quantized.named_modules():
            if isinstance(module, QuantLinear):
                reference.get_submodule(name).weight.copy_(module.dequantize(torch.float32))
    return quantized, reference


def with_adapter(model: Any, kind: str) -> Any:
    name, values = CONFIGS[kind]
    torch.manual_seed(0)
    return peft.get_peft_model(copy.deepcopy(model), getattr(peft, name)(**values)).train()


@pytest.mark.parametrize("kind", CONFIGS)
def test_an_adapter_trains_as_over_float_layers(pair: tuple[Any, Any], kind: str) -> None:
    """The same loss and the same gradient in every parameter of the adapter."""
    got, expected = (with_adapter(model, kind) for model in pair)
    for model in (got, expected):
        model(input_ids=tokens(), labels=tokens(), use_cache=False).loss.backward()
    mine = {name: p for name, p in got.named_parameters() if p.requires_grad}
    theirs = {name: p for name, p in expected.named_parameters() if p.requires_grad}
    assert mine.keys() == theirs.keys()
    assert mine
    for name, parameter in theirs.items():
        scale = float(parameter.grad.norm()) if parameter.grad is not None else 0.0
        gradient = mine[name].grad
        assert (gradient is None) == (parameter.grad is None), name
        if gradient is not None:
            assert float((gradient - parameter.grad).norm()) <= 1e-4 * scale + 1e-7, name


@pytest.mark.parametrize("how", ["pissa", "olora"])
def test_what_rewrites_the_base_weight_is_refused(pair: tuple[Any, Any], how: str) -> None:
    """These take the adapter's start out of the weight: a packed one cannot give it."""
    config = peft.LoraConfig(target_modules=LAYERS, init_lora_weights=how)
    with pytest.raises(RuntimeError, match=r"read-only.*4-bit"):
        peft.get_peft_model(copy.deepcopy(pair[0]), config)
