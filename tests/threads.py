"""Several host threads at once."""

from __future__ import annotations

import threading
from collections.abc import Callable


def in_threads(count: int, work: Callable[[int], None]) -> None:
    """work(0) to work(count - 1), begun together; what any of them raised fails the test."""
    raised: list[str] = []
    start = threading.Barrier(count)

    def run(index: int) -> None:
        start.wait()
        try:
            work(index)
        except BaseException as error:
            raised.append(f"in thread {index}: {error!r}")

    workers = [threading.Thread(target=run, args=(index,)) for index in range(count)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not raised, raised[:5]
