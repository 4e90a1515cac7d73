"""What passes between the ranks of a split layer, with its gradient."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard
from torch.nn.functional import pad


def replicated(x: torch.Tensor, placement: Placement, mesh: DeviceMesh) -> torch.Tensor:
    """The whole of `x` on each rank; its gradient is the sum of the ranks' gradients.

    x: a DTensor, or this rank's part of one with `placement`.
    """
    if isinstance(placement, Replicate) and _is_plain(x):
        return x
    parts = _exchangeable(x, placement, mesh)
    whole = parts.redistribute(placements=[Replicate()]).to_local(grad_placements=[Partial()])
    return whole.to(x.device)


def summed(y: torch.Tensor, placement: Placement, mesh: DeviceMesh) -> torch.Tensor:
    """The sum of the ranks' `y`, all of it (Replicate) or this rank's part of it (Shard).

    Without a gradient the whole sum is made in the place of `y`.
    """
    if isinstance(placement, Replicate) and _is_plain(y) and _carrier(mesh) is mesh:
        y = y.contiguous()
        dist.all_reduce(y, group=mesh.get_group())
        return y
    partial = _exchangeable(y, Partial(), mesh)
    return partial.redistribute(placements=[placement]).to_local().to(y.device)


def gathered(
    y: torch.Tensor, parts: list[range], mesh: DeviceMesh, partial_gradient: bool = False
) -> torch.Tensor:
    """The ranks' `y` side by side along the last dimension; rank i has the columns `parts[i]`.

    partial_gradient: the ranks use the result in different ways, so that its gradient is the sum
        of theirs; otherwise they must have the same gradient.
    """
    width = max(len(part) for part in parts)
    y = pad(y, (0, width - y.shape[-1]))  # DTensor takes its own even parts only
    sharded = _exchangeable(y, Shard(y.dim() - 1), mesh)
    whole = sharded.redistribute(placements=[Replicate()]).to_local(
        grad_placements=[Partial() if partial_gradient else Replicate()]
    )
    whole = whole.to(y.device)
    if all(len(part) == width for part in parts):
        return whole
    slices = whole.split(width, dim=-1)
    return torch.cat([s[..., : len(part)] for s, part in zip(slices, parts, strict=True)], dim=-1)


def _is_plain(x: torch.Tensor) -> bool:
    """Whether `x` is no DTensor and has no gradient: DTensor's ways cost 0.3 ms a call."""
    return not isinstance(x, DTensor) and not (x.requires_grad and torch.is_grad_enabled())


def _exchangeable(x: torch.Tensor, placement: Placement, mesh: DeviceMesh) -> DTensor:
    """`x` as a DTensor that the ranks can exchange: over gloo, a copy in the host's memory."""
    carrier = _carrier(mesh)
    if not isinstance(x, DTensor):
        local = x if carrier is mesh else x.cpu()
        return DTensor.from_local(local, carrier, [placement], run_check=False)
    if carrier is mesh:
        return x
    return DTensor.from_local(
        x.to_local().cpu(), carrier, x.placements, run_check=False, shape=x.shape, stride=x.stride()
    )


def _carrier(mesh: DeviceMesh) -> DeviceMesh:
    """The mesh, or one of the same ranks on the CPU where gloo would have to gather from GPUs.

    Gloo's gather takes an address on a GPU for one of the host's, and the process ends.
    """
    group = mesh.get_group()
    if mesh.device_type == "cpu" or f"{mesh.device_type}:gloo" not in dist.get_backend_config(
        group
    ):
        return mesh
    return DeviceMesh.from_group(group, "cpu")
