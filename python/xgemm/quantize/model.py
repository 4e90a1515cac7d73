"""quantize: a model's linear layers and experts to 4 bits, in place."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Callable, Iterable, Mapping
from functools import reduce
from operator import add
from typing import Any, TypeVar

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from xgemm.attach import attach
from xgemm.formats.packed import check_group_size, pack
from xgemm.nn import QuantExperts, QuantLinear
from xgemm.nn.float_experts import expert_weights, experts_projections
from xgemm.nn.float_linear import float_weight
from xgemm.quantize.calibrate.method import make_method
from xgemm.quantize.calibrate.run import calibrate
from xgemm.quantize.calibrate.settings import Settings
from xgemm.quantize.errors import LayerError, experts_error, layer_error
from xgemm.quantize.fuse import fuse as join
from xgemm.quantize.offload import is_offloaded, move_hook, weights_in_place
from xgemm.quantize.plan import plan, refuse_nothing
from xgemm.quantize.report import QuantizationReport
from xgemm.quantize.weight import CALIBRATED_METHODS, check_method, choose_clip, quantize_weight

logger = logging.getLogger("xgemm")

Progress = Callable[[int, int, str], None]
ModelT = TypeVar("ModelT", bound=nn.Module)


def quantize(
    model: ModelT,
    method: str = "rtn",
    group_size: int = 128,
    symmetric: bool = True,
    skip: Iterable[str] = (),
    calibration: Any = None,
    progress: Progress | None = None,
    *,
    include: Iterable[str] = (),
    lm_head: bool = False,
    clip: str | None = None,
    scale_dtype: torch.dtype | None = None,
    fuse: bool = False,
    options: Mapping[str, Any] | None = None,
    device: torch.device | str | None = None,
    resume: str | os.PathLike[str] | None = None,
    seed: int = 0,
) -> ModelT:
    """Replace the model's linear layers and experts by packed ones, in place; returns the model.

    nn.Linear, transformers' Conv1D and those of its subclasses of nn.Linear that are plain linears
    become QuantLinear; experts held as 3-D parameters become QuantExperts. Left as they are:

    - layers that `skip` names: a full name such as "layers.0.mlp.down_proj", or a pattern with *, ?
      and [].
    - unless `include` names them, in the same way: output heads (`lm_head`, or what the model calls
      its output embeddings; `lm_head=True` takes these), classifiers' heads (`classifier`, `score`,
      ..., poolers), routers of experts, what peft adds or trains, and other subclasses of
      nn.Linear, whose forward may differ.
    - always: layers whose weight is a parameter elsewhere too (tied embeddings), is computed, is no
      float tensor or is read by the module around the layer; layers with hooks, which may look at
      the weight; what is 4-bit already.

    `model.xgemm_report` names each of them with the reason, every large parameter that stays in
    float, the share of the model that is in 4 bits, and the error of each layer; it is logged
    (logger "xgemm", level INFO). Below a share of 80 % a UserWarning says what stays. ValueError
    where no layer can be quantized.

    accelerate's hooks (device_map, cpu_offload, disk offload) move to the new layers; an offloaded
    weight is brought by its hook, and the packed one takes its place in memory or on disk. A
    transformers model is one that save_pretrained can save afterwards.

    method, group_size, symmetric, clip, scale_dtype: as in `quantize_weight`; or a method that
        needs calibration: "gptq", "awq".
    progress: called as progress(done, total, name) before each layer, and once at the end; with
        calibration after each layer, its error beside its name.
    fuse: join the layers that read one tensor (q, k, v; gate, up), as `xgemm.fuse` does.

    Layers are swapped when all weights are quantized: an error leaves the model as it was. A name
    in `skip` or `include` that matches no layer raises ValueError.

    For "gptq" and "awq" alone:

    calibration: batches, an iterable of what the model takes: dicts of tensors as a tokenizer gives
        them (positions that attention_mask masks do not count), tensors, or tuples.
    options: the method's own, such as {"act_order": "none"} (`xgemm.quantize.gptq.Gptq`,
        `xgemm.quantize.awq.Awq`).
    device: where blocks are quantized; None takes the model's. "cuda" with a model on the CPU
        brings one block at a time there.
    resume: a folder that keeps each finished block. A run that was interrupted goes on from there
        when it is called again with the same model, arguments and data.
    seed: of what a method draws at random.

    The model's forward is replayed block by block, so that memory holds one block and its inputs
    besides the model. A block's layers are swapped when the block is done: an error leaves that
    block as it was, and those before it in 4 bits.
    """
    calibrated = method in CALIBRATED_METHODS
    _check_arguments(model, method, group_size, calibration)
    if not calibrated and (options or device is not None or resume is not None):
        raise ValueError(
            f"quantize: options, device and resume are for methods with calibration "
            f"data ({', '.join(CALIBRATED_METHODS)}), not for {method!r}"
        )
    clip = choose_clip("quantize", method, clip)
    skip, include = _patterns(skip), _patterns(include)
    chosen = plan(model, skip, include, lm_head)
    report = QuantizationReport(
        method, group_size, symmetric, left=chosen.left, clip=clip, lm_head=lm_head,
        scale_dtype=None if scale_dtype is None else str(scale_dtype).removeprefix("torch."),
        skip=skip, include=include,
    )  # fmt: skip
    report.count(model, chosen.chosen)
    if not chosen.chosen:
        if report.share_quantized == 0:
            refuse_nothing(model, chosen.left)
        warnings.warn("quantize: no layer was left to quantize", UserWarning, stacklevel=2)
    if calibrated:
        settings = Settings(group_size, symmetric, clip, scale_dtype, seed)
        made = make_method(method, settings, options or {})
        report.options = made.options
        calibrate(model, chosen.chosen, made, calibration, device, resume, report, progress)
    else:
        recipe = {
            "group_size": group_size, "symmetric": symmetric, "clip": clip,
            "scale_dtype": scale_dtype,
        }  # fmt: skip
        _quantize_weights(model, chosen.chosen, method, recipe, report, progress)
    model.xgemm_report = report  # type: ignore[assignment]
    attach(model)
    logger.info("%s", report)
    report.warn(stacklevel=2)
    if fuse:
        join(model)
    return model


def _quantize_weights(
    model: nn.Module,
    layers: dict[nn.Module, list[str]],
    method: str,
    options: dict[str, Any],
    report: QuantizationReport,
    progress: Progress | None,
) -> None:
    """The layers (with their names) by a method that looks at weights alone."""
    replacements: list[tuple[nn.Module, nn.Module]] = []
    for done, (layer, where) in enumerate(layers.items()):
        if progress is not None:
            progress(done, len(layers), where[0])
        offloaded = is_offloaded(layer)
        try:
            # A caller's inference mode would make tensors that autograd refuses ever after.
            with torch.inference_mode(False), torch.no_grad(), weights_in_place(layer):
                new, lost = _packed(layer, method, options, report)
        except ValueError as error:
            raise ValueError(f"quantize: {where[0]}: {error}") from error
        report.quantized += where
        report.errors.update(dict.fromkeys(where, lost))
        report.experts += where if isinstance(new, QuantExperts) else []
        replacements.append((layer, new.to("cpu") if offloaded else new))
    for layer, new in replacements:
        move_hook(layer, new)
        for name in layers[layer]:
            model.set_submodule(name, new)
    if progress is not None:
        progress(len(layers), len(layers), "")


def _check_arguments(model: Any, method: str, group_size: int, calibration: Any) -> None:
    check_method("quantize", method, calibrated=True)
    check_group_size("quantize: group_size", group_size)
    if not isinstance(model, nn.Module):
        raise TypeError(f"quantize: model must be a torch.nn.Module, got {type(model).__name__}")
    if isinstance(model, QuantLinear | QuantExperts):
        kind = type(model).__name__
        raise ValueError(f"quantize: model is itself a {kind}: it is already quantized")
    if isinstance(model, nn.Linear):
        raise ValueError("quantize: model is itself a Linear: use QuantLinear.from_linear")
    if experts_projections(model) is not None:
        raise ValueError("quantize: model is itself experts: use QuantExperts.from_experts")
    for name, parameter in model.named_parameters():
        if is_lazy(parameter):
            raise ValueError(f"quantize: {name} has no shape yet: run the lazy model once first")
    if calibration is not None and method not in CALIBRATED_METHODS:
        raise ValueError(f"quantize: method {method!r} takes no calibration data")
    if calibration is None and method in CALIBRATED_METHODS:
        raise ValueError(
            f"quantize: method {method!r} needs calibration: batches of what the model takes"
        )


def _patterns(names: Iterable[str]) -> list[str]:
    return [names] if isinstance(names, str) else list(names)


def _packed(
    layer: Any, method: str, options: dict[str, Any], report: QuantizationReport
) -> tuple[nn.Module, LayerError]:
    """The packed layer for a float one whose weights are in place; adds its bytes to the report."""
    projections = experts_projections(layer)
    if projections is not None:
        experts = QuantExperts.from_experts(layer, method, **options)
        errors = []
        for name in projections:
            weights = layer._parameters[name]
            packed_experts = experts.to_packed(name)
            report.bytes_before += weights.numel() * weights.element_size()
            report.bytes_after += sum(packed.nbytes for packed in packed_experts)
            errors.append(experts_error(expert_weights(layer, weights), packed_experts))
        return experts, reduce(add, errors)
    weight = float_weight(layer)
    quantized = quantize_weight(weight, method, **options)
    packed = pack(quantized)
    report.bytes_before += weight.numel() * weight.element_size()
    report.bytes_after += packed.nbytes
    new = QuantLinear.from_packed(packed, layer.bias, dtype=weight.dtype)
    return new.train(layer.training), layer_error(weight, quantized)
