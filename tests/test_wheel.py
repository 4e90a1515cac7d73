"""The wheel and the op library in it: one binary for every Python and every torch from 2.10 on."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from builds import ROOT, build_wheel, once

LIBRARY = "xgemm/_C.abi3.so"
LADDER = "xgemm/_ladder.abi3.so"
LADDER_MIB = 4

SYSTEM_LIBRARIES = {
    *("libstdc++.so.6", "libgcc_s.so.1", "libm.so.6", "libc.so.6", "ld-linux-x86-64.so.2"),
    *("libdl.so.2", "librt.so.1", "libpthread.so.0"),
}
# Weak hooks of the tool chain that every shared library refers to.
TOOLCHAIN_SYMBOLS = {
    *("__cxa_finalize", "__gmon_start__", "__tls_get_addr"),
    *("_ITM_deregisterTMCloneTable", "_ITM_registerTMCloneTable"),
}
STABLE_SHIM = re.compile(r"(aoti_torch|torch)_[a-z]")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """From the objects that the checkout's build has left."""
    return once(tmp_path_factory, "wheel", "*.whl", lambda folder: build_wheel(ROOT, folder))


@pytest.fixture(scope="module", params=[LIBRARY, LADDER])
def library(
    wheel: Path, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Path:
    with zipfile.ZipFile(wheel) as archive:
        return Path(archive.extract(request.param, tmp_path_factory.mktemp("content")))


@pytest.fixture(scope="module")
def dynamic(library: Path) -> dict[str, list[str]]:
    """NEEDED libraries, and symbols of the dynamic table by kind."""
    from elftools.elf.elffile import ELFFile

    found: dict[str, list[str]] = {"needed": [], "versioned": [], "unversioned": [], "exported": []}
    with library.open("rb") as file:
        elf = ELFFile(file)
        for tag in elf.get_section_by_name(".dynamic").iter_tags("DT_NEEDED"):
            found["needed"].append(tag.needed)
        versions = elf.get_section_by_name(".gnu.version")
        for index, symbol in enumerate(elf.get_section_by_name(".dynsym").iter_symbols()):
            if not symbol.name:
                continue
            if symbol["st_shndx"] != "SHN_UNDEF":
                found["exported"].append(symbol.name)
            elif isinstance(versions.get_symbol(index)["ndx"], int):
                found["versioned"].append(symbol.name)
            else:
                found["unversioned"].append(symbol.name)
    return found


def test_tag_is_one_for_every_python(wheel: Path) -> None:
    from xgemm._version import __version__

    assert wheel.name == f"xgemm-{__version__}-cp310-abi3-linux_x86_64.whl"


def test_holds_the_package_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    package = ROOT / "python"
    sources = {p.relative_to(package).as_posix() for p in package.glob("xgemm/**/*.py")}
    sources.add("_xgemm_command.py")  # the console script's
    rungs = {
        f"xgemm/ladder/sources/{path.relative_to(ROOT / 'csrc').parts[2]}/{path.name}"
        for path in (ROOT / "csrc").glob("*/ladder/**/[0-9][0-9]_*")
    }
    assert len(rungs) > 20
    others = {LIBRARY, LADDER, "xgemm/_build_info.json", "xgemm/py.typed"}
    assert names == sources | rungs | others


def test_the_ladders_lie_in_a_library_of_their_own(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        assert b"xgemm_ladder" not in archive.read(LIBRARY)
        assert b"xgemm_ladder" in archive.read(LADDER)
        assert archive.getinfo(LADDER).file_size <= LADDER_MIB * 2**20


def test_the_record_lists_every_file_with_its_hash(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = sorted(archive.namelist())
        assert len(set(names)) == len(names)
        record = next(name for name in names if name.endswith(".dist-info/RECORD"))
        rows = [line.rsplit(",", 2) for line in archive.read(record).decode().splitlines()]
        assert sorted(name for name, _, _ in rows) == names
        for name, digest, size in rows:
            if name == record:
                assert (digest, size) == ("", "")
                continue
            content = archive.read(name)
            found = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
            assert (digest, size) == (f"sha256={found}", str(len(content))), name


def test_no_file_names_the_machine_that_built_it(wheel: Path) -> None:
    """Neither the checkout, nor where torch lies, nor the user's home."""
    import torch

    places = {ROOT, Path.home(), Path(torch.__file__).parents[1], Path(sys.prefix), wheel.parent}
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            content = archive.read(name)
            assert not name.startswith(("/", "..")), name
            assert [p for p in places if f"{p}/".encode() in content] == [], name


def test_nothing_but_what_an_install_needs(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        modes = {info.filename: info.external_attr >> 16 & 0o777 for info in archive.infolist()}
    folder = f"{'-'.join(wheel.name.split('-')[:2])}.dist-info"
    metadata = {f"{folder}/{name}" for name in ("METADATA", "WHEEL", "RECORD", "top_level.txt")}
    metadata |= {f"{folder}/licenses/LICENSE", f"{folder}/entry_points.txt"}
    outside = {name for name in names if not name.startswith("xgemm/")}
    assert outside == {*metadata, "_xgemm_command.py"}
    parts = {part for name in names for part in Path(name).parts}
    assert not [part for part in parts if part.startswith("test") or part == "conftest.py"]
    assert not [name for name, mode in modes.items() if mode & 0o002 or not mode & 0o400]


def test_fixed_architectures(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        info = json.loads(archive.read("xgemm/_build_info.json"))
    assert info["cuda_archs"] == (["80+90+PTX", "90a"] if info["cuda"] else [])


def test_metadata_needs_torch_alone(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        name = next(n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        metadata = archive.read(name).decode()
        assert any(n.endswith("licenses/LICENSE") for n in archive.namelist())
    required = re.findall(r"^Requires-Dist: (.*)$", metadata, re.MULTILINE)
    assert [r for r in required if "extra ==" not in r] == ["torch>=2.10"]


def test_library_needs_libtorch_and_the_system_only(dynamic: dict[str, list[str]]) -> None:
    needed = set(dynamic["needed"])
    # libtorch itself must be there: under a CUDA torch the stream symbol resolves through it.
    assert {"libtorch.so", "libtorch_cpu.so"} <= needed
    assert needed <= SYSTEM_LIBRARIES | {"libtorch.so", "libtorch_cpu.so"}


def test_library_refers_to_the_stable_shim_only(dynamic: dict[str, list[str]]) -> None:
    # Symbols of libc, libstdc++ and libgcc carry versions; torch's and Python's carry none.
    foreign = set(dynamic["unversioned"]) - TOOLCHAIN_SYMBOLS
    assert "torch_library_impl" in foreign, "the operators must be registered"
    assert {name for name in foreign if not STABLE_SHIM.match(name)} == set()
    assert not [name for name in dynamic["versioned"] if name.startswith(("Py", "_Py"))]


def test_library_exports_nothing_of_its_own(dynamic: dict[str, list[str]]) -> None:
    # An exported kernel, or the static CUDA runtime, could be swapped for another library's.
    own = re.compile(r"_ZN?K?5xgemm|_ZN5torch|cuda[A-Z]|cu[A-Z]")
    assert [name for name in dynamic["exported"] if own.match(name)] == []


def test_audits_find_no_violation(library: Path) -> None:
    scripts = Path(sys.executable).parent
    audit = subprocess.run(
        [scripts / "torch-abi-audit", "--json", library], capture_output=True, text=True, check=True
    )
    (report,) = json.loads(audit.stdout)["bundled_libs"]
    assert report["torch"]["stable"]
    assert report["torch"]["unknown_shim_symbols"] == []
    assert report["torch"]["min_torch_version"] == "2.10.0"
    subprocess.run(
        [scripts / "abi3audit", "--strict", "--assume-minimum-abi3", "3.10", library],
        capture_output=True,
        check=True,
    )
