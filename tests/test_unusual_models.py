"""Models that are not plain when they are quantized, and modules of torch's own."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import xgemm
from xgemm.nn import QuantLinear


def test_made_under_inference_mode(tmp_path: Path) -> None:
    """The parameters are usable afterwards: autograd accepts no inference tensors."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(48, 64), nn.Linear(64, 32))
    other = nn.Sequential(nn.Linear(48, 64), nn.Linear(64, 32))
    with torch.inference_mode():
        xgemm.quantize(model, group_size=32)
        xgemm.save(model, tmp_path / "out")
        xgemm.load(tmp_path / "out", model=other)
    for made in (model, other):
        x = torch.randn(3, 48, requires_grad=True)
        made(x).sum().backward()
        assert x.grad is not None
        assert made[0].bias.grad is not None
    assert torch.equal(model(x), other(x))


@pytest.mark.parametrize("kind", ["weight_norm", "spectral_norm", "prune", "parametrized"])
def test_computed_weights_are_left(kind: str) -> None:
    torch.manual_seed(0)
    layer = nn.Linear(48, 64)
    if kind == "prune":
        from torch.nn.utils import prune

        prune.l1_unstructured(layer, "weight", amount=0.5)
    elif kind == "parametrized":
        layer = nn.utils.parametrizations.orthogonal(layer)
    else:
        layer = getattr(nn.utils, kind)(layer)
    model = nn.Sequential(layer, nn.Linear(64, 64)).eval()
    x = torch.randn(3, 48)
    expected = model[0](x)
    xgemm.quantize(model, group_size=32)
    assert model.xgemm_report.quantized == ["1"]
    assert "0" in model.xgemm_report.left
    assert torch.equal(model[0](x), expected)


def test_a_compiled_model_is_quantized_inside() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(48, 64), nn.ReLU())
    compiled = torch.compile(model, backend="eager")
    xgemm.quantize(compiled, group_size=32)
    x = torch.randn(3, 48)
    with torch.no_grad():
        assert torch.equal(compiled(x), model(x))
    assert isinstance(model[0], QuantLinear)


def test_double_models() -> None:
    """float64 weights are quantized; float64 activations are refused by name, not miscomputed."""
    torch.manual_seed(0)
    model = xgemm.quantize(nn.Sequential(nn.Linear(48, 64)).double(), group_size=32)
    with pytest.raises((RuntimeError, TypeError, ValueError), match=r"float64|Double"):
        model(torch.randn(3, 48, dtype=torch.float64))


def test_lazy_models_are_run_first() -> None:
    model = nn.Sequential(nn.LazyLinear(64), nn.Linear(64, 32))
    with pytest.raises(ValueError, match=r"quantize: 0\.weight has no shape yet"):
        xgemm.quantize(model, group_size=32)
    model(torch.randn(2, 48))
    xgemm.quantize(model, group_size=32)
    assert model.xgemm_report.quantized == ["0", "1"]
