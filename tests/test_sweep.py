"""What benchmarks/sweep_mul.py does without a GPU: candidates, regret and fitted constants."""

from __future__ import annotations

import json
import math
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch
from extensions import object_of

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


def explain(cpp, device, shape):
    """What the engine says of operands that are aligned as far as their strides are."""
    a_row, a_col, b_row, b_col = shape.strides()
    problem = cpp.GemmProblem(
        m=shape.m, n=shape.n, k=shape.k, dtype="float32" if shape.precision else "float16",
        a=1 << 20, a_strides=(a_row, a_col),
        b=1 << 20, b_strides=(b_row, b_col), d=1 << 20, d_strides=(shape.n, 1),
    )  # fmt: skip
    return json.loads(cpp.explain_gemm_json(problem, device.capability, device.sm_count))


def test_keys_tell_the_candidates_apart_and_the_choice_is_one(sweep, h200, cpp):
    rng = random.Random(0)
    kernels = set()
    for _ in range(120):
        shape = sweep.random_shape(rng, ragged=rng.random() < 0.3)
        said = explain(cpp, h200, shape)
        keys = {sweep.Config.of(each).key for each in said["candidates"]}
        assert sweep.Config.of(said["choice"]).key in keys
        kernels |= {key.split()[0] for key in keys}
    assert {"sm90_persistent", "sm90_skinny", "sm90_single_tile", "gemv", "sm80"} <= kernels


def test_the_best_candidates_of_a_recorded_sweep_are_listed(sweep, h200, cpp):
    from sweep import recorded

    _, problems = recorded.read(BENCHMARKS.parent / "tests" / "data" / "dense_layers_h200.json.xz")
    lost = []
    for each in problems[::4]:
        said = explain(cpp, h200, each.shape)
        listed = {sweep.Config.of(candidate).key for candidate in said["candidates"]}
        best = min(each.us[key] for key in listed & set(each.us))
        lost.append(best / min(each.us.values()) - 1)
    assert sum(lost) / len(lost) < 0.01, "what the engine leaves out is seldom faster"


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


def test_least_squares_find_what_times_were_made_from(sweep):
    from sweep.tune import least_squares

    amounts = torch.rand(50, 3, dtype=torch.float64)
    true = torch.tensor([3.0, 0.2, 7.0], dtype=torch.float64)
    values = {"kLaunch": 1.0, "kByte": 1.0, "kCycle": 1.0}

    def residuals() -> torch.Tensor:
        now = torch.tensor(list(values.values()), dtype=torch.float64)
        return (amounts @ true).log() - (amounts @ now).log()

    least_squares(values, values.__setitem__, residuals, rounds=12)
    assert list(values.values()) == pytest.approx(true.tolist(), rel=1e-3)


def test_residuals_weigh_what_is_near_the_best(sweep):
    from types import SimpleNamespace

    from sweep.tune import Residuals

    record = sweep.Record(sweep.Shape(64, 64, 64), {"a 1": 2e-6, "a 2": 2e-6, "a 3": 9e-6}, {}, 1)
    estimates = {"a 1": 1.0, "a 2": 4.0, "a 3": 9.0, "b": 1.0}
    library = SimpleNamespace(open=lambda *_: SimpleNamespace(estimates=estimates))
    found = Residuals(library, None, [record], lambda key: key.startswith("a"))()
    # Twice and half as long: as much beside each other as to be seen, and right in the mean.
    assert sorted(found.tolist()) == pytest.approx(
        [-math.log(2) * 0.5**0.5, 0.0, math.log(2) * 0.5**0.5], abs=1e-9
    )


@pytest.mark.skipif(shutil.which("g++") is None, reason="compiles the choice")
def test_a_choice_with_other_constants(sweep, h200, tmp_path, cpp):
    from sweep.tune import GEMM, TunedLibrary

    source = BENCHMARKS.parent / "csrc/cuda/gemm/sm90/single_tile/select.cpp"
    others = [object_of(path) for path in GEMM.choice_sources() if path != source]
    library = TunedLibrary(source, tmp_path, others)
    layer = sweep.Shape(512, 4096, 4096)
    assert library.choice.select(layer, h200).kernel == "sm90_single_tile"
    library.set("kLaunchUs", 1e6)
    assert library.choice.select(layer, h200).kernel != "sm90_single_tile"
    # Without kernels every choice links: that of another file, too.
    assert library.choice.select(sweep.Shape(300, 8192, 8192), h200).kernel.startswith("sm90")


@pytest.mark.skipif(shutil.which("g++") is None, reason="compiles the choice")
@pytest.mark.parametrize("kernel", ["sm90/persistent", "sm90/skinny", "gemv"])
def test_constants_of_another_file_may_be_variables(sweep, tmp_path, kernel):
    from sweep.tune import as_variables

    root = BENCHMARKS.parent
    text = (root / "csrc/cuda/gemm" / kernel / "select.cpp").read_text()
    (tmp_path / "tuned.cpp").write_text(as_variables(text, list(sweep.constants(text))))
    command = ["g++", "-std=c++20", "-fsyntax-only", f"-I{root / 'csrc'}", tmp_path / "tuned.cpp"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_random_products_of_few_rows_or_columns_list_every_stream(sweep, h200, cpp):
    import sweep_fp32

    rng = random.Random(0)
    layouts, columns, sides = set(), set(), set()
    for _ in range(40):
        shape = sweep_fp32.random_few(rng, "ieee")
        assert 1 <= min(shape.m, shape.n) <= 4
        keys = [sweep.Config.of(each).key for each in explain(cpp, h200, shape)["candidates"]]
        streams = [key for key in keys if key.startswith("fp32 ")]
        assert len(set(streams)) == len(streams)
        columns |= {key.split()[1].partition("x")[2] for key in streams}
        layouts.add(shape.layout)
        sides.add(shape.m < shape.n)
    assert len(layouts) == 4
    assert sides == {False, True}
    assert columns == {"4", "8", "16", "32", "128"}
