"""fuse and unfuse: one product for the sibling layers of a quantized model that read one tensor."""

from __future__ import annotations

import logging
import re
from collections import Counter
from dataclasses import dataclass, field
from typing import TypeVar

from torch import nn

from xgemm.nn.fused import FusedLinear, JoinedWeight, fusing_class, reason_not_to_join
from xgemm.nn.fused_norm import norm_class, norm_eps, norm_form
from xgemm.nn.linear import QuantLinear
from xgemm.quantize.siblings import siblings

logger = logging.getLogger("xgemm")

Model = TypeVar("Model", bound=nn.Module)

# Modules of this name read an encoder's states by some of their layers and their own by others,
# although their class serves as self-attention too.
_CROSS_ATTENTION = re.compile(
    r"cross|enc_?dec|encoder_(decoder_)?att|dec(oder)?_enc", re.IGNORECASE
)


@dataclass
class FusionReport:
    """What `fuse` did to a model; kept as `model.xgemm_fusion`."""

    fused: dict[str, list[str]] = field(default_factory=dict)  # first layer -> all that it serves
    left: dict[str, str] = field(default_factory=dict)  # name of a layer or module -> the reason
    norms: list[str] = field(default_factory=list)  # RMSNorm modules with fewer launches

    @property
    def launches_saved(self) -> int:
        """How many products fewer a forward has."""
        return sum(len(names) - 1 for names in self.fused.values())

    def __str__(self) -> str:
        kinds = Counter(
            " + ".join(name.rpartition(".")[2] for name in names) for names in self.fused.values()
        )
        lines = [
            f"fused {sum(map(len, self.fused.values()))} layers into {len(self.fused)}: "
            f"{self.launches_saved} launches fewer a forward"
        ]
        lines += [f"  {count} x {kind}" for kind, count in kinds.items()]
        if self.norms:
            lines.append(f"  {len(self.norms)} x RMSNorm, of two launches each")
        lines += [f"  left {name}: {reason}" for name, reason in self.left.items()]
        return "\n".join(lines)


def fuse(model: Model) -> Model:
    """Let the QuantLinear layers that read one tensor share one product; returns the model.

    Those are q, k and v of an attention, gate and up of an MLP, and whatever other layers the
    forward of their common parent provably gives the same tensor: its source is read, so that no
    list of architectures is needed. The layers need the same in_features, group size and type of
    scales and zeros, and no activation; biases may be on some of them.

    The RMSNorm modules of a model with such layers take two launches each, as long as no gradient
    is wanted: a class that computes what torch.rms_norm does, by trial, is called by that.

    The model keeps its modules, their names, parameters and state dict: a fused model is saved and
    loaded as an unfused one. Results agree to rounding, as a wider product may sum in another
    order. Joined layers share a product in inference (`torch.no_grad`, `torch.inference_mode`); in
    grad mode, under autocast, and when they are called from outside of their parent's forward each
    multiplies by itself.

    What was fused, and what was left for which reason, is in `model.xgemm_fusion` and logged
    (logger "xgemm", level INFO). Layers that accelerate dispatched or offloaded are left.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"fuse: model must be a torch.nn.Module, got {type(model).__name__}")
    report = FusionReport()
    uses = Counter(
        module
        for _, module in model.named_modules(remove_duplicate=False)
        if isinstance(module, QuantLinear)
    )
    for name, parent in list(model.named_modules()):
        layers = {
            child: layer
            for child, module in parent._modules.items()
            if (layer := _layer_within(module)) is not None
        }
        if len(layers) > 1:
            _fuse_children(name, parent, layers, uses, report)
    if uses:
        _fuse_norms(model, report)
    model.xgemm_fusion = report  # type: ignore[assignment]
    logger.info("%s", report)
    return model


def unfuse(model: Model) -> Model:
    """Undo `fuse`: every layer has its own memory and multiplies by itself; returns the model."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"unfuse: model must be a torch.nn.Module, got {type(model).__name__}")
    for module in list(model.modules()):
        if isinstance(module, FusedLinear):
            _separate(module)
        base = type(module).__dict__.get("xgemm_base")
        if base is not None:
            module.__class__ = base
    if "xgemm_fusion" in model.__dict__:
        del model.xgemm_fusion
    return model


def _layer_within(module: nn.Module | None) -> QuantLinear | None:
    """The QuantLinear that `module` is, or that an adapter (LoRA) calls with its own input."""
    if isinstance(module, QuantLinear):
        return module
    base = getattr(module, "base_layer", None)
    return base if isinstance(base, QuantLinear) else None


def _fuse_children(
    name: str,
    parent: nn.Module,
    layers: dict[str, QuantLinear],
    uses: Counter[QuantLinear],
    report: FusionReport,
) -> None:
    base = type(parent).__dict__.get("xgemm_base", type(parent))
    try:
        found = siblings(base.forward, frozenset(layers))
    except ValueError as error:
        report.left[name] = str(error)
        return
    cross = _CROSS_ATTENTION.search(name.rpartition(".")[2]) is not None
    for one in found:
        names = one.surely if cross else one.names
        if len(names) < 2:
            continue
        full = [f"{name}.{child}".removeprefix(".") for child in names]
        members = [layers[child] for child in names]
        reason = _reason_to_leave(parent, members, uses) or reason_not_to_join(members)
        if reason is not None:
            report.left.update(dict.fromkeys(full, reason))
            continue
        _join(members)
        report.fused[full[0]] = full
        parent.__class__ = fusing_class(base)


def _fuse_norms(model: nn.Module, report: FusionReport) -> None:
    forms: dict[type, int | None] = {}  # what each class of the model computes
    for name, module in model.named_modules():
        eps, kind = norm_eps(module), type(module)
        if eps is None or "forward" in module.__dict__:  # replaced, by accelerate's hooks
            continue
        base = kind.__dict__.get("xgemm_base", kind)
        if base not in forms:
            forms[base] = norm_form(module)
        form = forms[base]
        if form is not None:
            module.__class__ = norm_class(base, form, eps[0])
            report.norms.append(name)


def _reason_to_leave(
    parent: nn.Module, members: list[QuantLinear], uses: Counter[QuantLinear]
) -> str | None:
    if "forward" in parent.__dict__:
        return "the forward of its parent was replaced (by accelerate's hooks, or by a patch)"
    for layer in members:
        if hasattr(layer, "_hf_hook"):
            return "accelerate dispatched or offloaded it: fuse before the model is dispatched"
        if "forward" in layer.__dict__:
            return "its forward was replaced"
        if type(layer) not in (QuantLinear, FusedLinear):
            return f"a subclass of QuantLinear ({type(layer).__name__})"
        if uses[layer] > 1:
            return "it is shared by several modules"
    return None


def _join(members: list[QuantLinear]) -> None:
    if all(isinstance(layer, FusedLinear) for layer in members):
        joined = {layer._joined for layer in members if isinstance(layer, FusedLinear)}
        weight = joined.pop()
        if not joined and weight.whole():
            weight.same_input = True
            return
    weight = JoinedWeight(len(members))
    for index, layer in enumerate(members):
        # In place: references to the layer (an adapter's, a hook's) stay what they are.
        layer.__class__ = FusedLinear
        layer.__dict__["_joined"] = weight
        layer.__dict__["_index"] = index
    for index, layer in enumerate(members):
        assert isinstance(layer, FusedLinear)
        weight.add(layer, index)


def _separate(layer: FusedLinear) -> None:
    layer.__class__ = QuantLinear  # type: ignore[assignment]
    del layer.__dict__["_joined"], layer.__dict__["_index"]
    layer.qweight.data = layer.qweight.data.clone()
    if layer.bias is not None:
        layer.bias.data = layer.bias.data.clone()
