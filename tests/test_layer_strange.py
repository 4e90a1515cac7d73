"""QuantLinear used in ways that few have in mind."""

from __future__ import annotations

import copy
import threading
from typing import Any

import pytest
import torch
from test_layer_ecosystem import X, blank, build, same
from test_nn import inputs, make
from torch import nn
from torch._dynamo.testing import CompileCounter
from torch.utils.flop_counter import FlopCounterMode

from xgemm.nn import QuantLinear
from xgemm.nn.parameter import PackedParameter


@pytest.mark.parametrize("layout", [torch.jagged, torch.strided])
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
def test_nested_tensors(layout: torch.layout) -> None:
    layer = build()[0]
    parts = [inputs(2, 96), inputs(5, 96)]
    nested = torch.nested.nested_tensor(parts, layout=layout, requires_grad=True)
    y = layer(nested)
    assert y.is_nested
    assert y.layout == layout
    for got, part in zip(y.unbind(), parts, strict=True):
        torch.testing.assert_close(got, layer(part))
    sum(part.square().sum() for part in y.unbind()).backward()
    plain = parts[1].clone().requires_grad_()
    layer(plain).square().sum().backward()
    torch.testing.assert_close(nested.grad.unbind()[1], plain.grad)


@pytest.mark.parametrize("rows", [(3,), (2, 3), ()])
def test_operations_are_counted(rows: tuple[int, ...]) -> None:
    model, float_model = build(), nn.Sequential(*(m for m in build()))
    for i in (0, 2):
        float_model[i] = model[i].to_linear()
    counts = []
    for counted in (model, float_model.requires_grad_(False)):
        x = inputs(*rows, 96).requires_grad_()
        with FlopCounterMode(display=False) as counter:
            counted(x).sum().backward()
        counts.append(counter.get_total_flops())
    assert counts[0] == counts[1] > 0


def test_operations_of_the_dense_ops_are_counted() -> None:
    a, b = torch.randn(4, 5, 6), torch.randn(6, 7)
    for call, expected in (
        (lambda: torch.ops.xgemm.mul(a, b), 2 * 4 * 5 * 6 * 7),
        (lambda: torch.ops.xgemm.mul(a[0, 0], b), 2 * 6 * 7),
        (lambda: torch.ops.xgemm.mul(a, b[:, 0]), 2 * 4 * 5 * 6),
        (lambda: torch.ops.xgemm.sgemm(b, a[0], transa=True, transb=True), 2 * 5 * 6 * 7),
    ):
        with FlopCounterMode(display=False) as counter:
            call()
        assert counter.get_total_flops() == expected


def test_a_model_that_is_cast_by_type() -> None:
    """Module.type converts integers too: packed bytes and the order of channels stay what they
    are."""
    layer, w = make(act_order=True)
    model = nn.Sequential(layer).type(torch.float16)
    assert layer.qweight.dtype == torch.uint8
    assert layer.perm.dtype == torch.int32
    assert layer.packed_format.dtype == torch.int64
    assert layer.compute_dtype == layer.bias.dtype == torch.float16
    assert torch.equal(layer.weight, w.half())
    assert model(inputs(3, 200).half()).dtype == torch.float16


def test_parameters_as_one_vector_and_back() -> None:
    model = build()
    vector = nn.utils.parameters_to_vector(model.parameters())
    nn.utils.vector_to_parameters(vector, model.parameters())
    same(model)
    assert type(model[0].qweight) is PackedParameter
    with pytest.raises(RuntimeError, match="packed 4-bit weights are codes, not numbers"):
        nn.utils.vector_to_parameters(vector + 1, model.parameters())
    assert torch.equal(model[0].qweight, build()[0].qweight)


def test_floats_are_not_copied_into_packed_bytes() -> None:
    layer = build()[0]
    with torch.no_grad(), pytest.raises(RuntimeError, match="codes, not numbers"):
        layer.qweight.copy_(torch.rand(layer.qweight.shape))
    with pytest.raises(
        ValueError, match=r"QuantLinear: qweight must be torch\.uint8, got torch\.f"
    ):
        layer.load_state_dict({**layer.state_dict(), "qweight": layer.qweight.float()}, assign=True)
    same(lambda x: build()[2](torch.relu(layer(x))))


@pytest.mark.parametrize("strict", [False, True])
def test_a_float_state_is_refused(strict: bool) -> None:
    """Not even strict=False may leave weights out without a word."""
    state = nn.Sequential(nn.Linear(96, 200), nn.ReLU(), nn.Linear(200, 40)).state_dict()
    message = r"0\.weight must be uint8 without elements, .* got float32 \[200, 96\]: load a float"
    with pytest.raises(ValueError, match=message):
        blank().load_state_dict(state, strict=strict)


def test_the_bias_may_be_taken_away_and_given() -> None:
    layer = build()[0]
    with_bias = layer(X)
    bias, layer.bias = layer.bias, None
    torch.testing.assert_close(layer(X) + bias, with_bias)
    assert "bias=False" in repr(layer)
    layer.bias = nn.Parameter(bias.detach())
    assert torch.equal(layer(X), with_bias)


def test_a_subclass() -> None:
    class Doubled(QuantLinear):
        def forward(self, input: torch.Tensor) -> torch.Tensor:
            return 2 * super().forward(input)

    float_layer = nn.Linear(96, 200)
    layer = Doubled.from_linear(float_layer, group_size=32)
    plain = QuantLinear.from_linear(float_layer, group_size=32)
    for one in (layer, copy.deepcopy(layer), Doubled.from_packed(plain.to_packed(), plain.bias)):
        assert type(one) is Doubled
        assert torch.equal(one(X), 2 * plain(X))
    with pytest.raises(RuntimeError, match="Doubled: weight cannot be assigned"):
        layer.weight = None


def test_further_parameters_of_the_layer() -> None:
    layer = build()[0]
    layer.scale = nn.Parameter(torch.ones(1))
    assert dict(layer.named_parameters()).keys() == {"qweight", "bias", "scale"}
    other = copy.deepcopy(layer)
    other.load_state_dict(layer.state_dict())
    assert torch.equal(other(X), layer(X))


def test_an_ensemble_of_layers() -> None:
    models = [build(), blank()]
    parameters, buffers = torch.func.stack_module_state(models)
    base = blank().to("meta")

    def call(p: Any, b: Any, x: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(base, (p, b), (x,))

    y = torch.func.vmap(call, in_dims=(0, 0, None))(parameters, buffers, X)
    torch.testing.assert_close(y[0], models[0](X))
    torch.testing.assert_close(y[1], models[1](X))


def test_threads() -> None:
    model, expected, wrong = build(), build()(X), []

    def call() -> None:
        for _ in range(20):
            if not torch.equal(model(X), expected):
                wrong.append(1)

    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_compiled_once_for_all_layers_and_twice_for_all_lengths() -> None:
    torch._dynamo.reset()
    counter = CompileCounter()
    call = torch.compile(lambda layer, x: layer(x), backend=counter, fullgraph=True)
    for _ in range(4):
        call(QuantLinear.from_linear(nn.Linear(96, 96), group_size=32), X)
    assert counter.frame_count == 1
    torch._dynamo.reset()
    counter = CompileCounter()
    model = torch.compile(build(), backend=counter, fullgraph=True)
    for rows in (1, 2, 3, 4, 5):
        model(inputs(rows, 96))
    assert counter.frame_count <= 2


def test_the_default_dtype() -> None:
    torch.set_default_dtype(torch.bfloat16)
    try:
        layer = QuantLinear(96, 200, group_size=32)
    finally:
        torch.set_default_dtype(torch.float32)
    assert {layer.compute_dtype, layer.bias.dtype, layer.weight.dtype} == {torch.bfloat16}
    assert layer(X.bfloat16()).dtype == torch.bfloat16


def test_its_weight_has_no_address() -> None:
    weight = build()[0].weight
    with pytest.raises(RuntimeError, match="data_ptr: this weight has no memory of its own"):
        weight.data_ptr()
    for moved in (weight.cpu(), weight.to("cpu"), weight.float(), weight.contiguous()):
        assert type(moved) is torch.Tensor
        assert moved.data_ptr() != 0


def test_its_weight_in_a_float_model() -> None:
    model = build()
    float_model = nn.Sequential(nn.Linear(96, 200), nn.ReLU(), nn.Linear(200, 40)).eval()
    state = {}
    for i in (0, 2):
        state |= {f"{i}.weight": model[i].weight, f"{i}.bias": model[i].bias}
    float_model.load_state_dict(state)
    torch.testing.assert_close(float_model(X), model(X), rtol=1e-4, atol=1e-5)
    float_model[0].weight.data.copy_(model[0].weight)
    assert torch.equal(float_model[0].weight, model[0].weight)


@pytest.mark.parametrize("kind", ["int64", "float64"])
def test_an_input_of_another_dtype_is_refused(kind: str) -> None:
    x = X.to(getattr(torch, kind))
    with pytest.raises(ValueError, match=f"a must be float32, float16 or bfloat16, got {kind}"):
        build()(x)


def test_an_input_that_is_not_dense_is_refused_by_name() -> None:
    layer = QuantLinear(64, 32)
    for x in (
        torch.eye(64).to_sparse(),
        torch.quantize_per_tensor(torch.eye(64), 1, 0, torch.qint8),
    ):
        with pytest.raises(TypeError, match=r"QuantLinear: x must be a dense float tensor, got"):
            layer(x)


def test_a_layer_of_another_size_is_refused_by_the_op() -> None:
    layer = build()[0]
    layer.out_features = 128
    with pytest.raises(ValueError, match=r"qweight must have the shape \[2, 4608\] for n=128"):
        layer(X)


def test_skip_init() -> None:
    layer = nn.utils.skip_init(QuantLinear, 96, 200, group_size=32)
    layer.load_state_dict(build()[0].state_dict())
    assert torch.equal(layer(X), build()[0](X))
    assert layer.packed_format.tolist() == [1, 200, 96, 32, 0, 0]
