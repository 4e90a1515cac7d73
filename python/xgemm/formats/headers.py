"""The tensors of a directory that has no manifest, from the headers of its files."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from xgemm.formats.files import file_size, open_safetensors, present, read_json
from xgemm.formats.manifest import INDEX_FILE, SHARD_NAME, Manifest, TensorSpec

FOREIGN_FILE = re.compile(r"\w[\w.-]*\.safetensors")  # as other tools call their files
_ONE_FILE = "model.safetensors"
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
_DTYPES = {
    **{"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"},
    **{"I64": "int64", "I32": "int32", "I16": "int16", "I8": "int8", "U8": "uint8"},
    **{"BOOL": "bool", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2"},
}


def read_headers(safetensors: Any, path: Path) -> Manifest:
    """A manifest of what is in the files, without a save id and hashes."""
    tensors, sizes = header_specs(safetensors, path, checkpoint_files(path))
    return Manifest("", sizes, tensors, {}, "")


def header_specs(
    safetensors: Any, path: Path, files: Iterable[str]
) -> tuple[dict[str, TensorSpec], dict[str, int]]:
    """(The tensors of the files of a directory, the files' sizes)."""
    tensors: dict[str, TensorSpec] = {}
    sizes: dict[str, int] = {}
    for file in files:
        sizes[file] = file_size(path / file)
        with open_safetensors(safetensors, path / file) as opened:
            for name in opened.keys():  # noqa: SIM118 (no mapping)
                if name in tensors:
                    raise ValueError(
                        f"load: {name} is in {tensors[name].file} and in {path / file}"
                    )
                tensors[name] = TensorSpec(file, *slice_form(opened.get_slice(name)), "")
    return tensors, sizes


def slice_form(part: Any) -> tuple[str, tuple[int, ...]]:
    """The dtype and the shape of the tensor that a slice of a file is of."""
    dtype = part.get_dtype()
    return _DTYPES.get(dtype, dtype), tuple(part.get_shape())


def checkpoint_files(path: Path, names: re.Pattern[str] = SHARD_NAME) -> list[str]:
    """The names of the files with tensors: those of the index, or the one without it.

    names: what they may be called.

    ValueError for a pickle in their place, which is named and not opened.
    """
    if not present(path / INDEX_FILE):
        if not present(path / _ONE_FILE):
            for file in sorted(path.glob("*.*")):
                if file.suffix in _PICKLES:
                    raise pickle_error(file)
        return [_ONE_FILE]
    weight_map = read_json(path / INDEX_FILE).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ValueError(f"load: {path / INDEX_FILE}: weight_map must name the files of tensors")
    for name in set(map(str, weight_map.values())):
        if not names.fullmatch(name):  # it could be a path to anywhere
            if "/" not in name and Path(name).suffix in _PICKLES:
                raise pickle_error(path / name)
            raise ValueError(
                f"load: {path / INDEX_FILE}: {name!r} is not the name of a checkpoint file"
            )
    return sorted(set(map(str, weight_map.values())))


def pickle_error(file: Path) -> ValueError:
    return ValueError(
        f"load: {file} must be a .safetensors file: a pickle can run code, so nothing is "
        "unpickled. save_pretrained of the tool that made it writes safetensors"
    )
