"""Runs commands beside one another and shows, in one line, what each says and how long it takes.

    python tools/step.py "building the library" "make build" "installing packages" "pip install ..."

Titles and shell commands by turns. On a terminal the line is rewritten four times a second; else a
line comes when a command begins and, while nothing ends, every ten seconds. What a command printed
is shown where it fails, and step.py then ends with its exit code. For the Makefile: the standard
library only, since nothing is installed yet.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from typing import IO

REFRESH_S = 0.25
LINE_S = 10.0  # without a terminal
SHOWN_LINES = 60  # of what failed


@dataclass
class Command:
    """A shell command that runs, its output in a file."""

    title: str
    shell: str
    output: IO[bytes] = field(default_factory=tempfile.TemporaryFile)
    seconds: float | None = None  # None: it runs

    def start(self) -> None:
        self.started = time.monotonic()
        self.process = subprocess.Popen(
            self.shell, shell=True, stdin=subprocess.DEVNULL, stdout=self.output,
            stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip

    def ended(self) -> bool:
        """Whether it has ended since this was asked last."""
        if self.seconds is not None or self.process.poll() is None:
            return False
        self.seconds = time.monotonic() - self.started
        return True

    def lines(self, last_bytes: int = 1 << 20) -> list[str]:
        """The end of what it printed; pread leaves the offset, where it writes, alone."""
        size = os.fstat(self.output.fileno()).st_size
        start = max(0, size - last_bytes)
        text = os.pread(self.output.fileno(), size - start, start).decode(errors="replace")
        return [line.strip() for line in text.replace("\r", "\n").splitlines() if line.strip()]

    def stop(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGTERM)
            self.process.wait()

    def status(self) -> str:
        said = self.lines(4096)[-1:]
        elapsed = time.monotonic() - self.started
        return f"{self.title}, {elapsed:.0f} s" + (f": {said[0]}" if said else "")


def main(arguments: list[str]) -> int:
    if not arguments or len(arguments) % 2:
        print(__doc__, file=sys.stderr)
        return 2
    pairs = zip(arguments[::2], arguments[1::2], strict=True)
    commands = [Command(title, shell) for title, shell in pairs]
    terminal = sys.stderr.isatty()
    for command in commands:
        command.start()
        if not terminal:
            say(f"{command.title} ...")
    try:
        return watch(commands, terminal)
    except KeyboardInterrupt:
        return 130
    finally:
        for command in commands:
            command.stop()


def watch(commands: list[Command], terminal: bool) -> int:
    """Until all have ended (0), or one has failed (its exit code)."""
    told = time.monotonic()
    while running := [command for command in commands if command.seconds is None]:
        time.sleep(REFRESH_S)
        for command in filter(Command.ended, running):
            told = time.monotonic()
            if command.process.returncode != 0:
                say("\n".join(command.lines()[-SHOWN_LINES:]), terminal)
                say(f"{command.title}: FAILED ({command.shell})", terminal)
                return command.process.returncode or 1
            say(f"{command.title}: {command.seconds:.0f} s", terminal)
        text = " | ".join(c.status() for c in commands if c.seconds is None)
        if terminal:
            width = shutil.get_terminal_size().columns - 1
            print(f"\r\x1b[K{text[:width]}", end="", file=sys.stderr, flush=True)
        elif text and time.monotonic() - told >= LINE_S:
            told = time.monotonic()
            say(f"... {text}")
    if terminal:
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)
    return 0


def say(text: str, terminal: bool = False) -> None:
    clear = "\r\x1b[K" if terminal else ""
    print(f"{clear}{text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
