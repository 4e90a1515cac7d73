"""A module filled with a checkpoint's tensors, checked as a whole before anything is changed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from xgemm.formats.manifest import Manifest, ModuleSpec, dtype_name
from xgemm.formats.packed import check_permutation
from xgemm.nn import QuantLinear

FORMAT_BUFFER = "packed_format"  # of a QuantLinear; files that were saved before it had it lack it


@dataclass(frozen=True)
class _Target:
    """Where a tensor of the checkpoint goes."""

    shape: tuple[int, ...]
    dtype: torch.dtype | None  # None: the checkpoint's
    exact: bool  # the checkpoint's dtype must be this one: packed bytes and permutations
    device: torch.device
    parameter: bool
    requires_grad: bool


class FillPlan:
    """Which layers become QuantLinear and where each tensor goes; refuses a model that differs."""

    def __init__(
        self, model: nn.Module, modules: dict[str, ModuleSpec], manifest: Manifest
    ) -> None:
        self.model = model
        self.manifest = manifest
        self.replacements = _plan_replacements(model, modules)
        self.targets = self._plan_targets()

    def fill(
        self,
        path: Path,
        tensors: dict[str, torch.Tensor],
        device: torch.device | str | int | None,
        dtype: torch.dtype | None,
    ) -> None:
        """Put `tensors`, those of the manifest, into the model."""
        self._check(path, tensors)
        state: dict[str, Any] = {}
        for name, tensor in tensors.items():
            state[name] = _placed(tensor, self.targets[name], device, dtype)
        for name, source in self.manifest.tied.items():
            state[name] = state[source]  # the same Parameter object: it stays one
        for name, layer in self.replacements.items():
            self.model.set_submodule(name, layer)
            if f"{name}.{FORMAT_BUFFER}" not in state:
                device = state[f"{name}.qweight"].device
                state[f"{name}.{FORMAT_BUFFER}"] = layer.format.to_tensor(device)
        self.model.load_state_dict(state, assign=True)
        if device is not None:
            self.model.to(device)  # buffers that no checkpoint holds

    def _plan_targets(self) -> dict[str, _Target]:
        """A target for each tensor that the model will have; the manifest must name just those."""
        current = _tensors(self.model)
        targets = {}
        for name, value in current.items():
            if name.rpartition(".")[0] not in self.replacements:
                targets[name] = _target(value, value.device)
        for owner, layer in self.replacements.items():
            old = current.get(f"{owner}.weight", current.get(f"{owner}.qweight"))
            for key, value in _tensors(layer).items():
                name = f"{owner}.{key}"
                device = value.device if old is None else old.device
                if key == "bias":
                    targets[name] = _target(current.get(name, value), device)
                else:
                    targets[name] = _target(value, device, exact=True)
        given = self.manifest.tensors.keys() | self.manifest.tied.keys()
        for owner in self.replacements:
            if f"{owner}.{FORMAT_BUFFER}" not in given:
                targets.pop(f"{owner}.{FORMAT_BUFFER}", None)
        if missing := sorted(targets.keys() - given):
            raise ValueError(f"load: the checkpoint lacks {_some(missing)}")
        if unexpected := sorted(given - targets.keys()):
            raise ValueError(f"load: the model has no {_some(unexpected)}")
        return targets

    def _check(self, path: Path, tensors: dict[str, torch.Tensor]) -> None:
        for name, target in self.targets.items():
            tensor = tensors[self.manifest.tied.get(name, name)]
            if tuple(tensor.shape) != target.shape:
                raise ValueError(
                    f"load: {path}: {name} must be {list(target.shape)}, got {list(tensor.shape)}"
                )
            if target.exact and tensor.dtype != target.dtype:
                raise ValueError(
                    f"load: {path}: {name} must be {dtype_name(target.dtype or torch.uint8)}, "
                    f"got {dtype_name(tensor.dtype)}"
                )
        for name, layer in self.replacements.items():
            written = f"{name}.{FORMAT_BUFFER}"
            if written in self.targets:
                given = tensors[self.manifest.tied.get(written, written)]
                layer.format.check(f"load: {path}: {name}", given)
            if layer.perm is not None:
                full = f"{name}.perm"
                perm = tensors[self.manifest.tied.get(full, full)]
                check_permutation(f"load: {path}: {full}", perm, layer.in_features)


def _plan_replacements(model: nn.Module, modules: dict[str, ModuleSpec]) -> dict[str, QuantLinear]:
    """The QuantLinear, without data, for each module that the checkpoint names."""
    replacements: dict[str, QuantLinear] = {}
    made: dict[nn.Module, QuantLinear] = {}  # a layer that has two names is one layer
    for name, spec in modules.items():
        try:
            old = model.get_submodule(name)
        except AttributeError:
            raise ValueError(f"load: the model has no module {name!r}") from None
        if not isinstance(old, nn.Linear):
            raise ValueError(
                f"load: {name} must be an nn.Linear or a QuantLinear, got {type(old).__name__}"
            )
        if old not in made:
            made[old] = _replacement(name, old, spec)
        replacements[name] = made[old]
    return replacements


def _replacement(name: str, old: nn.Linear, spec: ModuleSpec) -> QuantLinear:
    if (old.out_features, old.in_features) != (spec.n, spec.k):
        raise ValueError(
            f"load: {name} is [{old.out_features}, {old.in_features}] in the model, "
            f"[{spec.n}, {spec.k}] in the checkpoint"
        )
    if (old.bias is not None) != spec.bias:
        has = "has a" if spec.bias else "has no"
        raise ValueError(f"load: {name} {has} bias in the checkpoint, unlike in the model")
    return QuantLinear(
        spec.k,
        spec.n,
        bias=spec.bias,
        group_size=spec.group_size,
        bf16_scales=spec.bf16_scales,
        has_zeros=spec.zeros,
        act_order=spec.act_order,
        activation=spec.activation,
        device="meta",
        dtype=old.compute_dtype if isinstance(old, QuantLinear) else old.weight.dtype,
    ).train(old.training)


def _tensors(module: nn.Module) -> dict[str, torch.Tensor]:
    state = module.state_dict(keep_vars=True)
    return {name: value for name, value in state.items() if isinstance(value, torch.Tensor)}


def _target(value: torch.Tensor, device: torch.device, exact: bool = False) -> _Target:
    return _Target(
        shape=tuple(value.shape),
        dtype=value.dtype if exact or not value.is_meta else None,
        exact=exact,
        device=torch.device("cpu") if device.type == "meta" else device,
        parameter=isinstance(value, nn.Parameter),
        requires_grad=value.requires_grad,
    )


def _placed(
    tensor: torch.Tensor,
    target: _Target,
    device: torch.device | str | int | None,
    dtype: torch.dtype | None,
) -> torch.Tensor:
    wanted = target.dtype or tensor.dtype
    if dtype is not None and tensor.is_floating_point() and not target.exact:
        wanted = dtype
    placed = tensor.to(device=target.device if device is None else device, dtype=wanted)
    return nn.Parameter(placed, requires_grad=target.requires_grad) if target.parameter else placed


def _some(names: list[str]) -> str:
    shown = ", ".join(names[:5])
    return shown if len(names) <= 5 else f"{shown} and {len(names) - 5} more"


def make_transformers_model(path: Path, config: dict[str, Any]) -> nn.Module:
    """The model that a transformers config.json describes, its parameters on the meta device.

    The class is transformers' own: code that the directory may hold is never run.
    """
    architectures = config.get("architectures")
    if not isinstance(config.get("model_type"), str) or not isinstance(architectures, list):
        raise ValueError(
            f"load: {path} describes no transformers model: pass the module to fill as model="
        )
    try:
        import accelerate
        import transformers
    except ImportError:
        raise ImportError(
            "load needs transformers and accelerate to make the model: pip install xgemm[hf], "
            "or pass the module to fill as model="
        ) from None
    name = architectures[0] if architectures else None
    cls = getattr(transformers, name, None) if isinstance(name, str) else None
    if not (isinstance(cls, type) and issubclass(cls, transformers.PreTrainedModel)):
        raise ValueError(f"load: {path}: transformers has no architecture {name!r}")
    model_config = transformers.AutoConfig.from_pretrained(
        path, local_files_only=True, trust_remote_code=False
    )
    if hasattr(model_config, "quantization_config"):
        del model_config.quantization_config  # else transformers looks for its own quantizer
    # Buffers are made for real: some, such as rotary tables, are in no checkpoint.
    with accelerate.init_empty_weights(include_buffers=False):
        return cls(model_config)


def finish_transformers_model(model: nn.Module, path: Path) -> None:
    """What from_pretrained does after the weights: generation config, eval mode."""
    from transformers import GenerationConfig

    if (path / "generation_config.json").is_file():
        model.generation_config = GenerationConfig.from_pretrained(path, local_files_only=True)
    model.eval()
