"""Layers over xgemm's kernels."""

from xgemm.nn.dense import Linear
from xgemm.nn.experts import QuantExperts
from xgemm.nn.fused import FusedLinear
from xgemm.nn.linear import QuantLinear

__all__ = ["FusedLinear", "Linear", "QuantExperts", "QuantLinear"]
