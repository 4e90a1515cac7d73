"""Times the formats of a 4-bit weight beside the plainest of them, all of a product by turns.

    python benchmarks/bench_formats.py [--layers 8b,70b] [--rows 1,16,64,512,2048]

The plainest has groups of 128, no zero points, fp16 scales and activations. Ratios are times over
its time: above 1 is slower. Every product is compared with float64 before it is timed.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch

import xgemm
from xgemm.bench.check import checked
from xgemm.bench.shapes import LAYERS
from xgemm.bench.summary import geometric_mean
from xgemm.bench.timing import Call, time_calls
from xgemm.reference import error_ratio, w4a16, w4a16_bound

PLAIN = "plain"
CHECKED_ROWS = 4  # float64 takes long
Make = Callable[[torch.Tensor], xgemm.QuantizedWeight]


def rtn(**options: Any) -> Make:
    return lambda w: xgemm.quantize_weight(w, **{"scale_dtype": torch.float16, **options})


def act_order(w: torch.Tensor) -> xgemm.QuantizedWeight:
    """The plain weight, whose groups' channels lie anywhere."""
    q = rtn()(w)
    groups = torch.arange(w.shape[1], device=w.device) // q.group_size
    return replace(q, g_idx=groups[torch.randperm(w.shape[1], device=w.device)].int())


# How the weight is made, the activations' type, and what else the product is asked for.
FORMATS: dict[str, tuple[Make, torch.dtype, dict[str, bool]]] = {
    PLAIN: (rtn(), torch.float16, {}),
    "bf16 activations": (rtn(), torch.bfloat16, {}),
    "bf16, scales too": (rtn(scale_dtype=torch.bfloat16), torch.bfloat16, {}),
    "groups of 64": (rtn(group_size=64), torch.float16, {}),
    "groups of 32": (rtn(group_size=32), torch.float16, {}),
    "groups of 32, zeros": (rtn(group_size=32, symmetric=False), torch.float16, {}),
    "a group a column": (rtn(group_size=-1), torch.float16, {}),
    "act-order": (act_order, torch.float16, {}),
    "batch-invariant": (rtn(), torch.float16, {"batch_invariant": True}),
}


def check(name: str, call: Call, x: torch.Tensor, q: xgemm.QuantizedWeight) -> None:
    y = call()
    assert isinstance(y, torch.Tensor)
    rows = slice(None, None, max(1, len(x) // CHECKED_ROWS))
    checked(name, error_ratio(y[rows], w4a16(x[rows], q), w4a16_bound(x[rows], q)))


def measure(n: int, k: int, rows: list[int], device: str) -> dict[int, dict[str, float]]:
    """Seconds of each format, for each M."""
    w = torch.randn(n, k, device=device)
    made = {name: make(w) for name, (make, _, _) in FORMATS.items()}
    packed = {name: xgemm.pack(q) for name, q in made.items()}
    found = {}
    for m in rows:
        x = torch.randn(m, k, device=device)
        calls: dict[str, Call] = {}
        for name, (_, dtype, options) in FORMATS.items():
            calls[name] = partial(xgemm.linear, x.to(dtype), packed[name], **options)
            check(name, calls[name], x.to(dtype), made[name])
        found[m] = time_calls(calls, device)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--layers", default="8b", help=f"of {', '.join(LAYERS)}, by commas")
    parser.add_argument("--rows", default="1,4,16,32,64,128,512,2048", help="M, by commas")
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args()
    rows = [int(m) for m in options.rows.split(",")]
    ratios: dict[tuple[int, str], list[float]] = {}
    print("| layer | M | plain, us |" + "".join(f" {name} |" for name in FORMATS if name != PLAIN))
    print("|---|---|" + "---|" * len(FORMATS))
    for group in options.layers.split(","):
        for layer, (n, k) in LAYERS[group].items():
            for m, seconds in measure(n, k, rows, options.device).items():
                line = f"| {layer} | {m} | {seconds[PLAIN] * 1e6:.1f} |"
                for name in FORMATS:
                    if name != PLAIN:
                        ratio = seconds[name] / seconds[PLAIN]
                        ratios.setdefault((m, name), []).append(ratio)
                        line += f" {ratio:.2f} |"
                print(line, flush=True)
    for what, of in (("geometric mean", geometric_mean), ("most", max)):
        for m in rows:
            values = (of(ratios[m, name]) for name in FORMATS if name != PLAIN)
            print(f"| {what} | {m} | |" + "".join(f" {value:.2f} |" for value in values))


if __name__ == "__main__":
    with torch.inference_mode():
        main()
