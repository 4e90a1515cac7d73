"""Arrows point down only: who may include or import whom, read from the sources themselves."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SOURCE_SUFFIXES = {".h", ".inl", ".cpp", ".cu", ".cuh"}

# The stable ABI, and nothing else of libtorch.
STABLE_TORCH = (
    "torch/csrc/stable/",
    "torch/headeronly/",
    "torch/csrc/inductor/aoti_torch/c/shim.h",
)
# Headers of libtorch's C++ API, of Python, and of what binds the two: nowhere in the library.
FORBIDDEN_EVERYWHERE = re.compile(r"(ATen|c10|caffe2|pybind11)/|Python\.h|torch/(extension|all)\.h")
CUDA_HEADER = re.compile(r"cuda|cooperative_groups|mma\.h|nv/|cutlass|cute/|cub/|thrust/")

# _xgemm_command is the console script's, lies beside the package and needs nothing else.
ALLOWED = {"torch", "xgemm", "_xgemm_command"}
# Packages of the core that a user imports on purpose, and that may need extras.
OPTIONAL_PACKAGES = {"cli", "hf", "sglang", "vllm"}


def layer_of(path: str) -> str:
    """The layer of a file under csrc/: "common", "cuda/tile", "cuda/gemm", "cpu", "ops" ..."""
    parts = Path(path).parts
    if parts[0] in ("cuda", "cpu"):
        return parts[0] if len(parts) == 2 else f"{parts[0]}/{parts[1]}"
    return parts[0]


def may_include(source: str, target: str) -> bool:
    """Whether the file `source` may include the file `target`, both relative to csrc/."""
    here, there = layer_of(source), layer_of(target)
    if here == there or there == "common":
        return True
    if here in ("common", "w4"):
        return False
    if here == "ops":
        # A family shows its api.h and, on CUDA, the choice of a kernel; what several families share
        # lies directly in cpu/ or cuda/.
        shown = target in (f"{there}/api.h", f"{there}/select.h")
        return there in ("w4", "cpu", "cuda", "cpu/isa") or shown
    side = here.partition("/")[0]
    helpers = {
        "cuda": ["cuda/ptx", "cuda/tile", "cuda/choose", "cuda"],
        "cpu": ["cpu/isa", "cpu"],
    }[side]
    if here in helpers:
        return there in helpers[: helpers.index(here)] or (there == "w4" and here != "cuda/ptx")
    return there == "w4" or there in helpers


def system_violation(source: str, header: str) -> str | None:
    if FORBIDDEN_EVERYWHERE.match(header):
        return "is outside libtorch's stable ABI"
    if header.startswith("torch/"):
        if not source.startswith("ops/"):
            return "is torch's, and only csrc/ops sees torch"
        if not header.startswith(STABLE_TORCH):
            return "is outside libtorch's stable ABI"
    if CUDA_HEADER.match(header) and source.startswith("cpu/"):
        return "is CUDA's, and csrc/cpu is built without it"
    return None


def include_violations(csrc: Path) -> list[str]:
    found = []
    for path in sorted(p for p in csrc.rglob("*") if p.suffix in SOURCE_SUFFIXES):
        source = path.relative_to(csrc).as_posix()
        for kind, header in re.findall(r'^\s*#\s*include\s*([<"])([^">]+)', path.read_text(), re.M):
            beside = path.parent / header
            if kind == '"' and beside.is_file() and not (csrc / header).is_file():
                found.append(f"{source} includes {header}, which must be named from csrc/")
            elif kind == '"' and (csrc / header).is_file():
                if not may_include(source, header):
                    found.append(f"{source} includes {header}, which its layer may not")
            elif reason := system_violation(source, header):
                found.append(f"{source} includes {header}, which {reason}")
    return found


def imports_at_load(tree: ast.Module) -> list[ast.Import | ast.ImportFrom]:
    """The imports that run with the module itself: not those in functions, nor those for types."""
    found: list[ast.Import | ast.ImportFrom] = []

    def visit(nodes: list[ast.stmt]) -> None:
        for node in nodes:
            if isinstance(node, ast.Import | ast.ImportFrom):
                found.append(node)
            elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
                visit(node.orelse)
            elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                for name in ("body", "orelse", "finalbody"):
                    visit(getattr(node, name, []))
                for handler in getattr(node, "handlers", []):
                    visit(handler.body)

    visit(tree.body)
    return found


def import_violations(package: Path) -> list[str]:
    found = []
    for path in sorted(package.rglob("*.py")):
        inside = path.relative_to(package)
        if inside.parts[0] in OPTIONAL_PACKAGES:
            continue
        for node in imports_at_load(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom):
                module = "xgemm" if node.level else (node.module or "")
                names = [f"{module}.{alias.name}" for alias in node.names]
                if node.level and node.module:
                    names = [f"xgemm.{node.module}"]
                elif not node.level:
                    names.append(module)
            else:
                names = [alias.name for alias in node.names]
            for name in names:
                top, _, rest = name.partition(".")
                optional = top == "xgemm" and rest.partition(".")[0] in OPTIONAL_PACKAGES
                if optional or top not in ALLOWED | sys.stdlib_module_names:
                    found.append(f"{inside} imports {name} when it is imported")
    return found


def test_no_include_points_up() -> None:
    assert include_violations(ROOT / "csrc") == []


def test_core_imports_torch_and_the_standard_library_only() -> None:
    assert import_violations(ROOT / "python" / "xgemm") == []


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ("cuda/gemm/select.cpp", "#include <torch/csrc/stable/tensor.h>"),
        ("common/status.h", "#include <torch/headeronly/util/Half.h>"),
        ("ops/mul.cpp", "#include <ATen/ATen.h>"),
        ("ops/mul.cpp", "#include <torch/csrc/api/include/torch/torch.h>"),
        ("ops/mul.cpp", "#include <Python.h>"),
        ("ops/mul.cpp", '#include "cpu/sgemm/driver.h"'),
        ("cpu/w4a16/gemm.cpp", '#include "cpu/sgemm/api.h"'),
        ("cpu/sgemm/driver.cpp", '#include "cuda/gemm/api.h"'),
        ("cpu/sgemm/driver.cpp", '#include "driver.h"'),
        ("cpu/isa/isa.h", '#include "cpu/sgemm/api.h"'),
        ("cpu/isa/isa.h", "#include <cuda_runtime.h>"),
        ("cuda/ptx/wgmma.h", '#include "cuda/tile/swizzle.h"'),
        ("cuda/tile/swizzle.h", '#include "cuda/gemm/api.h"'),
        ("common/math.h", '#include "w4/packed_layout.h"'),
        ("w4/packed_layout.h", '#include "ops/checks.h"'),
    ],
)
def test_planted_include_is_caught(tmp_path: Path, source: str, line: str) -> None:
    for name in (
        *("cpu/sgemm/driver.h", "cpu/sgemm/api.h", "cuda/gemm/api.h", "cuda/tile/swizzle.h"),
        *("w4/packed_layout.h", "ops/checks.h", source),
    ):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("#include <cstdint>\n")
    assert include_violations(tmp_path) == []
    (tmp_path / source).write_text(f"#pragma once\n  {line}\n")
    assert len(include_violations(tmp_path)) == 1


@pytest.mark.parametrize(
    "text",
    [
        "import numpy",
        "from safetensors.torch import save_file",
        "try:\n    import transformers\nexcept ImportError:\n    pass",
        "class Lazy:\n    import rich",
        "from xgemm.cli import main",
        "from xgemm import hf",
        "from .hf import load",
        "from . import cli",
    ],
)
def test_planted_import_is_caught(tmp_path: Path, text: str) -> None:
    harmless = (
        "from __future__ import annotations\n"
        "import os.path\nimport torch.nn as nn\nfrom xgemm import _library\nfrom . import ops\n"
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import transformers\n"
        "def load():\n    import safetensors\n"
    )
    module = tmp_path / "nn.py"
    module.write_text(harmless)
    (tmp_path / "hf").mkdir()
    (tmp_path / "hf" / "__init__.py").write_text("import transformers\n")
    assert import_violations(tmp_path) == []
    module.write_text(harmless + text + "\n")
    assert import_violations(tmp_path)
