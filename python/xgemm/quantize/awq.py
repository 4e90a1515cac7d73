"""AWQ: channels whose inputs are large get a larger share of the 16 codes, before rounding.

Lin, Tang, Tang, Yang, Chen, Wang, Xiao, Dang, Gan, Han: AWQ, Activation-aware Weight Quantization
for On-Device LLM Compression and Acceleration (2024), https://arxiv.org/abs/2306.00978.

With Q the rounding to 4 bits, a layer of weight W reads X; scales s of its channels are to be
(sec. 3.2, eq. 4)

    s* = argmin_s L(s),    L(s) = || Q(W diag(s)) (diag(s)^-1 X) - W X ||

and are searched for in a family of one number (eq. 5): s = s_X^alpha with s_X the mean of |x| of
each channel, alpha in a grid of 20 from 0 (no scales) to 1. As in the authors' code s is divided by
the root of its largest times its least value, which only shifts the range of the stored scales, and
(`duo`) as many s = s_X^alpha / s_W^(1 - alpha) are tried, s_W the mean of |w| of the channel, as a
share of its group's largest. L is measured

    objective "module": on the output of the module that holds the layers that read X (attention for
        q, k, v; the MLP for gate, up), over a sample of tokens;
    objective "layer": of each layer, over all tokens: trace(D H D^T), H = X X^T, D the error of W.

A layer that reads X alone, and experts, are measured by the layer always. diag(s)^-1 goes into the
norm or the linear layer that gives X (folding.py); where nothing takes it, s = 1. Of the scaled
weights each group's range is shrunk to where its outputs lose least (the paper's clipping),

    || (Q(clip w_g) - w_g) X_g ||^2 = d H_g d^T,    d the error of a row in group g, H_g = X_g X_g^T

or, with rounding="gptq", they are quantized by GPTQ: its errors, made up for by other channels, are
smaller where channels are scaled.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import nn

from xgemm.formats.quantized import QuantizedWeight
from xgemm.quantize.calibrate.block import Block, Layer
from xgemm.quantize.calibrate.method import BlockMethod
from xgemm.quantize.folding import Fold, Folding, call_of, first_output, is_down
from xgemm.quantize.gptq import Gptq, SecondMoment
from xgemm.quantize.groups import (
    choose_scale_dtype,
    encode,
    grouped_channels,
    range_of,
    row_blocks,
)
from xgemm.quantize.rtn import SHRINKS, grid_of
from xgemm.quantize.weight import quantize_weight

Tensor = torch.Tensor
Groups = list[list[Layer]]

ROUNDINGS = ("rtn", "gptq")
OBJECTIVES = ("module", "layer")
LEAST = 1e-4  # of a mean |x|, or of a scale: channels that are never anything else than 0
UNSCALED = "its inputs are not scaled: nothing before them takes the scales"

OUTSIDE = "its inputs are not scaled: it is in no block"


@dataclass
class Awq(BlockMethod):
    """grid: how many alphas are tried. duo: also scales divided by the weights'.
    objective: what scales are to keep: outputs of the "module" around the layers, or of a "layer".
    tokens: at most so many are compared by objective "module".
    rounding: of the scaled weights: "rtn", to nearest in a clipped range, or "gptq".
    """

    grid: int = 20
    duo: bool = True
    objective: str = "layer"
    tokens: int = 2048
    rounding: str = "rtn"

    name: ClassVar[str] = "awq"

    def __post_init__(self) -> None:
        for name, allowed in (("objective", OBJECTIVES), ("rounding", ROUNDINGS)):
            if getattr(self, name) not in allowed:
                raise ValueError(
                    f"quantize: {name} must be one of {allowed}, got {getattr(self, name)!r}"
                )
        if not isinstance(self.duo, bool):
            raise ValueError(f"quantize: duo must be a bool, got {self.duo!r}")
        for name in ("grid", "tokens"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ValueError(f"quantize: {name} must be a positive int, got {value!r}")

    def quantize_block(self, block: Block) -> None:
        parts = _parts(block.groups)
        seen: dict[int, Seen] = {}
        if block.module is block.replay.model:
            layers = (layer for group in block.groups for layer in group)
            block.fallbacks.update(dict.fromkeys(layers, OUTSIDE))
        else:
            folding = Folding(block)
            for i, groups in enumerate(parts):
                seen = {i: Seen(block, groups)}
                for group in groups:
                    self._scale(block, group, seen[i], folding)
        if self.rounding == "gptq":
            seen.clear()
            Gptq(self.settings).quantize_block(block)
            return
        for i, groups in enumerate(parts):
            found = seen.pop(i, None) or Seen(block, groups)
            for layer in (layer for group in groups for layer in group):
                h = found.moment(layer)
                block.set(layer, self._clipped(layer, h), hessian=h)

    # ---- scales ----

    def _scale(self, block: Block, group: list[Layer], seen: Seen, folding: Folding) -> None:
        fold = folding.find(group)
        s = None if fold is None else self._search(block, group, seen, fold)
        if fold is not None and s is not None and folding.apply(fold, s):
            seen.divide(group, s)
        else:
            block.fallbacks.update(dict.fromkeys(group, UNSCALED))

    def _search(self, block: Block, group: list[Layer], seen: Seen, fold: Fold) -> Tensor:
        """The scales of the channels that `group` reads: [K]; [E, K] of experts' down."""
        if is_down(group[0]):
            s = torch.ones(int(group[0].module.num_experts), group[0].k, device=block.device)  # type: ignore[arg-type]
            for layer in group:
                s[layer.expert] = self._best([layer], seen, fold, LayerLoss([layer], seen))
            return s
        loss: Loss = LayerLoss(group, seen)
        if self.objective == "module" and len(group) > 1 and group[0].projection is None:
            loss = ModuleLoss(block, group, self.tokens)
        return self._best(group, seen, fold, loss)

    def _best(self, group: list[Layer], seen: Seen, fold: Fold, loss: Loss) -> Tensor:
        size = _shared(seen.size(group), fold).clamp(min=LEAST)
        divisors = [torch.ones_like(size)]
        if self.duo:
            divisors.append(_shared(self._weight_sizes(group), fold) + LEAST)
        best, least = torch.ones_like(size), torch.inf
        for divisor in divisors:
            for alpha in (i / self.grid for i in range(self.grid)):
                s = (size**alpha / divisor ** (1 - alpha)).clamp(min=LEAST)
                s = s / (s.max() * s.min()).sqrt()
                found = loss.of({layer: self._rounded(layer, s) for layer in group})
                if found < least:
                    least, best = found, s
        return best

    def _weight_sizes(self, group: list[Layer]) -> Tensor:
        """The mean over all rows of each channel's |w| as a share of its group's largest, [K]."""
        sizes = []
        for layer in group:
            k = layer.k
            size = k if self.settings.group_size == -1 else self.settings.group_size
            grouped = grouped_channels(layer.weight.abs(), size)
            share = grouped / grouped.amax(dim=2, keepdim=True).clamp(min=1e-12)
            sizes.append(share.flatten(1)[:, :k])
        return torch.cat(sizes).mean(dim=0)

    def _rounded(self, layer: Layer, s: Tensor) -> Tensor:
        """Q(W diag(s)) diag(s)^-1."""
        settings = self.settings
        scaled = layer.weight.float() * s
        rounded = quantize_weight(
            scaled, group_size=settings.group_size, symmetric=settings.symmetric, clip="none"
        )
        return rounded.dequantize(torch.float32) / s

    # ---- rounding ----

    def _clipped(self, layer: Layer, h: Tensor) -> QuantizedWeight:
        """The weight rounded to nearest, each group's range shrunk to where outputs lose least."""
        settings = self.settings
        w = layer.weight
        k = w.shape[1]
        size = k if settings.group_size == -1 else settings.group_size
        blocks = list(row_blocks(w, size))
        shrinks = SHRINKS if settings.clip == "mse" else SHRINKS[:1]
        asked = layer.scale_dtype or settings.scale_dtype
        dtype = choose_scale_dtype(w, blocks, size, settings.symmetric, shrinks[-1], asked)
        moments = _moments_of_groups(h, size)
        codes, scales, zeros = [], [], []
        for rows in blocks:
            grouped = grouped_channels(w[rows], size)
            scale, zero = least_loss(grouped, moments, settings.symmetric, shrinks, dtype)
            code = encode(grouped, scale, zero).to(torch.uint8)
            codes.append(code.flatten(1)[:, :k])
            scales.append(scale.t().to(dtype))
            zeros.append(zero.t().to(torch.float16))
        return QuantizedWeight(
            torch.cat(codes),
            torch.cat(scales, dim=1),
            None if settings.symmetric else torch.cat(zeros, dim=1),
            None,
            settings.group_size,
        )


def least_loss(
    grouped: Tensor, moments: Tensor, symmetric: bool, shrinks: Sequence[float], dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """The scale and zero point [N, G] of each group [N, G, size] whose outputs lose least.

    moments: H_g, [G, size, size].
    """
    span = range_of(grouped, symmetric)
    best_scale, best_zero = grid_of(span, symmetric, shrinks[0], dtype)
    least = torch.full_like(best_scale, torch.inf)
    for shrink in shrinks:
        scale, zero = grid_of(span, symmetric, shrink, dtype)
        code = encode(grouped, scale, zero)
        error = ((code - zero[:, :, None]) * scale[:, :, None] - grouped).transpose(0, 1)
        loss = (torch.bmm(error.to(moments.dtype), moments) * error).sum(dim=2).t()
        better = loss < least
        least = torch.where(better, loss, least)
        best_scale = torch.where(better, scale, best_scale)
        best_zero = torch.where(better, zero, best_zero)
    return best_scale, best_zero


def _moments_of_groups(h: Tensor, size: int) -> Tensor:
    """The blocks [G, size, size] on the diagonal of H [K, K], the last one padded with 0."""
    missing = -h.shape[0] % size
    h = nn.functional.pad(h, (0, missing, 0, missing))
    groups = h.shape[0] // size
    return h.view(groups, size, groups, size).diagonal(dim1=0, dim2=2).permute(2, 0, 1).contiguous()


def _parts(groups: Groups) -> list[Groups]:
    """The groups whose moments are held together: those of linears, and each one of experts."""
    linears = [group for group in groups if group[0].projection is None]
    experts = [[group] for group in groups if group[0].projection is not None]
    return [linears, *experts] if linears else experts


def _shared(values: Tensor, fold: Fold) -> Tensor:
    """The mean of the channels that have one scale, for each of them."""
    if fold.shared is None:
        return values
    shared = fold.shared.to(values.device)
    sums = torch.zeros_like(values).index_add_(0, shared, values)
    counts = torch.zeros_like(values).index_add_(0, shared, torch.ones_like(values))
    return (sums / counts.clamp(min=1))[shared]


# ---- what layers read ----


class Seen:
    """What the layers of some groups read: the mean of |x| of each channel, and H."""

    def __init__(self, block: Block, groups: Groups) -> None:
        self._leaders = block.leaders
        leaders = self._leaders_of(layer for group in groups for layer in group)
        self._sums = {x: torch.zeros(x.k, device=block.device) for x in leaders}
        self._moments = {x: SecondMoment(x.k, block.device) for x in leaders}

        def sink(layer: Layer, x: Tensor) -> None:
            self._sums[layer] += x.float().abs().sum(dim=0)
            self._moments[layer].add(x)

        block.inputs(leaders, sink)

    def _leaders_of(self, layers: Iterable[Layer]) -> list[Layer]:
        return list(dict.fromkeys(self._leaders[layer] for layer in layers))

    def size(self, group: list[Layer]) -> Tensor:
        """The mean of |x| over all tokens that a layer of `group` reads, [K]."""
        leaders = self._leaders_of(group)
        total = torch.stack([self._sums[x] for x in leaders]).sum(dim=0)
        return total / max(sum(self._moments[x].rows for x in leaders), 1)

    def rows(self, layer: Layer) -> int:
        return self._moments[self._leaders[layer]].rows

    def moment(self, layer: Layer) -> Tensor:
        """H [K, K], the mean of x x^T."""
        return self._moments[self._leaders[layer]].mean

    def divide(self, group: list[Layer], s: Tensor) -> None:
        """From now on the layers of `group` read x / s."""
        for x in self._leaders_of(group):
            own = s if s.dim() == 1 else s[x.expert]
            self._moments[x].sum /= own[:, None] * own


# ---- what scales cost ----


class Loss(Protocol):
    def of(self, weights: dict[Layer, Tensor]) -> float:
        """What the layers lose with these weights [N, K], in squares."""


class LayerLoss:
    """trace(D H D^T) of each layer, times its tokens."""

    def __init__(self, layers: list[Layer], seen: Seen) -> None:
        self._layers = [(layer, seen.moment(layer), seen.rows(layer)) for layer in layers]

    def of(self, weights: dict[Layer, Tensor]) -> float:
        total = 0.0
        for layer, h, rows in self._layers:
            error = weights[layer] - layer.weight.float()
            total += rows * float(((error @ h) * error).sum())
        return total


class ModuleLoss:
    """Of the outputs of the smallest module that holds all layers of a group."""

    def __init__(self, block: Block, group: list[Layer], tokens: int) -> None:
        self._block = block
        wanted = {layer.module for layer in group}
        self._module = [m for m in block.module.modules() if wanted <= set(m.modules())][-1]
        self._calls, self._outputs = [], []
        for batch in range(len(block.replay.batches)):
            call = call_of(block, self._module, batch)
            output = first_output(call.run(self._module))
            self._calls.append(call)
            self._outputs.append(output)
            tokens -= output.numel() // output.shape[-1]
            if tokens <= 0:
                break
        self._floats = {layer: layer.weight.clone() for layer in group}

    def of(self, weights: dict[Layer, Tensor]) -> float:
        total = 0.0
        try:
            for layer, weight in weights.items():
                self._block.put(layer, weight)
            for call, expected in zip(self._calls, self._outputs, strict=True):
                error = first_output(call.run(self._module)).float() - expected.float()
                if call.mask is not None and error.shape[:2] == call.mask.shape:
                    error = error[call.mask.to(error.device)]
                total += float(error.square().sum())
        finally:
            for layer, weight in self._floats.items():
                self._block.put(layer, weight)
        return total
