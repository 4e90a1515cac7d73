"""What is being done, while it is done: a bar on a terminal, lines where there is none."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    Progress,
    SpinnerColumn,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from xgemm.cli.output import log
from xgemm.formats.watch import watched
from xgemm.quoting import printable

FIRST_LINE_S = 2.0  # without a terminal: the first word of how far it is; each later one takes
LAST_LINE_S = 30.0  # twice as long as the one before, up to this


class Step:
    """A piece of work that someone waits for; `update` says how far it is."""

    def __init__(self, text: str, total: int | None) -> None:
        self.text, self.total, self.done = text, total, 0
        self.started = time.perf_counter()

    def update(self, done: int, total: int | None = None, text: str | None = None) -> None:
        """done of total (None: as before), and what it is now (None: as before)."""
        self.done = done
        self.total = self.total if total is None else total
        self.text = self.text if text is None else text

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self.started

    def line(self) -> str:
        count = "" if self.total is None else f" {self.done} of {self.total}"
        left = ""
        if self.total is not None and 0 < self.done < self.total:
            rest = self.seconds * (self.total - self.done) / self.done
            left = f", about {rest:.0f} s left"
        return f"{self.text}{count}, {self.seconds:.0f} s{left}"


class _TerminalStep(Step):
    """A bar; it pulses where the total is not known."""

    def __init__(self, text: str, total: int | None, console: Console) -> None:
        super().__init__(text, total)
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn("{task.completed:.0f}/{task.total:.0f}", ""),  # no total: ""
            TimeElapsedColumn(),
            TimeRemainingColumn(),  # neither
            console=console,
            transient=True,
        )
        self._task = self._progress.add_task(escape(printable(text)), total=total)

    def update(self, done: int, total: int | None = None, text: str | None = None) -> None:
        super().update(done, total, text)
        self._progress.update(
            self._task,
            completed=self.done,
            total=self.total,
            description=escape(printable(self.text)),
        )

    def __enter__(self) -> _TerminalStep:
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._progress.stop()


class _PlainStep(Step):
    """Lines on stderr: when it begins, and from time to time how far it is."""

    def __init__(self, text: str, total: int | None, console: Console) -> None:
        super().__init__(text, total)
        self._console = console
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._tell, daemon=True)

    def _tell(self) -> None:
        wait = FIRST_LINE_S
        while not self._over.wait(wait):
            self._console.print(printable(f"... {self.line()}"), markup=False, soft_wrap=True)
            wait = min(2 * wait, LAST_LINE_S)

    def __enter__(self) -> _PlainStep:
        self._console.print(printable(self.text), markup=False, soft_wrap=True)
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.set()
        self._thread.join()


@contextmanager
def step(text: str, total: int | None = None) -> Iterator[Step]:
    """Shows `text` on stderr until the block ends, and then how long it took."""
    made = _TerminalStep if log.is_terminal else _PlainStep
    with made(text, total, log) as shown:
        yield shown
    if shown.seconds >= 1:
        log.print(f"[dim]{escape(printable(text))}: {shown.seconds:.1f} s[/]", soft_wrap=True)


@contextmanager
def counted(text: str) -> Iterator[Step]:
    """A step that counts the tensors of a checkpoint that xgemm or transformers reads or writes."""
    from transformers.utils import logging

    with step(text) as shown, watched(shown.update):
        # Older versions of transformers have no hook: they read float checkpoints without a count.
        set_hook = getattr(logging, "set_tqdm_hook", lambda hook: None)
        before = set_hook(lambda _, args, options: _Counter(shown, *args, **options))
        try:
            yield shown
        finally:
            set_hook(before)


class _Counter:
    """What transformers takes for a bar of tqdm's."""

    def __init__(self, shown: Step, iterable: Any = None, **options: Any) -> None:
        self._shown, self._iterable, self._done = shown, iterable, 0
        known = len(iterable) if hasattr(iterable, "__len__") else None
        self._total: int | None = options.get("total") or known

    def __iter__(self) -> Iterator[Any]:
        for each in self._iterable:
            yield each
            self.update()

    def update(self, count: int = 1) -> None:
        self._done += count
        if self._total is not None:
            self._shown.update(self._done, self._total)

    def __enter__(self) -> _Counter:
        return self

    def __exit__(self, *error: object) -> None:
        return None

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **options: None  # close, set_description, set_postfix, refresh


def import_transformers() -> None:
    """Imports it, which takes seconds, and silences its own messages and bars: ours are shown."""
    os.environ.setdefault("TQDM_DISABLE", "1")  # the bars of what goes past transformers' logging
    if "xgemm.hf.source" not in sys.modules:
        with step("importing transformers"):
            from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: F401

            import xgemm.hf.source  # noqa: F401
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
