"""Savers that are killed at random moments, one or two at a time: `python tests/fuzz_kills.py`.

After each kill the directory loads, verified, as one of the models that were saved there. The next
save succeeds and leaves nothing else in it. fuzzing.py has the variables.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import torch
from checkpoints import TOKENS, load_into_new, quantized
from fuzzing import fuzz
from test_save_interrupted import save_ids

import xgemm

STUCK_S = 120  # a save takes 0.1 s
MODELS = 4
NAMES = {"config.json", "model.safetensors", "xgemm_manifest.json", "note"}


def die_after_calls(count: int) -> None:
    """SIGKILL at the count-th call of a function in C: between any two system calls."""
    left = count

    def profile(frame: object, event: str, argument: object) -> None:
        nonlocal left
        if event == "c_call":
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.setprofile(profile)


def count_calls(function: Callable[[], None]) -> int:
    calls = 0

    def profile(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        calls += event == "c_call"

    sys.setprofile(profile)
    try:
        function()
    finally:
        sys.setprofile(None)
    return calls


def fork(function: Callable[[], None]) -> int:
    child = os.fork()
    if child == 0:
        try:
            function()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    return child


def wait(child: int) -> int:
    """Its exit code, or minus the signal that ended it."""
    deadline = time.monotonic() + STUCK_S
    while time.monotonic() < deadline:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.001)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    raise TimeoutError(f"a saver was not done after {STUCK_S} s")


class Kills:
    """One directory, saved to again and again."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.models = [quantized(seed=seed) for seed in range(MODELS)]
        with torch.inference_mode():
            self.outputs = [model(TOKENS) for model in self.models]
        self.killed = self.replaced = 0
        xgemm.save(self.models[0], path)
        (path / "note").write_text("mine")
        started = time.monotonic()
        self.calls = count_calls(lambda: self.save(0, 6000))
        self.seconds = time.monotonic() - started

    def save(self, model: int, shard_bytes: int = 1 << 30) -> None:
        xgemm.save(self.models[model], self.path, max_shard_bytes=shard_bytes)

    def found(self) -> int:
        """The model that the directory holds."""
        model = load_into_new(self.path)
        with torch.inference_mode():
            output = model(TOKENS)
        return next(i for i, other in enumerate(self.outputs) if torch.equal(output, other))

    def start(self, rng: random.Random, model: int) -> tuple[int, float | None]:
        """A saver, and after how many seconds to kill it: None where it ends by itself."""
        shard_bytes = rng.choice([1 << 30, 20000, 6000])
        inside = rng.random() < 0.2
        how = rng.choice(["time", "calls", "calls", "not"])
        calls = rng.randrange(1, int(1.1 * self.calls))

        def work() -> None:
            if inside:
                os.chdir(self.path)
            if how == "calls":
                die_after_calls(calls)
            self.save(model, shard_bytes)

        return fork(work), rng.uniform(0, 1.2 * self.seconds) if how == "time" else None

    def case(self, rng: random.Random) -> None:
        before = rng.randrange(MODELS)
        self.save(before, rng.choice([1 << 30, 20000, 6000]))
        new = [rng.randrange(MODELS) for _ in range(rng.choice([1, 1, 2]))]
        started = time.monotonic()
        savers = [self.start(rng, model) for model in new]
        for child, delay in sorted(savers, key=lambda saver: saver[1] or 0):
            if delay is not None:
                time.sleep(max(0.0, started + delay - time.monotonic()))
                os.kill(child, signal.SIGKILL)
        codes = [wait(child) for child, _ in savers]
        assert set(codes) <= {0, -signal.SIGKILL}, codes
        found = self.found()
        allowed = set(new) if 0 in codes else {before, *new}
        assert found in allowed, f"model {found}, expected one of {allowed}"
        assert len(save_ids(self.path)) <= 1
        self.killed += codes.count(-signal.SIGKILL)
        self.replaced += found != before
        self.save(found)
        assert self.found() == found
        assert {path.name for path in self.path.iterdir()} == NAMES
        assert (self.path / "note").read_text() == "mine"
        assert [path.name for path in self.path.parent.iterdir()] == [self.path.name]


def main() -> None:
    torch.set_num_threads(1)  # no thread that a fork would lose
    os.fsync = lambda descriptor: (
        None
    )  # the machine stays up, and the disk's time is not of interest
    with tempfile.TemporaryDirectory() as folder:
        kills = Kills(Path(folder) / "out")
        fuzz("fuzz_kills", kills.case)
        print(f"fuzz_kills: {kills.killed} savers killed, {kills.replaced} directories replaced")


if __name__ == "__main__":
    main()
