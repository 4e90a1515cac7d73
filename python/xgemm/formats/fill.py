"""A module filled with a checkpoint's tensors, checked as a whole before anything is changed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

from xgemm.formats.guard import HINT, guard_names
from xgemm.formats.manifest import ExpertsSpec, Manifest, ModuleSpec, dtype_name
from xgemm.formats.packed import check_permutation
from xgemm.formats.packed_format import PackedFormat
from xgemm.nn import QuantExperts, QuantLinear
from xgemm.nn.float_linear import linear_shape

FORMAT_BUFFER = "packed_format"  # files that were saved before layers had it lack it


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
    """Which layers become packed ones and where each tensor goes; refuses a model that differs."""

    def __init__(
        self,
        model: nn.Module,
        specs: Mapping[str, ModuleSpec | ExpertsSpec],
        manifest: Manifest,
        path: Path,
    ) -> None:
        self.path = path
        self._where = f"load: {path}"
        self.model = model
        self.tied = dict(manifest.tied)
        self.manifest = manifest
        self.ignored: set[str] = set()  # guards
        self.replacements = plan_replacements(model, specs, self._where)
        self.targets = self._plan_targets()

    def fill(
        self,
        tensors: dict[str, torch.Tensor],
        device: torch.device | str | int | None,
        dtype: torch.dtype | None,
        split: Collection[str] = (),
    ) -> None:
        """Put `tensors`, those of the manifest, into the model.

        split: names of replacements that hold their share already; theirs are not in `tensors`.
        """
        self._check(tensors, split)
        state: dict[str, Any] = {}
        for name, tensor in tensors.items():
            if name in self.ignored:
                continue
            state[name] = _placed(tensor, self.targets[name], device, dtype)
        for name in split:
            own = self.replacements[name].state_dict(keep_vars=True)
            state.update({f"{name}.{key}": value for key, value in own.items()})
        for name, source in self.tied.items():
            if _owner(name) not in split:
                state[name] = state[source]  # the same Parameter object: it stays one
        for name, layer in self.replacements.items():
            layer.compute_dtype = dtype or self._compute_dtype(name, layer, tensors)
        for name, layer in self.replacements.items():
            self.model.set_submodule(name, layer)
            for prefix, form in packed_parts(name, layer):
                if prefix + FORMAT_BUFFER not in state:
                    state[prefix + FORMAT_BUFFER] = form.to_tensor(state[f"{prefix}qweight"].device)
        self.model.load_state_dict(state, assign=True)
        if device is not None:
            self.model.to(device)  # buffers that no checkpoint holds

    def _compute_dtype(
        self, name: str, layer: QuantLinear | QuantExperts, tensors: dict[str, torch.Tensor]
    ) -> torch.dtype:
        """The model's own, or for a layer without data that of the checkpoint's numbers."""
        if _device_of(self.model.get_submodule(name)).type != "meta":
            return layer.compute_dtype
        if f"{name}.bias" in tensors:
            return tensors[f"{name}.bias"].dtype
        bias = layer._parameters.get("bias")
        if bias is not None and not bias.is_meta:  # of a share
            return bias.dtype
        sizes: Counter[torch.dtype] = Counter()
        for tensor in tensors.values():
            if tensor.is_floating_point():
                sizes[tensor.dtype] += tensor.numel()
        return sizes.most_common(1)[0][0] if sizes else layer.compute_dtype

    def _plan_targets(self) -> dict[str, _Target]:
        """A target for each tensor that the model will have; the manifest must name just those."""
        current = _tensors(self.model)
        targets = {}
        for name, value in current.items():
            if _owner(name) not in self.replacements:
                targets[name] = _target(value, value.device)
        for owner, layer in self.replacements.items():
            device = _device_of(self.model.get_submodule(owner))
            for key, value in _tensors(layer).items():
                name = f"{owner}.{key}"
                if name in current and not _is_packed(value):  # a bias, what a norm has
                    targets[name] = _target(current[name], current[name].device)
                elif value.is_floating_point():
                    targets[name] = _target(value, device)
                else:
                    targets[name] = _target(value, device, exact=True)
        given = set(self.manifest.tensors.keys() | self.tied.keys())
        for owner, layer in self.replacements.items():
            for prefix, _ in packed_parts(owner, layer):
                if prefix + FORMAT_BUFFER not in given:
                    targets.pop(prefix + FORMAT_BUFFER, None)
        for name in _guards(given) - targets.keys():
            guard = self.manifest.tensors[name]
            if (guard.dtype, guard.shape) == ("uint8", (0,)):
                given.discard(name)
                self.ignored.add(name)
        for name in targets.keys() - given:
            source = _same_tensor(current, name, given)
            if source is not None:  # tied in the model, and stored once
                self.tied[name] = source
                given.add(name)
        if missing := sorted(targets.keys() - given):
            raise ValueError(f"{self._where}: the checkpoint lacks {_some(missing)}")
        if unexpected := sorted(given - targets.keys()):
            raise ValueError(f"{self._where}: the model has no {_some(unexpected)}")
        return targets

    def place(
        self,
        name: str,
        tensor: torch.Tensor,
        device: torch.device | str | int | None,
        dtype: torch.dtype | None,
    ) -> torch.Tensor:
        """A part of the model's tensor `name` as the whole of it would be put into the model."""
        return _placed(tensor, self.targets[name], device, dtype).detach()

    def _check(self, tensors: dict[str, torch.Tensor], split: Collection[str]) -> None:
        for name, target in self.targets.items():
            spec = self.manifest.tensors[self.tied.get(name, name)]  # what `tensors` was held to
            if spec.shape != target.shape:
                raise ValueError(
                    f"{self._where}: {name} must be {list(target.shape)}, got {list(spec.shape)}"
                )
            if target.exact and spec.dtype != dtype_name(target.dtype or torch.uint8):
                raise ValueError(
                    f"{self._where}: {name} must be {dtype_name(target.dtype or torch.uint8)}, "
                    f"got {spec.dtype}"
                )
        for name, layer in self.replacements.items():
            if name in split:
                continue
            for prefix, form in packed_parts(name, layer):
                stored = self.tied.get(f"{prefix}qweight", f"{prefix}qweight")
                file = self.path / self.manifest.tensors[stored].file
                form.check_finite(f"load: {file}: {prefix}qweight", tensors[stored])
                for full in {f"{prefix}{FORMAT_BUFFER}", f"{prefix}perm"} & self.targets.keys():
                    given = tensors[self.tied.get(full, full)]
                    if full.endswith(FORMAT_BUFFER):
                        form.check(f"{self._where}: {prefix[:-1]}", given)
                        continue
                    for perm in given.reshape(-1, form.k):
                        check_permutation(f"{self._where}: {full}", perm, form.k)


def plan_replacements(
    model: nn.Module, specs: Mapping[str, ModuleSpec | ExpertsSpec], where: str
) -> dict[str, QuantLinear | QuantExperts]:
    """The layer, without data, for each module of the model that a checkpoint names.

    where: the beginning of messages, such as "load: PATH".

    ValueError where the model has no such module, or another one in its place.
    """
    replacements: dict[str, QuantLinear | QuantExperts] = {}
    made: dict[nn.Module, QuantLinear | QuantExperts] = {}  # two names of a layer: one layer
    for name, spec in specs.items():
        try:
            old = model.get_submodule(name)
        except AttributeError:
            raise ValueError(f"{where}: the model has no module {name!r}") from None
        if old not in made:
            if isinstance(spec, ExpertsSpec):
                made[old] = _experts(where, name, old, spec)
            else:
                made[old] = _linear(where, name, old, spec)
        replacements[name] = made[old]
    return replacements


def _linear(where: str, name: str, old: nn.Module, spec: ModuleSpec) -> QuantLinear:
    shape, layer = linear_shape(old), cast(Any, old)
    if shape is None:
        raise ValueError(
            f"{where}: {name} must be an nn.Linear, a Conv1D or a QuantLinear, "
            f"got {type(old).__name__}"
        )
    if shape != (spec.n, spec.k):
        raise ValueError(
            f"{where}: {name} is {list(shape)} in the model, [{spec.n}, {spec.k}] in the checkpoint"
        )
    if (layer.bias is not None) != spec.bias:
        has = "has a" if spec.bias else "has no"
        raise ValueError(f"{where}: {name} {has} bias in the checkpoint, unlike in the model")
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
        dtype=layer.compute_dtype if isinstance(old, QuantLinear) else layer.weight.dtype,
    ).train(old.training)


def _experts(where: str, name: str, old: nn.Module, spec: ExpertsSpec) -> QuantExperts:
    formats = {projection: s.form for projection, s in spec.projections.items()}
    act_order = [projection for projection, s in spec.projections.items() if s.act_order]
    if getattr(old, "num_experts", spec.num_experts) != spec.num_experts:
        raise ValueError(
            f"{where}: {name} has {old.num_experts} experts in the model, {spec.num_experts} in "
            "the checkpoint"
        )
    for projection, s in spec.projections.items():
        if (old._parameters.get(f"{projection}_bias") is not None) != s.bias:
            has = "has a" if s.bias else "has no"
            raise ValueError(
                f"{where}: {name}: {projection} {has} bias in the checkpoint, unlike in the model"
            )
    try:
        return QuantExperts(old, formats, act_order=act_order, device="meta")
    except (TypeError, ValueError) as error:
        raise ValueError(f"{where}: {name}: {error}") from None


def _owner(name: str) -> str:
    return name.rpartition(".")[0]


def _guards(names: Iterable[str]) -> set[str]:
    """Those of the names that are guards'; with the hint, wherever it stands."""
    names = list(names)
    hints = (name for name in names if name == HINT or name.endswith(f".{HINT}"))
    return {*guard_names(names), *hints} & set(names)


def _same_tensor(current: dict[str, torch.Tensor], name: str, given: set[str]) -> str | None:
    """Another name, among those given, of the tensor that the model has under `name`."""
    value = current.get(name)
    if value is None:
        return None
    return next((n for n, other in current.items() if other is value and n in given), None)


def packed_parts(name: str, layer: QuantLinear | QuantExperts) -> list[tuple[str, PackedFormat]]:
    """What stands before "qweight", "perm" and "packed_format" in the names, and the format."""
    if isinstance(layer, QuantLinear):
        return [(f"{name}.", layer.format)]
    return [(f"{name}.{projection}_", form) for projection, form in layer.formats.items()]


def _device_of(module: nn.Module) -> torch.device:
    """The device of a layer's weights."""
    tensors = sorted(module.named_parameters(recurse=False), key=lambda named: -named[1].dim())
    return tensors[0][1].device if tensors else torch.device("cpu")


def _is_packed(tensor: torch.Tensor) -> bool:
    return not tensor.is_floating_point()


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
