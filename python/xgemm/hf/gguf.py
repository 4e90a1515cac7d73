"""Takes Q4_0, Q4_1 and Q4_K linears of a GGUF Llama over into xgemm's packed layout, as they are.

A block is 32 weights along K. Q4_1: fp16 d, fp16 m, then 16 bytes whose low nibbles are elements
0..15 and whose high nibbles are 16..31, with w = d * q + m. That is a 4-bit weight with group 32,
scale d and the real zero point -m/d: codes and scales are taken over bit for bit, and only the zero
point is rounded, once, to fp16. For a zero point z this moves a weight by at most
d * |z| * 2**-11, so by at most d / 256 where |z| < 16. Q4_0: fp16 d and the same 16 bytes, with
w = d * (q - 8): a symmetric weight with group 32, taken over exactly.

Source of the formats: ggml's block_q4_0 and block_q4_1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from xgemm.formats.files import name_of_open, open_regular
from xgemm.formats.quantized import QuantizedWeight
from xgemm.hf.gguf_header import check_header
from xgemm.hf.gguf_q4_k import q4_k_weight

BLOCK_WEIGHTS = 32
NIBBLE_BYTES = 16
Q4_0_BYTES = 2 + NIBBLE_BYTES  # fp16 d, nibbles
BLOCK_BYTES = 4 + NIBBLE_BYTES  # Q4_1: fp16 d, fp16 m, nibbles

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
LLAMA_NORMS = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}
LLAMA_OTHERS = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}


def q4_1_weight(blocks: np.ndarray) -> QuantizedWeight:
    """The canonical weight of Q4_1 bytes, uint8 [N, K / 32 * 20]: group 32, real zero points.

    Where d is 0, or so small that -m/d does not fit fp16, the block is the constant m (in the
    second case within 15 d <= 2.3e-4 |m|, an fp16 rounding of m): scale |m|, every code 0 and the
    zero point -1 or 1 state exactly that.
    """
    raw, codes = _blocks("q4_1_weight", blocks, BLOCK_BYTES)
    n, groups = raw.shape[:2]
    header = raw[..., :4].contiguous().view(torch.float16)  # [n, groups, (d, m)]
    scale, minimum = header[..., 0], header[..., 1]

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


def q4_0_weight(blocks: np.ndarray) -> QuantizedWeight:
    """The canonical weight of Q4_0 bytes, uint8 [N, K / 32 * 18]: group 32, symmetric, exact.

    Scales may be negative: Q4_0 gives the code 0 to the weight of the largest magnitude.
    """
    raw, codes = _blocks("q4_0_weight", blocks, Q4_0_BYTES)
    n, groups = raw.shape[:2]
    scale = raw[..., :2].contiguous().view(torch.float16)[..., 0]  # [n, groups]
    return QuantizedWeight(
        codes=codes.reshape(n, groups * BLOCK_WEIGHTS),
        scales=scale.t().contiguous(),
        group_size=BLOCK_WEIGHTS,
    )


def _blocks(where: str, blocks: np.ndarray, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Bytes uint8 [n, groups, size], whose last 16 are nibbles, and the codes [n, groups, 32]."""
    if blocks.dtype != np.uint8 or blocks.ndim != 2 or blocks.shape[1] % size:
        raise ValueError(
            f"{where}: blocks must be uint8 [N, a multiple of {size}], got "
            f"{blocks.dtype} {list(blocks.shape)}"
        )
    raw = torch.from_numpy(np.array(blocks)).view(blocks.shape[0], blocks.shape[1] // size, size)
    nibbles = raw[..., -NIBBLE_BYTES:]
    return raw, torch.cat((nibbles & 15, nibbles >> 4), dim=-1)


_TAKEN_OVER = {"Q4_0": q4_0_weight, "Q4_1": q4_1_weight, "Q4_K": q4_k_weight}


def unpermute_rows(blocks: np.ndarray, heads: int) -> np.ndarray:
    """Undoes llama.cpp's order of the rows of q and k, which pairs the two halves of a rotation."""
    rows = blocks.shape[0]
    if heads < 1 or rows % (2 * heads):
        raise ValueError(
            f"unpermute_rows: rows must be a multiple of 2 * heads, got rows={rows}, heads={heads}"
        )
    by_pair = blocks.reshape(heads, rows // heads // 2, 2, -1)
    return by_pair.swapaxes(1, 2).reshape(blocks.shape)


@dataclass(frozen=True)
class GgufTensor:
    """A tensor of a GGUF Llama under transformers' names."""

    module: str  # such as "model.layers.0.mlp.up_proj"
    linear: bool  # of a block; else a norm, the embedding or the output head
    kind: str  # such as "Q4_1"
    shape: tuple[int, ...]  # as torch has it
    read: Callable[[], np.ndarray]  # its bytes, uint8 [rows, ...], or its floats

    def packed_weight(self) -> QuantizedWeight | None:
        """The 4-bit weight as the file holds it; None where its kind is another."""
        make = _TAKEN_OVER.get(self.kind) if self.linear else None
        return None if make is None else make(self.read())

    def dequantize(self) -> torch.Tensor:
        """The tensor in fp32."""
        import gguf

        kind = gguf.GGMLQuantizationType[self.kind]
        floats = np.array(gguf.quants.dequantize(self.read(), kind), dtype=np.float32)
        return torch.from_numpy(floats).reshape(self.shape)


class GgufLlama:
    """A GGUF file of the llama architecture: its tensors by transformers' names of the modules."""

    def __init__(self, path: Path) -> None:
        import gguf

        self.path = path
        with open_regular(path, "gguf") as file:
            architecture = check_header(path, file)
            if architecture != "llama":
                raise ValueError(
                    f"{path}: general.architecture must be llama, got {architecture!r}"
                )
            try:
                self._reader = gguf.GGUFReader(name_of_open(file))
            except Exception as error:
                reason = f"{type(error).__name__}: {error}"
                raise ValueError(f"{path}: the GGUF file is damaged: {reason:.300}") from error
        self._heads = {
            "attn_q": self._positive("llama.attention.head_count"),
            "attn_k": self._positive("llama.attention.head_count_kv"),
        }
        self.tensors: list[GgufTensor] = []
        self.unknown: list[str] = []  # names of tensors that have no place here
        for tensor in self._reader.tensors:
            made = self._named(tensor)
            if made is None:
                self.unknown.append(tensor.name)
            else:
                self.tensors.append(made)

    def _positive(self, key: str) -> int:
        field = self._reader.get_field(key)
        value = None if field is None else field.contents()
        if not isinstance(value, int) or value < 1:
            raise ValueError(f"{self.path}: {key} must be a positive int, got {value!r:.100}")
        return value

    def _named(self, tensor: Any) -> GgufTensor | None:
        stem, _, leaf = tensor.name.rpartition(".")
        parts = stem.split(".")  # blk.<layer>.<kind>, or the name of what is no block's
        if leaf != "weight":
            return None
        if len(parts) == 3 and parts[0] == "blk":
            kind = parts[2]
            module = LLAMA_LINEARS.get(kind) or LLAMA_NORMS.get(kind)
            name = f"model.layers.{parts[1]}.{module}"
        else:
            kind, module = stem, LLAMA_OTHERS.get(stem)
            name = str(module)
        if module is None:
            return None

        def read() -> np.ndarray:
            heads = self._heads.get(kind)
            return tensor.data if heads is None else unpermute_rows(tensor.data, heads)

        shape = tuple(int(size) for size in reversed(tensor.shape))
        return GgufTensor(name, kind in LLAMA_LINEARS, tensor.tensor_type.name, shape, read)


def llama_q4_weights(path: Path) -> Iterator[tuple[str, QuantizedWeight]]:
    """(transformers' module name, weight) of every Q4_0, Q4_1 and Q4_K linear of a GGUF Llama."""
    for tensor in GgufLlama(path).tensors:
        weight = tensor.packed_weight()
        if weight is not None:
            yield tensor.module, weight
