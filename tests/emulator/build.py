"""Builds the CUDA kernels of csrc/ for the CPU, against the emulator, as a module for pytest."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sysconfig
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
OUTPUT_FOLDER = ROOT / "build" / "emulator"
KERNELS = "csrc/cuda"  # every .cu and .cpp below it

# The stand-ins for the CUDA toolkit's headers and for csrc/cuda/ptx come first.
RULES = """\
flags = -std=c++20 -O1 -fPIC -fvisibility=hidden -fno-strict-aliasing -Wall -Wextra $
    -Wno-unknown-pragmas -Wno-clobbered -I{root}/tests/emulator/include -I{root}/tests $
    -I{root}/csrc -isystem {pybind11} -isystem {python}
rule cxx
  command = {cxx} $flags -MD -MF $out.d -c $in -o $out
  depfile = $out.d
  deps = gcc
rule kernel
  command = {cxx} $flags -D__CUDA_ARCH_FEAT_SM90_ALL -include cuda_runtime.h $
      -fsanitize=alignment,bounds,shift -fsanitize-undefined-trap-on-error $
      -MD -MF $out.d -c -x c++ $in -o $out
  depfile = $out.d
  deps = gcc
rule link
  command = {cxx} -shared $in -o $out
"""


def sources() -> list[Path]:
    own, kernels = (ROOT / "tests" / "emulator").iterdir(), (ROOT / KERNELS).rglob("*")
    return sorted(path for path in (*own, *kernels) if path.suffix in {".cu", ".cpp"})


def build() -> Path:
    """The module's path, rebuilt when a file it is made of has changed."""
    import ninja
    import pybind11

    module = OUTPUT_FOLDER / f"xgemm_emulator{sysconfig.get_config_var('EXT_SUFFIX')}"
    plan = RULES.format(
        cxx=os.environ.get("CXX", "g++"),
        root=ROOT,
        pybind11=pybind11.get_include(),
        python=sysconfig.get_path("include"),
    )
    objects = []
    for source in sources():
        objects.append(f"{OUTPUT_FOLDER / source.relative_to(ROOT)}.o")
        rule = "kernel" if source.suffix == ".cu" else "cxx"
        plan += f"build {objects[-1]}: {rule} {source}\n"
    plan += f"build {module}: link {' '.join(objects)}\n"

    OUTPUT_FOLDER.mkdir(parents=True, exist_ok=True)
    # Several pytest processes may come here at once.
    with open(OUTPUT_FOLDER / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        (OUTPUT_FOLDER / "build.ninja").write_text(plan)
        command = [str(Path(ninja.BIN_DIR, "ninja")), "-C", str(OUTPUT_FOLDER)]
        result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode != 0:
        raise RuntimeError(f"tests/emulator did not build:\n{result.stdout}{result.stderr}")
    return module


if __name__ == "__main__":
    print(build())
