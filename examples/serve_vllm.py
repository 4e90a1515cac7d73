#!/usr/bin/env python3
"""Answer prompts from a 4-bit model in vLLM, on xgemm's kernels.

    python examples/serve_vllm.py DIR "The capital of France is" "Once upon a time"

DIR holds a model of compressed-tensors, GPTQ, AWQ or xgemm. There is no word of xgemm in what
calls vLLM: being installed beside it is enough. `XGEMM_VLLM=0` compares with vLLM's own kernels.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
import time


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", help="a directory, or a name on the Hub")
    parser.add_argument("prompts", nargs="+")
    parser.add_argument("--max-tokens", type=int, default=64)
    options = parser.parse_args()
    if importlib.util.find_spec("vllm") is None:
        sys.exit("serve_vllm: vLLM is not installed: pip install vllm")

    from vllm import LLM, SamplingParams

    engine = LLM(options.model)
    started = time.perf_counter()
    answers = engine.generate(options.prompts, SamplingParams(max_tokens=options.max_tokens))
    seconds = time.perf_counter() - started
    for answer in answers:
        print(f"{answer.prompt!r}: {answer.outputs[0].text!r}")
    tokens = sum(len(answer.outputs[0].token_ids) for answer in answers)
    print(f"{tokens} tokens, {tokens / seconds:.0f} tokens/s", file=sys.stderr)


if __name__ == "__main__":
    main()
