"""The source archive, and pip's other ways to the sources: what they hold builds what is needed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from builds import ROOT, build_sdist, build_wheel, once, run, take_over_objects

PRODUCT = """
import sys, torch, xgemm, xgemm._library
a, b = torch.randn(17, 33), torch.randn(33, 5)
torch.testing.assert_close(torch.ops.xgemm.mul(a, b), a @ b)
p = xgemm.pack(xgemm.quantize_weight(torch.randn(70, 33), group_size=32))
torch.testing.assert_close(xgemm.linear(a, p), a @ p.dequantize().T, rtol=1e-4, atol=1e-4)
print(xgemm.__file__, xgemm._library.build_info()["git_commit"])
"""
BUILT = pytest.mark.skipif(
    not (ROOT / "build" / "obj").is_dir(), reason="the checkout was not built: nothing to take over"
)


def git(*arguments: str) -> str:
    command = ["git", "-c", "safe.directory=*", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout


def tracked() -> set[str]:
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    listed = git("ls-files", "-z").split("\0")
    return {name for name in listed if name and (ROOT / name).is_file()}


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return once(tmp_path_factory, "sdist", "*.tar.gz", build_sdist)


@pytest.fixture
def unpacked(sdist: Path, tmp_path: Path) -> Path:
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    (folder,) = tmp_path.iterdir()
    return folder


def multiply(folder: Path, tmp_path: Path) -> list[str]:
    """Imports the package in `folder` elsewhere, computes, and returns its file and commit."""
    said = run(sys.executable, "-c", PRODUCT, cwd=tmp_path, PYTHONPATH=str(folder))
    return said.split()


def test_holds_every_tracked_file(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        names = {Path(m.name).relative_to(Path(m.name).parts[0]) for m in archive if m.isfile()}
    made = {"PKG-INFO", "setup.cfg"}
    found = {str(name) for name in names if ".egg-info" not in str(name)} - made
    assert "csrc/ops/schemas.cpp" in found
    assert "tests/test_sdist.py" in found
    assert sorted(tracked() - found) == []
    assert not [name for name in found if name.endswith((".so", ".pyc", "_build_info.json"))]


@BUILT
def test_a_wheel_of_it_multiplies(unpacked: Path, tmp_path: Path) -> None:
    take_over_objects(unpacked)
    subprocess.run(["git", "init", "--quiet", tmp_path], check=True)  # another project's checkout
    (tmp_path / "wheels").mkdir()
    build_wheel(unpacked, tmp_path / "wheels")
    (wheel,) = (tmp_path / "wheels").glob("*.whl")
    shutil.unpack_archive(wheel, tmp_path / "installed", "zip")
    where, commit = multiply(tmp_path / "installed", tmp_path)
    assert Path(where) == tmp_path / "installed" / "xgemm" / "__init__.py"
    assert commit == "None"


@BUILT
def test_pip_install_from_git(tmp_path: Path) -> None:
    """A hook gives pip's clone the objects that the checkout has: it compiles what differs."""
    tracked()
    (tmp_path / "hooks").mkdir()
    hook = tmp_path / "hooks" / "post-checkout"
    hook.write_text(f"#!/bin/sh\n[ -d build ] || {sys.executable} {ROOT / 'tests' / 'builds.py'}\n")
    hook.chmod(0o755)
    config = {
        "GIT_CONFIG_COUNT": "2",
        **{"GIT_CONFIG_KEY_0": "core.hooksPath", "GIT_CONFIG_VALUE_0": str(tmp_path / "hooks")},
        **{"GIT_CONFIG_KEY_1": "safe.directory", "GIT_CONFIG_VALUE_1": "*"},
    }
    pip = (sys.executable, "-m", "pip", "install", "--no-build-isolation", "--no-deps")
    target = tmp_path / "installed"
    run(*pip, "--target", target, f"git+file://{ROOT}", cwd=tmp_path, **config)
    where, commit = multiply(target, tmp_path)
    assert Path(where) == target / "xgemm" / "__init__.py"
    info = json.loads((target / "xgemm" / "_build_info.json").read_text())
    assert commit == info["git_commit"]
    assert git("rev-parse", "HEAD").startswith(commit)
    assert "-dirty" not in commit


@pytest.mark.parametrize("left", ["nothing", "headers"])
def test_a_build_without_sources_fails(unpacked: Path, tmp_path: Path, left: str) -> None:
    for path in (unpacked / "csrc").rglob("*.c*"):
        path.unlink(missing_ok=path.is_file())
    if left == "nothing":
        shutil.rmtree(unpacked / "csrc")
    done = subprocess.run(
        [sys.executable, "setup.py", "--quiet", "build_ext", "--build-lib", tmp_path / "lib"],
        cwd=unpacked, env={**os.environ, "XGEMM_CUDA": "0"}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode != 0
    assert f"expected C++ sources in {unpacked / 'csrc'}, found none" in done.stderr
    assert not (tmp_path / "lib").exists()
