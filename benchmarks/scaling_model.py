"""A decode step over several GPUs: what it would take, by a model and by one GPU's measured share.

    python benchmarks/scaling_model.py measure benchmarks/scaling_h200.json     # on a GPU
    python benchmarks/scaling_model.py predict benchmarks/scaling_h200.json     # anywhere

`measure` times the 4-bit linears of Llama-3 70B and 405B as one GPU of 1 and of 8 has them: by
themselves, from a cold L2, and the four of a layer one after the other in a CUDA graph, over so
many layers that no weight is in the L2. `predict` sets beside that what the curve of the whole
layers says of the shares, and adds what passes between the GPUs: docs/design/scaling.md.
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
ROWS = (1, 32, 128)
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


@dataclass(frozen=True)
class Curve:
    """Microseconds of a product with `rows` against its bytes: a line through the whole layers'."""

    fixed: float
    per_byte: float

    @classmethod
    def through(cls, times: dict[str, float], rows: int) -> Curve:
        points = [
            (packed_bytes(*size), times[f"{model} 1 {rows} {name}"])
            for model, shape in MODELS.items()
            for name, size in linears(shape, 1).items()
        ]
        # Least squares of the relative error: small products count as much as large ones.
        weights = [1 / t**2 for _, t in points]
        total = sum(weights)
        x = sum(w * b for w, (b, _) in zip(weights, points, strict=True)) / total
        y = sum(w * t for w, (_, t) in zip(weights, points, strict=True)) / total
        slope = sum(w * (b - x) * (t - y) for w, (b, t) in zip(weights, points, strict=True)) / sum(
            w * (b - x) ** 2 for w, (b, _) in zip(weights, points, strict=True)
        )
        return cls(y - slope * x, slope)

    def __call__(self, n: int, k: int) -> float:
        return self.fixed + self.per_byte * packed_bytes(n, k)


def predict(measured: dict[str, Any], link: Link = NVLINK4) -> list[str]:
    """The tables of docs/design/scaling.md, as lines of Markdown."""
    times = measured["us"]
    rows = sorted({int(name.split()[2]) for name in times})
    ceiling = CEILINGS[measured["gpu"]]
    lines = [
        "| model, rows | share by the curve | measured, one by one | in a chain | floor "
        "| 2 all-reduces | their part |",
        "|---|---|---|---|---|---|---|",
    ]
    steps = [
        "| model, rows | 1 GPU | 8 GPUs | speedup | without all-reduces | fused with norms |",
        "|---|---|---|---|---|---|",
    ]
    sensitive = [
        "| model, rows | " + " | ".join(f"{latency * 1e6:.0f} us" for latency in LATENCIES) + " |",
        "|---" * (1 + len(LATENCIES)) + "|",
    ]
    launch = ceiling.read_seconds(0) * 1e6
    for model, shape in MODELS.items():
        for m in rows:
            curve = Curve.through(times, m)
            share = linears(shape, GPUS)
            by_curve = sum(curve(*size) for size in share.values())
            alone = sum(times[f"{model} {GPUS} {m} {name}"] for name in share)
            chain = times[f"{model} {GPUS} {m} layer"]
            floor = _layer_floor(measured["gpu"], share, m)
            reduces = 2e6 * link.all_reduce(m * shape.hidden * 2, GPUS)
            lines.append(
                f"| {model}, {m} | {by_curve:.1f} | {alone:.1f} | {chain:.1f} | {floor:.1f} "
                f"| {reduces:.1f} | {reduces / (chain + reduces):.0%} |"
            )
            whole = times[f"{model} 1 {m} layer"] * shape.layers * 1e-3
            split = (chain + reduces) * shape.layers * 1e-3
            free = chain * shape.layers * 1e-3
            fused = (chain + reduces - 2 * launch) * shape.layers * 1e-3
            steps.append(
                f"| {model}, {m} | {whole:.2f} ms | {split:.2f} ms | {whole / split:.2f}x "
                f"| {free:.2f} ms | {fused:.2f} ms |"
            )
            slower = [replace(link, latency=latency) for latency in LATENCIES]
            by_latency = [
                (chain + 2e6 * one.all_reduce(m * shape.hidden * 2, GPUS)) * shape.layers * 1e-3
                for one in slower
            ]
            cells = " | ".join(f"{ms:.2f} ms, {whole / ms:.2f}x" for ms in by_latency)
            sensitive.append(f"| {model}, {m} | {cells} |")
    return [*lines, "", *steps, "", *sensitive]


def _layer_floor(gpu: str, share: dict[str, tuple[int, int]], rows: int) -> float:
    """Microseconds: the reads and the arithmetic of the four, and one launch."""
    ceiling = CEILINGS[gpu]
    launch = ceiling.read_seconds(0)
    each = (
        max(ceiling.read_seconds(packed_bytes(n, k)) - launch, 2 * rows * n * k / ceiling.flops)
        for n, k in share.values()
    )
    return 1e6 * (launch + sum(each))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("what", choices=("measure", "predict"))
    parser.add_argument("file", type=Path, help="what was measured, as JSON")
    parser.add_argument("--rows", default=",".join(map(str, ROWS)))
    options = parser.parse_args()
    if options.what == "measure":
        import torch

        with torch.inference_mode():
            measure(tuple(map(int, options.rows.split(","))), options.file)
    else:
        print("\n".join(predict(json.loads(options.file.read_text()))))


if __name__ == "__main__":
    main()
