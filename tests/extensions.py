"""The extension modules that only tests use, built by ninja where a source has changed.

`testing` (tests/cpp) shows the device-free C++: index maps, tables, the choice of kernels.
`emulator` (tests/emulator) is the CUDA kernels of csrc/, compiled for the CPU.

    python tests/extensions.py [testing] [emulator]      builds them and prints where they are
"""

from __future__ import annotations

import fcntl
import importlib.util
import os
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[1]

RULES = """\
flags = -std=c++20 -O1 -fPIC -fvisibility=hidden -Wall -Wextra {flags} -I{root}/csrc $
    -isystem {pybind11} -isystem {python}
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


def _testing_sources() -> Iterable[Path]:
    """The bindings, and what they call: none needs torch or a CUDA toolkit.

    Files named select*.cpp, plan.cpp and explain.cpp hold the choice of a CUDA kernel.
    """
    yield from (ROOT / "tests" / "cpp").glob("*.cpp")
    yield ROOT / "csrc" / "cpu" / "isa" / "isa.cpp"
    for name in ("select*", "plan", "explain"):
        yield from (ROOT / "csrc" / "cuda").rglob(f"{name}.cpp")


def _emulator_sources() -> Iterable[Path]:
    kernels = (ROOT / "csrc" / "cuda").rglob("*")
    for path in (*(ROOT / "tests" / "emulator").iterdir(), *kernels):
        if path.suffix in {".cu", ".cpp"}:
            yield path


@dataclass(frozen=True)
class Extension:
    name: str
    folder: Path
    sources: Callable[[], Iterable[Path]]
    flags: str = ""

    def build(self) -> Path:
        """The module's path."""
        import ninja
        import pybind11

        module = self.folder / f"{self.name}{sysconfig.get_config_var('EXT_SUFFIX')}"
        plan = RULES.format(
            cxx=os.environ.get("CXX", "g++"),
            flags=self.flags,
            root=ROOT,
            pybind11=pybind11.get_include(),
            python=sysconfig.get_path("include"),
        )
        objects = []
        for source in sorted(self.sources()):
            objects.append(f"{self.folder / source.relative_to(ROOT)}.o")
            rule = "kernel" if source.suffix == ".cu" else "cxx"
            plan += f"build {objects[-1]}: {rule} {source}\n"
        plan += f"build {module}: link {' '.join(objects)}\n"

        self.folder.mkdir(parents=True, exist_ok=True)
        # Several pytest processes may come here at once.
        with open(self.folder / ".lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            (self.folder / "build.ninja").write_text(plan)
            command = [str(Path(ninja.BIN_DIR, "ninja")), "-C", str(self.folder)]
            result = subprocess.run(command, capture_output=True, text=True)
        if result.returncode != 0:
            raise RuntimeError(f"{self.name} did not build:\n{result.stdout}{result.stderr}")
        return module

    def load(self) -> ModuleType:
        """The module, built first."""
        spec = importlib.util.spec_from_file_location(self.name, self.build())
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module


TESTING = Extension("xgemm_testing", ROOT / "build" / "tests", _testing_sources)
# The stand-ins for the CUDA toolkit's headers and for csrc/cuda/ptx come first.
EMULATOR = Extension(
    "xgemm_emulator",
    ROOT / "build" / "emulator",
    _emulator_sources,
    "-fno-strict-aliasing -Wno-unknown-pragmas -Wno-clobbered"
    f" -I{ROOT}/tests/emulator/include -I{ROOT}/tests",
)

if __name__ == "__main__":
    known = {"testing": TESTING, "emulator": EMULATOR}
    for name in sys.argv[1:] or known:
        print(known[name].build())
