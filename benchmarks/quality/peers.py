"""Other packages' quantizers for bench_quality.py, each as its documentation says, on the CPU.

A peer gives the float model the weights that its quantizer would store. What a package refuses is a
NotImplementedError, and its row says so. None of them is a dependency of xgemm; where their pins
disagree with the environment, unpack them in a folder of its own and put that on PYTHONPATH.
"""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

__all__ = ["linears", "peers"]


def peers(directory: Path) -> list[tuple[str, Callable[..., Any]]]:
    """(name, quantize(model, group_size, symmetric, batches)) of the packages that are here.

    directory: the float model's.
    """

    def gptqmodel(*arguments: Any) -> nn.Module:
        return _gptqmodel(directory, *arguments)

    found = {
        "hqq: hqq": ("hqq", _hqq),
        "torchao: rtn": ("torchao", _torchao("AFFINE")),
        "torchao: hqq": ("torchao", _torchao("HQQ_SCALE_ONLY")),
        "llmcompressor: gptq": ("llmcompressor", _llmcompressor("gptq")),
        "llmcompressor: awq": ("llmcompressor", _llmcompressor("awq")),
        "gptqmodel: gptq": ("gptqmodel", gptqmodel),
    }
    return [
        (name, quantize)
        for name, (package, quantize) in found.items()
        if importlib.util.find_spec(package) is not None
    ]


def linears(model: nn.Module) -> list[nn.Linear]:
    """Those that xgemm.quantize takes by default."""
    return [
        module
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and not name.endswith(("lm_head", "pooler.dense"))
    ]


def _hqq(model: nn.Module, group_size: int, symmetric: bool, batches: Any) -> None:
    from hqq.core.quantize import Quantizer

    if symmetric:
        raise NotImplementedError("hqq has real zero points always")
    for linear in linears(model):
        weight = linear.weight.data
        codes, meta = Quantizer.quantize(
            weight, nbits=4, group_size=group_size, axis=1, device="cpu", bitpack=False
        )
        scale, zero = meta["scale"].half().float(), meta["zero"].half().float()
        linear.weight.data = ((codes.float() - zero) * scale).reshape(weight.shape)


def _torchao(algorithm: str) -> Callable[..., None]:
    def quantize(model: nn.Module, group_size: int, symmetric: bool, batches: Any) -> None:
        from torchao.quantization import IntxWeightOnlyConfig, quantize_
        from torchao.quantization.granularity import PerGroup
        from torchao.quantization.quant_primitives import MappingType
        from torchao.quantization.quantize_.workflows import IntxChooseQParamsAlgorithm

        if not symmetric and algorithm != "AFFINE":
            raise NotImplementedError(f"torchao: {algorithm} is symmetric")
        chosen = linears(model)
        ragged = {m.in_features for m in chosen if m.in_features % group_size}
        if ragged:
            raise NotImplementedError(f"torchao: K = {ragged.pop()} is no multiple of g")
        config = IntxWeightOnlyConfig(
            weight_dtype=torch.int4,
            granularity=PerGroup(group_size),
            mapping_type=MappingType.SYMMETRIC if symmetric else MappingType.ASYMMETRIC,
            scale_dtype=torch.float16,
            intx_choose_qparams_algorithm=IntxChooseQParamsAlgorithm[algorithm],
        )
        quantize_(model, config, lambda module, name: any(module is m for m in chosen))
        for linear in chosen:
            weight: Any = linear.weight
            linear.weight = nn.Parameter(weight.dequantize().float(), requires_grad=False)

    return quantize


def _llmcompressor(method: str) -> Callable[..., None]:
    def quantize(
        model: nn.Module, group_size: int, symmetric: bool, batches: list[torch.Tensor]
    ) -> None:
        if method == "awq" and not any(
            name.endswith("up_proj") for name, _ in model.named_modules()
        ):
            raise NotImplementedError("llmcompressor: awq knows no layers to smooth in this model")
        from llmcompressor import oneshot
        from llmcompressor.modifiers.awq import AWQModifier
        from llmcompressor.modifiers.gptq import GPTQModifier
        from torch.utils.data import DataLoader

        weights = {
            "num_bits": 4, "type": "int", "symmetric": symmetric, "strategy": "group",
            "group_size": group_size,
        }  # fmt: skip
        modifier = GPTQModifier if method == "gptq" else AWQModifier
        recipe = modifier(
            config_groups={"group_0": {"targets": ["Linear"], "weights": weights}},
            ignore=["lm_head"],
        )
        rows = [
            {"input_ids": row[None], "attention_mask": torch.ones_like(row[None])}
            for batch in batches
            for row in batch
        ]
        try:
            oneshot(
                model=model,
                dataset=DataLoader(rows, batch_size=None),
                recipe=recipe,
                num_calibration_samples=len(rows),
            )
        except (ValueError, RuntimeError) as error:  # its AWQ needs an accelerator
            raise NotImplementedError(f"llmcompressor: {error}") from error

    return quantize


def _gptqmodel(
    directory: Path, model: nn.Module, group_size: int, symmetric: bool, batches: list[torch.Tensor]
) -> nn.Module:
    """GPTQModel reads the float model and writes a directory, which xgemm loads."""
    from gptqmodel import GPTQModel, QuantizeConfig

    import xgemm

    config = QuantizeConfig(bits=4, group_size=group_size, sym=symmetric, device="cpu")
    rows = [
        {"input_ids": row.tolist(), "attention_mask": [1] * len(row)} for b in batches for row in b
    ]
    with tempfile.TemporaryDirectory() as folder:
        theirs = GPTQModel.load(str(directory), config)
        theirs.quantize(rows, batch_size=1)
        theirs.save(folder)
        model = xgemm.load(folder)
        return model.float()
