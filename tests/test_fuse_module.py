"""A fused model is a module like any other: state, copies, moves, compilers, adapters, files."""

from __future__ import annotations

import copy
import io
import pickle
import weakref
from typing import Any

import pytest
import torch
import torch._dynamo.testing
import torch.nn.functional as F
from fusing import Attention, Block, X, block, equal, inputs, products
from torch import nn

import xgemm
from xgemm.nn import QuantLinear
from xgemm.nn.fused import sharing

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def attention() -> Any:
    torch.manual_seed(0)
    return xgemm.quantize(Attention().eval(), group_size=32)


# ---- a module like any other ----


def test_state_is_the_unfused_model_s(attention: Any) -> None:
    before = {name: value.clone() for name, value in attention.state_dict().items()}
    parameters = dict(attention.named_parameters())
    xgemm.fuse(attention)
    after = attention.state_dict()
    assert list(after) == list(before)
    assert all(torch.equal(after[name], value) for name, value in before.items())
    assert all(p is parameters[name] for name, p in attention.named_parameters())
    # A storage each: nobody takes them for one tensor, and a file holds what it is to hold.
    storages = [t.untyped_storage().data_ptr() for t in after.values() if t.numel() > 0]
    assert len(set(storages)) == len(storages)
    assert after["k.qweight"].untyped_storage().nbytes() == after["k.qweight"].numel()


@pytest.mark.parametrize("assign", [False, True])
def test_an_unfused_state_loads_into_a_fused_model(attention: Any, assign: bool) -> None:
    torch.manual_seed(7)
    other = xgemm.quantize(Attention().eval(), group_size=32)
    xgemm.fuse(attention)
    attention.load_state_dict(copy.deepcopy(other.state_dict()), assign=assign)
    assert products(attention, X) == 1
    with torch.no_grad():
        equal(attention(X), other(X))
    plain = xgemm.quantize(Attention().eval(), group_size=32)
    plain.load_state_dict(attention.state_dict())
    with torch.no_grad():
        equal(plain(X), other(X))


@pytest.mark.parametrize("way", ["deepcopy", "pickle", "torch"])
def test_copies_are_fused_and_independent(attention: Any, way: str) -> None:
    xgemm.fuse(attention)
    if way == "deepcopy":
        other = copy.deepcopy(attention)
    elif way == "pickle":
        other = pickle.loads(pickle.dumps(attention))
    else:
        buffer = io.BytesIO()
        torch.save(attention, buffer)
        buffer.seek(0)
        other = torch.load(buffer, weights_only=False)
    with torch.no_grad():
        expected = attention(X)
        equal(other(X), expected)
        assert products(other, X) == 1
        other.q.qweight.zero_()
        other.q.bias.zero_()
        equal(attention(X), expected)
        assert other(X)[0].abs().max() == 0
    assert isinstance(other, Attention)
    alone = copy.deepcopy(attention.q)  # without its siblings
    with torch.no_grad():
        equal(alone(X), expected[0])


def test_moves_and_casts(attention: Any) -> None:
    xgemm.fuse(attention)
    attention.to(torch.bfloat16)
    assert products(attention, X.bfloat16()) == 1
    with torch.no_grad():
        outputs = attention(X.bfloat16())
        equal(
            outputs, tuple(part(X.bfloat16()) for part in (attention.q, attention.k, attention.v))
        )
    attention.float().to("meta").to_empty(device="cpu")
    assert products(attention, X) == 1


def test_a_part_that_is_moved_alone_is_on_its_own(attention: Any) -> None:
    xgemm.fuse(attention)
    with torch.no_grad():
        expected = attention(X)
        attention.k.qweight.data = attention.k.qweight.data.clone()
        equal(attention(X), expected)
    assert products(attention, X) == 3
    xgemm.fuse(attention)
    assert products(attention, X) == 1


def test_fusing_again_changes_nothing_and_unfuse_undoes(attention: Any) -> None:
    xgemm.fuse(attention)
    address = attention.q._joined.qweight.data_ptr()
    xgemm.fuse(attention)
    assert attention.q._joined.qweight.data_ptr() == address
    xgemm.unfuse(attention)
    assert type(attention) is Attention
    assert type(attention.q) is QuantLinear
    assert not hasattr(attention, "xgemm_fusion")
    assert attention.q.qweight.data_ptr() != address
    assert products(attention, X) == 3


@pytest.mark.parametrize("dynamic", [False, True])
def test_compiles_whole_and_once(attention: Any, dynamic: bool) -> None:
    graphs: list[Any] = []

    def backend(graph: Any, example: Any) -> Any:
        graphs.append(graph)
        return graph

    xgemm.fuse(attention)
    torch._dynamo.reset()
    compiled = torch.compile(attention, fullgraph=True, backend=backend, dynamic=dynamic)
    with torch.no_grad():
        for rows in (2, 2, 3) if dynamic else (2, 2, 2):
            x = inputs(rows, 5, 96, seed=rows)
            equal(compiled(x), attention(x))
    assert len(graphs) == 1
    nodes = graphs[0].graph.nodes
    assert sum(node.target is torch.ops.xgemm.mul.w4a16 for node in nodes) == 1
    # Not copied for each replay of a CUDA graph: its address is known not to change.
    (weight,) = (n for n in nodes if n.op == "placeholder" and "qweight" in n.name)
    assert weight.meta["tensor_dict"]["_dynamo_static_input_type"] == "unguarded"


def test_one_compilation_serves_equal_layers() -> None:
    counter = torch._dynamo.testing.CompileCounter()
    torch._dynamo.reset()
    layers = [xgemm.fuse(block(seed)).attention for seed in range(3)]
    for layer in layers:
        layer.compile(fullgraph=True, backend=counter)
    with torch.no_grad():
        for layer in layers:
            layer(X)
    assert counter.frame_count == 1


def test_export_and_trace(attention: Any) -> None:
    xgemm.fuse(attention)
    with torch.no_grad():
        expected = attention(X)
        for strict in (False, True):
            program = torch.export.export(attention, (X,), strict=strict)
            held = {name for name, t in attention.state_dict().items() if t.numel() > 0}
            assert set(program.state_dict) == held
            equal(program.module()(X), expected)
        equal(torch.jit.trace(attention, (X,))(X), expected)


def test_a_forward_of_one_s_own_shares_as_well() -> None:
    model = xgemm.fuse(block())

    def forward(x: torch.Tensor) -> torch.Tensor:
        return model.down(F.silu(model.gate(x)) * model.up(x))

    with torch.no_grad():
        expected = forward(X)
        equal(sharing(forward)(X), expected)
    counted = nn.Module()
    counted.forward = forward
    assert products(counted, X) == 3
    counted.forward = sharing(forward)
    assert products(counted, X) == 2


# ---- adapters, offloading, files ----


def test_an_adapter_around_one_part() -> None:
    peft = pytest.importorskip("peft")
    pytest.importorskip("transformers")
    from architectures import ARCHITECTURES

    model: Any = next(a for a in ARCHITECTURES if a.name == "Llama").make_tiny()
    xgemm.quantize(model, group_size=32)
    config = peft.LoraConfig(target_modules=["q_proj", "up_proj"], init_lora_weights=False)
    torch.manual_seed(0)
    adapted = peft.get_peft_model(model, config).eval()
    tokens = torch.arange(3, 13)[None]
    with torch.no_grad():
        expected = adapted(tokens).logits
    xgemm.fuse(adapted)
    assert products(adapted, tokens) == 8
    with torch.no_grad():
        equal(adapted(tokens).logits, expected)
        with adapted.disable_adapter():
            assert (adapted(tokens).logits - expected).abs().max() > 1e-3
    loss = adapted(tokens, labels=tokens).loss
    loss.backward()
    adapted.unload()
    assert products(model, tokens) == 8


def test_dispatched_layers_are_left() -> None:
    accelerate = pytest.importorskip("accelerate")
    model = block()
    with torch.no_grad():
        expected = model(X)
    accelerate.cpu_offload(model, torch.device("cpu"))
    xgemm.fuse(model)
    assert model.xgemm_fusion.fused == {}
    assert "accelerate" in model.xgemm_fusion.left["gate"]
    with torch.no_grad():
        equal(model(X), expected)

    model = xgemm.fuse(block())
    joined = weakref.ref(model.gate._joined.qweight)
    accelerate.cpu_offload(model, torch.device("cpu"))
    assert joined() is None  # the memory is given back
    with torch.no_grad():
        equal(model(X), expected)


def test_files_hold_the_unfused_model(tmp_path: Any) -> None:
    safetensors = pytest.importorskip("safetensors.torch")
    model = xgemm.fuse(block())
    with torch.no_grad():
        expected = model(X)
    safetensors.save_model(model, str(tmp_path / "model.safetensors"))
    assert set(safetensors.load_file(tmp_path / "model.safetensors")) == set(model.state_dict())
    xgemm.save(model, tmp_path / "out")
    for fuse in (False, True):
        plain = xgemm.load(tmp_path / "out", model=Block().eval(), fuse=fuse)
        assert products(plain, X) == (3 if fuse else 6)
        with torch.no_grad():
            equal(plain(X), expected)
    xgemm.load(tmp_path / "out", model=model)  # into a fused one
    with torch.no_grad():
        equal(model(X), expected)


def test_quantize_fuses() -> None:
    torch.manual_seed(0)
    model = xgemm.quantize(Block().eval(), group_size=32, fuse=True)
    assert model.xgemm_fusion.fused == {
        "gate": ["gate", "up"],
        "attention.q": ["attention.q", "attention.k", "attention.v"],
    }
    assert products(model, X) == 3


def test_save_pretrained_writes_the_unfused_model(tmp_path: Any) -> None:
    transformers = pytest.importorskip("transformers")
    from architectures import ARCHITECTURES

    import xgemm.hf

    model: Any = next(a for a in ARCHITECTURES if a.name == "Qwen2").make_tiny()
    xgemm.quantize(model, group_size=32, fuse=True)
    tokens = torch.arange(3, 13)[None]
    model.save_pretrained(tmp_path / "out")
    plain = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert products(plain, tokens) == 14
    assert products(model, tokens) == products(xgemm.load(tmp_path / "out", fuse=True), tokens) == 8
    with torch.no_grad():
        equal(plain(tokens).logits, model(tokens).logits)
