"""The constants of a GPU: benchmarks/calibrate.py writes the header that kernels' models read."""

from __future__ import annotations

import json
import random
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture
def calibrate(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import calibrate

    return calibrate


def test_the_header_is_the_one_of_the_recorded_constants(calibrate: ModuleType) -> None:
    found = json.loads((ROOT / "tests" / "data" / "h200.json").read_text())
    generated = calibrate.header(found, "H200")
    assert generated == (ROOT / "csrc" / "cuda" / "choose" / "h200.h").read_text()
    assert max(map(len, generated.splitlines())) <= 100
    found["mma_cycles_per_us"] += 1
    assert calibrate.header(found, "H200") != generated


def test_reads_take_what_was_measured(cpp: ModuleType) -> None:
    found = json.loads((ROOT / "tests" / "data" / "h200.json").read_text())
    for megabytes, us in found["reads"]:
        assert cpp.cold_read_us(megabytes) == pytest.approx(us)
    (low, low_us), (high, high_us) = found["reads"][3:5]
    between = (low * high) ** 0.5
    assert cpp.cold_read_us(between) == pytest.approx((low_us * high_us) ** 0.5)
    assert cpp.cold_read_us(0) == found["reads"][0][1]


# Capability, SMs; clock, the memory's (kHz), its bus (bits); as CUDA's attributes say.
H200 = (90, 132, (1_980_000, 3_201_000, 6016))
OTHERS = {
    "A100 40 GB": (80, 108, (1_410_000, 1_215_000, 5120)),
    "A10": (86, 72, (1_695_000, 6_251_000, 384)),
    "RTX 4090": (89, 128, (2_520_000, 10_501_000, 384)),
    "L40S": (89, 142, (2_520_000, 9_001_000, 384)),
    "H100 PCIe": (90, 114, (1_755_000, 1_593_000, 5120)),
    "H100 SXM": (90, 132, (1_980_000, 2_619_000, 5120)),
    "B200": (100, 148, (1_965_000, 3_996_000, 8192)),
}
# By their data sheets: TB/s of memory; TFLOP/s of dense fp16 products, fp32 sums.
SHEETS = {
    "A100 40 GB": (1.555, 312),
    "A10": (0.600, 125),
    "RTX 4090": (1.008, 330),
    "L40S": (0.864, 362),
    "H100 PCIe": (2.04, 756),
    "H100 SXM": (3.35, 989),
    "B200": (8.0, 2250),
}


def problem(cpp: ModuleType, rng: random.Random) -> Any:
    m, n, k = (int(2 ** rng.uniform(0, 13)) for _ in range(3))
    if rng.random() < 0.5:
        m, n, k = (8 * -(-extent // 8) for extent in (m, n, k))
    return cpp.GemmProblem(
        m=m, n=n, k=k, dtype=rng.choice(["float16", "bfloat16", "float32"]), a=1 << 20,
        a_strides=(k, 1), b=1 << 20, b_strides=rng.choice([(n, 1), (1, k)]), d=1 << 20,
        d_strides=(n, 1), precision=rng.choice(["ieee", "tf32"]),
    )  # fmt: skip


def packed(cpp: ModuleType, rng: random.Random) -> Any:
    m, n, k = int(2 ** rng.uniform(0, 11)), 64 * rng.randint(1, 300), 128 * rng.randint(1, 100)
    return cpp.W4A16Problem(m=m, n=n, k=k, group_size=rng.choice([32, 128]))


def test_a_described_h200_gets_the_choices_of_one_that_is_not(cpp: ModuleType) -> None:
    rng = random.Random(3)
    capability, sms, clocks = H200
    for _ in range(200):
        dense, w4 = problem(cpp, rng), packed(cpp, rng)
        for explain, each in ((cpp.explain_gemm_json, dense), (cpp.explain_w4a16_json, w4)):
            said = explain(each, capability, sms, clocks=clocks)
            assert said == explain(each, capability, sms)


def test_constants_of_other_gpus_are_near_their_data_sheets(cpp: ModuleType) -> None:
    h200 = cpp.constants_of(*H200)
    assert (h200["dram_speed"], h200["l2_speed"], h200["clock_speed"]) == (1, 1, 1)
    for name, (terabytes, teraflops) in SHEETS.items():
        gpu = cpp.constants_of(*OTHERS[name])
        assert gpu["dram_speed"] * 4.8 == pytest.approx(terabytes, rel=0.04), name
        rate = gpu["mma_flops_per_cycle"] * OTHERS[name][1] * OTHERS[name][2][0] * 1e-9
        assert rate == pytest.approx(teraflops, rel=0.1), name
        us = [each for _, each in gpu["reads"]]
        assert us == sorted(us)
        assert us[0] == h200["reads"][0][1], "the least read is all latency"
        # The largest takes no less than the data sheet allows, and no more than half as long again.
        floor = gpu["reads"][-1][0] / terabytes
        assert floor < us[-1] < 1.5 * floor, name


@pytest.mark.parametrize("name", OTHERS)
def test_estimates_for_other_gpus_keep_to_what_they_can_do(cpp: ModuleType, name: str) -> None:
    """Not faster than the memory and the tensor cores; most within some times of that."""
    rng = random.Random(5)
    capability, sms, clocks = OTHERS[name]
    terabytes, teraflops = SHEETS[name]
    over = []
    for _ in range(150):
        m, n, k = (256 * rng.randint(1, 32) for _ in range(3))
        if rng.random() < 0.5:
            m = rng.choice([1, 4, 16, 64])
        case = cpp.GemmProblem(
            m=m, n=n, k=k, dtype="float16", a=1 << 20, a_strides=(k, 1), b=1 << 20,
            b_strides=(1, k), d=1 << 20, d_strides=(n, 1),
        )  # fmt: skip
        choice = json.loads(cpp.explain_gemm_json(case, capability, sms, clocks=clocks))["choice"]
        bytes_us = 2 * (m * k + n * k + m * n) / terabytes * 1e-6
        flops_us = 2 * m * n * k / teraflops * 1e-6
        over.append(choice["estimate_us"] / max(bytes_us, flops_us))
    over.sort()
    assert over[0] > 0.9
    most = (
        6 if name == "B200" else 3
    )  # which has mma.sync at a third of its rate, and no kernel more
    assert 1 < over[len(over) // 2] < most


def test_slower_memory_makes_streams_slower(cpp: ModuleType) -> None:
    stream = cpp.GemmProblem(
        m=1, n=16384, k=16384, dtype="float16", a=1 << 20, a_strides=(16384, 1), b=1 << 20,
        b_strides=(1, 16384), d=1 << 20, d_strides=(16384, 1),
    )  # fmt: skip
    us = {
        name: json.loads(cpp.explain_gemm_json(stream, capability, sms, clocks=clocks))["choice"][
            "estimate_us"
        ]
        for name, (capability, sms, clocks) in OTHERS.items()
    }
    assert sorted(us, key=us.__getitem__) == sorted(SHEETS, key=lambda name: -SHEETS[name][0])
