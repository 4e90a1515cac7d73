"""The safetensors files of a checkpoint: tensors, and layers of other tools, one at a time."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import torch

from xgemm.formats.foreign.layer import ForeignLayer, LayerShape
from xgemm.formats.foreign.methods import ForeignFormat
from xgemm.formats.foreign.regroup import layout_group_size
from xgemm.formats.headers import header_specs
from xgemm.formats.quantized import QuantizedWeight

if TYPE_CHECKING:
    from typing_extensions import Self


class TensorFiles:
    """Open files; a tensor is in memory only while the caller holds it.

    tensors: what the headers say, by name.
    """

    def __init__(self, directory: Path, files: Iterable[str]) -> None:
        import safetensors

        self.directory = directory
        self.tensors, _ = header_specs(safetensors, directory, files)
        self._safetensors = safetensors
        self._open: dict[str, Any] = {}

    def tensor(self, name: str, index: int | None = None) -> torch.Tensor:
        """A tensor, or what is at one index of its first dimension."""
        file = self.tensors[name].file
        path = self.directory / file
        try:
            if file not in self._open:
                self._open[file] = self._safetensors.safe_open(path, framework="pt")
            opened = self._open[file]
            found: torch.Tensor = (
                opened.get_tensor(name) if index is None else opened.get_slice(name)[index]
            )
        except self._safetensors.SafetensorError as error:
            raise ValueError(f"load: {path}: {name}: {error}") from None
        return found

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._open.clear()


class Shards(TensorFiles):
    """A checkpoint of another tool's format.

    layers: name -> the layer that has the format's key tensor there.
    taken: names of the tensors of these layers. others: names of all other tensors.
    """

    def __init__(self, directory: Path, files: Iterable[str], form: ForeignFormat) -> None:
        super().__init__(directory, files)
        self.form = form
        suffix = f"{form.separator}{form.key}"
        self.layers: dict[str, ForeignLayer] = {}
        self.taken: set[str] = set()
        for full in self.tensors:
            if not full.endswith(suffix):
                continue
            name = full.removesuffix(suffix)
            names = {part: f"{name}{form.separator}{part}" for part in form.parts}
            specs = {part: self.tensors[n] for part, n in names.items() if n in self.tensors}
            self.layers[name] = ForeignLayer(directory, name, specs, self.tensor, form.separator)
            self.taken.update(names.values())
        self.others = [name for name in self.tensors if name not in self.taken]

    def float_dtype(self) -> torch.dtype | None:
        """The dtype of most numbers of the float tensors; scales are none of them."""
        counts: Counter[str] = Counter()
        for name in self.others:
            spec = self.tensors[name]
            if getattr(torch, spec.dtype).is_floating_point:
                counts[spec.dtype] += math.prod(spec.shape)
        return getattr(torch, counts.most_common(1)[0][0]) if counts else None

    def shapes(self) -> dict[str, LayerShape]:
        """Every layer's shape; what is wrong with a header is refused before a weight is read."""
        shapes = {name: self.form.shape(layer) for name, layer in self.layers.items()}
        for name, shape in shapes.items():
            try:
                layout_group_size(shape.group_size, shape.k)
            except ValueError as error:
                raise ValueError(f"load: {self.directory}: {name}: {error}") from None
        return shapes

    def read(self, layer: str, expert: int | None = None) -> QuantizedWeight:
        """A layer's weight, or that of one expert where the layer holds several."""
        found = self.layers[layer]
        return self.form.read(found if expert is None else found.expert(expert))
