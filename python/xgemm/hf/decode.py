"""Greedy decoding with a KV cache, and the measurements of the demo, for any causal LM."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
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


def decode_seconds(
    models: dict[str, nn.Module], prompt: torch.Tensor, rounds: int, tokens: int, limit_s: float
) -> dict[str, float]:
    """Median seconds a token at batch 1; the models take turns within each round.

    No round is begun after limit_s seconds, but the first.
    """
    seconds: dict[str, list[float]] = {name: [] for name in models}
    stop = time.perf_counter() + limit_s
    for done in range(rounds):
        if done and time.perf_counter() > stop:
            break
        for name, model in models.items():
            decoder = Decoder(model, prompt)
            decoder.step()  # untimed: first-call costs
            for _ in range(tokens):
                wait_for(prompt.device)
                start = time.perf_counter()
                decoder.step()
                wait_for(prompt.device)
                seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(times) for name, times in seconds.items()}


def prefill_seconds(
    models: dict[str, nn.Module], prompt: torch.Tensor, rounds: int, limit_s: float
) -> dict[str, float]:
    """Median seconds of a whole prompt, logits of the last position only; models take turns.

    No round is begun after limit_s seconds, but the first.
    """
    seconds: dict[str, list[float]] = {name: [] for name in models}
    stop = time.perf_counter() + limit_s
    with torch.inference_mode():
        for model in models.values():
            model(prompt[:, :64], logits_to_keep=1)  # untimed: first-call costs
        for done in range(rounds):
            if done and time.perf_counter() > stop:
                break
            for name, model in models.items():
                wait_for(prompt.device)
                start = time.perf_counter()
                model(prompt, use_cache=True, logits_to_keep=1)
                wait_for(prompt.device)
                seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(times) for name, times in seconds.items()}


def compare_on_text(
    models: dict[str, nn.Module], tokens: torch.Tensor, window: int
) -> tuple[dict[str, float], dict[str, float]]:
    """(perplexity, largest difference of a logit from the first model's), of each model.

    tokens: int64 [T]. Windows do not overlap (stride = window); the first token of a window is
    context only, and a rest shorter than a window is left out.
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
    with torch.inference_mode():
        for part in tokens[: windows * window].view(windows, 1, window):
            expected = torch.empty(0)
            for name, model in models.items():
                logits = model(part).logits[0].float()  # [window, vocabulary]
                loss[name] += float(functional.cross_entropy(logits[:-1], part[0, 1:]))
                if name == reference:
                    expected = logits
                else:
                    largest = float((logits - expected).abs().max())
                    difference[name] = max(difference[name], largest)
    perplexity = {name: float(torch.tensor(loss[name] / windows).exp()) for name in models}
    return perplexity, difference
