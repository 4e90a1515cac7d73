"""A directory replaced as a whole: written beside the old one, synced, and swapped in.

The staging directory is a sibling `.<name>.xgemm-<id>.new`. Whoever writes it holds a lock on it,
so that a later save can tell what an interrupted one left from what another is writing now. Where
the file system cannot exchange two names at once, the old directory is for a moment called
`.<name>.xgemm-<id>.old`; `recovered` finds it there.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
_CANNOT_EXCHANGE = (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP)


def sync(path: Path) -> None:
    """Wait until a file or directory is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def recovered(target: Path) -> Path:
    """`target`, or what a save that was interrupted between two renames has left of it."""
    if not target.exists():
        for path in _siblings(target):
            if path.suffix == ".old":
                return path
    return target


@contextlib.contextmanager
def replacing(target: Path, save_id: str) -> Iterator[Path]:
    """A new sibling directory of `target` that takes its place, whole, when the block ends well.

    Until then `target` is as it was; after an exception the new directory is gone.
    """
    staging = target.with_name(f".{target.name}.xgemm-{save_id}.new")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _clean_up(target)
        staging.mkdir()
    except OSError as error:
        reason = f"save: {target} cannot be written: {error.strerror}: {error.filename}"
        raise type(error)(reason) from error
    lock = os.open(staging, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield staging
        for path in staging.rglob("*"):
            if not path.is_symlink():
                sync(path)
        sync(staging)
        _swap_in(staging, target)
        sync(target.parent)
    finally:
        # The old directory after a swap, the unfinished one after an exception.
        shutil.rmtree(staging, ignore_errors=True)
        os.close(lock)


def _siblings(target: Path) -> list[Path]:
    if not target.parent.is_dir():
        return []
    pattern = re.compile(re.escape(f".{target.name}.xgemm-") + r"[0-9a-f]{32}\.(new|old)")
    return sorted(path for path in target.parent.iterdir() if pattern.fullmatch(path.name))


def _clean_up(target: Path) -> None:
    """Remove what interrupted saves have left, after putting an old directory back in its place."""
    old = recovered(target)
    if old != target:
        os.rename(old, target)
    for path in _siblings(target):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            continue  # another process is writing it
        else:
            shutil.rmtree(path)
        finally:
            os.close(descriptor)


def _swap_in(staging: Path, target: Path) -> None:
    """Give `staging` the name of `target`; an old target then has the name of `staging`."""
    if not target.exists():
        os.rename(staging, target)
        return
    if _exchange(staging, target):
        return
    old = staging.with_suffix(".old")
    os.rename(target, old)
    os.rename(staging, target)
    shutil.rmtree(old)


def _exchange(first: Path, second: Path) -> bool:
    """Swap two names in one step; False where the C library or the file system cannot."""
    renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if renameat2 is None:
        return False
    names = os.fsencode(first), os.fsencode(second)
    if renameat2(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _RENAME_EXCHANGE) == 0:
        return True
    error = ctypes.get_errno()
    if error in _CANNOT_EXCHANGE:
        return False
    raise OSError(error, os.strerror(error), os.fspath(second))
