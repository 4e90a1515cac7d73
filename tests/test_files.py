"""Files that are not regular, JSON without end: refused by name, at once."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import Net, edit, load_into_new, quantized, same

import xgemm
from xgemm.formats import files
from xgemm.formats.manifest import CONFIG_FILE, INDEX_FILE, MANIFEST_FILE

pytest.importorskip("safetensors.torch")

SECONDS = 20  # a reader that waits for a FIFO waits for ever

KINDS: dict[str, Callable[[Path], object]] = {
    "a FIFO": os.mkfifo,
    "a directory": os.mkdir,
    "a device": lambda path: path.symlink_to("/dev/zero"),
    "a loop of links": lambda path: path.symlink_to(path.name),
    "a socket": lambda path: bind_socket(path),
}


def bind_socket(path: Path) -> None:
    """By a short name: that of a socket has at most 107 bytes."""
    here = os.getcwd()
    os.chdir(path.parent)
    try:
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind(path.name)
    finally:
        os.chdir(here)


@pytest.fixture(autouse=True)
def alarm() -> Iterator[None]:
    def over(*args: object) -> None:
        raise TimeoutError(f"it took more than {SECONDS} s")

    previous = signal.signal(signal.SIGALRM, over)
    signal.alarm(SECONDS)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, previous)


@pytest.fixture(scope="module")
def sharded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sharded") / "out"
    xgemm.save(quantized(), path, max_shard_bytes=12000)
    return path


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "file",
    [CONFIG_FILE, MANIFEST_FILE, INDEX_FILE, "model-00002-of-00003.safetensors"],
)
def test_what_is_not_a_regular_file_is_refused(
    sharded: Path, tmp_path: Path, file: str, kind: str, run: Callable[..., tuple[int, str, str]]
) -> None:
    path = shutil.copytree(sharded, tmp_path / "out")
    (path / file).unlink()
    KINDS[kind](path / file)
    model = Net(seed=9).eval()
    with pytest.raises(ValueError, match=rf"load: .*{file} must be a regular file, got {kind}"):
        xgemm.load(path, model=model)
    assert type(model.up) is torch.nn.Linear
    code, _, message = run("inspect", path)
    if file != INDEX_FILE:  # which inspect does not read beside a manifest
        assert code == 1
        assert f"{file} must be a regular file, got {kind}" in message


def test_links_to_regular_files_are_followed(sharded: Path, tmp_path: Path) -> None:
    """The cache of the Hub is made of them."""
    path = tmp_path / "snapshot"
    path.mkdir()
    for file in sharded.iterdir():
        (path / file.name).symlink_to(file)
    same(load_into_new(path), load_into_new(sharded))


def test_a_generation_config_that_is_a_fifo_is_not_passed_over(saved: Path) -> None:
    os.mkfifo(saved / "generation_config.json")
    with pytest.raises(ValueError, match=r"generation_config\.json must be a regular file"):
        load_into_new(saved)


def test_a_file_that_takes_the_place_of_another_while_it_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look at the name and its opening: the open file is looked at, too."""
    path, opened = tmp_path / "config.json", os.open
    path.write_text("{}")

    def swap(name: Path, flags: int) -> int:
        path.unlink()
        os.mkfifo(path)
        return opened(name, flags)

    monkeypatch.setattr(files.os, "open", swap)
    with pytest.raises(ValueError, match=r"config\.json must be a regular file, got a FIFO"):
        files.read_json(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"a": 1, "b": 2, "a": 3}', "'a' stands twice in an object"),
        ('{"a": {"b": 1, "b": 1}}', "'b' stands twice in an object"),
        ('{"a": ' + "[" * 200 + "]" * 200 + "}", "nested more than 100 deep"),
        ("[" * 100_000, "not JSON"),
        ("[1]", "expected an object, got list"),
        ('{"a": 1' + "0" * 5000 + "}", "not JSON"),
    ],
)
def test_json_that_readers_understand_differently(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / CONFIG_FILE
    path.write_text(text)
    with pytest.raises(ValueError, match=rf"load: .*config\.json: .*{message}"):
        files.read_json(path)


def test_json_of_any_size_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / CONFIG_FILE
    with path.open("wb") as file:
        file.truncate(1 << 40)  # a hole: no disk, but a reader would fill the memory
    with pytest.raises(ValueError, match=rf"config\.json must have at most {files.MAX_JSON_BYTES}"):
        files.read_json(path)


def test_a_file_that_may_not_be_read_is_named(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: Path, flags: int) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(files.os, "open", refuse)  # root may read everything
    with pytest.raises(PermissionError, match=r"load: .*config\.json cannot be read: Permission"):
        load_into_new(saved)


def test_quantize_copies_regular_files_alone(
    tmp_path: Path, run: Callable[..., tuple[int, str, str]]
) -> None:
    """modules.json may name folders beside it; a link in them could lead anywhere."""
    pytest.importorskip("accelerate")
    pytest.importorskip("transformers")
    from language_models import save_llama

    source = save_llama(tmp_path / "around" / "source")
    (tmp_path / "around" / "secret").write_text("secret")
    (source / "1_Pooling").mkdir()
    (source / "1_Pooling" / "config.json").write_text("{}")
    (source / "1_Pooling" / "link").symlink_to(tmp_path / "around")
    (source / "linked").symlink_to(tmp_path / "around")
    names = ("1_Pooling", "..", "linked", "../around", "", "/etc")
    (source / "modules.json").write_text(json.dumps([{"path": name} for name in names]))
    code, _, message = run("quantize", source, tmp_path / "new" / "packed", "--group-size", 32)
    assert code == 0, message
    assert not list((tmp_path / "new").rglob("secret"))
    assert not (tmp_path / "new" / "source").exists()
    assert (tmp_path / "new" / "packed" / "1_Pooling" / "config.json").read_text() == "{}"
    os.mkfifo(source / "1_Pooling" / "fifo")
    code, _, message = run("quantize", source, tmp_path / "newer", "--group-size", 32)
    assert code == 1
    assert "fifo" in message


def test_a_directory_for_transformers_is_looked_through(
    tmp_path: Path, run: Callable[..., tuple[int, str, str]]
) -> None:
    """transformers opens what an index names, and would wait."""
    pytest.importorskip("accelerate")
    pytest.importorskip("transformers")
    from language_models import save_llama

    from xgemm.hf.source import load_float

    path = save_llama(tmp_path / "float")
    os.rename(path / "model.safetensors", path / "model-00001-of-00002.safetensors")
    os.mkfifo(path / "model-00002-of-00002.safetensors")
    with pytest.raises(ValueError, match=r"00002.safetensors must be a regular file, got a FIFO"):
        load_float(path)
    (path / "model-00002-of-00002.safetensors").unlink()
    os.mkfifo(path / "vocab.json")
    code, _, message = run("generate", path, "a")
    assert code == 1
    assert "vocab.json must be a regular file, got a FIFO" in message


def test_a_manifest_may_be_large(saved: Path) -> None:
    """The limit is far from what a model of 10^5 tensors needs."""
    edit(saved / MANIFEST_FILE, lambda value: value.update(padding="x" * (10 << 20)))
    load_into_new(saved)


@pytest.mark.parametrize(
    ("directory", "error", "message"),
    [
        (None, TypeError, "directory must be a str or Path, got NoneType"),
        (b"out", TypeError, "directory must be a str or Path, got bytes"),
        ("a\0b", ValueError, r"directory 'a\\x00b' is not a path: .*null"),
        ("\ud800", ValueError, r"directory '\\ud800' is not a path: "),
    ],
)
def test_what_is_no_path(directory: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=f"^save: {message}"):
        xgemm.save(quantized(), directory)
    with pytest.raises(error, match=f"^load: {message}"):
        xgemm.load(directory)


def test_a_working_directory_that_was_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(FileNotFoundError, match=r"^save: the working directory has been removed"):
        xgemm.save(quantized(), ".")
    with pytest.raises(FileNotFoundError, match=r"^load: the working directory has been removed"):
        xgemm.load("out")
