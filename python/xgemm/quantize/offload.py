"""Layers with accelerate's hooks: their weights read wherever they lie, and the hooks kept.

`dispatch_model`, `cpu_offload` and from_pretrained(device_map=...) give modules an `_hf_hook`,
which replaces their forward. An offloaded layer's weights are on the meta device; the hook brings
them from a map of tensors, in memory or on disk, before each forward.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

__all__ = ["has_foreign_forward", "hook_of", "is_offloaded", "move_hook", "weights_in_place"]


def hook_of(module: nn.Module) -> Any:
    """accelerate's hook of the module, or None."""
    return getattr(module, "_hf_hook", None)


def has_foreign_forward(module: nn.Module) -> bool:
    """Whether the instance has a forward of its own that is not accelerate's around the class's."""
    if "forward" not in module.__dict__:
        return False
    old = module.__dict__.get("_old_forward")
    plain = getattr(old, "__func__", None) is type(module).forward
    return hook_of(module) is None or not plain


@contextlib.contextmanager
def weights_in_place(module: nn.Module) -> Iterator[None]:
    """Within, the layer's parameters have their data, on the device that it runs on."""
    if not is_offloaded(module):
        yield
        return
    hook = hook_of(module)
    if not getattr(hook, "offload", False):
        raise ValueError(
            "its weight has no data (it is on the meta device) and no hook of accelerate's that "
            "brings it: quantize the model before it is offloaded, or while it is loaded: "
            "from_pretrained(..., quantization_config=xgemm.hf.XgemmConfig(...))"
        )
    hook.pre_forward(module)
    try:
        yield
    finally:
        hook.post_forward(module, ())


def move_hook(old: nn.Module, new: nn.Module) -> None:
    """Give `new`, which takes the place of `old`, its hook; where old is offloaded, new will be."""
    hook = hook_of(old)
    if hook is None:
        return
    from accelerate.hooks import add_hook_to_module

    if getattr(hook, "offload", False):
        tensors = _offloaded_tensors(new, hook)
        hook = copy.copy(hook)
        hook.tied_params_names = set()
        hook.weights_map = _stored(hook.weights_map, list(old._parameters), tensors)
    add_hook_to_module(new, hook)


def is_offloaded(module: nn.Module) -> bool:
    """Whether a parameter of the layer has no data here."""
    return any(p is not None and p.is_meta for p in module._parameters.values())


def _offloaded_tensors(module: nn.Module, hook: Any) -> dict[str, torch.Tensor]:
    from accelerate.utils import named_module_tensors

    named = named_module_tensors(
        module, include_buffers=hook.offload_buffers, recurse=hook.place_submodules
    )
    return {name: tensor.detach().to("cpu") for name, tensor in named}


def _stored(weights_map: Any, gone: list[str], tensors: dict[str, torch.Tensor]) -> Any:
    """The map of the new layer's tensors: in the place of those of the old one, where they lay."""
    dataset: Any = getattr(weights_map, "dataset", None)
    prefix = getattr(weights_map, "prefix", "")
    names = {f"{prefix}{name}": tensor for name, tensor in tensors.items()}
    gone = [f"{prefix}{name}" for name in gone]
    if isinstance(dataset, dict):
        for name in gone:
            dataset.pop(name, None)
        dataset.update(names)
        return weights_map
    if not all(hasattr(dataset, name) for name in ("state_dict", "index", "save_folder")):
        return dict(tensors)
    from accelerate.utils import offload_weight

    on_disk = dataset.save_folder is not None and any(name in dataset.index for name in gone)
    for name in gone:
        dataset.state_dict.pop(name, None)
        if isinstance(dataset.index, dict):
            dataset.index.pop(name, None)
    for name, tensor in names.items():
        if on_disk:
            offload_weight(tensor, name, dataset.save_folder, index=dataset.index)
        else:
            dataset.state_dict[name] = tensor
    dataset.all_keys = list(dict.fromkeys([*dataset.state_dict, *dataset.index]))
    return weights_map
