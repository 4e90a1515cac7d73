"""The commands of docs/guide/command-line.md run as they stand, and its options exist."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import pytest
from language_models import save_llama

from xgemm import cli

pytest.importorskip("typer")
pytest.importorskip("rich")
pytest.importorskip("transformers")

pytestmark = pytest.mark.usefixtures("one_thread")

PAGE = (Path(__file__).resolve().parents[1] / "docs" / "guide" / "command-line.md").read_text()
BLOCKS = re.findall(r"^```console\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
COMMANDS = [line.removeprefix("$ ") for block in BLOCKS for line in block.splitlines()]


def call(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> int | str | None:
    monkeypatch.setattr(sys, "argv", ["xgemm", *arguments])
    with pytest.raises(SystemExit) as exit:
        cli.main()
    return exit.value.code


def test_commands_run_one_after_another(tmp_path, monkeypatch, capsys):
    save_llama(tmp_path / "model")
    (tmp_path / "text.txt").write_text("The quick brown fox jumps over the lazy dog.\n" * 4)
    monkeypatch.chdir(tmp_path)
    assert COMMANDS
    for command in COMMANDS:
        name, *arguments = shlex.split(command)
        assert name == "xgemm"
        assert call(arguments, monkeypatch) == 0, (command, capsys.readouterr().err)
    assert (tmp_path / "packed-unclipped" / "config.json").is_file()


def test_options_of_the_table_exist(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "200")
    assert call(["quantize", "--help"], monkeypatch) == 0
    shown = capsys.readouterr().out
    table = re.findall(r"^\| `(--[\w-]+)", PAGE, re.MULTILINE)
    assert table
    assert set(table) == set(re.findall(r"(--[\w-]+)", shown)) - {"--json", "--help", "--debug"}
