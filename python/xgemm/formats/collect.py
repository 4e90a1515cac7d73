"""The tensors that save writes: each once, and none that a file cannot hold."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from xgemm.formats.offloaded import offloaded_tensor


def unwrapped(model: nn.Module) -> nn.Module:
    """The model within torch.compile's and data parallel wrappers: files hold its names."""
    while True:
        if isinstance(model, DataParallel | DistributedDataParallel):
            model = model.module
        elif type(model).__name__ == "OptimizedModule":  # importing its class takes a second
            model = model._orig_mod  # type: ignore[assignment]
        else:
            return model


def tensors_of(
    model: nn.Module, storable: Callable[[torch.dtype], bool]
) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """The model's tensors by name, each once, and the names of the same tensor elsewhere.

    storable: whether a file may hold tensors of a dtype.
    """
    tensors: dict[str, torch.Tensor] = {}
    tied: dict[str, str] = {}
    seen: dict[tuple[Any, ...], str] = {}
    refuse_shares("save", model)
    for name, value in model.state_dict().items():
        if not isinstance(value, torch.Tensor):
            raise TypeError(f"save: {name} must be a tensor, got {type(value).__name__}")
        if value.is_meta:
            offloaded = offloaded_tensor(model, name)
            if offloaded is None or offloaded.is_meta:
                raise ValueError(f"save: {name} has no data (it is on the meta device)")
            value = offloaded
        _check(name, value, storable)
        layout = (value.data_ptr(), value.dtype, value.shape, value.stride(), value.device)
        key = (*layout, value.is_conj(), value.is_neg())
        if value.numel() > 0 and key in seen:
            tied[name] = seen[key]
            continue
        seen[key] = name
        tensors[name] = value
    return tensors, tied


def refuse_shares(where: str, model: nn.Module) -> None:
    """Refuse a model of which this process has a share: it would be saved for the whole."""
    for name, module in model.named_modules():
        if hasattr(module, "split_over"):
            raise ValueError(
                f"{where}: {name} is split over {module.split_over} ranks: save the whole model, "
                "before parallelize"
            )


def to_cpu(tensor: torch.Tensor) -> torch.Tensor:
    """A contiguous copy: safetensors refuses tensors that share memory, and views of others do."""
    return tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)


def _check(name: str, value: torch.Tensor, storable: Callable[[torch.dtype], bool]) -> None:
    from torch.distributed.tensor import DTensor

    if isinstance(value, DTensor):
        raise TypeError(f"save: {name} is a DTensor: gather the model's full tensors first")
    if value.layout != torch.strided:
        raise TypeError(
            f"save: {name} must be dense, got a tensor of layout {value.layout}: to_dense() of it "
            "can be saved"
        )
    if value.is_nested or value.is_quantized or is_traceable_wrapper_subclass(value):
        kind = "nested" if value.is_nested else "quantized" if value.is_quantized else ""
        raise TypeError(
            f"save: {name} must be a plain tensor, got "
            + (f"a {kind} one" if kind else f"a {type(value).__name__}")
        )
    if not storable(value.dtype):
        raise TypeError(
            f"save: {name} is {str(value.dtype).removeprefix('torch.')}, which a safetensors file "
            "does not hold"
        )
    last = sum((n - 1) * stride for n, stride in zip(value.shape, value.stride(), strict=True))
    size = (value.storage_offset() + last + 1) * value.element_size()
    if value.numel() > 0 and value.untyped_storage().nbytes() < size:
        raise ValueError(f"save: {name} has no data (its storage was freed, as by FSDP)")
