"""Which CUDA kernel a product with a packed weight gets, and how that for few rows divides K."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xgemm.bench.shapes import LLAMA_8B, LLAMA_70B

HOPPER = {"capability": 90, "sm_count": 132}
LAYERS = {**LLAMA_8B, **LLAMA_70B}
# The tiles of csrc/cuda/w4a16/sm80/tile.h, and how many warps share K.
SM80_WARPS_K = {
    (8, 64): 8, (8, 128): 2, (16, 64): 8, (16, 128): 2, (32, 64): 4, (32, 128): 2, (64, 128): 1,
    (64, 256): 1,
}  # fmt: skip
EXTENTS = st.one_of(
    st.integers(1, 300),
    st.integers(1, 40_000),
    st.sampled_from([768, 1792, 4096, 8192, 14336, 28672, 2**20]),
)


@st.composite
def problems(draw: st.DrawFn) -> dict[str, Any]:
    return {
        "m": draw(st.integers(1, 24)),
        "n": draw(EXTENTS),
        "k": draw(EXTENTS),
        "group_size": draw(st.sampled_from([32, 64, 128, -1])),
        "zeros": draw(st.booleans()),
        "dtype": draw(st.sampled_from(["float16", "bfloat16"])),
        "bf16_scales": draw(st.booleans()),
    }


def choose(cpp: ModuleType, **problem: Any) -> tuple[Any, Any]:
    """The config and the split of K that it stands for, or two None."""
    described = cpp.W4A16Problem(**problem)
    config = cpp.select_w4_rows(described, **HOPPER)
    return config, config and config.split


@given(problems())
def test_what_is_launched_fits(cpp: ModuleType, problem: dict[str, Any]) -> None:
    config, split = choose(cpp, **problem)
    fine = problem["group_size"] in (32, 64)
    if config is None:
        too_many = fine and problem["m"] > 16
        assert too_many or problem["k"] > 8192, "only X can be too large for a cluster"
        return
    limits = cpp.W4_ROWS
    mma_tiles = -(-problem["m"] // 8)
    assert config.block_m == problem["m"]
    assert 1 <= config.warps <= cpp.w4_rows_most_warps(mma_tiles, fine)
    assert 1 <= config.stages <= limits["MOST_STAGES"]
    assert config.cluster in (1, 2, 4, 8)
    assert config.ctas % config.cluster == 0
    assert 0 < config.ctas <= HOPPER["sm_count"]
    assert config.workspace_bytes == 0
    assert split.least_units >= 1
    assert split.buffers <= limits["MOST_BUFFERS"]
    assert split.x_pitch % 128 == limits["X_PADDING"]

    plan = split.plan()
    assert plan.inbox >= limits["BARRIER_BYTES"]
    assert plan.x - plan.inbox >= (limits["INBOX_BYTES"] if config.cluster > 1 else 0)
    assert plan.x_sums - plan.x >= problem["m"] * split.x_pitch
    groups = {32: 4, 64: 4}.get(problem["group_size"], 1)
    assert plan.sums - plan.x_sums >= mma_tiles * split.most_units * groups * 32
    pitch = cpp.w4_rows_sum_pitch(split.strips)
    sums = split.buffers * split.warps * problem["m"] * pitch * 4
    assert plan.pipeline - plan.sums >= sums
    assert plan.bytes - plan.pipeline == config.warps * config.stages * split.piece_bytes
    assert plan.bytes <= limits["SMEM_BYTES"]
    assert plan.x % 128 == plan.sums % 128 == plan.pipeline % 128 == 0


@pytest.mark.parametrize("m", [1, 8, 16])
@pytest.mark.parametrize("layer", LAYERS)
def test_layers_of_models_keep_the_sms_busy(cpp: ModuleType, layer: str, m: int) -> None:
    n, k = LAYERS[layer]
    config, split = choose(cpp, m=m, n=n, k=k)
    tiles = -(-n // config.block_n)
    clusters = config.ctas // config.cluster
    each, extra, extra_strips = cpp.w4_rows_share_tiles(n // 16, clusters, split.strips)
    waves = each + (extra_strips / split.strips if extra > 0 else 0)
    pieces = waves * split.most_units  # of the busiest CTA
    # Clusters of 4 leave 12 SMs idle. One wave of wide tiles without clusters is faster on 96 SMs
    # than several waves on all (8B.qkv with one row: 10.1 us in place of 10.7).
    least = 0.9 if config.cluster <= 2 else 0.85
    if config.cluster == 1 and waves == 1:
        least = 0.7
    assert tiles * split.units / (pieces * HOPPER["sm_count"]) > least
    # At most as many bytes of X as of the weight go to an SM.
    assert m * split.x_pitch <= pieces * split.piece_bytes


@pytest.mark.parametrize("m", [1, 2, 4])
@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("group_size", [32, 128])
def test_decode_steps_stream(cpp: ModuleType, layer: str, m: int, group_size: int) -> None:
    """Whatever the groups are: with groups of 32 the wgmma kernel takes up to twice as long."""
    n, k = LAYERS[layer]
    problem = cpp.W4A16Problem(m=m, n=n, k=k, group_size=group_size, zeros=group_size == 32)
    kernel = cpp.select_w4a16(problem, **HOPPER).kernel
    assert kernel in ("sm90_skinny", "sm90_register_resident")


@given(problems(), st.integers(1, 2))
def test_whole_weights_fit_into_registers(cpp: ModuleType, problem: dict[str, Any], m: int) -> None:
    problem["m"] = m
    config = cpp.select_w4_whole(cpp.W4A16Problem(**problem), **HOPPER)
    n, k = problem["n"], problem["k"]
    plain = problem["group_size"] == 128 and not problem["zeros"]
    plain = plain and (problem["dtype"] == "bfloat16" or not problem["bf16_scales"])
    fits = m == 1 and n <= 132 * 16 and k <= 4096
    assert (config is not None) == (plain and fits)
    if config is None:
        return
    assert (config.block_m, config.block_n) == (1, 16)
    assert (config.ctas - 1) * config.block_n < n <= config.ctas * config.block_n
    assert config.ctas <= HOPPER["sm_count"]
    assert (config.warps - 1) * 256 < k <= config.warps * 256
    assert config.workspace_bytes == 0


@pytest.mark.parametrize("other", [{"m": 2}, {"perm": True}, {"batch_invariant": True}])
def test_whole_weights_of_other_problems(cpp: ModuleType, other: dict[str, Any]) -> None:
    problem = cpp.W4A16Problem(**{"m": 1, "n": 1024, "k": 1024, **other})
    assert cpp.select_w4_whole(problem, **HOPPER) is None
    assert cpp.select_w4a16(problem, **HOPPER).kernel != "sm90_register_resident"


def test_small_weights_are_whole(cpp: ModuleType) -> None:
    problem = cpp.W4A16Problem(m=1, n=2048, k=2048)
    assert cpp.select_w4a16(problem, **HOPPER).kernel == "sm90_register_resident"


@pytest.mark.parametrize("layer", LAYERS)
def test_many_rows_in_perms_order_are_copied_first(cpp: ModuleType, layer: str) -> None:
    """The stream's CTAs would each pick them up by single elements, for longer than it takes."""
    n, k = LAYERS[layer]
    one, many = (
        cpp.select_w4a16(cpp.W4A16Problem(m=m, n=n, k=k, perm=True), **HOPPER) for m in (1, 16)
    )
    assert one.kernel == "sm90_skinny"
    assert many.kernel == "sm90_wgmma"
    assert many.copy_x


@pytest.mark.parametrize(
    "other",
    [
        {"m": 25},
        {"m": 17, "group_size": 64},
        {"m": 0},
        {"n": 0},
        {"k": 0},
        {"dtype": "float32"},
        {"batch_invariant": True},
    ],
)
def test_other_problems_are_left_to_other_kernels(cpp: ModuleType, other: dict[str, Any]) -> None:
    assert choose(cpp, **{"m": 1, "n": 4096, "k": 4096, **other})[0] is None


def test_only_hopper(cpp: ModuleType) -> None:
    problem = cpp.W4A16Problem(m=1, n=4096, k=4096)
    assert cpp.select_w4_rows(problem, capability=80, sm_count=108) is None
    assert cpp.select_w4_rows(problem, capability=100, sm_count=148) is None


def test_explain_names_the_kernel(cpp: ModuleType) -> None:
    problem = cpp.W4A16Problem(m=3, n=6144, k=4096)
    config = cpp.select_w4_rows(problem, **HOPPER)
    text = cpp.explain_w4a16(problem, config)
    assert "sm90 skinny" in text
    assert f"{config.warps} warps" in text


@given(
    strips=st.integers(1, 3000),
    clusters=st.sampled_from([1, 2, 7, 16, 33, 66, 132]),
    tile=st.sampled_from([2, 4]),
)
def test_strips_are_shared_out_once(cpp: ModuleType, strips: int, clusters: int, tile: int) -> None:
    """The rule of cta.cuh: whole tiles in waves, then what is left, in smaller ones if they do."""
    each, extra, extra_strips = cpp.w4_rows_share_tiles(strips, clusters, tile)
    taken = []
    for cluster in range(clusters):
        for wave in range(each + (cluster < extra)):
            width = extra_strips if wave == each else tile
            first = wave * clusters * tile + cluster * width
            taken += range(first, first + width)
    assert extra <= clusters
    assert extra_strips <= tile
    assert sorted(taken)[:strips] == list(range(strips))
    assert len(taken) < strips + tile  # the last tile may reach beyond them


@pytest.mark.parametrize("strips", [2, 4])
def test_sums_are_stored_without_bank_conflicts(cpp: ModuleType, strips: int) -> None:
    pitch = cpp.w4_rows_sum_pitch(strips)
    banks = {(2 * tig * pitch + gid) % 32 for gid in range(8) for tig in range(4)}
    assert len(banks) == 32


@given(
    problems(),
    st.sampled_from([1, 5, 16, 33, 64, 100, 700, 2**20]),
    st.booleans(),
    st.sampled_from([80, 86, 90]),
)
def test_some_kernel_takes_every_problem(
    cpp: ModuleType, problem: dict[str, Any], m: int, batch_invariant: bool, capability: int
) -> None:
    problem["m"], problem["batch_invariant"] = m, batch_invariant
    config = cpp.select_w4a16(cpp.W4A16Problem(**problem), capability=capability, sm_count=108)
    assert config.ctas > 0
    if capability < 90:
        assert config.kernel == "sm80"
    if problem["batch_invariant"]:
        assert config.kernel != "sm90_skinny"
    if config.kernel == "sm80":
        assert config.stages >= 2
        sums = max(2**28, 4 * 64 * config.splits * problem["n"])  # or 64 rows of all parts
        copy = 2 * m * (problem["k"] + 8) if config.copy_x else 0
        assert config.workspace_bytes <= sums + copy + 2**10
        together = SM80_WARPS_K[config.block_m, config.block_n]
        if config.block_n == 256:  # scales, here fp16, are multiplied into the weights
            assert not problem["zeros"]
            assert problem["dtype"] == "float16"
        units = -(-problem["k"] // 128)
        part = -(-units // config.splits // together) * together
        assert (config.splits - 1) * part < max(units, 1)


@given(problems(), st.sampled_from([80, 86, 90]))
def test_invariant_bits_have_one_order_of_k(
    cpp: ModuleType, problem: dict[str, Any], capability: int
) -> None:
    """The number of parts, and of warps that share K: a row's sum does not depend on M."""
    problem["batch_invariant"] = True
    orders = set()
    for m in (1, 8, 9, 17, 33, 200, 5000):
        described = cpp.W4A16Problem(**{**problem, "m": m})
        config = cpp.select_w4a16(described, capability=capability, sm_count=108)
        sm80 = config.kernel == "sm80"
        warps = SM80_WARPS_K[config.block_m, config.block_n] if sm80 else 0
        orders.add((config.kernel, config.splits, warps))
    assert len(orders) == 1


def test_only_16_bit_activations_have_a_kernel_of_their_own(cpp: ModuleType) -> None:
    problem = cpp.W4A16Problem(m=4, n=64, k=128, dtype="float32")
    assert cpp.select_w4a16(problem, **HOPPER) is None
