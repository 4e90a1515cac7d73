"""Times `generate` of a model that is split over the GPUs of a host, beside the whole one.

    torchrun --nproc-per-node 2 benchmarks/bench_parallel.py [--rows 1,8,32] [--layers 32]

A Llama-3-8B-shaped model with random 4-bit weights (RTN, groups of 128), bf16. Whole on each GPU,
then after `xgemm.distributed.parallelize`; by plain `generate` and after `accelerate_generation`,
in turns. Tokens/s are those of the whole batch, after the first token; medians. The first tokens
of both are compared: the share of the eight likeliest that are the same, and the largest
difference of a log probability. Needs as many GPUs as processes, over NCCL.
"""

from __future__ import annotations

import argparse
import copy
import os
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from bench_generate import llama, seconds
from torch.distributed.device_mesh import init_device_mesh

import xgemm
from xgemm.distributed import parallelize
from xgemm.hf.generation import accelerate_generation, plain_generation

TURNS = 3


def speed(model: Any, rows: int, new: int, way: str) -> float:
    """Tokens/s of decoding."""
    ids = torch.arange(rows * 128, device="cuda").view(rows, 128) * 31 % 128000 + 1
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "do_sample": False}
    if way == "accelerated":
        accelerate_generation(model)
    model.generate(**inputs, max_new_tokens=2)

    def generate(count: int) -> float:
        return seconds(lambda: model.generate(**inputs, max_new_tokens=count), "cuda")

    found = [rows * (new - 1) / (generate(new) - generate(1)) for _ in range(TURNS)]
    if way == "accelerated":
        plain_generation(model)
    return median(found)


def compare(whole: Any, split: Any) -> tuple[float, float]:
    """Share of the eight likeliest next tokens that both have; largest difference of one."""
    ids = torch.arange(16 * 40, device="cuda").view(16, 40) * 17 % 128000 + 1
    with torch.no_grad():
        a, b = (m(ids).logits[:, -1].float().log_softmax(-1) for m in (whole, split))
    top, other = a.topk(8).indices, b.topk(8).indices
    shared = (top[:, :, None] == other[:, None, :]).any(-1)
    gap = (a.gather(1, top) - b.gather(1, top)).abs()[shared]
    return shared.float().mean().item(), gap.max().item()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rows", default="1,8,32", help="sequences at once, by commas")
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--hidden", type=int, default=4096)
    parser.add_argument("--new", type=int, default=64, help="tokens to generate")
    parser.add_argument("--ways", default="plain,accelerated", help="of generate, by commas")
    options = parser.parse_args()
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    mesh = init_device_mesh("cuda", (dist.get_world_size(),))
    torch.manual_seed(0)  # the same model on each rank
    whole = xgemm.quantize(llama(options.layers, options.hidden, "cuda"), group_size=128)
    split = parallelize(copy.deepcopy(whole), mesh)
    shared, gap = compare(whole, split)
    first = dist.get_rank() == 0
    if first:
        name = f"{dist.get_world_size()} x {torch.cuda.get_device_name()}"
        print(f"{name}, torch {torch.__version__}, {options.layers} layers of {options.hidden}")
        print(f"likeliest tokens shared: {shared:.1%}; largest difference {gap:.3f}")
        print(f"{'way':14}{'rows':>6}{'whole, tokens/s':>18}{'split, tokens/s':>18}{'x':>7}")
    for way in options.ways.split(","):
        for rows in map(int, options.rows.split(",")):
            found = [speed(model, rows, options.new, way) for model in (whole, split)]
            if first:
                ratio = found[1] / found[0]
                print(
                    f"{way:14}{rows:>6}{found[0]:>18.1f}{found[1]:>18.1f}{ratio:>7.2f}", flush=True
                )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
