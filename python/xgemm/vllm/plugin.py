"""register: puts xgemm into the vLLM of this process, or says in one warning why it cannot."""

from __future__ import annotations

import importlib.metadata
import logging
import os

import torch

from xgemm._library import build_info

logger = logging.getLogger("xgemm")

SWITCH = "XGEMM_VLLM"


def register() -> None:
    """Put xgemm in front of vLLM's own int4 kernels, of linears and of experts, once.

    With `XGEMM_VLLM=0` in the environment nothing is done. A vLLM whose interface differs from the
    one that xgemm was written for gets one warning with the versions, and keeps its own kernels. So
    does a vLLM on CUDA beside an xgemm that was built without.
    """
    if os.environ.get(SWITCH, "1") == "0":
        return
    if torch.version.cuda is not None and build_info().get("cuda", "") is None:
        logger.warning(
            "xgemm is built without CUDA (torch %s has CUDA %s): vLLM goes on with its own kernels",
            torch.__version__,
            torch.version.cuda,
        )
        return
    try:
        from xgemm.vllm.interface import check_interface

        check_interface()
        import xgemm.vllm.gptq
        import xgemm.vllm.method  # noqa: F401  (they register the quantization methods)
        from xgemm.vllm.kernel import install
    except (ImportError, AttributeError, TypeError) as error:
        _warn("vLLM goes on with its own kernels", error)
        return
    install()
    try:
        from xgemm.vllm.interface import check_experts

        check_experts()
        from xgemm.vllm.experts import install as install_experts

        install_experts()
    except (ImportError, AttributeError, TypeError) as error:
        _warn("vLLM's experts stay with its own kernels", error)


def _warn(what_follows: str, error: Exception) -> None:
    logger.warning(
        "vLLM %s with torch %s is not what xgemm's plugin was written for (%s): %s",
        _version("vllm"),
        torch.__version__,
        error,
        what_follows,
    )


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "(of unknown version)"
