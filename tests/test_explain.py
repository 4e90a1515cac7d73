"""explain as JSON: the choice that runs, its reason, and the candidates with their estimates."""

from __future__ import annotations

import json
import random
from types import ModuleType
from typing import Any

import pytest
import torch

import xgemm

H200 = {"capability": 90, "sm_count": 132}
GPUS = (H200, {"capability": 80, "sm_count": 108})
CONFIG = (
    *("block_m", "block_n", "stages", "cluster", "splits", "shifted", "swapped"),
    *("ctas", "tma_store", "copy_a", "copy_b", "workspace_bytes"),
)
W4_CONFIG = (
    *("block_m", "block_n", "warps", "stages", "cluster", "splits", "ctas", "stream_k"),
    *("copy_x", "workspace_bytes"),
)
REDUCE_CONFIG = ("threads", "lanes", "tiles", "pieces", "cluster", "mail", "collectors", "group")


def same(said: dict[str, Any], config: Any, fields: tuple[str, ...]) -> bool:
    return all(said[name] == getattr(config, name) for name in fields)


def check_candidates(said: dict[str, Any]) -> None:
    """They are sorted, and the choice's estimate is that of the same candidate."""
    candidates = said["candidates"]
    estimates = [each["estimate_us"] for each in candidates]
    assert estimates == sorted(estimates)
    assert all(estimate > 0 for estimate in estimates)
    if "estimate_us" in said["choice"]:
        chosen = {k: v for k, v in said["choice"].items() if k != "reason"}
        assert chosen in [{k: v for k, v in c.items() if k != "reason"} for c in candidates]


def dense_problem(cpp: ModuleType, rng: random.Random) -> Any:
    m, n, k = (max(1, int(2 ** rng.uniform(0, 13))) for _ in range(3))
    if rng.random() < 0.6:
        m, n, k = (8 * -(-extent // 8) for extent in (m, n, k))
    dtype = rng.choice(("float16", "bfloat16", "float32"))
    precision = rng.choice(("ieee", "tf32", "tf32x3")) if dtype == "float32" else "ieee"
    return cpp.GemmProblem(
        m=m, n=n, k=k, dtype=dtype, precision=precision, d=1 << 20, d_strides=(n, 1),
        a=1 << 20, a_strides=rng.choice(((k, 1), (1, m))),
        b=1 << 20, b_strides=rng.choice(((n, 1), (1, k))),
    )  # fmt: skip


def check_parts(said: dict[str, Any]) -> None:
    """No part takes longer than the whole, in which parts may overlap."""
    for each in said["candidates"]:
        parts = each["parts_us"]
        assert parts["launch"] > 0
        assert max(parts.values()) <= each["estimate_us"] * 1.001
        assert sum(parts.values()) >= 0.5 * each["estimate_us"]


@pytest.mark.parametrize("k", [1024, 6336])
def test_tiles_are_in_groups_where_one_wave_has_a_long_k(cpp: ModuleType, k: int) -> None:
    problem = cpp.GemmProblem(
        m=1102, n=1472, k=k, dtype="float16", d=1 << 20, d_strides=(1472, 1),
        a=1 << 20, a_strides=(k, 1), b=1 << 20, b_strides=(1, k),
    )  # fmt: skip
    in_groups = set()
    for each in json.loads(cpp.explain_gemm_json(problem, **H200))["candidates"]:
        if each["kernel"] != "sm90_single_tile":
            assert each["group"] == 0
            continue
        # Tiles along 1102, the shorter side.
        fast = -(-1102 // (each["block_n"] if each["swapped"] else each["block_m"]))
        alone = each["cluster"] == 1 and each["splits"] == 1 and each["ctas"] <= 132
        assert (each["group"] > 0) == (alone and fast >= 8 and k >= 48 * 64), each
        in_groups.add(each["group"] > 0)
    assert in_groups == ({True, False} if k > 3072 else {False})


def test_a_dense_choice_is_the_candidate_of_the_least_estimate(cpp: ModuleType) -> None:
    rng = random.Random(0)
    kernels = set()
    for _ in range(400):
        problem, gpu = dense_problem(cpp, rng), rng.choice(GPUS)
        said = json.loads(cpp.explain_gemm_json(problem, **gpu))
        config = cpp.select_gemm(problem, **gpu)
        choice = said["choice"]
        assert choice["kernel"] == config.kernel
        assert same(choice, config, CONFIG)
        assert choice["reason"] == config.reason
        check_candidates(said)
        check_parts(said)
        assert choice["estimate_us"] == said["candidates"][0]["estimate_us"]
        kernels.add(choice["kernel"])
    assert {"sm90_persistent", "sm90_skinny", "sm90_single_tile", "gemv", "sm80"} <= kernels
    assert {"fp32", "fp32_sm90", "tf32_sm80"} <= kernels
    assert kernels & {"tf32", "tf32_swapped"}


def test_operands_that_are_copied_first_are_said_as_the_kernel_gets_them(cpp: ModuleType) -> None:
    """The tile of the single-tile kernel is one for operands along K, which B is once copied."""
    problem = cpp.GemmProblem(
        m=224, n=20608, k=28672, dtype="float16", a=1 << 20, a_strides=(28672, 1),
        b=1 << 20, b_strides=(1, 28673), d=1 << 20, d_strides=(20608, 1),
    )  # fmt: skip
    choice = json.loads(cpp.explain_gemm_json(problem, **H200))["choice"]
    assert choice["kernel"] == "sm90_single_tile"
    assert choice["copy_b"]
    assert choice["compiled_m"] >= choice["block_m"]
    assert choice["compiled_n"] >= choice["block_n"]
    text = cpp.explain_gemm(problem, cpp.select_gemm(problem, **H200))
    assert f"of at most {choice['compiled_m']}x{choice['compiled_n']}" in text


def test_candidates_of_a_layer_are_of_several_kernels_and_tiles(cpp: ModuleType) -> None:
    problem = cpp.GemmProblem(
        m=64, n=4096, k=4096, dtype="float16", a=1 << 20, a_strides=(4096, 1),
        b=1 << 20, b_strides=(1, 4096), d=1 << 20, d_strides=(4096, 1),
    )  # fmt: skip
    said = json.loads(cpp.explain_gemm_json(problem, **H200))
    assert said["problem"]["m"] == 64
    assert said["problem"]["sm_count"] == 132
    tiles = {(c["kernel"], c["block_m"], c["block_n"]) for c in said["candidates"]}
    assert len(tiles) >= 20
    assert {kernel for kernel, *_ in tiles} >= {"sm90_persistent", "sm90_skinny"}


def test_a_w4a16_choice_is_among_its_candidates(cpp: ModuleType) -> None:
    rng = random.Random(1)
    kernels = set()
    for _ in range(300):
        problem = cpp.W4A16Problem(
            m=rng.choice((1, int(2 ** rng.uniform(0, 11)))), n=round(2 ** rng.uniform(6, 14)),
            k=128 * rng.randint(1, 60),
            group_size=rng.choice((32, 64, 128, 128, -1)), zeros=rng.random() < 0.3,
            batch_invariant=rng.random() < 0.2, perm=rng.random() < 0.2,
        )  # fmt: skip
        gpu = rng.choice(GPUS)
        said = json.loads(cpp.explain_w4a16_json(problem, **gpu))
        config = cpp.select_w4a16(problem, **gpu)
        assert said["choice"]["kernel"] == config.kernel
        assert same(said["choice"], config, W4_CONFIG)
        check_candidates(said)
        check_parts(said)
        kernels.add(said["choice"]["kernel"])
    assert kernels == {"sm80", "sm90_skinny", "sm90_register_resident", "sm90_wgmma"}


def test_a_reduction_says_its_choice(cpp: ModuleType) -> None:
    weighed = 0
    for shape, dim in (((4096, 4096), 1), ((4096, 4096), 0), ((1 << 22,), 0), ((7, 100003), 0)):
        strides = [1]
        for size in reversed(shape[1:]):
            strides.insert(0, strides[0] * size)
        kept = [(s, t, 1) for i, (s, t) in enumerate(zip(shape, strides, strict=True)) if i != dim]
        choice = cpp.select_reduce(
            op=0, dtype=0, address=0, kept=kept, reduced=[(shape[dim], strides[dim])]
        )
        said = json.loads(choice.json())
        assert said["family"] == "reduce"
        assert said["choice"]["kernel"].replace(" ", "_") in choice.kernel.name.lower()
        assert same(said["choice"], choice, REDUCE_CONFIG)
        assert said["problem"]["elements"] == shape[dim]
        check_candidates(said)
        weighed += len(said["candidates"])
    assert weighed > 20


@pytest.mark.parametrize("op", ["mul", "sgemm", "mul.w4a16"])
def test_a_product_on_the_cpu(op: str) -> None:
    said = xgemm.explain(op, 3, 4096, 512)
    assert (said["device"], said["candidates"]) == ("cpu", [])
    assert said["family"] == ("w4a16" if "w4a16" in op else "dense")
    assert {"m": 3, "n": 4096, "k": 512}.items() <= said["problem"].items()
    assert said["choice"]["kernel"] in torch.ops.xgemm.explain(op, 3, 4096, 512)
    assert said["choice"]["reason"] in torch.ops.xgemm.explain(op, 3, 4096, 512)


def test_a_reduction_on_the_cpu() -> None:
    rows = xgemm.explain("sum", 100, 1000, dim=1)
    assert (rows["choice"]["kernel"], rows["problem"]["outputs"]) == ("rows", 100)
    columns = xgemm.explain("amax", 100, 1000, dim=[0], dtype="float16")
    assert (columns["choice"]["kernel"], columns["problem"]["elements"]) == ("columns", 100)
    assert xgemm.explain("mean", 4, 5)["problem"]["elements"] == 20
    words = torch.ops.xgemm.explain_reduce("sum", [100, 1000], 1)
    assert words.startswith("kernel: rows")
    assert rows["choice"]["reason"] in words


@pytest.mark.parametrize(
    ("args", "options", "error", "message"),
    [
        (("median", [3]), {}, ValueError, "op must be a reduction, such as 'sum', got 'median'"),
        (("mean", [3]), {"dtype": "int32"}, ValueError, "dtype of mean .*, got 'int32'"),
        (("sum", [3]), {"device": "tpu"}, ValueError, "device must be 'cpu' or 'cuda', got 'tpu'"),
        (("sum", [3, -1]), {}, ValueError, "shape must have a size in int64, got -1"),
        (("sum", [1 << 40, 1 << 40]), {}, ValueError, "shape must have a size in int64"),
        (("sum", [3], 1), {}, IndexError, "dim"),
    ],
)
def test_explain_reduce_refuses(
    args: tuple[Any, ...], options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        torch.ops.xgemm.explain_reduce(*args, **options)


def test_a_product_has_no_dimension() -> None:
    with pytest.raises(ValueError, match="dim must be left out for op 'mul', got 0"):
        xgemm.explain("mul", 1, 2, 3, dim=0)
