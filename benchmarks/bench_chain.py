"""Times the four linears of a Llama-3-8B block in a CUDA graph, each behind the one before.

    python benchmarks/bench_chain.py [--dtype float16] [--rows 1,16] [--w4]

Each layer reads the front columns of what the one before has written, as in a decoder's step: a
launch may hide behind the one before, which a product by itself does not show. With --w4 the
weights have 4 bits, and torch multiplies by the dequantized ones. The floor is the sum of the
layers' floors, less the launches but one.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial

import torch

import xgemm
from xgemm.bench.floors import CEILINGS, floor_seconds
from xgemm.bench.options import HALF_DTYPES
from xgemm.bench.shapes import LLAMA_8B
from xgemm.bench.timing import time_cuda

GROUP_SIZE = 128
Linear = Callable[[torch.Tensor], torch.Tensor]


def record(x: torch.Tensor, layers: list[Linear]) -> tuple[torch.cuda.CUDAGraph, torch.Tensor]:
    """The chain as a graph, and where it leaves its result."""

    def chain() -> torch.Tensor:
        y = x
        for layer, (_, k) in zip(layers, LLAMA_8B.values(), strict=True):
            y = layer(y[:, :k])
        return y

    chain()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = chain()
    return graph, y


def make_layers(w4: bool, dtype: torch.dtype) -> tuple[list[Linear], list[Linear], list[int]]:
    """Ours, torch's over the same weights, and the bytes of ours."""
    ours: list[Linear] = []
    theirs: list[Linear] = []
    sizes = []
    for n, k in LLAMA_8B.values():
        w = torch.randn(n, k, device="cuda").div_(k**0.5).to(dtype)
        if w4:
            packed = xgemm.pack(xgemm.quantize_weight(w, group_size=GROUP_SIZE))
            w = packed.dequantize(dtype)
            ours.append(partial(xgemm.linear, p=packed))
            sizes.append(packed.nbytes)
        else:
            ours.append(partial(torch.ops.xgemm.mul.default, b=w.t()))
            sizes.append(w.nbytes)
        theirs.append(partial(torch.nn.functional.linear, weight=w))
    return ours, theirs, sizes


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--dtype", default="float16", choices=HALF_DTYPES)
    parser.add_argument("--rows", default="1,16", help="values of M, separated by commas")
    parser.add_argument("--w4", action="store_true", help="weights of 4 bits")
    options = parser.parse_args()
    dtype, device = HALF_DTYPES[options.dtype], torch.cuda.get_device_name()
    ours, theirs, sizes = make_layers(options.w4, dtype)
    kind = "4-bit weights" if options.w4 else "dense"
    print(f"{device}, torch {torch.__version__}, {options.dtype}, {kind}, us a chain")
    for rows in map(int, options.rows.split(",")):
        x = torch.randn(rows, LLAMA_8B["8B.qkv"][1], device="cuda").to(dtype)
        graph, y = record(x, ours)
        peer, expected = record(x, theirs)
        graph.replay()
        peer.replay()
        torch.testing.assert_close(y, expected, rtol=0.05, atol=0.05)
        seconds = time_cuda({"xgemm": graph.replay, "torch": peer.replay})
        text = f"M = {rows}: xgemm {seconds['xgemm'] * 1e6:.1f}, torch {seconds['torch'] * 1e6:.1f}"
        text += f" ({seconds['torch'] / seconds['xgemm']:.2f}x)"
        if device in CEILINGS:
            flops = [2.0 * rows * n * k for n, k in LLAMA_8B.values()]
            floors = [floor_seconds(device, *pair) or 0 for pair in zip(sizes, flops, strict=True)]
            floor = sum(floors) - (len(floors) - 1) * CEILINGS[device].read_seconds(0)
            text += f", floor {floor * 1e6:.1f} ({seconds['xgemm'] / floor:.2f} of it)"
        print(text)


if __name__ == "__main__":
    with torch.inference_mode():
        main()
