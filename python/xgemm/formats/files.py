"""Files of a checkpoint, opened without trust: regular files only, and JSON of a bounded size.

Links are followed: a directory of the Hugging Face cache consists of them.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import stat
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from xgemm.quoting import shown

MAX_JSON_BYTES = 64 << 20  # the index of a model of 10^5 tensors has 10 MB; json.loads takes 25x
MAX_JSON_DEPTH = 100  # what walks a value may then recurse

_KINDS = (
    (stat.S_ISDIR, "a directory"),
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def present(path: Path) -> bool:
    """Whether there is anything of this name, be it a link to nothing."""
    return os.path.lexists(path)


def real_path(directory: str | os.PathLike[str], where: str, name: str = "directory") -> Path:
    """The argument `name`, absolute and without links; nothing need be there."""
    if not isinstance(directory, (str, os.PathLike)):
        raise TypeError(f"{where}: {name} must be a str or Path, got {type(directory).__name__}")
    try:
        return Path(os.path.realpath(directory))
    except ValueError as error:  # a null byte, or what the file system's encoding lacks
        raise ValueError(f"{where}: {name} {shown(directory)} is not a path: {error}") from None
    except FileNotFoundError:
        raise FileNotFoundError(f"{where}: the working directory has been removed") from None


def open_regular(path: Path, where: str = "load") -> BinaryIO:
    """`path`, opened for reading. It never waits, and opens no device.

    FileNotFoundError where nothing is there, ValueError for what is not a regular file (a FIFO, a
    device, a directory, a loop of links), another OSError where it may not be read; all name the
    file and begin with `where`.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    try:
        _refuse_irregular(path, os.stat(path), where)  # to open a device can have an effect
        descriptor = os.open(path, flags)
    except (FileNotFoundError, NotADirectoryError):
        raise FileNotFoundError(f"{where}: {path} is missing") from None
    except OSError as error:
        if error.errno == errno.ELOOP:
            reason = "must be a regular file, got a loop of links"
            raise ValueError(f"{where}: {path} {reason}") from None
        raise _unreadable(error, path, where) from None
    try:
        # Once more, of what is open now: the name may stand for something else than it did.
        _refuse_irregular(path, os.fstat(descriptor), where)
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def file_size(path: Path, where: str = "load") -> int:
    """Bytes of a regular file; errors as of `open_regular`."""
    with open_regular(path, where) as file:
        return os.fstat(file.fileno()).st_size


def name_of_open(file: BinaryIO) -> str:
    """A name of an open file for libraries that take names: it stands for this file alone."""
    return f"/proc/self/fd/{file.fileno()}"


def check_directory(directory: Path, where: str = "load") -> None:
    """Refuse a directory with entries that are neither regular files nor directories.

    For what reads a directory by itself, as transformers does: it would wait for a FIFO for ever.
    A link to nothing is nothing to any reader.
    """
    for path in sorted(directory.iterdir()):
        if path.exists() and not path.is_dir():
            with open_regular(path, where):
                pass


def copy_regular(source: Path, target: Path, where: str = "load") -> None:
    """Copy the bytes and the mode of a regular file, and of nothing else."""
    with open_regular(source, where) as file, target.open("wb") as copy:
        shutil.copyfileobj(file, copy)
        os.fchmod(copy.fileno(), stat.S_IMODE(os.fstat(file.fileno()).st_mode))


def read_json(path: Path, where: str = "load") -> dict[str, Any]:
    """The object in a JSON file; errors as of `read_json_value`."""
    value = read_json_value(path, where)
    if not isinstance(value, dict):
        raise ValueError(f"{where}: {path}: expected an object, got {type(value).__name__}")
    return value


def read_json_value(path: Path, where: str = "load") -> Any:
    """What a JSON file holds, or an error that names the file.

    ValueError for a file over MAX_JSON_BYTES, for values nested more than MAX_JSON_DEPTH deep and
    for a name that stands twice in an object, which readers understand differently.
    """
    try:
        with open_regular(path, where) as file, read_errors(path, where):
            text = file.read(MAX_JSON_BYTES + 1)
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{error}: not an xgemm checkpoint") from None
    if len(text) > MAX_JSON_BYTES:
        raise ValueError(f"{where}: {path} must have at most {MAX_JSON_BYTES} bytes")
    try:
        value = json.loads(text, object_pairs_hook=_object)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where}: {path}: not JSON: {error}") from None
    if _is_deep(value):
        raise ValueError(f"{where}: {path}: nested more than {MAX_JSON_DEPTH} deep")
    return value


@contextlib.contextmanager
def open_safetensors(safetensors: Any, path: Path) -> Iterator[Any]:
    """`safetensors.safe_open` of a regular file; what it finds wrong is a ValueError."""
    with open_regular(path) as file, read_errors(path):
        try:
            with safetensors.safe_open(name_of_open(file), framework="pt") as opened:
                yield opened
        except safetensors.SafetensorError as error:
            raise ValueError(f"load: {path}: {error}") from None


@contextlib.contextmanager
def read_errors(path: Path, where: str = "load") -> Iterator[None]:
    """An error of the disk while an open file is read, with the file's name."""
    try:
        yield
    except OSError as error:
        if str(path) in str(error):
            raise
        raise _unreadable(error, path, where) from error


@contextlib.contextmanager
def write_errors(target: Path, where: str) -> Iterator[None]:
    """Errors of the file system as "<where>: <target> ...", of the same class and errno."""
    try:
        yield
    except OSError as error:
        if error.errno is None and error.filename is None:
            raise  # a message of our own
        file = f": {error.filename}" if error.filename is not None else ""
        reason = f"{where}: {target} cannot be written: {error.strerror or error}{file}"
        named = type(error)(reason)
        named.errno = error.errno
        raise named from error


def _unreadable(error: OSError, path: Path, where: str) -> OSError:
    # safetensors' errors have no number, only words
    return type(error)(f"{where}: {path} cannot be read: {error.strerror or error}")


def _refuse_irregular(path: Path, found: os.stat_result, where: str) -> None:
    if stat.S_ISREG(found.st_mode):
        return
    kind = next((name for test, name in _KINDS if test(found.st_mode)), "something else")
    raise ValueError(f"{where}: {path} must be a regular file, got {kind}")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        twice = Counter(name for name, _ in pairs).most_common(1)[0][0]
        raise ValueError(f"{twice!r:.100} stands twice in an object")
    return value


def _is_deep(value: Any) -> bool:
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(MAX_JSON_DEPTH):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, dict | list)
        ]
        if not level:
            return False
    return True
