"""Times the experts of a mixture-of-experts layer over 4-bit weights, from a cold L2 cache.

    python benchmarks/bench_moe.py [--models qwen3-30b,mixtral] [--tokens 1,8,64] [--no-loop]
        [--parts up,down,layer] [--kernels mma_sync,wgmma:16,wgmma:64]
    python benchmarks/bench_moe.py --models gpt-oss-20b --dtype bfloat16 --group-size 32 --fp4

Each part runs as a CUDA graph: the order (moe_sort), up (gate and up, fused with SiLU), down, down
with the weighted sum, and the layer, which is the order, up, and down with the sum. Ids are drawn
at random, as many different experts for each token as the model takes. The floor is the time to
read the experts that were drawn and the activations; "loop" is a product for each expert, one after
the other, whose bounds the host waits for; of MXFP4 each weight is dequantized for it. gpt-oss' own
gate is no part of the kernel: SiLU stands for it here. With --kernels each part but the order runs
by each of them, by turns: the names are values of XGEMM_MOE_KERNEL, and "own" is the library's
choice.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

import xgemm
from xgemm.bench.floors import CEILINGS, floor_seconds
from xgemm.bench.options import HALF_DTYPES
from xgemm.bench.timing import time_cuda
from xgemm.formats.packed import Layout

ops = torch.ops.xgemm


@dataclass(frozen=True)
class Model:
    """The sizes of a mixture: `inner` columns are a gate's, and as many what it multiplies."""

    experts: int
    top_k: int
    hidden: int
    inner: int


MODELS = {
    "qwen3-30b": Model(128, 8, 2048, 768),
    "mixtral": Model(8, 2, 4096, 14336),
    "deepseek-lite": Model(64, 6, 2048, 1408),
    "gpt-oss-20b": Model(32, 4, 2880, 2880),
    "gpt-oss-120b": Model(128, 4, 2880, 2880),
}
TOKENS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
OWN = "own"


def random_experts(experts: int, n: int, k: int, group_size: int, fp4: bool) -> torch.Tensor:
    """Packed weights of random codes, [experts, rows, row_bytes]."""
    packed = []
    groups = -(-k // (k if group_size == -1 else group_size))
    for _ in range(experts):
        codes = torch.randint(0, 16, (n, k), dtype=torch.uint8, device="cuda")
        scales = (torch.rand(groups, n, device="cuda") + 0.5).div_(4.6 * k**0.5).half()
        if fp4:
            scales = scales.float().log2().round().exp2().bfloat16()
        packed.append(ops.pack_w4(codes, scales, None, group_size))
    return torch.stack(packed)


class Layer:
    """A layer's weights, and its parts as functions over the tokens that it is given."""

    def __init__(self, model: Model, group_size: int, dtype: torch.dtype, fp4: bool) -> None:
        self.model, self.group_size, self.dtype = model, group_size, dtype
        self.up_shape, self.down_shape = (
            (2 * model.inner, model.hidden),
            (model.hidden, model.inner),
        )
        self.up = random_experts(model.experts, *self.up_shape, group_size, fp4)
        self.down = random_experts(model.experts, *self.down_shape, group_size, fp4)
        self.form = {"bf16_scales": True, "fp4": True} if fp4 else {}

    def parts(self, tokens: int) -> tuple[dict[str, Callable[[], torch.Tensor]], int]:
        """The parts, and how many experts they use."""
        m, group, form = self.model, self.group_size, self.form
        generator = torch.Generator("cuda").manual_seed(tokens)
        x = torch.randn(tokens, m.hidden, device="cuda", generator=generator).to(self.dtype)
        chances = torch.rand(tokens, m.experts, device="cuda", generator=generator)
        weights, ids = chances.topk(m.top_k, dim=1)
        weights, ids = weights / weights.sum(1, keepdim=True), ids.int()
        order = ops.moe_sort(ids, m.experts)
        gated = torch.randn(tokens * m.top_k, m.inner, device="cuda").to(self.dtype)

        def sort() -> torch.Tensor:
            return ops.moe_sort(ids, m.experts)

        def up(order: torch.Tensor = order) -> torch.Tensor:
            args = (order, m.top_k, *self.up_shape, group)
            return ops.moe.w4a16(x, self.up, *args, activation="silu_and_mul", **form)

        def down() -> torch.Tensor:
            return ops.moe.w4a16(gated, self.down, order, m.top_k, *self.down_shape, group, **form)

        def down_and_sum(h: torch.Tensor = gated, order: torch.Tensor = order) -> torch.Tensor:
            args = (order, m.top_k, *self.down_shape, group)
            return ops.moe.w4a16(h, self.down, *args, weights=weights, **form)

        def layer() -> torch.Tensor:
            order = sort()
            return down_and_sum(up(order), order)

        def loop() -> torch.Tensor:
            return self.loop(x, ids, weights)

        torch.testing.assert_close(layer(), loop(), rtol=0.05, atol=0.02)
        parts: dict[str, Callable[[], torch.Tensor]] = {
            "sort": sort, "up": up, "down": down, "down+sum": down_and_sum, "layer": layer,
            "loop": loop,
        }  # fmt: skip
        return parts, int(ids.unique().numel())

    def loop(self, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """An expert after the other, by mul.w4a16."""
        m = self.model
        flat, order = ids.flatten().sort(stable=True)
        ends = torch.searchsorted(flat, torch.arange(m.experts + 1, device="cuda")).tolist()
        rows = x[order // m.top_k]
        y = torch.empty(rows.shape[0], m.hidden, dtype=x.dtype, device="cuda")
        for e in range(m.experts):
            start, end = ends[e], ends[e + 1]
            if start == end:
                continue
            gate, up = self.multiply(rows[start:end], self.up[e], self.up_shape).chunk(2, 1)
            h = torch.nn.functional.silu(gate) * up
            y[start:end] = self.multiply(h, self.down[e], self.down_shape)
        y = torch.empty_like(y).index_copy_(0, order, y).view(x.shape[0], m.top_k, m.hidden)
        return (y.float() * weights[..., None]).sum(1).to(x.dtype)

    def multiply(
        self, x: torch.Tensor, qweight: torch.Tensor, shape: tuple[int, int]
    ) -> torch.Tensor:
        if not self.form:
            return ops.mul.w4a16(x, qweight, *shape, self.group_size)
        dtype = str(self.dtype).removeprefix("torch.")
        w = ops.dequantize_w4(qweight, *shape, self.group_size, dtype=dtype, **self.form)
        return ops.mul(x, w.t())

    def floors(self, device: str, tokens: int, active: int) -> dict[str, float]:
        """Of up, down and both, s."""
        slots, item, found = tokens * self.model.top_k, 2, {}
        rows_read = {"up": tokens, "down": slots}
        for name, (n, k) in (("up", self.up_shape), ("down", self.down_shape)):
            layout = Layout(n, k, self.group_size, False)
            written = slots * (n // 2 if name == "up" else n)
            count = active * layout.rows * layout.row_bytes + item * (rows_read[name] * k + written)
            found[name] = floor_seconds(device, count, 2.0 * slots * n * k) or 0.0
        both = sum(found.values()) - CEILINGS[device].read_seconds(0)
        return {**found, "layer": both}


def graphed(call: Callable[[], torch.Tensor], kernel: str = OWN) -> Callable[[], None]:
    """A graph of the call by a kernel."""
    os.environ["XGEMM_MOE_KERNEL"] = kernel
    call()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    os.environ["XGEMM_MOE_KERNEL"] = OWN
    return graph.replay


def measure(
    name: str,
    layer: Layer,
    tokens: int,
    with_loop: bool,
    wanted: list[str] | None = None,
    kernels: list[str] | None = None,
) -> dict[str, object]:
    parts, active = layer.parts(tokens)
    loop = parts.pop("loop")
    if wanted is not None:
        parts = {part: parts[part] for part in wanted}
    calls: dict[str, Callable[[], object]] = {}
    for part, call in parts.items():
        if kernels is None or part == "sort":
            calls[part] = graphed(call)
        else:
            calls.update({f"{part} {kernel}": graphed(call, kernel) for kernel in kernels})
    if with_loop:
        calls["loop"] = loop
    us = {part: round(s * 1e6, 2) for part, s in time_cuda(calls).items()}
    device = torch.cuda.get_device_name()
    floors = {}
    if device in CEILINGS:
        floors = {
            part: round(s * 1e6, 2) for part, s in layer.floors(device, tokens, active).items()
        }
    text = ", ".join(f"{part} {value:.1f}" for part, value in us.items())
    of_floor = {call: floors.get(call.partition(" ")[0]) for call in us}
    shares = ", ".join(
        f"{call} {us[call] / floor:.2f}x" for call, floor in of_floor.items() if floor
    )
    print(f"{name} T={tokens} ({active} experts): {text} us; of the floor: {shares}", flush=True)
    return {"model": name, "tokens": tokens, "active": active, "us": us, "floor_us": floors}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--tokens", default=",".join(map(str, TOKENS)))
    parser.add_argument("--group-size", type=int, default=128)
    parser.add_argument("--fp4", action="store_true", help="MXFP4, with --group-size 32")
    parser.add_argument("--dtype", default="float16", choices=HALF_DTYPES)
    parser.add_argument("--no-loop", action="store_true", help="leave the loop over experts out")
    parser.add_argument("--parts", help="some of sort, up, down, down+sum and layer")
    parser.add_argument("--kernels", help="to compare: own, mma_sync, wgmma, wgmma:64, ...")
    parser.add_argument("--json", type=Path, help="a file for the results")
    options = parser.parse_args()
    device = torch.cuda.get_device_name()
    codes = "MXFP4" if options.fp4 else "int4"
    print(
        f"{device}, torch {torch.__version__}, xgemm {xgemm.__version__}, {options.dtype}, {codes}"
    )
    results = []
    for name in options.models.split(","):
        layer = Layer(MODELS[name], options.group_size, HALF_DTYPES[options.dtype], options.fp4)
        for tokens in map(int, options.tokens.split(",")):
            lists = (
                None if text is None else text.split(",")
                for text in (options.parts, options.kernels)
            )
            results.append(measure(name, layer, tokens, not options.no_loop, *lists))
        del layer
    if options.json is not None:
        options.json.write_text(json.dumps({"device": device, "results": results}, indent=1))


if __name__ == "__main__":
    with torch.inference_mode():
        main()
