"""Where the host's time of a decode step goes: transformers, torch, or xgemm.

    python benchmarks/profile_decode.py [--layers 32] [--hidden 4096] [--device cuda]

One token of a Llama-3-8B-shaped model (random weights, bf16), eagerly, as `generate` calls it:
under no_grad, with a growing cache. First the time of a step with torch's linears, with 4-bit
ones, with those fused, and with linears that cost nothing: what is left then is not theirs. Then
the shares of a step's Python by package, from cProfile, which makes each call dearer: they are
shares, not times. On a GPU, last, the step that `accelerate_generation` records (layers not fused):
the time of a replay at each count of --rows, and at the first of them the shares of its kernels,
from torch's profiler.
"""

from __future__ import annotations

import argparse
import copy
import cProfile
import pstats
import time
from statistics import median
from typing import Any

import torch
from bench_generate import llama
from torch import nn

import xgemm
from xgemm.hf.decode import without_linears
from xgemm.hf.recorded_step import RecordedStep

TURNS = 9
IN_A_ROW = 4
PACKAGES = ("xgemm", "transformers", "torch")
REPLAYS = 32  # of a recorded step in a row: new tokens, for which the cache has room
# Of a replay's kernels, by a part of their names; the first that fits.
KERNELS = {
    "4-bit linears": ("w4a16",),
    "16-bit linears": ("nvjet", "gemm", "gemv", "cutlass", "splitKreduce"),
    "attention": ("_attend", "_join", "fmha", "flash"),
    "norms": ("rms_norm",),
    "rotary, cache, SiLU": ("_rotate", "_append", "_silu_mul"),
    "residual additions": ("CUDAFunctor_add", "CUDAFunctorOnSelf_add"),
}


def wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


class Step:
    """The next token of one sequence, over and over."""

    def __init__(self, model: Any, device: str) -> None:
        self.model, self.device = model, device
        prompt = torch.randint(1, 128000, (1, 128), device=device)
        self.cache = model(prompt, use_cache=True).past_key_values
        self.token = torch.ones(1, 1, dtype=torch.long, device=device)

    def __call__(self) -> None:
        self.model(self.token, past_key_values=self.cache, use_cache=True, logits_to_keep=1)

    def seconds(self) -> float:
        """Of one step: the mean of a few in a row, as a generation has them."""
        self()
        wait(self.device)
        start = time.perf_counter()
        for _ in range(IN_A_ROW):
            self()
        wait(self.device)
        return (time.perf_counter() - start) / IN_A_ROW


class Replayed:
    """The step that accelerate_generation records, for `rows` sequences that end a cache."""

    def __init__(self, model: Any, rows: int, length: int, device: str) -> None:
        """length: positions of the cache, all of which are read; the last REPLAYS are written."""
        self.model, self.device = model, device
        prompt = torch.randint(1, 128000, (rows, length - REPLAYS), device=device)
        self.prompt = model(prompt, use_cache=True, logits_to_keep=1).past_key_values
        layers = model.config.num_hidden_layers
        self.step = RecordedStep(layers, rows, length, torch.device(device))
        self.tokens = torch.ones(rows, dtype=torch.long, device=device)
        self.step.start(self.prompt, None)
        self.step.record(model)

    def run(self) -> None:
        """REPLAYS steps, from the prompt's end to the cache's."""
        for _ in range(REPLAYS):
            self.step(self.model, self.tokens)

    def seconds(self) -> float:
        """Of one step, in a row with the others."""
        self.step.start(self.prompt, None)
        wait(self.device)
        start = time.perf_counter()
        self.run()
        wait(self.device)
        return (time.perf_counter() - start) / REPLAYS

    def kernels(self) -> dict[str, float]:
        """The part of a replay's time on the GPU that each kind of kernel takes."""
        self.step.start(self.prompt, None)
        wait(self.device)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            self.run()
            wait(self.device)
        taken: dict[str, float] = {}
        for event in profile.key_averages():
            if event.device_type == torch.autograd.DeviceType.CUDA:
                kind = kind_of(event.key)
                taken[kind] = taken.get(kind, 0.0) + event.self_device_time_total
        whole = sum(taken.values())
        return {kind: part / whole for kind, part in taken.items()}


def kind_of(kernel: str) -> str:
    for kind, parts in KERNELS.items():
        if any(part in kernel for part in parts):
            return kind
    return "the rest"


def package_of(file: str) -> str:
    for name in PACKAGES:
        if f"/{name}/" in file:
            return name
    return "other"


def shares(step: Step) -> dict[str, float]:
    """The part of a step's time that each package's functions take themselves.

    A function in C is its caller's: torch's when torch's Python called it, xgemm's for its ops.
    """
    profile = cProfile.Profile()
    profile.enable()
    for _ in range(TURNS):
        step()
    profile.disable()
    wait(step.device)
    taken: dict[str, float] = {}
    for (file, _, _), (_, _, own, _, callers) in pstats.Stats(profile).stats.items():  # type: ignore[attr-defined]
        if file != "~":
            taken[package_of(file)] = taken.get(package_of(file), 0.0) + own
            continue
        for (caller, _, _), (_, _, part, _) in callers.items():
            taken[package_of(caller)] = taken.get(package_of(caller), 0.0) + part
    whole = sum(taken.values())
    return {name: taken.get(name, 0.0) / whole for name in (*PACKAGES, "other")}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--hidden", type=int, default=4096)
    parser.add_argument("--rows", default="1,16", help="of the recorded step, by commas")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        raise SystemExit("profile_decode: torch sees no CUDA GPU; --device cpu profiles the host")
    torch.manual_seed(0)
    dense = llama(options.layers, options.hidden, options.device)
    packed = xgemm.quantize(copy.deepcopy(dense), group_size=128)
    fused = xgemm.fuse(copy.deepcopy(packed))
    linears = [name for name, m in dense.named_modules() if type(m) is nn.Linear]
    names = [name for name in linears if name != "lm_head"]
    free = without_linears(copy.deepcopy(dense), names)
    models = {
        "torch bf16": dense,
        "xgemm W4": packed,
        "xgemm W4, fused": fused,
        "linears free": free,
    }
    with torch.no_grad():
        # cuDNN's attention plans each new length of the cache, a millisecond a layer: whichever
        # model came first would pay for all.
        first = Step(dense, options.device)
        for _ in range((TURNS + 2) * (IN_A_ROW + 1) + TURNS):
            first()
        steps = {name: Step(model, options.device) for name, model in models.items()}
        times: dict[str, list[float]] = {name: [] for name in steps}
        for turn in range(TURNS + 2):
            for name, step in steps.items():
                seconds = step.seconds()
                if turn >= 2:
                    times[name].append(seconds)
        print(f"{'a step of':<18}{'ms':>8}   shares of its Python: {', '.join(PACKAGES)}, other")
        for name, step in steps.items():
            parts = "  ".join(f"{share:.0%}" for share in shares(step).values())
            print(f"{name:<18}{median(times[name]) * 1e3:>8.2f}   {parts}")
        if options.device == "cuda":
            show_replays(packed, [int(rows) for rows in options.rows.split(",")])


def show_replays(model: nn.Module, counts: list[int]) -> None:
    for rows in counts:
        replayed = Replayed(model, rows, 512, "cuda")
        times = [replayed.seconds() for _ in range(TURNS)]
        print(f"a replay of the recorded step, {rows} rows: {median(times) * 1e3:.2f} ms")
        if rows == counts[0]:
            found = sorted(replayed.kernels().items(), key=lambda item: -item[1])
            print("its kernels: " + ", ".join(f"{kind} {share:.0%}" for kind, share in found))


if __name__ == "__main__":
    main()
