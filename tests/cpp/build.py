"""Builds the pybind11 module that shows the device-free C++ to pytest. It is not shipped."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sysconfig
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
OUTPUT_FOLDER = ROOT / "build" / "tests"
# The bindings, and the sources of csrc/ they call: none needs torch or a CUDA toolkit. Files named
# select.cpp and plan.cpp hold the choice of a CUDA kernel.
SOURCES = (
    "tests/cpp/bindings.cpp",
    "tests/cpp/bindings_gemm.cpp",
    "tests/cpp/bindings_w4a16.cpp",
    "tests/cpp/bindings_reduce.cpp",
    "csrc/cpu/isa/isa.cpp",
    *sorted(
        path.relative_to(ROOT).as_posix()
        for family in ("gemm", "reduce", "w4a16")
        for name in ("select", "plan")
        for path in (ROOT / "csrc/cuda" / family).rglob(f"{name}.cpp")
    ),
)

RULES = """\
rule cxx
  command = {cxx} -std=c++20 -O1 -fPIC -fvisibility=hidden -Wall -Wextra -I{root}/csrc $
      -isystem {pybind11} -isystem {python} -MD -MF $out.d -c $in -o $out
  depfile = $out.d
  deps = gcc
rule link
  command = {cxx} -shared $in -o $out
"""


def build() -> Path:
    """The module's path, rebuilt when a file it is made of has changed."""
    import ninja
    import pybind11

    module = OUTPUT_FOLDER / f"xgemm_testing{sysconfig.get_config_var('EXT_SUFFIX')}"
    plan = RULES.format(
        cxx=os.environ.get("CXX", "g++"),
        root=ROOT,
        pybind11=pybind11.get_include(),
        python=sysconfig.get_path("include"),
    )
    objects = [f"{OUTPUT_FOLDER / source}.o" for source in SOURCES]
    for source, target in zip(SOURCES, objects, strict=True):
        plan += f"build {target}: cxx {ROOT / source}\n"
    plan += f"build {module}: link {' '.join(objects)}\n"

    OUTPUT_FOLDER.mkdir(parents=True, exist_ok=True)
    # Several pytest processes may come here at once.
    with open(OUTPUT_FOLDER / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        (OUTPUT_FOLDER / "build.ninja").write_text(plan)
        command = [str(Path(ninja.BIN_DIR, "ninja")), "-C", str(OUTPUT_FOLDER)]
        result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode != 0:
        raise RuntimeError(f"tests/cpp did not build:\n{result.stdout}{result.stderr}")
    return module


if __name__ == "__main__":
    print(build())
