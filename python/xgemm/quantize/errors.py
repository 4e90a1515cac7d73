"""What quantization costs a layer: the errors of its weights and outputs, and bits per weight."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from operator import add

import torch

from xgemm.formats.packed import PackedWeight, unpack
from xgemm.formats.quantized import QuantizedWeight

# Weights compared at a time: a few copies of this many are held in float32.
BLOCK_WEIGHTS = 1 << 18


@dataclass(frozen=True)
class LayerError:
    """Squared errors and norms of one layer, or, added up, of several.

    With W [N, K] the float weight, Q its dequantized form and X [T, K] the layer's inputs:

    weight_error: ||W - Q||^2, and weight_norm: ||W||^2 (Frobenius norms).
    output_error: ||X (W - Q)^T||^2, and output_norm: ||X W^T||^2; None without calibration.
    bits: of codes, scales, zeros and group indices together. count: weights, N K.
    """

    weight_error: float
    weight_norm: float
    output_error: float | None
    output_norm: float | None
    bits: int
    count: int

    @property
    def weights(self) -> float:
        """Relative error of the weights: ||W - Q|| / ||W||."""
        return _relative(self.weight_error, self.weight_norm)

    @property
    def outputs(self) -> float | None:
        """Relative error of the outputs: ||X (W - Q)^T|| / ||X W^T||; None without calibration."""
        if self.output_error is None or self.output_norm is None:
            return None
        return _relative(self.output_error, self.output_norm)

    @property
    def shown(self) -> float:
        """The relative error that says most: of the outputs where it is known, or the weights."""
        return self.weights if self.outputs is None else self.outputs

    @property
    def bits_per_weight(self) -> float:
        return self.bits / max(self.count, 1)

    def __add__(self, other: LayerError) -> LayerError:
        """Both layers as one; its outputs are known where both layers' are."""
        return LayerError(
            self.weight_error + other.weight_error,
            self.weight_norm + other.weight_norm,
            _sum(self.output_error, other.output_error),
            _sum(self.output_norm, other.output_norm),
            self.bits + other.bits,
            self.count + other.count,
        )

    def as_dict(self) -> dict[str, float | None]:
        """The relative errors and bits per weight, as JSON takes them: None for infinity."""
        outputs = self.outputs
        return {
            "weights": self.weights if math.isfinite(self.weights) else None,
            "outputs": outputs if outputs is not None and math.isfinite(outputs) else None,
            "bits_per_weight": self.bits_per_weight,
        }


def layer_error(
    weight: torch.Tensor,
    quantized: QuantizedWeight,
    inputs: torch.Tensor | None = None,
    hessian: torch.Tensor | None = None,
) -> LayerError:
    """The errors of `quantized` beside the float `weight`.

    weight: [N, K], on quantized's device.
    inputs: what the layer reads, [..., K], for the outputs' error; or
    hessian: sum or mean over the inputs of x x^T, [K, K], which gives the same relative error by
        ||X D^T||^2 = trace(D H D^T).

    Raises ValueError where shapes disagree, or where both inputs and hessian are given.
    """
    n, k = quantized.codes.shape
    if tuple(weight.shape) != (n, k):
        raise ValueError(f"layer_error: weight must be [{n}, {k}], got {list(weight.shape)}")
    if inputs is not None and hessian is not None:
        raise ValueError("layer_error: give inputs or hessian, not both")
    if hessian is not None and tuple(hessian.shape) != (k, k):
        raise ValueError(f"layer_error: hessian must be [{k}, {k}], got {list(hessian.shape)}")
    if inputs is not None and inputs.shape[-1:] != (k,):
        raise ValueError(f"layer_error: inputs must be [..., {k}], got {list(inputs.shape)}")
    energy = _output_energy(inputs, hessian)
    sums = [0.0, 0.0, 0.0, 0.0]
    step = max(BLOCK_WEIGHTS // max(k, 1), 1)
    wide = torch.float64 if weight.dtype == torch.float64 else torch.float32
    for start in range(0, n, step):
        rows = slice(start, start + step)
        block = weight[rows].detach().to(wide)
        difference = quantized.rows(rows).dequantize(wide).sub_(block)
        sums[0] += _energy(difference)
        sums[1] += _energy(block)
        if energy is not None:
            sums[2] += energy(difference)
            sums[3] += energy(block)
    error, norm = (None, None) if energy is None else (sums[2], sums[3])
    return LayerError(sums[0], sums[1], error, norm, storage_bits(quantized), n * k)


def experts_error(weights: list[torch.Tensor], packed: list[PackedWeight]) -> LayerError:
    """The errors of experts as one layer; weights: [N, K] each, in the order of `packed`."""
    errors = [layer_error(w, unpack(p)) for w, p in zip(weights, packed, strict=True)]
    return reduce(add, errors)


def storage_bits(quantized: QuantizedWeight) -> int:
    """Bits of the codes, scales, zeros and group indices, without a layout's padding."""
    bits = 4 * quantized.codes.numel()
    for tensor in (quantized.scales, quantized.zeros, quantized.g_idx):
        bits += 0 if tensor is None else 8 * tensor.element_size() * tensor.numel()
    return bits


def _output_energy(
    inputs: torch.Tensor | None, hessian: torch.Tensor | None
) -> Callable[[torch.Tensor], float] | None:
    """What gives ||X D^T||^2 of a block D of rows, or None where X is not known."""
    if inputs is not None:
        x = inputs.detach().reshape(-1, inputs.shape[-1])
        return lambda rows: _energy(x.to(rows.dtype) @ rows.t())
    if hessian is not None:
        h = hessian.detach()
        # Rounding may make a sum that is nearly 0 negative.
        return lambda rows: max(float(((rows @ h.to(rows.dtype)).double() * rows).sum()), 0.0)
    return None


def _energy(values: torch.Tensor) -> float:
    """Sum of squares, in float64: squares of huge or tiny weights stay finite."""
    return float(torch.linalg.vector_norm(values, dtype=torch.float64)) ** 2


def _relative(error: float, norm: float) -> float:
    if norm == 0.0:
        return 0.0 if error == 0.0 else math.inf
    return math.sqrt(error / norm)


def _sum(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None else a + b
