"""Which layers of a model are quantized, and why the others are not."""

from __future__ import annotations

import fnmatch
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from xgemm.nn import QuantExperts, QuantLinear
from xgemm.nn.float_experts import experts_projections
from xgemm.nn.float_linear import is_conv1d, is_plain
from xgemm.quantize.offload import has_foreign_forward
from xgemm.quantize.report import millions

# What transformers calls the layers that make classes, spans and boxes of hidden states.
CLASSIFIERS = frozenset((
    "score", "classifier", "qa_outputs", "classification_head", "multiple_choice_head", "pooler",
    "seq_relationship", "sequence_summary", "logits_proj", "enc_score_head", "class_predictor",
    "class_embed", "bbox_embed", "class_labels_classifier", "bbox_predictor",
))  # fmt: skip
# What models call the layer that sends tokens to experts, beside the experts.
ROUTERS = frozenset(("gate", "router", "moe_gate", "router_gate", "shared_expert_gate"))


@dataclass
class Plan:
    """What `quantize` will do to a model."""

    chosen: dict[nn.Module, list[str]] = field(default_factory=dict)  # layer -> its names
    left: dict[str, str] = field(default_factory=dict)  # name -> why


def plan(
    model: nn.Module,
    skip: Iterable[str] = (),
    include: Iterable[str] = (),
    lm_head: bool = False,
    tied: Mapping[str, str] | None = None,
) -> Plan:
    """The layers that `quantize` takes over, and why it leaves each other linear or expert layer.

    skip, include, lm_head: as in `quantize`.
    tied: {name of a parameter: that of another one}, for parameters that will be one only later.

    ValueError for a pattern of `skip` or `include` that matches no such layer, and for a full name
    in `include` of a layer that cannot be quantized.
    """
    skip, include = list(skip), list(include)
    names = _candidates(model)
    every_name = [name for where in names.values() for name in where]
    for argument, patterns in (("skip", skip), ("include", include)):
        for pattern in patterns:
            if not any(fnmatch.fnmatchcase(name, pattern) for name in every_name):
                raise ValueError(
                    f"quantize: {argument}: {pattern!r} matches no linear layer of the model"
                )
    uses = _parameter_uses(model, tied or {})
    heads = set() if lm_head else _output_heads(model)
    surroundings = _Surroundings(model)
    result = Plan()
    for layer, where in names.items():
        reason = _skipped(where, skip)
        if reason is None:
            reason = _impossible(layer, where, uses, surroundings)
            if reason is not None and any(name in include for name in where):
                raise ValueError(f"quantize: include: {where[0]} cannot be quantized: {reason}")
        if reason is None and not _matches(where, include):
            reason = _default_reason(layer, where, heads, surroundings)
        if reason is None:
            result.chosen[layer] = where
        else:
            result.left.update(dict.fromkeys(where, reason))
    return result


def _candidates(model: nn.Module) -> dict[nn.Module, list[str]]:
    """Each linear layer and module of experts, with every name it has."""
    names: dict[nn.Module, list[str]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        linear = isinstance(module, nn.Linear) or is_conv1d(module)
        if linear or isinstance(module, QuantExperts) or experts_projections(module) is not None:
            names.setdefault(module, []).append(name)
    return names


def _matches(names: list[str], patterns: list[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for name in names for pattern in patterns)


def _skipped(names: list[str], patterns: list[str]) -> str | None:
    for pattern in patterns:
        if _matches(names, [pattern]):
            return f"skip names it ({pattern!r})"
    return None


def _parameter_uses(model: nn.Module, tied: Mapping[str, str]) -> dict[int, list[str]]:
    """The names of each parameter, by its id; a module that has several names counts once."""
    uses: dict[int, list[str]] = {}
    for module_name, module in model.named_modules():
        for name, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
            full = f"{module_name}.{name}" if module_name else name
            uses.setdefault(id(parameter), []).append(full)
    for one, other in tied.items():
        for name, elsewhere in ((one, other), (other, one)):
            uses[id(model.get_parameter(name))].append(elsewhere)
    return uses


# ---- what cannot be quantized, whoever asks ----


def _hook_that_makes(layer: nn.Module, key: str) -> str | None:
    """The hook that sets the attribute `key`: of torch.nn.utils' old norms, and of its pruning."""
    for hook in layer._forward_pre_hooks.values():
        if key in (getattr(hook, "name", None), getattr(hook, "_tensor_name", None)):
            return type(hook).__name__
    return None


def _impossible(
    layer: nn.Module, names: list[str], uses: dict[int, list[str]], around: _Surroundings
) -> str | None:
    if isinstance(layer, QuantLinear | QuantExperts):
        return "already quantized"
    if hasattr(layer, "parametrizations"):
        return "its weight is computed by a parametrization"
    projections = experts_projections(layer)
    own = ["weight"] if projections is None else list(projections)
    for key in own:
        weight: Any = layer._parameters.get(key)
        if weight is None:
            maker = _hook_that_makes(layer, key)
            if maker is not None:
                return f"its weight is computed by {maker} before each call"
            return "its weight is no parameter of its own"
        if type(weight) is not nn.Parameter:
            return f"its weight is a {type(weight).__name__}"
        if not weight.is_floating_point() or weight.element_size() < 2:
            return f"its weight is {str(weight.dtype).removeprefix('torch.')}"
        elsewhere = [use for use in uses[id(weight)] if use != f"{names[0]}.{key}"]
        if elsewhere:
            return f"its weight is tied to {', '.join(dict.fromkeys(elsewhere))}"
    hooks = (
        *(layer._forward_hooks, layer._forward_pre_hooks),
        *(layer._backward_hooks, layer._backward_pre_hooks),
    )
    if any(hooks) or has_foreign_forward(layer):
        return "it has hooks"
    return next((why for name in names if (why := around.reads_weight(name)) is not None), None)


class _Surroundings:
    """The modules that a layer lies in, by its name."""

    def __init__(self, model: nn.Module) -> None:
        self.modules = dict(model.named_modules(remove_duplicate=False))
        peft = sys.modules.get("peft.tuners.tuners_utils")
        self._tuner: Any = getattr(peft, "BaseTunerLayer", ())
        self._trained: Any = getattr(
            sys.modules.get("peft.utils.other"), "AuxiliaryTrainingWrapper", ()
        )
        transformers = sys.modules.get("transformers.modeling_utils")
        self._transformers_model: Any = getattr(transformers, "PreTrainedModel", ())

    def parents(self, name: str) -> list[tuple[nn.Module, list[str]]]:
        """The modules around the layer, the outermost first, and the layer's name within each."""
        parts = name.split(".")
        return [
            (self.modules[".".join(parts[:depth])], parts[depth:]) for depth in range(len(parts))
        ]

    def reads_weight(self, name: str) -> str | None:
        """Why a module around the layer needs the float weight."""
        parents = self.parents(name)
        if name and isinstance(parents[-1][0], nn.MultiheadAttention):
            return "torch.nn.MultiheadAttention reads its weight by itself"
        for parent, inner in parents:
            adapted = isinstance(parent, self._tuner) and inner == ["base_layer"]
            if adapted and getattr(parent, "parameter_name", None) is not None:
                return "peft adapts its parameters (target_parameters)"
        return None

    def adapter(self, name: str) -> str | None:
        """Why a layer that peft added stays as it is."""
        for parent, inner in self.parents(name):
            if isinstance(parent, self._tuner) and inner[0] != "base_layer":
                return "an adapter's weight"
            if isinstance(parent, self._trained):
                return "peft trains a copy of it (modules_to_save)"
        return None

    def classifier(self, name: str) -> bool:
        within = [isinstance(parent, self._transformers_model) for parent, _ in self.parents(name)]
        parts = name.split(".")
        return parts[-1] in CLASSIFIERS or (any(within) and not CLASSIFIERS.isdisjoint(parts))

    def router(self, name: str) -> bool:
        for parent, inner in self.parents(name):
            if inner[0] not in ROUTERS:
                continue
            beside_experts = any(
                "expert" in child for child in parent._modules if child != inner[0]
            )
            if beside_experts or "moe" in type(parent).__name__.lower():
                return True
        return False


# ---- what is left unless `include` names it ----


def _default_reason(
    layer: nn.Module, names: list[str], heads: set[nn.Module], around: _Surroundings
) -> str | None:
    for name in names:
        adapter = around.adapter(name)
        if adapter is not None:
            return adapter
        if around.router(name):
            return "a router of experts"
    if experts_projections(layer) is None and not is_plain(layer):
        return f"a subclass of nn.Linear ({type(layer).__name__})"
    if layer in heads:
        return "the output head"
    if any(around.classifier(name) for name in names):
        return "a classifier's head"
    return None


def _output_heads(model: nn.Module) -> set[nn.Module]:
    heads = {m for name, m in model.named_modules() if name.rpartition(".")[2] == "lm_head"}
    for module in model.modules():
        get_output_embeddings = getattr(module, "get_output_embeddings", None)
        if not callable(get_output_embeddings):
            continue
        try:
            head = get_output_embeddings()
        except (AttributeError, NotImplementedError):  # a model without a head
            continue
        if isinstance(head, nn.Module):
            heads.add(head)
    return heads


def refuse_nothing(model: nn.Module, left: Mapping[str, str]) -> None:
    """ValueError that says why no layer of `model` was taken over."""
    why: dict[str, list[str]] = {}
    for name, reason in left.items():
        why.setdefault(reason, []).append(name)
    reasons = []
    for reason, names in why.items():
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        reasons.append(f"{names[0]}{more}: {reason}")
    count = millions(sum(p.numel() for p in model.parameters()))
    raise ValueError(
        f"quantize: no layer of {type(model).__name__} ({count} parameters) was "
        f"quantized: " + ("; ".join(reasons) or "it has no linear layer")
    )
