"""Perplexity of a text by sliding windows, token by token, so that two models can be compared."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

ROWS = 256  # logits that are widened to fp32 at a time


@dataclass(frozen=True)
class TextScore:
    """What a model makes of each scored token.

    loss: fp32 [T], minus the natural logarithm of the token's probability.
    best: int64 [T], the token that the model holds most likely there.
    """

    loss: torch.Tensor
    best: torch.Tensor

    @property
    def perplexity(self) -> float:
        mean = float(self.loss.double().mean())
        return math.exp(mean) if mean < 700 else math.inf

    @property
    def standard_error(self) -> float:
        """Of the mean loss, as if tokens were independent: a lower bound of what it is."""
        return standard_error(self.loss)


@dataclass(frozen=True)
class Comparison:
    """A model beside another on the same tokens."""

    loss_difference: float  # mean over tokens, in nats
    standard_error: float  # of it, from the differences token by token
    same_best: float  # share of tokens at which both hold the same token most likely


def standard_error(values: torch.Tensor) -> float:
    count = values.numel()
    return float(values.double().std()) / math.sqrt(count) if count > 1 else math.inf


def compare(score: TextScore, reference: TextScore) -> Comparison:
    """How `score` differs from `reference`, of the same tokens."""
    difference = score.loss.double() - reference.loss.double()
    return Comparison(
        loss_difference=float(difference.mean()),
        standard_error=standard_error(difference),
        same_best=float((score.best == reference.best).double().mean()),
    )


def windows(tokens: int, window: int, stride: int) -> list[tuple[int, int, int]]:
    """(begin, end, first scored position) of each window over `tokens` tokens.

    Each token but the first is scored once, in the first window that holds it, after at least
    window - stride tokens of context where there are so many.
    """
    if not 1 <= stride < window:
        raise ValueError(f"stride must be within 1..window - 1, got {stride}, window {window}")
    found = []
    scored = 1
    begin = 0
    while scored < tokens:
        end = min(begin + window, tokens)
        found.append((begin, end, scored))
        scored = end
        begin += stride
    return found


def score_text(
    model: nn.Module,
    tokens: torch.Tensor,
    window: int,
    stride: int,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> TextScore:
    """Scores int64 `tokens` [T] with a causal language model; all but the first token count.

    progress: called with the windows done and the number of windows.
    """
    parts = windows(tokens.numel(), window, stride)
    losses, best = [], []
    with torch.inference_mode():
        for done, (begin, end, first) in enumerate(parts):
            progress(done, len(parts))
            output = model(input_ids=tokens[None, begin:end], use_cache=False)
            logits = output.logits[0, first - begin - 1 : -1]  # each predicts the next token
            for rows, expected in zip(
                logits.split(ROWS), tokens[first:end].split(ROWS), strict=True
            ):
                wide = rows.float()
                losses.append(functional.cross_entropy(wide, expected, reduction="none").cpu())
                best.append(wide.argmax(-1).cpu())
    progress(len(parts), len(parts))
    return TextScore(torch.cat(losses), torch.cat(best))
