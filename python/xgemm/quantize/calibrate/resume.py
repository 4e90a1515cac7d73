"""Finished blocks on disk, so that an interrupted run goes on from the last of them.

A folder holds `run.json`, the fingerprint of what is computed, and a safetensors file for each
finished stage, written under another name, synced and renamed. It is removed by whoever made it.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from xgemm.formats.atomic import sync
from xgemm.formats.manifest import hash_tensor
from xgemm.formats.packed import PackedWeight
from xgemm.quantize.calibrate.batches import Batch
from xgemm.quantize.errors import LayerError

RUN_FILE = "run.json"
VERSION = 1  # of the files' form
_SAMPLES = 64  # elements of each parameter that the fingerprint of a model reads


@dataclass(frozen=True)
class Finished:
    """What quantizing a stage has given.

    packed: of each layer, by its name, the packed weights of "weight", or of each projection of
        experts. floats: parameters that have other values now. errors: of each layer.
    fallbacks: layers that the method could not do -> why, and how they were quantized instead.
    """

    packed: dict[str, dict[str, list[PackedWeight]]]
    floats: dict[str, torch.Tensor]
    errors: dict[str, LayerError]
    fallbacks: dict[str, str]


class Store:
    """The finished stages of a run in a folder, which is made where it is missing.

    ValueError where the folder is of another run: of another model, other settings or data.
    """

    def __init__(self, folder: str | os.PathLike[str], fingerprint: dict[str, str]) -> None:
        self._folder = Path(folder)
        self._safetensors = _safetensors()
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / RUN_FILE
        if not path.exists():
            others = sorted(p.name for p in self._folder.iterdir())
            if others:
                raise ValueError(
                    f"quantize: resume: {self._folder} has no {RUN_FILE} but other files "
                    f"({others[0]}): name a new or empty folder"
                )
            self._write(path, json.dumps({"version": VERSION, **fingerprint}, indent=1).encode())
            return
        found = json.loads(path.read_text())
        for name, value in {"version": VERSION, **fingerprint}.items():
            if not isinstance(found, dict) or found.get(name) != value:
                raise ValueError(
                    f"quantize: resume: {self._folder} holds a run of another {name}: name "
                    "another folder, or remove this one to begin anew"
                )

    def read(self, index: int, stage: str) -> Finished | None:
        """The stage as an earlier run has stored it, on the CPU; None where none has."""
        path = self._path(index)
        if not path.exists():
            return None
        with self._safetensors.safe_open(path, framework="pt") as file:
            about = json.loads(file.metadata()["about"])
            if about["stage"] != stage:
                raise ValueError(
                    f"quantize: resume: {path} is of {about['stage']!r}, expected {stage!r}"
                )
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        packed: dict[str, dict[str, list[PackedWeight]]] = {}
        for layer, parts in about["packed"].items():
            packed[layer] = {
                part: [
                    PackedWeight(
                        qweight=tensors[f"{layer}:{part}:{i}:qweight"],
                        perm=tensors.get(f"{layer}:{part}:{i}:perm"),
                        **form,
                    )
                    for i, form in enumerate(forms)
                ]
                for part, forms in parts.items()
            }
        floats = {name: tensors[f"float:{name}"] for name in about["floats"]}
        errors = {name: LayerError(**error) for name, error in about["errors"].items()}
        return Finished(packed, floats, errors, about["fallbacks"])

    def write(self, index: int, stage: str, finished: Finished) -> None:
        tensors: dict[str, torch.Tensor] = {}
        forms: dict[str, dict[str, list[dict[str, Any]]]] = {}
        for layer, parts in finished.packed.items():
            forms[layer] = {part: [] for part in parts}
            for part, weights in parts.items():
                for i, weight in enumerate(weights):
                    tensors[f"{layer}:{part}:{i}:qweight"] = weight.qweight.cpu()
                    if weight.perm is not None:
                        tensors[f"{layer}:{part}:{i}:perm"] = weight.perm.cpu()
                    forms[layer][part].append(_form(weight))
        for name, value in finished.floats.items():
            tensors[f"float:{name}"] = value.cpu().contiguous()
        about = {
            "stage": stage,
            "packed": forms,
            "floats": list(finished.floats),
            "errors": {name: asdict(error) for name, error in finished.errors.items()},
            "fallbacks": finished.fallbacks,
        }
        data = self._safetensors.torch.save(tensors, metadata={"about": json.dumps(about)})
        self._write(self._path(index), data)

    def _path(self, index: int) -> Path:
        return self._folder / f"stage-{index:05d}.safetensors"

    def _write(self, path: Path, data: bytes) -> None:
        new = path.with_name(f".{path.name}.{os.getpid()}.new")
        new.write_bytes(data)
        sync(new)
        new.rename(path)
        sync(self._folder)


def fingerprint(model: nn.Module, settings: Any, batches: Iterable[Batch]) -> dict[str, str]:
    """What tells one run from another: hashes of the model, of how it is quantized, and of data.

    Of each weight some elements are read, at equal distances.
    """
    of_model = hashlib.sha256()
    for name, parameter in model.named_parameters():
        of_model.update(f"{name} {list(parameter.shape)} {parameter.dtype}".encode())
        flat = parameter.detach().flatten()
        sample = flat[:: max(flat.numel() // _SAMPLES, 1)].cpu().contiguous()
        of_model.update(hash_tensor(sample).encode())
    of_data = hashlib.sha256()
    for batch in batches:
        for leaf in tree_leaves((batch.args, sorted(batch.kwargs.items()))):
            if isinstance(leaf, torch.Tensor):
                of_data.update(f"{list(leaf.shape)} {leaf.dtype}".encode())
                of_data.update(hash_tensor(leaf.detach().cpu().contiguous()).encode())
            else:
                of_data.update(repr(leaf).encode())
    text = json.dumps(settings, sort_keys=True, default=str)
    return {"model": of_model.hexdigest(), "settings": text, "calibration": of_data.hexdigest()}


def _form(weight: PackedWeight) -> dict[str, Any]:
    names = ("n", "k", "group_size", "bf16_scales", "has_zeros", "layout_version")
    return {name: getattr(weight, name) for name in names}


def _safetensors() -> Any:
    try:
        import safetensors
        import safetensors.torch
    except ImportError:
        raise ImportError("quantize: resume needs safetensors: pip install safetensors") from None
    return safetensors
