"""Tensor parallelism: a quantized model's layers split over the ranks of a device mesh."""

from xgemm.distributed.parallelize import parallelize
from xgemm.distributed.sharding import register
from xgemm.distributed.styles import ColwiseParallel, ExpertParallel, RowwiseParallel

__all__ = ["ColwiseParallel", "ExpertParallel", "RowwiseParallel", "parallelize"]

register()
