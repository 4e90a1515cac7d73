"""Hostile arguments of every op, drawn from the schemas: `python tests/fuzz_arguments.py`.

A call is right at first: small integers, which every kernel adds exactly. Then some arguments
become wrong, unusual, or views of one another's memory. The op refuses the call by its own name
and changes nothing, or gives what float64 gives and changes its destination alone. It never hangs,
crashes or takes memory without end. The fake kernel takes what the op takes, and gives the
result's shape. A case is CALLS calls in one process. fuzzing.py has the variables.
"""

from __future__ import annotations

import collections
import ctypes
import faulthandler
import math
import os
import random
import resource
import signal
import tempfile
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from fuzzing import fuzz

from xgemm.activations import activate

CALLS = 100
HANG_S = 60
MEMORY = 1 << 30
N, K, GROUP = 48, 64, 32
REDUCTIONS = ("sum", "mean", "prod", "amax", "amin", "norm", "argmax", "argmin")
OVERLOADS = ("mul", "mul.w4a16", "mul_into", "mul_into.w4a16", "w4a16_grad_a", "sgemm")
OVERLOADS += ("sgemm_into", *REDUCTIONS, "pack_w4", "unpack_w4", "dequantize_w4")
OVERLOADS += ("explain", "explain_reduce")
DTYPES = [getattr(torch, name) for name in ("float16", "bfloat16", "float32", "float64", "uint8")]
DTYPES += [torch.int8, torch.int16, torch.int32, torch.int64, torch.bool, torch.complex64]
DTYPES += [torch.float8_e4m3fn, torch.uint16]

SMALL = ("a", "b", "c", "bias", "grad", "x")  # integers, but for views of other arguments

# What torch says of a call before the op sees it, whatever the op.
OF_TORCH = ("xgemm: no ", "Inference tensors cannot be saved for backward")

Arguments = dict[str, Any]


def resolve(name: str) -> torch._ops.OpOverload:
    packet, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.xgemm, packet), overload or "default")


# ---- calls that are right ----


def integers(
    rng: random.Random, shape: tuple[int, ...], dtype: torch.dtype, low: int = -2, high: int = 2
) -> torch.Tensor:
    generator = torch.Generator().manual_seed(rng.getrandbits(32))
    low = 0 if dtype in (torch.uint8, torch.uint16, torch.bool) else low
    return torch.randint(low, high + 1, shape, generator=generator).to(dtype)


def draw_float(rng: random.Random) -> torch.dtype:
    return rng.choice([torch.float32, torch.float16, torch.bfloat16])


def a_product(rng: random.Random) -> Arguments:
    dtype = draw_float(rng)
    m, n, k = (rng.choice([1, 2, 5, 17]) for _ in range(3))
    batch = rng.choice([(), (), (2,), (1, 3)])
    bias = integers(rng, (n,), dtype) if rng.random() < 0.5 else None
    return {"a": integers(rng, (*batch, m, k), dtype), "b": integers(rng, (k, n), dtype),
            "bias": bias, "activation": rng.choice(["none", "relu"])}  # fmt: skip


def a_packed_weight(rng: random.Random) -> Arguments:
    codes = integers(rng, (N, K), torch.uint8, high=15)
    scales = integers(rng, (K // GROUP, N), torch.float16, low=1)
    zeros = integers(rng, scales.shape, torch.float16, low=0, high=15)
    qweight = torch.ops.xgemm.pack_w4(codes, scales, zeros, GROUP)
    return {"qweight": qweight, "n": N, "k": K, "group_size": GROUP, "zeros": True}


def a_w4a16_product(rng: random.Random) -> Arguments:
    dtype, rows = draw_float(rng), rng.choice([(), (1,), (5,), (17,), (2, 3)])
    perm = torch.tensor(rng.sample(range(K), K), dtype=torch.int32)
    return {"a": integers(rng, (*rows, K), dtype), **a_packed_weight(rng),
            "bias": rng.choice([None, integers(rng, (N,), dtype)]),
            "perm": rng.choice([None, perm]), "batch_invariant": rng.random() < 0.5}  # fmt: skip


def an_sgemm(rng: random.Random) -> Arguments:
    m, n, k = (rng.choice([1, 2, 5, 17]) for _ in range(3))
    transa, transb = rng.random() < 0.5, rng.random() < 0.5
    a, b = ((k, m) if transa else (m, k)), ((n, k) if transb else (k, n))
    float32 = torch.float32
    return {"a": integers(rng, a, float32), "b": integers(rng, b, float32),
            "c": integers(rng, (m, n), float32), "transa": transa, "transb": transb,
            "alpha": rng.choice([0.0, 1.0, -0.5]), "beta": rng.choice([0.0, 1.0, 2.0])}  # fmt: skip


def draw_call(rng: random.Random, name: str) -> Arguments:
    if name in ("mul", "mul_into"):
        call = a_product(rng)
        shape = (*call["a"].shape[:-1], call["b"].shape[-1])
        return call if name == "mul" else {"dst": call["a"].new_full(shape, 7), **call}
    if name in ("mul.w4a16", "mul_into.w4a16"):
        call = a_w4a16_product(rng)
        dst = call["a"].new_full((*call["a"].shape[:-1], N), 7)
        return call if name == "mul.w4a16" else {"dst": dst, **call}
    if name == "w4a16_grad_a":
        call = a_w4a16_product(rng)
        grad = integers(rng, (*call["a"].shape[:-1], N), call["a"].dtype)
        return {"grad": grad, "perm": call["perm"], **a_packed_weight(rng)}
    if name in ("sgemm", "sgemm_into"):
        return an_sgemm(rng)
    if name == "pack_w4":
        shape = (K // GROUP, N)
        return {"codes": integers(rng, (N, K), torch.uint8, high=15), "group_size": GROUP,
                "scales": integers(rng, shape, torch.float16, low=1),
                "zeros": integers(rng, shape, torch.float16)}  # fmt: skip
    if name == "explain":
        return {"op": rng.choice(["mul", "mul.w4a16", "sgemm"]), "m": 5, "n": N, "k": K}
    if name == "explain_reduce":
        return {"op": rng.choice(REDUCTIONS), "shape": [3, 1, 5], "dim": [0]}
    if name in REDUCTIONS:
        dtype = rng.choice(DTYPES[: 4 if name in ("mean", "norm") else 10])
        return {"x": integers(rng, (3, 1, 5), dtype), "dim": 0, "keepdim": True}
    return a_packed_weight(rng)


# ---- what becomes of an argument ----


def another_shape(rng: random.Random, x: torch.Tensor) -> torch.Tensor:
    shape = list(x.shape)
    if shape and rng.random() < 0.6:
        d = rng.randrange(len(shape))
        shape[d] = rng.choice([0, 1, 2, 3, shape[d] + 1])
    else:
        shape = rng.choice([[], [1], shape[1:], [*shape, 1], [1, *shape], [2, *shape], [1] * 65])
    return integers(rng, tuple(shape), x.dtype)


def another_layout(rng: random.Random, x: torch.Tensor) -> torch.Tensor:
    """The same values at other places; `expand` makes them one."""
    how = rng.choice(["columns", "step", "expand", "offset", "reversed", "flat"])
    if how == "columns" and x.dim() > 1:
        return x.mT.contiguous().mT
    if how == "step" and x.dim() > 0:
        return torch.stack([x, x], -1)[..., 1]
    if how == "expand" and x.dim() > 0 and x.shape[0] > 0:
        return x[:1].expand(x.shape)
    if how == "reversed":
        return x.permute([*range(x.dim())[::-1]])
    if how == "flat":
        return x.reshape(-1)
    return torch.cat([x.new_zeros(1), x.reshape(-1)])[1:].view(x.shape)


def without_memory(rng: random.Random, x: torch.Tensor) -> torch.Tensor:
    x = torch.stack([x, x])[rng.randrange(2)]
    storage = x.untyped_storage()
    storage.resize_(int(storage.nbytes() * rng.choice([0, 0.3, 0.9])))
    return x


def without_elements(rng: random.Random, x: torch.Tensor) -> torch.Tensor:
    sizes = [*rng.sample([0, rng.choice([1, 2**31, 2**40, 2**62])], 2), rng.choice([0, 1, K])]
    return x.new_zeros(0).as_strided(sizes, [rng.choice([0, 1, 2**40]) for _ in sizes])


def of_another_kind(rng: random.Random, x: torch.Tensor) -> Any:
    kind = rng.choice(
        ["meta", "sparse", "inference", "gradient", "negative", "nested", "parameter"]
    )
    if kind == "meta":
        return x.to("meta")
    if kind == "sparse":
        return x.float().to_sparse() if x.dim() > 0 else x
    if kind == "inference":
        with torch.inference_mode():
            return x.clone()
    if kind == "negative" and x.dtype in (torch.float32, torch.float16, torch.bfloat16):
        return torch._neg_view(x.neg())
    if kind == "nested" and x.dim() > 0:
        return torch.nested.nested_tensor([x.float(), x.float()])
    if not x.is_floating_point() or x.is_inference():
        return x
    return torch.nn.Parameter(x) if kind == "parameter" else x.requires_grad_()


def shared_memory(rng: random.Random, x: torch.Tensor, others: list[torch.Tensor]) -> torch.Tensor:
    """A view of another argument's memory, of x's shape where that memory has room."""
    strides: list[int] = []
    for size in reversed(x.shape):
        strides.append(rng.choice([0, 1, 2, 3, size, 2 * size]) if strides else rng.choice([1, 2]))
    strides.reverse()
    other = rng.choice(others)
    memory = other.detach().as_strided(
        (other.untyped_storage().nbytes() // other.itemsize,), (1,), 0
    )
    if memory.nbytes % x.itemsize == 0:
        memory = memory.view(x.dtype)
    span = 1 + sum((size - 1) * stride for size, stride in zip(x.shape, strides, strict=True))
    if x.numel() == 0 or span > memory.numel():
        return other
    return memory.as_strided(x.shape, strides, rng.randrange(memory.numel() - span + 1))


def hostile_tensor(rng: random.Random, x: torch.Tensor | None, others: list[torch.Tensor]) -> Any:
    if x is None or rng.random() < 0.05:
        return rng.choice(
            [None, 1, 1.0, "a", [1.0], [], torch.float32, integers(rng, (5,), torch.int32)]
        )
    if others and rng.random() < 0.4:
        return shared_memory(rng, x, others)
    changes: list[Callable[[random.Random, torch.Tensor], Any]] = [another_shape, another_layout]
    changes += [another_layout, without_memory, without_elements, of_another_kind]
    changes.append(lambda rng, x: x.to(rng.choice(DTYPES)))
    return rng.choice(changes)(rng, x)


HOSTILE: dict[str, list[Any]] = {
    "int": [0, 1, -1, 32, 47, 49, 65, 128, 2**31 - 1, 2**31, -(2**31), 2**62, 2**63 - 1, -(2**63),
            2**63, None, True, 0.5, "1"],
    "int[1]?": [None, [], 0, -1, [0, 0], [0, -3], [0, 1, 2], 3, -4, [2**63 - 1], -(2**63), "0",
                [0] * 99],
    "int[]": [[], [0], [3], [-1, 2], [2**62, 4], [2**63 - 1, 0], [1] * 65, None, 5, "x", [0.5]],
    "int?": [None, 0, -1, 2, 3, -4, 2**63 - 1, -(2**63), [0], 0.0],
    "bool": [True, False, 2, None, "no"],
    "float": [0.0, 1.0, -0.5, 3, math.nan, math.inf, -math.inf, 1e308, -1e-320, None, "1"],
    "str": ["", "none", "relu", "silu", "tf32", "float16", "cpu", "cuda", "\x1b[31m\0\n",
            "é" * 9000, "x" * 100_000, None, 1],
}  # fmt: skip


def make_hostile(rng: random.Random, op: torch._ops.OpOverload, call: Arguments) -> None:
    for argument in rng.choices(op._schema.arguments, k=rng.choice([1, 1, 2, 3])):
        kind, value = (
            str(argument.type).replace("Optional[Tensor]", "Tensor"),
            call.get(argument.name),
        )
        if kind == "Tensor":
            others = [x for name, x in call.items() if name != argument.name and is_plain(x)]
            if value is None or is_plain(value):
                call[argument.name] = hostile_tensor(rng, value, others)
        else:
            lists = {
                "Optional[List[int]]": "int[1]?",
                "Optional[int]": "int?",
                "List[int]": "int[]",
            }
            kind = lists.get(kind, kind)
            call[argument.name] = rng.choice(HOSTILE[kind])
    if rng.random() < 0.02:
        call.pop(rng.choice([*call]))
    if rng.random() < 0.01:
        call[rng.choice(["out", "self", "\x1b"])] = 1


# ---- what a call does ----


def has_memory(x: torch.Tensor) -> bool:
    if x.is_nested or x.layout != torch.strided or x.device.type != "cpu":
        return False
    reach = sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True))
    needed = x.itemsize * (x.storage_offset() + reach + 1)
    return x.numel() == 0 or x.untyped_storage().nbytes() >= needed


def is_plain(x: object) -> bool:
    """A tensor whose bytes can be compared."""
    return isinstance(x, torch.Tensor) and has_memory(x) and x.numel() > 0 and not x.is_neg()


def places(x: torch.Tensor) -> list[int]:
    """Where in the storage its elements lie, counted in elements."""
    found = [x.storage_offset()]
    for size, stride in zip(x.shape, x.stride(), strict=True):
        found = [place + i * stride for place in found for i in range(size)]
    return found


def taken_bytes(x: torch.Tensor) -> set[int]:
    return {place * x.itemsize + i for place in places(x) for i in range(x.itemsize)}


def overlaps(plain: dict[str, torch.Tensor], written: str) -> bool:
    """Whether an element of the written tensor has a byte of another's, or of its own."""
    x = plain[written]
    inside, home = taken_bytes(x), x.untyped_storage().data_ptr()
    return len({*places(x)}) < x.numel() or any(
        other.untyped_storage().data_ptr() == home and inside & taken_bytes(other)
        for key, other in plain.items()
        if key != written
    )


def bytes_of(x: torch.Tensor) -> bytes:
    return ctypes.string_at(x.untyped_storage().data_ptr(), x.untyped_storage().nbytes())


def words(value: object) -> str:
    if not isinstance(value, torch.Tensor):
        return repr(value)[:200]
    strided = value.layout == torch.strided and not value.is_nested
    form = f"{tuple(value.shape)} {value.stride()} at {value.storage_offset()}" if strided else "?"
    return f"{type(value).__name__}({value.dtype}, {form}, {value.device})"


def expected_result(name: str, call: Arguments) -> torch.Tensor | None:
    """By torch, of the same arguments; None where it is not exact."""
    options = {
        argument.name: argument.default_value for argument in resolve(name)._schema.arguments
    }
    given = {**options, **call}
    activation = given.get("activation", "none")
    if activation not in ("none", "relu"):
        return None
    tensors = {key: x for key, x in given.items() if isinstance(x, torch.Tensor)}
    if not all(has_memory(x) for x in tensors.values()):
        return None
    wide = {key: x.detach().double() for key, x in tensors.items()}
    if any((x.abs() > 16).any() or (x % 1).any() for key, x in wide.items() if key in SMALL):
        return None  # bytes of another dtype
    if name in ("mul", "mul_into"):
        y = torch.matmul(wide["a"], wide["b"])
        bias = wide.get("bias", 0.0)
        dtype = given["a"].dtype
        return activate(
            y + (bias if given["b"].dim() > 1 else torch.as_tensor(bias).sum()), activation
        ).to(dtype)
    if name.startswith("sgemm"):
        if not all(abs(given[key]) < 4 for key in ("alpha", "beta")):
            return None
        a = wide["a"].mT if given["transa"] else wide["a"]
        y = given["alpha"] * torch.matmul(a, wide["b"].mT if given["transb"] else wide["b"])
        return (y + given["beta"] * wide["c"] if given["beta"] else y).float()
    if name in REDUCTIONS:
        return expected_reduction(name, given)
    if name.endswith("w4a16") or name == "w4a16_grad_a":
        form = [given[key] for key in ("qweight", "n", "k", "group_size")]
        scales = {key: given[key] for key in ("bf16_scales", "zeros")}
        weight = torch.ops.xgemm.dequantize_w4(*form, **scales).double()
        if not (weight.abs() < 100).all() or (weight * 2 % 1).any():
            return None  # not the bytes that were packed
        order = given["perm"].long() if given["perm"] is not None else torch.arange(given["k"])
        if name == "w4a16_grad_a":
            y = torch.zeros(*given["grad"].shape[:-1], given["k"], dtype=torch.float64)
            return y.index_add_(-1, order, wide["grad"] @ weight).to(given["grad"].dtype)
        y = wide["a"][..., order] @ weight.mT + wide.get("bias", 0)
        return activate(y, activation).to(given["a"].dtype)
    return None


def expected_reduction(name: str, given: Arguments) -> torch.Tensor | None:
    x, dim, keepdim = given["x"].detach(), given["dim"], given["keepdim"]
    if name in ("argmax", "argmin"):
        return getattr(torch, name)(x.byte() if x.dtype == torch.bool else x, dim, keepdim)
    dims = [dim] if isinstance(dim, int) else [*(dim or range(x.dim()))]
    if name == "norm" and (math.isnan(given["p"]) or 0 < abs(given["p"]) < 1e-300):
        return None  # no norm, or one whose powers are all 1 in float64
    if name == "norm":
        wide = torch.linalg.vector_norm(x.double(), given["p"], dims, keepdim)
        return wide.to(x.dtype)
    if name == "prod":
        for d in sorted((d % max(x.dim(), 1) for d in dims), reverse=True):
            x = x.prod(d, keepdim)
        return x.prod() if not dims else x
    return getattr(torch, name)(x, dims, keepdim)


class Calls:
    def __init__(self, log: Path) -> None:
        self.log = log
        self.outcomes: collections.Counter[str] = collections.Counter()
        for name in OVERLOADS:  # a call that is right is taken; the children find all imported
            assert self.one(name, draw_call(random.Random(0), name)) == "taken", name

    def case(self, rng: random.Random) -> None:
        self.log.write_text("")
        results, write = os.pipe()
        child = os.fork()
        if child == 0:
            with self.log.open("a") as log:
                os.dup2(log.fileno(), 1)
                os.dup2(log.fileno(), 2)
                os._exit(self.run(rng, write))
        os.close(write)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        with os.fdopen(results) as file:
            self.outcomes.update(file.read().split())
        if code != 0:
            why = {-signal.SIGALRM: f"no end after {HANG_S} s"}.get(code, f"exit code {code}")
            raise AssertionError(f"{why}\n{self.log.read_text(errors='replace')[-5000:]}")

    def run(self, rng: random.Random, results: int) -> int:
        faulthandler.enable()
        signal.alarm(HANG_S)
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        limit = pages * resource.getpagesize() + MEMORY
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        try:
            for _ in range(CALLS):
                name = rng.choice(OVERLOADS)
                call = draw_call(rng, name)
                make_hostile(rng, resolve(name), call)
                text = ", ".join(f"{key}={words(value)}" for key, value in call.items())
                os.ftruncate(1, 0)
                print(f"{name}({text})", flush=True)  # the last thing said, if it dies
                os.write(results, f"{self.one(name, call)} ".encode())
        except BaseException:
            traceback.print_exc()
            return 1
        return 0

    def one(self, name: str, call: Arguments) -> str:
        """refused or taken; an AssertionError where that was wrong."""
        op = resolve(name)
        plain = {key: x for key, x in call.items() if is_plain(x)}
        before = {key: bytes_of(x) for key, x in plain.items()}
        written = next((argument.name for argument in op._schema.arguments
                        if argument.alias_info and argument.alias_info.is_write), None)  # fmt: skip
        try:
            expected = expected_result(name, call)
        except Exception:
            expected = None  # a call that is wrong
        try:
            result = op(**call)
        except (ValueError, TypeError, IndexError, RuntimeError) as error:
            said = str(error)
            assert any(words in said for words in (f"{name}: ", f"xgemm::{name}", *OF_TORCH)), repr(
                said[:500]
            )
            if isinstance(error, (ValueError, IndexError)):
                assert said.startswith(f"{name}: "), repr(said[:500])
                assert len(said) < 2000, len(said)
                assert said.isprintable(), repr(said[:500])
            assert all(bytes_of(x) == before[key] for key, x in plain.items()), (
                "refused, yet it wrote"
            )
            if "must not overlap" in said and written in plain:
                assert overlaps(plain, written), f"refused without need: {said}"
            return "refused"
        self.check_taken(name, call, plain, before, written)
        self.check_result(name, call, expected, call[written] if written else result)
        return "taken"

    def check_taken(
        self,
        name: str,
        call: Arguments,
        plain: dict[str, torch.Tensor],
        before: dict[str, bytes],
        written: str | None,
    ) -> None:
        """Only the destination's elements have changed, and they are nobody else's."""
        inside: set[int] = set()
        home = None
        if written in plain:
            x = plain[written]
            assert len(set(places(x))) == x.numel(), "the destination overlaps itself"
            home, inside = x.untyped_storage().data_ptr(), taken_bytes(x)
        for key, x in plain.items():
            at_home = x.untyped_storage().data_ptr() == home
            if at_home and key != written:
                assert not inside & taken_bytes(x), f"the destination overlaps {key}"
            changed = {
                i
                for i, (old, new) in enumerate(zip(before[key], bytes_of(x), strict=True))
                if old != new
            }
            assert changed <= (inside if at_home else set()), (
                f"{name} wrote outside, in {key}'s memory"
            )

    def check_result(
        self, name: str, call: Arguments, expected: torch.Tensor | None, result: Any
    ) -> None:
        if not isinstance(result, torch.Tensor) or result.device.type != "cpu":
            return
        if any(
            isinstance(x, torch.Tensor) and max(x.shape, default=0) > 2**30 for x in call.values()
        ):
            return  # torch makes no meta tensor of some of those
        meta = {
            key: torch.empty(x.shape, dtype=x.dtype, device="meta")
            for key, x in call.items()
            if isinstance(x, torch.Tensor)
        }
        fake = resolve(name)(**{**call, **meta})
        if fake is not None:
            assert fake.shape == result.shape, f"the fake's shape is {tuple(fake.shape)}"
            assert fake.dtype == result.dtype, f"the fake's dtype is {fake.dtype}"
        if expected is None:
            return
        assert expected.shape == result.shape, (
            f"got {tuple(result.shape)}, not {tuple(expected.shape)}"
        )
        assert expected.dtype == result.dtype, f"got {result.dtype}, not {expected.dtype}"
        near = 1e-2 if name in ("mean", "norm", "prod") else 0.0
        wide, exact = result.detach().double(), expected.double()
        assert torch.allclose(wide, exact, rtol=near, atol=near, equal_nan=True), f"{wide}\n{exact}"


def main() -> None:
    torch.set_num_threads(1)  # no thread that a fork would lose
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        calls = Calls(Path(folder) / "log")
        fuzz("fuzz_arguments", calls.case)
        counts = ", ".join(f"{number} {name}" for name, number in calls.outcomes.items())
        print(f"fuzz_arguments: {counts}")


if __name__ == "__main__":
    main()
