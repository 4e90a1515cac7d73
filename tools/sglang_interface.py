#!/usr/bin/env python3
"""Writes down the parts of SGLang's interface that xgemm.sglang uses, read from a wheel's sources.

    python3 tools/sglang_interface.py sglang-0.5.23-....whl > tests/sglang_interface.json
    python3 tools/sglang_interface.py --compare tests/sglang_interface.json sglang-0.5.24-....whl

As tools/vllm_interface.py does for vLLM.
"""

from __future__ import annotations

import ast
import zipfile

from vllm_interface import describe, main

KERNELS = "sglang/srt/hardware_backend/gpu/quantization"
LAYERS = "sglang/srt/layers/quantization"
LOAD = "process_weights_after_loading"
# File -> classes' methods, and "Class" alone: its fields, or its members for an enum.
USED = {
    "sglang/srt/plugins/hook_registry.py": ["HookRegistry.register", "HookType"],
    f"{LAYERS}/marlin_utils.py": ["MarlinLinearLayerConfig"],
    f"{LAYERS}/compressed_tensors/schemes/compressed_tensors_wNa16.py": [
        f"CompressedTensorsWNA16.{LOAD}",
        "CompressedTensorsWNA16.apply_weights",
    ],
    f"{KERNELS}/gptq_kernels.py": [
        f"GPTQMarlinLinearKernel.{LOAD}",
        "GPTQMarlinLinearKernel.apply",
    ],
    f"{KERNELS}/awq_kernels.py": [
        f"AWQMarlinLinearKernel.{LOAD}",
        "AWQMarlinLinearKernel.apply",
    ],
}


def read(wheel: str) -> dict[str, object]:
    """The version, and each used name's arguments or fields."""
    with zipfile.ZipFile(wheel) as opened:
        trees = {file: ast.parse(opened.read(file)) for file in USED}
    names = {name: describe(trees[file], name) for file, used in USED.items() for name in used}
    return {"sglang": wheel.rsplit("/", 1)[-1].split("-")[1], "names": names}


if __name__ == "__main__":
    main(__doc__ or "", read)
