"""What ladders there are: their problems, units and published numbers."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Ladder:
    """The rungs of one problem; what each of them changes stands in its source file."""

    name: str
    what: str
    device: str  # cpu or cuda
    capability: int  # of the GPU, at the least; 0: none needed
    only_capability: bool  # whether no other GPU will do
    dtype: torch.dtype
    unit: str  # of rates, published ones too: GFLOP/s, TFLOP/s or GB/s
    sizes: tuple[str, ...]  # measured by default: MxNxK, or a count
    # By rung; a tuple where there is one for each of the sizes. None: not published.
    published: tuple[float | tuple[float | None, ...] | None, ...]
    published_on: str

    @property
    def rungs(self) -> int:
        return len(self.published)

    def published_at(self, rung: int, size: str) -> float | None:
        found = self.published[rung]
        if isinstance(found, tuple):
            return found[self.sizes.index(size)] if size in self.sizes else None
        return found


CPU = Ladder(
    name="cpu",
    what="fp32 product on one thread",
    device="cpu",
    capability=0,
    only_capability=False,
    dtype=torch.float32,
    unit="GFLOP/s",
    sizes=("64x64x64", "128x128x128", "256x256x256", "512x512x512", "1024x1024x1024"),
    published=(
        (1.97, 1.65, 1.44, 0.95, 0.62),
        (11.2, 11.8, 12.0, 11.4, 10.8),
        None,
        None,
        (35.4, 40.4, 65.8, 67.7, 69.1),
    ),
    published_on="Xeon 8260Y, peak 80 GFLOP/s",
)
REDUCE = Ladder(
    name="reduce",
    what="fp32 sum of a vector",
    device="cuda",
    capability=80,
    only_capability=False,
    dtype=torch.float32,
    unit="GB/s",
    sizes=(str(2**25),),
    published=(2.1, 4.9, 9.7, 17.4, 31.3, 44.0, 62.7, None, None),
    published_on="G80",
)

SGEMM = Ladder(
    name="sgemm",
    what="fp32 product",
    device="cuda",
    capability=80,
    only_capability=False,
    dtype=torch.float32,
    unit="TFLOP/s",
    sizes=("4096x4096x4096",),
    # Rungs 4, 5 and 7 were published as shares of other GPUs' peaks: see the files.
    published=(0.31, 1.99, 2.98, 18.2, None, None, 21.8, None, None),
    published_on="A6000 (cuBLAS 23.2)",
)
HGEMM = Ladder(
    name="hgemm",
    what="fp16 product, fp32 sums, mma.sync",
    device="cuda",
    capability=80,
    only_capability=False,
    dtype=torch.float16,
    unit="TFLOP/s",
    sizes=("512x2048x1024", "4096x4096x4096"),
    published=(None,) * 8,
    published_on="nothing published",
)

HOPPER = Ladder(
    name="hopper",
    what="bf16 product A B^T, fp32 sums, wgmma",
    device="cuda",
    capability=90,
    only_capability=True,
    dtype=torch.bfloat16,
    unit="TFLOP/s",
    sizes=("8192x8192x8192",),
    # Rung 11 was published as 1 % over rung 10.
    published=(32, 317, 423, 498, 610, 660, 704, 734, 747, 758, 764, None),
    published_on="H100 (cuBLAS 716)",
)

W4A16 = Ladder(
    name="w4a16",
    what="fp16 product with 4-bit weights, groups of 128; bytes are those of W, its scales, X, Y",
    device="cuda",
    capability=80,
    only_capability=False,
    dtype=torch.float16,
    unit="GB/s",
    sizes=tuple(
        f"{m}x{layer}" for m in (1, 16, 128) for layer in ("4096x4096", "28672x4096", "8192x28672")
    ),
    # Marlin's own kernel at one row: 13.4, 35.8 and 55.5 us.
    published=(None,) * 5 + ((646.8, 1693.0, 2184.0) + (None,) * 6,),
    published_on="H200 (Marlin)",
)

LADDERS = {ladder.name: ladder for ladder in (CPU, REDUCE, SGEMM, HGEMM, HOPPER, W4A16)}


def find_ladder(name: str) -> Ladder:
    if name not in LADDERS:
        known = ", ".join(LADDERS)
        raise ValueError(f"ladder: name must be one of {known}, or probes; got {name!r}")
    return LADDERS[name]


def parse_rungs(ladder: Ladder, text: str) -> list[int]:
    """ "0,3-5" -> [0, 3, 4, 5]; empty: all."""
    if not text:
        return list(range(ladder.rungs))
    chosen: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        ends = (first, last) if dash else (first, first)
        if not all(end.isdecimal() and int(end) < ladder.rungs for end in ends):
            raise ValueError(
                f"ladder: rungs of {ladder.name} are 0..{ladder.rungs - 1}, such as 0,3-5;"
                f" got {part.strip()!r}"
            )
        chosen.update(range(int(ends[0]), int(ends[1]) + 1))
    return sorted(chosen)


def parse_sizes(ladder: Ladder, text: str) -> list[str]:
    """Sizes separated by commas: MxNxK or one number for a cube (reduce: a count); empty: the
    ladder's own."""
    if not text:
        return list(ladder.sizes)
    return [_parse_size(ladder, part.strip()) for part in text.split(",")]


def _parse_size(ladder: Ladder, text: str) -> str:
    numbers = text.split("x")
    wanted = "a count" if ladder.name == "reduce" else "N or MxNxK"
    counts = (1,) if ladder.name == "reduce" else (1, 3)
    if len(numbers) not in counts or not all(n.isdecimal() and int(n) > 0 for n in numbers):
        raise ValueError(f"ladder: --size of {ladder.name} must be {wanted}, got {text!r}")
    if ladder.name == "reduce":
        return str(int(text))
    return "x".join(str(int(n)) for n in (numbers * 3 if len(numbers) == 1 else numbers))
