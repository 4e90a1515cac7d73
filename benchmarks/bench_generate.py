"""Times transformers' `generate` of a Llama-3-8B-shaped model, as users call it.

    python benchmarks/bench_generate.py [--rows 1,8,16] [--layers 32] [--ways plain,accelerated]

Random weights in bf16. torch's linears, xgemm's 4-bit ones (RTN, groups of 128), and those with q,
k, v and gate, up fused; each by plain `generate` and after `accelerate_generation`, in turns.
Tokens/s count the tokens after the first: a call of one token is timed apart, and is the time to
the first token. Needs a GPU and transformers; `--layers` and `--device cpu` make it small.
"""

from __future__ import annotations

import argparse
import copy
import json
import time
from collections.abc import Callable
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import nn

import xgemm
from xgemm.hf.generation import accelerate_generation, plain_generation

TURNS = 3
WAYS = ("plain", "accelerated")


def llama(layers: int, hidden: int, device: str) -> Any:
    """Random weights; of 8B's proportions at any width."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=hidden,
        intermediate_size=hidden * 7 // 2,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 128,
        num_key_value_heads=max(hidden // 512, 1),
        vocab_size=128256,
        max_position_embeddings=8192,
        rope_theta=500000.0,
        tie_word_embeddings=False,
    )
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device(device):
            model = LlamaForCausalLM(config).eval()
    finally:
        torch.set_default_dtype(before)
    model.generation_config.pad_token_id = 0
    model.generation_config.eos_token_id = None
    return model


def seconds(call: Callable[[], Any], device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    call()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def measure(
    models: dict[str, nn.Module], ways: list[str], rows: int, prompt: int, new: int, device: str
) -> dict[str, dict[str, Any]]:
    """Of each way: seconds of the first call, then medians of the first token's and of tokens/s."""
    ids = torch.randint(1, 128000, (rows, prompt), device=device)
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "do_sample": False}

    def generate(model: Any, count: int) -> Callable[[], Any]:
        return lambda: model.generate(**inputs, max_new_tokens=count)

    found: dict[tuple[str, str], dict[str, Any]] = {}
    for turn in range(TURNS + 1):  # the first turn does not count
        for name, way in product(models, ways):
            model, fast = models[name], way == "accelerated"
            if fast:
                accelerate_generation(model)
            first_call = seconds(generate(model, 2), device)
            first = seconds(generate(model, 1), device)
            whole = seconds(generate(model, new), device)
            if turn == 0:
                found[name, way] = {"first_call_s": first_call, "first_s": [], "tokens_per_s": []}
            else:
                found[name, way]["first_s"].append(first)
                found[name, way]["tokens_per_s"].append(rows * (new - 1) / (whole - first))
            if fast:  # its graphs go, and plain generate is plain again
                plain_generation(model)
    return {
        f"{name}, {way}": {
            "rows": rows,
            "first_call_s": of["first_call_s"],
            "first_token_s": median(of["first_s"]),
            "tokens_per_s": median(of["tokens_per_s"]),
        }
        for (name, way), of in found.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rows", default="1,8,16", help="sequences at once, separated by commas")
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--hidden", type=int, default=4096)
    parser.add_argument("--prompt", type=int, default=128, help="tokens of the prompt")
    parser.add_argument("--new", type=int, default=64, help="tokens to generate")
    parser.add_argument("--ways", default=",".join(WAYS), help="of generate, by commas")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--output", type=Path, help="where the numbers go, as JSON")
    options = parser.parse_args()
    ways = options.ways.split(",")
    if unknown := [way for way in ways if way not in WAYS]:
        parser.error(f"--ways must be of {', '.join(WAYS)}, got {unknown[0]!r}")
    where = torch.cuda.get_device_name() if options.device == "cuda" else "CPU"
    print(f"{where}, torch {torch.__version__}, {options.layers} layers of {options.hidden}")
    torch.manual_seed(0)
    dense = llama(options.layers, options.hidden, options.device)
    packed = llama(options.layers, options.hidden, options.device)
    xgemm.quantize(packed, group_size=128)
    fused = xgemm.fuse(copy.deepcopy(packed))
    models = {"torch bf16": dense, "xgemm W4": packed, "xgemm W4 fused": fused}
    records = []
    titles = ("rows", "tokens/s", f"x {ways[0]} torch", "first token, s", "first call, s")
    print(" " * 30 + "{:>5}{:>10}{:>21}{:>16}{:>15}".format(*titles))
    for rows in map(int, options.rows.split(",")):
        found = measure(models, ways, rows, options.prompt, options.new, options.device)
        base = found[f"torch bf16, {ways[0]}"]["tokens_per_s"]
        for name, of in found.items():
            records.append({"name": name, **of})
            print(
                f"{name:30}{rows:>5}{of['tokens_per_s']:>10.1f}{of['tokens_per_s'] / base:>20.2f}x"
                f"{of['first_token_s']:>16.3f}{of['first_call_s']:>15.2f}"
            )
    if options.output:
        report = {"device": where, "torch": torch.__version__, "records": records}
        options.output.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
