"""`xgemm inspect`: what an xgemm checkpoint holds, from its config and manifest alone."""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from xgemm.cli.output import out, print_json, table
from xgemm.formats.guard import guard_names, guarded_name
from xgemm.formats.manifest import (
    CONFIG_FILE,
    MANIFEST_FILE,
    ExpertsSpec,
    Manifest,
    ModuleSpec,
    parse_manifest,
    parse_quantization_config,
    read_json,
)
from xgemm.formats.packed import LAYOUT_VERSION, Layout


def run(directory: Path, as_json: bool) -> None:
    config_path, manifest_path = directory / CONFIG_FILE, directory / MANIFEST_FILE
    config = read_json(config_path)
    modules = parse_quantization_config(config_path, config)
    manifest = parse_manifest(manifest_path, read_json(manifest_path))
    for name, size in manifest.files.items():
        found = (directory / name).stat().st_size
        if found != size:
            raise ValueError(f"inspect: {name} must be {size} bytes long, got {found}")
    facts = _facts(directory, config, modules, manifest)
    if as_json:
        print_json(facts)
    else:
        _print(facts)


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
        if guarded_name(name) in guards or name in guards:
            continue
        itemsize = getattr(torch, tensor.dtype).itemsize
        size = math.prod(tensor.shape) * itemsize
        others[name] = {"dtype": tensor.dtype, "shape": list(tensor.shape), "bytes": size}
    return {
        "directory": str(directory),
        "architectures": config.get("architectures"),
        "layout_version": LAYOUT_VERSION,
        "save_id": manifest.save_id,
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
        key = (linear["n"], linear["k"], linear["group_size"], scales, linear["zeros"],
               linear["act_order"], linear["bias"])  # fmt: skip
        groups.setdefault(key, []).append(linear["bytes"])
    rows = [
        [f"[{n}, {k}]", str(len(sizes)), str(group), scales, *map(_yes, flags),
         f"{sum(sizes) / 1e6:.2f}"]
        for (n, k, group, scales, *flags), sizes in groups.items()
    ]  # fmt: skip
    columns = ["W [N, K]", "layers", "group", "scales", "zeros", "act-order", "bias", "MB"]
    out.print(
        f"{facts['directory']}: {', '.join(facts['architectures'] or ['no architecture named'])},"
        f" packed W4, layout version {facts['layout_version']}",
        markup=False,
        soft_wrap=True,
    )
    out.print(
        table("4-bit linears", columns, [[cell.replace("[", r"\[") for cell in r] for r in rows])
    )
    others = facts["other_tensors"]
    size = sum(tensor["bytes"] for tensor in others.values())
    out.print(f"other tensors: {len(others)}, {size / 1e6:.2f} MB; tied: {len(facts['tied'])}")
    for name, size in facts["files"].items():
        out.print(f"file {name}: {size / 1e6:.2f} MB")


def _yes(flag: bool) -> str:
    return "yes" if flag else "no"
