"""GPTQ: weights quantized channel by channel, each error made up for by the channels to come.

Frantar, Ashkboos, Hoefler, Alistarh: GPTQ, Accurate Post-Training Quantization for Generative
Pre-trained Transformers (2023), https://arxiv.org/abs/2210.17323.

A layer with weight W [N, K] reads X [K, T]. Its 4-bit weight Q is to minimize ||W X - Q X||^2,
which is a sum over rows w of (w - q) H (w - q)^T with H = X X^T (eq. 1). Quantizing channel i to
q_i, the best that the channels after it can do is (eq. 2)

    w  <-  w - (w_i - q_i) / [H_F^-1]_ii  (H_F^-1)_i:        F: channels i, i + 1, ...

Every H_F^-1 is read from one factor: with H^-1 = U^T U, U upper triangular (sec. 3.3, step 3),

    w  <-  w - (w_i - q_i) / U_ii  U_i,i:

Channels are taken in blocks of 128; what a block does to those after it is one product (step 2).
An error e of channel i costs e^2 / U_ii^2 when the channels after it have done their best (eq. 3):
that is what errors count when a group's range is shrunk (clip="mse"), before codes are chosen.
H gets `damp` times its mean diagonal on the diagonal.

GPTAQ (Li, Yin et al.: GPTAQ, Efficient Finetuning-Free Quantization for Asymmetric Calibration,
2025, https://arxiv.org/abs/2504.02692) minimizes ||W X' - Q X||^2, where X' is what the layer reads
in the float model. Channel i owes w_i (X'_i - X_i) besides its own error, and the channels after it
make up for that, too, by adding w_i P_i: to them, where

    P = (((X' - X) X^T U^T) above the diagonal) U

U comes from one factorization: with H in reverse order = L L^T, H = R R^T where R, L in reverse
order, is upper triangular, and U = R^-1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from xgemm.formats.quantized import QuantizedWeight
from xgemm.quantize.calibrate.block import Block, Layer
from xgemm.quantize.calibrate.method import BlockMethod
from xgemm.quantize.groups import MAX_CODE, choose_scale_dtype, grouped_channels, row_blocks
from xgemm.quantize.rtn import SHRINKS, choose_grid

Tensor = torch.Tensor

BLOCK = 128  # channels whose errors are carried to the rest together
MAX_DAMP = 1.0  # of the mean diagonal: where this does not make H positive definite, nothing does
ACT_ORDERS = ("static", "desc_act", "none")


@dataclass
class Gptq(BlockMethod):
    """act_order: in which order channels are taken: by falling mean square of their inputs, with
        groups of neighbours all the same ("static") or with groups of channels that follow one
        another in that order ("desc_act": a permutation at run time); or as they are ("none").
    damp: of the mean of H's diagonal, added to it.
    asymmetry: how much of the difference between the inputs of the float model and those of the
        quantized one is made up for (GPTAQ); 0 for none, which takes half the time.
    """

    act_order: str = "static"
    damp: float = 0.01
    asymmetry: float = 0.0

    name: ClassVar[str] = "gptq"

    def __post_init__(self) -> None:
        if self.act_order not in ACT_ORDERS:
            raise ValueError(
                f"quantize: act_order must be one of {ACT_ORDERS}, got {self.act_order!r}"
            )
        if not self.damp > 0:
            raise ValueError(f"quantize: damp must be above 0, got {self.damp}")
        if not 0 <= self.asymmetry <= 1:
            raise ValueError(f"quantize: asymmetry must be within 0..1, got {self.asymmetry}")

    @property
    def float_inputs(self) -> bool:
        return self.asymmetry > 0

    def quantize_block(self, block: Block) -> None:
        for group in block.groups:
            leaders = list(dict.fromkeys(block.leaders[layer] for layer in group))
            moments = {layer: SecondMoment(layer.k, block.device) for layer in leaders}
            shifts: dict[Layer, SecondMoment] = {}
            if self.asymmetry > 0:
                shifts = {layer: SecondMoment(layer.k, block.device) for layer in leaders}
                block.input_pairs(leaders, _adds_pairs(moments, shifts))
            else:
                block.inputs(leaders, lambda layer, x: moments[layer].add(x))  # noqa: B023
            for leader in leaders:
                layers = [layer for layer in group if block.leaders[layer] is leader]
                shift = shifts.pop(leader).mean if shifts else None
                self._quantize(block, layers, moments.pop(leader).mean, shift)

    def _quantize(self, block: Block, layers: list[Layer], h: Tensor, shift: Tensor | None) -> None:
        """The layers, which read one tensor of mean square `h`, as one weight of all their rows.

        shift: the mean of (float x - x) x^T, where it is made up for.
        """
        settings = self.settings
        w = torch.cat([layer.weight.float() for layer in layers])
        dtype = layers[0].scale_dtype or settings.scale_dtype
        size = w.shape[1] if settings.group_size == -1 else settings.group_size
        blocks = list(row_blocks(w, size))
        smallest = SHRINKS[-1] if settings.clip == "mse" else 1.0
        dtype = choose_scale_dtype(w, blocks, size, settings.symmetric, smallest, dtype)
        order = torch.arange(w.shape[1], device=w.device)
        if self.act_order != "none":
            order = h.diagonal().argsort(descending=True, stable=True)
        factor = upper_factor(h[order][:, order], self.damp)
        if factor is None:
            for layer in layers:
                block.round(layer, "the second moment of its inputs is not positive definite: rtn")
            return
        grid = Grid(size, settings.symmetric, settings.clip, dtype)
        static = self.act_order == "static"
        carried = None
        if shift is not None:
            product = (shift[order][:, order] @ factor.t()).triu_(1)
            carried = (product @ factor).mul_(self.asymmetry)
        quantized = quantize_channels(w, order, factor, grid, static, carried)
        quantized = replace(quantized, group_size=settings.group_size)
        start = 0
        for layer in layers:
            rows = slice(start, start + layer.n)
            block.set(layer, quantized.rows(rows), hessian=h)
            start = rows.stop


def _adds_pairs(
    moments: dict[Layer, SecondMoment], shifts: dict[Layer, SecondMoment]
) -> Callable[[Layer, Tensor, Tensor], None]:
    def add(layer: Layer, x: Tensor, floats: Tensor) -> None:
        moments[layer].add(x)
        shifts[layer].add(floats - x, x)

    return add


@dataclass(frozen=True)
class Grid:
    """How the scale and zero point of a group are found."""

    size: int
    symmetric: bool
    clip: str
    dtype: torch.dtype

    def of(self, w: Tensor, importance: Tensor) -> tuple[Tensor, Tensor]:
        """Scales and zero points [groups, N] of the channels w [N, K], in groups of `size`."""
        weights = grouped_channels(importance[None], self.size) if self.clip == "mse" else None
        found = [
            choose_grid(
                grouped_channels(w[rows], self.size), self.symmetric, self.clip, self.dtype, weights
            )
            for rows in row_blocks(w, self.size)
        ]
        scales, zeros = zip(*found, strict=True)
        return torch.cat(scales).t().contiguous(), torch.cat(zeros).t().contiguous()


def upper_factor(h: Tensor, damp: float) -> Tensor | None:
    """U, upper triangular, with (H + damp mean(diag H) I)^-1 = U^T U.

    A channel that is 0 in every token counts as one of the mean. Where H is not positive definite
    enough for float32, more is added to its diagonal; None where nothing helps.
    """
    diagonal = h.diagonal()
    if not bool(torch.isfinite(h).all()):
        return None
    mean = diagonal.sum() / (diagonal > 0).sum()
    mean = torch.where(mean > 0, mean, torch.ones_like(mean))  # inputs that are 0 throughout
    reversed_h = h.flip(0, 1)
    added = torch.where(reversed_h.diagonal() > 0, 0.0, mean)
    while damp <= MAX_DAMP:
        lower, info = torch.linalg.cholesky_ex(reversed_h + (added + damp * mean).diag())
        if int(info) == 0:
            eye = torch.eye(h.shape[0], device=h.device)
            inverse = torch.linalg.solve_triangular(lower, eye, upper=False)
            if bool(torch.isfinite(inverse).all()):
                return inverse.flip(0, 1)
        damp *= 10
    return None


def quantize_channels(
    w: Tensor, order: Tensor, u: Tensor, grid: Grid, static: bool, carried: Tensor | None = None
) -> QuantizedWeight:
    """The 4-bit weight of w [N, K], its channels taken in `order`.

    u: the factor for channels in that order.
    static: groups are of neighbours and their scales those of w; else they are of channels that
        follow one another in `order`, with scales found when the first of them is reached.
    carried: GPTAQ's P for channels in that order.
    """
    n, k = w.shape
    groups = -(-k // grid.size)
    rest = w[:, order].t().contiguous()  # [K, N]: w as it is after the errors so far
    importance = u.diagonal() ** -2
    position = torch.arange(k, device=w.device)
    group_of = order // grid.size if static else position // grid.size
    if static:
        natural = order.argsort()
        scales, zeros = grid.of(w, importance[natural])
    else:
        scales, zeros = (torch.empty(groups, n, device=w.device) for _ in range(2))
    codes = torch.empty(k, n, dtype=torch.uint8, device=w.device)
    index = group_of.tolist()
    for start in range(0, k, BLOCK):
        block = slice(start, min(start + BLOCK, k))
        here, factor = rest[block], u[block, block]
        errors, values = torch.empty_like(here), torch.empty_like(here)
        for i in range(here.shape[0]):
            group, channel = index[start + i], start + i
            if not static and channel % grid.size == 0:
                part = slice(channel, min(channel + grid.size, k))
                scale, zero = grid.of(rest[part].t(), importance[part])
                scales[group], zeros[group] = scale[0], zero[0]
            scale, zero = scales[group], zeros[group]
            code = (here[i] / scale).round_().add_(zero).clamp_(0, MAX_CODE)
            codes[channel] = code.to(torch.uint8)
            errors[i] = (here[i] - (code - zero) * scale) / factor[i, i]
            here[i + 1 :].addr_(factor[i, i + 1 :], errors[i], alpha=-1)
            if carried is not None:
                values[i] = here[i]
                here[i + 1 :].addr_(carried[channel, channel + 1 : block.stop], here[i])
        rest[block.stop :].addmm_(u[block, block.stop :].t(), errors, alpha=-1)
        if carried is not None:
            rest[block.stop :].addmm_(carried[block, block.stop :].t(), values)
    back = order.argsort()
    g_idx = None if static else group_of[back].int()
    return QuantizedWeight(
        codes[back].t().contiguous(),
        scales.to(grid.dtype),
        None if grid.symmetric else zeros.to(torch.float16),
        g_idx,
        grid.size,
    )


class SecondMoment:
    """The mean over tokens of x x^T (H / T), or of y x^T, in float32."""

    def __init__(self, k: int, device: torch.device) -> None:
        self.sum = torch.zeros(k, k, device=device)
        self.rows = 0

    def add(self, y: Tensor, x: Tensor | None = None) -> None:
        """y and x: [rows, K]; x is y where it is None."""
        x = y if x is None else x
        self.rows += x.shape[0]
        if x.is_cuda and x.dtype in (torch.float16, torch.bfloat16):
            # Products of halves are exact in float32, in which tensor cores add.
            self.sum += torch.mm(y.t(), x, out_dtype=torch.float32)
        else:
            self.sum.addmm_(y.float().t(), x.float())

    @property
    def mean(self) -> Tensor:
        return self.sum / max(self.rows, 1)
