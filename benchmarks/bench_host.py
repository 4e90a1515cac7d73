"""Times what the host needs to call a product, beside torch's own: the thread's CPU time a call.

    python benchmarks/bench_host.py [--device cuda] [--mode grad]

--mode is what surrounds the calls, none of which needs a gradient: grad, no_grad, inference, or
several of them, by commas. The rows "gradient" are in grad mode whatever it says, with a gradient
wanted in x alone; the rows "autocast" are in that mode. On the CPU, in one thread, only
small problems are timed: in others the product hides the call.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from math import prod
from typing import Any

import torch

import xgemm
from xgemm.bench.timing import Call, time_host
from xgemm.nn import QuantLinear

SIZES = (
    *((1, 4096, 4096), (16, 512, 512), (64, 64, 64), (64, 4096, 4096), (256, 256, 256)),
    *((64, 64, 4096), (65, 67, 69), (1, 64, 64)),
)
LINEARS = (*((m, 1024, 1024) for m in (1, 16, 64, 512)), (1, 64, 64), (64, 64, 64))
DIFFERENTIATED = ((1, 1024, 1024), (64, 64, 64))
CPU_WORK = 1 << 20  # M * N * K of the largest problem on the CPU
Size = tuple[int, int, int]
Mode = Callable[[], AbstractContextManager[Any]]
MODES: dict[str, Mode] = {
    "grad": torch.enable_grad,
    "no_grad": torch.no_grad,
    "inference": torch.inference_mode,
}


def timed(sizes: tuple[Size, ...], device: str) -> list[Size]:
    return [size for size in sizes if device != "cpu" or prod(size) <= CPU_WORK]


def half_on_gpu(device: str) -> torch.dtype:
    return torch.float16 if device == "cuda" else torch.float32


def dense(m: int, n: int, k: int, device: str) -> tuple[Call, Call]:
    dtype = half_on_gpu(device)
    a, b = (
        torch.randn(m, k, device=device).to(dtype),
        torch.randn(n, k, device=device).to(dtype).t(),
    )
    return partial(torch.ops.xgemm.mul.default, a, b), partial(torch.mm, a, b)


def linears(m: int, n: int, k: int, device: str) -> dict[str, tuple[Call, Call]]:
    """The function and the module, over a 4-bit weight, without and with zero points."""
    dtype = half_on_gpu(device)
    w, x = torch.randn(n, k, device=device), torch.randn(m, k, device=device).to(dtype)
    found: dict[str, tuple[Call, Call]] = {}
    for name, symmetric in (("", True), (", zeros", False)):
        ours, theirs = layers(w, dtype, symmetric)
        found[f"linear{name}"] = (
            partial(xgemm.linear, x, ours.to_packed()),
            partial(torch.nn.functional.linear, x, theirs.weight),
        )
        found[f"QuantLinear{name}"] = partial(ours, x), partial(theirs, x)
    return found


def layers(
    w: torch.Tensor, dtype: torch.dtype, symmetric: bool = True
) -> tuple[QuantLinear, torch.nn.Linear]:
    """A 4-bit layer over the weight w [N, K], and torch's, neither of which is trained."""
    packed = xgemm.pack(xgemm.quantize_weight(w, symmetric=symmetric))
    theirs = torch.nn.Linear(w.shape[1], w.shape[0], bias=False, device=w.device, dtype=dtype)
    return QuantLinear.from_packed(packed), theirs.requires_grad_(False)


def backward(layer: torch.nn.Module, x: torch.Tensor, dy: torch.Tensor) -> None:
    layer(x).backward(dy)


def differentiated(
    m: int, n: int, k: int, device: str, mode: Mode
) -> dict[str, tuple[Call, Call, Mode]]:
    """A layer whose x wants a gradient, and one under autocast; with the mode of each."""
    dtype = half_on_gpu(device)
    ours, theirs = layers(torch.randn(n, k, device=device), dtype)
    x = torch.randn(m, k, device=device).to(dtype)
    wanted, dy = x.clone().requires_grad_(), torch.randn(m, n, device=device).to(dtype)

    def autocast() -> ExitStack:
        stack = ExitStack()
        stack.enter_context(mode())
        stack.enter_context(torch.autocast(device, torch.bfloat16))
        return stack

    grad = torch.enable_grad
    return {
        "gradient: forward": (partial(ours, wanted), partial(theirs, wanted), grad),
        "gradient: forward, backward": (
            partial(backward, ours, wanted, dy),
            partial(backward, theirs, wanted, dy),
            grad,
        ),
        "autocast": (partial(ours, x), partial(theirs, x), autocast),
    }


def compare(name: str, device: str) -> None:
    mode = MODES[name]
    print(f"| op, {name} mode | MxNxK | xgemm, us | torch, us | times torch's |")
    print("|---|---|---|---|---|")
    cases: dict[tuple[str, int, int, int], tuple[Call, Call, Mode]] = {
        ("mul", *size): (*dense(*size, device), mode) for size in timed(SIZES, device)
    }
    for size in timed(LINEARS, device):
        cases |= {(name, *size): (*pair, mode) for name, pair in linears(*size, device).items()}
    for size in timed(DIFFERENTIATED, device):
        found = differentiated(*size, device, mode)
        cases |= {(name, *size): case for name, case in found.items()}
    for (name, m, n, k), (ours, theirs, within) in cases.items():
        times = time_host({"xgemm": ours, "torch": theirs}, mode=within)
        line = f"| {name} | {m}x{n}x{k} | {times['xgemm'] * 1e6:.2f} | {times['torch'] * 1e6:.2f} |"
        print(f"{line} {times['xgemm'] / times['torch']:.2f} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--mode", default="inference", help=f"of {', '.join(MODES)}; by commas")
    options = parser.parse_args()
    modes = options.mode.split(",")
    if unknown := [mode for mode in modes if mode not in MODES]:
        parser.error(f"--mode must be one of {', '.join(MODES)}, got {unknown[0]!r}")
    if options.device == "cpu":
        torch.set_num_threads(1)
    for mode in modes:
        compare(mode, options.device)


if __name__ == "__main__":
    main()
