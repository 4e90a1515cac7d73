"""Shares read from a checkpoint's files: of a layer that is split, a rank reads no other bytes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from xgemm.distributed.parallelize import plan_splits
from xgemm.distributed.styles import PackedStyle, check_mesh
from xgemm.formats.files import open_safetensors
from xgemm.formats.fill import FORMAT_BUFFER, FillPlan, packed_parts
from xgemm.formats.headers import slice_form
from xgemm.formats.manifest import MANIFEST_FILE
from xgemm.formats.packed import check_permutation

Place = Callable[[str, torch.Tensor], torch.Tensor]
Read = Callable[[str], Any]


class _Slice:
    """A tensor of a file, of which parts are read, and placed as the whole tensor would be."""

    def __init__(self, part: Any, name: str, place: Place) -> None:
        self._part, self._name, self._place = part, name, place

    def __getitem__(self, key: Any) -> torch.Tensor:
        return self._place(self._name, self._part[key])


def split_layer(
    where: str,
    layer: Any,
    style: PackedStyle,
    mesh: DeviceMesh,
    parts: list[range],
    read: Read,
    place: Place,
) -> None:
    """Give `layer`, which is without data, its share of what `read` opens; then connect it.

    read: the slice of a file by the name of the layer's tensor; None where the file lacks it.
    place: on its device, in its dtype.
    """
    for prefix, form in packed_parts("", layer):
        prefix = prefix.removeprefix(".")
        written = read(f"{prefix}{FORMAT_BUFFER}")
        if written is not None:
            form.check(where, written[:])
        if getattr(layer, f"{prefix}perm") is not None:
            for perm in read(f"{prefix}perm")[:].reshape(-1, form.k):
                check_permutation(f"{where}.{prefix}perm", perm, form.k)

    def source(name: str) -> Any:
        return _Slice(read(name), name, place)

    style.apply(layer, mesh, parts, source)
    for prefix, form in packed_parts("", layer):
        prefix = prefix.removeprefix(".")
        form.check_finite(f"{where}.{prefix}qweight", getattr(layer, f"{prefix}qweight"))


class FileShares:
    """The layers of a checkpoint that `load` splits over a mesh.

    names: of those layers, each as often as the model has it.
    """

    def __init__(self, fill: FillPlan, mesh: Any, plan: Mapping[str, Any] | None) -> None:
        try:
            check_mesh(mesh)
        except (TypeError, ValueError) as error:
            raise type(error)(f"load: {error}") from None
        self._fill, self._mesh = fill, mesh
        modules: dict[str, nn.Module] = dict(fill.model.named_modules())
        modules.update(fill.replacements)
        splits = plan_splits(f"load: {fill.path}", fill.model, modules, mesh.size(), plan)
        self._splits = {id(modules[name]): (name, style, parts) for name, style, parts in splits}
        self.names = {
            name for name, layer in fill.replacements.items() if id(layer) in self._splits
        }

    def read(self, safetensors: Any, path: Path, place: Place) -> None:
        """Fill the layers, which the model does not have yet."""
        specs, tied = self._fill.manifest.tensors, self._fill.tied
        with contextlib.ExitStack() as stack:
            files: dict[str, Any] = {}

            def opened(name: str) -> Any:
                stored = tied.get(name, name)
                if stored not in specs:
                    return None
                file = specs[stored].file
                if file not in files:
                    files[file] = stack.enter_context(open_safetensors(safetensors, path / file))
                part = files[file].get_slice(stored)
                if slice_form(part) != (specs[stored].dtype, specs[stored].shape):
                    raise ValueError(
                        f"load: {path / file}: {stored} is {slice_form(part)}, {MANIFEST_FILE} "
                        f"says {(specs[stored].dtype, specs[stored].shape)}"
                    )
                return part

            for name, style, parts in self._splits.values():

                def read(leaf: str, name: str = name) -> Any:
                    return opened(f"{name}.{leaf}")

                def place_in(leaf: str, tensor: torch.Tensor, name: str = name) -> torch.Tensor:
                    return place(f"{name}.{leaf}", tensor)

                layer = self._fill.replacements[name]
                where = f"load: {path}: {name}"
                split_layer(where, layer, style, self._mesh, parts, read, place_in)
