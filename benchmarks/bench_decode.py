"""Times a whole decode step of a Llama-3-8B-shaped model: 4-bit linears against 16-bit ones.

    python benchmarks/bench_decode.py [--dtype float16] [--rows 1,16] [--only generate]

Random weights, a static cache, blocks compiled by torch.compile, one CUDA graph a step. The 16-bit
model holds the dequantized weights of the 4-bit one, so that both compute the same. The limit is
the time that reading all weights and the cache takes at the best read rate (xgemm.bench.floors).
A step is timed in several turns: the median of each, then theirs; the least and the most of them
say how far a run repeats itself. Runs on several GPUs of one kind have differed by 4 %.

"accelerated" are transformers' models of that shape, with torch's linears and with 4-bit ones
(fused), in the step that `xgemm.hf.accelerate_generation` records: what `generate` replays for each
token. Their cache has as many positions. --only takes one of the two: compiled, generate.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

import torch
from bench_generate import llama
from profile_decode import Replayed
from torch import nn
from torch.nn import functional

import xgemm
from xgemm.bench.floors import CEILINGS
from xgemm.bench.options import HALF_DTYPES
from xgemm.bench.timing import time_cuda
from xgemm.nn import QuantLinear

GROUP_SIZE = 128
TURNS = 5  # medians of a step


@dataclass(frozen=True)
class Shape:
    """Llama-3-8B's."""

    layers: int = 32
    hidden: int = 4096
    intermediate: int = 14336
    heads: int = 32
    kv_heads: int = 8
    head_size: int = 128
    vocabulary: int = 128256
    context: int = 1024  # positions of the cache, all of which are read

    @property
    def qkv(self) -> int:
        return (self.heads + 2 * self.kv_heads) * self.head_size


class Block(nn.Module):
    """A decoder block, for one new position of each sequence."""

    keys: torch.Tensor  # [rows, kv_heads, context, head_size]
    values: torch.Tensor

    def __init__(self, shape: Shape, make: Callable[[int, int], nn.Module], rows: int) -> None:
        super().__init__()
        self.shape = shape
        self.norms = nn.ModuleList(nn.RMSNorm(shape.hidden) for _ in range(2))
        self.qkv = make(shape.qkv, shape.hidden)
        self.out = make(shape.hidden, shape.heads * shape.head_size)
        self.gate_up = make(2 * shape.intermediate, shape.hidden)
        self.down = make(shape.hidden, shape.intermediate)
        # Two tensors: of views of one torch.compile would copy all of it to change a position.
        cached = (rows, shape.kv_heads, shape.context, shape.head_size)
        self.register_buffer("keys", torch.zeros(cached))
        self.register_buffer("values", torch.zeros(cached))

    def forward(self, x: torch.Tensor, at: torch.Tensor, turn: torch.Tensor) -> torch.Tensor:
        """x: [rows, hidden]; at: the position, [1]; turn: rotary cosines and sines, [2, head]."""
        shape, rows = self.shape, x.shape[0]
        heads = self.qkv(self.norms[0](x)).view(rows, -1, 1, shape.head_size)
        query, key, value = heads.split((shape.heads, shape.kv_heads, shape.kv_heads), dim=1)
        self.keys.index_copy_(2, at, rotate(key, turn))
        self.values.index_copy_(2, at, value)
        # The queries of a group of heads are those of one head: by `enable_gqa` torch would copy
        # each head's keys and values for every query.
        query = rotate(query, turn).view(rows, shape.kv_heads, -1, shape.head_size)
        y = functional.scaled_dot_product_attention(query, self.keys, self.values)
        x = x + self.out(y.reshape(rows, -1))
        gate, up = self.gate_up(self.norms[1](x)).chunk(2, dim=-1)
        return x + self.down(functional.silu(gate) * up)


def rotate(x: torch.Tensor, turn: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, dim=-1)
    return x * turn[0] + torch.cat((-second, first), dim=-1) * turn[1]


class Decoder(nn.Module):
    def __init__(self, shape: Shape, make: Callable[[int, int], nn.Module], rows: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(shape.vocabulary, shape.hidden)
        self.blocks = nn.ModuleList(Block(shape, make, rows) for _ in range(shape.layers))
        self.norm = nn.RMSNorm(shape.hidden)
        self.head = nn.Linear(shape.hidden, shape.vocabulary, bias=False)

    def forward(self, tokens: torch.Tensor, at: torch.Tensor, turn: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x, at, turn)
        logits: torch.Tensor = self.head(self.norm(x))
        return logits


def quantized(n: int, k: int, dtype: torch.dtype) -> nn.Module:
    w = torch.randn(n, k).mul_(0.5 / k**0.5).to(dtype)
    return QuantLinear.from_packed(xgemm.pack(xgemm.quantize_weight(w, group_size=GROUP_SIZE)))


def dense_twin(model: Decoder, dtype: torch.dtype) -> None:
    """Replaces each 4-bit linear of `model` by torch's over the dequantized weight."""
    for block in model.blocks:
        for name, layer in list(block.named_children()):
            if isinstance(layer, QuantLinear):
                weight = layer.to_packed().dequantize(dtype)
                twin = nn.Linear(weight.shape[1], weight.shape[0], bias=False, device="meta")
                twin.weight = nn.Parameter(weight, requires_grad=False)
                setattr(block, name, twin)


def bytes_read(model: Decoder, rows: int) -> int:
    """Of a step: all weights and caches, and of the embedding the rows of the tokens."""
    held = [*model.parameters(), *model.buffers()]
    embedding = model.embedding.weight
    whole = sum(tensor.nbytes for tensor in held) - embedding.nbytes
    return whole + rows * embedding.shape[1] * embedding.element_size()


def bytes_replayed(replayed: Replayed, rows: int) -> int:
    """The same of a recorded step, whose cache is not the model's."""
    embedding = replayed.model.get_input_embeddings().weight
    held = [*replayed.model.parameters(), *replayed.model.buffers()]
    held += [t for layer in replayed.step.cache.layers for t in (layer.keys, layer.values)]
    whole = sum(tensor.nbytes for tensor in held) - embedding.nbytes
    return whole + rows * embedding.shape[1] * embedding.element_size()


def record(
    model: Decoder, tokens: torch.Tensor, at: torch.Tensor, turn: torch.Tensor
) -> tuple[torch.cuda.CUDAGraph, torch.Tensor]:
    """A step as a graph, and its logits."""
    torch.compiler.reset()
    for block in model.blocks:
        block.compile(fullgraph=True)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        model(tokens, at, turn)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        logits = model(tokens, at, turn)
    return graph, logits


def step_seconds(graph: torch.cuda.CUDAGraph) -> list[float]:
    return [time_cuda({"step": graph.replay}, rounds=2)["step"] for _ in range(TURNS)]


def compare(shape: Shape, rows: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model = Decoder(shape, lambda n, k: quantized(n, k, dtype), rows).to(dtype).eval()
    tokens = torch.randint(shape.vocabulary, (rows,))
    at = torch.full((1,), shape.context - 1)
    turn = torch.stack((torch.rand(shape.head_size), torch.rand(shape.head_size))).to(dtype)
    for cache in model.buffers():
        cache.normal_()
    limits = {"xgemm": bytes_read(model, rows)}
    ours, y = record(model, tokens, at, turn)
    ours.replay()
    ours_logits, turns = y.float(), {"xgemm": step_seconds(ours)}
    del ours  # its memory, and what else it holds of the model
    dense_twin(model, dtype)
    limits["torch"] = bytes_read(model, rows)
    theirs, y = record(model, tokens, at, turn)
    theirs.replay()
    off = (ours_logits - y.float()).square().mean().sqrt() / y.float().std()
    turns["torch"] = step_seconds(theirs)
    show(turns, limits, rows)
    ratio = median(turns["torch"]) / median(turns["xgemm"])
    print(
        f"M = {rows}: {ratio:.2f}x torch in {dtype}; the logits differ by {off:.1e} of their"
        " standard deviation"
    )


def show(turns: dict[str, list[float]], limits: dict[str, int], rows: int) -> None:
    """turns: seconds of a step, several of each name; limits: bytes that it reads."""
    ceiling = CEILINGS.get(torch.cuda.get_device_name()) if torch.cuda.is_available() else None
    for name, of in turns.items():
        seconds = median(of)
        limit = ceiling.read_seconds(limits[name]) if ceiling else None
        share = f", {limit / seconds:.0%} of the limit by its bytes" if limit else ""
        print(
            f"M = {rows}: {name} {seconds * 1e3:.3f} ms a step ({min(of) * 1e3:.3f} to"
            f" {max(of) * 1e3:.3f}), {rows / seconds:.0f} tokens/s,"
            f" {limits[name] * 1e-9:.2f} GB{share}"
        )


def accelerated_models(shape: Shape, dtype: torch.dtype, device: str) -> dict[str, nn.Module]:
    """transformers' Llama of this shape with torch's linears, and with fused 4-bit ones."""
    torch.manual_seed(0)
    with torch.inference_mode(False):  # whose tensors cannot be fused
        dense = llama(shape.layers, shape.hidden, device).to(dtype)
        packed = xgemm.quantize(copy.deepcopy(dense), group_size=GROUP_SIZE)
        return {"xgemm, accelerated": xgemm.fuse(packed), "torch, accelerated": dense}


def compare_accelerated(models: dict[str, nn.Module], rows: int, context: int, device: str) -> None:
    turns: dict[str, list[float]] = {}
    limits: dict[str, int] = {}
    with torch.inference_mode(False), torch.no_grad():  # as generate calls a model
        for name, model in models.items():
            replayed = Replayed(model, rows, context, device)
            replayed.seconds()  # does not count
            turns[name] = [replayed.seconds() for _ in range(TURNS)]
            limits[name] = bytes_replayed(replayed, rows)
    show(turns, limits, rows)
    ours, theirs = (median(of) for of in turns.values())
    print(f"M = {rows}: {theirs / ours:.2f}x torch, both accelerated")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--dtype", default="float16", choices=HALF_DTYPES)
    parser.add_argument("--rows", default="1,16", help="sequences at once, separated by commas")
    parser.add_argument("--layers", type=int, default=Shape.layers)
    parser.add_argument("--only", choices=("compiled", "generate"))
    options = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("bench_decode: needs a CUDA GPU, and torch sees none")
    print(
        f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {options.dtype},"
        f" {options.layers} layers"
    )
    shape, dtype = Shape(layers=options.layers), HALF_DTYPES[options.dtype]
    counts = [int(rows) for rows in options.rows.split(",")]
    if options.only != "generate":
        for rows in counts:
            compare(shape, rows, dtype)
    if options.only != "compiled":
        models = accelerated_models(shape, dtype, "cuda")
        for rows in counts:
            compare_accelerated(models, rows, shape.context, "cuda")


if __name__ == "__main__":
    torch.set_default_device("cuda")
    # cuDNN's attention shares no sequence out to several SMs: of one it leaves most of them idle.
    torch.backends.cuda.enable_cudnn_sdp(False)
    with torch.inference_mode():
        main()
