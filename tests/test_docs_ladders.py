"""The commands that docs/ladders names: they parse, and without a GPU say why a rung is skipped."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from xgemm.cli.app import app
from xgemm.ladder.rungs import LADDERS, parse_rungs

pytest.importorskip("matplotlib")

PAGES = Path(__file__).resolve().parents[1] / "docs" / "ladders"


def commands() -> list[str]:
    found: dict[str, None] = {}
    for page in sorted(PAGES.glob("*.md")):
        text = page.read_text()
        for match in re.finditer(r"`(xgemm (?:ladder|layout) [^`]+)`|^\$ (xgemm .*)$", text, re.M):
            found[(match[1] or match[2]).partition(" #")[0].replace("\n", " ").strip()] = None
    return list(found)


COMMANDS = commands()


def test_there_are_commands_of_every_kind():
    for name in LADDERS:
        assert any(command.startswith(f"xgemm ladder {name}") for command in COMMANDS)
    assert any("--list" in command for command in COMMANDS)
    assert any("--show" in command for command in COMMANDS)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here: it would be measured")
@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_of_the_pages(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    _, group, *arguments = shlex.split(command)
    if arguments[0] == "cpu" and not {"--list", "--show", "--from"} & set(arguments):
        if "--size" in arguments:
            arguments[arguments.index("--size") + 1] = "16"
        else:
            arguments += ["--size", "16"]
    if "--from" in arguments:  # what the command before it wrote
        written = arguments[arguments.index("--from") + 1]
        size = ["--size", "16"] if arguments[0] == "cpu" else []
        write = [group, arguments[0], "--output", written, *size]
        CliRunner().invoke(app, write, catch_exceptions=False)
    result = CliRunner().invoke(app, [group, *arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert result.stdout
    measured = group == "ladder" and not {"--list", "--show"} & set(arguments)
    if measured and arguments[0] == "probes":
        assert "skipped: " in result.stdout
    elif measured and LADDERS[arguments[0]].device == "cuda":
        asked = arguments[arguments.index("--rungs") + 1] if "--rungs" in arguments else ""
        for rung in parse_rungs(LADDERS[arguments[0]], asked):
            assert re.search(rf"{arguments[0]} rung {rung}: skipped: \S", result.stdout)
    if "--plot" in arguments and arguments[0] == "cpu":
        assert (tmp_path / arguments[arguments.index("--plot") + 1]).is_file()
