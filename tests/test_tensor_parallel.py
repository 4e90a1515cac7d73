"""Packed layers split over 2, 3 and 4 ranks: processes on the CPU, over gloo."""

from __future__ import annotations

import copy
import os
import traceback
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from helpers import in_act_order
from prepared import METHOD
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

import xgemm
from xgemm.distributed import (
    ColwiseParallel,
    ExpertParallel,
    RowwiseParallel,
    collectives,
    parallelize,
)
from xgemm.nn import QuantLinear

WORLD = 4
# group_size, zeros, dtype of the scales, act-order
FORMATS = [
    *product((32, 64, 128, -1), (False,), (torch.float16,), (False,)),
    (64, True, torch.bfloat16, False),
    (-1, True, torch.float16, False),
    (128, True, torch.float16, True),
]


def layer(n: int, k: int, form: tuple[Any, ...] = FORMATS[2], activation: str = "none") -> Any:
    """A layer of random codes, the same one on each rank."""
    group_size, zeros, dtype, act_order = form
    random = torch.Generator().manual_seed(n + k)
    groups = 1 if group_size == -1 else -(-k // group_size)
    g_idx = None
    if act_order:
        g_idx = torch.arange(k, dtype=torch.int32) // group_size
        g_idx = g_idx[torch.randperm(k, generator=random)]
    weight = xgemm.QuantizedWeight(
        torch.randint(0, 16, (n, k), generator=random, dtype=torch.uint8),
        torch.rand(groups, n, generator=random).add(0.5).div(64).to(dtype),
        torch.randint(6, 10, (groups, n), generator=random).half() if zeros else None,
        g_idx,
        group_size,
    )
    bias = torch.randn(n, generator=random)
    return QuantLinear.from_packed(xgemm.pack(weight), bias, activation)


def inputs(k: int, rows: int = 4) -> torch.Tensor:
    return torch.randn(rows, k, generator=torch.Generator().manual_seed(1))


def nbytes(module: nn.Module) -> int:
    return sum(t.untyped_storage().nbytes() for t in (*module.parameters(), *module.buffers()))


def check_formats(mesh: DeviceMesh) -> None:
    """A pair of layers split as in an MLP: no rank sees the columns between them."""
    ranks, close = mesh.size(), {"rtol": 1e-4, "atol": 1e-3}
    for inner, form in product((1792, 7392), FORMATS):
        whole = nn.Sequential(layer(inner, 96, form), nn.SiLU(), layer(128, inner, form))
        split = nn.Sequential(layer(inner, 96, form), nn.SiLU(), layer(128, inner, form))
        parallelize(split, mesh, {"0": ColwiseParallel(), "2": "rowwise"})
        widths = [64 * (-(-inner // 64) // ranks + more) for more in (0, 1)]
        assert split[0].out_features == split[2].in_features
        assert widths[0] - 64 < split[0].out_features <= widths[1]
        # A rank's bytes are its share: columns beyond N and smaller groups are what it has more.
        assert nbytes(split) < nbytes(whole) * (1.15 / ranks + 0.05)
        x, own = inputs(96).requires_grad_(), inputs(96).requires_grad_()
        expected, found = whole(x), split(own)
        torch.testing.assert_close(found, expected, **close)
        if not form[-1]:  # without a gradient nothing but the sum comes to the layers' calls
            with torch.no_grad(), patch.object(DTensor, "from_local", side_effect=AssertionError):
                torch.testing.assert_close(split(own), expected, **close)
        expected.square().sum().backward()
        found.square().sum().backward()
        torch.testing.assert_close(own.grad, x.grad, rtol=1e-4, atol=1e-4 * x.grad.abs().max())
        grad = split[0].bias.grad
        assert grad.shape == (split[0].out_features,)
        if mesh.get_local_rank() == 0:  # the first rank has the first columns, and the sum's bias
            first = whole[0].bias.grad[: grad.numel()]
            torch.testing.assert_close(grad, first, rtol=1e-4, atol=1e-4 * first.abs().max())
            torch.testing.assert_close(split[2].bias.grad, whole[2].bias.grad, **close)


def check_vocabulary(mesh: DeviceMesh) -> None:
    """An output head whose columns are no multiple of 64, gathered; 16-bit inputs of both kinds."""
    for index, form in enumerate(FORMATS):
        whole = layer(32001, 96, form)
        split = nn.ModuleDict({"head": copy.deepcopy(whole)})
        parallelize(split, mesh, {"head": "colwise_gather_output"})
        dtype = (torch.float16, torch.bfloat16)[index % 2]
        found = split["head"].to(dtype)(inputs(96).to(dtype))
        expected = whole.to(dtype)(inputs(96).to(dtype))
        assert torch.equal(found, expected)  # each column is one rank's


def check_layouts(mesh: DeviceMesh) -> None:
    """What torch's styles take: whole inputs, DTensors, parts of the rows (sequence parallel)."""
    ranks, rank, close = mesh.size(), mesh.get_local_rank(), {"rtol": 1e-4, "atol": 1e-3}
    rows = 2 * ranks
    mine = slice(2 * rank, 2 * rank + 2)
    for form in (FORMATS[1], FORMATS[-1]):
        x = inputs(448, rows)
        whole = layer(256, 448, form)
        expected = whole(x)

        split = nn.ModuleDict({"a": layer(256, 448, form)})
        parallelize(split, mesh, {"*": "rowwise_split_input"})
        torch.testing.assert_close(split["a"](x), expected, **close)

        split = nn.ModuleDict({"a": layer(256, 448, form)})
        parallelize(split, mesh, {"a": RowwiseParallel(output_layouts=Shard(0))})
        given = DTensor.from_local(x, mesh, [Replicate()])
        torch.testing.assert_close(split["a"](given), expected[mine], **close)

        style = ColwiseParallel(input_layouts=Shard(0), output_layouts=Replicate())
        split = nn.ModuleDict({"a": layer(256, 448, form)})
        parallelize(split, mesh, {"a": style})
        own = x[mine].clone().requires_grad_()
        found = split["a"](own)
        torch.testing.assert_close(found, expected, **close)
        found.sum().backward()
        ones = torch.ones(rows, 256) @ whole.dequantize(torch.float32)
        torch.testing.assert_close(own.grad, ones[mine], **close)


def check_over_the_host(mesh: DeviceMesh) -> None:
    """What GPUs exchange over gloo goes by a mesh of the same ranks on the CPU."""
    on_gpus: Any = SimpleNamespace(device_type="cuda", get_group=mesh.get_group)
    carrier = collectives._carrier(on_gpus)
    assert (carrier.device_type, carrier.mesh.tolist()) == ("cpu", mesh.mesh.tolist())
    assert collectives._carrier(mesh) is mesh
    taken, usual = [], collectives._carrier
    collectives._carrier = lambda mesh: taken.append(mesh) or usual(on_gpus)
    try:
        check_layouts(mesh)
        check_torch_plan(mesh)
    finally:
        collectives._carrier = usual
    assert taken


def check_torch_plan(mesh: DeviceMesh) -> None:
    """The styles within torch's own parallelize_module, under LoRA-like training of a bias."""
    from torch.distributed.tensor.parallel import parallelize_module

    whole = nn.Sequential(layer(256, 96), nn.ReLU(), layer(64, 256))
    split = nn.Sequential(layer(256, 96), nn.ReLU(), layer(64, 256))
    parallelize_module(split, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    torch.testing.assert_close(split(inputs(96)), whole(inputs(96)), rtol=1e-4, atol=1e-3)
    state = split.state_dict()
    assert state["0.packed_format"].tolist()[1] == split[0].out_features
    split.load_state_dict(state)


def check_ops(mesh: DeviceMesh) -> None:
    """Every placement of the ops' inputs gives the unsharded result, and the gradient of it."""
    ops, random = torch.ops.xgemm, torch.Generator().manual_seed(0)

    def compare(call: Any, *tensors: torch.Tensor, exact: bool = False) -> set[Any]:
        expected, found = call(*tensors), set()
        tolerance = {"rtol": 0, "atol": 0} if exact else {"rtol": 1e-4, "atol": 1e-4}
        choices = [[Replicate(), *(Shard(d) for d in range(t.dim()))] for t in tensors]
        for placements in product(*choices):
            given = [
                distribute_tensor(t, mesh, [placement])
                for t, placement in zip(tensors, placements, strict=True)
            ]
            result = call(*given)
            found.add(result.placements[0])
            torch.testing.assert_close(result.full_tensor(), expected, **tolerance)
        return found

    a, b, bias = (torch.randn(*s, generator=random) for s in ((5, 7), (7, 4), (4,)))
    assert compare(ops.mul, a, b) == {Replicate(), Shard(0), Shard(1), Partial()}
    compare(lambda a, b, c: ops.mul(a, b, c, activation="relu"), a, b, bias)
    x, y = torch.randn(4, 3, 5, generator=random), torch.randn(4, 5, 2, generator=random)
    compare(ops.mul, x, y)
    compare(lambda a, b: ops.mul(a[0], b), x, b[:5])
    compare(ops.sgemm, a, b)
    compare(lambda a, b: ops.sgemm(a, b, transa=True, transb=True, alpha=2.0), a.t(), b.t())
    compare(lambda a, b, c: ops.sgemm(a, b, c, beta=0.5), a[:, :4], b[:4], torch.ones(5, 4))
    x = torch.randn(6, 6, 5, generator=random)
    for name in ("sum", "mean", "prod", "amax", "amin", "norm"):
        op = getattr(ops, name)
        for dim, keepdim in product((None, [1], [0, -1]), (False, True)):
            found = compare(lambda x, op=op, d=dim, keep=keepdim: op(x, d, keep), x)
            assert name not in ("sum", "amax") or any(p.is_partial() for p in found)
    for op, dim in product((ops.argmax, ops.argmin), (None, 1)):
        compare(lambda x, op=op, dim=dim: op(x, dim), x, exact=True)

    whole = layer(128, 96)
    rows = [inputs(96, 6).requires_grad_() for _ in range(2)]
    weight = distribute_tensor(whole.qweight.detach(), mesh, [Shard(0)])
    sharded = distribute_tensor(rows[1].detach(), mesh, [Shard(0)]).requires_grad_()
    expected = ops.mul.w4a16(rows[0], whole.qweight, 128, 96, whole.group_size)
    found = ops.mul.w4a16(sharded, weight, 128, 96, whole.group_size)
    assert found.placements == (Shard(0),)
    torch.testing.assert_close(found.full_tensor(), expected)
    expected.square().sum().backward()
    found.square().sum().backward()
    torch.testing.assert_close(sharded.grad.full_tensor(), rows[0].grad)
    with pytest.raises(NotImplementedError, match=r"unpack_w4.*does not have a sharding strategy"):
        ops.unpack_w4(weight, 128, 96, whole.group_size)


def check_errors(mesh: DeviceMesh) -> None:
    model = nn.ModuleDict({"a": layer(128, 96), "b": layer(64, 128, activation="relu")})
    model["linear"] = nn.Linear(64, 64)
    before = model["a"].qweight
    for plan, error, text in [
        ({"c": "colwise"}, ValueError, "plan: c fits no module of the model"),
        ({"a": "colwise", "b": "rowwise"}, ValueError, "b: RowwiseParallel: activation must be"),
        ({"a": "colwise", "linear": "colwise"}, TypeError, "linear: ColwiseParallel: module must"),
        ({"a": "colwise", "*": "colwise"}, ValueError, "two patterns fit a"),
        ({"a": "sequence"}, TypeError, "a: a style must be one of"),
        ({"a": ExpertParallel()}, TypeError, "a: ExpertParallel: module must be a QuantExperts"),
        (
            {"a": "colwise", "b": "colwise"},
            ValueError,
            f"out_features: 64 is too small for {mesh.size()} shares that are multiples of 64",
        ),
        (None, ValueError, "plan must be given, as ModuleDict has no tp_plan"),
    ]:
        with pytest.raises(error, match=text):
            parallelize(model, mesh, plan)
        assert model["a"].qweight is before
    parallelize(model, mesh, {"a": "colwise"})
    with pytest.raises(ValueError, match="a: RowwiseParallel: module must be whole, got one split"):
        parallelize(model, mesh, {"a": "rowwise"})
    with pytest.raises(ValueError, match="save: a is split over 2 ranks: save the whole model"):
        xgemm.save(model, "/nonexistent/directory")
    with pytest.raises(TypeError, match="parallelize: mesh must be a DeviceMesh, got int"):
        parallelize(model, 2, {})


def check_transformers(mesh: DeviceMesh) -> None:
    """Whole models by their own tp_plan: attention, MLP, head, experts with and without biases."""
    import transformers
    from hf_models import TOKENS, gpt_oss

    sizes = dict(
        hidden_size=96, intermediate_size=224, num_hidden_layers=2, num_attention_heads=4,
        head_dim=64, vocab_size=130, tie_word_embeddings=False,
    )  # fmt: skip

    def llama(heads: int = 2) -> Any:
        torch.manual_seed(0)
        config = transformers.LlamaConfig(num_key_value_heads=heads, **sizes)
        return transformers.LlamaForCausalLM(config).eval()

    def moe() -> Any:
        torch.manual_seed(0)
        config = transformers.MixtralConfig(
            num_key_value_heads=2, num_local_experts=4, num_experts_per_tok=2, **sizes
        )
        return transformers.MixtralForCausalLM(config).eval()

    def check(make: Any, **plan: Any) -> Any:
        whole, split = (xgemm.quantize(make(), group_size=32) for _ in range(2))
        parallelize(split, mesh, **plan)
        with torch.no_grad():
            found, expected = split(TOKENS).logits, whole(TOKENS).logits
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
        assert torch.equal(
            split.generate(TOKENS, max_new_tokens=4, do_sample=False),
            whole.generate(TOKENS, max_new_tokens=4, do_sample=False),
        )
        return split

    split = check(llama)
    attention = split.model.layers[0].self_attn
    assert attention.k_proj.out_features == attention.q_proj.out_features // 2 == 64
    assert split.lm_head.out_features == 130  # a float layer, which stays whole
    assert check(moe).model.layers[1].mlp.experts.num_experts == 2
    experts = {"model.layers.*.mlp.experts": ExpertParallel()}
    assert check(gpt_oss, plan=experts).model.layers[0].mlp.experts.num_experts == 2
    text = "num_key_value_heads must give each of 2 ranks as many heads, .* got 1 heads of 64"
    with pytest.raises(ValueError, match=text):
        parallelize(xgemm.quantize(llama(1), group_size=32), mesh)


def check_experts(mesh: DeviceMesh) -> None:
    """An uneven number of experts in orders of their own, with gradients, in both forms."""
    from hf_models import mixtral

    module = mixtral().model.layers[0].mlp.experts
    whole, split = in_act_order(module), in_act_order(module)
    parallelize(nn.ModuleDict({"experts": split}), mesh, {"experts": ExpertParallel()})
    assert split.num_experts == (2 if mesh.get_local_rank() == 2 else 1)
    random = torch.Generator().manual_seed(0)
    index = torch.randint(0, 5, (6, 2), generator=random)  # 4 is no expert
    given = [
        (inputs(64, 6).requires_grad_(), torch.full((6, 2), 0.5).requires_grad_()) for _ in "ab"
    ]
    expected = whole(given[0][0], index, given[0][1])
    found = split(given[1][0], top_k_index=index, top_k_weights=given[1][1])
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    expected.square().sum().backward()
    found.square().sum().backward()
    for one, other in zip(*given, strict=True):
        torch.testing.assert_close(other.grad, one.grad, rtol=1e-4, atol=1e-5)
    x = inputs(64, 12)  # three rows for each expert
    torch.testing.assert_close(split(x), whole(x), rtol=1e-4, atol=1e-5)


CHECKS = {
    "formats": (check_formats, (2, 3, 4)),
    "vocabulary": (check_vocabulary, (2, 3, 4)),
    "layouts": (check_layouts, (2, 4)),
    "ops": (check_ops, (2, 3)),
    "over_the_host": (check_over_the_host, (2,)),
    "torch_plan": (check_torch_plan, (3,)),
    "errors": (check_errors, (2,)),
    "experts": (check_experts, (3,)),
    "transformers": (check_transformers, (2,)),
}
CASES = [(name, ranks) for name, (_, counts) in CHECKS.items() for ranks in counts]


def run(rank: int, rendezvous: str, results: str) -> None:
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=WORLD)
    meshes = {count: DeviceMesh("cpu", list(range(count))) for count in (2, 3, 4)}
    for name, ranks in CASES:
        if rank < ranks:
            try:
                CHECKS[name][0](meshes[ranks])
                outcome = "passed"
            except BaseException:
                outcome = traceback.format_exc()
            Path(results, f"{name}-{ranks}-{rank}").write_text(outcome)
    dist.barrier()
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What each check came to on each rank: one group of processes, as they are slow to start."""
    path = tmp_path_factory.mktemp("tensor_parallel")
    arguments = f"file://{path}/rendezvous", str(path)
    mp.start_processes(run, args=arguments, nprocs=WORLD, start_method=METHOD)
    return path


@pytest.mark.skipif(not dist.is_gloo_available(), reason="this torch has no gloo")
@pytest.mark.parametrize(("check", "ranks"), CASES)
def test_ranks(check: str, ranks: int, results: Path) -> None:
    for rank in range(ranks):
        assert (results / f"{check}-{ranks}-{rank}").read_text() == "passed"
