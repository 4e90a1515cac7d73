"""What passes between the ranks of a split layer, with its gradient."""

from __future__ import annotations

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard
from torch.nn.functional import pad


def replicated(x: torch.Tensor, placement: Placement, mesh: DeviceMesh) -> torch.Tensor:
    """The whole of `x` on each rank; its gradient is the sum of the ranks' gradients.

    x: a DTensor, or this rank's part of one with `placement`.
    """
    if not isinstance(x, DTensor):
        x = DTensor.from_local(x, mesh, [placement], run_check=False)
    return x.redistribute(placements=[Replicate()]).to_local(grad_placements=[Partial()])


def summed(y: torch.Tensor, placement: Placement, mesh: DeviceMesh) -> torch.Tensor:
    """The sum of the ranks' `y`, all of it (Replicate) or this rank's part of it (Shard)."""
    partial = DTensor.from_local(y, mesh, [Partial()], run_check=False)
    return partial.redistribute(placements=[placement]).to_local()


def gathered(
    y: torch.Tensor, parts: list[range], mesh: DeviceMesh, partial_gradient: bool = False
) -> torch.Tensor:
    """The ranks' `y` side by side along the last dimension; rank i has the columns `parts[i]`.

    partial_gradient: the ranks use the result in different ways, so that its gradient is the sum
        of theirs; otherwise they must have the same gradient.
    """
    width = max(len(part) for part in parts)
    y = pad(y, (0, width - y.shape[-1]))  # DTensor takes its own even parts only
    sharded = DTensor.from_local(y, mesh, [Shard(y.dim() - 1)], run_check=False)
    whole = sharded.redistribute(placements=[Replicate()]).to_local(
        grad_placements=[Partial() if partial_gradient else Replicate()]
    )
    if all(len(part) == width for part in parts):
        return whole
    slices = whole.split(width, dim=-1)
    return torch.cat([s[..., : len(part)] for s, part in zip(slices, parts, strict=True)], dim=-1)
