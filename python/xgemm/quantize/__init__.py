"""Quantizers: a float weight, or a model, to 4 bits.

On the package `xgemm`, the name `xgemm.quantize` is the function `quantize` of this package; its
modules are imported as `from xgemm.quantize.rtn import ...`.
"""

from xgemm.formats.quantized import QuantizedWeight
from xgemm.quantize.fuse import FusionReport, fuse, unfuse
from xgemm.quantize.model import quantize
from xgemm.quantize.report import KeptParameter, QuantizationReport
from xgemm.quantize.weight import METHODS, quantize_weight

__all__ = [
    "METHODS",
    "FusionReport",
    "KeptParameter",
    "QuantizationReport",
    "QuantizedWeight",
    "fuse",
    "quantize",
    "quantize_weight",
    "unfuse",
]
