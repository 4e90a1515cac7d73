"""`xgemm quantize`: a transformers directory in, an xgemm directory out."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

import xgemm
from xgemm.cli.output import log, out, print_json

# What a person needs beside the weights, in whatever form the model came with.
TOKENIZER_FILES = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
    "tokenizer.model", "vocab.json", "vocab.txt", "merges.txt", "chat_template.jinja",
)  # fmt: skip


def run(
    source: Path,
    destination: Path,
    method: str,
    group_size: int,
    symmetric: bool,
    skip: list[str],
    as_json: bool,
) -> None:
    if destination.exists() and any(destination.iterdir()):
        raise FileExistsError(f"quantize: DST must be new or empty, got {destination}")
    started = time.perf_counter()
    log.print(f"loading {source}")
    from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(source, local_files_only=True)
    causal = any(name.endswith("ForCausalLM") for name in config.architectures or [])
    family = AutoModelForCausalLM if causal else AutoModel
    model = family.from_pretrained(source, dtype="auto", local_files_only=True).eval()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeRemainingColumn(), console=log) as bar:
        task = bar.add_task("quantizing")
        xgemm.quantize(
            model,
            method=method,
            group_size=group_size,
            symmetric=symmetric,
            skip=skip,
            progress=lambda done, total, name: bar.update(
                task, completed=done, total=total, description=f"quantizing {name}".rstrip()
            ),
        )
    log.print(f"writing {destination}")
    xgemm.save(model, destination)
    for name in TOKENIZER_FILES:
        if (source / name).is_file():
            shutil.copy2(source / name, destination / name)
    report = model.xgemm_report
    if as_json:
        print_json(
            {
                "source": str(source),
                "destination": str(destination),
                "method": report.method,
                "group_size": report.group_size,
                "symmetric": report.symmetric,
                "quantized": report.quantized,
                "left": report.left,
                "bytes_before": report.bytes_before,
                "bytes_after": report.bytes_after,
                "seconds": time.perf_counter() - started,
            }
        )
    else:
        out.print(str(report), markup=False)
