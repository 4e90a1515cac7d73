"""Wheels and source archives for tests: built once for all of pytest's processes.

The compiler's work is not repeated: objects of the checkout's own build are taken over wherever the
same sources lie, which ninja compares by time.
"""

from __future__ import annotations

import fcntl
import filecmp
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
NOT_SOURCES = shutil.ignore_patterns(
    *(".git", ".venv", ".whl", "build", "dist", "*.egg-info", "__pycache__", ".*_cache"),
    *(".hypothesis", "*.so", "_build_info.json", "results", ".stamps"),
)


def once(
    factory: pytest.TempPathFactory, name: str, pattern: str, build: Callable[[Path], None]
) -> Path:
    """The file that `build` makes in its folder, which lies beside all processes' own folders."""
    base = factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / name
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not list(folder.glob(pattern)):
            build(folder)
    (found,) = folder.glob(pattern)
    return found


def run(*command: str | Path, cwd: Path, **variables: str) -> str:
    """Its output; an assertion with it where the command fails."""
    done = subprocess.run(
        command,
        cwd=cwd,
        env={**os.environ, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def build_wheel(source: Path, folder: Path) -> None:
    """As a user would."""
    # A fresh build base: files of an earlier build must not slip into the wheel.
    config = folder / "extra.cfg"
    config.write_text(f"[build]\nbuild_base = {folder / 'build'}\n")
    pip = (sys.executable, "-m", "pip", "wheel", ".", "--no-build-isolation", "--no-deps")
    run(*pip, "--wheel-dir", folder, cwd=source, DIST_EXTRA_CONFIG=str(config))


def build_sdist(folder: Path) -> None:
    """From a copy of the checkout that has no .git and was never built."""
    tree = folder / "tree"
    shutil.copytree(ROOT, tree, ignore=NOT_SOURCES, symlinks=True)
    run(sys.executable, "setup.py", "--quiet", "sdist", "--dist-dir", folder, cwd=tree)


def take_over_objects(source: Path) -> None:
    """Gives another copy of the sources what the checkout's build has compiled of them."""
    for path in (source / "csrc").rglob("*"):
        original = ROOT / path.relative_to(source)
        if original.is_file() and filecmp.cmp(path, original, shallow=False):
            shutil.copystat(original, path)
    (source / "build").mkdir()
    for name in (".ninja_log", ".ninja_deps"):
        shutil.copy2(ROOT / "build" / name, source / "build" / name)
    shutil.copytree(ROOT / "build" / "obj", source / "build" / "obj", copy_function=os.link)


if __name__ == "__main__":  # as git's hook after a checkout
    take_over_objects(Path.cwd())
