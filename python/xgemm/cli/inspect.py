"""`xgemm inspect`: what an xgemm checkpoint holds, from its config and manifest alone."""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from rich.markup import escape

from xgemm.cli.output import out, print_json, table
from xgemm.formats.directory import quantized_by, read_config
from xgemm.formats.files import file_size, present, read_json
from xgemm.formats.guard import HINT, guard_names, guarded_name
from xgemm.formats.headers import read_headers
from xgemm.formats.manifest import (
    CONFIG_FILE,
    MANIFEST_FILE,
    QUANT_METHOD,
    ExpertsSpec,
    Manifest,
    ModuleSpec,
    parse_manifest,
    parse_quantization_config,
)
from xgemm.formats.packed import LAYOUT_VERSION, Layout
from xgemm.formats.trust import refuse_foreign_names
from xgemm.quoting import MOST, printable


def run(directory: Path, as_json: bool) -> None:
    config = _xgemm_config(directory)
    refuse_foreign_names(directory / CONFIG_FILE, config, "inspect")
    modules = parse_quantization_config(directory / CONFIG_FILE, config)
    manifest = _read_manifest(directory)
    for name, size in manifest.files.items():
        path = directory / name
        found = file_size(path, "inspect") if present(path) else None
        if found != size:
            raise ValueError(
                f"inspect: {path} must be {size} bytes long, "
                + ("and is missing" if found is None else f"got {found}")
            )
    facts = _facts(directory, config, modules, manifest)
    if as_json:
        print_json(facts)
    else:
        _print(facts)


def _xgemm_config(directory: Path) -> dict[str, Any]:
    """config.json, of an xgemm directory: another is refused by what it is."""
    config = read_config(directory)
    method = quantized_by(directory, config)
    names = config.get("architectures")
    kind = names[0] if isinstance(names, list) and names else "no architecture named"
    if method is None:
        raise ValueError(
            f"inspect: {directory} is a float model's directory ({kind}), not an xgemm checkpoint: "
            f"xgemm quantize {directory} NEW makes one"
        )
    if method != QUANT_METHOD:
        raise ValueError(f"inspect: {directory} ({kind}) is quantized by {method}, not by xgemm")
    return config


def _read_manifest(directory: Path) -> Manifest:
    """What the directory says of its tensors; transformers' save_pretrained writes no manifest."""
    path = directory / MANIFEST_FILE
    if present(path):
        return parse_manifest(path, read_json(path))
    import safetensors

    return read_headers(safetensors, directory)


def _facts(
    directory: Path,
    config: dict[str, Any],
    modules: dict[str, ModuleSpec | ExpertsSpec],
    manifest: Manifest,
) -> dict[str, Any]:
    linears = {}
    for name, spec in modules.items():
        if isinstance(spec, ModuleSpec):
            linears[name] = {**asdict(spec), "bytes": _bytes(spec)}
            continue
        for projection, form in spec.projections.items():  # one weight [N, K] for each expert
            for e in range(spec.num_experts):
                linears[f"{name}.{projection}.{e}"] = {**asdict(form), "bytes": _bytes(form)}
    others = {}
    guards = set(guard_names(manifest.tensors))
    for name, tensor in manifest.tensors.items():
        if guarded_name(name) in guards or name in guards or name.endswith(HINT):
            continue
        itemsize = getattr(torch, tensor.dtype).itemsize
        size = math.prod(tensor.shape) * itemsize
        others[name] = {"dtype": tensor.dtype, "shape": list(tensor.shape), "bytes": size}
    return {
        "directory": str(directory),
        "architectures": config.get("architectures"),
        "layout_version": LAYOUT_VERSION,
        "save_id": manifest.save_id or None,
        "files": manifest.files,
        "linears": linears,
        "other_tensors": others,
        "tied": manifest.tied,
    }


def _bytes(spec: ModuleSpec) -> int:
    return Layout(spec.n, spec.k, spec.group_size, spec.zeros).nbytes


def _print(facts: dict[str, Any]) -> None:
    groups: dict[tuple[Any, ...], list[int]] = {}
    for linear in facts["linears"].values():
        scales = "bf16" if linear["bf16_scales"] else "fp16"
        codes = "mxfp4" if linear["fp4"] else "int4"
        key = (linear["n"], linear["k"], codes, linear["group_size"], scales, linear["zeros"],
               linear["act_order"], linear["bias"])  # fmt: skip
        groups.setdefault(key, []).append(linear["bytes"])
    rows = [
        [f"[{n}, {k}]", str(len(sizes)), codes, str(group), scales, *map(_yes, flags),
         f"{sum(sizes) / 1e6:.2f}"]
        for (n, k, codes, group, scales, *flags), sizes in groups.items()
    ]  # fmt: skip
    columns = ["W [N, K]", "layers", "codes", "group", "scales", "zeros", "act-order", "bias", "MB"]
    names = facts["architectures"] or ["no architecture named"]
    names = [str(name)[:MOST] for name in names]
    _say(
        f"{facts['directory']}: {', '.join(names)}, packed W4, layout version"
        f" {facts['layout_version']}"
    )
    out.print(table("4-bit linears", columns, [[escape(cell) for cell in row] for row in rows]))
    others = facts["other_tensors"]
    size = sum(tensor["bytes"] for tensor in others.values())
    _say(f"other tensors: {len(others)}, {size / 1e6:.2f} MB; tied: {len(facts['tied'])}")
    for name, size in facts["files"].items():
        _say(f"file {name}: {size / 1e6:.2f} MB")
    if facts["save_id"] is None:
        _say("no manifest: written by save_pretrained, so its bytes cannot be checked")


def _say(text: str) -> None:
    """What a file says is shown, and neither obeyed nor folded."""
    out.print(printable(text), markup=False, soft_wrap=True)


def _yes(flag: bool) -> str:
    return "yes" if flag else "no"
