"""How long GPTQ takes for a Llama of 8B's shape, and how much memory, on random weights.

    python benchmarks/bench_gptq.py [--layers 4] [--samples 128] [--length 2048] [--output FILE]

The model is built in bf16 with `--layers` of its 32 blocks, on the GPU; or with `--home cpu` on the
CPU, from where blocks go to the GPU one at a time. What lies between the ends of two blocks is the
time of a block; the whole model is what came before the first block's end plus 31 blocks. Needs a
CUDA device and transformers.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import time
from pathlib import Path
from typing import Any

import torch
import transformers

import xgemm

BLOCKS = 32  # of Llama-3-8B
DRAWN = 1_000_003  # random values that all weights consist of; prime


def build(layers: int, home: str) -> Any:
    config = transformers.LlamaConfig(
        hidden_size=4096,
        intermediate_size=14336,
        num_hidden_layers=layers,
        num_attention_heads=32,
        num_key_value_heads=8,
        vocab_size=128256,
        max_position_embeddings=8192,
        rope_theta=500000.0,
        dtype=torch.bfloat16,
    )
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.to_empty(device=home)
    # transformers draws number by number in one thread: 8e9 of them take half an hour on a CPU.
    drawn = torch.empty(DRAWN, dtype=torch.bfloat16)
    drawn.normal_(std=config.initializer_range, generator=torch.Generator().manual_seed(0))
    drawn = drawn.to(home)
    with torch.no_grad():
        for offset, parameter in enumerate(model.parameters()):
            if parameter.dim() < 2:
                parameter.fill_(1)
            else:
                fill(parameter.flatten(), drawn.roll(offset))
    rotary = type(model.model.rotary_emb)(config)  # its tables are in no parameter
    model.model.rotary_emb = rotary.to(home)
    return model.eval()


def fill(flat: torch.Tensor, drawn: torch.Tensor) -> None:
    """`drawn` again and again, which is a prime number of values long: no two rows are the same."""
    whole = flat.numel() // drawn.numel()
    flat[: whole * drawn.numel()].view(whole, -1).copy_(drawn)
    rest = flat[whole * drawn.numel() :]
    rest.copy_(drawn[: rest.numel()])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--samples", type=int, default=128)
    parser.add_argument("--length", type=int, default=2048)
    parser.add_argument("--batch", type=int, default=4, help="samples a batch")
    parser.add_argument("--group-size", type=int, default=128)
    parser.add_argument("--act-order", default="static")
    parser.add_argument("--home", choices=("cuda", "cpu"), default="cuda", help="of the model")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    model = build(options.layers, options.home)
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, 128256, (options.samples, options.length), generator=generator)
    batches = [part.to(options.home) for part in tokens.split(options.batch)]
    torch.cuda.synchronize()
    held = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    ends: list[float] = []

    def progress(done: int, total: int, name: str) -> None:
        if done % 7 == 0:  # the layers of a block
            torch.cuda.synchronize()
            ends.append(time.perf_counter())

    started = time.perf_counter()
    xgemm.quantize(
        model,
        method="gptq",
        group_size=options.group_size,
        calibration=batches,
        options={"act_order": options.act_order},
        device="cuda",
        progress=progress,
    )
    torch.cuda.synchronize()
    seconds = time.perf_counter() - started
    blocks = [b - a for a, b in itertools.pairwise(ends[1:])]
    block = statistics.median(blocks) if blocks else float("nan")
    error = model.xgemm_report.error
    result = {
        "device": torch.cuda.get_device_name(),
        **{name: str(value) for name, value in vars(options).items()},
        "seconds": round(seconds, 2),
        "until the first block's end": round(ends[1] - started, 2),
        "seconds a block": [round(b, 2) for b in blocks],
        "32 blocks, extrapolated": round(ends[1] - started + (BLOCKS - 1) * block, 1),
        "GiB held before": round(held / 2**30, 2),
        "GiB at the peak": round(torch.cuda.max_memory_allocated() / 2**30, 2),
        "relative error of outputs": round(error.outputs, 4),
        "fallbacks": model.xgemm_report.fallbacks,
    }
    print(json.dumps(result, indent=1))
    if options.output is not None:
        options.output.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
