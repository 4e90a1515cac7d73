"""Loads one set of Llama-3-8B-shaped weights from xgemm's, GPTQ, AWQ and other directories.

    python benchmarks/bench_checkpoints.py [--layers 32] [--directory DIR] [--output times.json]

Random weights in bf16, quantized by RTN with zero points, in groups of 128, saved, and converted.
Of each directory: seconds to convert and to load, memory while loading, and tokens/s of `generate`
after `accelerate_generation`, in turns. All must be loaded to the same bits. Needs a GPU,
transformers and safetensors, and 6 GB of disk for each directory; `--layers` and `--device cpu`
make it small.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch
from bench_generate import llama, seconds

import xgemm
from xgemm.hf import convert
from xgemm.hf.generation import accelerate_generation, plain_generation

FORMATS = ("gptq", "awq", "compressed-tensors")
TURNS = 5


def make(directory: Path, layers: int, hidden: int, device: str) -> dict[str, dict[str, float]]:
    """Write the directories; seconds to convert each."""
    model = llama(layers, hidden, device)
    xgemm.quantize(model, group_size=128, symmetric=False)
    xgemm.save(model, directory / "xgemm")
    found: dict[str, dict[str, float]] = {"xgemm": {}}
    for to in FORMATS:
        start = time.perf_counter()
        convert(directory / "xgemm", directory / to, to)
        found[to] = {"convert_s": time.perf_counter() - start}
    return found


def load(path: Path, device: str) -> tuple[Any, dict[str, float]]:
    """The model, and what loading it took."""
    if device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
    start = time.perf_counter()
    model: Any = xgemm.load(path, device=device)
    taken = {"load_s": time.perf_counter() - start}
    if device == "cuda":
        taken["load_peak_gb"] = (torch.cuda.max_memory_allocated() - before) / 1e9
        taken["model_gb"] = (torch.cuda.memory_allocated() - before) / 1e9
    return model, taken


def check_same(name: str, model: Any, expected: Any) -> None:
    """ValueError where a tensor of two models differs in a bit."""
    state = expected.state_dict()
    for key, tensor in model.state_dict().items():
        if tensor.dtype != state[key].dtype or not torch.equal(tensor, state[key]):
            raise ValueError(f"{name}: {key} is not that of xgemm's own directory")


def measure(models: dict[str, Any], rows: int, prompt: int, new: int, device: str) -> Any:
    """Medians of tokens/s after the first token, in turns."""
    ids = torch.randint(1, 128000, (rows, prompt), device=device)
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "do_sample": False}
    speeds: dict[str, list[float]] = {name: [] for name in models}
    for turn in range(TURNS + 1):  # the first turn does not count
        for name, model in models.items():
            accelerate_generation(model)
            model.generate(**inputs, max_new_tokens=2)
            first = seconds(lambda model=model: model.generate(**inputs, max_new_tokens=1), device)
            whole = seconds(
                lambda model=model: model.generate(**inputs, max_new_tokens=new), device
            )
            if turn:
                speeds[name].append(rows * (new - 1) / (whole - first))
            plain_generation(model)
    return {name: median(found) for name, found in speeds.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rows", type=int, default=1, help="sequences at once")
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--hidden", type=int, default=4096)
    parser.add_argument("--prompt", type=int, default=128, help="tokens of the prompt")
    parser.add_argument("--new", type=int, default=64, help="tokens to generate")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--directory", type=Path, help="where the directories go, and stay")
    parser.add_argument("--output", type=Path, help="where the numbers go, as JSON")
    options = parser.parse_args()
    where = torch.cuda.get_device_name() if options.device == "cuda" else "CPU"
    print(f"{where}, torch {torch.__version__}, {options.layers} layers of {options.hidden}")
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as scratch:
        directory = options.directory or Path(scratch)
        records = make(directory, options.layers, options.hidden, options.device)
        models = {}
        for name, record in records.items():
            models[name], taken = load(directory / name, options.device)
            record.update(taken)
            check_same(name, models[name], models["xgemm"])
    sizes = (options.rows, options.prompt, options.new, options.device)
    for name, speed in measure(models, *sizes).items():
        records[name]["tokens_per_s"] = speed
    base = records["xgemm"]["tokens_per_s"]
    titles = ("convert, s", "load, s", "peak, GB", "model, GB", "tokens/s", "x xgemm")
    print(" " * 20 + "".join(f"{title:>12}" for title in titles))
    for name, record in records.items():
        keys = ("convert_s", "load_s", "load_peak_gb", "model_gb", "tokens_per_s")
        cells = [f"{record[key]:>12.2f}" if key in record else f"{'':>12}" for key in keys]
        print(f"{name:20}{''.join(cells)}{record['tokens_per_s'] / base:>11.3f}x")
    if options.output:
        report = {"device": where, "torch": torch.__version__, "records": records}
        options.output.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
