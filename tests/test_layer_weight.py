"""QuantLinear.weight: free to ask, dequantized where used, read-only; dequantize and to_linear."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from test_nn import inputs, make
from torch import nn

import xgemm
from xgemm.nn import QuantLinear
from xgemm.nn.weight import ReadOnlyWeight

READ_ONLY = "this weight is read-only"


@pytest.fixture
def no_dequantization(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: QuantLinear, dtype: torch.dtype | None = None) -> torch.Tensor:
        raise AssertionError("dequantized")

    monkeypatch.setattr(QuantLinear, "dequantize", refuse)


def test_the_layer_is_a_linear_without_a_weight_of_its_own() -> None:
    layer, _ = make()
    assert isinstance(layer, nn.Linear)
    assert "weight" not in dict(layer.named_parameters())
    assert "weight" not in dict(layer.named_buffers())
    guard = layer.state_dict()["weight"]
    assert (guard.dtype, guard.shape) == (torch.uint8, (0,))


@pytest.mark.usefixtures("no_dequantization")
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_asking_what_it_is_costs_nothing(device: str) -> None:
    weight = make()[0].half().to(device).weight
    assert weight.shape == (70, 200)
    assert weight.size(1) == 200
    assert weight.stride() == (200, 1)
    assert (weight.ndim, weight.dim(), weight.numel(), len(weight)) == (2, 2, 14000, 70)
    assert weight.dtype == torch.float16
    assert (weight.element_size(), weight.nbytes) == (2, 28000)
    assert weight.device.type == device
    assert weight.is_meta == (device == "meta")
    assert not weight.requires_grad
    assert weight.grad is None
    assert weight.is_floating_point()
    assert weight.is_contiguous()
    assert isinstance(weight, torch.Tensor)
    assert weight.data.dtype == weight.detach().dtype == torch.float16
    assert "[70, 200], dtype=float16" in repr(weight)
    assert weight._is_hf_initialized


@pytest.mark.parametrize("act_order", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_dequantize(act_order: bool, dtype: torch.dtype) -> None:
    layer, w = make(act_order=act_order, symmetric=False)
    got = layer.dequantize(dtype)
    assert type(got) is torch.Tensor
    assert got.dtype == dtype
    wide = w.float() if dtype == torch.float64 else w.to(dtype)
    assert torch.equal(got, wide.to(dtype))
    layer.to(dtype)
    assert torch.equal(layer.dequantize(), got)
    assert torch.equal(layer.weight, got)


def test_dequantize_refuses_an_integer_dtype() -> None:
    with pytest.raises(ValueError, match=r"must be a floating-point one, got torch\.int8"):
        make()[0].dequantize(torch.int8)


@pytest.mark.parametrize(
    "use",
    [
        lambda w, x: F.linear(x, w),
        lambda w, x: x @ w.t(),
        lambda w, x: torch.matmul(w, x.mT),
        lambda w, x: x @ w.T,
        lambda w, x: torch.einsum("bk,nk->bn", x, w),
        lambda w, x: F.linear(x, w, torch.ones(70)),
        lambda w, x: torch.addmm(torch.ones(3, 70), x, w.mT),
        lambda w, x: w[3],
        lambda w, x: w[:, 5:9],
        lambda w, x: w[torch.tensor([1, 2])],
        lambda w, x: w[0, 0].item(),
        lambda w, x: w + 1,
        lambda w, x: 2 * w,
        lambda w, x: -w.data,
        lambda w, x: w.to(torch.bfloat16),
        lambda w, x: w.half(),
        lambda w, x: w.float(),
        lambda w, x: w.to(x.dtype).abs(),
        lambda w, x: w.detach().clone(),
        lambda w, x: w.cpu().numpy().sum(),
        lambda w, x: w.detach().numpy().sum(),
        lambda w, x: w.tolist()[0][0],
        lambda w, x: w.norm(),
        lambda w, x: w.sum(dim=0),
        lambda w, x: torch.cat([w, w]),
        lambda w, x: torch.stack(list(w)),
        lambda w, x: w.split(35)[1],
        lambda w, x: w.view(35, 400),
        lambda w, x: w.flatten()[7:11],
        lambda w, x: w.reshape(-1, 2).sum(1),
        lambda w, x: torch.zeros(70, 200).copy_(w),
        lambda w, x: torch.zeros_like(w),
        lambda w, x: w.new_zeros(3),
        lambda w, x: (w == w).all(),
        lambda w, x: copy.deepcopy(w),
        lambda w, x: pickle.loads(pickle.dumps(w)),
        lambda w, x: torch.from_dlpack(w),
        lambda w, x: nn.Parameter(w.clone()).data,
        lambda w, x: w.dequantize(),
    ],
)
def test_a_use_sees_the_dequantized_weight(use: Callable) -> None:
    layer, w = make(act_order=True)
    x = inputs(3, 200)
    got, expected = use(layer.weight, x), use(w.float(), x)
    torch.testing.assert_close(got, expected, check_stride=True)


def test_a_use_gives_an_ordinary_tensor() -> None:
    weight = make()[0].weight
    assert type(weight * 2) is torch.Tensor
    assert type(weight.clone()) is torch.Tensor
    assert type(weight.half()) is torch.Tensor
    assert type(F.linear(inputs(3, 200), weight)) is torch.Tensor


def test_gradients_pass_through_it() -> None:
    layer, w = make()
    for call in (
        lambda x, weight: F.linear(x, weight),
        lambda x, weight: x @ weight.T,
        lambda x, weight: (weight @ x.mT).mT,
    ):
        x = inputs(3, 200).requires_grad_()
        call(x, layer.weight).square().sum().backward()
        reference = inputs(3, 200).requires_grad_()
        call(reference, w.float()).square().sum().backward()
        torch.testing.assert_close(x.grad, reference.grad)


def test_it_follows_the_layer() -> None:
    layer, _ = make()
    weight = layer.weight
    layer.load_state_dict(QuantLinear(200, 70, group_size=32).state_dict())
    assert bool((weight == 0).all())


@pytest.mark.parametrize(
    "write",
    [
        lambda w: w.copy_(torch.zeros(70, 200)),
        lambda w: w.data.copy_(torch.zeros(70, 200)),
        lambda w: w.detach().zero_(),
        lambda w: w.normal_(),
        lambda w: nn.init.normal_(w),
        lambda w: nn.init.xavier_uniform_(w),
        lambda w: nn.init.zeros_(w),
        lambda w: w.mul_(2),
        lambda w: w.__iadd__(1),
        lambda w: w.__setitem__(0, 1.0),
        lambda w: w.__setitem__((slice(None), 3), torch.zeros(70)),
        lambda w: w.data.__setitem__(0, 1.0),
        lambda w: w[0].zero_(),
        lambda w: w.t().mul_(2),
        lambda w: w.view(-1).fill_(0),
        lambda w: w.data[3:5].copy_(torch.zeros(2, 200)),
        lambda w: w.unbind()[0].zero_(),
        lambda w: w.chunk(2)[1].zero_(),
        lambda w: w[0].__setitem__(0, 1.0),
        lambda w: w.t()[0].zero_(),
        lambda w: torch.add(torch.zeros(70, 200), 1, out=w),
        lambda w: torch._foreach_mul_([w], 2.0),
        lambda w: setattr(w, "data", torch.zeros(70, 200)),
        lambda w: setattr(w, "requires_grad", True),
        lambda w: w.requires_grad_(),
        lambda w: nn.Parameter(w),
    ],
)
def test_a_write_is_refused(write: Callable) -> None:
    layer, w = make()
    with torch.no_grad(), pytest.raises(RuntimeError, match=READ_ONLY):
        write(layer.weight)
    assert torch.equal(layer.weight, w.float())


def test_the_attribute_cannot_be_assigned() -> None:
    layer, w = make()
    for value in (nn.Parameter(torch.zeros(70, 200)), torch.zeros(70, 200), None):
        with pytest.raises(RuntimeError, match=r"QuantLinear: weight cannot be assigned: this we"):
            layer.weight = value
    with pytest.raises(RuntimeError, match="weight cannot be assigned"):
        layer.register_parameter("weight", nn.Parameter(torch.zeros(1)))
    with pytest.raises(RuntimeError, match="weight cannot be assigned"):
        del layer.weight
    assert torch.equal(layer.weight, w.float())


def test_a_weight_that_asks_for_no_gradient_may_say_so() -> None:
    weight = make()[0].weight
    assert weight.requires_grad_(False) is weight
    weight.requires_grad = False


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_it_compiles_and_exports(backend: str) -> None:
    class Cast(nn.Module):
        """As T5's feed-forward layer does; and a product that the model computes by itself."""

        def __init__(self, layer: QuantLinear) -> None:
            super().__init__()
            self.wo = layer

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = x.to(self.wo.weight.dtype)
            return self.wo(x) + F.linear(x, self.wo.weight)

    model = Cast(make(act_order=True)[0]).eval()
    x = inputs(3, 200)
    with torch.no_grad():
        expected = model(x)
        compiled = torch.compile(model, fullgraph=True, backend=backend)
        torch.testing.assert_close(compiled(x), expected)
        for strict in (False, True):
            exported = torch.export.export(model, (x,), strict=strict)
            torch.testing.assert_close(exported.module()(x), expected)
        torch.testing.assert_close(torch.jit.trace(model, (x,))(x), expected)


def test_torch_saves_it_as_a_tensor() -> None:
    layer, w = make()
    buffer = io.BytesIO()
    torch.save({"weight": layer.weight}, buffer)
    buffer.seek(0)
    assert torch.equal(torch.load(buffer, weights_only=True)["weight"], w.float())


@pytest.mark.parametrize("bias", [False, True])
def test_to_linear(bias: bool) -> None:
    layer, w = make(bias=bias, act_order=True)
    layer.half().eval()
    linear = layer.to_linear()
    assert type(linear) is nn.Linear
    assert not linear.training
    assert linear.weight.requires_grad
    assert torch.equal(linear.weight, w.half())
    assert linear.bias is layer.bias
    x = inputs(3, 200).half()
    torch.testing.assert_close(linear(x), layer(x), rtol=1e-2, atol=1e-2)


def test_to_linear_refuses_an_activation() -> None:
    layer, _ = make(activation="silu")
    with pytest.raises(ValueError, match=r"an nn\.Linear has no activation, this layer has 'silu'"):
        layer.to_linear()


def test_quantize_leaves_a_quantized_layer() -> None:
    model = nn.Sequential(make()[0], nn.Linear(70, 8))
    first = model[0]
    xgemm.quantize(model, group_size=32)
    assert model[0] is first
    assert model.xgemm_report.left == {"0": "already quantized"}
    assert model.xgemm_report.quantized == ["1"]
    with pytest.raises(ValueError, match="model is itself a QuantLinear: it is already quantized"):
        xgemm.quantize(first)


def test_the_type_of_its_data() -> None:
    weight = make()[0].weight
    assert type(weight) is ReadOnlyWeight
    assert type(weight.data) is ReadOnlyWeight
