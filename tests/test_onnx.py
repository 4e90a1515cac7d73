"""xgemm.onnx: quantized models in ONNX Runtime against the layers themselves."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from fusing import X, block
from helpers import randn, random_weight
from torch import nn

import xgemm
from xgemm.nn import FusedLinear, QuantExperts, QuantLinear
from xgemm.onnx import MatMulNBits

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


def layer(n=48, k=100, activation="none", dtype=torch.float32, four_bits=False, **options):
    """`four_bits`: zero points up to 15; GPTQ's go to 16."""
    q = random_weight(n, k, **options)
    if four_bits:
        q.zeros.clamp_(max=15)
    packed = xgemm.pack(q)
    bias = randn((n,), dtype, 1) if n % 3 == 0 else None
    return QuantLinear.from_packed(packed, bias, activation, dtype)


FORMATS = {
    "symmetric": {"group_size": 32},
    "ragged K": {"group_size": 128, "k": 130, "n": 15},
    "short K": {"group_size": 128, "k": 20, "n": 1},
    "integer zeros": {"group_size": 64, "zeros": "integer", "k": 192, "four_bits": True},
    "zeros of 16": {"group_size": 32, "zeros": "integer"},
    "real zeros": {"group_size": 32, "zeros": "real", "activation": "silu"},
    "per channel": {"group_size": -1, "k": 300, "activation": "gelu"},
    "per channel, zeros": {"group_size": -1, "zeros": "integer", "activation": "gelu_tanh"},
    "act-order": {
        "group_size": 32,
        "zeros": "integer",
        "four_bits": True,
        "act_order": True,
        "activation": "relu",
    },
    "bf16 scales": {"group_size": 64, "scale_dtype": torch.bfloat16, "zeros": "real"},
}


class Formats(nn.Module):
    """A layer of each format, each over the channels that it takes, in `dtype`."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype
        self.layers = nn.ModuleList(layer(dtype=dtype, **form) for form in FORMATS.values())

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x = x.to(self.dtype)
        return tuple(one(x[..., : one.in_features]).float() for one in self.layers)


def run(path: Path, *inputs: torch.Tensor) -> list[torch.Tensor]:
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [one.name for one in session.get_inputs()]
    feed = {name: x.numpy() for name, x in zip(names, inputs, strict=True)}
    return [torch.from_numpy(y) for y in session.run(None, feed)]


def nodes_of(path: Path) -> list[onnx.NodeProto]:
    return [node for node in onnx.load(path).graph.node if node.op_type == "MatMulNBits"]


@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [(torch.float32, 1e-5), (torch.float16, 2e-3), (torch.bfloat16, 1.6e-2)],
)
def test_every_format_at_any_batch(tmp_path: Path, dtype: torch.dtype, tolerance: float) -> None:
    model, path = Formats(dtype).eval(), tmp_path / "formats.onnx"
    rows = torch.export.Dim("rows", min=2, max=64)
    xgemm.onnx.export(
        model, (randn((2, 3, 300), torch.float32),), path, dynamic_shapes=({0: rows},)
    )
    for batch in (2, 5):
        x = randn((batch, 3, 300), torch.float32, batch)
        with torch.no_grad():
            results = model(x)
        for name, y, expected in zip(FORMATS, run(path, x), results, strict=True):
            scale = float(expected.abs().max())
            torch.testing.assert_close(
                y, expected, rtol=tolerance, atol=tolerance * scale, msg=name
            )
    nodes = nodes_of(path)
    assert len(nodes) == len(FORMATS)
    assert {node.domain for node in nodes} == {"com.microsoft"}
    blocks = [a.i for node in nodes for a in node.attribute if a.name == "block_size"]
    assert blocks == [32, 128, 128, 64, 32, 32, 128, 128, 32, 64]
    types = {one.name: one.data_type for one in onnx.load(path).graph.initializer}
    zero_types = [types.get(node.input[3]) if len(node.input) > 3 else None for node in nodes]
    packed = [form.get("four_bits", False) for form in FORMATS.values()]
    assert [one == onnx.TensorProto.UINT8 for one in zero_types] == packed


def test_weights_stay_at_four_bits(tmp_path: Path) -> None:
    model, path = nn.Sequential(layer(96, 512, group_size=128), nn.ReLU()), tmp_path / "small.onnx"
    xgemm.onnx.export(model, (torch.zeros(1, 512),), path, external_data=False)
    assert path.stat().st_size < 96 * 512 * 0.75


def test_vectors(tmp_path: Path) -> None:
    model, x = layer(group_size=32, act_order=True), randn((100,), torch.float32)
    xgemm.onnx.export(model, (x,), tmp_path / "vector.onnx")
    (y,) = run(tmp_path / "vector.onnx", x)
    torch.testing.assert_close(y, model(x).detach(), rtol=1e-5, atol=1e-5)


def test_a_zero_point_of_16_is_kept() -> None:
    """GPTQ has them: they do not fit 4 bits, so that the format's float zero points are taken."""
    q = random_weight(48, 64, 32, "integer")
    q.zeros.fill_(15)
    integers = MatMulNBits(QuantLinear.from_packed(xgemm.pack(q))).zero_points
    assert integers.dtype == torch.uint8
    assert torch.equal(integers, torch.full((48, 1), 0xFF, dtype=torch.uint8))
    q.zeros[1, 5] = 16
    floats = MatMulNBits(QuantLinear.from_packed(xgemm.pack(q))).zero_points
    assert torch.equal(floats, q.zeros.t().float())


def test_prepare_shares_what_it_does_not_replace() -> None:
    shared = layer(100, 100, group_size=32)
    model = nn.Sequential(nn.Linear(100, 100), shared, nn.Dropout(), shared).train()
    prepared = xgemm.onnx.prepare(model)
    assert prepared[0].weight is model[0].weight
    assert prepared[1] is prepared[3]
    assert type(prepared[1]) is MatMulNBits
    assert not prepared.training
    assert model.training
    assert model[1] is shared
    assert prepared[1].weight.shape == (100, 100)  # what some models ask before they call
    assert prepared[1].in_features == 100
    x = randn((3, 100), torch.float32)
    assert torch.equal(prepared(x), model.eval()(x))
    assert type(xgemm.onnx.prepare(shared)) is MatMulNBits


class Functional(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.packed = xgemm.pack(random_weight(48, 64, 32))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return xgemm.linear(x, self.packed)


NAMED = r"torch\.onnx\.export does not know xgemm's packed weights: call xgemm\.onnx\.export\("


@pytest.mark.parametrize("export", [torch.onnx.export, xgemm.onnx.export])
def test_what_exporters_do_not_know_is_refused_in_a_line(export, tmp_path: Path) -> None:
    model = Functional() if export is xgemm.onnx.export else nn.Sequential(layer())
    model.eval()
    x = torch.zeros(2, 64 if export is xgemm.onnx.export else 100)
    with pytest.raises(torch.onnx.errors.OnnxExporterError, match=rf"mul\.w4a16: {NAMED}"):
        export(model, (x,), tmp_path / "x.onnx", dynamo=True)


def test_the_old_exporter_is_refused_in_a_line(tmp_path: Path) -> None:
    model = nn.Sequential(layer())
    with pytest.raises(RuntimeError, match=rf"^QuantLinear: {NAMED}"):
        torch.onnx.export(model, (torch.zeros(2, 100),), tmp_path / "x.onnx", dynamo=False)
    with pytest.raises(ValueError, match=r"^export: dynamo must be True, got False$"):
        xgemm.onnx.export(model, (torch.zeros(2, 100),), tmp_path / "x.onnx", dynamo=False)
    traced = torch.jit.trace(model, torch.zeros(2, 100))  # but tracing itself is fine
    x = randn((3, 100), torch.float32)
    assert torch.equal(traced(x), model(x))


class Scaled(QuantLinear):
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return super().forward(input) * 2


def test_layers_that_onnx_has_no_operator_for_are_named() -> None:
    experts = QuantExperts.__new__(QuantExperts)
    nn.Module.__init__(experts)
    with pytest.raises(TypeError, match=r"^prepare: mlp: ONNX has no operator for packed experts$"):
        xgemm.onnx.prepare(nn.ModuleDict({"mlp": experts}))
    with pytest.raises(TypeError, match=r"^prepare: up: .* Scaled computes something else"):
        xgemm.onnx.prepare(nn.ModuleDict({"up": Scaled(64, 64)}))
    with pytest.raises(ValueError, match=r"^prepare: up: qweight has no data"):
        xgemm.onnx.prepare(nn.ModuleDict({"up": QuantLinear(64, 64, device="meta")}))
    with pytest.raises(ValueError, match=r"^prepare: model: .* at least 1 in ONNX, got 0 and 64$"):
        xgemm.onnx.prepare(QuantLinear(0, 64))
    with pytest.raises(TypeError, match=r"^prepare: model must be an nn\.Module, got ndarray$"):
        xgemm.onnx.prepare(np.zeros(3))


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(
        ImportError, match=r"needs onnx and onnxscript: pip install onnx onnxscript"
    ):
        xgemm.onnx.export(nn.Sequential(layer()), (torch.zeros(2, 100),))


def test_fused_layers_are_written_apart(tmp_path: Path) -> None:
    model = xgemm.fuse(block()).eval()
    assert any(type(module) is FusedLinear for module in model.modules())
    xgemm.onnx.export(model, (X,), tmp_path / "fused.onnx")
    layers = [module for module in model.modules() if isinstance(module, QuantLinear)]
    assert len(nodes_of(tmp_path / "fused.onnx")) == len(layers)
    (y,) = run(tmp_path / "fused.onnx", X)
    with torch.no_grad():
        torch.testing.assert_close(y, model(X), rtol=1e-4, atol=1e-5)
