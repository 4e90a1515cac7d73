"""What benchmarks/sweep_mul.py does without a GPU: candidates, regret and fitted constants."""

from __future__ import annotations

import math
import random
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture(scope="module")
def sweep() -> Iterator[ModuleType]:
    """The script as a module; its parts are imported beside it, as when it is run."""
    sys.path.insert(0, str(BENCHMARKS))
    try:
        import sweep_mul

        yield sweep_mul
    finally:
        sys.path.remove(str(BENCHMARKS))


@pytest.fixture
def h200(sweep):
    return sweep.Device("NVIDIA H200", 132, 90)


@pytest.fixture
def families(sweep):
    """What each family might choose; the rest of a choice follows from it."""
    return [
        sweep.Config(
            "sm90_persistent", 128, 256, 0, 2, ctas=2, tma_store=True
        ),  # no tile of the list
        sweep.Config("sm80", 128, 128, 0, ctas=1),
        sweep.Config("gemv", 1, 2, 0, ctas=2048),
    ]


def test_candidates_fill_the_gpu_and_leave_no_part_of_k_empty(sweep, h200, families):
    rng = random.Random(0)
    for _ in range(300):
        shape = sweep.random_shape(rng, ragged=rng.random() < 0.5)
        found = sweep.candidates(shape, h200, families)
        assert len({config.key for config in found}) == len(found)
        assert {config.kernel for config in found} == {"sm90_persistent", "sm80", "gemv"}
        for config in found:
            assert config.ctas >= 1
            if config.kernel == "sm90_persistent" and config not in families:
                assert config.ctas % config.cluster == 0
                assert config.ctas <= h200.sm_count
            if config.kernel == "sm80":
                part = -(-shape.k // config.splits)
                assert config.splits == 1 or part * (config.splits - 1) < shape.k
    odd = sweep.candidates(sweep.Shape(511, 513, 515), h200, families)
    assert not any(config.kernel == "sm80" and config.block_n == 256 for config in odd)
    assert sweep.candidates(sweep.Shape(64, 64, 64), h200, []) == []


def choice(cpp, device, shape):
    """select_config's, for operands that are aligned as far as their strides are."""
    a_row, a_col, b_row, b_col = shape.strides()
    problem = cpp.GemmProblem(
        m=shape.m, n=shape.n, k=shape.k, dtype="float16", a=1 << 20, a_strides=(a_row, a_col),
        b=1 << 20, b_strides=(b_row, b_col), d=1 << 20, d_strides=(shape.n, 1),
    )  # fmt: skip
    return cpp.select_gemm(problem, device.capability, device.sm_count)


def test_whatever_select_config_chooses_is_swept(sweep, h200, families, cpp):
    rng = random.Random(1)
    compared = set()
    for _ in range(1500):
        shape = sweep.random_shape(rng, ragged=rng.random() < 0.3)
        config = choice(cpp, h200, shape)
        kernel = config.kernel.name.lower()
        if (
            kernel not in ("sm90_persistent", "sm80") or config.shifted
        ):  # swept as the family has chosen it
            continue
        swept = {
            (c.block_m, c.block_n, c.stages, c.cluster, c.swapped, c.stream_k, c.splits): c
            for c in sweep.candidates(shape, h200, families)
            if c.kernel == kernel and c not in families
        }
        tile = config.block_m, config.block_n, config.stages, config.cluster
        tile = (*tile, config.swapped, config.stream_k)
        assert any(key[:6] == tile for key in swept), (shape, kernel, tile)
        same = swept.get((*tile, config.splits))
        if same is None:  # the sweep has fewer splits
            continue
        assert same.ctas == config.ctas, shape
        if kernel == "sm80" or (config.stream_k and not (config.copy_a or config.copy_b)):
            assert same.workspace_bytes == config.workspace_bytes, shape
        compared.add((kernel, tile, config.splits > 1))
    assert len(compared) >= 8


def test_whatever_is_chosen_of_small_tiles_is_swept(sweep, h200, cpp):
    rng = random.Random(3)
    family = sweep.Config("sm90_single_tile", 64, 32, 8)  # no tile of its own
    compared = set()
    for _ in range(400):
        extents = [8 * rng.randint(3, 130) for _ in range(3)]
        shape = sweep.Shape(*extents, rng.choice(("nt", "nn", "tn")))
        config = choice(cpp, h200, shape)
        if config.kernel.name != "SM90_SINGLE_TILE" or config.copy_a or config.copy_b:
            continue
        tile = config.block_m, config.block_n, config.stages, config.cluster, config.swapped
        tile = (*tile, config.splits)
        swept = {
            (c.block_m, c.block_n, c.stages, c.cluster, c.swapped, c.splits): c.ctas
            for c in sweep.candidates(shape, h200, [family])
        }
        assert swept.get(tile) == config.ctas, (shape, tile)
        compared.add(tile)
    assert len(compared) >= 20


def test_the_matrix_vector_kernel_is_swept_in_all_splits(sweep, h200):
    own = sweep.Config("gemv", 1, 2, 0, cluster=2, splits=2, ctas=4096)
    found = {c.splits: c for c in sweep.candidates(sweep.Shape(1, 4096, 4096), h200, [own])
             if c.kernel == "gemv"}  # fmt: skip
    assert sorted(found) == [1, 2, 4, 8]
    assert found[2] == own
    assert (found[8].ctas, found[8].cluster, found[8].workspace_bytes) == (16384, 8, 0)
    a100 = sweep.Device("NVIDIA A100", 108, 80)
    split = [c for c in sweep.candidates(sweep.Shape(1, 4096, 4096), a100, [own]) if c.splits == 4]
    assert [c.workspace_bytes for c in split if c.kernel == "gemv"] == [4 * 4 * 4096]


def record(sweep, seconds: dict[str, float], chosen: str):
    return sweep.Record(sweep.Shape(64, 64, 64), seconds, {}, 3.0, chosen)


def test_regret_is_the_choice_over_the_best(sweep, h200):
    records = [
        record(sweep, {"x splits 1": 2.0, "y splits 1": 1.0}, "x splits 1"),
        record(sweep, {"x splits 1": 1.0, "y splits 1": 4.0}, "x splits 1"),
        record(sweep, {"x splits 1": 1.0}, "z splits 1"),
    ]
    found = sweep.regret(records, None, h200)
    assert [ratio for ratio, _ in found.ratios] == [2.0, 1.0]
    assert found.unmeasured == records[2:]
    text = "\n".join(found.lines(worst=5))
    assert f"geometric mean {math.sqrt(2):.3f}x" in text
    assert "worst 2.000x" in text
    assert "1 choices were not swept" in text
    assert "geometric mean 2.121x" in sweep.against_torch(records)[0]
    assert any(line.split()[0] == "2" and "x" in line for line in sweep.winners(records))


def test_the_fit_finds_the_constants_that_times_were_made_of(sweep, h200):
    rng = random.Random(2)
    launch, overhead, rate = 3e-6, 1.5e-6, 700e12
    records = []
    for _ in range(60):
        shape = sweep.Shape(*(rng.randrange(1024, 12288, 8) for _ in range(3)))
        config = sweep.Config("sm90_persistent", 128, 256, 4, 2, ctas=132)
        tiles = math.ceil(shape.m / 128) * math.ceil(shape.n / 256)
        turns = math.ceil(tiles / 132)
        per_k = 2 * 128 * 256 * 132 / rate
        seconds = launch + turns * (overhead + shape.k * per_k)
        records.append(
            sweep.Record(shape, {config.key: seconds}, {config.key: config}, 1.0, config.key)
        )
    (found,) = sweep.fit(records, h200, "sm90_persistent")
    assert found["tile"] == (128, 256, 4, 2)
    assert math.isclose(found["tflops"], 700, rel_tol=1e-3)
    assert math.isclose(found["overhead_us"], 1.5, rel_tol=1e-2)
    assert math.isclose(found["launch_us"], 3.0, rel_tol=1e-1)
    assert found["mean_error"] < 1e-3


def test_a_sweep_is_kept_whole(sweep, h200, tmp_path):
    config = sweep.Config("sm80", 64, 64, 4, splits=3, ctas=6, workspace_bytes=128)
    made = sweep.Record(
        sweep.Shape(8, 16, 24, "tn", True), {config.key: 1e-5}, {config.key: config}, 2e-5,
        config.key,
    )  # fmt: skip
    path = tmp_path / "sweep.json"
    sweep.save(path, h200, 7, [made])
    assert sweep.load(path) == (h200, [made])


def test_random_shapes_are_aligned_unless_they_are_to_be_ragged(sweep):
    rng = random.Random(3)
    aligned = [sweep.random_shape(rng, ragged=False) for _ in range(200)]
    assert all(shape.n % 8 == shape.k % 8 == 0 for shape in aligned)
    assert {shape.layout for shape in aligned} == {"nt", "nn", "tn"}
    assert any(sweep.random_shape(rng, ragged=True).k % 8 for _ in range(20))
    assert min(shape.m for shape in aligned) < 16


SELECT = """\
constexpr double kLaunchUs = 5.25;  // a launch
// Two of them, and one that is computed.
constexpr double kTurnUs = 0.5, kBytesPerUs = 3.8e6;
constexpr double kBoth = 1 / 3.6e6;
constexpr double kTable[] = {1.0, 2.0};
constexpr int kMax = 4;
}  // namespace
}  // namespace xgemm::cuda::gemm::sm90
"""


def test_the_constants_of_a_source_are_found_and_replaced(sweep):
    found = sweep.constants(SELECT)
    assert found == {"kLaunchUs": 5.25, "kTurnUs": 0.5, "kBytesPerUs": 3.8e6}
    assert sweep.with_constants(SELECT, found) == SELECT
    changed = sweep.with_constants(SELECT, {**found, "kTurnUs": 0.61237})
    assert changed == SELECT.replace("kTurnUs = 0.5", "kTurnUs = 0.6124")
    for source in (sweep.Path(BENCHMARKS.parent / "csrc/cuda/gemm")).rglob("select.cpp"):
        text = source.read_text()
        assert sweep.with_constants(text, sweep.constants(text)) == text, source


def test_tuning_stops_where_nothing_gets_better(sweep):
    from sweep.tune import tune

    values = {"a": 1.0, "b": 5.0, "unused": 2.0}

    def cost() -> float:
        return 1 + abs(math.log(values["a"] / 2)) + abs(math.log(values["b"] / 4))

    assert tune(values, values.__setitem__, cost, rounds=20) < 1.1
    assert values["unused"] == 2.0
    assert math.isclose(values["a"], 2.0, rel_tol=0.1)
    assert math.isclose(values["b"], 4.0, rel_tol=0.1)


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="compiles the choice with nvcc's headers")
def test_a_choice_with_other_constants(sweep, h200, tmp_path):
    from sweep.tune import TunedLibrary

    source = BENCHMARKS.parent / "csrc/cuda/gemm/sm90/single_tile/select_k_major.cpp"
    library = TunedLibrary(source, tmp_path)
    layer = sweep.Shape(512, 4096, 4096)
    assert library.select(layer, h200).kernel == "sm90_single_tile"
    library.set("kLaunchUs", 1e6)
    assert library.select(layer, h200).kernel != "sm90_single_tile"


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="compiles the choice with nvcc's headers")
def test_every_choice_links_without_kernels(sweep, h200, tmp_path):
    from sweep.tune import TunedLibrary

    gemm = BENCHMARKS.parent / "csrc/cuda/gemm"
    library = TunedLibrary(gemm / "sm90" / "skinny" / "select.cpp", tmp_path)
    assert library.select(sweep.Shape(300, 8192, 8192), h200).kernel.startswith("sm90")
