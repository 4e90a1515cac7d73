"""Greedy decoding with a KV cache, and the measurements of the demo, for any causal LM."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import nn
from torch.nn import functional


class FreeLinear(nn.Module):
    """Stands where a linear was and costs nothing: its result has the right shape and no meaning.

    The result is zeros rather than whatever memory holds: a NaN or a denormal would slow down the
    operations around it, which are what is measured.
    """

    def __init__(self, out_features: int) -> None:
        super().__init__()
        self.out_features = out_features
        self._result = torch.zeros(0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shape = (*x.shape[:-1], self.out_features)
        if self._result.shape != shape or self._result.dtype != x.dtype:
            self._result = x.new_zeros(shape)
        return self._result


def without_linears(model: nn.Module, names: list[str]) -> nn.Module:
    """`model`, in place, with the modules `names` replaced by FreeLinears."""
    for name in names:
        linear = cast(nn.Linear, model.get_submodule(name))
        model.set_submodule(name, FreeLinear(linear.out_features))
    return model


def wait_for(device: torch.device) -> None:
    """Until the device has done what it was asked for: a GPU runs behind the host."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


class Decoder:
    """A model in the middle of a greedy generation: `step` computes the next token."""

    def __init__(self, model: nn.Module, prompt: torch.Tensor) -> None:
        with torch.inference_mode():
            output = model(prompt, use_cache=True, logits_to_keep=1)
        self._model = model
        self._cache: Any = output.past_key_values
        self.token = output.logits[:, -1].argmax(-1, keepdim=True)  # [1, 1]

    def step(self) -> None:
        with torch.inference_mode():
            output = self._model(self.token, past_key_values=self._cache, use_cache=True)
            self.token = output.logits[:, -1].argmax(-1, keepdim=True)


def generate(
    model: nn.Module, prompt: torch.Tensor, stop_tokens: frozenset[int], max_tokens: int
) -> Iterator[int]:
    """The tokens of the greedy answer, one by one, without the stop token."""
    decoder = Decoder(model, prompt)
    for position in range(max_tokens):
        if position:
            decoder.step()
        token = int(decoder.token)
        if token in stop_tokens:
            return
        yield token


class Budget:
    """Seconds from now on; work that comes in pieces asks after each whether they are over."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._started = time.perf_counter()

    def part(self, share: float) -> Budget:
        """A budget that began with this one and is over after `share` of it."""
        made = Budget(self._seconds * share)
        made._started = self._started
        return made

    def spent(self) -> float:
        return time.perf_counter() - self._started

    def left(self) -> float:
        return self._seconds - self.spent()

    def over(self) -> bool:
        return self.left() <= 0


def median(seconds: list[float]) -> float | None:
    """None of nothing."""
    return statistics.median(seconds) if seconds else None


def decode_seconds(
    models: dict[str, nn.Module],
    prompt: torch.Tensor,
    rounds: int,
    tokens: int,
    budget: Budget,
    progress: Callable[[int], None] = lambda done: None,
) -> dict[str, list[float]]:
    """Seconds of each token at batch 1; the models take turns within each round.

    When the budget is over, nothing more is timed but one token of each of the first two models;
    the list of a model that had no turn is empty. progress: called with the number of rounds done.
    """
    seconds: dict[str, list[float]] = {name: [] for name in models}
    for done in range(rounds):
        for position, (name, model) in enumerate(models.items()):
            if budget.over() and (done or position >= 2):
                return seconds
            decoder = Decoder(model, prompt)
            decoder.step()  # untimed: first-call costs
            for step in range(tokens):
                if step and budget.over():
                    break
                wait_for(prompt.device)
                start = time.perf_counter()
                decoder.step()
                wait_for(prompt.device)
                seconds[name].append(time.perf_counter() - start)
        progress(done + 1)
    return seconds


FIRST_CALL_TOKENS = 64


def prefill_seconds(
    models: dict[str, nn.Module],
    prompt: torch.Tensor,
    rounds: int,
    budget: Budget,
    progress: Callable[[int], None] = lambda done: None,
) -> dict[str, list[float]]:
    """Seconds of a whole prompt, logits of the last position only; models take turns.

    A prompt is begun only where the budget has time for it, by the time that it took before, or
    that its first 64 tokens took: the list of a model may be empty. progress: called with the
    number of rounds done.
    """
    seconds: dict[str, list[float]] = {name: [] for name in models}
    expected: dict[str, float] = {}
    with torch.inference_mode():
        for name, model in models.items():
            if budget.over():
                return seconds
            start = time.perf_counter()
            model(prompt[:, :FIRST_CALL_TOKENS], logits_to_keep=1)  # first-call costs
            wait_for(prompt.device)
            took = time.perf_counter() - start
            expected[name] = took * prompt.shape[1] / FIRST_CALL_TOKENS
        for done in range(rounds):
            for name, model in models.items():
                if expected[name] > budget.left():
                    continue
                wait_for(prompt.device)
                start = time.perf_counter()
                model(prompt, use_cache=True, logits_to_keep=1)
                wait_for(prompt.device)
                expected[name] = time.perf_counter() - start
                seconds[name].append(expected[name])
            progress(done + 1)
    return seconds


@dataclass(frozen=True)
class TextComparison:
    """Of each model; `tokens`: how much of the text was read."""

    perplexity: dict[str, float]
    difference: dict[str, float]  # largest difference of a logit from the first model's
    tokens: int


def compare_on_text(
    models: dict[str, nn.Module],
    tokens: torch.Tensor,
    window: int,
    budget: Budget | None = None,
    progress: Callable[[int], None] = lambda done: None,
) -> TextComparison:
    """The models' perplexities on a text, and how far their logits are from the first model's.

    tokens: int64 [T]. Windows do not overlap (stride = window); the first token of a window is
    context only, and a rest shorter than a window is left out. A window is begun only where the
    budget has the time that the one before took. progress: called with the number of windows done.
    """
    reference = next(iter(models))
    loss = dict.fromkeys(models, 0.0)
    difference = dict.fromkeys(models, 0.0)
    windows = tokens.numel() // window
    if windows == 0 or window < 2:
        raise ValueError(
            f"compare_on_text: tokens must hold at least one window of {window} >= 2, "
            f"got {tokens.numel()}"
        )
    done, took = 0, 0.0
    with torch.inference_mode():
        for part in tokens[: windows * window].view(windows, 1, window):
            if budget is not None and budget.left() <= took:
                break
            started = time.perf_counter()
            expected = torch.empty(0)
            for name, model in models.items():
                logits = model(part).logits[0].float()  # [window, vocabulary]
                loss[name] += float(functional.cross_entropy(logits[:-1], part[0, 1:]))
                if name == reference:
                    expected = logits
                else:
                    largest = float((logits - expected).abs().max())
                    difference[name] = max(difference[name], largest)
            done += 1
            took = time.perf_counter() - started
            progress(done)
    if done == 0:
        return TextComparison({}, {}, 0)
    perplexity = {name: float(torch.tensor(loss[name] / done).exp()) for name in models}
    return TextComparison(perplexity, difference, done * window)
