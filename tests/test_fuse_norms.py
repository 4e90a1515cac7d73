"""The norms of a fused model: fewer launches where no gradient is wanted, the same numbers."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode

import xgemm
from xgemm.nn.fused_norm import norm_form

pytest.importorskip("transformers")

KINDS = ("llama", "gemma2", "qwen3")


def model(kind: str, dtype: torch.dtype = torch.float32) -> Any:
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    config = AutoConfig.for_model(
        kind, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, vocab_size=128, pad_token_id=0, eos_token_id=None,
    )  # fmt: skip
    made = AutoModelForCausalLM.from_config(config, dtype=dtype).eval()
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            if "norm" in name:  # as made, they are all 1 or 0
                parameter.add_(torch.randn_like(parameter) * 0.3)
    return xgemm.quantize(made, group_size=32)


IDS = torch.arange(1, 13).view(2, 6)


class Calls(TorchFunctionMode):
    """Counts the calls of torch's functions: on a GPU each of them is a launch."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not func.__name__.startswith("__"):  # attributes
            self.names.append(func.__name__)
        return func(*args, **(kwargs or {}))


def norms(module: nn.Module) -> list[str]:
    return [name for name, m in module.named_modules() if type(m).__name__.endswith("RMSNorm")]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", KINDS)
def test_norms_give_the_same_numbers(kind: str, dtype: torch.dtype) -> None:
    plain = model(kind, dtype)
    fused = xgemm.fuse(copy.deepcopy(plain))
    assert fused.xgemm_fusion.norms == norms(plain)
    assert "RMSNorm, of two launches each" in str(fused.xgemm_fusion)
    eps = torch.finfo(dtype).eps
    for name in norms(plain):
        ours, theirs = fused.get_submodule(name), plain.get_submodule(name)
        x = torch.randn(3, 5, ours.weight.shape[0]).to(dtype) * 3
        with torch.no_grad():
            got, expected = ours(x), theirs(x)
        # The sum of squares in another order, and no other rounding: one step of the last place.
        assert bool(((got - expected).abs() <= 2 * eps * expected.abs()).all())
    with torch.inference_mode():
        torch.testing.assert_close(
            fused(IDS).logits, plain(IDS).logits, rtol=32 * eps, atol=32 * eps
        )


def test_fewer_launches_in_inference_alone() -> None:
    plain = model("llama")
    norm = xgemm.fuse(copy.deepcopy(plain)).model.norm
    x = torch.randn(1, 1, 64)
    with torch.no_grad(), Calls() as ours:
        norm(x)
    with torch.no_grad(), Calls() as theirs:
        plain.model.norm(x)
    assert ours.names == ["rms_norm", "mul"]
    assert {"pow", "mean", "rsqrt"} <= set(theirs.names)
    with Calls() as with_gradient:
        norm(x)
    assert with_gradient.names == theirs.names


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("kind", KINDS)
def test_on_a_gpu(kind: str) -> None:
    plain = model(kind, torch.bfloat16).cuda()
    fused = xgemm.fuse(copy.deepcopy(plain))
    assert fused.xgemm_fusion.norms == norms(plain)
    x = torch.randn(3, 1, 64, device="cuda", dtype=torch.bfloat16)
    with torch.no_grad():
        expected = plain.model.norm(x)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            got = fused.model.norm(x)
            torch.cuda.synchronize()
    kernels = [e for e in profile.events() if e.device_type == torch.autograd.DeviceType.CUDA]
    assert len(kernels) == (6 if kind == "gemma2" else 2)
    assert bool(((got - expected).abs() <= 2**-7 * expected.abs()).all())


def test_gradients_and_transforms_are_the_module_s_own() -> None:
    plain = model("llama")
    fused = xgemm.fuse(copy.deepcopy(plain))
    for each in (plain, fused):
        each(IDS, labels=IDS).loss.backward()
    for (name, mine), theirs in zip(fused.named_parameters(), plain.parameters(), strict=True):
        if theirs.grad is not None:
            assert torch.equal(mine.grad, theirs.grad), name
    x, norm = torch.randn(4, 64), fused.model.norm
    with torch.no_grad():
        assert torch.equal(torch.vmap(norm)(x), torch.vmap(plain.model.norm)(x))
        with torch.autocast("cpu", torch.bfloat16):
            assert torch.equal(norm(x), plain.model.norm(x))
        assert torch.equal(norm(hidden_states=x), plain.model.norm(hidden_states=x))
    _, tangent = torch.func.jvp(norm, (x,), (torch.ones_like(x),))
    assert torch.equal(tangent, torch.func.jvp(plain.model.norm, (x,), (torch.ones_like(x),))[1])


def test_copies_keep_it_and_unfuse_undoes_it() -> None:
    plain = model("llama")
    kind = type(plain.model.norm)
    fused = xgemm.fuse(plain)
    for other in (copy.deepcopy(fused), pickle.loads(pickle.dumps(fused))):
        assert type(other.model.norm) is type(fused.model.norm) is not kind
        assert other.model.norm.weight is not fused.model.norm.weight
        with torch.no_grad():
            assert torch.equal(other(IDS).logits, fused(IDS).logits)
    xgemm.fuse(fused)
    assert type(fused.model.norm).__bases__ == (kind,)
    assert type(xgemm.unfuse(fused).model.norm) is kind


class SquareRMSNorm(nn.Module):
    """Its name and attributes are an RMSNorm's; what it computes is not."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(8))
        self.eps = 1e-6

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * x * self.weight


def test_hooks_see_calls_alone() -> None:
    plain, seen = model("llama"), []
    plain.model.norm.register_forward_hook(lambda *call: seen.append(call))
    xgemm.fuse(plain)
    assert seen == []
    with torch.no_grad():
        plain(IDS)
    assert len(seen) == 1


def test_what_computes_something_else_is_left() -> None:
    assert norm_form(SquareRMSNorm()) is None
    assert norm_form(nn.LayerNorm(8)) is None
    with torch.device("meta"):
        assert norm_form(nn.RMSNorm(8, eps=1e-6)) is None
    assert norm_form(nn.RMSNorm(8, eps=1e-6)) == 0
    only_norms = nn.Sequential(nn.RMSNorm(8, eps=1e-6))  # not a quantized model
    assert xgemm.fuse(only_norms).xgemm_fusion.norms == []


def test_compiled_norms_are_the_module_s_own_code() -> None:
    norm = xgemm.fuse(model("llama")).model.norm
    x = torch.randn(2, 64)
    with torch.no_grad():
        compiled = torch.compile(norm, backend="eager", fullgraph=True)
        torch.testing.assert_close(compiled(x), norm(x))
