"""The header of a GGUF file, walked before a reader believes it.

GGUF is b"GGUF", uint32 version, uint64 counts of tensors and of fields, then the fields: a string
(uint64 length, bytes) as the key, uint32 type, the value. An array is uint32 type of its elements,
uint64 count, the elements. Readers take these counts as they stand: one of 2^60 keeps them busy for
ever, or fills the memory.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import BinaryIO

from xgemm.formats.files import open_regular

_SCALAR_BYTES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_STRING, _ARRAY = 8, 9
_ARCHITECTURE = "general.architecture"
_MAX_KEY_BYTES = 65535  # as the format says
_MAX_DIMENSIONS = 4  # of ggml


def architecture_of(path: Path) -> str:
    """The file's general.architecture, such as "llama"; its header is checked."""
    with open_regular(path, "gguf") as file:
        return check_header(path, file)


def check_header(path: Path, file: BinaryIO) -> str:
    """The general.architecture of an open file, which `path` names in messages.

    ValueError where it is no GGUF file or a length in its header leads past its end.
    """
    return _Header(path, file).check()


class _Header:
    def __init__(self, path: Path, file: BinaryIO) -> None:
        self._path = path
        self._file = file
        self._left = os.fstat(file.fileno()).st_size

    def check(self) -> str:
        if self._read(4, "the magic") != b"GGUF":
            raise ValueError(f"{self._path}: a GGUF file begins with GGUF; this one does not")
        self._number(4, "the version")
        tensors, fields = self._number(8, "the tensors"), self._number(8, "the fields")
        architecture: str | None = None
        for _ in range(fields):
            key = self._string("a key", _MAX_KEY_BYTES)
            kind = self._number(4, key)
            if key == _ARCHITECTURE and kind == _STRING:
                architecture = self._string(key, _MAX_KEY_BYTES)
            else:
                self._pass_value(kind, key)
        if architecture is None:
            raise ValueError(f"{self._path}: the file has no field {_ARCHITECTURE!r}")
        for _ in range(tensors):
            name = self._string("a tensor's name", _MAX_KEY_BYTES)
            dimensions = self._number(4, name)
            if dimensions > _MAX_DIMENSIONS:
                raise ValueError(
                    f"{self._path}: {name!r:.100} must have at most {_MAX_DIMENSIONS} dimensions, "
                    f"got {dimensions}"
                )
            self._pass(8 * dimensions + 4 + 8, name)  # sizes, type, offset
        return architecture

    def _pass_value(self, kind: int, key: str) -> None:
        if kind == _STRING:
            self._pass(self._number(8, key), key)
        elif kind == _ARRAY:
            element, count = self._number(4, key), self._number(8, key)
            if element == _STRING:
                for _ in range(count):
                    self._pass(self._number(8, key), key)
            else:
                self._pass(count * self._scalar_bytes(element, key), key)
        else:
            self._pass(self._scalar_bytes(kind, key), key)

    def _scalar_bytes(self, kind: int, key: str) -> int:
        if kind not in _SCALAR_BYTES:
            raise ValueError(f"{self._path}: {key!r:.100} has a value of the unknown type {kind}")
        return _SCALAR_BYTES[kind]

    def _string(self, what: str, limit: int) -> str:
        length = self._number(8, what)
        if length > limit:
            raise ValueError(
                f"{self._path}: {what!r:.100} must have at most {limit} bytes, got {length}"
            )
        return self._read(length, what).decode(errors="replace")

    def _number(self, size: int, what: str) -> int:
        return int.from_bytes(self._read(size, what), "little")

    def _read(self, size: int, what: str) -> bytes:
        self._take(size, what)
        return self._file.read(size)

    def _pass(self, size: int, what: str) -> None:
        self._take(size, what)
        self._file.seek(size, os.SEEK_CUR)

    def _take(self, size: int, what: str) -> None:
        if size > self._left:
            raise ValueError(
                f"{self._path}: {what!r:.100} needs {size} bytes where the file has {self._left} "
                "left: it is truncated or damaged"
            )
        self._left -= size
