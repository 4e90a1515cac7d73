"""What a checkpoint says of itself: config.json's quantization_config, and the manifest.

Nothing read here is believed before it is checked: types, ranges, names of files.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from xgemm.activations import ACTIVATIONS
from xgemm.formats.packed import (
    MAX_FEATURES,
    check_bool,
    check_fp4,
    check_group_size,
    check_int,
    check_layout_version,
)
from xgemm.formats.packed_format import PackedFormat

CONFIG_FILE = "config.json"
GENERATION_FILE = "generation_config.json"
MANIFEST_FILE = "xgemm_manifest.json"
INDEX_FILE = "model.safetensors.index.json"
SHARD_NAME = re.compile(r"model(-\d{5}-of-\d{5})?\.safetensors")
SECTION = "quantization_config"  # of config.json
QUANT_METHOD = "xgemm"
FORMAT = "packed-w4"
FP4_FORMAT = "packed-w4-fp4"  # some experts are MXFP4: versions without them refuse the name
# How `xgemm.quantize` was called, in config.json; what of it is not known is left out.
RECIPE = ("method", "group_size", "symmetric", "clip", "scale_dtype", "lm_head", "skip", "include")
SAVE_ID_KEY = "xgemm_save_id"  # in the metadata of every safetensors file and of the index
_SAVE_ID = re.compile(r"[0-9a-f]{32}")
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class ModuleSpec:
    """A QuantLinear as a config describes it."""

    n: int
    k: int
    group_size: int
    bf16_scales: bool
    zeros: bool
    act_order: bool
    bias: bool
    activation: str
    fp4: bool = False

    @property
    def form(self) -> PackedFormat:
        return PackedFormat(self.n, self.k, self.group_size, self.bf16_scales, self.zeros, self.fp4)


@dataclass(frozen=True)
class ExpertsSpec:
    """A QuantExperts as a config describes it: a ModuleSpec for each projection's experts."""

    num_experts: int
    projections: dict[str, ModuleSpec]


@dataclass(frozen=True)
class TensorSpec:
    """A tensor as the manifest describes it."""

    file: str
    dtype: str  # such as "uint8"
    shape: tuple[int, ...]
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """Which tensors a checkpoint has, in which files, and what their bytes hash to.

    tied: name of a tensor -> the tensor that it is, which is stored once.
    documents: config.json without quantization_config, and generation_config.json where there is
        one, by file name, as they were saved. None: a save by a version that kept no copies.
    """

    save_id: str
    files: dict[str, int]  # name -> size in bytes
    tensors: dict[str, TensorSpec]
    tied: dict[str, str]
    quantization_config_sha256: str
    documents: dict[str, dict[str, Any]] | None = None


def hash_tensor(tensor: torch.Tensor) -> str:
    """sha256 of the bytes of a contiguous CPU tensor, in hexadecimal."""
    size = tensor.numel() * tensor.element_size()
    if size == 0:
        return hashlib.sha256().hexdigest()
    return hashlib.sha256((ctypes.c_char * size).from_address(tensor.data_ptr())).hexdigest()


def hash_json(value: Any) -> str:
    """sha256 of a JSON value, whatever the order of its keys."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def parse_quantization_config(
    path: Path, config: dict[str, Any]
) -> dict[str, ModuleSpec | ExpertsSpec]:
    """The quantized modules of a config.json by name, checked; refuses any other format."""
    if config.get("quantization_config") is None:
        raise ValueError(
            f"load: {path} has no quantization_config: the weights there are float. Quantize them "
            f"first: xgemm quantize {path.parent} DST, or xgemm.quantize(model) and xgemm.save"
        )
    section = _get(f"{path}", config, "quantization_config", dict)
    where = f"{path}: quantization_config"
    method = section.get("quant_method")
    if method != QUANT_METHOD:
        raise ValueError(
            f"load: {where}: quant_method must be {QUANT_METHOD!r}, got {method!r}: the directory "
            "was quantized by something else, or is to be read by something else"
        )
    check_layout_version(f"load: {where}: layout_version", section.get("layout_version"))
    if section.get("format") not in (FORMAT, FP4_FORMAT):
        raise ValueError(
            f"load: {where}: format must be {FORMAT!r} or {FP4_FORMAT!r}, "
            f"got {section.get('format')!r}"
        )
    found: dict[str, ModuleSpec | ExpertsSpec] = {}
    for name, value in _get(where, section, "modules", dict).items():
        found[name] = linear = _parse_module(f"load: {where}: {name}", value)
        if linear.fp4:
            raise ValueError(f"load: {where}: {name}: fp4 is for experts, and this is a linear")
    # Directories that were saved before there were experts lack the section.
    experts = _get(where, section, "experts", dict) if "experts" in section else {}
    for name, value in experts.items():
        if name in found:
            raise ValueError(f"load: {where}: {name!r} is among modules and among experts")
        found[name] = _parse_experts(f"load: {where}: {name}", value)
    return found


def write_spec(spec: ModuleSpec | ExpertsSpec) -> dict[str, Any]:
    """A spec as config.json holds it, where only MXFP4 is said to be that."""
    if isinstance(spec, ExpertsSpec):
        projections = {name: write_spec(s) for name, s in spec.projections.items()}
        return {"num_experts": spec.num_experts, "projections": projections}
    written = asdict(spec)
    if not spec.fp4:
        del written["fp4"]
    return written


def format_of(experts: Mapping[str, Any]) -> str:
    """FORMAT, or FP4_FORMAT, by the section "experts" of config.json."""
    specs = (spec for e in experts.values() for spec in e["projections"].values())
    return FP4_FORMAT if any(spec.get("fp4") for spec in specs) else FORMAT


def _parse_experts(where: str, value: Any) -> ExpertsSpec:
    if not isinstance(value, dict) or not isinstance(value.get("projections"), dict):
        raise TypeError(f"{where} must be an object with projections, got {value!r:.100}")
    count = check_int(f"{where}: num_experts", value.get("num_experts"), 1, MAX_FEATURES)
    projections = {
        name: _parse_module(f"{where}: {name}", spec) for name, spec in value["projections"].items()
    }
    return ExpertsSpec(count, projections)


def _parse_module(where: str, value: Any) -> ModuleSpec:
    if not isinstance(value, dict):
        raise TypeError(f"{where} must be an object, got {type(value).__name__}")
    activation = value.get("activation", "none")
    if activation not in ACTIVATIONS:
        raise ValueError(f"{where}: activation must be one of {ACTIVATIONS}, got {activation!r}")
    spec = ModuleSpec(
        n=check_int(f"{where}: n", value.get("n"), 0, MAX_FEATURES),
        k=check_int(f"{where}: k", value.get("k"), 0, MAX_FEATURES),
        group_size=check_group_size(f"{where}: group_size", value.get("group_size")),
        bf16_scales=check_bool(f"{where}: bf16_scales", value.get("bf16_scales")),
        zeros=check_bool(f"{where}: zeros", value.get("zeros")),
        act_order=check_bool(f"{where}: act_order", value.get("act_order")),
        bias=check_bool(f"{where}: bias", value.get("bias")),
        activation=activation,
        fp4=check_bool(f"{where}: fp4", value.get("fp4", False)),
    )
    check_fp4(where, spec.fp4, spec.group_size, spec.bf16_scales, spec.zeros)
    return spec


def parse_manifest(path: Path, value: dict[str, Any]) -> Manifest:
    """The manifest, checked."""
    files = _get(f"{path}", value, "files", dict)
    for name, size in files.items():
        if not SHARD_NAME.fullmatch(name):
            raise ValueError(f"load: {path}: {name!r} is not the name of a checkpoint file")
        check_int(f"load: {path}: size of {name}", size, 0, 2**62)
    tensors = {}
    for name, entry in _get(f"{path}", value, "tensors", dict).items():
        tensors[name] = _parse_tensor(f"{path}: {name}", entry, files)
    tied = _get(f"{path}", value, "tied", dict)
    for name, source in tied.items():
        if name in tensors or not isinstance(source, str) or source not in tensors:
            raise ValueError(f"load: {path}: {name!r} is tied to {source!r}, no tensor of its own")
    return Manifest(
        save_id=_matching(f"{path}", value, "save_id", _SAVE_ID),
        files=files,
        tensors=tensors,
        tied=tied,
        quantization_config_sha256=_matching(
            f"{path}", value, "quantization_config_sha256", _SHA256
        ),
        documents=_parse_documents(f"{path}", value),
    )


def _parse_documents(where: str, value: dict[str, Any]) -> dict[str, dict[str, Any]] | None:
    if "documents" not in value:
        return None
    documents: dict[str, Any] = _get(where, value, "documents", dict)
    if unknown := documents.keys() - {CONFIG_FILE, GENERATION_FILE}:
        raise ValueError(f"load: {where}: documents has a file {min(unknown)!r:.100}")
    return {file: _get(f"{where}: documents", documents, file, dict) for file in documents}


def _parse_tensor(where: str, entry: Any, files: dict[str, int]) -> TensorSpec:
    if not isinstance(entry, dict):
        raise TypeError(f"load: {where} must be an object, got {type(entry).__name__}")
    shape = _get(where, entry, "shape", list)
    for size in shape:
        check_int(f"load: {where}: shape", size, 0, 2**62)
    file = _get(where, entry, "file", str)
    if file not in files:
        raise ValueError(f"load: {where}: {file!r} is not among the manifest's files")
    return TensorSpec(
        file=file,
        dtype=_get(where, entry, "dtype", str),
        shape=tuple(shape),
        sha256=_matching(where, entry, "sha256", _SHA256),
    )


def _get(where: str, value: dict[str, Any], key: str, kind: type) -> Any:
    if not isinstance(value.get(key), kind):
        raise ValueError(
            f"load: {where}: {key} must be of type {kind.__name__}, got {value.get(key)!r:.100}"
        )
    return value[key]


def _matching(where: str, value: dict[str, Any], key: str, pattern: re.Pattern[str]) -> str:
    text: str = _get(where, value, key, str)
    if not pattern.fullmatch(text):
        raise ValueError(f"load: {where}: {key} must match {pattern.pattern}, got {text!r:.100}")
    return text
