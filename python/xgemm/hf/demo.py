"""The demo: a language model on xgemm's 4-bit linears, beside plain torch, measured in one run."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import nn

from xgemm.hf import decode
from xgemm.hf.models import DemoModel, Say, sharing_copy, to_bfloat16

DEFAULT_QUESTION = "What is the capital of France?"
FP32, BF16 = "torch fp32", "torch bf16"
XGEMM, XGEMM_BF16 = "xgemm W4", "xgemm W4, bf16"  # by what lies between the linears
FREE = "linears free"  # fp32 with linears that cost nothing


@dataclass(frozen=True)
class DemoSizes:
    """How much the demo measures."""

    answer_tokens: int = 64  # at most
    decode_rounds: int = 4
    decode_tokens: int = 12  # a round
    prefill_tokens: int = 512
    prefill_rounds: int = 5
    limit_s: float = 25.0  # of decoding and of prefill: a busy machine gets fewer rounds
    text_tokens: int = 4096
    text_window: int = 512


@dataclass(frozen=True)
class DemoRow:
    """What was measured of one model; None where it has no meaning."""

    name: str
    decode_tokens_per_s: float
    prefill_tokens_per_s: float | None
    linear_bytes: int | None
    perplexity: float | None
    max_logit_difference: float | None


@dataclass(frozen=True)
class DemoReport:
    model: str
    random_weights: bool
    question: str
    answer: str
    answer_tokens: int
    same_answer_as_fp32: bool
    linears: int
    linear_weights: int  # how many weights they hold
    device: str  # the GPU's name, or cpu
    threads: int
    text: str
    text_tokens: int
    rows: list[DemoRow]
    seconds: float

    def row(self, name: str) -> DemoRow:
        return next(row for row in self.rows if row.name == name)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def bundled_text() -> str:
    """English that every Python carries: the help topics of pydoc."""
    from pydoc_data.topics import topics

    return "\n".join(topics[name] for name in sorted(topics))


def linear_bytes(model: nn.Module, names: list[str]) -> int:
    """Bytes of the weights of the modules `names`, padding, scales and zeros included."""
    total = 0
    for name in names:
        tensors = [*model.get_submodule(name).parameters(), *model.get_submodule(name).buffers()]
        total += sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    return total


def run_demo(
    model: DemoModel,
    question: str,
    *,
    sizes: DemoSizes | None = None,
    device: str = "cpu",
    say: Say = lambda text: None,
    on_text: Callable[[str], None] = lambda text: None,
    on_answer: Callable[[], None] = lambda: None,
) -> DemoReport:
    """Answers `question`, then measures.

    device: cpu or cuda, to which the model moves; on a GPU the 4-bit model runs in bf16, too.
    say: told what is being done; on_text: given the answer's text as it comes; on_answer: called
    when the answer is whole.
    """
    sizes = sizes or DemoSizes()
    started = time.perf_counter()
    on_gpu = device == "cuda"
    for each in (model.reference, model.quantized):
        each.to(device)
    prompt = model.encode_question(question).to(device)
    tokens = _stream_answer(model, prompt, sizes.answer_tokens, on_text)
    on_answer()
    expected = decode.generate(model.reference, prompt, model.stop_tokens, sizes.answer_tokens)
    say("answering with torch fp32")
    same = tokens == list(expected)
    say("converting a copy to bf16")
    models = {FP32: model.reference, BF16: to_bfloat16(model.reference), XGEMM: model.quantized}
    if on_gpu:
        models[XGEMM_BF16] = to_bfloat16(model.quantized)
    free = decode.without_linears(sharing_copy(model.reference), model.linears)
    say(f"decoding, {sizes.decode_rounds} rounds of {sizes.decode_tokens} tokens, in turns")
    per_token = decode.decode_seconds(
        {**models, FREE: free}, prompt, sizes.decode_rounds, sizes.decode_tokens, sizes.limit_s
    )
    text = model.encode_text(bundled_text()).to(device)
    say(f"prefill of {sizes.prefill_tokens} tokens, {sizes.prefill_rounds} rounds, in turns")
    prefill_prompt = text[None, : sizes.prefill_tokens]
    prefill = decode.prefill_seconds(models, prefill_prompt, sizes.prefill_rounds, sizes.limit_s)
    text = text[: sizes.text_tokens]
    say(f"perplexity of {text.numel()} tokens, window {sizes.text_window}")
    perplexity, difference = decode.compare_on_text(models, text, sizes.text_window)

    weights = linear_bytes(model.reference, model.linears) // torch.float32.itemsize
    rows = [
        DemoRow(
            name=name,
            decode_tokens_per_s=1 / per_token[name],
            prefill_tokens_per_s=prefill_prompt.shape[1] / prefill[name],
            linear_bytes=linear_bytes(each, model.linears),
            perplexity=perplexity[name],
            max_logit_difference=difference[name],
        )
        for name, each in models.items()
    ]
    rows.append(DemoRow(FREE, 1 / per_token[FREE], None, None, None, None))
    return DemoReport(
        model=model.label,
        random_weights=model.random_weights,
        question=question,
        answer=model.decode(tokens),
        answer_tokens=len(tokens),
        same_answer_as_fp32=same,
        linears=len(model.linears),
        linear_weights=weights,
        device=torch.cuda.get_device_name() if on_gpu else "cpu",
        threads=torch.get_num_threads(),
        text="pydoc_data/topics.py of Python's standard library",
        text_tokens=text.numel(),
        rows=rows,
        seconds=time.perf_counter() - started,
    )


def small_sizes() -> DemoSizes:
    """For the small random Llama, whose every token is a byte and costs little."""
    return DemoSizes(answer_tokens=32, prefill_rounds=3, text_tokens=2048)


def _stream_answer(
    model: DemoModel, prompt: torch.Tensor, limit: int, on_text: Callable[[str], None]
) -> list[int]:
    """The answer's tokens; on_text gets the text that each one adds."""
    tokens: list[int] = []
    shown = ""
    for token in decode.generate(model.quantized, prompt, model.stop_tokens, limit):
        tokens.append(token)
        text = model.decode(tokens)
        if not text.endswith("\N{REPLACEMENT CHARACTER}"):  # half of a character: wait for the rest
            on_text(text[len(shown) :])
            shown = text
    on_text(model.decode(tokens)[len(shown) :])
    return tokens
