"""Tensors into safetensors files as they come: in memory are those of one file."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import torch

from xgemm.formats.manifest import INDEX_FILE, dtype_name


class ShardWriter:
    """Writes model.safetensors, or model-0000i-of-0000n.safetensors and their index, to a folder.

    max_bytes: of the tensors of a file; a larger tensor has a file of its own.
    """

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self._folder = folder
        self._max_bytes = max_bytes
        self._pending: dict[str, torch.Tensor] = {}
        self._bytes = 0
        self._shards: list[list[str]] = []
        self.total = 0  # bytes of all tensors
        self.names: set[str] = set()
        self._floats: Counter[str] = Counter()  # dtype -> numbers in float weights and biases

    def add(self, name: str, tensor: torch.Tensor) -> None:
        if name in self.names:
            raise ValueError(f"convert: {name} is made of two tensors of the source")
        size = tensor.numel() * tensor.element_size()
        if self._pending and self._bytes + size > self._max_bytes:
            self._flush()
        # A view of the source's memory map would be read when the file is written, or keep more.
        self._pending[name] = tensor.detach().clone(memory_format=torch.contiguous_format)
        self.names.add(name)
        if tensor.is_floating_point() and name.endswith((".weight", ".bias")):
            self._floats[dtype_name(tensor.dtype)] += tensor.numel()
        self._bytes += size
        self.total += size

    def float_dtype(self) -> str | None:
        """The dtype of most numbers of float weights and biases."""
        return self._floats.most_common(1)[0][0] if self._floats else None

    def finish(self) -> None:
        """Write what is left, and give the files their names."""
        self._flush()
        count = len(self._shards)
        files = ["model.safetensors"]
        if count > 1:
            files = [f"model-{i:05d}-of-{count:05d}.safetensors" for i in range(1, count + 1)]
            names = {
                name: file
                for file, shard in zip(files, self._shards, strict=True)
                for name in shard
            }
            index = {"metadata": {"total_size": self.total}, "weight_map": names}
            (self._folder / INDEX_FILE).write_text(json.dumps(index, indent=1) + "\n")
        for i, file in enumerate(files):
            self._part(i).rename(self._folder / file)

    def _flush(self) -> None:
        from safetensors.torch import save_file

        path = self._part(len(self._shards))
        save_file(self._pending, path, metadata={"format": "pt"})
        self._shards.append(list(self._pending))
        self._pending, self._bytes = {}, 0

    def _part(self, index: int) -> Path:
        return self._folder / f"part-{index}.safetensors"
