"""What a benchmark is made of: shapes, operands, floors and summaries. No time is judged."""

from __future__ import annotations

import math
from dataclasses import asdict

import pytest
import torch

import xgemm
from xgemm.bench import peers, run, shapes, summary, timing
from xgemm.bench.floors import CEILINGS, floor_seconds
from xgemm.bench.options import LAYOUTS, Options
from xgemm.bench.plot import label_decades, load_pyplot, plain_ticks, plot_benchmark, spaced
from xgemm.bench.record import Record
from xgemm.bench.summary import geometric_mean, summarize

H200 = "NVIDIA H200"


def test_the_floor_of_a_small_product_is_its_bytes_and_of_a_large_one_its_flops():
    # 32 MB were read in 13.2 us, and 48 MB lie half way to the 20.9 us of 64.
    assert math.isclose(floor_seconds(H200, 32e6, 1.0), 13.2e-6)
    assert math.isclose(floor_seconds(H200, 48e6, 1.0), 17.05e-6)
    assert math.isclose(floor_seconds(H200, 48e6, 80e12), 0.1)


def test_the_floor_rises_from_an_empty_kernel_beyond_the_table():
    seconds = [floor_seconds(H200, megabytes * 1e6, 0.0) for megabytes in (0, 1, 500, 1024, 4096)]
    assert seconds == sorted(seconds)
    assert math.isclose(seconds[0], 2.9e-6)
    assert math.isclose(seconds[-1], 246e-6 + 3072 * (246 - 130) / 512 * 1e-6)


def test_an_unknown_gpu_has_no_floor():
    assert floor_seconds("another GPU", 1e6, 1e9) is None
    for ceiling in CEILINGS.values():
        assert list(ceiling.read) == sorted(ceiling.read)


def record(name: str, layout: str, ours: float, theirs: float, floor: float | None) -> Record:
    seconds = {peers.OURS: ours, peers.TORCH: theirs}
    return Record("case", "2x3x4", seconds, 1.0, 1.0, 0.0, name, layout, floor)


def test_summaries_are_of_a_set_a_layout_and_a_sets_layouts_together():
    records = [
        record("one", "nn", 1.0, 2.0, 0.5),
        record("one", "nn", 1.0, 8.0, 0.5),
        record("one", "nt", 1.0, 0.5, None),
        record("two", "nn", 2.0, 3.0, None),
    ]
    groups = {(group["set"], group["layout"]): group for group in summarize(records)}
    assert set(groups) == {("one", "nn"), ("one", "nt"), ("two", "nn"), ("one", "all")}
    found = groups["one", "nn"]
    assert found["cases"] == 2
    assert math.isclose(found["speedup"]["torch"]["geomean"], 4.0)
    assert found["speedup"]["torch"]["worst"] == 2.0
    assert math.isclose(found["of_floor"]["xgemm"], 2.0)
    assert math.isclose(found["of_floor"]["torch"], 8.0)
    assert groups["one", "nt"]["of_floor"] == {}
    together = groups["one", "all"]
    assert math.isclose(together["speedup"]["torch"]["geomean"], 2.0)
    assert together["speedup"]["torch"]["worst_case"] == "2x3x4 nt"


def test_geometric_mean():
    assert math.isclose(geometric_mean([1.0, 2.0, 4.0]), 2.0)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_operands_lie_as_the_layout_says(layout):
    product = shapes.Product("tiny", 3, 5, 7)
    a, b = run._operands(product, layout, torch.float16, "cpu", 0)
    assert (a.shape, b.shape) == ((3, 7), (7, 5))
    for operand, letter in zip((a, b), layout, strict=True):
        assert (operand if letter == "n" else operand.t()).is_contiguous()
        assert operand.abs().min() < operand.abs().max()  # random, not zeros


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_every_set_has_shapes(device):
    for name in shapes.PRODUCT_SETS:
        products = shapes.products([name], device, 0)
        assert products
        assert {product.set for product in products} == {name}
        assert all(min(p.m, p.n, p.k) > 0 for p in products)


def test_what_the_sets_hold_on_a_gpu():
    rows = {name: {p.m for p in shapes.products([name], "cuda", 0)} for name in shapes.PRODUCT_SETS}
    assert max(rows["decode"]) == 128
    assert min(rows["prefill"]) == 512
    assert max(rows["prefill"]) == 8192
    assert rows["large"] == {2048, 4096, 8192, 16384}
    llama = shapes.products(["8b", "70b"], "cuda", 0)
    few = shapes.products(["decode", "prefill"], "cuda", 0)
    assert {(p.m, p.n, p.k) for p in few} < {(p.m, p.n, p.k) for p in llama}
    assert any(p.k % 8 for p in shapes.products(["odd"], "cuda", 0))
    for p in shapes.products(["aligned"], "cuda", 1):
        assert p.m % 8 == p.n % 8 == p.k % 8 == 0


def test_a_product_is_checked_from_its_first_element_to_its_last():
    x, w = torch.randn(40, 64), torch.randn(600, 64)
    y = x @ w.t()
    assert run._check_product(y, x, w, rounded_w=False) <= 1
    for row, column in ((0, 0), (39, 599)):
        wrong = y.clone()
        wrong[row, column] += 1
        with pytest.raises(ArithmeticError, match="differs from float64"):
            run._check_product(wrong, x, w, rounded_w=False)


@pytest.mark.parametrize(("each", "order"), [(1e-5, "ab ba ab ba"), (1e-3, "ab ab ba ab ba ab ba")])
def test_turns_on_a_gpu_go_both_ways(monkeypatch, each, order):
    """The first round of long calls is one more, which does not count."""
    turns: list[object] = []

    def time_turn(call):
        turns.append(call())
        return each if len(turns) <= 2 else 2 * each

    monkeypatch.setattr(timing, "_median_on_gpu", time_turn)
    seconds = timing.time_cuda({"a": lambda: "a", "b": lambda: "b"})
    assert "".join(map(str, turns)) == order.replace(" ", "")
    assert seconds == {"a": 2 * each, "b": 2 * each}


def test_torch_compile_is_a_peer_where_it_is_asked_for(monkeypatch):
    asked: list[dict[str, object]] = []

    def compile_nothing(function, **options):
        asked.append(options)
        return function

    monkeypatch.setattr(torch, "compile", compile_nothing)
    a, b = torch.randn(3, 4), torch.randn(4, 5)
    assert peers.COMPILED not in peers.mul_calls(a, b)
    calls = peers.mul_calls(a, b, compiled=True)
    torch.testing.assert_close(calls[peers.COMPILED](), a @ b)
    assert asked == [{"mode": "max-autotune-no-cudagraphs", "dynamic": False}]


def test_each_layout_is_a_record(monkeypatch):
    monkeypatch.setattr(shapes, "products", lambda *_: [shapes.Product("tiny", 3, 32, 128)])
    monkeypatch.setattr(timing, "SAMPLE_SECONDS", 1e-6)
    report = run.run_benchmark("mul", Options(layouts="nn, tn"))
    assert [found["layout"] for found in report["records"]] == ["nn", "tn"]
    assert {group["layout"] for group in report["summary"]} == {"nn", "tn", "all"}


def test_linears_are_summed_up_by_rows(monkeypatch):
    found = [shapes.Product("o", m, 32, 64, set="8b") for m in (1, 3, 20)]
    found.append(shapes.Product("16^3", 16, 16, 16, set="small"))
    monkeypatch.setattr(shapes, "products", lambda *_: found)
    monkeypatch.setattr(timing, "SAMPLE_SECONDS", 1e-6)
    bands = run.run_benchmark("mul", Options())["rows"]
    assert [band["rows"] for band in bands] == ["1", "3", "20"]
    assert all(band["cases"] == 1 for band in bands)


def test_wrong_options_are_named():
    for family, options, message in [
        ("conv", Options(), "family must be one of mul, w4a16, reduce, got 'conv'"),
        ("mul", Options(layouts="tt"), "layouts must be among nn, nt, tn, got 'tt'"),
        ("reduce", Options(layouts="nn"), "layouts: an option of mul, not reduce"),
        ("w4a16", Options(compile=True), "compile: an option of mul and reduce, not w4a16"),
        ("mul", Options(ops="sum"), "ops: an option of reduce, not mul"),
        ("reduce", Options(ops="max"), "ops must be among sum, mean, .*, got 'max'"),
        ("reduce", Options(rows="1"), "rows: an option of mul and w4a16, not reduce"),
        ("mul", Options(rows="1,zero"), "rows must be positive integers, got 'zero'"),
        ("mul", Options(asymmetric=True), "asymmetric: an option of w4a16, not mul"),
        ("w4a16", Options(group_size=48), "group-size must be one of 32, 64, 128, -1, got 48"),
    ]:
        with pytest.raises(ValueError, match=message):
            run.run_benchmark(family, options)


def test_rows_stand_in_for_those_of_the_sets_of_linears():
    chosen = shapes.products(["8b", "small"], "cuda", 0, rows=(3, 500))
    linears = [p for p in chosen if p.set == "8b"]
    assert {(p.n, p.k, p.m) for p in linears} == {
        (n, k, m) for n, k in shapes.LLAMA_8B.values() for m in (3, 500)
    }
    assert [p for p in chosen if p.set != "8b"] == shapes.products(["small"], "cuda", 0)


@pytest.mark.parametrize("asymmetric", [False, True])
def test_a_weights_format_is_chosen(asymmetric, monkeypatch):
    monkeypatch.setattr(timing, "SAMPLE_SECONDS", 1e-6)
    asked = []
    linear = xgemm.linear

    def watched(x, p, **options):
        asked.append((p.group_size, p.has_zeros, options))
        return linear(x, p, **options)

    monkeypatch.setattr(xgemm, "linear", watched)
    monkeypatch.setattr(shapes, "products", lambda *_: [shapes.Product("tiny", 3, 32, 128)])
    options = Options(group_size=32, asymmetric=asymmetric, batch_invariant=True)
    report = run.run_benchmark("w4a16", options)
    assert all(each == (32, asymmetric, {"batch_invariant": True}) for each in asked)
    assert len(report["records"]) == 1
    assert report["options"]["group_size"] == 32
    assert ("torch int4 (bf16)" in report["records"][0]["seconds"]) != asymmetric


def test_ops_are_chosen(monkeypatch):
    monkeypatch.setattr(shapes, "reductions", lambda *_: [shapes.Reduction("rows", (3, 50), (1,))])
    monkeypatch.setattr(timing, "SAMPLE_SECONDS", 1e-6)
    report = run.run_benchmark("reduce", Options(sets="rows", ops="amax, sum"))
    assert [found["case"] for found in report["records"]] == ["amax rows", "sum rows"]


def test_w4a16_is_summed_up_by_rows(tmp_path):
    """A band for each regime of M, and a panel for each weight in the plot."""
    records = [
        Record(layer, f"{m}x64x128", {peers.OURS: m * 1e-6, peers.DENSE: 2e-6 * m}, 1.0, 1.0, 0.1,
               set="decode", floor_seconds=1e-6)
        for layer in ("o", "down")
        for m in (1, 2, 8, 16, 128, 4096)
    ]  # fmt: skip
    bands = summary.summarize_rows(records)
    assert [band["rows"] for band in bands] == ["1", "2 .. 8", "16", "128", "4096"]
    assert [band["cases"] for band in bands] == [2, 4, 2, 2, 2]
    assert bands[1]["speedup"][peers.DENSE]["geomean"] == pytest.approx(2)
    report = {
        "family": "w4a16", "dtype": "float16", "device": "a GPU", "torch": "2",
        "records": [{**asdict(record), "speedup": record.speedup()} for record in records],
    }  # fmt: skip
    plot_benchmark(report, tmp_path / "rows.png")
    assert (tmp_path / "rows.png").stat().st_size > 10_000


def test_ticks_are_plain_numbers_that_do_not_touch():
    """No 2^5 and no 6x10^0: a reader of a plot looks for 32 rows and 6 us."""
    rows = [1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128]
    assert spaced(rows, 1, 128, 11) == [1, 2, 4, 8, 16, 32, 64, 128]
    assert spaced([5, 10, 20], 6, 30, 5, keep=[8.0]) == [8, 20]
    pyplot = load_pyplot()
    figure, axis = pyplot.subplots()
    axis.plot([1, 128], [6, 80])
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    axis.set_ylim(6, 80)
    plain_ticks(axis.xaxis, spaced(rows, 1, 128, 11))
    label_decades(axis.yaxis, *axis.get_ylim())
    figure.canvas.draw()
    labels = [label.get_text() for label in axis.get_xticklabels(which="both")]
    assert labels == ["1", "2", "4", "8", "16", "32", "64", "128"]
    assert [label.get_text() for label in axis.get_yticklabels(which="both")] == ["10", "20", "50"]
    pyplot.close(figure)


def test_a_sum_beyond_the_types_range_is_right_when_it_is_infinite(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x = torch.full((300,), 1000.0, dtype=torch.float16)
    run._check_reduction("sum", x, (0,))
    wrong = {peers.OURS: lambda: torch.tensor(-math.inf, dtype=torch.float16)}
    real = peers.reduce_calls
    monkeypatch.setattr(peers, "reduce_calls", lambda op, x, dims: {**real(op, x, dims), **wrong})
    with pytest.raises(ArithmeticError, match="sum differs"):
        run._check_reduction("sum", x, (0,))
