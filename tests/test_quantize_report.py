"""The report of errors: what each layer's weights and outputs lose, as numbers, table and plot."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import xgemm
from xgemm.quantize.errors import layer_error, storage_bits

pytestmark = pytest.mark.filterwarnings("ignore:quantize. 4 bits hold:UserWarning")


def problem(n: int = 24, k: int = 160, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    w = torch.randn(n, k, generator=generator, dtype=torch.float64).mul(0.05)
    x = torch.randn(3, 40, k, generator=generator, dtype=torch.float64) * torch.rand(k)
    return w, x


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("block", [1, 1000, 1 << 20])
def test_errors_are_those_of_float64(
    symmetric: bool, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules["xgemm.quantize.errors"], "BLOCK_WEIGHTS", block)
    w, x = problem()
    q = xgemm.quantize_weight(w, group_size=64, symmetric=symmetric)
    difference = w - q.dequantize(torch.float64)
    weights = float(difference.norm() / w.norm())
    outputs = float((x @ difference.t()).norm() / (x @ w.t()).norm())
    flat = x.reshape(-1, x.shape[-1])
    for error in (
        layer_error(w, q, inputs=x),
        layer_error(w.float(), q, inputs=x.float()),
        layer_error(w, q, hessian=flat.t() @ flat),
        layer_error(w.float(), q, hessian=(flat.t() @ flat / len(flat)).float()),
    ):
        assert error.weights == pytest.approx(weights, rel=1e-4)
        assert error.outputs == pytest.approx(outputs, rel=1e-4)
    assert layer_error(w, q).outputs is None


def test_bits_per_weight() -> None:
    w, _ = problem(24, 160)
    plain = xgemm.quantize_weight(w, group_size=64)  # 3 groups of 64, the last one short
    assert layer_error(w, plain).bits_per_weight == 4 + 16 * 3 / 160
    zeros = xgemm.quantize_weight(w, group_size=32, symmetric=False)
    assert layer_error(w, zeros).bits_per_weight == 4 + 32 * 5 / 160
    order = torch.arange(160, dtype=torch.int32) // 64
    ordered = xgemm.QuantizedWeight(plain.codes, plain.scales, None, order, 64)
    assert storage_bits(ordered) == storage_bits(plain) + 32 * 160


def test_errors_add_up_to_those_of_the_layers_beside_one_another() -> None:
    w, x = problem()
    q = xgemm.quantize_weight(w, group_size=32)
    whole = layer_error(w, q, inputs=x)
    parts = [layer_error(w[rows], q.rows(rows), inputs=x) for rows in (slice(0, 7), slice(7, None))]
    together = parts[0] + parts[1]
    assert together.as_dict() == pytest.approx(whole.as_dict())
    assert (together.count, together.bits) == (whole.count, whole.bits)
    assert (parts[0] + layer_error(w[7:], q.rows(slice(7, None)))).outputs is None


@pytest.mark.parametrize("factor", [0.0, 1e-30, 1e30])
def test_strange_weights_have_finite_errors(factor: float) -> None:
    w, x = problem()
    error = layer_error(w.float() * factor, xgemm.quantize_weight(w.float() * factor), x.float())
    assert error.weights == 0.0 if factor == 0 else 0 < error.weights < 0.2
    assert error.outputs is not None
    assert math.isfinite(error.outputs)


def test_no_error_beside_nothing_is_infinite_and_null_in_json() -> None:
    w, _ = problem()
    error = layer_error(torch.zeros_like(w), xgemm.quantize_weight(w))
    assert error.weights == math.inf
    assert error.as_dict()["weights"] is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"weight": torch.zeros(3, 160)}, r"weight must be \[24, 160\], got \[3, 160\]"),
        ({"inputs": torch.zeros(2, 24)}, r"inputs must be \[..., 160\], got \[2, 24\]"),
        ({"hessian": torch.zeros(160)}, r"hessian must be \[160, 160\], got \[160\]"),
        (
            {"inputs": torch.zeros(1, 160), "hessian": torch.zeros(160, 160)},
            "give inputs or hessian, not both",
        ),
    ],
)
def test_shapes_that_disagree_are_refused(arguments: dict, message: str) -> None:
    w, _ = problem()
    given = {"weight": w, "quantized": xgemm.quantize_weight(w), **arguments}
    with pytest.raises(ValueError, match=message):
        layer_error(**given)


class Stack(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(64, 64) for _ in range(3)])
        self.out = nn.Linear(64, 32, bias=False)


@pytest.fixture
def model() -> Stack:
    torch.manual_seed(0)
    return Stack()


def test_report_has_the_error_of_each_layer(model: Stack) -> None:
    floats = {name: module.weight.detach() for name, module in model.named_modules() if
              isinstance(module, nn.Linear)}  # fmt: skip
    floats["layers.1"].mul_(torch.linspace(0.1, 10, 64))  # rough columns: the largest error
    report = xgemm.quantize(model, group_size=32, skip="layers.0").xgemm_report
    assert list(report.errors) == report.quantized == ["layers.1", "layers.2", "out"]
    for name, error in report.errors.items():
        dequantized = model.get_submodule(name).dequantize(torch.float32)
        expected = float((floats[name] - dequantized).norm() / floats[name].norm())
        assert error.weights == pytest.approx(expected, rel=1e-4)
    assert report.layers_by_kind() == {"layers.*": ["layers.1", "layers.2"], "out": ["out"]}
    assert report.worst(report.errors) == "layers.1"
    assert "4.50 bits a weight; the largest" in str(report)
    read = json.loads(report.to_json())
    assert read["errors"]["out"]["bits_per_weight"] == 4.5
    assert read["errors"]["out"]["outputs"] is None
    assert read["error"]["weights"] == pytest.approx(report.error.weights)
    assert read["left"]["layers.0"] == "skip names it ('layers.0')"


def test_plot(model: Stack, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from xgemm.quantize.plot import plot_errors

    report = xgemm.quantize(model, group_size=32).xgemm_report
    plot_errors(report, tmp_path / "errors.png")
    assert (tmp_path / "errors.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    report.errors.clear()
    with pytest.raises(ValueError, match="no quantized layer"):
        plot_errors(report, tmp_path / "none.png")
    assert report.error is None
