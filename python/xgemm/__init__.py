"""xgemm: matrix multiplication kernels for PyTorch."""

from xgemm import _library
from xgemm._version import __version__

_library.load()

__all__ = ["__version__"]
