"""Times a LoRA training step of a Llama-3-8B-shaped model over 4-bit weights, and over bf16 ones.

    python benchmarks/bench_qlora.py [--batch 1] [--seq 2048] [--layers 32] [--rank 16]

Random weights, made a layer at a time on the device: no model is ever whole in a wider type than
its own. The bf16 model holds the dequantized weights of the 4-bit one, so their losses agree;
bitsandbytes' nf4 quantizes the same weights, where bitsandbytes can be imported. A step is forward,
backward and AdamW on the adapters (peft's, on every linear but the head) under bf16 autocast. All
models stay on the device and take turns; the median of each is reported. The peak is what a step
needs beside the other models. The last line is the same as JSON.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cache
from statistics import median
from typing import Any

import peft
import torch
import transformers
from torch import nn
from transformers.models.llama import modeling_llama

import xgemm
from xgemm.nn import QuantLinear

GROUP_SIZE = 128
DTYPE = torch.bfloat16
TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


@dataclass(frozen=True)
class Shape:
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    vocabulary: int


SHAPES = {
    "8b": Shape(4096, 14336, 32, 32, 8, 128256),
    "tiny": Shape(128, 256, 2, 4, 2, 320),
}


@cache
def packed_weight(n: int, k: int, device: str) -> xgemm.PackedWeight:
    """The 4-bit weight of every layer of this shape."""
    generator = torch.Generator(device).manual_seed(n * 31 + k)
    w = torch.randn(n, k, device=device, generator=generator).mul_(0.5 / k**0.5)
    return xgemm.pack(xgemm.quantize_weight(w.to(DTYPE), group_size=GROUP_SIZE))


def make_xgemm(n: int, k: int, device: str) -> nn.Module:
    packed = packed_weight(n, k, device)
    own = xgemm.PackedWeight(**{**vars(packed), "qweight": packed.qweight.clone()})
    return QuantLinear.from_packed(own)


def make_bf16(n: int, k: int, device: str) -> nn.Module:
    layer = nn.Linear(k, n, bias=False, device="meta")
    weight = packed_weight(n, k, device).dequantize(DTYPE)
    layer.weight = nn.Parameter(weight, requires_grad=False)
    return layer


def make_nf4(n: int, k: int, device: str) -> nn.Module:
    import bitsandbytes

    layer = bitsandbytes.nn.Linear4bit(
        k, n, bias=False, compute_dtype=DTYPE, quant_type="nf4", device="meta"
    )
    weight = packed_weight(n, k, device).dequantize(DTYPE)
    layer.weight = bitsandbytes.nn.Params4bit(
        weight, requires_grad=False, quant_type="nf4", module=layer
    ).to(device)  # where it is quantized
    return layer


MAKERS: dict[str, Callable[[int, int, str], nn.Module]] = {
    "xgemm": make_xgemm,
    "bf16": make_bf16,
    "nf4": make_nf4,
}


def base_model(shape: Shape, method: str, device: str) -> Any:
    """A Llama whose linears, but for the head, are `method`'s, and whose other weights are bf16."""
    config = transformers.LlamaConfig(
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        vocab_size=shape.vocabulary,
        max_position_embeddings=8192,
        tie_word_embeddings=False,
        use_cache=False,
    )
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(config)
    with torch.device(device):
        model.model.rotary_emb = modeling_llama.LlamaRotaryEmbedding(config=config)
    for name, module in list(model.named_modules()):
        if isinstance(module, nn.Linear) and name != "lm_head":
            made = MAKERS[method](module.out_features, module.in_features, device)
            model.set_submodule(name, made)
    generator = torch.Generator(device).manual_seed(0)
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            if parameter.is_meta:
                data = torch.ones(parameter.shape, device=device, dtype=DTYPE)
                if data.dim() > 1:
                    data.normal_(std=0.02, generator=generator)
                setattr(module, name, nn.Parameter(data, requires_grad=False))
    return model


class Step:
    """A training step of one model; calling it returns the loss."""

    def __init__(self, method: str, options: argparse.Namespace) -> None:
        shape = SHAPES[options.shape]
        if options.layers:
            shape = Shape(**{**asdict(shape), "layers": options.layers})
        model = base_model(shape, method, options.device)
        if method == "nf4":
            model.is_loaded_in_4bit = True  # peft asks before it looks for bitsandbytes' layers
        if options.checkpointing:
            model.gradient_checkpointing_enable({"use_reentrant": False})
        torch.manual_seed(0)
        config = peft.LoraConfig(
            r=options.rank, lora_alpha=2 * options.rank, target_modules=TARGETS
        )
        self.model = peft.get_peft_model(model, config).train()
        self.trained = [p for p in self.model.parameters() if p.requires_grad]
        self.optimizer = torch.optim.AdamW(self.trained, lr=1e-4)
        self.device_type = torch.device(options.device).type
        size = (options.batch, options.seq)
        tokens = torch.randint(shape.vocabulary, size, generator=torch.Generator().manual_seed(1))
        self.tokens = tokens.to(options.device)

    def __call__(self) -> torch.Tensor:
        with torch.autocast(self.device_type, dtype=DTYPE):
            loss: torch.Tensor = self.model(input_ids=self.tokens, labels=self.tokens).loss
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.detach()


@dataclass
class Result:
    method: str
    milliseconds: float = 0.0
    least: float = 0.0
    most: float = 0.0
    tokens_per_second: float = 0.0
    weights_gib: float = 0.0  # of the whole model, adapters included
    peak_gib: float | None = None  # of a step, weights included; None on the CPU
    trainable: int = 0
    first_loss: float = 0.0  # before any update: the adapters are 0


def synchronize(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def prepare(method: str, options: argparse.Namespace) -> tuple[Step, Result]:
    """The model, after two steps, and what memory it takes."""
    on_gpu = options.device.startswith("cuda")
    gc.collect()
    before = torch.cuda.memory_allocated() if on_gpu else 0
    step = Step(method, options)
    held = [*step.model.parameters(), *step.model.buffers()]
    result = Result(method)
    result.weights_gib = sum(tensor.nbytes for tensor in held) / 2**30
    if on_gpu:  # nf4 holds scales outside of its parameters
        result.weights_gib = (torch.cuda.memory_allocated() - before) / 2**30
    result.trainable = sum(parameter.numel() for parameter in step.trained)
    result.first_loss = float(step())  # makes the optimizer's state
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    step()
    synchronize(options.device)
    if on_gpu:
        result.peak_gib = (torch.cuda.max_memory_allocated() - before) / 2**30
    return step, result


def measure(methods: list[str], options: argparse.Namespace) -> list[Result]:
    for n, k in {(m.out_features, m.in_features) for m in linears(options)}:
        packed_weight(n, k, options.device)  # shared: not counted as any model's
    prepared = {method: prepare(method, options) for method in methods}
    seconds: dict[str, list[float]] = {method: [] for method in methods}
    for turn in range(options.rounds):
        for method in methods[turn % len(methods) :] + methods[: turn % len(methods)]:
            synchronize(options.device)
            start = time.perf_counter()
            prepared[method][0]()
            synchronize(options.device)
            seconds[method].append(time.perf_counter() - start)
    results = [result for _, result in prepared.values()]
    for result in results:
        times = seconds[result.method]
        result.milliseconds = median(times) * 1e3
        result.least, result.most = min(times) * 1e3, max(times) * 1e3
        result.tokens_per_second = options.batch * options.seq / median(times)
    return results


def linears(options: argparse.Namespace) -> list[nn.Linear]:
    """One decoder layer's linears, without data."""
    shape = SHAPES[options.shape]
    kv = shape.hidden // shape.heads * shape.kv_heads
    sizes = [(shape.hidden, shape.hidden), (kv, shape.hidden)]
    sizes += [(shape.intermediate, shape.hidden), (shape.hidden, shape.intermediate)]
    return [nn.Linear(k, n, device="meta") for n, k in sizes]


def report(results: list[Result]) -> None:
    print("| model | ms a step (least .. most) | tokens/s | weights GiB | peak GiB | first loss |")
    print("|---|---|---|---|---|---|")
    for r in results:
        peak = "-" if r.peak_gib is None else f"{r.peak_gib:.2f}"
        print(
            f"| {r.method} | {r.milliseconds:.1f} ({r.least:.1f} .. {r.most:.1f}) |"
            f" {r.tokens_per_second:.0f} | {r.weights_gib:.2f} | {peak} | {r.first_loss:.4f} |"
        )


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--shape", default="8b", choices=SHAPES)
    parser.add_argument("--layers", type=int, default=0, help="decoder layers; 0: the shape's own")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--seq", type=int, default=2048)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=7, help="timed steps of each model")
    parser.add_argument("--methods", default="xgemm,bf16,nf4", help="separated by commas")
    parser.add_argument("--no-checkpointing", dest="checkpointing", action="store_false")
    return parser.parse_args()


def main() -> None:
    options = parse()
    methods = options.methods.split(",")
    for method in methods:
        if method not in MAKERS:
            raise SystemExit(f"--methods: expected some of {', '.join(MAKERS)}, got {method!r}")
    missing = importlib.util.find_spec("bitsandbytes") is None
    if "nf4" in methods and missing:
        print("nf4: left out, bitsandbytes is not installed")
        methods.remove("nf4")
    on_gpu = options.device.startswith("cuda")
    machine = torch.cuda.get_device_name() if on_gpu else options.device
    setting = (
        f"{machine}, torch {torch.__version__}, transformers {transformers.__version__}, peft"
        f" {peft.__version__}; {options.shape}, batch {options.batch} x {options.seq}, rank"
        f" {options.rank}, checkpointing {'on' if options.checkpointing else 'off'}"
    )
    print(setting, flush=True)
    results = measure(methods, options)
    report(results)
    print(json.dumps({"setting": setting, "results": [asdict(r) for r in results]}))


if __name__ == "__main__":
    main()
