"""Layers and a model as other tools write them: makes tests/made_by_tools, which CI reads.

    PYTHONPATH=python:tests:FOLDER python tests/make_by_tools.py

FOLDER: where `pip install --no-deps --target FOLDER` put autoawq 0.2.9, gptqmodel 7.7.0 (unpacked),
hqq 0.2.8, torchao 0.18 and bitsandbytes 0.50.2, which pull in CUDA otherwise. All runs on a CPU.
Of each package its own code packs: whole, or the one function where the rest needs a GPU.
"""

from __future__ import annotations

import ast
import contextlib
import importlib.util
import math
import shutil
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import torch
from foreign import random_weight, torchao_tensors, zeros_of
from safetensors.torch import save_file

from xgemm.formats.quantized import QuantizedWeight

Tensors = dict[str, torch.Tensor]
FOLDER = Path(__file__).parent / "made_by_tools"


class Absent(Exception):
    """A package is not here."""


def installed_file(package: str, file: str) -> Path:
    """A file of a package that is here without what it needs, so that it cannot be imported."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise Absent(f"{package} is not installed: pip install --no-deps, or PYTHONPATH")
    return Path(spec.origin).parent / file


def run_file(package: str, file: str, stand_ins: dict[str, Any]) -> dict[str, Any]:
    """The names that a file defines; stand_ins: what it finds in the place of other modules."""
    path = installed_file(package, file)
    before = {name: sys.modules.get(name) for name in stand_ins}
    sys.modules.update(stand_ins)
    names: dict[str, Any] = {"__name__": "theirs"}
    try:
        exec(compile(path.read_text(), str(path), "exec"), names)
    finally:
        for name, module in before.items():
            if module is None:
                del sys.modules[name]
            else:
                sys.modules[name] = module
    return names


def linear_of(q: QuantizedWeight) -> torch.nn.Linear:
    linear = torch.nn.Linear(q.k, q.n, bias=False)
    linear.weight.data = q.dequantize(torch.float32)
    return linear


def _module(**names: Any) -> Any:
    return types.SimpleNamespace(**names)


def autoawq(q: QuantizedWeight) -> Tensors:
    """WQLinear_GEMM.from_linear of AutoAWQ."""
    stand_ins = {
        "awq": types.ModuleType("awq"),
        "awq.utils": types.ModuleType("awq.utils"),
        "awq.utils.module": _module(try_import=lambda name: (None, "")),
        "awq.utils.utils": _module(get_best_device=lambda: "cpu"),
        "awq.utils.packing_utils": _module(dequantize_gemm=None),
    }
    layer = run_file("awq", "modules/linear/gemm.py", stand_ins)["WQLinear_GEMM"]
    scales, zeros = q.scales.float(), zeros_of(q).float()
    made = layer.from_linear(linear_of(q), 4, q.group_size, scales=scales, zeros=zeros)
    return {name: getattr(made, name) for name in ("qweight", "qzeros", "scales")}


def autoawq_marlin(q: QuantizedWeight) -> Tensors:
    """WQLinear_Marlin.from_linear of AutoAWQ."""
    stand_ins = {
        "awq": types.ModuleType("awq"),
        "awq.utils": types.ModuleType("awq.utils"),
        "awq.utils.module": _module(try_import=lambda name: (None, "")),
    }
    layer = run_file("awq", "modules/linear/marlin.py", stand_ins)["WQLinear_Marlin"]
    made = layer.from_linear(linear_of(q), 4, q.group_size, scales=q.scales.t().float())
    return {name: getattr(made, name) for name in ("qweight", "scales")}


def gptqmodel(q: QuantizedWeight) -> Tensors:
    """`pack_original` of GPTQModel (version 2 of the format): one method of a class."""
    import transformers

    source = installed_file("gptqmodel", "nn_modules/qlinear/__init__.py").read_text()
    method = next(
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef) and node.name == "pack_original"
    )
    limits = _module(threadpool_limits=lambda count: contextlib.nullcontext())
    names: dict[str, Any] = {"t": torch, "np": np, "math": math, "nn": torch.nn}
    names |= {"THREADPOOLCTL": limits, "transformers": transformers, "_ConvNd": torch.nn.Conv2d}
    exec(compile(ast.Module([method], []), "pack_original", "exec"), names)
    made = torch.nn.Module()
    for name, value in {
        **{"bits": 4, "maxq": 15, "planar": False, "pack_dtype": torch.int32},
        **{"pack_dtype_bits": 32, "pack_factor": 8},
        **{"pack_np_math_dtype": np.uint32, "pack_np_dtype": np.int32},
    }.items():
        setattr(made, name, value)
    scales, zeros = q.scales.t().float(), zeros_of(q).t().float()
    names["pack_original"](made, linear_of(q), scales, zeros, q.group_of_channel().int())
    return dict(made.named_buffers())


def hqq(dtype: torch.dtype, as_float: bool) -> tuple[Tensors, torch.Tensor]:
    """HQQLinear's state, and the weight that it dequantizes, in fp32."""
    if importlib.util.find_spec("hqq") is None:
        raise Absent("hqq is not installed: pip install --no-deps, or PYTHONPATH")
    from hqq.core import quantize

    config = quantize.BaseQuantizeConfig(nbits=4, group_size=64, axis=1, view_as_float=as_float)
    linear = torch.nn.Linear(128, 48, bias=False)
    made = quantize.HQQLinear(linear, config, compute_dtype=dtype, device="cpu")
    wide = {**made.meta, "compute_dtype": torch.float32}
    for part in ("scale", "zero"):
        wide[part] = wide[part].float()
    state = {name: tensor for name, tensor in made.state_dict().items() if tensor is not None}
    return state, quantize.Quantizer.dequantize(made.W_q, wide)


def torchao(q: QuantizedWeight) -> Tensors:
    """An Int4Tensor for a safetensors file. Its quantizer needs a GPU: the numbers are ours."""
    if importlib.util.find_spec("torchao") is None:
        raise Absent("torchao is not installed: pip install --no-deps, or PYTHONPATH")
    from torchao.prototype.safetensors.safetensors_support import flatten_tensor_state_dict
    from torchao.quantization.quantize_.workflows.int4.int4_tensor import Int4Tensor

    made = Int4Tensor(*torchao_tensors(q).values(), [1, q.group_size], torch.Size([q.n, q.k]))
    state, _ = flatten_tensor_state_dict({"layer.weight": made})
    return {name.removeprefix("layer."): tensor for name, tensor in state.items()}


def nf4(w: torch.Tensor, double: bool, block: int = 64) -> tuple[Tensors, torch.Tensor]:
    """bitsandbytes' tensors of a weight as they are saved, and the weight that it dequantizes."""
    if importlib.util.find_spec("bitsandbytes") is None:
        raise Absent("bitsandbytes is not installed: pip install --no-deps, or PYTHONPATH")
    from bitsandbytes import functional
    from bitsandbytes.backends.default.ops import _dequantize_4bit_compute as dequantize

    packed, state = functional.quantize_4bit(
        w, blocksize=block, compress_statistics=double, quant_type="nf4"
    )
    tensors = {f"weight.{name}": part for name, part in state.as_dict(packed=True).items()}
    absmax = state.absmax
    if double:
        absmax = functional.dequantize_blockwise(absmax, state.state2) + state.offset
    # Its code for AVX-512 takes the blocks of each row by themselves, which no other one does.
    expected = dequantize(packed.reshape(-1), absmax, state.code, block, w.shape, w.dtype)
    return {"weight": packed, **tensors}, expected


def nf4_model(folder: Path) -> None:
    """A small Llama as transformers saves it with bitsandbytes; beside it, its float weights."""
    import transformers

    config = transformers.LlamaConfig(
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        vocab_size=128,
        max_position_embeddings=64,
    )
    torch.manual_seed(0)
    transformers.LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    settings = transformers.BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True
    )
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, quantization_config=settings, dtype=torch.bfloat16, device_map={"": "cpu"}
    )
    shutil.rmtree(folder)
    model.save_pretrained(folder)
    (folder / "generation_config.json").unlink()
    weights = {
        name: parameter.detach().contiguous()
        for name, parameter in model.dequantize(dtype=torch.bfloat16).named_parameters()
        if name.endswith("proj.weight")
    }
    save_file(weights, FOLDER / "nf4-weights.safetensors")


def awq_weight() -> QuantizedWeight:
    return random_weight(32, 96)


def gptq_weight(act_order: bool) -> QuantizedWeight:
    return random_weight(32, 96, act_order=act_order)


def marlin_weight() -> QuantizedWeight:
    return random_weight(128, 128, symmetric=True)


def torchao_weight() -> QuantizedWeight:
    return random_weight(16, 128, 64, dtype=torch.bfloat16)


NF4 = {  # [N, K], dtype, double quantization
    "nf4": ((24, 128), torch.float32, False),
    "nf4-double": ((24, 128), torch.bfloat16, True),
    "nf4-odd": ((5, 33), torch.float16, True),
}


def main() -> None:
    torch.manual_seed(0)
    layers = {
        "autoawq": autoawq(awq_weight()),
        "autoawq-marlin": autoawq_marlin(marlin_weight()),
        "gptqmodel": gptqmodel(gptq_weight(False)),
        "gptqmodel-act-order": gptqmodel(gptq_weight(True)),
        "torchao": torchao(torchao_weight()),
    }
    for name, dtype, as_float in (
        ("hqq", torch.float16, False),
        ("hqq-as-float", torch.bfloat16, True),
    ):
        tensors, expected = hqq(dtype, as_float)
        layers[name] = {**tensors, "expected": expected}
    for name, (size, dtype, double) in NF4.items():
        tensors, expected = nf4(torch.randn(size).to(dtype), double)
        layers[name] = {**tensors, "expected": expected}
    FOLDER.mkdir(exist_ok=True)
    flat = {f"{layer}/{part}": t for layer, parts in layers.items() for part, t in parts.items()}
    save_file(
        {name: tensor.contiguous().clone() for name, tensor in flat.items()},
        FOLDER / "layers.safetensors",
    )
    nf4_model(FOLDER / "nf4")


if __name__ == "__main__":
    main()
