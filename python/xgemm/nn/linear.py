"""QuantLinear: a linear layer over a 4-bit weight in the packed layout."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.compiler import is_compiling, is_dynamo_compiling
from torch.utils._python_dispatch import _get_current_dispatch_mode

from xgemm.activations import ACTIVATIONS
from xgemm.autograd import plain_w4a16
from xgemm.formats.guard import add_guards, drop_guards, is_guard
from xgemm.formats.packed import (
    Layout,
    PackedWeight,
    check_bool,
    check_permutation,
    check_tensor,
    pack,
)
from xgemm.formats.packed_format import PackedFormat
from xgemm.nn.float_linear import float_weight, is_conv1d
from xgemm.nn.nested import map_nested
from xgemm.nn.parameter import PackedParameter, has_values
from xgemm.nn.reparametrized import refuse_for
from xgemm.nn.scriptable import ScriptableQuantLinear
from xgemm.nn.weight import ReadOnlyWeight, is_made_by, refuse_assignment
from xgemm.onnx_guard import refuse_onnx_export
from xgemm.quoting import shown

__all__ = ["QuantLinear"]


# The resolved overload: the packet would try `mul` first, at 24 us a call instead of 4.
_w4a16 = torch.ops.xgemm.mul.w4a16
_dequantize = torch.ops.xgemm.dequantize_w4.default
_KERNEL_DTYPES = {
    torch.float32: "float32",
    torch.float16: "float16",
    torch.bfloat16: "bfloat16",
}


class QuantLinear(nn.Linear):
    """y = activation(x W^T + bias) with a 4-bit W [out_features, in_features].

    x: [..., in_features], fp16 or bf16 (fp32 as well); y: [..., out_features] of the same dtype.

    A new layer's weight is 0 (no code is worth anything before a scale is): fill it by
    load_state_dict, or make the layer by `from_linear` or `from_packed`.

    It is an nn.Linear to whoever asks isinstance, but has no float weight of its own: `weight` is
    read-only and dequantizes where it is used. To tell the two apart, test for QuantLinear first.

    Parameters and buffers:
        qweight: uint8 [ceil(out_features / 64), row_bytes], without gradient;
            docs/design/packed-layout.md describes its bytes. Shards along dimension 0 (FSDP2,
            DTensor Shard(0)) are slices of 64 output features.
        bias: [out_features] or None, of the activations' dtype.
        perm: int32 [in_features] or None: act-order, channel j of W multiplies x[..., perm[j]]. A
            layer that is made with act_order=True has no order, and does not compute, before it is
            loaded or reset: a loader that leaves buffers out would give wrong results.
        packed_format: int64 [6], what the bytes do not say: layout version, out_features,
            in_features, group_size, whether scales are bf16, whether there are zeros. It travels
            in state dicts; a state of another layer or layout version is refused before anything
            is copied.

    A state dict of a layer that has data also holds `weight`, uint8 [0]: a reader that does not
    know packed weights stops there. One without it is loaded as well; a float `weight` is refused.

    compute_dtype: the dtype of the float weight that the layer stands for; `dtype` sets it, and it
        follows .half(), .bfloat16() and .to(dtype). The packed bytes never change.
    """

    in_features: int
    out_features: int
    group_size: int
    qweight: PackedParameter
    bias: nn.Parameter | None  # type: ignore[assignment]
    perm: torch.Tensor | None
    packed_format: torch.Tensor
    compute_dtype: torch.dtype
    _order_missing = False  # perm may still be what __init__ made, which is no order

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        group_size: int = 128,
        bf16_scales: bool = False,
        has_zeros: bool = False,
        act_order: bool = False,
        activation: str = "none",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        nn.Module.__init__(self)  # nn.Linear's would make a float weight
        layout = Layout(out_features, in_features, group_size, has_zeros)
        compute_dtype = torch.get_default_dtype() if dtype is None else dtype
        if not compute_dtype.is_floating_point:
            raise ValueError(f"QuantLinear: dtype must be a floating-point one, got {dtype}")
        if activation not in ACTIVATIONS:
            raise ValueError(
                f"QuantLinear: activation must be one of {ACTIVATIONS}, got {shown(activation)}"
            )
        self.in_features = in_features
        self.out_features = out_features
        self.group_size = group_size
        self.compute_dtype = compute_dtype
        # What forward passes by keyword: an argument left at its default costs nothing.
        self._options: dict[str, Any] = {}
        if check_bool("bf16_scales", bf16_scales):
            self._options["bf16_scales"] = True
        if has_zeros:
            self._options["zeros"] = True
        if activation != "none":
            self._options["activation"] = activation
        shape = (layout.rows, layout.row_bytes)
        qweight = torch.zeros(shape, dtype=torch.uint8, device=device)
        self.qweight = PackedParameter(qweight)
        perm = None
        if act_order:
            perm = torch.full((in_features,), -1, dtype=torch.int32, device=device)
            self._order_missing = True
        self.register_buffer("perm", perm)
        self.register_buffer("packed_format", self.format.to_tensor(device))
        if bias:
            self.bias = nn.Parameter(torch.zeros(out_features, device=device, dtype=dtype))
        else:
            self.register_parameter("bias", None)

    @classmethod
    def from_packed(
        cls,
        packed: PackedWeight,
        bias: torch.Tensor | None = None,
        activation: str = "none",
        dtype: torch.dtype | None = None,
    ) -> QuantLinear:
        """The layer over `packed`, whose tensors it shares, on its device.

        dtype: the layer's compute_dtype; None takes the bias's, or torch's default dtype.
        """
        if packed.fp4:
            raise ValueError("from_packed: packed must hold int4 codes, got MXFP4")
        if bias is not None and tuple(bias.shape) != (packed.n,):
            raise ValueError(f"from_packed: bias must be [{packed.n}], got {list(bias.shape)}")
        if dtype is None and bias is not None:
            dtype = bias.dtype
        layer = cls(
            packed.k,
            packed.n,
            bias=False,
            group_size=packed.group_size,
            bf16_scales=packed.bf16_scales,
            has_zeros=packed.has_zeros,
            activation=activation,
            device="meta",
            dtype=dtype,
        )
        layer.qweight = PackedParameter(packed.qweight.detach())
        layer.perm = packed.perm
        layer.packed_format = layer.format.to_tensor(packed.device)
        if bias is not None:
            layer.bias = bias if isinstance(bias, nn.Parameter) else nn.Parameter(bias.detach())
        return layer

    @classmethod
    def from_linear(
        cls, linear: nn.Module, method: str = "rtn", activation: str = "none", **options: Any
    ) -> QuantLinear:
        """`linear` with its weight quantized by `quantize_weight(weight, method, **options)`.

        linear: an nn.Linear, or transformers' Conv1D, whose weight is [in_features, out_features].
        Its bias is shared; compute_dtype and train or eval mode are its own.
        """
        from xgemm.quantize.weight import quantize_weight  # its package imports this module

        if isinstance(linear, QuantLinear):
            raise TypeError(
                "from_linear: linear must hold a float weight, got a QuantLinear, which is already "
                "quantized: its to_linear() gives the float layer"
            )
        if not isinstance(linear, nn.Linear) and not is_conv1d(linear):
            raise TypeError(
                f"from_linear: linear must be an nn.Linear or a transformers Conv1D, "
                f"got {type(linear).__name__}"
            )
        source: Any = linear
        weight = float_weight(linear)
        packed = pack(quantize_weight(weight, method, **options))
        layer = cls.from_packed(packed, source.bias, activation, weight.dtype)
        layer.train(linear.training)
        return layer

    def to_packed(self) -> PackedWeight:
        """The layer's weight, sharing its tensors."""
        return PackedWeight(
            qweight=self.qweight.data,  # a plain tensor, of no module
            n=self.out_features,
            k=self.in_features,
            group_size=self.group_size,
            bf16_scales=self.bf16_scales,
            has_zeros=self.has_zeros,
            perm=self.perm,
        )

    def dequantize(self, dtype: torch.dtype | None = None) -> torch.Tensor:
        """The float weight [out_features, in_features], in `dtype` (None: compute_dtype).

        Each weight is rounded once; a dtype other than fp16, bf16 and fp32 is made from fp32.
        """
        dtype = self.compute_dtype if dtype is None else dtype
        if not dtype.is_floating_point:
            raise ValueError(f"dequantize: dtype must be a floating-point one, got {dtype}")
        qweight: Any = self.qweight
        if type(qweight) is PackedParameter:
            qweight = qweight if is_compiling() else qweight.plain()
        elif hasattr(qweight, "full_tensor"):  # a DTensor: every rank asks for the whole weight
            qweight = qweight.full_tensor()
        w = _dequantize(
            qweight,
            self.out_features,
            self.in_features,
            self.group_size,
            bf16_scales=self.bf16_scales,
            zeros=self.has_zeros,
            dtype=_KERNEL_DTYPES.get(dtype, "float32"),
        )
        perm = self.perm
        if perm is not None:
            self._check_order(perm)
            w = torch.zeros_like(w).index_copy_(1, perm.long(), w)
        return w.to(dtype)

    def to_linear(self) -> nn.Linear:
        """The float layer: the dequantized weight in compute_dtype, and this layer's bias."""
        if self.activation != "none":
            raise ValueError(
                f"to_linear: an nn.Linear has no activation, this layer has {self.activation!r}"
            )
        linear = nn.Linear(
            self.in_features,
            self.out_features,
            bias=False,
            device="meta",
            dtype=self.compute_dtype,
        )
        linear.weight = nn.Parameter(self.dequantize())
        if self.bias is not None:
            linear.bias = self.bias
        return linear.train(self.training)

    @property
    def weight(self) -> torch.Tensor:
        """The float weight [out_features, in_features] in compute_dtype, read-only.

        Shape, dtype and device cost nothing; any use as a tensor dequantizes. Writing into it or
        assigning to it raises RuntimeError.
        """
        if is_compiling() or torch.jit.is_tracing():
            return self.dequantize()  # a compiler drops it where only dtype or shape is asked for
        return ReadOnlyWeight(
            (self.out_features, self.in_features),
            self.compute_dtype,
            self.qweight.device,
            self.dequantize,
        )

    @weight.setter
    def weight(self, value: Any) -> None:
        # peft assigns it to itself when it unloads, functional_call a state's guard.
        if not is_made_by(value, self.dequantize) and not is_guard(value):
            refuse_assignment(type(self).__name__)

    @weight.deleter
    def weight(self) -> None:
        refuse_assignment(type(self).__name__)

    def register_parameter(self, name: str, param: nn.Parameter | None) -> None:
        # An nn.Parameter that is assigned passes here, not by the property.
        if name in ("weight", "weight_orig"):  # pruning registers the latter
            refuse_assignment(type(self).__name__)
        if name == "qweight" and param is not None:
            param = PackedParameter.of(param)
        super().register_parameter(name, param)

    @property
    def format(self) -> PackedFormat:
        """What `packed_format` holds, from the layer's own attributes."""
        return PackedFormat(
            self.out_features, self.in_features, self.group_size, self.bf16_scales, self.has_zeros
        )

    @property
    def bf16_scales(self) -> bool:
        return self._options.get("bf16_scales", False)

    @property
    def has_zeros(self) -> bool:
        return self._options.get("zeros", False)

    @property
    def activation(self) -> str:
        return self._options.get("activation", "none")

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        # Straight from the dictionaries: nn.Module.__getattr__ is a Python call for each tensor.
        parameters, options = self._parameters, self._options
        qweight: Any
        try:
            bias, qweight = parameters["bias"], parameters["qweight"]
        except KeyError:  # a replica's of DataParallel, or a parametrized one, is not there
            bias, qweight = self.bias, self.qweight
        perm = self._buffers["perm"]
        n, k, group_size = self.out_features, self.in_features, self.group_size
        try:
            if perm is not None:
                if self._order_missing:
                    self._check_order(perm)
            elif "activation" not in options and not is_dynamo_compiling():
                # What an option is worth is True where it is given.
                zeros, bf16_scales = "zeros" in options, "bf16_scales" in options
                return plain_w4a16(input, qweight, n, k, group_size, bias, bf16_scales, zeros)
            return _w4a16(input, qweight, n, k, group_size, bias, perm, **options)
        except (RuntimeError, TypeError):
            check_tensor("QuantLinear: x", input)
            if input.is_nested:
                return map_nested(self.forward, input)
            if input.layout != torch.strided or input.is_quantized:
                got = input.dtype if input.is_quantized else input.layout
                raise TypeError(f"QuantLinear: x must be a dense float tensor, got {got}") from None
            if type(qweight) is PackedParameter and _get_current_dispatch_mode() is not None:
                # A mode (make_fx's) that refuses every tensor class but torch's own.
                return _w4a16(input, qweight.plain(), n, k, group_size, bias, perm, **options)
            raise

    def _check_order(self, perm: torch.Tensor | None) -> None:
        """Refuse a perm that was never loaded; looks at it once, and not while it has no values."""
        if not self._order_missing or perm is None or perm.is_meta or is_compiling():
            return
        if _get_current_dispatch_mode() is not None or torch._C._are_functorch_transforms_active():
            return
        if self.in_features > 0 and int(perm[0]) < 0:
            raise RuntimeError(
                "QuantLinear: perm, the order of channels, was never loaded (accelerate leaves out "
                "buffers of layers on disk unless offload_buffers=True)"
            )
        self._order_missing = False

    def __prepare_scriptable__(self) -> nn.Module:
        """What torch.jit.script compiles in this layer's place."""
        return ScriptableQuantLinear(self)

    def _slow_forward(self, *args: Any, **kwargs: Any) -> Any:
        # What nn.Module calls in place of forward while TorchScript traces, as the old ONNX
        # exporter does.
        refuse_onnx_export("QuantLinear")
        return super()._slow_forward(*args, **kwargs)

    def reset_parameters(self) -> None:
        """Make the layer what a new one is: its weight and bias 0, channels in their order."""
        with torch.no_grad():
            self.qweight.zero_()
            if self.bias is not None:
                self.bias.zero_()
            if self.perm is not None:
                torch.arange(self.in_features, out=self.perm)
                self._order_missing = False
        self.packed_format = self.format.to_tensor(self.qweight.device)

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Any:
        def keeping_integers(tensor: torch.Tensor) -> torch.Tensor:
            result = fn(tensor)  # .type(dtype) would convert packed bytes and channels too
            keep = not tensor.is_floating_point() and result.dtype != tensor.dtype
            return tensor.to(result.device) if keep else result

        was_meta = self.packed_format.is_meta
        super()._apply(keeping_integers, recurse)
        self._parameters["qweight"] = PackedParameter.of(self.qweight)
        self.compute_dtype = fn(torch.empty(1, dtype=self.compute_dtype, device="cpu")).dtype
        if was_meta and not self.packed_format.is_meta:  # to_empty made it, without values
            self.packed_format = self.format.to_tensor(self.packed_format.device)
        return self

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._parameters["qweight"] = PackedParameter.of(self.qweight)
        if "packed_format" not in self._buffers:  # pickled before the layer had these
            self.compute_dtype = torch.get_default_dtype() if self.bias is None else self.bias.dtype
            self.register_buffer("packed_format", self.format.to_tensor(self.qweight.device))

    def _save_to_state_dict(
        self, destination: dict[str, Any], prefix: str, keep_vars: bool
    ) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        name = prefix + "qweight"
        if not keep_vars and type(destination[name]) is PackedParameter:
            destination[name] = destination[name].data  # a plain tensor, as of any parameter
        add_guards(self, destination, prefix, {"weight": "qweight"})

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any
    ) -> None:
        # Refused here, before nn.Module copies anything.
        name = prefix.removesuffix(".") or "QuantLinear"
        state_dict = dict(state_dict)
        drop_guards(state_dict, prefix, ["weight"])
        extra = state_dict.pop(prefix + "_extra_state", None)
        if extra is not None:  # what a state dict had in place of packed_format
            self.format.check_extra_state(name, extra)
            written = self.format.to_tensor(self.packed_format.device)
            state_dict.setdefault(prefix + "packed_format", written)
        given = state_dict.get(prefix + "packed_format")
        if given is not None:
            self.format.check(name, given)
        perm = state_dict.get(prefix + "perm")
        if isinstance(perm, torch.Tensor) and not perm.is_meta:
            check_permutation(f"{name}: perm", perm, self.in_features)
        qweight = state_dict.get(prefix + "qweight")
        if isinstance(qweight, torch.Tensor) and qweight.dtype != torch.uint8:
            raise ValueError(f"{name}: qweight must be torch.uint8, got {qweight.dtype}")
        if has_values(qweight):
            self.format.check_finite(f"{name}: qweight", qweight)
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)
        self._parameters["qweight"] = PackedParameter.of(self.qweight)

    def extra_repr(self) -> str:
        parts = [
            f"in_features={self.in_features}",
            f"out_features={self.out_features}",
            f"bias={self.bias is not None}",
            f"group_size={self.group_size}",
            f"scales={'bf16' if self.bf16_scales else 'fp16'}",
            f"zeros={self.has_zeros}",
        ]
        if self.perm is not None:
            parts.append("act_order=True")
        if self.activation != "none":
            parts.append(f"activation={self.activation!r}")
        return ", ".join(parts)


def _refuse_reparametrization(module: nn.Module) -> None:
    if isinstance(module, QuantLinear):
        refuse_assignment(type(module).__name__)


refuse_for(_refuse_reparametrization)
