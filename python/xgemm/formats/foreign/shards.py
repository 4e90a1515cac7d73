"""The safetensors files of another tool's checkpoint: its layers, read one at a time."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from xgemm.formats.foreign.layer import ForeignLayer, LayerShape
from xgemm.formats.foreign.methods import ForeignFormat
from xgemm.formats.headers import header_specs
from xgemm.formats.quantized import QuantizedWeight


class Shards:
    """Open files; a tensor is in memory only while the caller holds it.

    layers: name -> the layer that has the format's key tensor there.
    others: names of the tensors that belong to no quantized layer.
    """

    def __init__(self, directory: Path, files: Iterable[str], form: ForeignFormat) -> None:
        import safetensors

        self.directory = directory
        self.form = form
        self.tensors, _ = header_specs(safetensors, directory, files)
        self._safetensors = safetensors
        self._open: dict[str, Any] = {}
        suffix = f".{form.key}"
        self.layers: dict[str, ForeignLayer] = {}
        taken: set[str] = set()
        for full in self.tensors:
            if not full.endswith(suffix):
                continue
            name = full.removesuffix(suffix)
            names = {part: f"{name}.{part}" for part in form.parts}
            specs = {part: self.tensors[n] for part, n in names.items() if n in self.tensors}
            self.layers[name] = ForeignLayer(directory, name, specs, self.tensor)
            taken.update(names.values())
        self.others = [name for name in self.tensors if name not in taken]

    def shapes(self) -> dict[str, LayerShape]:
        """Every layer's shape; what is wrong with a header is refused before a weight is read."""
        return {name: self.form.shape(layer) for name, layer in self.layers.items()}

    def read(self, layer: str) -> QuantizedWeight:
        return self.form.read(self.layers[layer])

    def tensor(self, name: str) -> torch.Tensor:
        file = self.tensors[name].file
        path = self.directory / file
        try:
            if file not in self._open:
                self._open[file] = self._safetensors.safe_open(path, framework="pt")
            found: torch.Tensor = self._open[file].get_tensor(name)
        except self._safetensors.SafetensorError as error:
            raise ValueError(f"load: {path}: {name}: {error}") from None
        return found

    def __enter__(self) -> Shards:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._open.clear()
