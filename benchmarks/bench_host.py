"""Times what the host needs to call a product, beside torch's own: the thread's CPU time a call.

python benchmarks/bench_host.py [--device cuda]
"""

from __future__ import annotations

import argparse
from functools import partial

import torch

import xgemm
from xgemm.bench.timing import Call, time_host
from xgemm.nn import QuantLinear

SIZES = (
    *((1, 4096, 4096), (16, 512, 512), (64, 64, 64), (64, 4096, 4096), (256, 256, 256)),
    *((64, 64, 4096), (65, 67, 69)),
)
LINEARS = tuple((m, 1024, 1024) for m in (1, 16, 64, 512))


def dense(m: int, n: int, k: int, device: str) -> tuple[Call, Call]:
    dtype = torch.float16 if device == "cuda" else torch.float32
    a, b = (
        torch.randn(m, k, device=device).to(dtype),
        torch.randn(n, k, device=device).to(dtype).t(),
    )
    return partial(torch.ops.xgemm.mul.default, a, b), partial(torch.mm, a, b)


def linears(m: int, n: int, k: int, device: str) -> dict[str, tuple[Call, Call]]:
    """The function and the module, over a 4-bit weight, without and with zero points."""
    dtype = torch.float16 if device == "cuda" else torch.float32
    w, x = torch.randn(n, k, device=device), torch.randn(m, k, device=device).to(dtype)
    found: dict[str, tuple[Call, Call]] = {}
    for name, symmetric in (("", True), (", zeros", False)):
        p = xgemm.pack(xgemm.quantize_weight(w, symmetric=symmetric))
        theirs = torch.nn.Linear(k, n, bias=False, device=device, dtype=dtype)
        found[f"linear{name}"] = (
            partial(xgemm.linear, x, p),
            partial(torch.nn.functional.linear, x, theirs.weight),
        )
        found[f"QuantLinear{name}"] = partial(QuantLinear.from_packed(p), x), partial(theirs, x)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--device", default="cuda")
    device = parser.parse_args().device
    print("| op | MxNxK | xgemm, us | torch, us | times torch's |")
    print("|---|---|---|---|---|")
    cases = {("mul", *size): dense(*size, device) for size in SIZES}
    for size in LINEARS:
        cases |= {(name, *size): pair for name, pair in linears(*size, device).items()}
    for (name, m, n, k), (ours, theirs) in cases.items():
        found = time_host({"xgemm": ours, "torch": theirs})
        line = f"| {name} | {m}x{n}x{k} | {found['xgemm'] * 1e6:.2f} | {found['torch'] * 1e6:.2f} |"
        print(f"{line} {found['xgemm'] / found['torch']:.2f} |", flush=True)


if __name__ == "__main__":
    main()
