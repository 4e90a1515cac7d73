"""Does vLLM's engine say the same on xgemm's kernels as on its own, in every format? And a planted
error: is it seen?

    python benchmarks/check_vllm.py

Needs vLLM and a GPU. Small Llamas with random weights are made in --folder; each case is an engine
of its own, eager, all of them side by side. Compared are the log probabilities of the first new
token after 16 prompts: the eight likeliest must be mostly the same ones, and near one another.
Greedy tokens tell nothing: those of random weights part after a few steps by rounding.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vllm_models import SHAPES, Variant, make_model

SHAPE = SHAPES["tiny"]
SHARED, GAP = 0.8, 0.5  # least share of the likeliest tokens, largest difference of one's


@dataclass(frozen=True)
class Case:
    """An engine on a model, and which case's engine it must agree with."""

    variant: Variant
    kernel: str  # "xgemm", "own" (vLLM's choice), or "wrong": xgemm's, with a zero point of 9
    like: str = ""


_SYMMETRIC, _ZEROS = Variant(), Variant(zeros=True, dtype="float16")
_AWQ = Variant("awq", zeros=True, dtype="float16")
CASES = {
    "own": Case(_SYMMETRIC, "own"),
    "compressed-tensors": Case(_SYMMETRIC, "xgemm", "own"),
    "compressed-tensors fp16": Case(Variant(dtype="float16"), "xgemm", "own"),
    "gptq": Case(Variant("gptq"), "xgemm", "own"),
    "directory": Case(Variant("xgemm"), "xgemm", "own"),
    "planted error": Case(_SYMMETRIC, "wrong", "own"),
    "own, zeros": Case(_AWQ, "own"),
    "awq": Case(_AWQ, "xgemm", "own, zeros"),
    "compressed-tensors, zeros": Case(_ZEROS, "xgemm", "own, zeros"),
    "directory, zeros": Case(Variant("xgemm", zeros=True, dtype="float16"), "xgemm", "own, zeros"),
    "float, act-order": Case(Variant("dense", act_order=True), "own"),
    "directory, act-order": Case(Variant("xgemm", act_order=True), "xgemm", "float, act-order"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--folder", type=Path, default=Path("/tmp/check_vllm"))
    parser.add_argument("--timeout", type=float, default=240, help="seconds for all engines")
    parser.add_argument("--engine", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.engine:
        print("RESULT " + json.dumps(answer(options.folder, CASES[options.engine])), flush=True)
        return
    for case in CASES.values():
        if not _directory(options.folder, case.variant).exists():
            make_model(_directory(options.folder, case.variant), SHAPE, case.variant)
    found = _run_all(options)
    if failed := _judge(found):
        sys.exit("check_vllm: failed: " + ", ".join(failed))


def _directory(folder: Path, variant: Variant) -> Path:
    extras = ["zeros"] * variant.zeros + ["act_order"] * variant.act_order
    return folder / "-".join([variant.format, variant.dtype, *extras])


def _run_all(options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    running = {}
    for name, case in CASES.items():
        environment = {
            **os.environ, "XGEMM_VLLM": "0" if case.kernel == "own" else "1",
            "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_HOST_IP": "127.0.0.1",
            "VLLM_USE_FLASHINFER_SAMPLER": "0", "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "VLLM_CACHE_ROOT": str(options.folder / "cache"),
        }  # fmt: skip
        log = options.folder / f"{name.replace(' ', '_')}.log"
        command = [sys.executable, __file__, "--folder", str(options.folder), "--engine", name]
        with log.open("w") as stream:
            process = subprocess.Popen(command, env=environment, stdout=stream, stderr=stream)
        running[name] = (process, log)
    found = {}
    for name, (process, log) in running.items():
        try:
            process.wait(options.timeout)
        except subprocess.TimeoutExpired:
            process.kill()
        lines = log.read_text().splitlines()
        results = [line for line in lines if line.startswith("RESULT ")]
        if results:
            found[name] = json.loads(results[0].removeprefix("RESULT "))
            chosen = [line for line in lines if "LinearKernel for" in line]
            found[name]["kernel"] = chosen[0].split("Using ")[-1] if chosen else "no kernel"
        else:
            print(f"{name}:\n" + "\n".join(lines[-15:]), file=sys.stderr)
    return found


def _judge(found: dict[str, dict[str, Any]]) -> list[str]:
    """Prints a line a case; the names of those that failed."""
    failed = [name for name in CASES if name not in found]
    for name, case in CASES.items():
        if name not in found or case.like not in found:
            continue
        reference, given = found[case.like]["logprobs"], found[name]["logprobs"]
        pairs = list(zip(reference, given, strict=True))
        gaps = [abs(p - b[t]) for a, b in pairs for t, p in a.items() if t in b]
        share = len(gaps) / sum(len(a) for a, _ in pairs)
        same = share > SHARED and max(gaps) < GAP
        print(
            f"{name:26} against {case.like:17} {share:4.0%} shared, gap {max(gaps, default=0):.3f}"
            f" -> {'same' if same else 'different'}; {found[name]['kernel']}"
        )
        if same == (case.kernel == "wrong"):
            failed.append(name)
    return failed


def answer(folder: Path, case: Case) -> dict[str, Any]:
    """Log probabilities of the engine. Runs in a process of its own."""
    import vllm
    import vllm.model_executor.models.registry as registry

    registry._run_in_subprocess = lambda function: function()  # spares a second import of vLLM
    if case.kernel == "wrong":
        _plant_error()
    engine = vllm.LLM(
        str(_directory(folder, case.variant)), skip_tokenizer_init=True, max_model_len=512,
        max_num_seqs=32, kv_cache_memory_bytes=1 << 28, gpu_memory_utilization=0.05,
        dtype=case.variant.dtype, seed=0, enable_prefix_caching=False, enforce_eager=True,
        attention_config={"backend": "TRITON_ATTN"},
    )  # fmt: skip
    prompts = [
        {"prompt_token_ids": [(1711 * i + 3187 * j + i * j * j) % SHAPE.vocabulary
                              for j in range(20 + i)]}
        for i in range(16)
    ]  # fmt: skip
    sampling = vllm.SamplingParams(temperature=0, max_tokens=1, logprobs=8, detokenize=False)
    out = engine.generate(prompts, sampling, use_tqdm=False)
    first = [o.outputs[0].logprobs[0] for o in out]
    return {"logprobs": [{str(t): p.logprob for t, p in one.items()} for one in first]}


def _plant_error() -> None:
    """The kernel adds one step of every scale that it multiplies by: a zero point of 9, not 8."""
    import torch

    from xgemm.vllm import kernel

    pack = kernel.pack_words

    def wrong(words: torch.Tensor, **others: Any) -> Any:
        codes = (words[..., None] >> torch.arange(0, 32, 4, device=words.device)) & 15
        codes = (codes.long() - 1).clamp(min=0)
        shifted = (codes << torch.arange(0, 32, 4, device=words.device)).sum(-1)
        return pack(torch.where(shifted >= 2**31, shifted - 2**32, shifted).int(), **others)

    kernel.pack_words = wrong


if __name__ == "__main__":
    main()
