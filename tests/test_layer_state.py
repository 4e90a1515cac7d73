"""QuantLinear's state: packed_format in state dicts, older states, meta, casts, pickles."""

from __future__ import annotations

import copy
import io
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import Net, edit, quantized, same, weights
from test_nn import empty_like, inputs, make
from torch import nn

import xgemm
from xgemm.nn import QuantLinear
from xgemm.nn.parameter import PackedParameter

FORMAT = [1, 70, 200, 32, 0, 1]  # layout version, n, k, group_size, bf16 scales, zeros
EXTRA = {
    "layout_version": 1,
    "n": 70,
    "k": 200,
    "group_size": 32,
    "bf16_scales": False,
    "zeros": True,
}


def layer_with_zeros(**options: Any) -> QuantLinear:
    return make(symmetric=False, **options)[0]


def equal(a: nn.Module, b: nn.Module) -> None:
    x = inputs(3, 200)
    with torch.inference_mode():
        assert torch.equal(a(x), b(x))


def test_the_state_is_tensors_only() -> None:
    state = nn.Sequential(layer_with_zeros(act_order=True)).state_dict()
    assert {name: (value.dtype, type(value)) for name, value in state.items()} == {
        "0.qweight": (torch.uint8, torch.Tensor),
        "0.bias": (torch.float32, torch.Tensor),
        "0.perm": (torch.int32, torch.Tensor),
        "0.packed_format": (torch.int64, torch.Tensor),
        "0.weight": (torch.uint8, torch.Tensor),
    }
    assert state["0.packed_format"].tolist() == FORMAT
    assert state["0.qweight"].data_ptr() != 0


@pytest.mark.parametrize(
    ("position", "value", "message"),
    [
        (0, 2, "0: layout_version must be 1 .*, got 2"),
        (1, 64, "0: n is 70 here, got 64"),
        (2, 201, "0: k is 200 here, got 201"),
        (3, 64, "0: group_size is 32 here, got 64"),
        (4, 1, "0: bf16_scales is 0 here, got 1"),
        (5, 0, "0: zeros is 1 here, got 0"),
    ],
)
def test_another_format_is_refused_before_anything_is_copied(
    position: int, value: int, message: str
) -> None:
    model = nn.Sequential(layer_with_zeros())
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    state["0.packed_format"][position] = value
    state["0.qweight"].fill_(255)
    before = model[0].qweight.clone()
    for assign in (False, True):
        with pytest.raises(ValueError, match=message):
            model.load_state_dict(state, assign=assign)
    assert torch.equal(model[0].qweight, before)
    assert model[0].packed_format.tolist() == FORMAT


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (torch.zeros(5, dtype=torch.int64), r"packed_format must be int64 \[6\] .* int64 \[5\]"),
        (torch.zeros(6), r"packed_format must be int64 \[6\] .* got float32 \[6\]"),
        ([1, 70, 200, 32, 0, 1], "packed_format must be a tensor, got list"),
    ],
)
def test_a_format_of_another_form_is_refused(given: Any, message: str) -> None:
    model = nn.Sequential(layer_with_zeros())
    with pytest.raises((TypeError, ValueError), match=message):
        model.load_state_dict({**model.state_dict(), "0.packed_format": given})


def test_a_state_without_a_format_lacks_a_key() -> None:
    model = nn.Sequential(layer_with_zeros())
    state = model.state_dict()
    del state["0.packed_format"]
    with pytest.raises(RuntimeError, match=r'Missing key.*"0\.packed_format"'):
        model.load_state_dict(state)
    assert model.load_state_dict(state, strict=False).missing_keys == ["0.packed_format"]


def old_state(layer: QuantLinear, **change: Any) -> dict[str, Any]:
    """A state dict as it was when a dict of extra state stood in place of the tensor."""
    state = nn.Sequential(layer).state_dict()
    del state["0.packed_format"]
    return {**state, "0._extra_state": {**EXTRA, **change}}


@pytest.mark.parametrize("assign", [False, True])
@pytest.mark.parametrize("device", [None, "meta"])
def test_an_old_state_is_loaded(assign: bool, device: str | None) -> None:
    if device == "meta" and not assign:
        return  # torch itself copies nothing to the meta device
    layer = layer_with_zeros(act_order=True)
    buffer = io.BytesIO()
    torch.save(old_state(layer), buffer)
    buffer.seek(0)
    state = torch.load(buffer, weights_only=True)
    other = nn.Sequential(empty_like(layer, device))
    other.load_state_dict(state, assign=assign)
    equal(layer, other)
    if device is None:
        assert other[0].packed_format.tolist() == FORMAT
    assert "0._extra_state" in state  # the caller's dict is left as it was
    assert "0.packed_format" not in state


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"layout_version": 2}, "0: layout_version must be 1 .*, got 2"),
        ({"layout_version": True}, "0: layout_version must be an int, got bool"),
        ({"n": 64}, "0: n is 70 here, got 64"),
        ({"k": 201}, "0: k is 200 here, got 201"),
        ({"group_size": 64}, "0: group_size is 32 here, got 64"),
        ({"bf16_scales": True}, "0: bf16_scales is False here, got True"),
        ({"bf16_scales": 0}, "0: bf16_scales is False here, got 0"),
        ({"zeros": False}, "0: zeros is True here, got False"),
        ({"n": None}, "0: n is 70 here, got None"),
    ],
)
def test_an_old_state_of_another_layer_is_refused(change: dict, message: str) -> None:
    model = nn.Sequential(layer_with_zeros())
    state = old_state(layer_with_zeros(), **change)
    state["0.qweight"] = torch.full_like(state["0.qweight"], 255)
    before = model[0].qweight.clone()
    with pytest.raises((TypeError, ValueError), match=message):
        model.load_state_dict(state)
    assert torch.equal(model[0].qweight, before)


def test_an_old_state_that_is_no_dict_is_refused() -> None:
    model = nn.Sequential(layer_with_zeros())
    state = {**old_state(model[0]), "0._extra_state": [1]}
    with pytest.raises(TypeError, match="extra state must be a dict, got list"):
        model.load_state_dict(state)


def test_an_old_pickle_is_loaded() -> None:
    layer = layer_with_zeros(act_order=True).half()
    other = copy.copy(layer)
    other.__dict__ = {k: v for k, v in layer.__dict__.items() if k != "compute_dtype"}
    other._buffers = {k: v for k, v in layer._buffers.items() if k != "packed_format"}
    other._parameters = {
        "qweight": nn.Parameter(layer.qweight.data, requires_grad=False),
        "bias": layer.bias,
    }
    loaded = pickle.loads(pickle.dumps(other))
    assert loaded.packed_format.tolist() == FORMAT
    assert loaded.compute_dtype == torch.float16
    assert type(loaded.qweight) is PackedParameter
    x = inputs(3, 200).half()
    assert torch.equal(loaded(x), layer(x))


@pytest.mark.parametrize("strip", [False, True])
def test_a_directory_of_before_is_loaded(strip: bool, tmp_path: Path) -> None:
    """Files that were saved without packed_format: the config alone says what the bytes are."""
    from safetensors.torch import load_file, save_file

    model = quantized()
    xgemm.save(model, tmp_path / "out")
    names = {"up.packed_format", "down.packed_format"}
    tensors = load_file(weights(tmp_path / "out"))
    assert names <= tensors.keys()
    if strip:
        manifest = tmp_path / "out" / "xgemm_manifest.json"
        written: dict[str, Any] = {}
        edit(manifest, written.update)
        metadata = {"format": "pt", "xgemm_save_id": written["save_id"]}
        kept = {name: t for name, t in tensors.items() if name not in names}
        save_file(kept, weights(tmp_path / "out"), metadata=metadata)
        size = weights(tmp_path / "out").stat().st_size

        def change(value: dict[str, Any]) -> None:
            value["files"]["model.safetensors"] = size
            for name in names:
                del value["tensors"][name]

        edit(manifest, change)
    loaded = xgemm.load(tmp_path / "out", model=Net(seed=9).eval())
    same(model, loaded)
    assert loaded.up.packed_format.tolist() == [1, 200, 48, 32, 0, 0]


def test_a_directory_with_another_format_is_refused(tmp_path: Path) -> None:
    model = quantized()
    model.up.packed_format[3] = 64
    xgemm.save(model, tmp_path / "out")
    fresh = Net(seed=9).eval()
    with pytest.raises(ValueError, match="up: group_size is 32 here, got 64"):
        xgemm.load(tmp_path / "out", model=fresh)
    assert type(fresh.up) is nn.Linear


@pytest.mark.parametrize(
    ("cast", "dtype"),
    [
        (lambda m: m.half(), torch.float16),
        (lambda m: m.bfloat16(), torch.bfloat16),
        (lambda m: m.to(torch.bfloat16), torch.bfloat16),
        (lambda m: m.double(), torch.float64),
        (lambda m: m.half().float(), torch.float32),
        (lambda m: m.half().to("cpu"), torch.float16),
        (lambda m: m.half().share_memory(), torch.float16),
        (lambda m: m.half().to("meta").to_empty(device="cpu"), torch.float16),
    ],
)
@pytest.mark.parametrize("bias", [False, True])
def test_compute_dtype_follows_the_casts(cast: Any, dtype: torch.dtype, bias: bool) -> None:
    model = nn.Sequential(layer_with_zeros(bias=bias))
    assert model[0].compute_dtype == torch.float32
    cast(model)
    assert model[0].compute_dtype == dtype
    assert model[0].weight.dtype == dtype
    assert model[0].packed_format.tolist() == FORMAT
    assert type(model[0].qweight) is PackedParameter
    assert copy.deepcopy(model)[0].compute_dtype == dtype
    assert pickle.loads(pickle.dumps(model))[0].compute_dtype == dtype


def test_dtype_of_a_new_layer() -> None:
    assert QuantLinear(8, 8).compute_dtype == torch.float32
    layer = QuantLinear(8, 8, dtype=torch.bfloat16)
    assert (layer.compute_dtype, layer.bias.dtype) == (torch.bfloat16, torch.bfloat16)
    linear = nn.Linear(8, 8, dtype=torch.float16, bias=False)
    assert QuantLinear.from_linear(linear, group_size=32).compute_dtype == torch.float16
    model = xgemm.quantize(nn.Sequential(linear), group_size=32)
    assert model[0].compute_dtype == torch.float16
    packed = model[0].to_packed()
    assert QuantLinear.from_packed(packed).compute_dtype == torch.float32
    assert QuantLinear.from_packed(packed, torch.zeros(8).half()).compute_dtype == torch.float16
    with pytest.raises(ValueError, match=r"dtype must be a floating-point one, got torch\.int8"):
        QuantLinear(8, 8, dtype=torch.int8)


def test_to_empty_and_reset_parameters_make_a_new_layer() -> None:
    model = nn.Sequential(empty_like(layer_with_zeros(act_order=True), "meta"))
    model.to_empty(device="cpu")
    assert model[0].packed_format.tolist() == FORMAT
    model[0].qweight.fill_(255)
    model[0].reset_parameters()
    assert bool((model(inputs(3, 200)) == 0).all())
    assert model[0].perm.tolist() == list(range(200))
    assert model[0].packed_format.tolist() == FORMAT


@pytest.mark.parametrize("ask", ["requires_grad_", "each parameter"])
def test_a_model_can_be_asked_to_require_gradients(ask: str) -> None:
    models = [nn.Sequential(layer_with_zeros(), nn.ReLU(), nn.Linear(70, 4))]
    models.append(copy.deepcopy(models[0]))
    models.append(pickle.loads(pickle.dumps(models[0])))
    models.append(copy.deepcopy(models[0]).to("meta").to_empty(device="cpu"))
    models.append(copy.deepcopy(models[0]).half().float())
    loaded = nn.Sequential(layer_with_zeros().to("meta"), nn.ReLU(), nn.Linear(70, 4))
    loaded.load_state_dict(models[0].state_dict(), assign=True)
    models.append(loaded)
    for model in models:
        model.requires_grad_(False)
        if ask == "requires_grad_":
            model.requires_grad_(True)
        else:
            for parameter in model.parameters():
                parameter.requires_grad = True
        model(inputs(3, 200)).sum().backward()
        assert {name: p.grad is not None for name, p in model.named_parameters()} == {
            "0.qweight": False,
            "0.bias": True,
            "2.weight": True,
            "2.bias": True,
        }


def test_a_packed_parameter_is_a_parameter_without_gradient() -> None:
    p = layer_with_zeros().qweight
    assert isinstance(p, nn.Parameter)
    assert not p.requires_grad
    again = nn.Parameter(p, requires_grad=False)
    assert type(again) is PackedParameter
    assert again.data_ptr() == p.data_ptr()
    assert type(p.data) is torch.Tensor
    shared = nn.Parameter(torch.zeros(2, dtype=torch.uint8), requires_grad=False)
    assert PackedParameter.of(shared) is shared  # the parameter of two modules stays one
    buffer = io.BytesIO()
    torch.save(p, buffer)
    buffer.seek(0)
    assert torch.equal(torch.load(buffer, weights_only=True), p)
