"""Takes the Q4_1 linears of a GGUF Llama over into xgemm's packed layout, without requantizing.

A Q4_1 block is 32 weights along K: fp16 d, fp16 m, then 16 bytes whose low nibbles are elements
0..15 and whose high nibbles are 16..31, with w = d * q + m. That is a 4-bit weight with group 32,
scale d and the real zero point -m/d: codes and scales are taken over bit for bit, and only the zero
point is rounded, once, to fp16. For a zero point z this moves a weight by at most
d * |z| * 2**-11, so by at most d / 256 where |z| < 16.

Source of the format: ggml's block_q4_1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from xgemm.formats.packed import pack
from xgemm.formats.quantized import QuantizedWeight
from xgemm.nn import QuantLinear

BLOCK_WEIGHTS = 32
BLOCK_BYTES = 20  # fp16 d, fp16 m, 16 bytes of nibbles

# The linears of a Llama block: GGUF's name of a tensor and transformers' name of the module.
LLAMA_LINEARS = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def q4_1_weight(blocks: np.ndarray) -> QuantizedWeight:
    """The canonical weight of Q4_1 bytes, uint8 [N, K / 32 * 20]: group 32, real zero points.

    Where d is 0, or so small that -m/d does not fit fp16, the block is the constant m (in the
    second case within 15 d <= 2.3e-4 |m|, an fp16 rounding of m): scale |m|, every code 0 and the
    zero point -1 or 1 state exactly that.
    """
    if blocks.dtype != np.uint8 or blocks.ndim != 2 or blocks.shape[1] % BLOCK_BYTES:
        raise ValueError(
            f"q4_1_weight: blocks must be uint8 [N, a multiple of {BLOCK_BYTES}], got "
            f"{blocks.dtype} {list(blocks.shape)}"
        )
    n, groups = blocks.shape[0], blocks.shape[1] // BLOCK_BYTES
    raw = torch.from_numpy(np.array(blocks)).view(n, groups, BLOCK_BYTES)
    header = raw[..., :4].contiguous().view(torch.float16)  # [n, groups, (d, m)]
    scale, minimum = header[..., 0], header[..., 1]
    nibbles = raw[..., 4:]
    codes = torch.cat((nibbles & 15, nibbles >> 4), dim=-1)  # [n, groups, 32]

    # The quotient of two halves is taken in float64, so that the rounding to fp16 is the only one.
    zero = (-minimum.double() / scale.double()).half()
    constant = ~torch.isfinite(zero)
    scale = torch.where(constant, minimum.abs(), scale)
    zero = torch.where(constant, -minimum.sign(), zero)
    codes = codes.masked_fill(constant[..., None], 0)
    return QuantizedWeight(
        codes=codes.reshape(n, groups * BLOCK_WEIGHTS),
        scales=scale.t().contiguous(),
        zeros=zero.t().contiguous(),
        group_size=BLOCK_WEIGHTS,
    )


def unpermute_rows(blocks: np.ndarray, heads: int) -> np.ndarray:
    """Undoes llama.cpp's order of the rows of q and k, which pairs the two halves of a rotation."""
    rows = blocks.shape[0]
    if heads < 1 or rows % (2 * heads):
        raise ValueError(
            f"unpermute_rows: rows must be a multiple of 2 * heads, got rows={rows}, heads={heads}"
        )
    by_pair = blocks.reshape(heads, rows // heads // 2, 2, -1)
    return by_pair.swapaxes(1, 2).reshape(blocks.shape)


def llama_q4_1_weights(path: Path) -> Iterator[tuple[str, QuantizedWeight]]:
    """(transformers' module name, weight) of every Q4_1 linear of a GGUF Llama."""
    import gguf

    reader = gguf.GGUFReader(path)
    architecture = _field(reader, "general.architecture")
    if architecture != "llama":
        raise ValueError(f"{path}: general.architecture must be llama, got {architecture!r}")
    heads = int(_field(reader, "llama.attention.head_count"))
    heads_of = {"attn_q": heads, "attn_k": int(_field(reader, "llama.attention.head_count_kv"))}
    for tensor in reader.tensors:
        parts = tensor.name.split(".")  # blk.<layer>.<kind>.weight
        if len(parts) != 4 or parts[0] != "blk" or parts[2] not in LLAMA_LINEARS:
            continue
        if tensor.tensor_type != gguf.GGMLQuantizationType.Q4_1:
            continue
        blocks = tensor.data
        if parts[2] in heads_of:
            blocks = unpermute_rows(blocks, heads_of[parts[2]])
        yield f"model.layers.{parts[1]}.{LLAMA_LINEARS[parts[2]]}", q4_1_weight(blocks)


def take_over_linears(
    model: nn.Module, path: Path, report: Callable[[str], None] = lambda name: None
) -> list[str]:
    """Replaces the model's linears that `path` holds in Q4_1 by QuantLinears; returns their names.

    model: transformers' LlamaForCausalLM of the same architecture, in place.
    report: called with the name of each module when it has been replaced.
    """
    names = []
    for name, weight in llama_q4_1_weights(path):
        parent_name, _, child = name.rpartition(".")
        parent = model.get_submodule(parent_name)
        linear = getattr(parent, child)
        if not isinstance(linear, nn.Linear) or isinstance(linear, QuantLinear):
            raise TypeError(f"{name}: expected nn.Linear, got {type(linear).__name__}")
        if (linear.out_features, linear.in_features) != (weight.n, weight.k):
            raise ValueError(
                f"{name}: {path.name} holds [{weight.n}, {weight.k}], the model expects "
                f"[{linear.out_features}, {linear.in_features}]"
            )
        setattr(parent, child, QuantLinear.from_packed(pack(weight), linear.bias))
        names.append(name)
        report(name)
    return names


def _field(reader: Any, key: str) -> Any:
    field = reader.get_field(key)
    if field is None:
        raise ValueError(f"the GGUF file has no field {key!r}")
    return field.contents()
