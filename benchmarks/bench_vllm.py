"""vLLM's engine with xgemm's kernels beside its own: tokens/s, time to the first token, start-up.

    python benchmarks/bench_vllm.py --shapes 8b,70b:12 --kernels machete,xgemm,marlin,humming
    python benchmarks/bench_vllm.py --shapes qwen3moe:16 --kernels marlin,xgemm,humming

Needs vLLM and a GPU. The model is a Llama or a Qwen3-MoE of the shape (with a number of layers if
not all), with random 4-bit weights (compressed-tensors, symmetric, groups of 128), made in
--folder. With --dummy no file is made: weights are what vLLM's dummy loader draws, which is soon
done for all layers of 70B, and what the engines say is not compared. Each kernel is an engine of
its own, with torch.compile and CUDA graphs as vLLM has them by default. "machete" is vLLM's own
choice of linears on Hopper, with Marlin for experts; "marlin" and "humming" are for both. Engines
run one after the other; with --together they start side by side and are measured one after the
other, when all have started, which takes less time and tells nothing of start-up. Tokens/s are of
decoding alone: what `--tokens` new tokens take longer than one. Log probabilities of the first new
token are compared with those of the first engine. After `--limit` seconds what is running is ended,
and the table has the engines before it.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from vllm_models import SHAPES, Shape, Variant, write_config

_BEGIN = time.monotonic()
_SHOWN = ("tokens_per_s", "first_token_s", "start_s", "loading")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shapes", default="8b", help="8b, 70b, qwen3moe; 70b:12 with 12 layers")
    parser.add_argument("--kernels", default="machete,xgemm", help="machete, marlin, xgemm, ...")
    parser.add_argument("--rows", default="1,8,32,128,256", help="sequences at once")
    parser.add_argument("--prompts", default="512,4096", help="tokens, for the first new token")
    parser.add_argument("--prompt", type=int, default=128, help="tokens before those decoded")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--together", action="store_true", help="start engines side by side")
    parser.add_argument("--patience", type=float, default=600, help="seconds for their start")
    parser.add_argument("--limit", type=float, default=3600, help="seconds for everything")
    parser.add_argument("--dummy", action="store_true", help="no weights in files")
    parser.add_argument("--folder", type=Path, default=Path("/tmp/bench_vllm"))
    parser.add_argument("--engine", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.engine:
        shape, _, kernel = options.engine.rpartition(" ")
        print("RESULT " + json.dumps(measure(options, shape, kernel)), flush=True)
        os._exit(0)  # vLLM takes seconds to end
    shapes, kernels = options.shapes.split(","), options.kernels.split(",")
    for shape in shapes:
        _make(options, shape)
    engines = [_Engine(options, shape, kernel) for shape in shapes for kernel in kernels]
    if options.together:
        for engine in engines:
            engine.start()
        until = time.monotonic() + options.patience
        while any(engine.starting() for engine in engines) and time.monotonic() < until:
            time.sleep(0.2)
    for engine in engines:
        engine.measure()
    for shape in shapes:
        found = [e.result for e in engines if e.shape == shape and e.result]
        if found:
            size = sized(shape)
            print(f"{shape}, {size.layers} layers; {found[0]['gpu']}, vLLM {found[0]['vllm']}")
            _table(options, found)
    if failed := [f"{e.shape} {e.kernel}: {e.log}" for e in engines if not e.result]:
        sys.exit("bench_vllm: failed: " + ", ".join(failed))


def sized(text: str) -> Shape:
    """The shape that `70b` or `70b:12` stands for."""
    name, _, layers = text.partition(":")
    if name not in SHAPES:
        raise SystemExit(f"bench_vllm: shapes must be among {list(SHAPES)}, got {name!r}")
    return replace(SHAPES[name], layers=int(layers)) if layers else SHAPES[name]


def _directory(options: argparse.Namespace, shape: str) -> Path:
    folder: Path = options.folder
    return folder / (shape.replace(":", "-") + "-dummy" * options.dummy)


def _make(options: argparse.Namespace, shape: str) -> None:
    """In a process of its own, which leaves no memory of the GPU in use."""
    directory = _directory(options, shape)
    if options.dummy:
        write_config(directory, sized(shape), Variant())
    elif not (directory / "config.json").exists():
        script = Path(__file__).with_name("vllm_models.py")
        name, layers = shape.partition(":")[0], str(sized(shape).layers)
        command = [sys.executable, script, directory, "--shape", name, "--layers", layers]
        subprocess.run(command, check=True)


class _Engine:
    """An engine in a process of its own. It starts, says so in a file, and waits for a line."""

    def __init__(self, options: argparse.Namespace, shape: str, kernel: str) -> None:
        self.shape, self.kernel, self.folder = shape, kernel, options.folder
        self.name = f"{_directory(options, shape).name}-{kernel}"
        self.until = _BEGIN + options.limit
        self.log = options.folder / f"{self.name}.log"
        self.ready = options.folder / f"{self.name}.ready"
        self.process: subprocess.Popen[str] | None = None
        self.result: dict[str, Any] | None = None

    def start(self) -> None:
        environment = {
            **os.environ, "XGEMM_VLLM": "1" if self.kernel == "xgemm" else "0",
            "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_HOST_IP": "127.0.0.1",
            "VLLM_USE_FLASHINFER_SAMPLER": "0", "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "VLLM_CACHE_ROOT": str(self.folder / f"cache-{self.name}"),
            "BENCH_VLLM_READY": str(self.ready),
        }  # fmt: skip
        self.ready.unlink(missing_ok=True)
        engine = f"{self.shape} {self.kernel}"
        command = [sys.executable, __file__, *sys.argv[1:], "--engine", engine]
        with self.log.open("w") as stream:
            self.process = subprocess.Popen(
                command, env=environment, stdin=subprocess.PIPE, stdout=stream, stderr=stream,
                text=True,
            )  # fmt: skip

    def starting(self) -> bool:
        assert self.process is not None
        return self.process.poll() is None and not self.ready.exists()

    def measure(self) -> None:
        if self.process is None:
            self.start()
        assert self.process is not None
        try:
            self.process.communicate("measure\n", timeout=max(0, self.until - time.monotonic()))
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        lines = self.log.read_text().splitlines()
        results = [line for line in lines if line.startswith("RESULT ")]
        if not results:
            print(f"bench_vllm: {self.name} failed:\n" + "\n".join(lines[-40:]), file=sys.stderr)
            return
        chosen = [line for line in lines if "LinearKernel for" in line]
        experts = [line for line in lines if "MoE backend" in line or "XgemmExpertsMethod" in line]
        self.result = json.loads(results[0].removeprefix("RESULT "))
        self.result["kernel"] = chosen[0].split("Using ")[-1].split()[0] if chosen else "?"
        self.result["experts"] = (
            experts[-1].split("Using ")[-1].split()[0].strip("'") if experts else ""
        )
        self.result["name"] = self.kernel
        shown = {key: self.result[key] for key in _SHOWN}
        at = time.monotonic() - _BEGIN  # what is known if the rest is cut off
        print(f"{self.name}, {at:.0f} s: {json.dumps(shown)}", file=sys.stderr, flush=True)


def measure(options: argparse.Namespace, shape: str, kernel: str) -> dict[str, Any]:
    """Start an engine, wait for a line, and time it. Runs in a process of its own."""
    import torch
    import vllm

    rows = [int(part) for part in options.rows.split(",")]
    prompts = [int(part) for part in options.prompts.split(",")]
    size = sized(shape)
    longest = max(*prompts, max(rows) * (options.prompt + options.tokens))
    # Keys and values of a token in every layer, two bytes each; a quarter more for blocks.
    cache = 5 * longest * size.layers * size.kv_heads * size.head_dim
    arguments: dict[str, Any] = {"load_format": "dummy"} if options.dummy else {}
    if kernel not in ("machete", "xgemm"):
        arguments["linear_backend"] = kernel
    if size.experts and kernel != "xgemm":
        arguments["moe_backend"] = "marlin" if kernel == "machete" else kernel
    loading = _watch_loading()
    started = time.perf_counter()
    engine = vllm.LLM(
        str(_directory(options, shape)), skip_tokenizer_init=True,
        max_model_len=max(prompts) + 256, max_num_seqs=max(rows), kv_cache_memory_bytes=cache,
        gpu_memory_utilization=0.05, dtype="bfloat16", seed=0, enable_prefix_caching=False,
        max_num_batched_tokens=8192, attention_config={"backend": "TRITON_ATTN"},
        compilation_config={"cudagraph_capture_sizes": rows}, **arguments,
    )  # fmt: skip
    start = time.perf_counter() - started
    Path(os.environ["BENCH_VLLM_READY"]).touch()
    sys.stdin.readline()

    def generate(count: int, length: int, tokens: int, **more: Any) -> tuple[float, Any]:
        ids = [
            {"prompt_token_ids": [(1711 * i + 3187 * j + i * j * j) % size.vocabulary
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
        / (median(count, options.prompt, options.tokens) - median(count, options.prompt, 1))
        for count in rows
    }  # fmt: skip
    return {
        "vllm": vllm.__version__, "gpu": torch.cuda.get_device_name(), "start_s": start,
        "loading": loading, "tokens_per_s": decode,
        "first_token_s": {length: median(1, length, 1, 5) for length in prompts},
        "logprobs": [
            {str(t): p.logprob for t, p in o.outputs[0].logprobs[0].items()} for o in first
        ],
    }  # fmt: skip


def _watch_loading() -> dict[str, float]:
    """Filled when weights are loaded and repacked: their bytes on the GPU, and their peak."""
    import torch
    from vllm.v1.worker.gpu_worker import Worker

    load: Any = Worker.load_model
    seen: dict[str, float] = {}

    def watched(worker: Any, **options: Any) -> None:
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        load(worker, **options)
        seen["weights"] = torch.cuda.memory_allocated() - before
        seen["peak"] = torch.cuda.max_memory_allocated() - before

    Worker.load_model = watched
    return seen


def _table(options: argparse.Namespace, found: list[dict[str, Any]]) -> None:
    """A line a quantity, a column an engine; in brackets the speed over the first engine's."""
    print(f"{'':24}" + "".join(f"{one['name']:>20}" for one in found))
    for key in ("kernel", "experts"):
        if any(one[key] for one in found):
            print(f"{key:24}" + "".join(f"{one[key][:19]:>20}" for one in found))

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
    if not options.together:
        line("start-up, s", [one["start_s"] for one in found], False)
    for name in ("weights", "peak"):
        line(f"loading: {name}, GiB", [one["loading"][name] / 2**30 for one in found], False)
    for one in [] if options.dummy else found[1:]:
        pairs = list(zip(found[0]["logprobs"], one["logprobs"], strict=True))
        gaps = [abs(p - b[t]) for a, b in pairs for t, p in a.items() if t in b]
        share = len(gaps) / sum(len(a) for a, _ in pairs)
        print(f"{one['name']}: {share:.0%} of the log-probabilities shared, gap {max(gaps):.3f}")


if __name__ == "__main__":
    main()
