"""How a packed layer is split: by its output columns, its input channels, or whole experts.

The styles are those of torch.distributed.tensor.parallel, for layers whose weight is packed: each
rank keeps its share as an ordinary tensor, and DTensor carries what passes between the ranks. A
share begins at a multiple of 64 columns or channels, so a layer that is split by columns and one
that is split by channels fit each other, whatever their groups are.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard
from torch.distributed.tensor.parallel import ParallelStyle

from xgemm.distributed.collectives import gathered, replicated, summed
from xgemm.formats.packed import ROW_COLUMNS, PackedWeight
from xgemm.formats.split import channels, columns, shares
from xgemm.nn import QuantExperts, QuantLinear
from xgemm.nn.parameter import PackedParameter

# What shares are taken of, by the name of a layer's tensor: the tensor, or a slice of a file, which
# gives a tensor where it is sliced.
Source = Callable[[str], Any]


class PackedStyle(ParallelStyle):
    """A way to split a packed layer, in place; its `split_over` is the number of ranks then."""

    def parts(self, module: nn.Module, ranks: int) -> list[range]:
        """What each rank gets. Raises TypeError or ValueError where the layer does not fit."""
        raise NotImplementedError

    def split(self, module: Any, mesh: DeviceMesh, parts: list[range], source: Source) -> None:
        """Leave this rank's share in `module`, and have it exchange what the ranks need."""
        raise NotImplementedError

    def apply(
        self,
        module: Any,
        mesh: DeviceMesh,
        parts: list[range],
        source: Source | None = None,
    ) -> None:
        """`split`, and a mark that the layer is. Without `source` the module holds its tensors."""
        self.split(module, mesh, parts, source or partial(_held, module))
        module.split_over = len(parts)

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        check_mesh(device_mesh)
        check_data(module)
        self.apply(module, device_mesh, self.parts(module, device_mesh.size()))
        return module


class ColwiseParallel(PackedStyle):
    """A QuantLinear split by its output columns, at multiples of 64.

    input_layouts: how the input lies on the ranks: Replicate() (the default), or Shard(d), parts
        of equal size along dimension d, which are gathered. An input that is a DTensor says it.
    output_layouts: Shard(-1) (the default), the columns that the rank has, or Replicate(), all.

    Ranks get shares that differ by up to 64 columns where 64 times their number does not divide
    out_features. The gradient of a replicated input is summed over the ranks.
    """

    def __init__(
        self, *, input_layouts: Placement | None = None, output_layouts: Placement | None = None
    ) -> None:
        self.input_layouts = Replicate() if input_layouts is None else input_layouts
        self.output_layouts = Shard(-1) if output_layouts is None else output_layouts
        if self.output_layouts not in (Shard(-1), Replicate()):
            raise ValueError(
                f"ColwiseParallel: output_layouts must be Shard(-1) or Replicate(), "
                f"got {output_layouts}"
            )

    def parts(self, module: nn.Module, ranks: int) -> list[range]:
        layer = _quant_linear(module, "ColwiseParallel")
        return _shares("ColwiseParallel", "out_features", layer.out_features, ranks, ROW_COLUMNS)

    def split(self, module: Any, mesh: DeviceMesh, parts: list[range], source: Source) -> None:
        own = parts[mesh.get_local_rank()]
        bias = None if module.bias is None else source("bias")[own.start : own.stop].clone()
        perm = None if module.perm is None else source("perm")[:].clone()
        _replace_weight(module, columns(source("qweight"), module.format, own), bias, perm)

        def before(layer: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
            return replicated(args[0], self.input_layouts, mesh), *args[1:]

        def after(layer: nn.Module, args: tuple[Any, ...], output: torch.Tensor) -> torch.Tensor:
            return gathered(output, parts, mesh)

        module.register_forward_pre_hook(before)
        if self.output_layouts == Replicate():
            module.register_forward_hook(after)


class RowwiseParallel(PackedStyle):
    """A QuantLinear split by its input channels, at multiples of 64; the products are summed.

    input_layouts: Shard(-1) (the default), the rank's own channels, as ColwiseParallel leaves
        them; or Replicate(), of which each rank takes its channels, as of a DTensor.
    output_layouts: Replicate() (the default), or Shard(d): each rank has a part of equal size
        along dimension d of the sum.

    Shares that begin within a unit of 128 channels are repacked; where they begin within a group,
    they have smaller groups of the same scales. Ranks but the first have no bias. A layer with
    act-order gathers its input, and each rank takes the channels that its share of the order
    names. A fused activation is refused: it comes after the sum.
    """

    def __init__(
        self, *, input_layouts: Placement | None = None, output_layouts: Placement | None = None
    ) -> None:
        self.input_layouts = Shard(-1) if input_layouts is None else input_layouts
        self.output_layouts = Replicate() if output_layouts is None else output_layouts
        if self.input_layouts not in (Shard(-1), Replicate()):
            raise ValueError(
                f"RowwiseParallel: input_layouts must be Shard(-1) or Replicate(), "
                f"got {input_layouts}"
            )

    def parts(self, module: nn.Module, ranks: int) -> list[range]:
        layer = _quant_linear(module, "RowwiseParallel")
        if layer.activation != "none":
            raise ValueError(
                f"RowwiseParallel: activation must be 'none' in a layer that is split by its "
                f"input channels, got {layer.activation!r}"
            )
        return _shares("RowwiseParallel", "in_features", layer.in_features, ranks, ROW_COLUMNS)

    def split(self, module: Any, mesh: DeviceMesh, parts: list[range], source: Source) -> None:
        rank = mesh.get_local_rank()
        own = parts[rank]
        order = None if module.perm is None else source("perm")[own.start : own.stop].long()
        bias = None if rank != 0 or module.bias is None else source("bias")[:].clone()
        _replace_weight(module, channels(source("qweight"), module.format, own), bias, None)
        if order is not None:
            # Not in state dicts: the layer's own order is None now.
            module.register_buffer("channels_of_rank", order, persistent=False)

        def before(layer: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
            x = args[0]
            if self.input_layouts == Replicate() or isinstance(x, DTensor):
                x = replicated(x, Replicate(), mesh)
                x = x[..., own.start : own.stop] if order is None else x
            elif order is not None:
                x = gathered(x, parts, mesh, partial_gradient=True)
            if order is not None:
                x = x.index_select(-1, layer.channels_of_rank)
            return x, *args[1:]

        def after(layer: nn.Module, args: tuple[Any, ...], output: torch.Tensor) -> torch.Tensor:
            return summed(output, self.output_layouts, mesh)

        module.register_forward_pre_hook(before)
        module.register_forward_hook(after)


class ExpertParallel(PackedStyle):
    """QuantExperts split by experts: each rank computes those that it has, and the ranks sum.

    Inputs and result are the same on each rank. `num_experts` is the number that the rank has.
    """

    def parts(self, module: nn.Module, ranks: int) -> list[range]:
        if not isinstance(module, QuantExperts):
            raise TypeError(
                f"ExpertParallel: module must be a QuantExperts, got {type(module).__name__}"
            )
        _refuse_split(module, "ExpertParallel")
        return _shares("ExpertParallel", "num_experts", module.num_experts, ranks, 1)

    def split(self, module: Any, mesh: DeviceMesh, parts: list[range], source: Source) -> None:
        own, total = parts[mesh.get_local_rank()], module.num_experts
        experts = slice(own.start, own.stop)
        for name in module.formats:
            qweight = source(f"{name}_qweight")[experts].clone()
            module._parameters[f"{name}_qweight"] = PackedParameter(qweight)
            format_tensor = module.formats[name].to_tensor(qweight.device)
            module._buffers[f"{name}_packed_format"] = format_tensor
            if module._buffers[f"{name}_perm"] is not None:
                module._buffers[f"{name}_perm"] = source(f"{name}_perm")[experts].clone()
            if (bias := module._parameters.get(f"{name}_bias")) is not None:
                own_bias = source(f"{name}_bias")[experts].clone()
                module._parameters[f"{name}_bias"] = nn.Parameter(own_bias, bias.requires_grad)
        module.num_experts = len(own)

        def before(
            layer: nn.Module, args: tuple[Any, ...], options: dict[str, Any]
        ) -> tuple[tuple[Any, ...], dict[str, Any]]:
            given = dict(zip(("hidden_states", "top_k_index", "top_k_weights"), args, strict=False))
            given.update(options)
            hidden = replicated(given["hidden_states"], Replicate(), mesh)
            index = given.get("top_k_index")
            if index is None:  # as many rows for each expert, one expert after another
                rows = hidden.shape[0] // total
                return (hidden[own.start * rows : own.stop * rows],), {}
            here = (index >= own.start) & (index < own.stop)
            index = torch.where(here, index - own.start, len(own))  # which stands for no expert
            return (hidden, index, replicated(given["top_k_weights"], Replicate(), mesh)), {}

        def after(layer: nn.Module, args: tuple[Any, ...], output: torch.Tensor) -> torch.Tensor:
            if len(args) == 1:
                rows = output.shape[0] // len(own)
                around = (0, 0, own.start * rows, (total - own.stop) * rows)
                output = nn.functional.pad(output, around)
            return summed(output, Replicate(), mesh)

        module.register_forward_pre_hook(before, with_kwargs=True)
        module.register_forward_hook(after)


def check_mesh(mesh: Any) -> None:
    """Refuse what is no device mesh of one dimension."""
    if not isinstance(mesh, DeviceMesh):
        raise TypeError(f"mesh must be a DeviceMesh, got {type(mesh).__name__}")
    if mesh.ndim != 1:
        raise ValueError(
            f"mesh must have one dimension, got {mesh.ndim}: pass the one to split over, "
            f'as mesh["tp"]'
        )


def _quant_linear(module: nn.Module, style: str) -> QuantLinear:
    if not isinstance(module, QuantLinear):
        raise TypeError(
            f"{style}: module must be a QuantLinear, got {type(module).__name__} (float layers "
            f"are split by torch.distributed.tensor.parallel)"
        )
    _refuse_split(module, style)
    return module


def check_data(module: nn.Module) -> None:
    """Refuse a packed module whose tensors are not all here."""
    for name, tensor in module.named_parameters(recurse=False):
        if isinstance(tensor, DTensor) or tensor.is_meta:
            raise ValueError(
                f"{name} must be a whole tensor with data, got {type(tensor).__name__} on "
                f"{tensor.device}"
            )


def _held(module: nn.Module, name: str) -> torch.Tensor:
    tensor: torch.Tensor = getattr(module, name)
    return tensor.detach()


def _refuse_split(module: nn.Module, style: str) -> None:
    if hasattr(module, "split_over"):
        raise ValueError(
            f"{style}: module must be whole, got one split over {module.split_over} ranks"
        )


def _shares(style: str, dimension: str, size: int, ranks: int, multiple: int) -> list[range]:
    try:
        return shares(size, ranks, multiple)
    except ValueError as error:
        raise ValueError(f"{style}: {dimension}: {error}") from None


def _replace_weight(
    layer: QuantLinear,
    weight: PackedWeight,
    bias: torch.Tensor | None,
    perm: torch.Tensor | None,
) -> None:
    layer.in_features, layer.out_features = weight.k, weight.n
    layer.group_size = weight.group_size
    layer.qweight = PackedParameter(weight.qweight)
    layer.perm = perm
    layer.packed_format = layer.format.to_tensor(weight.qweight.device)
    if layer.bias is not None:
        trains = layer.bias.requires_grad
        layer.bias = None if bias is None else nn.Parameter(bias, requires_grad=trains)
