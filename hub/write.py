"""Writes the folder that a kernel repository of the Hugging Face Hub holds.

    python hub/write.py FOLDER          (`make hub`: dist/hub)

FOLDER/build/<variant>/ has a metadata.json, an __init__.py, layers.py and the xgemm package with
its op library. The library is built on torch's stable ABI, so one serves every torch from 2.10 on;
a variant's name says the ABI and the CUDA version that torch is for. A library with CUDA makes two
variants, as it serves CPU-only torch as well. Upload FOLDER with `hf upload --repo-type kernel`.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

from xgemm._library import LIBRARY_PATH, build_info

KERNEL = Path(__file__).resolve().parent / "kernel"
PACKAGE = LIBRARY_PATH.parent
VERSION = 1  # of the kernel's interface, as the Hub counts it
LEFT_OUT = ("cli", "bench", "__main__.py", "__pycache__")
CARD = """---
license: apache-2.0
tags:
- kernel
---
# xgemm

Matrix multiplication kernels: dense, 4-bit weights, reductions. Layers for `kernels.kernelize`:
`Linear` (for `torch.nn.Linear`) and `QuantLinear` (for a packed 4-bit weight).
"""


def cuda_archs(archs: list[str]) -> list[str]:
    """["80+90+PTX", "90a"] as the Hub writes it: ["8.0", "9.0", "8.0+PTX", "9.0a"]."""
    found: list[str] = []
    for arch in archs:
        numbers = [part for part in arch.split("+") if part != "PTX"]
        dotted = [re.sub(r"^(\d+)(\d)", r"\1.\2", number) for number in numbers]
        found += [*dotted, f"{dotted[0]}+PTX"] if arch.endswith("+PTX") else dotted
    return found


def variants(info: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The variants that the library serves, and the backend of each as metadata.json has it."""
    abi = "torch-stable-abi" + info["torch_target"].replace(".", "")
    found: dict[str, dict[str, Any]] = {}
    if info["cuda"] is not None:
        cuda = "cu" + info["cuda"].replace(".", "")
        archs = cuda_archs(info["cuda_archs"])
        found[f"{abi}-{cuda}-x86_64-linux"] = {"type": "cuda", "archs": archs}
    found[f"{abi}-cpu-x86_64-linux"] = {"type": "cpu"}
    return found


def metadata(info: dict[str, Any], backend: dict[str, Any]) -> dict[str, Any]:
    commit = (info["git_commit"] or info["version"]).replace("-", "_").replace(".", "_")
    return {
        "id": f"_xgemm_{backend['type']}_{commit}",
        "name": "xgemm",
        "version": VERSION,
        "license": "Apache-2.0",
        "python-depends": [],
        "backend": backend,
    }


def link_or_copy(source: str, target: str) -> str:
    """The variants share a library, tens of megabytes large."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
    return target


def write(folder: Path, package: Path, info: dict[str, Any]) -> list[Path]:
    """Makes FOLDER anew, and returns the folders of the variants."""
    build = folder / "build"
    if build.exists():
        shutil.rmtree(build)
    written: list[Path] = []
    for name, backend in variants(info).items():
        target = build / name
        shutil.copytree(KERNEL, target, ignore=shutil.ignore_patterns("__pycache__"))
        source, copy = (
            (package, shutil.copy2) if not written else (written[0] / "xgemm", link_or_copy)
        )
        ignore = shutil.ignore_patterns(*LEFT_OUT)
        shutil.copytree(source, target / "xgemm", ignore=ignore, copy_function=copy)
        text = json.dumps(metadata(info, backend), indent=2) + "\n"
        (target / "metadata.json").write_text(text)
        written.append(target)
    (folder / "README.md").write_text(CARD)
    return written


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    info = build_info()
    if not info:
        raise SystemExit(f"hub: {PACKAGE} holds no record of its build: run `make build`")
    for path in write(folder, PACKAGE, info):
        size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
        print(f"{path}: {size / 2**20:.1f} MiB")


if __name__ == "__main__":
    main()
