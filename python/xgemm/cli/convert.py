"""`xgemm convert`: a 4-bit transformers directory in another tool's format, or in xgemm's."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

from xgemm.cli.output import out, print_json
from xgemm.cli.progress import import_transformers, step
from xgemm.cli.quantize import Source, copy_companions
from xgemm.quoting import printable

GENERATION_FILE = "generation_config.json"


NF4_GROUP_SIZE = 64  # bitsandbytes' own blocks


def recipe(method: str | None, group_size: int | None, asymmetric: bool) -> dict[str, Any] | None:
    """--requantize and what goes with it; None without."""
    if method is None:
        if group_size is not None or asymmetric:
            raise ValueError("convert: --group-size and --asymmetric are for --requantize METHOD")
        return None
    size = NF4_GROUP_SIZE if group_size is None else group_size
    return {"method": method, "group_size": size, "symmetric": not asymmetric}


def run(
    source: Path, destination: Path, to: str, requantize: dict[str, Any] | None, as_json: bool
) -> None:
    started = time.perf_counter()
    import_transformers()
    from xgemm.hf.conversion import convert

    with step(f"converting {source}", total=1) as shown:
        done = convert(
            source,
            destination,
            to,
            requantize=requantize,
            progress=lambda count, total, name: shown.update(
                count, total, f"converting {name}".rstrip()
            ),
        )
    copied = copy_companions(Source(source), destination)
    if (source / GENERATION_FILE).is_file():
        shutil.copy2(source / GENERATION_FILE, destination / GENERATION_FILE)
        copied.append(GENERATION_FILE)
    facts = {
        "source": str(source),
        "destination": str(destination),
        "from": done.source,
        "to": to,
        "layers": done.layers,
        "other_tensors": done.others,
        "bytes": done.nbytes,
        "copied": copied,
        "seconds": time.perf_counter() - started,
    }
    if as_json:
        print_json(facts)
        return
    out.print(
        printable(
            f"{source} ({done.source}) to {destination} ({to}): {done.layers} layers of 4 bits, "
            f"{done.others} other tensors, {done.nbytes / 1e6:.1f} MB, in {facts['seconds']:.0f} s"
        ),
        markup=False,
        soft_wrap=True,
    )
