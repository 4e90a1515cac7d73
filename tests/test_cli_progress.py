"""What a command shows while it reads and writes models: how many tensors of how many."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("rich")
pytest.importorskip("transformers")

from rich.console import Console

import xgemm
from xgemm.cli import progress


def model() -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=64, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=2, vocab_size=32,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


def test_tensors_are_counted(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    ours, theirs, quantized = tmp_path / "ours", tmp_path / "theirs", model()
    xgemm.quantize(quantized, group_size=32)

    def load_theirs() -> None:
        AutoModelForCausalLM.from_pretrained(theirs)

    for run, least in (
        (lambda: xgemm.save(quantized, ours), 20),
        (lambda: xgemm.load(ours), 20),
        (lambda: model().save_pretrained(theirs), 1),
        (load_theirs, 10),
    ):
        logging.disable_progress_bar()  # as commands do
        with progress.counted("a step") as shown:
            run()
        assert shown.done == shown.total >= least
        assert shown.line().startswith(f"a step {shown.done} of {shown.total}, ")
    with progress.step("another") as later:  # nobody watches any more
        xgemm.load(ours)
    assert (later.done, later.total) == (0, None)


def test_a_terminal_shows_a_count_as_soon_as_there_is_one() -> None:
    written = io.StringIO()
    console = Console(file=written, force_terminal=True, width=100)
    with progress._TerminalStep("reading", None, console) as shown:
        shown._progress.refresh()
        assert "/" not in written.getvalue().replace("0:00:00", "")
        shown.update(3, 12)
        shown._progress.refresh()
    assert "3/12" in written.getvalue()
