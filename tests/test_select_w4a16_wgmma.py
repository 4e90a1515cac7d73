"""Which tile the W4A16 kernel by wgmma gives a product, and how it shares K."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xgemm.bench.shapes import LLAMA_8B, LLAMA_70B

HOPPER = {"capability": 90, "sm_count": 132}
LAYERS = {**LLAMA_8B, **LLAMA_70B}
EXTENTS = st.one_of(
    st.integers(1, 300),
    st.integers(1, 40_000),
    st.sampled_from([768, 1792, 4096, 8192, 14336, 28672, 2**20]),
)


@st.composite
def problems(draw: st.DrawFn) -> dict[str, Any]:
    return {
        "m": draw(st.one_of(st.integers(1, 300), st.integers(1, 2**20))),
        "n": draw(EXTENTS),
        "k": draw(EXTENTS),
        "group_size": draw(st.sampled_from([32, 64, 128, -1])),
        "zeros": draw(st.booleans()),
        "dtype": draw(st.sampled_from(["float16", "bfloat16"])),
        "batch_invariant": draw(st.booleans()),
    }


def choose(cpp: ModuleType, **problem: Any) -> Any:
    return cpp.select_w4_wgmma(cpp.W4A16Problem(**problem), **HOPPER)


@given(problems())
def test_what_is_launched_fits(cpp: ModuleType, problem: dict[str, Any]) -> None:
    config = choose(cpp, **problem)
    m, n, k = problem["m"], problem["n"], problem["k"]
    consumers, units = config.block_n // 64, -(-k // 128)
    sharers = config.cluster // config.splits
    assert config.kernel == "sm90_wgmma"
    assert config.splits * sharers == config.cluster <= 8
    assert sharers in (1, 2)
    assert config.splits in (1, 2, 4)
    assert config.splits == 1 or (cpp.w4_wgmma_may_split(consumers, config.block_m))
    assert config.splits <= units
    assert config.block_m % (8 * sharers) == 0, "a box of X begins where the swizzle does"
    tiles = -(-m // config.block_m) * -(-n // (config.block_n * sharers))
    clusters = config.ctas // config.cluster
    assert config.ctas % config.cluster == 0
    assert 0 < config.ctas <= HOPPER["sm_count"]
    partials = 0
    if config.stream_k:
        assert config.splits == 1
        assert clusters <= tiles * units < 2**31
        flags = -(-config.ctas * consumers * 8 // 256) * 256
        partials = flags + config.ctas * config.block_n * config.block_m * 4
    else:
        assert clusters <= tiles < 2**31
    assert config.copy_x == (k % 8 != 0 and m > 1)
    copied = m * -(-k // 8) * 8 * 2 if config.copy_x else 0
    assert config.workspace_bytes == partials + copied


@given(problems())
def test_an_invariant_sum_does_not_depend_on_m(cpp: ModuleType, problem: dict[str, Any]) -> None:
    problem["batch_invariant"] = True
    ways = set()
    for m in (1, 8, 24, 32, 100, 1000, 70_000):
        config = choose(cpp, **{**problem, "m": m})
        parts = (config.warps // 4 - 1) // (config.block_n // 64)
        shares = (config.ctas, config.block_n) if config.stream_k else None
        ways.add((config.splits, parts, shares))
    assert len(ways) == 1


@pytest.mark.parametrize("m", [32, 64, 128, 256, 1024, 4096])
@pytest.mark.parametrize("layer", LAYERS)
def test_layers_of_models_keep_the_sms_busy(cpp: ModuleType, layer: str, m: int) -> None:
    n, k = LAYERS[layer]
    config = choose(cpp, m=m, n=n, k=k)
    if config.stream_k:
        busy = config.ctas / HOPPER["sm_count"]
    else:
        sharers = config.cluster // config.splits
        tiles = -(-m // config.block_m) * -(-n // (config.block_n * sharers))
        waves = -(-tiles // (config.ctas // config.cluster))
        busy = tiles * config.cluster / (waves * HOPPER["sm_count"])
    # Small layers leave SMs idle where more of them would only wait for each other's sums.
    assert busy > (0.45 if n * k < 2**25 else 0.7)


@pytest.mark.parametrize("other", [{"m": 0}, {"n": 0}, {"k": 0}, {"dtype": "float32"}])
def test_other_problems_are_left_to_other_kernels(cpp: ModuleType, other: dict[str, Any]) -> None:
    assert choose(cpp, **{"m": 64, "n": 4096, "k": 4096, **other}) is None


def test_only_hopper(cpp: ModuleType) -> None:
    problem = cpp.W4A16Problem(m=64, n=4096, k=4096)
    assert cpp.select_w4_wgmma(problem, capability=80, sm_count=108) is None
    assert cpp.select_w4_wgmma(problem, capability=100, sm_count=148) is None


def test_one_kernel_for_every_m_where_bits_must_not_depend_on_it(cpp: ModuleType) -> None:
    for m in (1, 24, 25, 1000):
        problem = cpp.W4A16Problem(m=m, n=4096, k=4096, batch_invariant=True)
        config = cpp.select_w4a16(problem, **HOPPER)
        assert config.kernel == "sm90_wgmma"


def test_explain_names_the_kernel(cpp: ModuleType) -> None:
    problem = cpp.W4A16Problem(m=100, n=6144, k=4096)
    config = cpp.select_w4a16(problem, **HOPPER)
    text = cpp.explain_w4a16(problem, config)
    assert "sm90 wgmma" in text
    assert f"tile {config.block_m}x{config.block_n}" in text


def test_x_that_l2_does_not_keep_is_read_once(cpp: ModuleType) -> None:
    """Where shares begin anywhere, up to 58 MB of X are read again for each tile of columns."""
    for m, n, k in ((2048, 832, 14336), (2048, 896, 9472), (1408, 1344, 15872)):
        config = choose(cpp, m=m, n=n, k=k)
        tiles = -(-m // config.block_m) * -(-n // (config.block_n * config.cluster))
        clusters = config.ctas // config.cluster
        assert not config.stream_k or tiles * (k // 128) % clusters == 0
