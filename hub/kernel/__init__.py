"""xgemm as a kernel of the Hugging Face Hub: `layers` for kernelize, and the package itself.

The operators have one name in a process, torch.ops.xgemm, and so has the package. An xgemm that is
imported or installed is used as it is; only where there is none is the copy in this folder loaded,
under the name `xgemm`, so that whoever imports xgemm later gets that one.
"""

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType


def _load() -> ModuleType:
    if "xgemm" in sys.modules or importlib.util.find_spec("xgemm") is not None:
        return importlib.import_module("xgemm")
    folder = Path(__file__).parent / "xgemm"
    spec = importlib.util.spec_from_file_location(
        "xgemm", folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    if spec is None or spec.loader is None:
        raise ImportError(f"xgemm: the package is missing: expected {folder}")
    module = importlib.util.module_from_spec(spec)
    sys.modules["xgemm"] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules["xgemm"]
        raise
    return module


xgemm = _load()

from . import layers  # noqa: E402  (its operators are there now)

__all__ = ["layers", "xgemm"]
