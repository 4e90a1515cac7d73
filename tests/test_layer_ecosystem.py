"""QuantLinear in the hands of safetensors, accelerate and TorchScript, and where torch looks into a
linear layer by itself."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from test_nn import make
from torch import nn

import xgemm
from xgemm.nn import QuantLinear
from xgemm.nn.parameter import PackedParameter


def build(**options: Any) -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(96, 200), nn.ReLU(), nn.Linear(200, 40)).eval()
    return xgemm.quantize(model, group_size=32, **options)  # type: ignore[return-value]


def blank() -> nn.Sequential:
    """A model of the same form, its weights zero."""
    return nn.Sequential(
        QuantLinear(96, 200, group_size=32), nn.ReLU(), QuantLinear(200, 40, group_size=32)
    ).eval()


X = torch.randn(3, 96, generator=torch.Generator().manual_seed(3))


def same(model: Callable[[torch.Tensor], torch.Tensor]) -> None:
    with torch.no_grad():
        assert torch.equal(model(X), build()(X))


def misaligned(tensor: torch.Tensor) -> torch.Tensor:
    """The same bytes five past a multiple of 16, as a mapped file may hold them."""
    moved = torch.cat([torch.zeros(5, dtype=torch.uint8), tensor.flatten()])[5:]
    assert moved.data_ptr() % 16 != 0
    return moved.view(tensor.shape)


# ---- files ----


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    safetensors = pytest.importorskip("safetensors.torch")
    safetensors.save_model(build(), tmp_path / "model.safetensors", metadata={"format": "pt"})
    return tmp_path / "model.safetensors"


def test_safetensors_save_model_and_load_model(saved: Path) -> None:
    from safetensors.torch import load_file, load_model

    model = blank()
    load_model(model, saved)
    same(model)
    assert load_file(saved).keys() == model.state_dict().keys()


def test_safetensors_assigned_to_a_meta_model(saved: Path) -> None:
    from safetensors.torch import load_file

    with torch.device("meta"):
        model = blank()
    model.load_state_dict(load_file(saved), assign=True)
    same(model)


@pytest.mark.parametrize("mmap", [False, True])
def test_a_checkpoint_of_a_trainer(tmp_path: Path, mmap: bool) -> None:
    torch.save(build().state_dict(), tmp_path / "pytorch_model.bin")
    state = torch.load(tmp_path / "pytorch_model.bin", weights_only=True, mmap=mmap)
    for device, assign in ((None, False), ("meta", True)):
        model = blank() if device is None else blank().to(device)
        model.load_state_dict(state, assign=assign)
        same(model)


def test_distributed_checkpoint(tmp_path: Path) -> None:
    import torch.distributed.checkpoint as dcp

    dcp.save({"model": build().state_dict()}, checkpoint_id=tmp_path)
    model = blank()
    state = model.state_dict()
    dcp.load({"model": state}, checkpoint_id=tmp_path)
    model.load_state_dict(state)
    same(model)


# ---- accelerate ----


def test_accelerate_offload(tmp_path: Path) -> None:
    accelerate = pytest.importorskip("accelerate")
    device = torch.device("cpu")
    same(accelerate.cpu_offload(build(), execution_device=device))
    model = build()
    accelerate.disk_offload(model, tmp_path, execution_device=device)
    assert model[0].qweight.is_meta
    same(model)
    same(model)  # and again, from the disk


@pytest.mark.parametrize("device_map", ["auto", {"": "cpu"}, {"0": "cpu", "1": "cpu", "2": "disk"}])
def test_accelerate_load_checkpoint_and_dispatch(saved: Path, device_map: Any) -> None:
    accelerate = pytest.importorskip("accelerate")
    with accelerate.init_empty_weights():
        model = blank()
    assert model[0].qweight.is_meta
    model = accelerate.load_checkpoint_and_dispatch(
        model, str(saved), device_map=device_map, offload_folder=str(saved.parent / "offload")
    )
    assert type(model[0].qweight) is PackedParameter
    same(model)
    model.requires_grad_(True)


@pytest.mark.parametrize("offload_buffers", [False, True])
def test_accelerate_leaves_no_order_out_in_silence(tmp_path: Path, offload_buffers: bool) -> None:
    accelerate = pytest.importorskip("accelerate")
    from safetensors.torch import save_model

    layer, _ = make(act_order=True)
    file = str(tmp_path / "model.safetensors")
    save_model(nn.Sequential(layer), file, metadata={"format": "pt"})
    with accelerate.init_empty_weights():
        model = nn.Sequential(QuantLinear(200, 70, group_size=32, act_order=True), nn.Identity())
    model = accelerate.load_checkpoint_and_dispatch(
        model,
        file,
        device_map={"0": "disk", "1": "cpu"},
        offload_folder=str(tmp_path / "offload"),
        offload_buffers=offload_buffers,
    )
    x = torch.randn(3, 200)
    if offload_buffers:
        assert torch.equal(model(x), layer(x))
    else:
        with pytest.raises(RuntimeError, match="perm, the order of channels, was never loaded"):
            model(x)


def test_accelerate_dispatch_model(tmp_path: Path) -> None:
    accelerate = pytest.importorskip("accelerate")
    model = accelerate.dispatch_model(
        build(),
        device_map={"0": "cpu", "1": "cpu", "2": "disk"},
        main_device="cpu",
        offload_dir=tmp_path,
    )
    same(model)


def test_accelerate_save_state_and_save_model(tmp_path: Path) -> None:
    accelerate = pytest.importorskip("accelerate")
    accelerator = accelerate.Accelerator(cpu=True)
    model = build()
    optimizer = torch.optim.AdamW(model.parameters())
    model, optimizer = accelerator.prepare(model, optimizer)
    model(X).sum().backward()
    accelerator.save_state(tmp_path / "state")
    optimizer.step()
    model[0].qweight.data.zero_()
    accelerator.load_state(tmp_path / "state")
    same(model)
    accelerator.save_model(model, tmp_path / "model")
    fresh = blank()
    accelerate.load_checkpoint_in_model(fresh, str(tmp_path / "model"))
    same(fresh)


# ---- bytes at any address ----


def test_a_parameter_begins_at_a_multiple_of_16() -> None:
    layer = build()[0]
    moved = misaligned(layer.qweight.data)
    for make_parameter in (
        PackedParameter,
        PackedParameter.of,
        lambda t: PackedParameter.of(nn.Parameter(t, requires_grad=False)),
        lambda t: (
            QuantLinear.from_packed(xgemm.PackedWeight(t, 200, 96, 32), layer.bias.data).qweight
        ),
    ):
        p = make_parameter(moved)
        assert type(p) is PackedParameter
        assert p.data_ptr() % 16 == 0
        assert torch.equal(p, layer.qweight)
    given = nn.Parameter(moved, requires_grad=False)
    layer.qweight = given  # as transformers sets what it has read
    assert layer.qweight is given
    assert given.data_ptr() % 16 == 0
    assert type(given) is PackedParameter


def test_the_ops_take_bytes_at_any_address() -> None:
    layer, w = make(symmetric=False)
    packed = layer.to_packed()
    moved = xgemm.PackedWeight(misaligned(packed.qweight), 70, 200, 32, has_zeros=True)
    x = torch.randn(3, 200)
    with torch.no_grad():
        assert torch.equal(xgemm.linear(x, moved, layer.bias), layer(x))
        assert torch.equal(moved.dequantize(), w.float())
        assert torch.equal(xgemm.unpack(moved).codes, xgemm.unpack(packed).codes)
    x.requires_grad_()
    xgemm.linear(x, moved).sum().backward()
    torch.testing.assert_close(x.grad, w.float().sum(0).expand(3, -1), rtol=1e-4, atol=1e-4)


# ---- TorchScript, tracing, export ----


@pytest.mark.parametrize("act_order", [False, True])
@pytest.mark.parametrize("activation", ["none", "silu"])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
def test_torchscript(tmp_path: Path, act_order: bool, activation: str, bias: bool) -> None:
    layer, _ = make(act_order=act_order, activation=activation, bias=bias, symmetric=False)
    model = nn.Sequential(layer, nn.ReLU()).eval()
    x = torch.randn(3, 200)
    with torch.no_grad():
        expected = model(x)
        for scripted in (torch.jit.script(model), torch.jit.trace(model, (x,))):
            scripted.save(tmp_path / "model.pt")
            loaded = torch.jit.load(tmp_path / "model.pt")
            assert torch.equal(scripted(x), expected)
            assert torch.equal(loaded(x), expected)
            assert loaded.state_dict().keys() == model.state_dict().keys() - {"0.weight"}
            assert torch.equal(loaded(x[:1]), expected[:1])


def test_a_scripted_layer_shares_the_tensors() -> None:
    layer, _ = make()
    scriptable = layer.__prepare_scriptable__()
    assert scriptable.qweight.data_ptr() == layer.qweight.data_ptr()
    assert scriptable.bias is layer.bias


def test_saved_export(tmp_path: Path) -> None:
    exported = torch.export.export(
        build(), (X,), dynamic_shapes=({0: torch.export.Dim("rows", min=1, max=64)},)
    )
    torch.export.save(exported, tmp_path / "model.pt2")
    loaded = torch.export.load(tmp_path / "model.pt2").module()
    same(loaded)
    assert loaded(torch.randn(7, 96)).shape == (7, 40)


def test_make_fx_and_symbolic_trace() -> None:
    """Its mode refuses every class of tensor that is not torch's own."""
    from torch.fx.experimental.proxy_tensor import make_fx

    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, _ = make(act_order=True)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x) + F.linear(x, self.layer.weight)

    model = Both()
    x = torch.randn(3, 200)
    with torch.no_grad():
        torch.testing.assert_close(make_fx(model)(x)(x), model(x))
        same(torch.fx.symbolic_trace(build()))
        y, tangent = torch.func.linearize(build(), X)
        same(lambda _: y)
        assert tangent(X).shape == (3, 40)


# ---- messages ----


@pytest.mark.parametrize("kind", ["ndarray", "list"])
def test_an_input_that_is_no_tensor(kind: str) -> None:
    layer, _ = make()
    x = {"ndarray": torch.zeros(3, 200).numpy(), "list": [[0.0] * 200]}[kind]
    with pytest.raises(TypeError, match=rf"QuantLinear: x must be a torch\.Tensor, got {kind}"):
        layer(x)
    with pytest.raises(TypeError, match=rf"linear: x must be a torch\.Tensor, got {kind}"):
        xgemm.linear(x, layer.to_packed())
    with pytest.raises(TypeError, match=rf"linear: x must be a torch\.Tensor, got {kind}"):
        xgemm.linear(x, layer.to_packed(), activation="silu")


def test_from_linear_refuses_what_is_no_float_linear() -> None:
    with pytest.raises(TypeError, match=r"got a QuantLinear, which is already quantized: its to_l"):
        QuantLinear.from_linear(make()[0])
    with pytest.raises(TypeError, match="a transformers Conv1D, got ReLU"):
        QuantLinear.from_linear(nn.ReLU())


def test_from_linear_takes_conv1d() -> None:
    pytest.importorskip("transformers")
    from transformers.pytorch_utils import Conv1D

    conv = Conv1D(70, 96).eval().half()
    conv.bias.requires_grad_(False)
    layer = QuantLinear.from_linear(conv, group_size=32)
    assert (layer.out_features, layer.in_features) == (70, 96)
    assert layer.bias is conv.bias
    assert not layer.bias.requires_grad
    assert not layer.training
    assert layer.compute_dtype == torch.float16
    q = xgemm.quantize_weight(conv.weight.t(), group_size=32)
    assert torch.equal(layer.weight, q.dequantize(torch.float16))


def test_conv1d_is_found_without_an_import(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "transformers.pytorch_utils", raising=False)
    assert QuantLinear.from_linear(nn.Linear(32, 8), group_size=32).out_features == 8


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (nn.utils.parametrizations.weight_norm, "does not have a parameter.* name 'weight'"),
        (nn.utils.parametrizations.spectral_norm, "does not have a parameter.* name 'weight'"),
        (
            lambda layer: nn.utils.prune.l1_unstructured(layer, "weight", 0.5),
            "QuantLinear: weight cannot be assigned: this weight is read-only",
        ),
        (lambda layer: nn.init.xavier_uniform_(layer.weight), "this weight is read-only"),
        (nn.utils.weight_norm, "QuantLinear: weight cannot be assigned: this weight is read-only"),
        (nn.utils.spectral_norm, "QuantLinear: weight cannot be assigned"),
    ],
)
@pytest.mark.filterwarnings("ignore:.*weight_norm. is deprecated:FutureWarning")
def test_what_would_rewrite_the_weight_is_refused(use: Callable, message: str) -> None:
    import torch.nn.utils.prune

    layer, w = make()
    with pytest.raises((RuntimeError, ValueError), match=message):
        use(layer)
    assert torch.equal(layer.weight, w.float())
    assert not layer._forward_pre_hooks


@pytest.mark.filterwarnings("ignore:.*weight_norm. is deprecated:FutureWarning")
@pytest.mark.parametrize("norm", [nn.utils.weight_norm, nn.utils.spectral_norm])
def test_other_layers_keep_torch_s_older_norms(norm: Callable) -> None:
    layer = norm(nn.Linear(8, 4), name="weight")
    assert layer(torch.ones(1, 8)).shape == (1, 4)
    assert len(layer._forward_pre_hooks) == 1


# ---- where torch looks into a linear layer ----


def test_the_fast_path_of_a_transformer_layer() -> None:
    """In inference torch reads the weights of linear1 and linear2 and calls neither."""
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True).eval()
    layer.linear1 = QuantLinear.from_linear(layer.linear1, group_size=32)
    layer.linear2 = QuantLinear.from_linear(layer.linear2, group_size=32)
    x = torch.randn(2, 5, 32)
    expected = layer(x)  # with gradients: the plain path
    with torch.no_grad():
        torch.testing.assert_close(layer(x), expected, rtol=1e-4, atol=1e-5)
        stack = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
        torch.testing.assert_close(stack(x), layer(layer(x)), rtol=1e-4, atol=1e-5)


def test_the_output_projection_of_attention() -> None:
    attention = nn.MultiheadAttention(32, 4, batch_first=True).eval()
    attention.out_proj = QuantLinear.from_linear(attention.out_proj, group_size=32)
    x = torch.randn(2, 5, 32)
    expected = attention(x, x, x)[0]
    with torch.no_grad():
        torch.testing.assert_close(attention(x, x, x)[0], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore:.*torch.ao.quantization:DeprecationWarning")
def test_torch_ao_leaves_it() -> None:
    import torch.ao.quantization as ao

    model = nn.Sequential(build(), nn.Linear(40, 4))
    quantized = ao.quantize_dynamic(model, {nn.Linear})
    assert type(quantized[0][0]) is QuantLinear
    assert type(quantized[1]) is not nn.Linear
    assert quantized(X).shape == (3, 4)


@pytest.mark.parametrize("future", ["swap_module_params", "overwrite_module_params"])
def test_the_other_ways_in_which_torch_may_convert_modules(future: str) -> None:
    switch = getattr(torch.__future__, f"set_{future}_on_conversion")
    switch(True)
    try:
        model = blank().half().float()
        assert type(model[0].qweight) is PackedParameter
        model.load_state_dict(build().state_dict())
        assert type(model[0].qweight) is PackedParameter
        same(model)
    finally:
        switch(False)


def test_functional_call_with_a_gradient_in_the_bias() -> None:
    model = build()
    biases = {name: p for name, p in model.named_parameters() if p.requires_grad}

    def loss(given: dict[str, torch.Tensor]) -> torch.Tensor:
        return torch.func.functional_call(model, given, (X,)).square().sum()

    model.zero_grad()
    loss(biases).backward()
    assert all(p.grad is not None for p in biases.values())


def test_a_shallow_copy_computes() -> None:
    model = build()
    twin = copy.copy(model[0])
    assert twin.qweight is model[0].qweight
    assert torch.equal(twin(X), model[0](X))


def test_checkpointed_activations() -> None:
    from torch.utils.checkpoint import checkpoint

    x, y = X.clone().requires_grad_(), X.clone().requires_grad_()
    model = build()
    checkpoint(model, x, use_reentrant=False).square().sum().backward()
    model(y).square().sum().backward()
    assert torch.equal(x.grad, y.grad)


def test_it_is_sent_to_another_process() -> None:
    import io
    import pickle
    from multiprocessing.reduction import ForkingPickler

    import torch.multiprocessing  # noqa: F401  (its reductions send tensors by handle)

    buffer = io.BytesIO()
    ForkingPickler(buffer).dump(build())
    model = pickle.loads(buffer.getvalue())
    assert type(model[0].qweight) is PackedParameter
    same(model)
