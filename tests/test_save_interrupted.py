"""A save that is killed, fails or meets another one leaves the directory whole."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import TOKENS, load_into_new, quantized, same
from prepared import run_script
from torch import nn

import xgemm
from xgemm.formats import atomic, checkpoint
from xgemm.formats.manifest import CONFIG_FILE, SAVE_ID_KEY

safetensors = pytest.importorskip("safetensors")
TESTS = Path(__file__).parent


def files(path: Path) -> dict[str, bytes]:
    """Every file of a directory and below, and what it holds."""
    return {
        p.relative_to(path).as_posix(): p.read_bytes() for p in path.rglob("*") if not p.is_dir()
    }


# ---- killed ----


def die_at(point: int, links: bool) -> Callable[[], int]:
    """SIGKILL before the point-th step that reaches the disk; returns a count of those steps."""
    calls = 0

    def dying(function: Callable) -> Callable:
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == point:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*args, **kwargs)

        return call

    if not links:
        os.link = no_links
    for module, name in (
        (checkpoint, "_write_json"),
        (checkpoint, "to_cpu"),
        (atomic, "sync"),
        (atomic, "_link"),
        (atomic, "keep_rights"),
        (os, "rename"),
        (os, "unlink"),
        (os, "mkdir"),
        (shutil, "copy2"),
        (shutil, "rmtree"),
    ):
        setattr(module, name, dying(getattr(module, name)))
    return lambda: calls


def no_links(*_: Any, **__: Any) -> None:
    raise PermissionError(errno.EPERM, "Operation not permitted")


def save_ids(path: Path) -> set[str]:
    """The saves that the files belong to which a reader sees that knows no folder in `path`."""
    if not (path / CONFIG_FILE).exists():
        return set()
    found = {json.loads((path / CONFIG_FILE).read_text())["quantization_config"]["save_id"]}
    for shard in path.glob("*.safetensors"):
        with safetensors.safe_open(shard, framework="pt") as opened:
            found.add(opened.metadata()[SAVE_ID_KEY])
    return found


def kill_saves(path: Path, links: bool) -> None:
    """Kills a save over `path` at each of its steps, each in a fork; prints what each one left."""
    torch.set_num_threads(1)  # no thread that a fork would lose
    os.fsync = lambda descriptor: None  # the machine stays up
    old, new = quantized(seed=0), quantized(seed=1)
    results = []
    while not results or results[-1]["signal"] == signal.SIGKILL:
        xgemm.save(old, path)
        (path / "note").write_text("mine")
        before = sorted(other.name for other in path.iterdir())
        child = os.fork()
        if child == 0:
            die_at(len(results) + 1, links)
            xgemm.save(new, path, max_shard_bytes=20000)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        model = load_into_new(path)
        with torch.inference_mode():
            equal = [torch.equal(model(TOKENS), other(TOKENS)) for other in (old, new)]
        results.append(
            {
                "signal": status,
                "before": before,
                "left": len(atomic.folders(path)),
                "found": "old" if equal[0] else "new" if equal[1] else "neither",
                "mixed": len(save_ids(path)) > 1,
                "note": (path / "note").read_text(),
            }
        )
    print(json.dumps(results))


@pytest.mark.parametrize("links", [True, False])
def test_a_killed_save_leaves_a_whole_checkpoint(tmp_path: Path, links: bool) -> None:
    path = tmp_path / "out"
    script = (
        f"import sys; sys.path.insert(0, {str(TESTS)!r})\n"
        f"import pathlib, test_save_interrupted\n"
        f"test_save_interrupted.kill_saves(pathlib.Path({str(path)!r}), {links})\n"
    )
    done = run_script(script)
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout)
    assert len(results) > 40  # files, tensors, syncs, the rename, the links, the cleaning
    assert results[-1]["signal"] == 0
    assert results[-1]["left"] == 0
    found = [result["found"] for result in results]
    switch = found.index("new")
    assert found == ["old"] * switch + ["new"] * (len(found) - switch)
    assert switch > 20
    assert not any(result["mixed"] for result in results)
    assert all(result["note"] == "mine" for result in results)
    assert any(result["left"] for result in results)  # which the next save cleaned up:
    clean = ["config.json", "model.safetensors", "note", "xgemm_manifest.json"]
    assert all(result["before"] == clean for result in results)
    assert [other.name for other in tmp_path.iterdir()] == ["out"]


def test_a_save_under_way_is_not_cleaned_up(saved: Path) -> None:
    other = saved.parent / "other"
    xgemm.save(quantized(seed=1), other)
    with atomic.replacing(saved, "0" * 32, checkpoint.OURS, CONFIG_FILE, print) as staging:
        xgemm.save(quantized(seed=2), saved)
        same(load_into_new(saved), quantized(seed=2))
        shutil.copytree(other, staging, dirs_exist_ok=True)
    same(load_into_new(saved), quantized(seed=1))
    assert atomic.folders(saved) == []


# ---- failed ----


def check_failed(saved: Path, before: dict[str, bytes], error: BaseException, number: int) -> None:
    assert str(error).startswith(f"save: {saved} cannot be written: "), error
    assert error.errno == number
    assert files(saved) == before
    assert [path.name for path in saved.parent.iterdir()] == [saved.name]


@pytest.mark.parametrize("limit", [1000, 10_000])  # of a file's bytes: config.json, the weights
def test_a_file_that_cannot_be_written(saved: Path, limit: int) -> None:
    import resource

    before = files(saved)
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, old[1]))
    try:
        with pytest.raises(OSError, match=r"File too large: /.*\.(json|safetensors)$") as caught:
            xgemm.save(quantized(seed=1), saved)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
    check_failed(saved, before, caught.value, errno.EFBIG)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, of 64 KiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(disk)]
    if sys.platform != "linux" or os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("only root mounts a file system")
    if subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("mounting is not permitted here")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def test_a_full_disk(small_disk: Path) -> None:
    """The new files do not fit beside the old ones, which stay whole."""
    saved = small_disk / "out"
    model = quantized()
    xgemm.save(model, saved)
    (small_disk / "ballast").write_bytes(bytes(shutil.disk_usage(small_disk).free - 8192))
    before = files(saved)
    with pytest.raises(OSError, match=r"No space left on device.*: /.*\.safetensors$") as caught:
        xgemm.save(quantized(seed=1), saved)
    assert str(caught.value).startswith(f"save: {saved} cannot be written: ")
    assert caught.value.errno == errno.ENOSPC
    assert files(saved) == before
    assert sorted(path.name for path in small_disk.iterdir()) == ["ballast", "out"]
    same(load_into_new(saved), model)


@pytest.mark.parametrize("step", range(12))
def test_a_disk_that_fails_at_any_step(
    saved: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    """Until the new files are there; from then on they are what is read."""
    before = files(saved)
    calls = 0

    def failing(function: Callable) -> Callable:
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == step + 1:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return function(*args, **kwargs)

        return call

    for module, name in ((atomic, "sync"), (os, "rename"), (atomic, "_link")):
        monkeypatch.setattr(module, name, failing(getattr(module, name)))
    try:
        xgemm.save(quantized(seed=1), saved)
    except OSError as error:
        monkeypatch.undo()
        if error.__cause__ is None or "next save" not in str(error):
            check_failed(saved, before, error, errno.EIO)
            return
    assert calls > 5
    same(load_into_new(saved), quantized(seed=1))
    monkeypatch.undo()
    xgemm.save(quantized(seed=2), saved)
    same(load_into_new(saved), quantized(seed=2))
    assert files(saved).keys() == before.keys()


def test_a_first_save_that_fails_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(atomic, "sync", full)
    with pytest.raises(OSError, match=r"save: .*/a/b/out cannot be written: No space left"):
        xgemm.save(quantized(), tmp_path / "a" / "b" / "out")
    assert list(tmp_path.iterdir()) == []


def test_a_directory_in_the_place_of_a_file(saved: Path) -> None:
    (saved / "model.safetensors").unlink()
    (saved / "model.safetensors").mkdir()
    (saved / "model.safetensors" / "mine").write_text("work")
    before = files(saved)
    with pytest.raises(IsADirectoryError) as caught:
        xgemm.save(quantized(seed=1), saved)
    check_failed(saved, before, caught.value, errno.EISDIR)


@pytest.fixture
def as_nobody():
    """Root may do everything, whatever the rights say."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    yield
    os.seteuid(0)


def test_a_directory_that_may_not_be_written(saved: Path, request: pytest.FixtureRequest) -> None:
    for path in (saved, *saved.parents):
        path.chmod(path.stat().st_mode | 0o055)
    saved.chmod(0o555)
    before = files(saved)
    request.getfixturevalue("as_nobody")
    with pytest.raises(PermissionError) as caught:
        xgemm.save(quantized(seed=1), saved)
    check_failed(saved, before, caught.value, errno.EACCES)
    with pytest.raises(PermissionError, match=r"save: .*/new cannot be written: Permission den"):
        xgemm.save(quantized(seed=1), saved / "new")


# ---- several at a time ----


def test_savers_of_one_directory_meet(tmp_path: Path) -> None:
    models = [quantized(seed=seed) for seed in range(3)]
    errors: list[BaseException] = []

    def save(model: nn.Module) -> None:
        try:
            for shards in (1 << 30, 6000, 20000, 1 << 30, 6000):
                xgemm.save(model, tmp_path / "out", max_shard_bytes=shards)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=save, args=[model]) for model in models]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    found = load_into_new(tmp_path / "out")(TOKENS)
    assert any(torch.equal(found, model(TOKENS)) for model in models)
    xgemm.save(models[0], tmp_path / "out")
    names = {"config.json", "model.safetensors", "xgemm_manifest.json"}
    assert files(tmp_path / "out").keys() == names
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_saver_looks_at_the_directory_alone(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two steps of another saver it holds files, and no manifest: something else's."""
    locked = []

    def look(target: Path) -> None:
        descriptor = os.open(target, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            locked.append(target)
        os.close(descriptor)

    monkeypatch.setattr(checkpoint, "_refuse_foreign", look)
    xgemm.save(quantized(seed=1), saved)
    assert locked == [saved]


def test_a_save_fails_where_another_begins(tmp_path: Path) -> None:
    """The one that fails made the directory. It stays, for the other has the lock on it."""
    target = tmp_path / "new" / "out"

    def replacing(digit: str, check: Callable[[Path], None]) -> Any:
        return atomic.replacing(target, digit * 32, checkpoint.OURS, CONFIG_FILE, check)

    error = KeyError("the first one fails")
    failing = replacing("a", lambda _: None)
    failing.__enter__()

    def fail(_: Path) -> None:
        assert not failing.__exit__(KeyError, error, None)

    with replacing("b", fail) as staging:
        (staging / CONFIG_FILE).write_text("{}")
    assert files(target) == {CONFIG_FILE: b"{}"}


@pytest.mark.parametrize("raised", [FileNotFoundError, FileExistsError])
def test_directories_that_vanish_while_they_are_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, raised: type[OSError]
) -> None:
    """What mkdir says where a save that fails removes what it had made, or its parent."""
    target = tmp_path / "new" / "out"
    mkdir, left = Path.mkdir, 3

    def make(path: Path, *args: Any, **kwargs: Any) -> None:
        nonlocal left
        if path == target and left > 0:
            left -= 1
            raise raised(errno.ENOENT, "gone", str(path))
        mkdir(path, *args, **kwargs)

    monkeypatch.setattr(Path, "mkdir", make)
    xgemm.save(quantized(), target)
    same(load_into_new(target), quantized())
    target, left = tmp_path / "other", 10**9
    with pytest.raises(raised, match=r"^save: .*/other cannot be written"):
        xgemm.save(quantized(), target)


def test_a_reader_gets_one_of_the_saves(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a saver does between two steps of `load`."""
    models = [quantized(seed=seed) for seed in range(3)]
    outputs = [model(TOKENS) for model in models]
    read_json, saves = checkpoint.read_json, 0

    def read(path: Path) -> dict[str, Any]:
        nonlocal saves
        if saves < 2:  # it has read config.json: the rest is another save's now
            saves += 1
            xgemm.save(models[saves], saved, max_shard_bytes=6000)
        return read_json(path)

    monkeypatch.setattr(checkpoint, "read_json", read)
    found = load_into_new(saved)
    assert saves == 2
    assert torch.equal(found(TOKENS), outputs[2])


def test_readers_beside_savers(tmp_path: Path) -> None:
    models = [quantized(seed=seed) for seed in range(2)]
    outputs = [model(TOKENS) for model in models]
    path = tmp_path / "out"
    xgemm.save(models[0], path)
    done = threading.Event()

    def save() -> None:
        while not done.is_set():
            for model, shards in zip(models, (6000, 1 << 30), strict=True):
                xgemm.save(model, path, max_shard_bytes=shards)

    saver = threading.Thread(target=save)
    saver.start()
    try:
        for _ in range(20):
            found = load_into_new(path)(TOKENS)
            assert any(torch.equal(found, output) for output in outputs)
    finally:
        done.set()
        saver.join()


def test_a_lock_that_is_never_released(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(atomic, "LOCK_TIMEOUT_S", 0.05)
    before = files(saved)
    descriptor = os.open(saved, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    with pytest.raises(TimeoutError, match=r"save: .*/out has been locked by another process for"):
        xgemm.save(quantized(seed=1), saved)
    os.close(descriptor)
    assert files(saved) == before


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.EBADF, errno.ENOLCK])
def test_a_file_system_without_locks(
    saved: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def flock(descriptor: int, operation: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", flock)
    with atomic.replacing(saved, "0" * 32, checkpoint.OURS, CONFIG_FILE, print) as staging:
        xgemm.save(quantized(seed=1), saved)
        assert staging.is_dir()  # it cannot know whether somebody writes there
        shutil.copytree(saved, staging, dirs_exist_ok=True, ignore=lambda *_: [staging.name])
    same(load_into_new(saved), quantized(seed=1))
    assert atomic.folders(saved) == []
