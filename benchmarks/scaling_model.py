"""A decode step over several GPUs: what it would take, by a model and by one GPU's measured share.

    python benchmarks/scaling_model.py predict                   # anywhere
    python benchmarks/scaling_model.py measure shares.json       # on a GPU
    python benchmarks/scaling_model.py predict shares.json

`measure` times the 4-bit linears of Llama-3 70B and 405B as one GPU of 1 and of 8 has them: by
themselves, from a cold L2, and the four of a layer one after the other in a CUDA graph, over so
many layers that no weight is in the L2. `predict` takes the shares' times from the curve of whole
layers, adds what passes between the GPUs, and sets beside it what was measured, if a file is given.
docs/design/scaling.md has its tables.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vllm_models import Shape

from xgemm.bench.floors import CEILINGS
from xgemm.formats.packed import Layout

GROUP_SIZE = 128
GPU = "NVIDIA H200"
# Rows -> the time over the floor, geometric mean of the 70B layers (docs/measurements/h200.md).
OF_FLOOR = {1: 1.08, 8: 1.12, 32: 1.32, 128: 1.44}
ROWS = tuple(OF_FLOOR)
GPUS = 8
MODELS = {
    "70B": Shape(8192, 28672, 64, 8, 80, vocabulary=128256),
    "405B": Shape(16384, 53248, 128, 8, 126, vocabulary=128256),
}
COLD_BYTES = 400 << 20  # of weights in a chain: many times the L2's


@dataclass(frozen=True)
class Link:
    """What connects the GPUs."""

    bandwidth: float  # bytes a second, one direction of one GPU
    latency: float  # seconds for a small all-reduce

    def all_reduce(self, count: float, gpus: int) -> float:
        """The faster of reading all parts at once and of a scatter and a gather."""
        direct = self.latency + (gpus - 1) * count / self.bandwidth
        halves = 2 * self.latency + 2 * (gpus - 1) / gpus * count / self.bandwidth
        return min(direct, halves)


# 900 GB/s of NVLink 4, both directions together (NVIDIA's data sheet of the H200). No data sheet
# has a latency; docs/design/scaling.md says where this one comes from.
NVLINK4 = Link(bandwidth=450e9, latency=5e-6)
LATENCIES = (3e-6, 5e-6, 10e-6)


def linears(shape: Shape, gpus: int) -> dict[str, tuple[int, int]]:
    """(N, K) of the linears of one GPU's share of a layer: by columns, by channels, by turns."""
    q, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    return {
        "qkv": ((q + 2 * kv) // gpus, shape.hidden),
        "o": (shape.hidden, q // gpus),
        "gate_up": (2 * shape.intermediate // gpus, shape.hidden),
        "down": (shape.hidden, shape.intermediate // gpus),
    }


def packed_bytes(n: int, k: int) -> int:
    layout = Layout(n, k, GROUP_SIZE, False)
    return layout.rows * layout.row_bytes


def measure(rows: tuple[int, ...], file: Path) -> None:
    """Writes microseconds of each linear, and of a layer's four in a chain; model by model."""
    import torch

    from xgemm.bench.timing import time_cuda

    times: dict[str, float] = {}
    for model, shape in MODELS.items():
        for gpus in (1, GPUS):
            sizes = linears(shape, gpus)
            packed = {name: _random_weight(*size) for name, size in sizes.items()}
            copies = max(1, -(-COLD_BYTES // sum(packed_bytes(*s) for s in sizes.values())))
            layers = [packed] + [
                {name: _copied(weight) for name, weight in packed.items()}
                for _ in range(copies - 1)
            ]
            for m in rows:
                calls = {"layer": _chain(layers, sizes, m).replay}
                for name, (_, k) in sizes.items():
                    x = torch.randn(m, k, device="cuda", dtype=torch.bfloat16)
                    calls[name] = _call(x, packed[name])
                seconds_of = time_cuda(calls)
                seconds_of["layer"] /= copies
                for name, seconds in seconds_of.items():
                    times[f"{model} {gpus} {m} {name}"] = round(seconds * 1e6, 2)
            found = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "us": times}
            file.write_text(json.dumps(found, indent=1) + "\n")


def _random_weight(n: int, k: int) -> Any:
    import torch

    import xgemm

    codes = torch.randint(0, 16, (n, k), device="cuda", dtype=torch.uint8)
    scales = torch.rand(-(-k // GROUP_SIZE), n, device="cuda").add_(0.5).div_(4.6 * k**0.5)
    return xgemm.pack(xgemm.QuantizedWeight(codes, scales.bfloat16(), None, None, GROUP_SIZE))


def _copied(weight: Any) -> Any:
    return replace(weight, qweight=weight.qweight.clone())


def _call(x: Any, weight: Any) -> Any:
    import xgemm

    return lambda: xgemm.linear(x, weight)


def _chain(layers: list[Any], sizes: dict[str, tuple[int, int]], rows: int) -> Any:
    """A CUDA graph of the layers' linears, each on the first columns that the last one left."""
    import torch

    import xgemm

    first = torch.randn(rows, next(iter(sizes.values()))[1], device="cuda", dtype=torch.bfloat16)

    def run() -> None:
        y = first
        for packed in layers:
            for name, (_, k) in sizes.items():
                y = xgemm.linear(y[:, :k], packed[name])

    run()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph


def by_curve(n: int, k: int, rows: int) -> float:
    """Microseconds of a product: its floor, times what the 70B layers take of theirs."""
    reads = CEILINGS[GPU].read_seconds(packed_bytes(n, k))
    return 1e6 * OF_FLOOR[rows] * max(reads, 2 * rows * n * k / CEILINGS[GPU].flops)


def predict(measured: dict[str, Any] | None = None, link: Link = NVLINK4) -> list[str]:
    """The tables of docs/design/scaling.md, in Markdown. measured: what `measure` wrote."""
    parts = [
        "| model, rows | 1 GPU | a share | its floor | 2 all-reduces | their part |"
        + (" share measured, one by one | in a chain |" if measured else ""),
        "|---" * (8 if measured else 6) + "|",
    ]
    steps = [
        "| model, rows | 1 GPU | 8 GPUs | without all-reduces | fused with norms | "
        + " | ".join(f"8 GPUs at {latency * 1e6:.0f} us" for latency in LATENCIES) + " |",
        "|---" * (5 + len(LATENCIES)) + "|",
    ]  # fmt: skip
    launch = CEILINGS[GPU].read_seconds(0) * 1e6
    for model, shape in MODELS.items():
        for m in OF_FLOOR:
            whole, share = (
                sum(by_curve(n, k, m) for n, k in linears(shape, gpus).values())
                for gpus in (1, GPUS)
            )
            floor = _layer_floor(linears(shape, GPUS), m)
            size = m * shape.hidden * 2
            reduces = 2e6 * link.all_reduce(size, GPUS)
            line = (
                f"| {model}, {m} | {whole:.1f} | {share:.1f} | {floor:.1f} | {reduces:.1f} "
                f"| {reduces / (share + reduces):.0%} |"
            )
            times = measured["us"] if measured else {}
            if f"{model} {GPUS} {m} layer" in times:
                alone = sum(times[f"{model} {GPUS} {m} {name}"] for name in linears(shape, GPUS))
                line += f" {alone:.1f} | {times[f'{model} {GPUS} {m} layer']:.1f} |"
            parts.append(line)
            slower = [2e6 * replace(link, latency=x).all_reduce(size, GPUS) for x in LATENCIES]
            each = [whole, share + reduces, share, share + reduces - 2 * launch]
            ms = [us * shape.layers * 1e-3 for us in (*each, *(share + us for us in slower))]
            cells = " | ".join(f"{value:.2f} ({ms[0] / value:.2f}x)" for value in ms[1:])
            steps.append(f"| {model}, {m} | {ms[0]:.2f} | {cells} |")
    return [*parts, "", *steps]


def _layer_floor(share: dict[str, tuple[int, int]], rows: int) -> float:
    """Microseconds: the reads and the arithmetic of the four, and one launch."""
    ceiling = CEILINGS[GPU]
    launch = ceiling.read_seconds(0)
    each = (
        max(ceiling.read_seconds(packed_bytes(n, k)) - launch, 2 * rows * n * k / ceiling.flops)
        for n, k in share.values()
    )
    return 1e6 * (launch + sum(each))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("what", choices=("measure", "predict"))
    parser.add_argument("file", type=Path, nargs="?", help="what was measured, as JSON")
    parser.add_argument("--rows", default=",".join(map(str, ROWS)))
    options = parser.parse_args()
    if options.what == "measure":
        if options.file is None:
            parser.error("measure needs a file to write")
        import torch

        with torch.inference_mode():
            measure(tuple(map(int, options.rows.split(","))), options.file)
    else:
        measured = json.loads(options.file.read_text()) if options.file else None
        print("\n".join(predict(measured)))


if __name__ == "__main__":
    main()
