"""Times what a packed weight is put through beside the product: gradient, dequantizing, packing.

    python benchmarks/bench_packed.py [--layers 8b,70b] [--rows 2048] [--dtype float16]

The gradient in the activations stands beside the product itself (at the same M) and torch's
gradient over the dequantized weight; dequantizing beside a copy of as many bytes. Packing says what
memory it takes beside its operands and its result.
"""

from __future__ import annotations

import argparse
from functools import partial

import torch

import xgemm
from xgemm.bench.check import checked
from xgemm.bench.options import HALF_DTYPES
from xgemm.bench.shapes import LAYERS
from xgemm.bench.timing import Call, time_calls
from xgemm.reference import error_ratio, w4a16_grad_a, w4a16_grad_a_bound

CHECKED_ROWS = 4  # float64 takes long


def gradient_calls(p: xgemm.PackedWeight, w: torch.Tensor, m: int) -> dict[str, Call]:
    x = torch.randn(m, p.k, device=w.device, dtype=w.dtype)
    grad = torch.randn(m, p.n, device=w.device, dtype=w.dtype)
    watched = x.clone().requires_grad_()
    y = xgemm.linear(watched, p)
    return {
        "product": partial(xgemm.linear, x, p),
        "gradient": partial(torch.autograd.grad, y, watched, grad, retain_graph=True),
        "torch's": partial(torch.matmul, grad, w),
    }


def check_gradient(call: Call, q: xgemm.QuantizedWeight, grad: torch.Tensor) -> None:
    found = call()
    assert isinstance(found, tuple)
    rows = slice(None, None, max(1, len(grad) // CHECKED_ROWS))
    few = grad[rows]
    bound = w4a16_grad_a_bound(few, q)
    checked("the gradient", error_ratio(found[0][rows], w4a16_grad_a(few, q), bound))


def copy_call(count: int, device: torch.device) -> Call:
    """A copy that reads and writes `count` bytes together."""
    source = torch.empty(count // 2, dtype=torch.uint8, device=device)
    return partial(torch.empty_like(source).copy_, source)


def extra_bytes(call: Call, result: int) -> int:
    """Of the device's memory, at most, beside the result's."""
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    call()
    return torch.cuda.max_memory_allocated() - before - result


def measure(layer: str, n: int, k: int, m: int, dtype: torch.dtype, device: str) -> None:
    q = xgemm.quantize_weight(torch.randn(n, k, device=device), scale_dtype=torch.float16)
    p = xgemm.pack(q)
    w = p.dequantize(dtype)
    flops, dense = 2.0 * m * n * k, n * k * dtype.itemsize
    calls = gradient_calls(p, w, m)
    gradient = calls["gradient"]
    assert isinstance(gradient, partial)
    check_gradient(gradient, q, gradient.args[2])
    found = time_calls(calls, device)
    rates = ", ".join(f"{name} {flops / us * 1e-12:.1f}" for name, us in found.items())
    print(
        f"{layer}, M = {m}: TFLOP/s: {rates}; the gradient at"
        f" {found['product'] / found['gradient']:.2f} of the product's rate"
    )
    moved = p.nbytes + dense
    found = time_calls(
        {"dequantize": partial(p.dequantize, dtype), "copy": copy_call(moved, w.device)}, device
    )
    print(
        f"{layer}: dequantize {found['dequantize'] * 1e6:.1f} us,"
        f" {moved / found['dequantize'] * 1e-9:.0f} GB/s,"
        f" {found['copy'] / found['dequantize']:.2f} of a copy's rate"
    )
    pack = partial(torch.ops.xgemm.pack_w4.default, q.codes, q.scales, None, q.group_size)
    unpack = partial(torch.ops.xgemm.unpack_w4.default, p.qweight, n, k, q.group_size)
    found = time_calls({"pack": pack, "unpack": unpack}, device)
    extra = ""
    if w.is_cuda:
        extra = f", {extra_bytes(pack, p.nbytes) / p.nbytes:.2f} of its bytes extra"
    print(
        f"{layer}: pack {found['pack'] * 1e6:.1f} us{extra}, unpack {found['unpack'] * 1e6:.1f} us",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--layers", default="8b", help=f"of {', '.join(LAYERS)}, by commas")
    parser.add_argument("--rows", type=int, default=2048, help="M")
    parser.add_argument("--dtype", default="float16", choices=HALF_DTYPES)
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args()
    for group in options.layers.split(","):
        for layer, (n, k) in LAYERS[group].items():
            measure(layer, n, k, options.rows, HALF_DTYPES[options.dtype], options.device)


if __name__ == "__main__":
    main()
