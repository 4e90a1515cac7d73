"""Directories as other tools write them: each format written out from its definition.

What is packed here goes number by number, not by the code of xgemm: the tests compare it with the
tools' own packing code where that is installed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file

import xgemm
from xgemm.formats.quantized import QuantizedWeight

Tensors = dict[str, torch.Tensor]
AWQ_COLUMNS = (0, 2, 4, 6, 1, 3, 5, 7)


def words(numbers: torch.Tensor, order: tuple[int, ...] = tuple(range(8))) -> torch.Tensor:
    """[R, C] to int32 [R, ceil(C / 8)]: bits 4 i of a word are the column order[i] of its eight."""
    rows, columns = numbers.shape
    given = numbers.numpy().astype(np.uint32)
    packed = np.zeros((rows, -(-columns // 8)), dtype=np.uint32)
    for word in range(packed.shape[1]):
        for i, column in enumerate(order):
            if 8 * word + column < columns:
                packed[:, word] |= given[:, 8 * word + column] << np.uint32(4 * i)
    return torch.from_numpy(packed.view(np.int32))


def zeros_of(q: QuantizedWeight) -> torch.Tensor:
    return torch.full_like(q.scales, 8.0) if q.zeros is None else q.zeros


def gptq_tensors(q: QuantizedWeight, version: int = 1) -> Tensors:
    zeros = words(zeros_of(q).int())
    if version == 1:  # as GPTQModel does: whole words, so that a zero point of 0 borrows
        zeros = (zeros.long() - 0x11111111).to(torch.int32)
    return {
        "qweight": words(q.codes).t().contiguous(),
        "qzeros": zeros,
        "scales": q.scales,
        "g_idx": q.group_of_channel().int(),
    }


def awq_tensors(q: QuantizedWeight) -> Tensors:
    return {
        "qweight": words(q.codes.t(), AWQ_COLUMNS),
        "qzeros": words(zeros_of(q).int(), AWQ_COLUMNS),
        "scales": q.scales,
    }


def compressed_tensors(q: QuantizedWeight) -> Tensors:
    tensors = {
        "weight_packed": words(q.codes),
        "weight_scale": q.scales.t().contiguous(),
        "weight_shape": torch.tensor(q.codes.shape),
    }
    if q.zeros is not None:
        tensors["weight_zero_point"] = words(q.zeros.int().t().t()).t().contiguous()
    if q.g_idx is not None:
        tensors["weight_g_idx"] = q.g_idx
    return tensors


def marlin_tensors(q: QuantizedWeight, names: tuple[str, str] = ("B", "s")) -> Tensors:
    """Lane by lane, as the kernel's mma fragments are: symmetric, N a multiple of 64."""
    k_tiles, n_tiles = q.k // 16, q.n // 64
    packed = np.zeros((k_tiles, n_tiles * 128), dtype=np.uint32)
    codes = q.codes.numpy().astype(np.uint32)
    for kt, nt, lane, four in np.ndindex(k_tiles, n_tiles, 32, 4):
        columns = 64 * nt + 16 * four + lane // 4 + np.array([0, 8])
        channels = 16 * kt + 2 * (lane % 4) + np.array([0, 1, 8, 9])
        low, high = codes[np.ix_(columns, channels)]
        # The kernel masks even values of a lane out of one half of a word, odd ones of the other.
        word = (low[0], low[2], high[0], high[2], low[1], low[3], high[1], high[3])
        packed[kt, 128 * nt + 4 * lane + four] = sum(int(c) << (4 * i) for i, c in enumerate(word))
    scales = torch.empty_like(q.scales)
    for column in range(q.n):
        if len(q.scales) > 1:  # a lane reads the 8 scales of its column in each 64 at once
            to = column // 64 * 64 + column % 8 * 8 + column % 64 // 8
        else:  # a lane has two columns of each 8
            pair, odd = column % 8 // 2, column % 2
            to = column // 32 * 32 + pair * 8 + column % 32 // 8 * 2 + odd
        scales[:, to] = q.scales[:, column]
    return {
        names[0]: torch.from_numpy(packed.view(np.int32)),
        names[1]: scales,
        "workspace": torch.zeros(q.n // 128 * 16, dtype=torch.int32),
    }


def hqq_tensors(q: QuantizedWeight, compute_dtype: str = "torch.float16") -> Tensors:
    """As HQQLinear's state, of a file: each number and string in a tensor."""
    size = q.k if q.group_size == -1 else q.group_size
    rows = q.codes.reshape(-1, size)
    packed = torch.zeros(len(rows) // 2, size, dtype=torch.uint8)
    for row in range(len(packed)):
        packed[row] = rows[row] * 16 + rows[row + len(packed)]

    def text(value: str) -> torch.Tensor:
        return torch.tensor([ord(character) for character in value], dtype=torch.uint8)

    numbers = {"nbits": 4, "group_size": size, "axis": 1}
    flags = {"view_as_float": 0, "quant_scale": 0, "quant_zero": 0, "channel_wise": 1}
    flags |= {"optimize": 1, "round_zero": 0, "offload_meta": 0, "encoded_state_dict": 1}
    return {
        "W_q": packed,
        "scale": q.scales.t().reshape(-1, 1),
        "zero": zeros_of(q).t().reshape(-1, 1),
        "shape": torch.tensor([q.n, q.k]),
        "packing": text("4bit_u8"),
        "unpack_view_dtype": text("torch.uint8"),
        "compute_dtype": text(compute_dtype),
        "stores_quant_config": torch.tensor(1, dtype=torch.uint8),
        **{name: torch.tensor(value, dtype=torch.int32) for name, value in numbers.items()},
        **{name: torch.tensor(value, dtype=torch.uint8) for name, value in flags.items()},
    }


def hqq_config() -> dict[str, Any]:
    weights = {"nbits": 4, "channel_wise": True, "group_size": 32, "optimize": True, "axis": 1}
    return {
        "quant_method": "hqq",
        "quant_config": {"weight_quant_params": weights, "offload_meta": False},
        "skip_modules": ["lm_head"],
    }


def torchao_tensors(q: QuantizedWeight) -> Tensors:
    """As torchao's Int4Tensor is saved: w = (code - 8) * scale + zero_point, real zero points."""
    signed = q.codes.int() - 8
    packed = torch.empty(q.n, q.k // 2, dtype=torch.int8)
    for pair in range(q.k // 2):
        low, high = signed[:, 2 * pair], signed[:, 2 * pair + 1]
        packed[:, pair] = (low % 16 + 16 * high).to(torch.int8)
    return {
        "_weight_qdata": packed,
        "_weight_scale": q.scales,
        "_weight_zero_point": ((8 - zeros_of(q).float()) * q.scales.float()).to(q.scales.dtype),
    }


def torchao_config(**data: Any) -> dict[str, Any]:
    values = {"group_size": 32, "int4_packing_format": "plain", **data}
    quant_type = {"_type": "Int4WeightOnlyConfig", "_version": 2, "_data": values}
    return {"quant_method": "torchao", "quant_type": {"default": quant_type}}


def gptq_config(version: int = 1, **values: Any) -> dict[str, Any]:
    return {
        "quant_method": "gptq",
        "bits": 4,
        "group_size": 32,
        "desc_act": False,
        "sym": True,
        "checkpoint_format": ("gptq", "gptq_v2")[version - 1],
        **values,
    }


def awq_config(**values: Any) -> dict[str, Any]:
    return {
        "quant_method": "awq",
        "bits": 4,
        "group_size": 32,
        "zero_point": True,
        "version": "gemm",
        **values,
    }


def compressed_config(ignore: tuple[str, ...] = ("lm_head",), **weights: Any) -> dict[str, Any]:
    scheme = {
        "num_bits": 4,
        "type": "int",
        "symmetric": True,
        "strategy": "group",
        "group_size": 32,
        **weights,
    }
    return {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "quantization_status": "compressed",
        "ignore": list(ignore),
        "config_groups": {
            "group_0": {"targets": ["Linear"], "weights": scheme, "input_activations": None}
        },
    }


def random_weight(
    n: int,
    k: int,
    group_size: int = 32,
    symmetric: bool = False,
    act_order: bool = False,
    dtype: torch.dtype = torch.float16,
    seed: int = 0,
) -> QuantizedWeight:
    """Any codes, scales and integer zero points, 0 and 15 among them."""
    generator = torch.Generator().manual_seed(seed)
    size = max(k, 1) if group_size == -1 else group_size
    groups = -(-k // size)
    zeros = torch.randint(0, 16, (groups, n), generator=generator).half()
    order = torch.randperm(k, generator=generator)
    g_idx = torch.empty(k, dtype=torch.int32)
    g_idx[order] = (torch.arange(k) // size).int()
    return QuantizedWeight(
        torch.randint(0, 16, (n, k), generator=generator, dtype=torch.uint8),
        (torch.rand(groups, n, generator=generator) / 64 + 0.01).to(dtype),
        None if symmetric else zeros,
        g_idx if act_order and groups > 1 else None,
        group_size,
    )


def is_linear(name: str) -> bool:
    """Linear layers of a decoder, by the checkpoint's names of their weights."""
    leaves = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
    return name.rpartition(".")[2] in (*leaves, "w1", "w2", "w3")


def write_directory(
    path: Path,
    model: Any,
    config: Mapping[str, Any],
    tensors_of: Callable[[QuantizedWeight], Tensors],
    *,
    chosen: Callable[[str], bool] = is_linear,
    shards: int = 1,
    same_order: bool = False,
    **options: Any,
) -> tuple[dict[str, QuantizedWeight], Path]:
    """`model` as a tool writes it; (its quantized layers, a directory of the same float weights).

    options: of `random_weight`. same_order: one g_idx for all layers of one K.
    """
    reference = path.with_name(f"{path.name}-float")
    model.save_pretrained(reference)
    state = load_file(reference / "model.safetensors")
    layers: dict[str, QuantizedWeight] = {}
    written: Tensors = {}
    for index, (name, value) in enumerate(sorted(state.items())):
        layer = name.removesuffix(".weight")
        if value.dim() != 2 or layer == name or not chosen(layer):
            written[name] = value
            continue
        seed = value.shape[1] if same_order else index
        weight = random_weight(*value.shape, **{"seed": seed, **options})
        layers[layer] = weight
        state[name] = weight.dequantize(torch.float32)
        written.update({f"{layer}.{part}": t for part, t in tensors_of(weight).items()})
    save_file(state, reference / "model.safetensors", metadata={"format": "pt"})
    path.mkdir()
    values = json.loads((reference / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**values, "quantization_config": dict(config)}))
    _write_shards(path, written, shards)
    return layers, reference


def _write_shards(path: Path, tensors: Tensors, count: int) -> None:
    tensors = {name: tensor.contiguous() for name, tensor in tensors.items()}
    if count == 1:
        save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
        return
    weight_map = {}
    for i in range(count):
        file = f"model-{i + 1:05d}-of-{count:05d}.safetensors"
        shard = {name: tensors[name] for name in sorted(tensors)[i::count]}
        save_file(shard, path / file, metadata={"format": "pt"})
        weight_map.update(dict.fromkeys(shard, file))
    index = {"metadata": {}, "weight_map": weight_map}
    (path / "model.safetensors.index.json").write_text(json.dumps(index))


def same_weight(found: QuantizedWeight, expected: QuantizedWeight) -> bool:
    """Bit for bit; a zero point of 8 everywhere may be written out or not."""
    return (
        found.group_size == expected.group_size
        and torch.equal(found.codes, expected.codes)
        and found.scales.dtype == expected.scales.dtype
        and torch.equal(found.scales, expected.scales)
        and torch.equal(zeros_of(found).float(), zeros_of(expected).float())
        and torch.equal(found.group_of_channel(), expected.group_of_channel())
    )


def unpacked(layer: Any) -> QuantizedWeight:
    """The canonical weight of a QuantLinear."""
    return xgemm.unpack(layer.to_packed())
