"""vLLM's engine with xgemm's kernels beside its own: tokens/s, time to the first token, start-up.

    python benchmarks/bench_vllm.py --shape 8b --kernels machete,xgemm,marlin --rows 1,8,32,128,256

Needs vLLM and a GPU. The model is a Llama of the shape, with random 4-bit weights
(compressed-tensors, symmetric, groups of 128), made in --folder. Each kernel is an engine of its
own, one after the other, with torch.compile and CUDA graphs as vLLM has them by default. "machete"
is vLLM's own choice on Hopper. Tokens/s are of decoding alone: what `--tokens` new tokens take
longer than one. Log probabilities of the first new token are compared with those of the first
engine.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

GROUP_SIZE = 128
VOCABULARY = 32768
# Llama 3's: hidden, intermediate, heads, key-value heads, layers.
SHAPES = {"8b": (4096, 14336, 32, 8, 32), "70b": (8192, 28672, 64, 8, 80)}
PROMPT = 128
HEAD_DIM = 128


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", choices=SHAPES, default="8b")
    parser.add_argument("--layers", type=int, help="fewer than the shape's")
    parser.add_argument("--kernels", default="machete,xgemm", help="machete, marlin, xgemm, ...")
    parser.add_argument("--rows", default="1,8,32,128,256", help="sequences at once")
    parser.add_argument("--prompts", default="512,4096", help="tokens, for the first new token")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--folder", type=Path, default=Path("/tmp/bench_vllm"))
    parser.add_argument("--engine", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.engine:
        print("RESULT " + json.dumps(measure(options, options.engine)), flush=True)
        return
    layers = options.layers or SHAPES[options.shape][-1]
    model = options.folder / f"{options.shape}-{layers}"
    if not (model / "config.json").exists():
        make_model(model, options.shape, layers)
    kernels = options.kernels.split(",")
    found = [_run(kernel, options.folder) for kernel in kernels]
    print(f"{options.shape}, {layers} layers; {found[0]['gpu']}, vLLM {found[0]['vllm']}")
    _table(options, kernels, found)


def make_model(folder: Path, shape: str, layers: int) -> None:
    """A Llama with random packed linears, a file a layer."""
    import torch
    from safetensors.torch import save_file

    hidden, intermediate, heads, kv_heads, _ = SHAPES[shape]
    folder.mkdir(parents=True)
    linears = {
        "self_attn.q_proj": (heads * HEAD_DIM, hidden),
        "self_attn.k_proj": (kv_heads * HEAD_DIM, hidden),
        "self_attn.v_proj": (kv_heads * HEAD_DIM, hidden),
        "self_attn.o_proj": (hidden, heads * HEAD_DIM),
        "mlp.gate_proj": (intermediate, hidden),
        "mlp.up_proj": (intermediate, hidden),
        "mlp.down_proj": (hidden, intermediate),
    }
    generator = torch.Generator("cuda").manual_seed(0)

    def normal(*size: int, scale: float = 1.0) -> Any:
        values = torch.randn(*size, generator=generator, device="cuda") * scale
        return values.bfloat16().cpu()

    def linear(n: int, k: int) -> dict[str, Any]:
        # Codes 1 to 15: of mean 8, the zero point. Else every prompt would end in one token.
        shift = torch.arange(0, 32, 4, device="cuda")
        codes = torch.randint(1, 16, (n, k // 8, 8), generator=generator, device="cuda")
        packed = (codes << shift).sum(-1)
        scale = (0.5 + torch.rand(n, k // GROUP_SIZE, generator=generator, device="cuda")) / (
            4.3 * k**0.5
        )
        return {
            "weight_packed": torch.where(packed >= 2**31, packed - 2**32, packed).int().cpu(),
            "weight_scale": scale.bfloat16().cpu(),
            "weight_shape": torch.tensor([n, k]),
        }

    ends = {
        "model.embed_tokens.weight": normal(VOCABULARY, hidden),
        "lm_head.weight": normal(VOCABULARY, hidden, scale=0.1),
        "model.norm.weight": torch.ones(hidden, dtype=torch.bfloat16),
    }
    index = {name: "ends.safetensors" for name in ends}
    save_file(ends, folder / "ends.safetensors")
    for layer in range(layers):
        prefix, file = f"model.layers.{layer}", f"layer{layer}.safetensors"
        tensors = {
            f"{prefix}.{norm}.weight": torch.ones(hidden, dtype=torch.bfloat16)
            for norm in ("input_layernorm", "post_attention_layernorm")
        }
        for name, size in linears.items():
            tensors |= {f"{prefix}.{name}.{key}": t for key, t in linear(*size).items()}
        save_file(tensors, folder / file)
        index |= dict.fromkeys(tensors, file)
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {}, "weight_map": index})
    )
    (folder / "config.json").write_text(json.dumps(_config(shape, layers)))


def _config(shape: str, layers: int) -> dict[str, Any]:
    hidden, intermediate, heads, kv_heads, _ = SHAPES[shape]
    weights = {
        "num_bits": 4, "type": "int", "symmetric": True, "group_size": GROUP_SIZE,
        "strategy": "group", "dynamic": False, "observer": "minmax", "actorder": None,
    }  # fmt: skip
    group = {
        "targets": ["Linear"],
        "weights": weights,
        "input_activations": None,
        "output_activations": None,
    }
    return {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": hidden,
        "intermediate_size": intermediate, "num_hidden_layers": layers,
        "num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": HEAD_DIM,
        "vocab_size": VOCABULARY, "max_position_embeddings": 8192, "rms_norm_eps": 1e-5,
        "hidden_act": "silu", "rope_theta": 500000.0, "tie_word_embeddings": False,
        "bos_token_id": 1, "eos_token_id": 2, "torch_dtype": "bfloat16", "attention_bias": False,
        "quantization_config": {
            "quant_method": "compressed-tensors", "format": "pack-quantized",
            "quantization_status": "compressed", "ignore": ["lm_head"], "kv_cache_scheme": None,
            "config_groups": {"group_0": group},
        },
    }  # fmt: skip


def _run(kernel: str, folder: Path) -> dict[str, Any]:
    """One engine, in a process of its own; its log goes to `folder`."""
    environment = {
        **os.environ, "XGEMM_VLLM": "1" if kernel == "xgemm" else "0", "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1", "VLLM_HOST_IP": "127.0.0.1",
        "VLLM_USE_FLASHINFER_SAMPLER": "0", "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CACHE_ROOT": str(folder / f"cache-{kernel}"),
    }  # fmt: skip
    command = [sys.executable, __file__, *sys.argv[1:], "--engine", kernel]
    log = folder / f"{kernel}.log"
    with log.open("w") as stream:
        subprocess.run(command, env=environment, stdout=stream, stderr=stream, check=False)
    lines = log.read_text().splitlines()
    results = [line for line in lines if line.startswith("RESULT ")]
    if not results:
        sys.exit(f"bench_vllm: the engine with {kernel} failed: {log}\n" + "\n".join(lines[-40:]))
    found: dict[str, Any] = json.loads(results[0].removeprefix("RESULT "))
    chosen = [line for line in lines if "LinearKernel for" in line]
    found["kernel"] = chosen[0].split("Using ")[-1].split()[0] if chosen else "?"
    return found


def measure(options: argparse.Namespace, kernel: str) -> dict[str, Any]:
    """Start an engine and time it. Runs in a process of its own."""
    import torch
    import vllm

    rows = [int(part) for part in options.rows.split(",")]
    prompts = [int(part) for part in options.prompts.split(",")]
    layers = options.layers or SHAPES[options.shape][-1]
    arguments: dict[str, Any] = {}
    if kernel not in ("machete", "xgemm"):
        arguments["linear_backend"] = kernel
    started = time.perf_counter()
    engine = vllm.LLM(
        str(options.folder / f"{options.shape}-{layers}"), skip_tokenizer_init=True,
        max_model_len=max(prompts) + 256, max_num_seqs=max(rows), kv_cache_memory_bytes=10 << 30,
        gpu_memory_utilization=0.2, dtype="bfloat16", seed=0, enable_prefix_caching=False,
        max_num_batched_tokens=8192, attention_config={"backend": "TRITON_ATTN"},
        compilation_config={"cudagraph_capture_sizes": rows}, **arguments,
    )  # fmt: skip
    start = time.perf_counter() - started

    def generate(count: int, length: int, tokens: int, **more: Any) -> tuple[float, Any]:
        ids = [
            {"prompt_token_ids": [(1711 * i + 3187 * j + i * j * j) % VOCABULARY
                                  for j in range(length)]}
            for i in range(count)
        ]  # fmt: skip
        sampling = vllm.SamplingParams(
            temperature=0, max_tokens=tokens, ignore_eos=True, detokenize=False, **more
        )
        begin = time.perf_counter()
        out = engine.generate(ids, sampling, use_tqdm=False)
        return time.perf_counter() - begin, out

    def median(count: int, length: int, tokens: int, repeats: int = 3) -> float:
        generate(count, length, tokens)
        return statistics.median(generate(count, length, tokens)[0] for _ in range(repeats))

    _, first = generate(16, 40, 1, logprobs=8)
    decode = {
        count: count * (options.tokens - 1)
        / (median(count, PROMPT, options.tokens) - median(count, PROMPT, 1))
        for count in rows
    }  # fmt: skip
    return {
        "vllm": vllm.__version__, "gpu": torch.cuda.get_device_name(), "start_s": start,
        "tokens_per_s": decode,
        "first_token_s": {length: median(1, length, 1, 5) for length in prompts},
        "logprobs": [
            {str(t): p.logprob for t, p in o.outputs[0].logprobs[0].items()} for o in first
        ],
    }  # fmt: skip


def _table(options: argparse.Namespace, kernels: list[str], found: list[dict[str, Any]]) -> None:
    """A line a quantity, a column an engine; in brackets the speed over the first engine's."""
    print(f"{'':24}" + "".join(f"{kernel:>20}" for kernel in kernels))
    print(f"{'kernel':24}" + "".join(f"{one['kernel'][:19]:>20}" for one in found))

    def line(name: str, values: list[float], more_is_better: bool) -> None:
        ratios = [v / values[0] if more_is_better else values[0] / v for v in values]
        cells = [f"{v:.4g} ({r:.3f}x)" for v, r in zip(values, ratios, strict=True)]
        print(f"{name:24}" + "".join(f"{cell:>20}" for cell in cells))

    for rows in options.rows.split(","):
        line(f"tokens/s at {rows}", [one["tokens_per_s"][rows] for one in found], True)
    for length in options.prompts.split(","):
        line(
            f"first of {length}, ms",
            [1e3 * one["first_token_s"][length] for one in found],
            False,
        )
    line("start-up, s", [one["start_s"] for one in found], False)
    for kernel, one in zip(kernels[1:], found[1:], strict=True):
        pairs = list(zip(found[0]["logprobs"], one["logprobs"], strict=True))
        gaps = [abs(p - b[t]) for a, b in pairs for t, p in a.items() if t in b]
        share = len(gaps) / sum(len(a) for a, _ in pairs)
        print(f"{kernel}: {share:.0%} of the log-probabilities shared, gap {max(gaps):.3f}")


if __name__ == "__main__":
    main()
