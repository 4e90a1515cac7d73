"""QuantLinear: what it computes, and every way in which a module is built, moved and stored."""

from __future__ import annotations

import copy
import io
import pickle
import time
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import xgemm
from xgemm.nn import QuantLinear

OPTIONS = [
    {"group_size": 32, "symmetric": True},
    {"group_size": 128, "symmetric": False},
    {"group_size": -1, "symmetric": False, "scale_dtype": torch.bfloat16},
]


def make(
    n: int = 70, k: int = 200, bias: bool = True, act_order: bool = False, **options
) -> tuple[QuantLinear, torch.Tensor]:
    """A layer, and the float64 weight that it stands for."""
    generator = torch.Generator().manual_seed(0)
    w = torch.randn(n, k, generator=generator)
    activation = options.pop("activation", "none")
    q = xgemm.quantize_weight(w, **{"group_size": 32, **options})
    if act_order:
        order = torch.randperm(k, generator=generator)
        g_idx = (order // (q.group_size if q.group_size > 0 else k)).int()
        q = xgemm.QuantizedWeight(q.codes, q.scales, q.zeros, g_idx, q.group_size)
    b = torch.randn(n, generator=generator) if bias else None
    return QuantLinear.from_packed(xgemm.pack(q), b, activation), q.dequantize(torch.float64)


def inputs(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1)).to(dtype)


def check(layer: QuantLinear, w: torch.Tensor, x: torch.Tensor) -> None:
    """Against float64, element by element."""
    got = layer(x)
    assert got.dtype == x.dtype
    check_product(got, layer, w, x)


def check_product(got: torch.Tensor, layer: QuantLinear, w: torch.Tensor, x: torch.Tensor) -> None:
    """A product of x with the layer's weight, on any device, against float64 on the CPU."""
    x = x.cpu().double()
    bias = None if layer.bias is None else layer.bias.cpu().double()
    expected = F.linear(x, w, bias)
    # W may be rounded once to x's dtype, the result is rounded once, and fp32 sums K products of
    # codes and zero points: the sizes that count are sum (|code| + |zero|) |scale| |x|.
    q = xgemm.unpack(layer.to_packed().to("cpu"))
    zeros = torch.full_like(q.scales, 8).half() if q.zeros is None else q.zeros
    parts = xgemm.QuantizedWeight(q.codes, q.scales, -zeros.abs(), q.g_idx, q.group_size)
    magnitude = parts.dequantize(torch.float64).abs()
    size = F.linear(x.abs(), magnitude, None if bias is None else bias.abs())
    bound = size * (torch.finfo(got.dtype).eps + layer.in_features * 2.0**-24)
    assert bool(((got.cpu().double() - expected).abs() <= bound).all())


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("act_order", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_computes_the_linear(
    options: dict, bias: bool, act_order: bool, dtype: torch.dtype
) -> None:
    layer, w = make(bias=bias, act_order=act_order, **options)
    layer = layer.to(dtype)
    with torch.inference_mode():
        for shape in ((200,), (1, 200), (17, 200), (2, 3, 200), (0, 200)):
            check(layer, w, inputs(*shape, dtype=dtype))


@pytest.mark.parametrize("activation", ["none", "relu", "gelu", "gelu_tanh", "silu"])
def test_fuses_the_activation(activation: str) -> None:
    layer, _ = make(activation=activation)
    plain = QuantLinear.from_packed(layer.to_packed(), layer.bias)
    x = inputs(5, 200)
    functions: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "none": lambda y: y,
        "relu": torch.relu,
        "gelu": F.gelu,
        "gelu_tanh": lambda y: F.gelu(y, approximate="tanh"),
        "silu": F.silu,
    }
    assert layer.activation == activation
    with torch.inference_mode():
        torch.testing.assert_close(layer(x), functions[activation](plain(x)), rtol=1e-5, atol=1e-5)


def test_from_linear_keeps_bias_and_mode() -> None:
    linear = nn.Linear(96, 48).eval()
    layer = QuantLinear.from_linear(linear, group_size=32, symmetric=False)
    assert layer.bias is linear.bias
    assert not layer.training
    assert layer.has_zeros
    w = xgemm.quantize_weight(linear.weight, group_size=32, symmetric=False)
    assert torch.equal(xgemm.unpack(layer.to_packed()).codes, w.codes)


def test_gradients_reach_input_and_bias_only() -> None:
    layer, w = make()
    x = inputs(3, 200).requires_grad_()
    layer(x).square().sum().backward()
    y = F.linear(x.detach().double(), w, layer.bias.detach().double())
    assert layer.qweight.grad is None
    torch.testing.assert_close(x.grad.double(), 2 * y @ w, rtol=1e-4, atol=1e-3)
    torch.testing.assert_close(layer.bias.grad.double(), 2 * y.sum(0), rtol=1e-4, atol=1e-3)


def test_parameters_and_buffers() -> None:
    layer, _ = make(act_order=True)
    parameters = dict(layer.named_parameters())
    assert parameters.keys() == {"qweight", "bias"}
    assert parameters["qweight"].dtype == torch.uint8
    assert not parameters["qweight"].requires_grad
    assert parameters["bias"].requires_grad
    assert {name: b.dtype for name, b in layer.named_buffers()} == {
        "perm": torch.int32,
        "packed_format": torch.int64,
    }
    assert (layer.in_features, layer.out_features) == (200, 70)
    assert make(act_order=False)[0].perm is None


@pytest.mark.parametrize(
    ("cast", "dtype"),
    [
        (lambda m: m.half(), torch.float16),
        (lambda m: m.bfloat16(), torch.bfloat16),
        (lambda m: m.to(torch.float16), torch.float16),
        (lambda m: m.to(torch.bfloat16), torch.bfloat16),
        (lambda m: m.half().float(), torch.float32),
    ],
)
def test_casts_leave_the_packed_bytes_alone(cast: Callable, dtype: torch.dtype) -> None:
    layer, w = make(act_order=True, symmetric=False)
    before, perm = layer.qweight.clone(), layer.perm.clone()
    cast(layer)
    assert layer.bias.dtype == dtype
    assert layer.qweight.dtype == torch.uint8
    assert torch.equal(layer.qweight, before)
    assert layer.perm.dtype == torch.int32
    assert torch.equal(layer.perm, perm)
    with torch.inference_mode():
        check(layer, w, inputs(4, 200, dtype=dtype))


def same(a: QuantLinear, b: QuantLinear) -> None:
    assert a.format == b.format
    assert a.activation == b.activation
    x = inputs(3, 200)
    with torch.inference_mode():
        assert torch.equal(a(x), b(x))


def test_deepcopy_pickle_and_torch_save() -> None:
    layer, _ = make(act_order=True, symmetric=False, activation="silu")
    buffer = io.BytesIO()
    torch.save(layer, buffer)
    buffer.seek(0)
    copies = [
        copy.deepcopy(layer),
        pickle.loads(pickle.dumps(layer)),
        torch.load(buffer, weights_only=False),
    ]
    for other in copies:
        assert other.qweight.data_ptr() != layer.qweight.data_ptr()
        same(layer, other)


def empty_like(layer: QuantLinear, device: str | None = None) -> QuantLinear:
    return QuantLinear(
        layer.in_features,
        layer.out_features,
        layer.bias is not None,
        group_size=layer.group_size,
        bf16_scales=layer.bf16_scales,
        has_zeros=layer.has_zeros,
        act_order=layer.perm is not None,
        activation=layer.activation,
        device=device,
    )


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("act_order", [False, True])
def test_state_dict_through_a_file(options: dict, act_order: bool) -> None:
    layer, _ = make(act_order=act_order, **options)
    buffer = io.BytesIO()
    torch.save(nn.Sequential(layer).state_dict(), buffer)
    buffer.seek(0)
    state = torch.load(buffer, weights_only=True)
    filled = nn.Sequential(empty_like(layer))
    filled.load_state_dict(state)
    same(layer, filled[0])


@pytest.mark.parametrize("act_order", [False, True])
def test_meta_construction_then_assign(act_order: bool) -> None:
    layer, _ = make(act_order=act_order)
    with torch.device("meta"):
        other = nn.Sequential(empty_like(layer))
    assert all(t.is_meta for t in other.state_dict().values() if isinstance(t, torch.Tensor))
    state = nn.Sequential(layer).state_dict()
    other.load_state_dict(state, assign=True)
    assert other[0].qweight.data_ptr() == layer.qweight.data_ptr()
    assert not other[0].qweight.requires_grad
    assert other[0].bias.requires_grad
    same(layer, other[0])


def test_bytes_assigned_from_any_address_are_aligned() -> None:
    """As safetensors maps a file: a tensor begins where the one before it ends."""
    layer, _ = make()
    state = layer.state_dict()
    mapped = torch.cat([torch.zeros(5, dtype=torch.uint8), state["qweight"].flatten()])[5:]
    given = {**state, "qweight": mapped.view(state["qweight"].shape)}
    assert given["qweight"].data_ptr() % 16 != 0
    built = QuantLinear(200, 70, group_size=32, device="meta")
    built.load_state_dict(given, assign=True)
    assert given["qweight"].data_ptr() == mapped.data_ptr()
    x = inputs(3, 200)
    with torch.inference_mode():
        assert torch.equal(built(x), layer(x))


def test_a_new_layer_is_zero() -> None:
    layer = QuantLinear(200, 70, has_zeros=True)
    assert bool((layer(inputs(3, 200)) == 0).all())


def test_a_layer_without_its_order_does_not_compute() -> None:
    """Channels in any other order would be wrong results without a word."""
    layer = QuantLinear(200, 70, act_order=True, group_size=32)
    for use in (lambda: layer(inputs(3, 200)), layer.dequantize):
        with pytest.raises(RuntimeError, match="perm, the order of channels, was never loaded"):
            use()
    source, w = make(act_order=True)
    layer.load_state_dict(source.state_dict())
    check(layer, w, inputs(3, 200))
    layer.reset_parameters()
    assert bool((layer(inputs(3, 200)) == 0).all())
    layer = QuantLinear(200, 70, act_order=True, group_size=32)
    layer.reset_parameters()
    assert bool((layer(inputs(3, 200)) == 0).all())


@pytest.mark.parametrize("bad", [-1, 200, 3])
def test_a_perm_that_is_no_permutation_is_refused(bad: int) -> None:
    model = nn.Sequential(make(act_order=True)[0])
    state = copy.deepcopy(model.state_dict())
    position = int((state["0.perm"] != 3).nonzero()[0])
    state["0.perm"][position] = bad
    with pytest.raises(ValueError, match=r"0: perm must hold each of 0..199 once"):
        model.load_state_dict(state)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((-1, 8), "k must be within"),
        ((8, 2**31), "n must be within"),
        ((8.0, 8), "k must be an int, got float"),
        ((True, 8), "k must be an int, got bool"),
    ],
)
def test_bad_shapes_are_refused(arguments: tuple, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        QuantLinear(*arguments)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"group_size": 31}, "group_size must be one of"),
        ({"activation": "tanh"}, "activation must be one of .* got 'tanh'"),
        ({"bf16_scales": 1}, "bf16_scales must be a bool, got int"),
        ({"has_zeros": None}, "zeros must be a bool, got NoneType"),
    ],
)
def test_bad_options_are_refused(options: dict, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        QuantLinear(8, 8, **options)


def test_from_packed_refuses_another_bias() -> None:
    packed = make()[0].to_packed()
    with pytest.raises(ValueError, match=r"bias must be \[70\], got \[71\]"):
        QuantLinear.from_packed(packed, torch.zeros(71))


def test_wrong_input_is_refused_by_the_op() -> None:
    layer, _ = make()
    with pytest.raises(ValueError, match=r"last dimension of a must be k=200, got a \[3, 199\]"):
        layer(torch.zeros(3, 199))


def test_extra_repr_says_what_it_is() -> None:
    layer, _ = make(act_order=True, symmetric=False, activation="silu")
    assert repr(layer) == (
        "QuantLinear(in_features=200, out_features=70, bias=True, group_size=32, scales=fp16, "
        "zeros=True, act_order=True, activation='silu')"
    )


@pytest.mark.parametrize("act_order", [False, True])
def test_compiles_and_exports(act_order: bool) -> None:
    layer, _ = make(act_order=act_order, symmetric=False, activation="relu")
    model = nn.Sequential(layer).eval()
    x = inputs(3, 200)
    with torch.no_grad():
        expected = model(x)
        compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
        assert torch.equal(compiled(x), expected)
        exported = torch.export.export(model, (x,))
        assert torch.equal(exported.module()(x), expected)


def test_functional_call_sees_the_given_weight() -> None:
    layer, _ = make()
    x = inputs(3, 200)
    given = {"qweight": torch.zeros_like(layer.qweight), "bias": torch.ones(70)}
    with torch.inference_mode():
        assert bool((torch.func.functional_call(layer, given, (x,)) == 1).all())


def test_a_replica_for_data_parallel_finds_its_parameters() -> None:
    """torch sets what it copied to another device as attributes, in no dictionary of parameters."""
    layer, _ = make(activation="relu")
    x = inputs(3, 200)
    replica = layer._replicate_for_data_parallel()
    for name, parameter in layer.named_parameters():
        setattr(replica, name, parameter.detach().clone())
    with torch.inference_mode():
        assert torch.equal(replica(x), layer(x))


def test_a_parametrized_bias_counts() -> None:
    class Twice(nn.Module):
        def forward(self, bias: torch.Tensor) -> torch.Tensor:
            return 2 * bias

    layer, _ = make()
    x, bias = inputs(3, 200), layer.bias.detach().clone()
    with torch.inference_mode():
        expected = layer(x) + bias
    nn.utils.parametrize.register_parametrization(layer, "bias", Twice())
    torch.testing.assert_close(layer(x), expected)


def host_seconds(call: Callable[[], object], calls: int = 400) -> float:
    start = time.perf_counter()
    for _ in range(calls):
        call()
    return (time.perf_counter() - start) / calls


@pytest.mark.parametrize("bias", [False, True])
def test_host_time_is_at_most_twice_that_of_linear(bias: bool) -> None:
    """One token as a model passes it, a weight so small that the arithmetic is nothing; the least
    of short interleaved runs."""
    layer, w = make(8, 32, bias=bias)
    x = inputs(1, 1, 32)
    weight = w.float()
    forward, b = layer.forward, layer.bias
    with torch.inference_mode():
        ratios = []
        for _ in range(3):  # a machine that is busy with something else gets three chances
            pairs = [
                (host_seconds(lambda: forward(x)), host_seconds(lambda: F.linear(x, weight, b)))
                for _ in range(15)
            ]
            ratios.append(min(ours for ours, _ in pairs) / min(theirs for _, theirs in pairs))
    assert min(ratios) <= 2.0, ratios
