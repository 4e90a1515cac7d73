"""The examples and commands of docs/guide/checkpoints.md run as they stand."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import make_by_tools
import pytest

import xgemm

for package in ("typer", "rich", "transformers", "accelerate"):
    pytest.importorskip(package)

pytestmark = pytest.mark.usefixtures("one_thread")

PAGE = (Path(__file__).resolve().parents[1] / "docs" / "guide" / "checkpoints.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def test_commands_follow_the_examples(tmp_path, monkeypatch, run):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(make_by_tools.FOLDER / "nf4", "their-nf4")
    scope: dict[str, object] = {"__name__": "__main__"}
    for example in blocks("python"):
        exec(example, scope)
    commands = [
        line.removeprefix("$ ") for block in blocks("console") for line in block.splitlines()
    ]
    assert len(commands) == 5
    for command in commands:
        name, *arguments = shlex.split(command)
        assert name == "xgemm"
        code, _, err = run(*arguments)
        assert code == 0, (command, err)
    first, last = xgemm.load("their-gptq"), xgemm.load("gptq-again")
    one, other = first.state_dict(), last.state_dict()
    for name, tensor in one.items():
        if not name.endswith(("qweight", "packed_format")):
            assert tensor.equal(other[name]), name
