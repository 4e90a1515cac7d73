"""Export of models with packed weights to ONNX.

Each QuantLinear becomes ONNX Runtime's com.microsoft::MatMulNBits over the same codes, scales and
zero points. Needs the extra `onnx`; nothing of it is imported before a call.
"""

from __future__ import annotations

import copy
import itertools
from typing import Any, cast

import torch
from torch import nn

from xgemm.activations import activate
from xgemm.nn import FusedLinear, QuantExperts, QuantLinear

__all__ = ["MatMulNBits", "export", "prepare"]

# ONNX Runtime has kernels for these blocks; one group for all of K is written as blocks of 128 that
# share a scale.
_LARGEST_BLOCK = 128


class MatMulNBits(nn.Module):
    """What a QuantLinear is in an ONNX graph; called outside an export, it is that QuantLinear.

    layer: any 4-bit format; its activation becomes operators of its own, act-order a Gather on x.
    name: what messages call it.

    Scales and zero points are kept in the layer's compute_dtype where that is fp16 and holds them
    exactly, else in fp32, to which x is then cast (ONNX Runtime's CPU kernels lack bf16).
    """

    codes: torch.Tensor
    scales: torch.Tensor
    zero_points: torch.Tensor | None
    channels: torch.Tensor | None
    bias: torch.Tensor | None

    def __init__(self, layer: QuantLinear, name: str = "QuantLinear") -> None:
        super().__init__()
        if type(layer).forward not in (QuantLinear.forward, FusedLinear.forward):
            raise TypeError(
                f"{name}: cannot be written to ONNX: {type(layer).__name__} computes something "
                "else than QuantLinear does"
            )
        if layer.qweight.is_meta:
            raise ValueError(f"{name}: qweight has no data (it is on the meta device)")
        if layer.in_features == 0 or layer.out_features == 0:
            raise ValueError(
                f"{name}: in_features and out_features must be at least 1 in ONNX, got "
                f"{layer.in_features} and {layer.out_features}"
            )
        self.in_features, self.out_features = layer.in_features, layer.out_features
        self._layer = [layer]  # in a list, so that it is no part of this module's state
        packed = layer.to_packed()
        codes, scales, zeros = torch.ops.xgemm.unpack_w4.default(
            packed.qweight,
            packed.n,
            packed.k,
            packed.group_size,
            bf16_scales=packed.bf16_scales,
            zeros=packed.has_zeros,
        )
        self.block_size = _LARGEST_BLOCK if packed.group_size == -1 else packed.group_size
        blocks = -(-packed.k // self.block_size)
        dtype = torch.float32
        if layer.compute_dtype == torch.float16 and torch.equal(
            scales.half().float(), scales.float()
        ):
            dtype = torch.float16
        self.register_buffer("codes", _blocks_of(codes, blocks, self.block_size))
        self.register_buffer("scales", _per_block(scales, blocks).to(dtype))
        self.register_buffer(
            "zero_points",
            _zero_points(_per_block(zeros, blocks), dtype) if packed.has_zeros else None,
        )
        self.register_buffer("channels", None if layer.perm is None else layer.perm.long())
        bias = layer.bias
        self.register_buffer("bias", None if bias is None else bias.detach().to(dtype))

    @property
    def weight(self) -> torch.Tensor:
        """The layer's, for models that ask for its dtype before they call."""
        return self._layer[0].weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        (layer,) = self._layer
        if not torch.onnx.is_in_onnx_export():
            return layer(x)
        y = x if self.channels is None else x.index_select(-1, self.channels)
        y = y.to(self.scales.dtype)
        if x.dim() == 1:
            y = y.unsqueeze(0)
        y = torch.onnx.ops.symbolic(
            "com.microsoft::MatMulNBits",
            (y, self.codes, self.scales, self.zero_points, None, self.bias),
            {
                "K": self.in_features,
                "N": self.out_features,
                "bits": 4,
                "block_size": self.block_size,
            },
            dtype=y.dtype,
            shape=(*y.shape[:-1], self.out_features),
            version=1,
        )
        if x.dim() == 1:
            y = y.squeeze(0)
        return activate(y, layer.activation).to(x.dtype)


def _blocks_of(codes: torch.Tensor, blocks: int, block_size: int) -> torch.Tensor:
    """Codes [N, K] as uint8 [N, blocks, block_size / 2], the even channel in the low nibble."""
    n, k = codes.shape
    padded = nn.functional.pad(codes, (0, blocks * block_size - k))
    return (padded[:, 0::2] | (padded[:, 1::2] << 4)).reshape(n, blocks, block_size // 2)


def _per_block(groups: torch.Tensor, blocks: int) -> torch.Tensor:
    """[groups, N] as [N, blocks]: a single group is that of every block."""
    return groups.t().expand(-1, blocks).contiguous()


def _zero_points(zeros: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Zero points [N, blocks]: two in a byte where all are integers in 0..15, else in `dtype`."""
    integers = zeros.to(torch.uint8)
    if not torch.equal(integers.to(zeros.dtype), zeros) or int(integers.max()) > 15:
        return zeros.to(dtype)
    padded = nn.functional.pad(integers, (0, integers.shape[1] % 2))
    return padded[:, 0::2] | (padded[:, 1::2] << 4)


def prepare(model: nn.Module) -> nn.Module:
    """A copy of `model`, for torch.onnx.export(..., dynamo=True), with MatMulNBits layers.

    The copy shares the model's tensors, computes the same, and is in evaluation mode.
    Raises TypeError for a layer that ONNX has no operator for; the message names it.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"prepare: model must be an nn.Module, got {type(model).__name__}")
    replaced: dict[int, MatMulNBits] = {}
    for name, module in model.named_modules(remove_duplicate=True):
        if isinstance(module, QuantExperts):
            raise TypeError(f"prepare: {name}: ONNX has no operator for packed experts")
        if isinstance(module, QuantLinear):
            replaced[id(module)] = MatMulNBits(module, f"prepare: {name or 'model'}")
    # What deepcopy finds in its memo it takes as the copy.
    tensors = itertools.chain(model.parameters(), model.buffers())
    memo: dict[int, Any] = {id(tensor): tensor for tensor in tensors}
    memo.update(replaced)
    return copy.deepcopy(model, memo).eval()


def export(
    model: nn.Module, args: tuple[Any, ...] = (), path: Any = None, **options: Any
) -> torch.onnx.ONNXProgram:
    """Write `model` to ONNX, its QuantLinear layers as com.microsoft::MatMulNBits.

    Args:
        model: any module that torch.onnx.export takes, with QuantLinear layers. It is not changed.
        args: example inputs, as torch.onnx.export takes them.
        path: the file to write, or None.
        options: torch.onnx.export's (dynamic_shapes, input_names, opset_version, ...); but not
            dynamo=False, as the exporter by TorchScript has no such operators.

    Returns:
        torch's ONNXProgram. ONNX Runtime runs it, on the CPU with fp32 and fp16 activations.

    Raises:
        ImportError: onnx or onnxscript is missing.
        TypeError, ValueError: a layer or an option cannot be exported; the message names it.
    """
    if options.get("dynamo", True) is not True:
        raise ValueError(f"export: dynamo must be True, got {options['dynamo']!r}")
    options["dynamo"] = True
    try:
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise ImportError(
            "xgemm.onnx.export needs onnx and onnxscript: pip install onnx onnxscript"
        ) from error
    return cast("torch.onnx.ONNXProgram", torch.onnx.export(prepare(model), args, path, **options))
