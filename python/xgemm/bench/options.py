"""What a benchmark is asked for, checked before anything is made."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path

import torch

FAMILIES = ("mul", "w4a16", "reduce")
LAYOUTS = ("nn", "nt", "tn")  # of a and b; n: row-major, t: column-major
REDUCE_OPS = ("sum", "mean", "prod", "amax", "amin", "norm", "argmax", "argmin")
HALF_DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16}
DTYPES = {"float32": torch.float32, **HALF_DTYPES}
GROUP_SIZES = (32, 64, 128, -1)
# The families that an option belongs to; what is not here belongs to all.
OWNERS = {
    "layouts": ("mul",),
    "compile": ("mul", "reduce"),
    "rows": ("mul", "w4a16"),
    "ops": ("reduce",),
    "cub": ("reduce",),
    "group_size": ("w4a16",),
    "asymmetric": ("w4a16",),
    "batch_invariant": ("w4a16",),
}


@dataclass(frozen=True)
class Options:
    """Lists are texts with commas between; one that is empty stands for all there is."""

    sets: str = "quick"  # of shapes.PRODUCT_SETS or shapes.REDUCE_SETS
    dtype: str = "float32"
    device: str = "cpu"
    seed: int = 0
    layouts: str = "nt"  # of a and b
    compile: bool = False  # torch.compile as a peer
    rows: str = ""  # M, in place of the sets' own, where those are of linears
    ops: str = ""
    cub: Path | None = None  # a library built from benchmarks/cub_reduce.cu, as a peer of sums
    group_size: int = 128
    asymmetric: bool = False  # with integer zero points
    batch_invariant: bool = False

    def check(self, family: str) -> None:
        if family not in FAMILIES:
            raise ValueError(f"bench: family must be one of {', '.join(FAMILIES)}, got {family!r}")
        if self.dtype not in DTYPES:
            raise ValueError(f"bench: dtype must be one of {', '.join(DTYPES)}, got {self.dtype!r}")
        if self.device not in ("cpu", "cuda"):
            raise ValueError(f"bench: device must be cpu or cuda, got {self.device!r}")
        if self.device == "cuda" and not torch.cuda.is_available():
            raise ValueError("bench: device cuda: torch sees no GPU here")
        for field in fields(self):
            owners = OWNERS.get(field.name, FAMILIES)
            if family not in owners and getattr(self, field.name) != field.default:
                name = field.name.replace("_", "-")
                raise ValueError(
                    f"bench: {name}: an option of {' and '.join(owners)}, not {family}"
                )
        if self.group_size not in GROUP_SIZES:
            sizes = ", ".join(map(str, GROUP_SIZES))
            raise ValueError(f"bench: group-size must be one of {sizes}, got {self.group_size}")

    def chosen_layouts(self) -> list[str]:
        return _choose("layouts", self.layouts, LAYOUTS)

    def chosen_ops(self) -> list[str]:
        return _choose("ops", self.ops, REDUCE_OPS)

    def chosen_rows(self) -> tuple[int, ...]:
        """Empty where the sets' own are to be taken."""
        texts = [text.strip() for text in self.rows.split(",")] if self.rows else []
        for text in texts:
            if not text.isdecimal() or int(text) == 0:
                raise ValueError(f"bench: rows must be positive integers, got {text!r}")
        return tuple(map(int, texts))


def _choose(option: str, names: str, known: tuple[str, ...]) -> list[str]:
    chosen = [name.strip() for name in names.split(",")] if names else list(known)
    for name in chosen:
        if name not in known:
            raise ValueError(f"bench: {option} must be among {', '.join(known)}, got {name!r}")
    return chosen
