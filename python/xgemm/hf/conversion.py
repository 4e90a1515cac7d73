"""convert: a 4-bit checkpoint in another format, tensor by tensor, bit for bit.

In memory are the tensors of one file that is written, and one layer.
"""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from transformers import PreTrainedModel

from xgemm.formats import atomic
from xgemm.formats.checkpoint import OURS
from xgemm.formats.describe import experts_spec, linear_spec
from xgemm.formats.directory import quantized_by, read_config
from xgemm.formats.files import real_path, write_errors
from xgemm.formats.foreign import (
    FOREIGN_WRITERS,
    ForeignWriter,
    Shards,
    Written,
    foreign_format,
    foreign_section,
)
from xgemm.formats.guard import guards
from xgemm.formats.headers import FOREIGN_FILE, checkpoint_files
from xgemm.formats.manifest import CONFIG_FILE, QUANT_METHOD, format_of, write_spec
from xgemm.formats.packed import LAYOUT_VERSION, check_int
from xgemm.formats.pretrained import make_transformers_model
from xgemm.formats.shard_writer import ShardWriter
from xgemm.hf.foreign_module import check_shapes, packed_module
from xgemm.hf.foreign_names import ForeignNames, Source
from xgemm.hf.packed_layers import PackedLayers
from xgemm.nn import QuantExperts
from xgemm.quantize.weight import WeightRecipe
from xgemm.quoting import shown

METHODS = (*FOREIGN_WRITERS, QUANT_METHOD)
DEFAULT_SHARD_BYTES = 1 << 30
_SECTIONS = ("quantization_config", "compression_config")

Progress = Callable[[int, int, str], None]
Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Converted:
    """What `convert` did: the formats, quantized layers and float tensors, bytes of tensors."""

    source: str
    to: str
    layers: int
    others: int
    nbytes: int


def convert(
    source: str | Path,
    destination: str | Path,
    to: str,
    *,
    progress: Progress = lambda done, total, name: None,
    max_shard_bytes: int = DEFAULT_SHARD_BYTES,
    requantize: Mapping[str, Any] | None = None,
) -> Converted:
    """Write the 4-bit transformers directory `source` in the format `to` to `destination`.

    to: "gptq", "awq", "compressed-tensors" or "xgemm". Codes, scales and zero points are the
        source's, bit for bit; so are the float tensors.
    destination: a new or empty directory. It is filled as a whole or not at all.
    progress: called with tensors or layers done, of how many, and the name of the next.
    max_shard_bytes: bytes of tensors in one file, and about half of the memory needed.
    requantize: arguments of `quantize_weight` for a source of bitsandbytes (nf4), whose codes no
        integers hold: its weights are dequantized and quantized again. None refuses such a source.

    ValueError, by layer, for what the format cannot hold: zero points that are not whole numbers,
    act-order (awq), sizes that are no multiple of 8 (gptq, awq), experts that transformers has in
    one tensor in its files, too; and for a source that is float or in that format already.
    """
    source = real_path(source, "convert", "source")
    destination = real_path(destination, "convert", "destination")
    if to not in METHODS:
        raise ValueError(f"convert: to must be one of {', '.join(METHODS)}, got {shown(to)}")
    quantizer = None if requantize is None else WeightRecipe.of("convert: requantize", requantize)
    check_int("convert: max_shard_bytes", max_shard_bytes, 1, 2**62)
    if destination.exists() and not destination.is_dir():
        raise NotADirectoryError(f"convert: {destination} is a file, not a directory")
    config = read_config(source)
    method = quantized_by(source, config)
    if method is None:
        raise ValueError(f"convert: {source} is float: xgemm quantize makes 4 bits of it")
    if method == to:
        raise ValueError(f"convert: {source} is in the format {to} already")
    save_id = uuid.uuid4().hex
    with (
        torch.no_grad(),
        _opened(source, config, to, quantizer) as job,
        write_errors(destination, "convert"),
        atomic.replacing(destination, save_id, OURS, CONFIG_FILE, _refuse_files) as staging,
    ):
        writer = ShardWriter(staging, max_shard_bytes)
        for done, (name, tensors) in enumerate(job.tensors()):
            progress(done, job.total, name)
            for key, tensor in tensors.items():
                writer.add(key, tensor)
        writer.finish()
        progress(job.total, job.total, "")
        written = json.dumps(_config(config, job.section(), writer.float_dtype()), indent=1)
        (staging / CONFIG_FILE).write_text(written + "\n")
        for file in staging.glob("*.safetensors"):
            # safetensors makes files that only their owner may read
            shutil.copymode(staging / CONFIG_FILE, file)
    return Converted(method, to, job.layers, job.others, writer.total)


def _refuse_files(destination: Path) -> None:
    if set(destination.iterdir()) - set(atomic.folders(destination)):
        raise FileExistsError(f"convert: DST must be new or empty, got {destination}")


def _config(
    config: Mapping[str, Any], section: dict[str, Any], dtype: str | None
) -> dict[str, Any]:
    """config.json of the destination."""
    kept = {key: value for key, value in config.items() if key not in _SECTIONS}
    if dtype is not None and kept.get("dtype") is None and kept.get("torch_dtype") is None:
        kept["dtype"] = dtype  # a reader would take that of the first tensor, such as a scale
    return {**kept, "quantization_config": section}


def _opened(
    source: Path, config: dict[str, Any], to: str, quantizer: WeightRecipe | None
) -> _ToForeign | _ToPacked:
    section = foreign_section(source, config)
    if section is None:
        if quantizer is not None:
            raise ValueError(f"convert: {source}: requantize is for bitsandbytes, got xgemm")
        model = cast(PreTrainedModel, make_transformers_model(source, config))
        return _ToForeign(PackedLayers(source, config, model), to)
    form = foreign_format(*section, quantizer)
    shards = Shards(source, checkpoint_files(source, FOREIGN_FILE), form)
    if not shards.layers:
        raise ValueError(f"convert: {source}: no file holds a tensor *.{form.key}")
    if to == QUANT_METHOD:
        model = cast(PreTrainedModel, make_transformers_model(source, config))
        return _ToPacked(shards, model)
    return _ToForeign(_ForeignLayers(shards), to)


class _ForeignLayers:
    """The layers of another tool's checkpoint, in the order of its files."""

    def __init__(self, shards: Shards) -> None:
        self._shards = shards
        self.asymmetric = any(shape.zeros for shape in shards.shapes().values())
        self.layers = list(shards.layers)
        self.others = shards.others
        self.read = shards.read

    def other(self, name: str) -> Tensors:
        return {name: self._shards.tensor(name)}

    def __exit__(self, *error: Any) -> None:
        self._shards.__exit__(None, None, None)


class _ToForeign:
    """Layers into another tool's format."""

    def __init__(self, source: PackedLayers | _ForeignLayers, to: str) -> None:
        self._source = source
        self._writer: ForeignWriter = FOREIGN_WRITERS[to](source.asymmetric)
        self._written: dict[str, Written] = {}
        self._floats: list[str] = []
        self.layers, self.others = len(source.layers), len(source.others)
        self.total = self.layers + self.others

    def tensors(self) -> Iterator[tuple[str, Tensors]]:
        for name in self._source.layers:
            weight = self._source.read(name)
            if weight.fp4:
                raise ValueError(
                    f"convert: {name} is MXFP4, whose codes are no integers: only xgemm's own "
                    "format is written of it"
                )
            parts = self._writer.tensors(name, weight)
            self._written[name] = Written.of(weight)
            yield name, {f"{name}.{part}": tensor for part, tensor in parts.items()}
        for name in self._source.others:
            tensors = self._source.other(name)
            self._floats += [
                key.removesuffix(".weight")
                for key, tensor in tensors.items()
                if tensor.dim() == 2 and key.endswith(".weight")
            ]
            yield name, tensors

    def section(self) -> dict[str, Any]:
        return self._writer.section(self._written, self._floats)

    def __enter__(self) -> _ToForeign:
        return self

    def __exit__(self, *error: Any) -> None:
        self._source.__exit__(*error)


class _ToPacked:
    """Layers of another tool's checkpoint into the packed modules of `model`, on meta."""

    def __init__(self, shards: Shards, model: PreTrainedModel) -> None:
        self._shards = shards
        self._model = model
        self._names = ForeignNames(model)
        shapes = shards.shapes()
        self._sources = self._names.sources(shards.directory, shapes)
        for source in self._sources:
            check_shapes(shards.directory, shapes, source)
        self._modules: dict[str, Any] = {}
        self._experts: dict[str, Any] = {}
        self.layers, self.others = len(shards.layers), len(shards.others)
        self.total = len(self._sources) + 1 + self.others

    def tensors(self) -> Iterator[tuple[str, Tensors]]:
        names: list[str] = []
        for source in self._sources:
            state = self._module(source)
            names += state
            yield source.module, state
        missing = {name: guard for name, guard in guards(names).items() if name not in names}
        yield "guards", missing
        for name in self._shards.others:
            tensor = self._shards.tensor(name)
            yield name, {} if self._is_spare(name, tensor) else {name: tensor}

    def _module(self, source: Source) -> Tensors:
        old: Any = self._model.get_submodule(source.module)
        new = packed_module(self._shards, source, old, "cpu")
        if isinstance(new, QuantExperts):
            self._experts[source.module] = write_spec(experts_spec(new))
        else:
            self._modules[source.module] = write_spec(linear_spec(new))
        state = new.state_dict(prefix=f"{source.module}.")
        return {name: tensor for name, tensor in state.items() if not tensor.is_meta}

    def _is_spare(self, name: str, tensor: torch.Tensor) -> bool:
        """Some tools give each layer a bias of 0, which the model may have no place for."""
        layer, _, leaf = name.rpartition(".")
        if layer not in self._shards.layers or leaf != "bias" or self._names.has(name):
            return False
        if bool(tensor.any()):
            raise ValueError(
                f"convert: {self._shards.directory}: {name} must be 0, as the model has no place "
                "for it"
            )
        return True

    def section(self) -> dict[str, Any]:
        return {
            "quant_method": QUANT_METHOD,
            "format": format_of(self._experts),
            "layout_version": LAYOUT_VERSION,
            "modules": self._modules,
            "experts": self._experts,
        }

    def __enter__(self) -> _ToPacked:
        return self

    def __exit__(self, *error: Any) -> None:
        self._shards.__exit__(None, None, None)
