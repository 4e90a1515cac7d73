"""A directory's files replaced as a whole: written in a folder inside it, synced, then moved out.

The folder is `.xgemm-<id>.new` while it is written. Its writer holds a lock on it, so a later save
can tell what an interrupted one left from what another is writing now. The rename to
`.xgemm-<id>.commit` replaces the old files: from then on `recovered` finds the new ones there,
until each is linked into the directory itself. A reader that does not know of the folder finds no
`last` file in that time, and never files of two saves.

The directory itself is never renamed. It may be a mount point or a process's working directory, it
keeps its rights, and files that are not replaced are not touched. Savers of one directory change it
in turns, under a lock on it; they write their folders beside one another. Where the file system has
no locks on directories, savers must not meet, and what an interrupted one left stays.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from xgemm.formats.rights import keep_rights

LOCK_TIMEOUT_S = 300.0  # how long other savers may change the directory; they need milliseconds
_POLL_S = 0.005
_MAKES = 100  # of a directory that other savers remove: more means that it cannot be made
_READS = 50  # of a directory that savers replace all the time
_FOLDER = re.compile(r"\.xgemm-[0-9a-f]{32}\.(new|commit)")
# flock on a directory: NFS, and Lustre as it is mounted by default.
_NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.ENOTSUP, errno.EBADF, errno.EINVAL)
# link: FAT, and some file systems in user space.
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK, errno.EXDEV)

ReadT = TypeVar("ReadT")


def sync(path: Path) -> None:
    """Wait until a file or directory is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # a file system that cannot sync directories
            raise
    finally:
        os.close(descriptor)


def recovered(target: Path) -> Path:
    """`target`, or the folder inside it whose files a save has not yet moved out."""
    return next((path for path in folders(target) if path.suffix == ".commit"), target)


def read_whole(target: Path, last: str, read: Callable[[Path], ReadT]) -> ReadT:
    """`read` of the folder that holds the newest whole save; again where a save replaced it.

    last: as of `replacing`. Where `read` fails and the save is still the same its error stands.
    """
    for _ in range(_READS):
        before = _whole_save(target, last)
        try:
            return read(before[0])
        except (OSError, ValueError):
            if _whole_save(target, last) == before:
                raise
    return read(recovered(target))


def _whole_save(target: Path, last: str) -> tuple[Path, tuple[int, int, int] | None]:
    """The folder that holds the newest save, and what tells it from another one there."""
    path = recovered(target)
    try:
        found = os.stat(path / last)
    except OSError:
        return path, None
    return path, (found.st_dev, found.st_ino, found.st_ctime_ns)


def folders(target: Path) -> list[Path]:
    """The folders of savers in `target`; none where `target` cannot be listed."""
    try:
        return sorted(path for path in target.iterdir() if _FOLDER.fullmatch(path.name))
    except OSError:
        return []


@contextlib.contextmanager
def replacing(
    target: Path,
    save_id: str,
    ours: re.Pattern[str],
    last: str,
    check: Callable[[Path], None],
) -> Iterator[Path]:
    """A new folder whose files take their places in `target` when the block ends well.

    Until then the files of `target` are as they were; after an exception the folder is gone, and
    `target` too if it was made here.

    ours: names of the files in `target` that are replaced, or removed where there is no new one.
    last: the name of the file without which nothing can be read; it leaves first and comes last.
    check: raises where the files of `target` may not be replaced; no other saver is at work then.
    """
    made = [path for path in (target, *target.parents) if not path.exists()]
    staging = target / f".xgemm-{save_id}.new"
    try:
        with _locked(target):
            _clean_up(target, ours, last)
            check(target)
            staging.mkdir(0o700)  # its files get the rights of those they replace at the end
            lock = os.open(staging, os.O_RDONLY)
            _try_lock(lock)
        try:
            yield staging
            with _locked(target):
                _finish_interrupted(target, ours, last)
                _prepare(target, staging, ours)
                _commit(target, staging, ours, last)
        finally:
            shutil.rmtree(staging, ignore_errors=True)
            _unlock(lock)
    except BaseException:
        if target in made:
            _remove_empty(target, made)
        raise


# ---- locks ----


@contextlib.contextmanager
def _locked(target: Path) -> Iterator[None]:
    """Holds the lock on `target`, which is made where it is missing."""
    deadline = time.monotonic() + LOCK_TIMEOUT_S
    vanished = 0
    while True:
        try:
            target.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(target, os.O_RDONLY | os.O_DIRECTORY)
        except (FileNotFoundError, FileExistsError):
            # A save that failed may have removed the directories that it had made.
            vanished += 1
            if vanished == _MAKES:
                raise
            continue
        try:
            while _try_lock(descriptor) is False:
                if time.monotonic() > deadline:
                    raise TimeoutError(
                        f"save: {target} has been locked by another process for "
                        f"{LOCK_TIMEOUT_S:.0f} s"
                    )
                time.sleep(_POLL_S)
            if _is_at(descriptor, target):
                yield
                return
        finally:
            _unlock(descriptor)


def _remove_empty(target: Path, made: list[Path]) -> None:
    """Remove the directories that were made here, unless another saver is at work in `target`."""
    with contextlib.suppress(OSError):
        descriptor = os.open(target, os.O_RDONLY | os.O_DIRECTORY)
        try:
            if _try_lock(descriptor) is not False:
                for path in made:
                    path.rmdir()
        finally:
            _unlock(descriptor)


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False


def _try_lock(descriptor: int) -> bool | None:
    """True: locked now. False: another process or thread holds it. None: there are no locks."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno in _NO_LOCKS:
            return None
        raise
    return True


def _unlock(descriptor: int) -> None:
    """Also where a process forked meanwhile holds the descriptor, too."""
    with contextlib.suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    os.close(descriptor)


# ---- what is done under the lock on the directory ----


def _clean_up(target: Path, ours: re.Pattern[str], last: str) -> None:
    """Finish what an interrupted save had committed; remove what others have left."""
    _finish_interrupted(target, ours, last)
    for path in folders(target):
        try:
            descriptor = os.open(path, os.O_RDONLY)
        except FileNotFoundError:
            continue  # its writer has removed it just now
        try:
            if _try_lock(descriptor):
                shutil.rmtree(path, ignore_errors=True)
        finally:
            _unlock(descriptor)


def _finish_interrupted(target: Path, ours: re.Pattern[str], last: str) -> None:
    for path in folders(target):
        if path.suffix == ".commit":
            _move_out(target, path, ours, last)
            shutil.rmtree(_uncommitted(path))


def _prepare(target: Path, staging: Path, ours: re.Pattern[str]) -> None:
    """Refuse what cannot be replaced, hand the old files' rights on, and sync all that is new."""
    replaced = {path.name: path for path in target.iterdir() if ours.fullmatch(path.name)}
    for path in (*replaced.values(), *(target / file for file in _files(staging))):
        if path.is_dir() and not path.is_symlink():
            raise IsADirectoryError(errno.EISDIR, "a directory is where a file goes", str(path))
    for file in _files(staging):
        # The weights may have been in other files: their rights are those of the new ones.
        like = [path for path in replaced.values() if path.suffix == file.suffix]
        old = target / file
        for source in [old] if os.path.lexists(old) else like[:1]:
            keep_rights(source, staging / file)
    keep_rights(target, staging)
    for path in (*staging.rglob("*"), staging):
        if not path.is_symlink():
            sync(path)


def _commit(target: Path, staging: Path, ours: re.Pattern[str], last: str) -> None:
    committed = staging.with_suffix(".commit")
    os.rename(staging, committed)
    try:
        sync(target)
        (target / last).unlink(missing_ok=True)
    except BaseException:  # nothing has changed yet
        _uncommitted(committed)
        raise
    try:
        _move_out(target, committed, ours, last)
        _uncommitted(committed)
    except OSError as error:
        raise OSError(
            error.errno,
            f"{error.strerror}: load finds the new files in {committed}, and the next save moves "
            "them out",
            error.filename,
        ) from error


def _uncommitted(committed: Path) -> Path:
    staging = committed.with_suffix(".new")
    os.rename(committed, staging)
    return staging


def _move_out(target: Path, committed: Path, ours: re.Pattern[str], last: str) -> None:
    """Make the files of `committed` those of `target`; it can be done over where it was stopped."""
    (target / last).unlink(missing_ok=True)
    for path in target.iterdir():
        if ours.fullmatch(path.name):
            path.unlink()
    for file in sorted(_files(committed), key=lambda file: file.name == last):
        (target / file).parent.mkdir(parents=True, exist_ok=True)
        (target / file).unlink(missing_ok=True)
        _link(committed / file, target / file)
    sync(target)


def _files(folder: Path) -> list[Path]:
    """The files in a folder and below, relative to it."""
    return [path.relative_to(folder) for path in folder.rglob("*") if not path.is_dir()]


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        shutil.copy2(source, target, follow_symlinks=False)
        keep_rights(source, target)
        sync(target)
