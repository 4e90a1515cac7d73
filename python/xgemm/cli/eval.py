"""`xgemm eval`: perplexity of a text, beside the float model where it is given."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.markup import escape

from xgemm.cli.models import check_options, describe, load_language_model, load_tokenizer
from xgemm.cli.output import out, print_json, table
from xgemm.cli.progress import step
from xgemm.quoting import printable

DEFAULT_WINDOW = 1024  # or the model's greatest length, where that is less
DEFAULT_TEXT = "pydoc_data/topics.py of Python's standard library"


@dataclass(frozen=True)
class Text:
    """What is read: a file, or the help topics of pydoc; how much of it, and in which windows."""

    file: Path | None = None
    window: int | None = None
    stride: int | None = None
    max_tokens: int = 8192

    def read(self) -> str:
        if self.file is None:
            from pydoc_data.topics import topics

            return "\n".join(topics[name] for name in sorted(topics))
        try:
            return self.file.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise ValueError(f"eval: --text: {self.file} is not UTF-8: {error}") from None

    @property
    def name(self) -> str:
        return DEFAULT_TEXT if self.file is None else str(self.file)


@dataclass(frozen=True)
class Scored:
    """A model's score on the text, and what else a row of the table says."""

    directory: str
    model: str
    score: Any  # xgemm.hf.perplexity.TextScore
    seconds: float
    bytes: int

    def as_json(self) -> dict[str, Any]:
        return {
            "directory": self.directory,
            "model": self.model,
            "perplexity": self.score.perplexity,
            "loss": float(self.score.loss.double().mean()),
            "loss_standard_error": self.score.standard_error,
            "tokens": self.score.loss.numel(),
            "seconds": self.seconds,
            "bytes": self.bytes,
        }


def run(
    directory: Path,
    reference: Path | None,
    text: Text,
    *,
    device: str,
    dtype: str,
    trust_remote_code: bool,
    verify: bool,
    as_json: bool,
) -> None:
    device = check_options("eval", device, dtype)
    content = text.read()
    scored: list[Scored] = []
    tokens: torch.Tensor | None = None
    window = stride = 0
    for folder in [directory, *([] if reference is None else [reference])]:
        model = load_language_model("eval", folder, device, dtype, trust_remote_code, verify)
        if model.config.is_encoder_decoder:
            raise ValueError(
                f"eval: {type(model).__name__} is an encoder-decoder: perplexity of plain text is "
                "of causal language models"
            )
        found = _tokens(folder, content, text, device, trust_remote_code)
        if tokens is None:
            tokens = found
            window, stride = _windows(model, text, tokens.numel())
        elif not torch.equal(tokens, found):
            raise ValueError(
                f"eval: --reference: the tokenizer of {folder} makes other tokens of the text than "
                f"that of {directory}: their perplexities do not compare"
            )
        scored.append(_score(folder, model, tokens, window, stride))
        del model  # one model in memory at a time
    _print(scored, text, window, stride, as_json)


def _tokens(
    directory: Path, content: str, text: Text, device: str, trust_remote_code: bool
) -> torch.Tensor:
    tokenizer = load_tokenizer("eval", directory, trust_remote_code)
    with step("tokenizing"):
        ids = tokenizer(content, verbose=False)["input_ids"][: text.max_tokens]
    if len(ids) < 2:
        raise ValueError(f"eval: --text: {text.name} must hold at least 2 tokens, got {len(ids)}")
    return torch.tensor(ids, device=device)


def _windows(model: Any, text: Text, tokens: int) -> tuple[int, int]:
    """Window and stride: as asked for, but no longer than the model reads or the text is."""
    config = model.config.get_text_config()
    longest = getattr(config, "max_position_embeddings", None) or DEFAULT_WINDOW
    if text.window is not None and text.window > longest:
        raise ValueError(
            f"eval: --window must be at most {longest}, which {type(model).__name__} reads, got "
            f"{text.window}"
        )
    window = min(text.window or DEFAULT_WINDOW, longest)
    if text.stride is not None and text.stride >= window:
        raise ValueError(
            f"eval: --stride must be below the window of {window} tokens, got {text.stride}"
        )
    return window, text.stride or max(window // 2, 1)


def _score(directory: Path, model: Any, tokens: torch.Tensor, window: int, stride: int) -> Scored:
    from xgemm.hf.perplexity import score_text

    started = time.perf_counter()
    with step(f"reading {tokens.numel()} tokens", total=1) as shown:
        score = score_text(model, tokens, window, stride, shown.update)
    # A tied tensor counts once.
    held = {t.data_ptr(): t.numel() * t.element_size() for t in model.state_dict().values()}
    seconds = time.perf_counter() - started
    return Scored(str(directory), describe(model), score, seconds, sum(held.values()))


def _print(scored: list[Scored], text: Text, window: int, stride: int, as_json: bool) -> None:
    from xgemm.hf.perplexity import compare

    first = scored[0].score
    beside = compare(first, scored[1].score) if len(scored) > 1 else None
    if as_json:
        facts: dict[str, Any] = {
            "text": text.name,
            "window": window,
            "stride": stride,
            "models": [each.as_json() for each in scored],
        }
        if beside is not None:
            facts["difference"] = {
                "loss": beside.loss_difference,
                "loss_standard_error": beside.standard_error,
                "same_best_token": beside.same_best,
            }
        print_json(json.loads(json.dumps(facts).replace("Infinity", "null")))
        return
    rows = [
        [
            escape(printable(Path(each.directory).name)),
            f"{each.bytes / 1e6:.1f}",
            f"{each.score.perplexity:.4g}",
            f"{float(each.score.loss.double().mean()):.4f}",
            f"{each.score.loss.numel() / each.seconds:.0f}",
        ]
        for each in scored
    ]
    columns = ["", "MB", "perplexity", "loss, nats", "tokens/s"]
    title = escape(printable(f"{scored[0].model}, {first.loss.numel()} tokens"))
    out.print(table(title, columns, rows))
    where = printable(f"Text: {text.name}; windows of {window} tokens, stride {stride}.")
    out.print(where, markup=False, soft_wrap=True)
    out.print(
        f"Standard error of the loss {first.standard_error:.4f}, as if tokens were independent.",
        soft_wrap=True,
    )
    if beside is not None:
        out.print(
            f"Loss {beside.loss_difference:+.4f} nats from the reference's (standard error"
            f" {beside.standard_error:.4f}); the same most likely token at"
            f" {100 * beside.same_best:.1f} % of the tokens.",
            soft_wrap=True,
        )
