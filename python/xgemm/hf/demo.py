"""The demo: a language model on xgemm's 4-bit linears answers, and is measured beside torch."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import nn

from xgemm.hf import decode
from xgemm.hf.decode import Budget, TextComparison
from xgemm.hf.models import DemoModel, Shown, Steps, sharing_copy, to_bfloat16, unseen

DEFAULT_QUESTION = "What is the capital of France?"
FP32, BF16 = "torch fp32", "torch bf16"
XGEMM, XGEMM_BF16 = "xgemm W4", "xgemm W4, bf16"  # by what lies between the linears
FREE = "linears free"  # fp32 with linears that cost nothing


@dataclass(frozen=True)
class DemoSizes:
    """How much the demo measures, where its time suffices."""

    answer_tokens: int = 64  # at most
    decode_rounds: int = 4
    decode_tokens: int = 12  # a round
    prefill_tokens: int = 512
    prefill_rounds: int = 5
    text_tokens: int = 4096
    text_window: int = 512
    budget_s: float = 90.0  # of all measurements


# Shares of the budget after which the fp32 answer, decoding, prefill and perplexity stop.
BUDGET_SHARES = (0.15, 0.4, 0.65, 1.0)


@dataclass(frozen=True)
class DemoRow:
    """What was measured of one model; None where it has no meaning, or where time was up."""

    name: str
    decode_tokens_per_s: float | None
    prefill_tokens_per_s: float | None
    linear_bytes: int | None
    perplexity: float | None
    max_logit_difference: float | None


@dataclass(frozen=True)
class Coverage:
    """How much was measured within the budget, and how much was wanted."""

    answer_tokens_compared: int
    decode_tokens: int  # timed, of fp32 and of xgemm, the lesser
    decode_tokens_wanted: int
    prefill_rounds: int
    prefill_rounds_wanted: int
    text_tokens: int
    text_tokens_wanted: int
    left_out: dict[str, str]  # model -> what was not measured of it
    seconds: float
    budget_s: float

    def __str__(self) -> str:
        text = (
            f"measured in {self.seconds:.0f} s (budget {self.budget_s:.0f} s): decoding of"
            f" {self.decode_tokens} of {self.decode_tokens_wanted} tokens, {self.prefill_rounds} of"
            f" {self.prefill_rounds_wanted} prefills, perplexity of {self.text_tokens} of"
            f" {self.text_tokens_wanted} tokens"
        )
        return text + "".join(f"; {name}: no {what}" for name, what in self.left_out.items())


@dataclass(frozen=True)
class DemoReport:
    model: str
    random_weights: bool
    question: str
    answer: str
    answer_tokens: int
    answer_seconds: float
    same_answer_as_fp32: bool  # in the tokens that were compared
    linears: int
    linear_weights: int  # how many weights they hold
    device: str  # the GPU's name, or cpu
    threads: int
    text: str
    coverage: Coverage
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
    """Bytes of the weights of the modules `names`: codes, scales, zero points and padding."""
    total = 0
    for name in names:
        module = model.get_submodule(name)
        weight = getattr(module, "qweight", None)
        weight = module.weight if weight is None else weight
        assert isinstance(weight, torch.Tensor)
        total += weight.numel() * weight.element_size()
    return total


def run_demo(
    model: DemoModel,
    question: str,
    *,
    sizes: DemoSizes | None = None,
    device: str = "cpu",
    step: Steps = unseen,
    on_text: Callable[[str], None] = lambda text: None,
    on_answer: Callable[[int, float], None] = lambda tokens, seconds: None,
) -> DemoReport:
    """Answers `question`, then measures.

    device: cpu or cuda, to which the model moves; on a GPU the 4-bit model runs in bf16, too.
    step: told what is being done; on_text: given the answer's text as it comes; on_answer: called
    with its tokens and seconds when the answer is whole.
    """
    sizes = sizes or DemoSizes()
    started = time.perf_counter()
    model.quantized.to(device)
    prompt = model.encode_question(question).to(device)
    tokens = _stream_answer(model, prompt, sizes.answer_tokens, on_text)
    answer_seconds = time.perf_counter() - started
    on_answer(len(tokens), answer_seconds)

    reference = model.load_reference(step).to(device)
    measured = _measure(model, reference, prompt, tokens, sizes, step)
    return DemoReport(
        model=model.label,
        random_weights=model.random_weights,
        question=question,
        answer=model.decode(tokens),
        answer_tokens=len(tokens),
        answer_seconds=answer_seconds,
        same_answer_as_fp32=measured.same_answer,
        linears=len(model.linears),
        linear_weights=linear_bytes(reference, model.linears) // torch.float32.itemsize,
        device=torch.cuda.get_device_name() if device == "cuda" else "cpu",
        threads=torch.get_num_threads(),
        text="pydoc_data/topics.py of Python's standard library",
        coverage=measured.coverage,
        rows=measured.rows,
        seconds=time.perf_counter() - started,
    )


@dataclass(frozen=True)
class _Measured:
    same_answer: bool
    rows: list[DemoRow]
    coverage: Coverage


def _measure(
    model: DemoModel,
    reference: nn.Module,
    prompt: torch.Tensor,
    answer: list[int],
    sizes: DemoSizes,
    step: Steps,
) -> _Measured:
    budget = Budget(sizes.budget_s)
    until_answer, until_decode, until_prefill, until_end = map(budget.part, BUDGET_SHARES)
    with step("answering with torch fp32", len(answer)) as shown:
        same, compared = _compare_answer(
            model, reference, prompt, answer, sizes.answer_tokens, until_answer, shown
        )
    with step("converting a copy to bf16", None):
        models = {FP32: reference, XGEMM: model.quantized, BF16: to_bfloat16(reference)}
        if prompt.is_cuda:
            models[XGEMM_BF16] = to_bfloat16(model.quantized)
        free = decode.without_linears(sharing_copy(reference), model.linears)
        text = model.encode_text(bundled_text()).to(prompt.device)
    with step("decoding, the models by turns", sizes.decode_rounds) as shown:
        per_token = decode.decode_seconds(
            {**models, FREE: free}, prompt, sizes.decode_rounds, sizes.decode_tokens,
            until_decode, shown.update,
        )  # fmt: skip
    with step(f"prefill of {sizes.prefill_tokens} tokens, by turns", sizes.prefill_rounds) as shown:
        prefill = decode.prefill_seconds(
            models, text[None, : sizes.prefill_tokens], sizes.prefill_rounds, until_prefill,
            shown.update,
        )  # fmt: skip
    text = text[: sizes.text_tokens]
    # A model of which no prefill had the time has none for a window either.
    read = {name: models[name] for name, seconds in prefill.items() if seconds}
    compared_text = TextComparison({}, {}, 0)
    if FP32 in read:
        with step("perplexity, window by window", text.numel() // sizes.text_window) as shown:
            compared_text = decode.compare_on_text(
                read, text, sizes.text_window, until_end, shown.update
            )
    rows = [
        DemoRow(
            name=name,
            decode_tokens_per_s=_rate(1, per_token[name]),
            prefill_tokens_per_s=_rate(sizes.prefill_tokens, prefill[name]),
            linear_bytes=linear_bytes(each, model.linears),
            perplexity=compared_text.perplexity.get(name),
            max_logit_difference=compared_text.difference.get(name),
        )
        for name, each in models.items()
    ]
    rows.sort(key=lambda row: (FP32, BF16, XGEMM, XGEMM_BF16).index(row.name))
    rows.append(DemoRow(FREE, _rate(1, per_token[FREE]), None, None, None, None))
    coverage = Coverage(
        answer_tokens_compared=compared,
        decode_tokens=min(len(per_token[name]) for name in (FP32, XGEMM)),
        decode_tokens_wanted=sizes.decode_rounds * sizes.decode_tokens,
        prefill_rounds=min(len(prefill[name]) for name in (FP32, XGEMM)),
        prefill_rounds_wanted=sizes.prefill_rounds,
        text_tokens=compared_text.tokens,
        text_tokens_wanted=text.numel(),
        left_out=_left_out(rows),
        seconds=budget.spent(),
        budget_s=sizes.budget_s,
    )
    return _Measured(same, rows, coverage)


def _rate(tokens: int, seconds: list[float]) -> float | None:
    """Tokens a second by the median; None where nothing was timed."""
    median = decode.median(seconds)
    return None if median is None else tokens / median


def _left_out(rows: list[DemoRow]) -> dict[str, str]:
    """Name of a row -> what there was no time for."""
    found = {}
    for row in rows:
        measured = {"decoding": row.decode_tokens_per_s}
        if row.name != FREE:
            measured |= {"prefill": row.prefill_tokens_per_s, "perplexity": row.perplexity}
        lacking = [what for what, value in measured.items() if value is None]
        if lacking:
            found[row.name] = " or ".join(lacking)
    return found


def _compare_answer(
    model: DemoModel,
    reference: nn.Module,
    prompt: torch.Tensor,
    answer: list[int],
    limit: int,
    budget: Budget,
    shown: Shown,
) -> tuple[bool, int]:
    """(Whether fp32 says the same, of how many tokens that is known.)"""
    expected = decode.generate(reference, prompt, model.stop_tokens, limit)
    compared = 0
    for compared, token in enumerate(expected, 1):
        if answer[compared - 1 : compared] != [token]:
            return False, compared
        shown.update(compared)
        if budget.over():
            return True, compared
    return compared == len(answer), compared


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
