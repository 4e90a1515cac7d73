"""Does vLLM's engine say the same on xgemm's kernels as on its own, in every format? And a planted
error: is it seen?

    python benchmarks/check_vllm.py

Needs vLLM and a GPU. Small Llamas and Qwen3-MoEs with random weights are made in --folder. The
engines run one after the other in one process, eager; a case is judged and printed when its engine
has answered. Where a case fails, another process goes on with those that are left. Compared are the
log probabilities of the first new token after 16 prompts: the eight likeliest must be mostly the
same ones, and near one another. Greedy tokens tell nothing: those of random weights part after a
few steps by rounding. Under VLLM_BATCH_INVARIANT=1 a prompt alone must give the very numbers that
it gives among others.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vllm_models import SHAPES, Variant, make_model

SHARED, GAP = 0.8, 0.5  # least share of the likeliest tokens, largest difference of one's
# Rounding sends some tokens to other experts: vLLM's humming is 0.59 from its own Marlin in
# bench_vllm.py's qwen3moe:16.
EXPERTS_GAP = 1.0
PROMPTS, ALONE = 16, 3  # prompts that are answered together, and how many of them alone as well
KERNEL = "XgemmLinearKernel"
DENSE, EXPERTS = SHAPES["tiny"], SHAPES["tinymoe"]


@dataclass(frozen=True)
class Case:
    """An engine on a model, and which case's engine it must agree with."""

    variant: Variant
    kernel: str  # "xgemm", "own" (vLLM's choice), or "wrong": xgemm's, with a zero point of 9
    like: str = ""
    invariant: bool = False  # under VLLM_BATCH_INVARIANT=1, which a process has from its start
    experts: bool = False  # a mixture of experts


_SYMMETRIC, _ZEROS = Variant(), Variant(zeros=True, dtype="float16")
_AWQ = Variant("awq", zeros=True, dtype="float16")
CASES = {
    "own": Case(_SYMMETRIC, "own"),
    "compressed-tensors": Case(_SYMMETRIC, "xgemm", "own"),
    "planted error": Case(_SYMMETRIC, "wrong", "own"),
    "gptq": Case(Variant("gptq"), "xgemm", "own"),
    "own, zeros": Case(_AWQ, "own"),
    "awq": Case(_AWQ, "xgemm", "own, zeros"),
    "directory": Case(Variant("xgemm"), "xgemm", "own"),
    "compressed-tensors fp16": Case(Variant(dtype="float16"), "xgemm", "own"),
    "compressed-tensors, zeros": Case(_ZEROS, "xgemm", "own, zeros"),
    "directory, zeros": Case(Variant("xgemm", zeros=True, dtype="float16"), "xgemm", "own, zeros"),
    "float, act-order": Case(Variant("dense", act_order=True), "own"),
    "gptq, act-order": Case(Variant("gptq", act_order=True), "xgemm", "float, act-order"),
    "directory, act-order": Case(Variant("xgemm", act_order=True), "xgemm", "float, act-order"),
    "own, experts": Case(_SYMMETRIC, "own", experts=True),
    "experts": Case(_SYMMETRIC, "xgemm", "own, experts", experts=True),
    "experts, planted error": Case(_SYMMETRIC, "wrong", "own, experts", experts=True),
    "experts, gptq": Case(Variant("gptq"), "xgemm", "own, experts", experts=True),
    "experts, directory": Case(Variant("xgemm"), "xgemm", "own, experts", experts=True),
    "own, awq experts": Case(_AWQ, "own", experts=True),
    "experts, awq": Case(_AWQ, "xgemm", "own, awq experts", experts=True),
    "experts, zeros": Case(_ZEROS, "xgemm", "own, awq experts", experts=True),
    "own, mxfp4 gpt-oss": Case(Variant("gpt-oss"), "own", experts=True),
    "mxfp4 gpt-oss": Case(Variant("gpt-oss"), "xgemm", "own, mxfp4 gpt-oss", experts=True),
    "mxfp4, planted error": Case(Variant("gpt-oss"), "wrong", "own, mxfp4 gpt-oss", experts=True),
    "own, mxfp4": Case(Variant("mxfp4"), "own", experts=True),
    "mxfp4": Case(Variant("mxfp4"), "xgemm", "own, mxfp4", experts=True),
    "mxfp4 directory": Case(Variant("mxfp4-xgemm"), "xgemm", "own, mxfp4", experts=True),
    "directory, invariant": Case(Variant("xgemm"), "xgemm", "own", invariant=True),
    "gptq, invariant": Case(Variant("gptq"), "xgemm", "own", invariant=True),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--folder", type=Path, default=Path("/tmp/check_vllm"))
    parser.add_argument("--timeout", type=float, default=600, help="seconds for all engines")
    parser.add_argument(
        "--only", nargs="+", default=[""], help="cases with one of these in their name"
    )
    parser.add_argument("--engines", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.engines:
        for name in options.engines:
            result = {"name": name, **answer(options.folder, CASES[name])}
            print("RESULT " + json.dumps(result), flush=True)
        os._exit(0)  # vLLM takes seconds to end
    options.folder.mkdir(parents=True, exist_ok=True)
    until = time.monotonic() + options.timeout
    found: dict[str, dict[str, Any]] = {}
    failed, left = [], [name for name in CASES if any(part in name for part in options.only)]
    while left:
        names = [name for name in left if CASES[name].invariant == CASES[left[0]].invariant]
        for result in _answers(options.folder, names, until):
            found[result["name"]] = result
            failed += judge(result["name"], found)
        lacking = [name for name in names if name not in found]
        failed += lacking[:1] if time.monotonic() < until else lacking
        done = {*found, *failed}
        left = [name for name in left if name not in done]
    if failed:
        sys.exit("check_vllm: failed: " + ", ".join(failed))


def _directory(folder: Path, case: Case) -> Path:
    variant = case.variant
    extras = ["zeros"] * variant.zeros + ["act_order"] * variant.act_order
    extras += ["experts"] * case.experts
    return folder / "-".join([variant.format, variant.dtype, *extras])


def _answers(folder: Path, names: list[str], until: float) -> Iterator[dict[str, Any]]:
    """What the engines of the cases say, as far as they come before `until`."""
    environment = {
        **os.environ, "XGEMM_VLLM": "1", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1",
        "VLLM_HOST_IP": "127.0.0.1", "VLLM_USE_FLASHINFER_SAMPLER": "0",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CACHE_ROOT": str(folder / "cache"),
        "VLLM_BATCH_INVARIANT": str(int(CASES[names[0]].invariant)),
        "VLLM_ALLOW_INSECURE_SERIALIZATION": "1",  # to look at the model
    }  # fmt: skip
    command = [sys.executable, "-u", __file__, "--folder", str(folder), "--engines", *names]
    lines = []
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        timer = threading.Timer(max(0, until - time.monotonic()), process.kill)
        timer.start()
        assert process.stdout is not None
        with (folder / f"{names[0].replace(' ', '_')}.log").open("w") as log:
            for line in process.stdout:
                log.write(line)
                log.flush()
                if line.startswith("RESULT "):
                    yield json.loads(line.removeprefix("RESULT "))
                    lines.clear()
                lines.append(line)
        timer.cancel()
    if process.returncode:
        print(f"exit status {process.returncode} after\n{''.join(lines[-30:])}", file=sys.stderr)


def judge(name: str, found: dict[str, dict[str, Any]]) -> list[str]:
    """Prints a line; the case's name if it failed."""
    case, given = CASES[name], found[name]
    alone = given["logprobs"][:ALONE] == given["alone"]
    what = f"alone {'equal' if alone else 'rounded otherwise'}; {given['kernels']}"
    if not case.like:
        print(f"{name:26} {what}", flush=True)
        return []
    if case.like not in found:
        return [name]
    pairs = list(zip(found[case.like]["logprobs"], given["logprobs"], strict=True))
    gaps = [abs(p - b[t]) for a, b in pairs for t, p in a.items() if t in b]
    share = len(gaps) / sum(len(a) for a, _ in pairs)
    bound = EXPERTS_GAP if case.experts else GAP
    same = share > SHARED and max(gaps) < bound
    print(
        f"{name:26} against {case.like:17} {share:4.0%} shared, gap {max(gaps, default=0):.3f}"
        f" -> {'same' if same else 'different'}; {what}",
        flush=True,
    )
    right = same != (case.kernel == "wrong") and (alone or not case.invariant)
    return [] if right else [name]


def answer(folder: Path, case: Case) -> dict[str, Any]:
    """Log probabilities of the case's engine, in this process."""
    import vllm
    import vllm.model_executor.models.registry as registry
    from vllm.distributed import cleanup_dist_env_and_memory

    registry._run_in_subprocess = lambda function: function()  # spares a second import of vLLM
    directory, shape = _directory(folder, case), EXPERTS if case.experts else DENSE
    if not directory.exists():
        make_model(directory, shape, case.variant)
    with _kernels(case.kernel):
        engine = vllm.LLM(
            str(directory), skip_tokenizer_init=True, max_model_len=512, max_num_seqs=32,
            kv_cache_memory_bytes=1 << 28, gpu_memory_utilization=0.05, dtype=case.variant.dtype,
            seed=0, enable_prefix_caching=False, enforce_eager=True,
            attention_config={"backend": "TRITON_ATTN"},
        )  # fmt: skip
        prompts = [
            {"prompt_token_ids": [(1711 * i + 3187 * j + i * j * j) % shape.vocabulary
                                  for j in range(20 + i)]}
            for i in range(PROMPTS)
        ]  # fmt: skip
        result = {
            "kernels": sorted(engine.apply_model(_chosen)[0]),
            "logprobs": _first_tokens(engine, prompts),
            "alone": [_first_tokens(engine, [prompt])[0] for prompt in prompts[:ALONE]],
        }
    del engine
    cleanup_dist_env_and_memory()
    return result


def _first_tokens(engine: Any, prompts: list[Any]) -> list[dict[str, float]]:
    """Of each prompt the log probabilities of the likeliest tokens that follow."""
    import vllm

    sampling = vllm.SamplingParams(temperature=0, max_tokens=1, logprobs=8, detokenize=False)
    out = engine.generate(prompts, sampling, use_tqdm=False)
    first = [o.outputs[0].logprobs[0] for o in out]
    return [{str(t): p.logprob for t, p in one.items()} for one in first]


def _chosen(model: Any) -> set[str]:
    """The kernels of the model's quantized linears, or the methods of those without a kernel."""
    methods = [m.quant_method for m in model.modules() if getattr(m, "quant_method", None)]
    schemes = [m.scheme for m in model.modules() if getattr(m, "scheme", None)]
    names = {type(getattr(one, "kernel", one)).__name__ for one in (*methods, *schemes)}
    return {name for name in names if name.endswith("Kernel") or "Xgemm" in name}


@contextmanager
def _kernels(which: str) -> Iterator[None]:
    """vLLM with xgemm's kernel as its plugin has put it there, without it, or with a wrong one."""
    from vllm.model_executor.kernels.linear import _POSSIBLE_KERNELS
    from vllm.platforms import PlatformEnum
    from vllm.plugins import load_general_plugins

    load_general_plugins()
    kernels = _POSSIBLE_KERNELS[PlatformEnum.CUDA]
    if kernels[0].__name__ != KERNEL:
        raise RuntimeError(f"vLLM's first kernel must be {KERNEL}, got {kernels[0].__name__}")

    from xgemm.vllm import experts, kernel

    first, pack, refusal, nibbles = kernels[0], kernel.pack_words, experts.refusal, experts.nibbles
    e2m1_codes = experts.e2m1_codes
    if which == "own":
        kernels.remove(first)
        experts.refusal = lambda own, layer: "vLLM's own is asked for"
    elif which == "wrong":
        kernel.pack_words = _pack_wrong
        experts.nibbles = lambda words: (nibbles(words).int() - 1).clamp(min=0).byte()
        experts.e2m1_codes = lambda packed: (e2m1_codes(packed).int() - 1).clamp(min=0).byte()
    try:
        yield
    finally:
        kernel.pack_words, experts.refusal, experts.nibbles = pack, refusal, nibbles
        experts.e2m1_codes = e2m1_codes
        if first not in kernels:
            kernels.insert(0, first)


def _pack_wrong(words: Any, **others: Any) -> Any:
    """Adds one step of every scale to what is multiplied: a zero point of 9, not 8."""
    import torch

    from xgemm.vllm.words import pack_words

    codes = (words[..., None] >> torch.arange(0, 32, 4, device=words.device)) & 15
    codes = (codes.long() - 1).clamp(min=0)
    shifted = (codes << torch.arange(0, 32, 4, device=words.device)).sum(-1)
    return pack_words(torch.where(shifted >= 2**31, shifted - 2**32, shifted).int(), **others)


if __name__ == "__main__":
    main()
