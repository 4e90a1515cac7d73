"""QuantLinear: a linear layer over a 4-bit weight in the packed layout."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.compiler import is_dynamo_compiling

from xgemm.activations import ACTIVATIONS
from xgemm.formats.packed import (
    LAYOUT_VERSION,
    Layout,
    PackedWeight,
    check_bool,
    check_layout_version,
    check_permutation,
    pack,
)

__all__ = ["QuantLinear"]


# The resolved overload: the packet would try `mul` first, at 24 us a call instead of 4.
# The overload for Dynamo, the callable within it otherwise: see ops.py.
_w4a16_traced = torch.ops.xgemm.mul.w4a16
_w4a16_direct = _w4a16_traced._op


class QuantLinear(nn.Module):
    """y = activation(x W^T + bias) with a 4-bit W [out_features, in_features].

    x: [..., in_features], fp16 or bf16 (fp32 as well); y: [..., out_features] of the same dtype.

    A new layer's weight is 0 (no code is worth anything before a scale is): fill it by
    load_state_dict, or make the layer by `from_linear` or `from_packed`.

    Parameters and buffers:
        qweight: uint8 [ceil(out_features / 64), row_bytes], without gradient; docs/packed-layout.md
            describes its bytes. Shards along dimension 0 (FSDP2, DTensor Shard(0)) are slices of
            64 output features.
        bias: [out_features] or None, of the activations' dtype.
        perm: int32 [in_features] or None: act-order, channel j of W multiplies x[..., perm[j]].

    The extra state says what the bytes do not: layout version, n, k, group_size, scale type, zeros.
    A state of another layer or layout version is refused before anything is copied.
    """

    in_features: int
    out_features: int
    group_size: int
    qweight: nn.Parameter
    bias: nn.Parameter | None
    perm: torch.Tensor | None

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
        super().__init__()
        layout = Layout(out_features, in_features, group_size, has_zeros)
        if activation not in ACTIVATIONS:
            raise ValueError(
                f"QuantLinear: activation must be one of {ACTIVATIONS}, got {activation!r}"
            )
        self.in_features = in_features
        self.out_features = out_features
        self.group_size = group_size
        # What forward passes by keyword: an argument left at its default costs nothing.
        self._options: dict[str, Any] = {}
        if check_bool("bf16_scales", bf16_scales):
            self._options["bf16_scales"] = True
        if has_zeros:
            self._options["zeros"] = True
        if activation != "none":
            self._options["activation"] = activation
        self._zeros_only = self._options == {"zeros": True}
        shape = (layout.rows, layout.row_bytes)
        qweight = torch.zeros(shape, dtype=torch.uint8, device=device)
        self.qweight = nn.Parameter(qweight, requires_grad=False)
        perm = torch.arange(in_features, dtype=torch.int32, device=device) if act_order else None
        self.register_buffer("perm", perm)
        if bias:
            self.bias = nn.Parameter(torch.zeros(out_features, device=device, dtype=dtype))
        else:
            self.register_parameter("bias", None)

    @classmethod
    def from_packed(
        cls, packed: PackedWeight, bias: torch.Tensor | None = None, activation: str = "none"
    ) -> QuantLinear:
        """The layer over `packed`, whose tensors it shares, on its device."""
        if bias is not None and tuple(bias.shape) != (packed.n,):
            raise ValueError(f"from_packed: bias must be [{packed.n}], got {list(bias.shape)}")
        layer = cls(
            packed.k,
            packed.n,
            bias=False,
            group_size=packed.group_size,
            bf16_scales=packed.bf16_scales,
            has_zeros=packed.has_zeros,
            activation=activation,
            device="meta",
        )
        layer.qweight = nn.Parameter(packed.qweight.detach(), requires_grad=False)
        layer.perm = packed.perm
        if bias is not None:
            layer.bias = bias if isinstance(bias, nn.Parameter) else nn.Parameter(bias.detach())
        return layer

    @classmethod
    def from_linear(
        cls, linear: nn.Linear, method: str = "rtn", activation: str = "none", **options: Any
    ) -> QuantLinear:
        """`linear` with its weight quantized by `quantize_weight(weight, method, **options)`."""
        from xgemm.quantize.weight import quantize_weight  # its package imports this module

        packed = pack(quantize_weight(linear.weight, method, **options))
        layer = cls.from_packed(packed, linear.bias, activation)
        layer.train(linear.training)
        return layer

    def to_packed(self) -> PackedWeight:
        """The layer's weight, sharing its tensors."""
        return PackedWeight(
            qweight=self.qweight.detach(),
            n=self.out_features,
            k=self.in_features,
            group_size=self.group_size,
            bf16_scales=self.bf16_scales,
            has_zeros=self.has_zeros,
            perm=self.perm,
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
        # The usual calls are written out, because collecting keywords costs time too.
        w4a16 = _w4a16_traced if is_dynamo_compiling() else _w4a16_direct
        parameters, options = self._parameters, self._options
        try:
            bias, qweight = parameters["bias"], parameters["qweight"]
        except KeyError:  # a replica's of DataParallel, or a parametrized one, is not there
            bias, qweight = self.bias, self.qweight
        perm = self._buffers["perm"]
        n, k, group_size = self.out_features, self.in_features, self.group_size
        if perm is None and self._zeros_only:
            if bias is None:
                return w4a16(input, qweight, n, k, group_size, zeros=True)
            return w4a16(input, qweight, n, k, group_size, bias, zeros=True)
        if perm is None and not options:
            if bias is None:
                return w4a16(input, qweight, n, k, group_size)
            return w4a16(input, qweight, n, k, group_size, bias)
        return w4a16(input, qweight, n, k, group_size, bias, perm, **options)

    def get_extra_state(self) -> dict[str, int | bool]:
        """What the packed bytes do not say themselves."""
        return {
            "layout_version": LAYOUT_VERSION,
            "n": self.out_features,
            "k": self.in_features,
            "group_size": self.group_size,
            "bf16_scales": self.bf16_scales,
            "zeros": self.has_zeros,
        }

    def set_extra_state(self, state: Any) -> None:
        self._check_state("QuantLinear", state)

    def _check_state(self, name: str, state: Any) -> None:
        if not isinstance(state, dict):
            raise TypeError(f"{name}: extra state must be a dict, got {type(state).__name__}")
        check_layout_version(f"{name}: layout_version", state.get("layout_version"))
        for key, mine in self.get_extra_state().items():
            if type(state.get(key)) is not type(mine) or state[key] != mine:
                raise ValueError(f"{name}: {key} is {mine!r} here, got {state.get(key)!r}")

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any
    ) -> None:
        # Refused here, before nn.Module copies anything; it sets the extra state last.
        name = prefix.removesuffix(".") or "QuantLinear"
        if prefix + "_extra_state" in state_dict:
            self._check_state(name, state_dict[prefix + "_extra_state"])
        perm = state_dict.get(prefix + "perm")
        if isinstance(perm, torch.Tensor) and not perm.is_meta:
            check_permutation(f"{name}: perm", perm, self.in_features)
        # Kernels read 16 bytes at a time. A tensor that lies in a mapped file begins anywhere.
        qweight: Any = state_dict.get(prefix + "qweight")
        if type(qweight) in (torch.Tensor, nn.Parameter) and qweight.data_ptr() % 16 != 0:
            state_dict[prefix + "qweight"] = qweight.detach().clone()
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)

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
