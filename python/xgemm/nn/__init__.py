"""Layers over xgemm's kernels."""

from xgemm.nn.linear import QuantLinear

__all__ = ["QuantLinear"]
