"""`xgemm quantize`: a transformers directory or a GGUF file in, an xgemm directory out."""

from __future__ import annotations

import fnmatch
import json
import os
import shutil
import time
import warnings
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from rich.markup import escape
from rich.table import Table

import xgemm
from xgemm.cli.calibration import Calibration, load_tokenizer
from xgemm.cli.output import (
    check_writable,
    choose_device,
    log,
    out,
    print_json,
    table,
)
from xgemm.cli.progress import counted, import_transformers, step
from xgemm.formats.files import copy_regular, present, read_json_value
from xgemm.quantize.weight import CALIBRATED_METHODS, check_method, choose_clip
from xgemm.quoting import printable

# What a person needs beside the weights: of tokenizers, processors, sentence-transformers.
COMPANIONS = (
    *("tokenizer*", "special_tokens_map.json", "added_tokens.json", "vocab.*", "merges.txt"),
    *("*.tiktoken", "spiece.model", "sentencepiece*.model", "normalizer.json", "chat_template*"),
    *("preprocessor_config.json", "processor_config.json", "*_preprocessor_config.json"),
    *("modules.json", "config_sentence_transformers.json", "sentence_bert_config.json"),
    *("LICENSE*", "NOTICE*"),
)


@dataclass(frozen=True)
class Recipe:
    """How a model is quantized: the command's options."""

    method: str = "rtn"
    group_size: int = 128
    symmetric: bool = True
    clip: str | None = None
    skip: tuple[str, ...] = ()
    include: tuple[str, ...] = ()
    lm_head: bool = False
    scale_dtype: str = "auto"
    calibration: Calibration = field(default_factory=Calibration)

    @property
    def calibrated(self) -> bool:
        return self.method in CALIBRATED_METHODS


@dataclass(frozen=True)
class Source:
    """Where the float model comes from, and how it is read."""

    path: Path
    device: str = "cpu"
    trust_remote_code: bool = False
    drop: tuple[str, ...] = ()

    @property
    def gguf(self) -> bool:
        return self.path.is_file()


@dataclass(frozen=True)
class Output:
    """What the command writes beside DST."""

    as_json: bool = False
    report: Path | None = None  # JSON
    plot: Path | None = None  # PNG


SCALE_DTYPES = {"auto": None, "float16": torch.float16, "bfloat16": torch.bfloat16}


def run(source: Source, destination: Path, recipe: Recipe, output: Output) -> None:
    started = time.perf_counter()
    source = replace(source, device=choose_device("quantize", source.device))
    _check_arguments(source, destination, recipe)
    _check_output(output)
    import_transformers()
    model, taken = _load(source, recipe)
    _quantize(model, source, recipe)
    report = model.xgemm_report
    with counted(f"writing {destination}"):
        xgemm.save(model, destination)
        copied = copy_companions(source, destination)
    facts = _facts(source, destination, report, taken, copied, time.perf_counter() - started)
    if output.report is not None:
        output.report.write_text(json.dumps(facts, indent=2, allow_nan=False) + "\n")
    if output.plot is not None and report.errors:
        from xgemm.quantize.plot import plot_errors

        plot_errors(report, output.plot)
    if output.as_json:
        print_json(facts)
        return
    if report.errors:
        out.print(_error_table(report))
    out.print(printable(str(report)), markup=False, soft_wrap=True)
    if source.gguf:
        out.print(
            f"of the file's linears {len(taken)} were taken over as they are, without requantizing;"
            f" {len(report.quantized)} were dequantized by transformers and quantized again"
        )
    where = printable(f"{destination}, {facts['bytes_on_disk'] / 1e6:.1f} MB")
    out.print(f"wrote {where}, in {facts['seconds']:.0f} s", markup=False, soft_wrap=True)


def _check_arguments(source: Source, destination: Path, recipe: Recipe) -> None:
    """Everything that can be refused before anything is imported, read or written."""
    check_method("quantize: --method", recipe.method, calibrated=True)
    if recipe.calibrated:
        recipe.calibration.check()
    elif recipe.calibration != Calibration():
        raise ValueError(
            "quantize: --calibration, --samples, --sequence-length, --act-order, --rounding and "
            f"--resume are for --method {' or '.join(CALIBRATED_METHODS)}, not for "
            f"{recipe.method!r}"
        )
    choose_clip("quantize: --clip", recipe.method, recipe.clip)
    if recipe.scale_dtype not in SCALE_DTYPES:
        allowed = ", ".join(SCALE_DTYPES)
        raise ValueError(
            f"quantize: --scale-dtype must be one of {allowed}, got {recipe.scale_dtype!r}"
        )
    if destination.exists() and any(destination.iterdir()):
        raise FileExistsError(f"quantize: DST must be new or empty, got {destination}")
    folder = destination.resolve()
    parent = next(p for p in folder.parents if p.exists())
    for path in (folder, parent) if folder.exists() else (parent,):
        if not os.access(path, os.W_OK):
            raise PermissionError(f"quantize: DST: {path} may not be written")
    if source.gguf:
        if source.path.suffix != ".gguf":
            raise ValueError(
                f"quantize: SRC must be a directory or a .gguf file, got {source.path}"
            )
        return
    from xgemm.formats.directory import quantized_by, read_config

    method = quantized_by(source.path, read_config(source.path))
    if method is not None:
        raise ValueError(
            f"quantize: {source.path} is already quantized, by {method}: quantize the float model "
            "that it was made from"
        )


def _check_output(output: Output) -> None:
    if output.report is not None:
        check_writable("quantize: --report", output.report)
    if output.plot is not None:
        check_writable("quantize: --plot", output.plot)
        from xgemm.bench.plot import load_pyplot

        load_pyplot()


def _error_table(report: Any) -> Table:
    known = report.error.outputs is not None
    columns = ["layers", "", "weights", *(["outputs"] if known else []), "bits", "largest error"]
    rows = []
    for kind, names in report.layers_by_kind().items():
        error = report.error_of(names)
        worst = report.worst(names)
        outputs = [f"{error.outputs:.2%}"] if known else []
        largest = f"{report.errors[worst].shown:.2%} {worst}"
        row = [kind, str(len(names)), f"{error.weights:.2%}", *outputs]
        rows.append([*row, f"{error.bits_per_weight:.2f}", largest])
    safe = [[escape(printable(cell)) for cell in row] for row in rows]
    return table("relative error by kind of layer", columns, safe)


def _load(source: Source, recipe: Recipe) -> tuple[Any, list[str]]:
    """The model, and the names of those linears that are 4-bit already (of a GGUF file)."""
    from xgemm.hf.source import load_float

    if recipe.calibrated:
        source = replace(source, device="cpu")  # blocks go to the device one at a time
    if not source.gguf:
        with counted(f"loading {source.path}"):
            model = load_float(
                source.path,
                device=source.device,
                trust_remote_code=source.trust_remote_code,
                drop=source.drop,
            )
        return model, []
    from xgemm.hf.gguf_model import load_gguf

    with step(f"reading {source.path.name}") as shown:
        model, taken = load_gguf(
            source.path, lambda done, total, name: shown.update(done, total), recipe.skip
        )
    return model.to(source.device), taken


def _quantize(model: Any, source: Source, recipe: Recipe) -> None:
    calibrated: dict[str, Any] = {}
    if recipe.calibrated:
        data = recipe.calibration
        tokenizer = load_tokenizer(source.path, source.gguf, source.trust_remote_code)
        calibrated = {
            "calibration": data.batches(tokenizer, model),
            "options": data.options,
            "device": source.device,
            "resume": data.resume,
        }
    with warnings.catch_warnings(record=True) as caught, step("quantizing", total=1) as shown:
        warnings.simplefilter("always")
        xgemm.quantize(
            model,
            method=recipe.method,
            group_size=recipe.group_size,
            symmetric=recipe.symmetric,
            clip=recipe.clip,
            skip=recipe.skip,
            include=recipe.include,
            lm_head=recipe.lm_head,
            scale_dtype=SCALE_DTYPES[recipe.scale_dtype],
            **calibrated,
            progress=lambda done, total, name: shown.update(
                done, total, f"quantizing {name}".rstrip()
            ),
        )
    for warning in caught:
        text = printable(f"warning: {warning.message}")
        log.print(text, style="yellow", markup=False, soft_wrap=True)


def copy_companions(source: Source, destination: Path) -> list[str]:
    """Tokenizer, processor and the like; of a GGUF file the tokenizer that transformers makes."""
    if source.gguf:
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(
            source.path.parent,
            gguf_file=source.path.name,
            local_files_only=True,
            trust_remote_code=source.trust_remote_code,
        )
        return [Path(name).name for name in tokenizer.save_pretrained(destination)]
    copied = []
    for path in sorted(source.path.iterdir()):
        if path.is_file() and any(fnmatch.fnmatchcase(path.name, p) for p in COMPANIONS):
            copy_regular(path, destination / path.name, "quantize")
            copied.append(path.name)
    for folder in _module_folders(source.path):
        _copy_folder(source.path / folder, destination / folder)
        copied.append(f"{folder}/")
    return copied


def _copy_folder(source: Path, destination: Path) -> None:
    """Its regular files and those of the folders in it; a link to a folder could lead anywhere."""

    def links(folder: str, names: list[str]) -> list[str]:
        paths = (Path(folder, name) for name in names)
        return [path.name for path in paths if path.is_symlink() and path.is_dir()]

    def copy(file: str, to: str) -> None:
        copy_regular(Path(file), Path(to), "quantize")

    shutil.copytree(source, destination, ignore=links, copy_function=copy, dirs_exist_ok=True)


def _module_folders(directory: Path) -> list[str]:
    """The folders of a sentence-transformers directory: pooling and what follows the model."""
    path = directory / "modules.json"
    modules = read_json_value(path, "quantize") if present(path) else []
    if not isinstance(modules, list):
        raise ValueError(f"quantize: {path}: expected a list, got {type(modules).__name__}")
    names = [str(module.get("path", "")) for module in modules if isinstance(module, dict)]
    return [name for name in names if _is_folder_of(directory, name)]


def _is_folder_of(directory: Path, name: str) -> bool:
    if name in ("", "..") or Path(name).name != name:
        return False
    return (directory / name).is_dir() and not (directory / name).is_symlink()


def _facts(
    source: Source,
    destination: Path,
    report: Any,
    taken: list[str],
    copied: list[str],
    seconds: float,
) -> dict[str, Any]:
    size = sum(path.stat().st_size for path in destination.rglob("*") if path.is_file())
    return {
        "source": str(source.path),
        "destination": str(destination),
        **report.as_dict(),
        "taken_over": taken,
        "copied": copied,
        "bytes_on_disk": size,
        "seconds": seconds,
    }
