"""xgemm: matrix multiplication kernels for PyTorch that beat the vendor's, and what a model needs.

The operators are `torch.ops.xgemm.*` (mul, sgemm, sum, ...); this module adds 4-bit weights
(quantize_weight, pack, linear), models (quantize, save, load) and `xgemm.nn.QuantLinear`.
"""

import sys

if sys.argv[:1] == ["-m"] and "xgemm" in sys.orig_argv:  # of `python -m xgemm` this comes first
    from _xgemm_command import waiting

    with waiting():
        import torch  # noqa: F401

from xgemm import _library
from xgemm._version import __version__

_library.load()

from xgemm import dispatch  # noqa: E402

dispatch.install()

# What the operators need from Python. Each registers on import.
from xgemm import (  # noqa: E402
    autocast,  # noqa: F401
    autograd,  # noqa: F401
    batching,  # noqa: F401
    fake,  # noqa: F401
    fake_moe,  # noqa: F401
    flops,  # noqa: F401
    nn,
    onnx,
    reductions,  # noqa: F401
)
from xgemm.explain import explain  # noqa: E402
from xgemm.formats.checkpoint import load, save  # noqa: E402
from xgemm.formats.packed import PackedWeight, pack, unpack  # noqa: E402
from xgemm.nn.swap import swap, unswap  # noqa: E402
from xgemm.ops import linear  # noqa: E402

# `xgemm.quantize` is a package and, on this module, the function of that name: the import of the
# package binds its name here first, and this line then binds the function over it.
from xgemm.quantize import QuantizedWeight, fuse, quantize, quantize_weight, unfuse  # noqa: E402

__all__ = [
    "PackedWeight",
    "QuantizedWeight",
    "__version__",
    "explain",
    "fuse",
    "linear",
    "load",
    "nn",
    "onnx",
    "pack",
    "quantize",
    "quantize_weight",
    "save",
    "swap",
    "unfuse",
    "unpack",
    "unswap",
]
