"""The shapes that are measured."""

from __future__ import annotations

import random
from dataclasses import dataclass

# (N, K) of the linears of Llama-3.
LLAMA_8B = {
    "8B.qkv": (6144, 4096),
    "8B.o": (4096, 4096),
    "8B.gate_up": (28672, 4096),
    "8B.down": (4096, 14336),
}
LLAMA_70B = {
    "70B.qkv": (10240, 8192),
    "70B.o": (8192, 8192),
    "70B.gate_up": (57344, 8192),
    "70B.down": (8192, 28672),
}
ROWS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 512, 1024, 2048, 4096, 8192)
FEW_ROWS = (1, 4, 16, 64, 256)
SQUARES = (256, 512, 1024, 2048, 4096, 8192, 16384)

PRODUCT_SETS = {
    "quick": "a few small shapes of each kind",
    "squares": "M = N = K, 256 ... 16384 (to 2048 on the CPU)",
    "8b": "Llama-3 8B's linears, M = 1 ... 8192 (to 256 on the CPU)",
    "70b": "Llama-3 70B's linears, likewise",
    "ragged": "12 random sizes, drawn fresh unless --seed is given",
}
REDUCE_SETS = {
    "quick": "a few small shapes of each kind",
    "full": "1-D tensors, all elements",
    "rows": "matrices, last dimension",
    "columns": "matrices, first dimension",
    "ragged": "8 random matrices, drawn fresh unless --seed is given",
}


@dataclass(frozen=True)
class Product:
    """X [m, k] times W [n, k] transposed."""

    name: str
    m: int
    n: int
    k: int


@dataclass(frozen=True)
class Reduction:
    name: str
    shape: tuple[int, ...]
    dims: tuple[int, ...]


def choose(names: str, known: dict[str, str]) -> list[str]:
    """The sets named in a comma-separated list, or an error that lists what there is."""
    chosen = [name.strip() for name in names.split(",")]
    for name in chosen:
        if name not in known:
            sets = "; ".join(f"{key}: {text}" for key, text in known.items())
            raise ValueError(f"bench: shapes must be among these sets, got {name!r}. {sets}")
    return chosen


def products(sets: list[str], device: str, seed: int) -> list[Product]:
    gpu = device == "cuda"
    chosen: list[Product] = []
    for name in sets:
        if name == "quick":
            chosen += [Product(f"{size}^3", size, size, size) for size in (256, 512, 1024)]
            chosen += [Product("8B.o", m, 4096, 4096) for m in (1, 4, 16)]
            chosen.append(Product("ragged", 129, 1000, 777))
        elif name == "squares":
            sizes = [size for size in SQUARES if gpu or size <= 2048]
            chosen += [Product(f"{size}^3", size, size, size) for size in sizes]
        elif name == "ragged":
            draw = random.Random(seed)
            top = 8192 if gpu else 1500
            for _ in range(12):
                m, n, k = (round(top ** draw.uniform(0.2, 1.0)) for _ in range(3))
                chosen.append(Product("ragged", m, n, k))
        else:
            layers = LLAMA_8B if name == "8b" else LLAMA_70B
            for layer, (n, k) in layers.items():
                chosen += [Product(layer, m, n, k) for m in (ROWS if gpu else FEW_ROWS)]
    return chosen


def reductions(sets: list[str], device: str, seed: int) -> list[Reduction]:
    powers = (16, 20, 24, 28, 30) if device == "cuda" else (12, 16, 20, 24)
    sides = ((4096, 4096), (1 << 20, 128), (128, 1 << 20), (1000, 3333))
    chosen: list[Reduction] = []
    for name in sets:
        if name == "quick":
            chosen.append(Reduction("full", (1 << 20,), (0,)))
            chosen.append(Reduction("rows", (1024, 1024), (1,)))
            chosen.append(Reduction("columns", (1024, 1024), (0,)))
        elif name == "full":
            chosen += [Reduction("full", (1 << power,), (0,)) for power in powers]
        elif name == "ragged":
            draw = random.Random(seed)
            for _ in range(8):
                shape = (draw.randint(1, 5000), draw.randint(1, 5000))
                chosen.append(Reduction("ragged", shape, (draw.randint(0, 1),)))
        else:
            chosen += [Reduction(name, shape, (1 if name == "rows" else 0,)) for shape in sides]
    return chosen
