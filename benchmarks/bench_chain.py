"""Times a chain of four linears in a CUDA graph, where a launch may hide behind the one before.

    python benchmarks/bench_chain.py [--dtype float16] [--rows 1,16]

Each layer reads what the one before has written, as in a decoder's step: what counts is a kernel's
start and end, which a product by itself does not show. The floor is the sum of the layers' floors.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch

import xgemm  # noqa: F401  (registers the ops)
from xgemm.bench.floors import floor_seconds
from xgemm.bench.timing import time_cuda

DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16}
LAYERS = ((4096, 4096), (14336, 4096), (4096, 14336), (4096, 4096))  # (N, K)


def record(
    multiply: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    x: torch.Tensor,
    weights: list[torch.Tensor],
) -> tuple[torch.cuda.CUDAGraph, torch.Tensor]:
    """The chain as a graph, and where it leaves its result."""

    def chain() -> torch.Tensor:
        y = x
        for weight in weights:
            y = multiply(y, weight.t())
        return y

    chain()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = chain()
    return graph, y


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--dtype", default="float16", choices=DTYPES)
    parser.add_argument("--rows", default="1,16", help="values of M, separated by commas")
    options = parser.parse_args()
    dtype = DTYPES[options.dtype]
    weights = [torch.randn(n, k, device="cuda").div_(k**0.5).to(dtype) for n, k in LAYERS]
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {options.dtype}, us a chain")
    for rows in map(int, options.rows.split(",")):
        x = torch.randn(rows, LAYERS[0][1], device="cuda").to(dtype)
        ours, y = record(torch.ops.xgemm.mul.default, x, weights)
        theirs, expected = record(torch.matmul, x, weights)
        ours.replay()
        theirs.replay()
        torch.testing.assert_close(y, expected, rtol=0.05, atol=0.05)
        seconds = time_cuda({"xgemm": ours.replay, "torch": theirs.replay})
        floors = [
            floor_seconds(torch.cuda.get_device_name(), w.nbytes, 2.0 * rows * w.numel())
            for w in weights
        ]
        floor = f", floor {sum(filter(None, floors)) * 1e6:.1f}" if all(floors) else ""
        print(
            f"M = {rows}: xgemm {seconds['xgemm'] * 1e6:.1f}, torch {seconds['torch'] * 1e6:.1f}"
            f" ({seconds['torch'] / seconds['xgemm']:.2f}x){floor}"
        )


if __name__ == "__main__":
    with torch.inference_mode():
        main()
