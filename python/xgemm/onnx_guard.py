"""Where an export to ONNX meets an op that ONNX lacks: an error that names what to call instead."""

from __future__ import annotations

import sys


def refuse_onnx_export(op: str) -> None:
    """RuntimeError while torch.onnx.export runs; nothing, at the cost of a look-up, otherwise."""
    exporter = sys.modules.get("torch.onnx")
    if exporter is not None and exporter.is_in_onnx_export():
        raise RuntimeError(
            f"{op}: torch.onnx.export does not know xgemm's packed weights: call "
            "xgemm.onnx.export(model, args, path), which writes com.microsoft::MatMulNBits"
        )
