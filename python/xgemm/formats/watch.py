"""How far the reading or writing of a checkpoint is, for whoever shows it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

Watcher = Callable[[int, int], None]

_watcher: ContextVar[Watcher | None] = ContextVar("xgemm_watcher", default=None)


@contextmanager
def watched(watcher: Watcher) -> Iterator[None]:
    """Within the block `watcher(done, total)` is called after each tensor is read or written."""
    token = _watcher.set(watcher)
    try:
        yield
    finally:
        _watcher.reset(token)


def tell(done: int, total: int) -> None:
    """So many tensors of `total` are done."""
    watcher = _watcher.get()
    if watcher is not None:
        watcher(done, total)
