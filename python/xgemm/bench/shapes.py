"""The shapes that are measured."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, replace

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
# (N, K) of other models' linears: qkv, o, gate_up and down, where they are not said otherwise.
OTHER_MODELS = {
    "SmolLM2-135M.qkv": (960, 576),
    "SmolLM2-135M.o": (576, 576),
    "SmolLM2-135M.gate_up": (3072, 576),
    "SmolLM2-135M.down": (576, 1536),
    "GPT-2.qkv": (2304, 768),
    "GPT-2.lm_head": (50257, 768),
    "Phi-3-mini.qkv": (9216, 3072),
    "Phi-3-mini.down": (3072, 8192),
    "Qwen2.5-7B.qkv": (4608, 3584),
    "Qwen2.5-7B.o": (3584, 3584),
    "Qwen2.5-7B.gate_up": (37888, 3584),
    "Qwen2.5-7B.down": (3584, 18944),
    "Gemma-2-9B.qkv": (8192, 3584),
    "Gemma-2-9B.o": (3584, 4096),
    "Qwen3-32B.qkv": (10240, 5120),
    "Qwen3-32B.o": (5120, 8192),
    "Qwen3-32B.gate_up": (51200, 5120),
    "Qwen3-32B.down": (5120, 25600),
    "Llama-3-8B.lm_head": (128256, 4096),
}
# (N, K) of linears that several GPUs share, and of the longest N and K beside a short other one.
SPLITS = {
    "8B.qkv / 4": (1536, 4096),
    "8B.gate_up / 8": (3584, 4096),
    "8B.down / 8": (4096, 1792),
    "70B.o / 8": (8192, 1024),
    "70B.down / 8": (8192, 3584),
    "wide": (40000, 1024),
    "long": (1024, 40000),
}
# (hidden, key and value, intermediate) sizes of models whose layers are drawn at random.
DRAWN_MODELS = (
    (1536, 256, 8960), (2048, 1024, 11008), (2304, 1024, 9216), (2560, 2560, 6912),
    (3072, 1024, 8192), (3840, 2048, 15360), (4096, 1024, 12288), (4096, 1024, 14336),
    (4544, 64, 18176), (5120, 1024, 13824), (5120, 1280, 17920), (5120, 1024, 32768),
    (5376, 2048, 21504), (6144, 1024, 16384), (7168, 1024, 20480), (8192, 1024, 22528),
)  # fmt: skip
DRAWN_ROWS = (129, 2048)  # log-uniform, the last one excluded
DRAWN_SIDES = (1024, 20480)  # N and K of layers of no model: log-uniform multiples of 64
LAYERS = {"8b": LLAMA_8B, "70b": LLAMA_70B, "models": OTHER_MODELS, "splits": SPLITS}
ROWS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 512, 1024, 2048, 4096, 8192)
FEW_ROWS = (1, 4, 16, 64, 256)
MODEL_ROWS = (1, 16, 64, 512, 4096)
DECODE_ROWS, PREFILL_ROWS = 128, 512  # up to, and from
SQUARES = (2048, 4096, 8192, 16384)
SMALL = (256, 512, 1024)
# Sizes and leading dimensions that no vector load is aligned to, and one whose are multiples of 8.
ODD = ((4097, 4097, 4097), (1000, 3333, 5555), (2048, 511, 32001), (129, 8200, 4104))
# One of each kind, for a peer that takes long to set up: (name, M, N, K).
SAMPLE = (
    ("8B.o", 1, 4096, 4096),
    ("8B.gate_up", 16, 28672, 4096),
    ("70B.down", 64, 8192, 28672),
    ("70B.qkv", 512, 10240, 8192),
    ("4096^3", 4096, 4096, 4096),
)
DRAWN = 12  # of a random set

PRODUCT_SETS = {
    "quick": "a few small shapes of each kind",
    "squares": "M = N = K, 256 ... 16384 (to 2048 on the CPU)",
    "large": "the squares from 2048 on",
    "small": "M = N = K, 256, 512 and 1024",
    "8b": "Llama-3 8B's linears, M = 1 ... 8192 (to 256 on the CPU)",
    "70b": "Llama-3 70B's linears, likewise",
    "decode": "the linears of both at M <= 128",
    "prefill": "the linears of both at M >= 512 (8B at 512 on the CPU)",
    "sample": "one shape of each kind, for --compile, which takes seconds a shape",
    "models": "linears of other models, M = 1 ... 4096 (to 64 on the CPU)",
    "splits": "linears that several GPUs share, and N and K of 40000, likewise",
    "layers": "12 random layers, of 16 other models and of any size, M = 129 ... 2047 (to 256 on"
    " the CPU), drawn fresh unless --seed is given",
    "odd": "sizes that no vector load is aligned to",
    "ragged": "12 random sizes, drawn fresh unless --seed is given",
    "aligned": "12 random multiples of 8, likewise",
}
LINEAR_SETS = ("8b", "70b", "decode", "prefill", "models", "splits")
# Of matrices that are reduced on a GPU: long and short rows, wide and narrow, aligned and not.
LARGE_SIDES = (
    *((8192, 28672), (16384, 16384), (333, 7777)),
    *((1 << 22, 8), (50257, 768), (7, 100003)),
)
REDUCE_SETS = {
    "quick": "a few small shapes of each kind",
    "full": "1-D tensors, all elements",
    "rows": "matrices, last dimension",
    "columns": "matrices, first dimension",
    "ragged": "8 random matrices, drawn fresh unless --seed is given",
}


@dataclass(frozen=True)
class Product:
    """A [m, k] times B [k, n]."""

    name: str
    m: int
    n: int
    k: int
    set: str = ""  # of PRODUCT_SETS


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


def products(sets: list[str], device: str, seed: int, rows: tuple[int, ...] = ()) -> list[Product]:
    """`rows`: M in place of the sets' own, where those are of linears."""
    gpu = device == "cuda"
    found = [replace(p, set=name) for name in sets for p in _products_of(name, gpu, seed)]
    if not rows:
        return found
    linears = dict.fromkeys((p.set, p.name, p.n, p.k) for p in found if p.set in LINEAR_SETS)
    return [p for p in found if p.set not in LINEAR_SETS] + [
        Product(name, m, n, k, set=group) for group, name, n, k in linears for m in rows
    ]


def _products_of(name: str, gpu: bool, seed: int) -> list[Product]:
    if name == "quick":
        few = [Product("8B.o", m, 4096, 4096) for m in (1, 4, 16)]
        return [*_squares(SMALL), *few, Product("ragged", 129, 1000, 777)]
    if name in ("squares", "large", "small"):
        sizes = {"squares": SMALL + SQUARES, "large": SQUARES, "small": SMALL}[name]
        return _squares(tuple(size for size in sizes if gpu or size <= 2048))
    if name == "sample":
        return [Product(*each) for each in SAMPLE if gpu or each[1] <= 64]
    if name == "odd":
        return [Product("odd", m, n, k) for m, n, k in ODD]
    if name == "layers":
        draw = random.Random(seed)
        return [drawn_layer(draw, DRAWN_ROWS[1] if gpu else 257) for _ in range(DRAWN)]
    if name in ("ragged", "aligned"):
        return _drawn(name, random.Random(seed), 8192 if gpu else 1500)
    if name in ("models", "splits"):
        rows = tuple(m for m in MODEL_ROWS if gpu or m <= 64)
        return _layers(LAYERS[name], rows)
    if name == "decode":
        rows = tuple(m for m in (ROWS if gpu else FEW_ROWS) if m <= DECODE_ROWS)
        return _layers({**LLAMA_8B, **LLAMA_70B}, rows)
    if name == "prefill":
        rows = tuple(m for m in ROWS if m >= PREFILL_ROWS)
        return _layers({**LLAMA_8B, **LLAMA_70B}, rows) if gpu else _layers(LLAMA_8B, rows[:1])
    return _layers(LAYERS[name], ROWS if gpu else FEW_ROWS)


def _squares(sizes: tuple[int, ...]) -> list[Product]:
    return [Product(f"{size}^3", size, size, size) for size in sizes]


def _layers(layers: dict[str, tuple[int, int]], rows: tuple[int, ...]) -> list[Product]:
    return [Product(layer, m, n, k) for layer, (n, k) in layers.items() for m in rows]


def drawn_layer(draw: random.Random, end_m: int = DRAWN_ROWS[1]) -> Product:
    """A linear layer of DRAWN_MODELS or, every second time, of log-uniform N and K."""

    def log_uniform(low: int, high: int) -> float:
        return math.exp(draw.uniform(math.log(low), math.log(high)))

    m = int(log_uniform(DRAWN_ROWS[0], end_m))
    if draw.random() < 0.5:
        n, k = (round(log_uniform(*DRAWN_SIDES) / 64) * 64 for _ in range(2))
        return Product("layer", m, n, k)
    hidden, key_value, intermediate = draw.choice(DRAWN_MODELS)
    n, k = draw.choice((
        (hidden + 2 * key_value, hidden), (hidden, hidden), (intermediate, hidden),
        (2 * intermediate, hidden), (hidden, intermediate),
    ))  # fmt: skip
    return Product("layer", m, n, k)


def _drawn(name: str, draw: random.Random, top: int) -> list[Product]:
    drawn = []
    for _ in range(DRAWN):
        m, n, k = (round(top ** draw.uniform(0.2, 1.0)) for _ in range(3))
        if name == "aligned":
            m, n, k = (-(-extent // 8) * 8 for extent in (m, n, k))
        drawn.append(Product(name, m, n, k))
    return drawn


def reductions(sets: list[str], device: str, seed: int) -> list[Reduction]:
    gpu = device == "cuda"
    powers = tuple(range(16, 31)) if gpu else (12, 16, 20, 24)
    sides: tuple[tuple[int, int], ...] = ((4096, 4096), (1 << 20, 128), (128, 1 << 20))
    sides += LARGE_SIDES if gpu else ((1000, 3333),)
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
