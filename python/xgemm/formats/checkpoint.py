"""save and load: a model with packed layers as a directory of safetensors.

    config.json          the model's own config (transformers), and "quantization_config": format,
                         layout version, save id, the recipe, and n, k, group_size, ... of each
                         QuantLinear ("modules") and QuantExperts ("experts")
    model.safetensors    the tensors; or model-0000i-of-0000n.safetensors and, in transformers'
                         naming, model.safetensors.index.json
    xgemm_manifest.json  sha256, dtype, shape and file of each tensor; which tensors are tied; what
                         config.json and generation_config.json were

Every file carries the id of the save that made it, so files of two saves are told apart. Beside
the model's tensors there are guards (see guard.py), which stop a reader that does not know the
format. What transformers' save_pretrained wrote has no manifest and no ids: it is read without
these checks.
"""

from __future__ import annotations

import dataclasses
import errno
import functools
import json
import os
import re
import shutil
import uuid
from collections.abc import Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, TypeVar, overload

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from xgemm.attach import attach
from xgemm.formats import atomic
from xgemm.formats.collect import tensors_of, to_cpu, unwrapped
from xgemm.formats.describe import quantization_config
from xgemm.formats.documents import check_documents, read_documents, to_keep
from xgemm.formats.files import (
    MAX_JSON_BYTES,
    open_regular,
    open_safetensors,
    present,
    read_errors,
    read_json,
    real_path,
    write_errors,
)
from xgemm.formats.fill import FillPlan
from xgemm.formats.foreign import Quantizer, foreign_section
from xgemm.formats.guard import guards
from xgemm.formats.headers import read_headers
from xgemm.formats.manifest import (
    CONFIG_FILE,
    GENERATION_FILE,
    INDEX_FILE,
    MANIFEST_FILE,
    SAVE_ID_KEY,
    SHARD_NAME,
    Manifest,
    TensorSpec,
    dtype_name,
    hash_json,
    hash_tensor,
    parse_manifest,
    parse_quantization_config,
)
from xgemm.formats.packed import check_int
from xgemm.formats.pretrained import (
    finish_transformers_model,
    load_foreign,
    load_gguf,
    load_pretrained,
    make_transformers_model,
)
from xgemm.formats.watch import tell

ModelT = TypeVar("ModelT", bound=nn.Module)

DEFAULT_SHARD_BYTES = 4 << 30
# What a save replaces, or removes: the other files of a directory are kept.
OURS = re.compile(
    rf"{SHARD_NAME.pattern}|{CONFIG_FILE}|{GENERATION_FILE}|{MANIFEST_FILE}|{INDEX_FILE}"
)
# What a tokenizer or processor leaves in a transformers directory; copied from the directory that
# the model came from.
TOKENIZER_FILES = (
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
    *("vocab.json", "merges.txt", "vocab.txt", "tokenizer.model", "spiece.model"),
    *("chat_template.jinja", "chat_template.json", "preprocessor_config.json"),
    "processor_config.json",
)


def save(
    model: nn.Module, directory: str | Path, *, max_shard_bytes: int = DEFAULT_SHARD_BYTES
) -> None:
    """Write `model` to `directory`, as a whole or not at all.

    The files are written to a folder inside `directory`, synced, and then moved out: an interrupted
    or failed save leaves an older checkpoint as it was. Of several saves at a time the last one
    stands. Files of the directory that are not a checkpoint's (a tokenizer's, a README) are kept. A
    directory that holds something else than an xgemm checkpoint is refused. The directory and the
    files that are replaced keep their owner, group, mode and access list as far as this process may
    set them; other files follow the umask. Needs safetensors.

    max_shard_bytes: bytes of tensors in one file; a larger tensor has a file of its own.

    Raises TypeError or ValueError for a tensor that a file cannot hold (sparse, quantized, complex
    other than complex64, without data), and OSError where the directory cannot be written.
    """
    _safetensors("save")
    if not isinstance(model, nn.Module):
        raise TypeError(f"save: model must be a torch.nn.Module, got {type(model).__name__}")
    check_int("save: max_shard_bytes", max_shard_bytes, 1, 2**62)
    model = unwrapped(model)
    tensors, tied = tensors_of(model, _storable)
    tensors.update(guards(tensors))
    target = real_path(directory, "save")
    save_id = uuid.uuid4().hex
    section = {**quantization_config(model), "save_id": save_id}
    with write_errors(target, "save"):
        if target.exists() and not target.is_dir():
            raise NotADirectoryError(f"save: {target} is a file, not a directory")
        with atomic.replacing(target, save_id, OURS, CONFIG_FILE, _refuse_foreign) as staging:
            _write_model_files(model, staging, section)
            files, specs = _write_tensors(tensors, staging, save_id, max_shard_bytes)
            documents = to_keep(read_documents(staging))
            manifest = Manifest(save_id, files, specs, tied, hash_json(section), documents)
            _write_json(staging / MANIFEST_FILE, dataclasses.asdict(manifest))


@overload
def load(
    directory: str | Path,
    model: None = None,
    verify: bool = True,
    device: torch.device | str | int | None = None,
    dtype: torch.dtype | None = None,
    *,
    fuse: bool = False,
    mesh: DeviceMesh | None = None,
    plan: Mapping[str, Any] | None = None,
    requantize: Mapping[str, Any] | None = None,
) -> nn.Module: ...


@overload
def load(
    directory: str | Path,
    model: ModelT,
    verify: bool = True,
    device: torch.device | str | int | None = None,
    dtype: torch.dtype | None = None,
    *,
    fuse: bool = False,
    mesh: DeviceMesh | None = None,
    plan: Mapping[str, Any] | None = None,
    requantize: Mapping[str, Any] | None = None,
) -> ModelT: ...


def load(
    directory: str | Path,
    model: nn.Module | None = None,
    verify: bool = True,
    device: torch.device | str | int | None = None,
    dtype: torch.dtype | None = None,
    *,
    fuse: bool = False,
    mesh: DeviceMesh | None = None,
    plan: Mapping[str, Any] | None = None,
    requantize: Mapping[str, Any] | None = None,
) -> nn.Module:
    """Read what `save`, or save_pretrained of a quantized model, wrote, and return the model.

    Without `model` also a directory of transformers' that another tool quantized to 4-bit integers
    (formats/foreign): the same codes, scales and zero points; and a GGUF file: its Q4_0, Q4_1 and
    Q4_K linears of a Llama packed, all else dequantized to `dtype`, or float32.

    model: the module to fill, of the architecture that was saved; its linear layers and experts
        become packed ones where the checkpoint says so. None makes a transformers model from
        config.json (never remote code), in eval mode.
    verify: compare each tensor with its sha256, and config.json and generation_config.json with
        what was saved. False takes them as they are now, after an edit that is meant.
    device: where tensors go; None leaves them where `model` has them (a meta tensor: the CPU).
    dtype: of floating-point tensors; None keeps `model`'s (of a meta tensor: the checkpoint's).
        The packed weights do not change.
    fuse: join the layers that read one tensor (q, k, v; gate, up), as `xgemm.fuse` does.
    mesh, plan: split the packed layers over the ranks of a device mesh, as
        `xgemm.distributed.parallelize` does. A rank reads its shares of them from the files, and no
        other bytes of them; `verify` compares what is read whole. Of what `save` wrote only.

    requantize: arguments of `quantize_weight` ({"method": "hqq", "group_size": 64}, say) for a
        directory of bitsandbytes (nf4), whose codes no integers hold: each weight is dequantized
        and quantized again. None refuses such a directory.

    A checkpoint that is damaged, mixed from two saves, of another layout version or for another
    model is refused by file and tensor name, before `model` is changed. Beside a save, the older
    checkpoint is read or the newer one.
    """
    _safetensors("load")
    path, given = real_path(directory, "load"), Path(directory)
    if plan is not None and mesh is None:
        raise ValueError("load: plan is for a mesh, got none")
    quantizer = None if requantize is None else _recipe(requantize)
    if given.suffix == ".gguf" and not given.is_dir():
        for name, value in (("model", model), ("mesh", mesh), ("requantize", requantize)):
            if value is not None:
                raise ValueError(f"load: {given} is a GGUF file: load it without {name}")
        loaded = load_gguf(given, device, dtype)
    else:
        loaded = atomic.read_whole(
            path,
            CONFIG_FILE,
            lambda found: _load_directory(
                found, model, verify, device, dtype, mesh, plan, quantizer
            ),
        )
    return _fused(loaded) if fuse else loaded


def _load_directory(
    path: Path,
    model: nn.Module | None,
    verify: bool,
    device: torch.device | str | int | None,
    dtype: torch.dtype | None,
    mesh: DeviceMesh | None,
    tp_plan: Mapping[str, Any] | None,
    requantize: Quantizer | None,
) -> nn.Module:
    safetensors = _safetensors("load")
    documents = read_documents(path)
    config = documents[CONFIG_FILE]
    if (source := foreign_section(path, config)) is not None:
        if model is not None or mesh is not None:
            raise ValueError(
                f"load: {source[0]}: quant_method must be 'xgemm', got "
                f"{source[1]['quant_method']!r}, where {'mesh' if model is None else 'model'} is "
                "given: load it without"
            )
        return load_foreign(path, config, source, device, dtype, requantize)
    if requantize is not None:
        raise ValueError(f"load: {path}: requantize is for bitsandbytes, got a directory of xgemm")
    specs = parse_quantization_config(path / CONFIG_FILE, config)
    written_by_save = "save_id" in config["quantization_config"]
    if written_by_save or present(path / MANIFEST_FILE):
        manifest = parse_manifest(path / MANIFEST_FILE, read_json(path / MANIFEST_FILE))
        _check_same_save(path, config, manifest)
        if verify:
            check_documents(path, documents, manifest)
    elif model is None:
        if mesh is not None:
            raise ValueError(
                f"load: {path} was written by save_pretrained: from_pretrained of transformers "
                "splits it by a tp_plan; or pass the model to fill"
            )
        return load_pretrained(path, config, device, dtype)
    else:
        manifest, verify = read_headers(safetensors, path), False
    made_here = model is None
    if model is None:
        model = make_transformers_model(path, config)
    plan = FillPlan(unwrapped(model), specs, manifest, path)
    # A caller's inference mode would make tensors that autograd refuses ever after.
    with torch.inference_mode(False), torch.no_grad():
        split: Collection[str] = ()
        if mesh is not None:
            from xgemm.distributed.loading import FileShares  # it imports this package

            shares = FileShares(plan, mesh, tp_plan)
            split = shares.names
        tensors = _read_tensors(safetensors, path, manifest, verify, split)
        if mesh is not None:
            shares.read(safetensors, path, partial(plan.place, device=device, dtype=dtype))
        plan.fill(tensors, device, dtype, split)
    if made_here:
        finish_transformers_model(model, path, documents)
    attach(model)
    return model


def _recipe(values: Mapping[str, Any]) -> Quantizer:
    from xgemm.quantize.weight import WeightRecipe  # its package imports this one

    return WeightRecipe.of("load: requantize", values)


def _fused(model: nn.Module) -> nn.Module:
    from xgemm.quantize.fuse import fuse  # its package imports this one

    return fuse(model)


# ---- what is saved ----


@functools.cache
def _storable(dtype: torch.dtype) -> bool:
    """Whether this version of safetensors writes tensors of `dtype`."""
    try:
        _safetensors("save").torch.save({"x": torch.empty(0, dtype=dtype)})
    except KeyError:
        return False
    return True


def _write_tensors(
    tensors: dict[str, torch.Tensor], staging: Path, save_id: str, max_shard_bytes: int
) -> tuple[dict[str, int], dict[str, TensorSpec]]:
    """Writes the shards, and an index where there are several; returns sizes and specs."""
    safetensors = _safetensors("save")
    files: dict[str, int] = {}
    specs: dict[str, TensorSpec] = {}
    shards = _plan_shards(tensors, max_shard_bytes)
    for file, names in shards.items():
        shard = {name: to_cpu(tensors[name]) for name in names}
        for name, tensor in shard.items():
            dtype, shape = dtype_name(tensor.dtype), tuple(tensor.shape)
            specs[name] = TensorSpec(file, dtype, shape, hash_tensor(tensor))
            tell(len(specs), len(tensors))
        try:
            safetensors.torch.save_file(
                shard, staging / file, metadata={"format": "pt", SAVE_ID_KEY: save_id}
            )
        except safetensors.SafetensorError as error:
            raise _as_os_error(error, staging / file) from error
        files[file] = (staging / file).stat().st_size
        # safetensors makes files that only their owner may read
        shutil.copymode(staging / CONFIG_FILE, staging / file)
    if len(shards) > 1:
        total = sum(t.numel() * t.element_size() for t in tensors.values())
        weight_map = {name: file for file, names in shards.items() for name in names}
        metadata = {"total_size": total, SAVE_ID_KEY: save_id}
        _write_json(staging / INDEX_FILE, {"metadata": metadata, "weight_map": weight_map})
    return files, specs


def _as_os_error(error: Exception, file: Path) -> OSError:
    """safetensors tells of a full disk in words: "... I/O error: ... (os error 28)"."""
    number = re.search(r"\(os error (\d+)\)", str(error))
    code = int(number[1]) if number else errno.EIO
    return OSError(code, os.strerror(code) if number else str(error), os.fspath(file))


def _plan_shards(tensors: dict[str, torch.Tensor], max_bytes: int) -> dict[str, list[str]]:
    """File name -> names of its tensors, in the model's order."""
    shards: list[list[str]] = [[]]
    size = 0
    for name, tensor in tensors.items():
        nbytes = tensor.numel() * tensor.element_size()
        if shards[-1] and nbytes > 0 and size + nbytes > max_bytes:
            shards.append([])
            size = 0
        shards[-1].append(name)
        size += nbytes
    if len(shards) == 1:
        return {"model.safetensors": shards[0]}
    count = len(shards)
    return {f"model-{i:05d}-of-{count:05d}.safetensors": s for i, s in enumerate(shards, 1)}


def _refuse_foreign(target: Path) -> None:
    """Refuse to replace what is not an xgemm checkpoint: it could be anything of the user's."""
    if (target / MANIFEST_FILE).is_file():
        return
    if set(target.iterdir()) - set(atomic.folders(target)):
        raise FileExistsError(f"save: {target} is neither empty nor an xgemm checkpoint")


def _write_model_files(model: nn.Module, staging: Path, section: dict[str, Any]) -> None:
    """config.json, and for a transformers model its generation config and tokenizer files."""
    config: dict[str, Any] = {}
    own: Any = getattr(model, "config", None)
    if callable(getattr(own, "to_json_string", None)) and callable(getattr(own, "to_dict", None)):
        config = json.loads(own.to_json_string())
        config["architectures"] = [type(model).__name__]
        generation = getattr(model, "generation_config", None)
        if generation is not None:
            generation.save_pretrained(staging)
        source = Path(getattr(own, "_name_or_path", "") or "/nonexistent")
        for name in TOKENIZER_FILES:
            if (source / name).is_file():
                shutil.copy2(source / name, staging / name)
    config["quantization_config"] = section
    _write_json(staging / CONFIG_FILE, config)


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=1) + "\n")


# ---- what is read ----


def _safetensors(where: str) -> Any:
    try:
        import safetensors
        import safetensors.torch
    except ImportError:
        raise ImportError(f"{where} needs safetensors: pip install safetensors") from None
    return safetensors


def _check_same_save(path: Path, config: dict[str, Any], manifest: Manifest) -> None:
    found = {CONFIG_FILE: config["quantization_config"].get("save_id")}
    if len(manifest.files) > 1:
        metadata = read_json(path / INDEX_FILE).get("metadata")
        found[INDEX_FILE] = metadata.get(SAVE_ID_KEY) if isinstance(metadata, dict) else None
    for file, save_id in found.items():
        if save_id != manifest.save_id:
            _refuse_mixed(path / file, save_id, manifest)


def _refuse_mixed(file: Path, save_id: Any, manifest: Manifest) -> None:
    raise ValueError(
        f"load: {file} is of another save than {MANIFEST_FILE} "
        f"(save id {save_id!r}, expected {manifest.save_id!r})"
        + ("" if save_id else f": if save_pretrained wrote it, remove {MANIFEST_FILE}")
    )


def _read_tensors(
    safetensors: Any, path: Path, manifest: Manifest, verify: bool, split: Collection[str] = ()
) -> dict[str, torch.Tensor]:
    """Every tensor of the manifest, in memory of its own, compared with what the manifest says.

    split: modules whose tensors are not read.
    """
    names: dict[str, list[str]] = {file: [] for file in manifest.files}
    for name, spec in manifest.tensors.items():
        names[spec.file].append(name)
    tensors = {}
    for file, size in manifest.files.items():
        _check_size(path / file, size, names[file])
        with open_safetensors(safetensors, path / file) as opened:
            save_id = (opened.metadata() or {}).get(SAVE_ID_KEY)
            if manifest.save_id and save_id != manifest.save_id:
                _refuse_mixed(path / file, save_id, manifest)
            if differing := set(opened.keys()) ^ set(names[file]):
                raise ValueError(
                    f"load: {path / file}: {min(differing)} is in the file or in "
                    f"{MANIFEST_FILE}, not in both"
                )
            for name in names[file]:
                if name.rpartition(".")[0] in split:
                    continue
                # A copy: aligned, and no longer at the mercy of the file.
                tensor = opened.get_tensor(name).clone()
                _check_tensor(path / file, name, tensor, manifest.tensors[name], verify)
                tensors[name] = tensor
                tell(len(tensors), len(manifest.tensors))
    return tensors


def _check_size(file: Path, expected: int, names: list[str]) -> None:
    if not present(file):
        raise FileNotFoundError(f"load: {file} is missing; it holds {', '.join(names[:3])}")
    with open_regular(file) as opened, read_errors(file):
        size = os.fstat(opened.fileno()).st_size
        if size != expected:
            lost = _first_tensor_past(opened, size)
            raise ValueError(
                f"load: {file} has {size} bytes, expected {expected}"
                + (f": truncated at tensor {lost}" if lost else "")
            )


def _first_tensor_past(file: BinaryIO, size: int) -> str | None:
    """The first tensor, in the file's order, that ends after `size`; for an error message."""
    length = int.from_bytes(file.read(8), "little")
    if length > min(size, MAX_JSON_BYTES):
        return None
    try:
        header = json.loads(file.read(length))
        ends = {
            name: entry["data_offsets"][1]
            for name, entry in header.items()
            if name != "__metadata__"
        }
        past = {name: end for name, end in ends.items() if 8 + length + end > size}
    except (ValueError, TypeError, KeyError, AttributeError, IndexError, RecursionError):
        return None
    return min(past, key=past.__getitem__) if past else None


def _check_tensor(
    file: Path, name: str, tensor: torch.Tensor, spec: TensorSpec, verify: bool
) -> None:
    dtype, shape = dtype_name(tensor.dtype), tuple(tensor.shape)
    if (dtype, shape) != (spec.dtype, spec.shape):
        raise ValueError(
            f"load: {file}: {name} is {dtype} {list(shape)}, {MANIFEST_FILE} says "
            f"{spec.dtype} {list(spec.shape)}"
        )
    if verify and (found := hash_tensor(tensor)) != spec.sha256:
        raise ValueError(
            f"load: {file}: {name} is not what was saved (sha256 {found}, expected {spec.sha256})"
        )
