"""attach: a model that `xgemm.quantize` or `xgemm.load` has made becomes transformers' as well."""

from __future__ import annotations

from torch import nn
from transformers import PreTrainedModel

from xgemm.hf.config import XgemmConfig
from xgemm.hf.quantizer import XgemmHfQuantizer
from xgemm.hf.state import has_quantized_modules, recipe_of, unmark


def attach(model: nn.Module) -> nn.Module:
    """Make transformers see that `model` is quantized, and return it.

    After it save_pretrained writes a directory that from_pretrained loads, peft and Trainer see
    a quantized model, and `model.dequantize()` works. `xgemm.quantize` and `xgemm.load` call it.

    model: a PreTrainedModel, or a module with such models within (a SentenceTransformer): each of
        them is attached by itself. A model without quantized layers is left as it is, or made
        what it was if it was attached before.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"attach: model must be a torch.nn.Module, got {type(model).__name__}")
    report = getattr(model, "xgemm_report", None)
    for inner in _outermost(model):
        if has_quantized_modules(inner):
            known = getattr(inner.config, "quantization_config", None)
            recipe = known if isinstance(known, XgemmConfig) else recipe_of(report)
            XgemmHfQuantizer(recipe, pre_quantized=True).bind(inner)
        elif isinstance(getattr(inner, "hf_quantizer", None), XgemmHfQuantizer):
            unmark(inner)
    return model


def _outermost(module: nn.Module) -> list[PreTrainedModel]:
    if isinstance(module, PreTrainedModel):
        return [module]
    return [inner for child in module.children() for inner in _outermost(child)]
