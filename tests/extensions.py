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
FOLDER = ROOT / "build" / "tests"
BINDINGS = ROOT / "tests" / "emulator" / "bindings.cpp"

# The stand-ins for the CUDA toolkit's headers and for csrc/cuda/ptx come first.
RULES = """\
flags = -std=c++20 -fPIC -fvisibility=hidden -fno-strict-aliasing -Wall -Wextra -I{root}/csrc $
    -isystem {pybind11} -isystem {python}
emulated = -I{root}/tests/emulator/include -I{root}/tests -Wno-unknown-pragmas -Wno-clobbered
kernel = $emulated -D__CUDA_ARCH_FEAT_SM90_ALL $
    -fsanitize=alignment,bounds,shift -fsanitize-undefined-trap-on-error
rule cxx
  command = {cxx} $own $flags -MD -MF $out.d -c $in -o $out
  depfile = $out.d
  deps = gcc
rule link
  command = {cxx} -shared $in -o $out
build {folder}/kernels.h.gch: cxx {root}/tests/emulator/kernels.h
  own = -Og $kernel -x c++-header
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


def object_of(source: Path) -> Path:
    """Where a source that a module holds is compiled to."""
    return FOLDER / f"{source.relative_to(ROOT)}.o"


def _own_flags(source: Path) -> str:
    """Time to compile counts as well as time to run: bindings do next to nothing."""
    if source.suffix == ".cu":  # the compiler finds the precompiled kernels.h first
        return f"-Og $kernel -I{FOLDER} -include kernels.h -x c++"
    if source == BINDINGS:  # these hold a few kernels
        return "-O0 $kernel -include emulator/kernels.h"
    level = "-O0" if source.name == "bindings.cpp" else "-O1"
    # Without the stand-ins: what both modules hold compiles where there is no toolkit.
    return level if source in set(_testing_sources()) else f"{level} $emulated"


def _plan() -> str:
    """The text of a build.ninja. Sources that both modules hold are compiled once."""
    import pybind11

    text = RULES.format(
        cxx=os.environ.get("CXX", "g++"),
        root=ROOT,
        folder=FOLDER,
        pybind11=pybind11.get_include(),
        python=sysconfig.get_path("include"),
    )
    objects: dict[Path, str] = {}
    for extension in (EMULATOR, TESTING):
        # Bindings and kernels, which take longest, first.
        sources = sorted(
            extension.sources(),
            key=lambda path: (path.name != "bindings.cpp", path.suffix != ".cu", path),
        )
        for source in sources:
            if source not in objects:
                objects[source] = str(object_of(source))
                header = f" | {FOLDER}/kernels.h.gch" if source.suffix == ".cu" else ""
                text += f"build {objects[source]}: cxx {source}{header}\n"
                text += f"  own = {_own_flags(source)}\n"
        linked = " ".join(objects[source] for source in sources)
        text += f"build {extension.module}: link {linked}\n"
    return text


@dataclass(frozen=True)
class Extension:
    name: str
    sources: Callable[[], Iterable[Path]]

    @property
    def module(self) -> Path:
        return FOLDER / f"{self.name}{sysconfig.get_config_var('EXT_SUFFIX')}"

    def build(self) -> Path:
        """The module's path."""
        import ninja

        FOLDER.mkdir(parents=True, exist_ok=True)
        # Several pytest processes may come here at once.
        with open(FOLDER / ".lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            (FOLDER / "build.ninja").write_text(_plan())
            command = [str(Path(ninja.BIN_DIR, "ninja")), "-C", str(FOLDER), str(self.module)]
            result = subprocess.run(command, capture_output=True, text=True)
        if result.returncode != 0:
            raise RuntimeError(f"{self.name} did not build:\n{result.stdout}{result.stderr}")
        return self.module

    def load(self) -> ModuleType:
        """The module, built first."""
        spec = importlib.util.spec_from_file_location(self.name, self.build())
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module


TESTING = Extension("xgemm_testing", _testing_sources)
EMULATOR = Extension("xgemm_emulator", _emulator_sources)

if __name__ == "__main__":
    known = {"testing": TESTING, "emulator": EMULATOR}
    for name in sys.argv[1:] or known:
        print(known[name].build())
