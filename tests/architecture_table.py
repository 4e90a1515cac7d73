"""docs/guide/architectures.md: what is quantized of every architecture, and what share that is.

    python tests/architecture_table.py            prints the page
    python tests/architecture_table.py --write    writes it

The well-known models are made on the meta device: `quantize` says what it would take, and nothing
is computed. tests/test_architectures.py holds the page equal to what this script prints.
"""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path
from typing import Any

from architecture import Architecture
from architectures import ARCHITECTURES
from torch import nn

from xgemm.nn.float_experts import experts_projections
from xgemm.quantize.plan import Plan, plan
from xgemm.quantize.report import QuantizationReport

PAGE = Path(__file__).parent.parent / "docs" / "guide" / "architectures.md"

HEAD = """\
# Architectures

`xgemm.quantize` takes the linear layers and the experts of any torch model. These models of
transformers are tested (`tests/test_architectures.py`), as tiny random models: quantized, run and
compared with the float model that has the dequantized weights; generating, where they generate;
quantized while they are loaded; saved and loaded by `xgemm.save` and `xgemm.load` and by
`save_pretrained` and `from_pretrained`, bit for bit.

The table says what becomes 4-bit of a well-known model of each architecture. It is computed from
the model's shapes. The share is that of all parameters, tied ones counted once; in brackets that of
the tiny model, whose vocabulary is small. Small models with large vocabularies have a low share:
their embeddings, which are looked up and not multiplied, stay in float. So does the output head
unless `quantize(model, lm_head=True)` takes it, which it cannot where it is tied to the embedding.

| Architecture | Model | Parameters | Linear layers | Experts | In 4 bits | In float |
|---|---|---:|---:|---:|---:|---|
"""

FOOT = """
What stays in float below 1 % of a model is not listed: norms, biases, routers, convolutions. Why a
layer stays is in `model.xgemm_report`, which names every layer that is left and every large
parameter in float. `quantize` warns below a share of 80 %, and refuses a model of which it can take
nothing.

`python tests/architecture_table.py --write` writes this page.
"""


def judge(model: nn.Module) -> tuple[Plan, QuantizationReport]:
    """What `quantize` would do; `model` may be on the meta device."""
    chosen = plan(model)
    report = QuantizationReport("rtn", 128, True, left=chosen.left)
    report.count(model, chosen.chosen)
    return chosen, report


def row(architecture: Architecture) -> str:
    chosen, report = judge(architecture.make_real())
    _, tiny = judge(architecture.make_tiny())
    experts: list[Any] = [m for m in chosen.chosen if experts_projections(m) is not None]
    floats: Counter[str] = Counter()
    for kept in report.kept:
        floats[kept.reason] += kept.share
    cells = (
        architecture.name,
        architecture.real_name,
        size(report.parameters),
        str(len(chosen.chosen) - len(experts)),
        str(sum(module.num_experts for module in experts) or ""),
        f"{report.share_quantized:.1%} ({tiny.share_quantized:.0%})",
        "; ".join(f"{reason}: {share:.1%}" for reason, share in floats.most_common()),
    )
    return f"| {' | '.join(cells)} |\n"


def size(parameters: int) -> str:
    millions = parameters / 1e6
    return f"{millions / 1e3:.1f} B" if millions >= 950 else f"{millions:.0f} M"


def page() -> str:
    return HEAD + "".join(row(architecture) for architecture in ARCHITECTURES) + FOOT


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.name}")
    if parser.parse_args().write:
        PAGE.write_text(page())
    else:
        print(page(), end="")


if __name__ == "__main__":
    main()
