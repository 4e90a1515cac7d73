"""A checkpoint whose size shows, and the memory that a process takes for work on it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from foreign import gptq_config
from prepared import run_script
from safetensors.torch import save_file
from transformers import LlamaConfig

HIDDEN, INNER = 1024, 4096
LARGEST = HIDDEN * INNER  # codes of the largest layer, a byte each
SIZES = {
    **{f"self_attn.{part}_proj": (HIDDEN, HIDDEN) for part in "qkvo"},
    **{"mlp.gate_proj": (INNER, HIDDEN), "mlp.up_proj": (INNER, HIDDEN)},
    "mlp.down_proj": (HIDDEN, INNER),
}


def write_large(path: Path, blocks: int) -> int:
    """A Llama in GPTQ's format, 9.7 MB a block; bytes of its linears in fp16."""

    def gptq(n: int, k: int) -> dict[str, torch.Tensor]:
        return {
            "qweight": torch.randint(-(2**31), 2**31, (k // 8, n)).int(),
            "qzeros": torch.full((k // 32, n // 8), 0x77777777).int(),
            "scales": torch.ones(k // 32, n).half(),
            "g_idx": (torch.arange(k) // 32).int(),
        }

    return _write(path, blocks, gptq_config(), gptq)


def write_large_nf4(path: Path, blocks: int) -> int:
    """The same in bitsandbytes' nf4."""
    values = {"quant_type": "nf4", "blocksize": 64, "dtype": "float16"}

    def nf4(n: int, k: int) -> dict[str, torch.Tensor]:
        state = json.dumps({**values, "shape": [n, k]}).encode()
        return {
            "weight": torch.randint(0, 256, (n * k // 2, 1), dtype=torch.uint8),
            "weight.absmax": torch.rand(n * k // 64) / 100,
            "weight.quant_map": torch.linspace(-1, 1, 16),
            "weight.quant_state.bitsandbytes__nf4": torch.tensor(list(state), dtype=torch.uint8),
        }

    section = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
    return _write(path, blocks, section, nf4)


def _write(
    path: Path,
    blocks: int,
    section: dict[str, Any],
    tensors_of: Callable[[int, int], dict[str, torch.Tensor]],
) -> int:
    config = LlamaConfig(
        hidden_size=HIDDEN,
        intermediate_size=INNER,
        num_hidden_layers=blocks,
        num_attention_heads=8,
        vocab_size=64,
        architectures=["LlamaForCausalLM"],
        dtype="float16",
    )
    names = ("model.embed_tokens", "lm_head")
    tensors = {f"{name}.weight": torch.zeros(64, HIDDEN).half() for name in names}
    tensors["model.norm.weight"] = torch.ones(HIDDEN).half()
    for i in range(blocks):
        for norm in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"model.layers.{i}.{norm}.weight"] = torch.ones(HIDDEN).half()
        for layer, (n, k) in SIZES.items():
            name = f"model.layers.{i}.{layer}"
            tensors.update({f"{name}.{part}": t for part, t in tensors_of(n, k).items()})
    config.save_pretrained(path)
    values = json.loads((path / "config.json").read_text())
    values["quantization_config"] = section
    (path / "config.json").write_text(json.dumps(values))
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    return 2 * blocks * sum(n * k for n, k in SIZES.values())


_SCRIPT = """
import ctypes, sys, threading, time
import torch

torch.set_num_threads(1)
# malloc gives back what is freed at once: the peak is that of live tensors, in every run
M_MMAP_THRESHOLD, M_ARENA_MAX = -3, -8
for option, value in ((M_MMAP_THRESHOLD, 65536), (M_ARENA_MAX, 1)):
    assert ctypes.CDLL(None).mallopt(option, value) == 1
first, work, *argv = sys.argv[1:]

def anonymous():  # bytes of memory that no file backs
    lines = open("/proc/self/status").read().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith("RssAnon")).split()[1])

exec(first)
before, peak, over = anonymous(), 0, False

def watch():
    global peak
    while not over:
        peak = max(peak, anonymous())
        time.sleep(0.002)

thread = threading.Thread(target=watch)
thread.start()
exec(work)
over = True
thread.join()
print(peak - before, result)
"""


def peak_memory(first: str, work: str, *argv: object) -> tuple[int, int]:
    """(Bytes that `work` took at most beyond what was taken before it, its `result`).

    first, work: Python, of a process of its own; first is run before, for what is imported on the
        way. argv: what both find in `argv`.
    """
    found = run_script(_SCRIPT, first, work, *argv)
    assert found.returncode == 0, found.stderr
    peak, result = map(int, found.stdout.split()[-2:])
    return peak, result
