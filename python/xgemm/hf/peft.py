"""peft over packed layers: what it cannot do by itself.

peft's own layers wrap a QuantLinear as they wrap an nn.Linear, so adapters need nothing from here.
Merging does: it changes the base weight, which is 4 bits wide. peft's own merge is refused by the
weight; `merge_adapter` and `merge_and_unload` do it on request.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from xgemm.hf.attach import attach
from xgemm.hf.state import has_quantized_modules
from xgemm.nn import QuantLinear
from xgemm.quantize.requantize import requantize as requantize_weight

Progress = Callable[[int, int, str], None]

__all__ = ["merge_adapter", "merge_and_unload", "prepare_for_training", "unmerge_adapter"]


def prepare_for_training(
    model: Any,
    *,
    gradient_checkpointing: bool = True,
    gradient_checkpointing_kwargs: dict[str, Any] | None = None,
    fp32_norms: bool = False,
) -> Any:
    """Make a quantized transformers model ready for `peft.get_peft_model`; returns the model.

    Every parameter is frozen. peft's `prepare_model_for_kbit_training` works as well, but makes all
    of the 16-bit parameters fp32 and, for methods that it does not know, leaves gradient
    checkpointing off.

    gradient_checkpointing: keep the activations between decoder layers only, and compute the others
        again in the backward pass.
    gradient_checkpointing_kwargs: of torch.utils.checkpoint; by default {"use_reentrant": False}.
        With use_reentrant=True the embeddings' outputs are made to require a gradient.
    fp32_norms: cast the weights of norms to fp32. Their outputs may then be fp32: train under
        torch.autocast, where packed layers compute in 16 bits all the same.

    Raises ValueError where the model holds no packed layer or is wrapped by peft already.
    """
    if any(hasattr(module, "peft_config") for module in model.modules()):
        raise ValueError(
            "prepare_for_training: model has adapters, which it would freeze: call it before "
            "get_peft_model"
        )
    if not has_quantized_modules(model):
        raise ValueError(
            "prepare_for_training: model holds no packed layer: quantize it first (xgemm.quantize)"
        )
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    if fp32_norms:
        for module in model.modules():
            if "norm" in type(module).__name__.lower():
                for parameter in module.parameters(recurse=False):
                    parameter.data = parameter.data.float()
    if gradient_checkpointing:
        checkpointing = dict(gradient_checkpointing_kwargs or {"use_reentrant": False})
        if checkpointing.setdefault("use_reentrant", False):
            model.enable_input_require_grads()
        # transformers 5.2x renamed it.
        if hasattr(model, "activation_checkpointing_enable"):
            model.activation_checkpointing_enable(activation_checkpointing_kwargs=checkpointing)
        else:
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=checkpointing)
    return model


def merge_adapter(
    model: nn.Module,
    adapter_names: list[str] | None = None,
    *,
    requantize: bool,
    progress: Progress | None = None,
) -> None:
    """Merge adapters of a peft model into its packed layers; `unmerge_adapter` takes them out.

    The packed weight is dequantized, peft merges into the float weight, and the result takes the
    place of the packed layer, which is kept for unmerging.

    adapter_names: those to merge, with any that are merged already; None: the active ones.
    requantize: True quantizes the merged weight again in the layer's own format. The result is off
        from the unmerged model by as much as 4 bits cost: a small adapter may lose some of what it
        learned, so measure. False leaves a float nn.Linear in its place, exact and four times as
        large.
    progress: called as progress(done, total, name) before each layer, and once at the end.

    Layers that are not packed are merged as peft does it. If a layer fails, those before it are
    unmerged again.
    """
    known = list(getattr(model, "peft_config", {}))
    for adapter in adapter_names or ():
        if adapter not in known:
            raise ValueError(f"adapter_names: the model's adapters are {known}, got {adapter!r}")
    layers, merged = list(_tuner_layers(model)), list[Any]()
    try:
        for done, (name, layer) in enumerate(layers):
            if progress is not None:
                progress(done, len(layers), name)
            names = adapter_names
            if layer.merged and names is not None:
                names = list(dict.fromkeys([*layer.merged_adapters, *names]))
            merged.append(layer)
            holder = _holder(layer)
            if holder is None:
                _quietly(layer.merge, adapter_names=names)
            else:
                _merge_packed(name, layer, holder, names, requantize)
    except BaseException:
        for layer in merged:
            if layer.merged:
                layer.unmerge()
        raise
    if progress is not None:
        progress(len(layers), len(layers), "")


def unmerge_adapter(model: nn.Module) -> None:
    """Take merged adapters out again: packed layers get the very bytes that they had.

    The same as peft's `model.unmerge_adapter()`.
    """
    for _, layer in _tuner_layers(model):
        if layer.merged:
            layer.unmerge()


def merge_and_unload(
    model: Any,
    adapter_names: list[str] | None = None,
    *,
    requantize: bool,
    progress: Progress | None = None,
) -> Any:
    """Merge adapters as `merge_adapter` does, and return the base model without peft's layers."""
    merge_adapter(model, adapter_names, requantize=requantize, progress=progress)
    base = _quietly(model.merge_and_unload, adapter_names=adapter_names)
    return attach(base)  # which layers are packed may have changed


@dataclass
class _Unmerge:
    """What `layer.unmerge` is while its packed base is merged: it puts the base back."""

    layer: Any
    holder: Any  # the tuner layer whose base_layer the base is: `layer`, or one within it
    base: QuantLinear

    def __call__(self) -> None:
        device = self.holder.base_layer.weight.device
        self.holder.base_layer = self.base.to(device)
        self.layer.merged_adapters.clear()
        del self.layer.__dict__["unmerge"]


def _merge_packed(
    name: str, layer: Any, holder: Any, adapter_names: list[str] | None, requantize: bool
) -> None:
    if layer.merged:
        layer.unmerge()
    base: QuantLinear = holder.base_layer
    if base.qweight.is_meta:
        raise ValueError(f"merge_adapter: {name} has no data here (it is on the meta device)")
    if base.activation != "none":
        raise ValueError(
            f"merge_adapter: {name} applies {base.activation!r} before the adapter is added, "
            "so that no weight can stand for both"
        )
    wide = nn.Linear(base.in_features, base.out_features, bias=False, device="meta")
    wide.weight = nn.Parameter(base.dequantize(torch.float32), requires_grad=False)
    if base.bias is not None:
        wide.bias = nn.Parameter(base.bias.detach().float().clone(), requires_grad=False)
    holder.base_layer = wide
    try:
        layer.merge(adapter_names=adapter_names)
        merged = _packed_again(base, wide) if requantize and layer.merged else wide
    except BaseException:
        layer.merged_adapters.clear()
        holder.base_layer = base
        raise
    if not layer.merged:  # it has none of the adapters
        holder.base_layer = base
        return
    if merged is wide:
        wide.to(base.compute_dtype)
    holder.base_layer = merged.train(base.training)
    layer.__dict__["unmerge"] = _Unmerge(layer, holder, base)


def _packed_again(base: QuantLinear, wide: nn.Linear) -> QuantLinear:
    """`wide` in the format of `base`, which it was made from."""
    bias = None
    if base.bias is not None:
        bias = nn.Parameter(wide.bias.detach().to(base.bias.dtype), base.bias.requires_grad)
    packed = requantize_weight(base.to_packed(), wide.weight)
    return QuantLinear.from_packed(packed, bias, dtype=base.compute_dtype)


def _tuner_layers(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """peft's layers that wrap a layer of the model, outermost first and those alone."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    found: list[str] = []
    for name, module in list(model.named_modules()):
        inner = any(name.startswith(outer + ".") for outer in found)
        if isinstance(module, BaseTunerLayer) and not inner:
            found.append(name)
            yield name, module
    if not found:
        raise ValueError(f"model: expected one with peft's adapters, got {type(model).__name__}")


def _holder(layer: Any) -> Any:
    """The tuner layer right around a QuantLinear, or None where the base is something else."""
    while hasattr(getattr(layer, "base_layer", None), "base_layer"):
        layer = layer.base_layer
    return layer if isinstance(getattr(layer, "base_layer", None), QuantLinear) else None


def _quietly(merge: Any, **options: Any) -> Any:
    """peft's merge, without its warning about adapters that are merged already."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="All adapters are already merged")
        return merge(**options)
