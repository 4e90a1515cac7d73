"""The emulated kernels for pytest: memory with guards, and products of torch's CPU tensors."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache
from types import ModuleType
from typing import Any

import torch
from extensions import EMULATOR

DTYPES = {torch.float16: 0, torch.bfloat16: 1, torch.float32: 2}  # enum DType
ACTIVATIONS = ("none", "relu", "gelu", "gelu_tanh", "silu")  # enum Activation
PRECISIONS = ("ieee", "tf32x3", "tf32")  # enum Precision


@cache
def library() -> ModuleType:
    """The extension module, built first."""
    return EMULATOR.load()


@dataclass(frozen=True)
class Machine:
    """What kernels run on, and in which of the orders that the hardware may choose.

    late_copies, late_products: those that are asynchronous take effect as late as they may, else at
    once. Late copies find reads that did not wait for them, at once they find memory that was given
    away too early; late products find operands that were.
    seed: of the order in which threads run; 0 is ascending.
    descending: blocks run from the last to the first, for kernels whose blocks do not wait for each
    other: what one writes over another's is then seen, if it is not in the usual order.
    """

    capability: int = 90
    sm_count: int = 4
    late_copies: bool = False
    late_products: bool = False
    seed: int = 0
    descending: bool = False

    def use(self) -> None:
        library().use_device(self.capability, self.sm_count)
        order = self.late_copies, self.late_products, self.seed, self.descending
        library().set_options(*order)


class Memory:
    """Tensors that end where a page begins that nobody may touch; all bits are 1 at first: NaN.

    With `at_front` such a page ends where they begin. A launch that writes what lies between a
    tensor and its pages' other end is an error, too. They live as long as this does.
    """

    def __init__(self, at_front: bool = False) -> None:
        self._addresses: list[int] = []
        self._at_front = at_front

    def __del__(self) -> None:
        for address in self._addresses:
            library().free(address)

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        count = math.prod(shape)
        size = max(count, 1) * dtype.itemsize
        self._addresses.append(library().allocate(size, self._at_front))
        buffer = (ctypes.c_uint8 * size).from_address(self._addresses[-1])
        return torch.frombuffer(buffer, dtype=dtype)[:count].view(shape)

    def copy(self, tensor: torch.Tensor, writable: bool = False) -> torch.Tensor:
        """The same view (strides, alignment, what lies between its elements) of a copy.

        What writes there is refused, torch's operations included.
        """
        if tensor.numel() == 0:
            return self.empty(tuple(tensor.shape), tensor.dtype)
        span = 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
        lead = tensor.data_ptr() % 16 // tensor.dtype.itemsize
        buffer = self.empty((lead + span,), tensor.dtype)
        buffer[lead:] = tensor.as_strided((span,), (1,))
        if not writable:
            library().make_read_only(self._addresses[-1])
        return buffer.as_strided(tensor.shape, tensor.stride(), lead)

    def spread(
        self, tensor: torch.Tensor, strides: Sequence[int], writable: bool = False
    ) -> torch.Tensor:
        """A copy of a tensor of some elements with strides of any size, 0 between far ones."""
        reach = sum((n - 1) * s for n, s in zip(tensor.shape, strides, strict=True))
        view = self.empty((1 + reach,), tensor.dtype).as_strided(tensor.shape, strides)
        view.copy_(tensor)
        if not writable:
            library().make_read_only(self._addresses[-1])
        return view


@dataclass(frozen=True)
class Config:
    """csrc/cuda/gemm/select.h says what each field is."""

    kernel: str
    block_m: int
    block_n: int
    stages: int
    ctas: int
    cluster: int = 1
    splits: int = 1
    group: int = 0
    tma_store: bool = False
    copy_a: bool = False
    copy_b: bool = False
    workspace_bytes: int = 0
    shifted: bool = False
    swapped: bool = False

    def to_library(self, problem: Any) -> Any:
        return library().choice(problem, **asdict(self))


def _matrix(tensor: torch.Tensor) -> tuple[int, int, int]:
    return tensor.data_ptr(), tensor.stride(-2), tensor.stride(-1)


def make_problem(
    d: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    bias: torch.Tensor | None = None,
    activation: str = "none",
    alpha: float = 1.0,
    beta: float = 0.0,
    precision: str = "ieee",
) -> Any:
    """d [..., m, n] = a [..., m, k] @ b [..., k, n], batch dimensions broadcast; C is d."""
    *batch, m, n = d.shape
    wide_a, wide_b = (x.expand(*batch, *x.shape[-2:]) for x in (a, b))
    strides = zip(batch, wide_a.stride(), wide_b.stride(), d.stride(), d.stride(), strict=False)
    return library().Problem(
        mnk=(m, n, a.shape[-1]),
        dtype=DTYPES[d.dtype],
        a=_matrix(wide_a),
        b=_matrix(wide_b),
        c=_matrix(d),
        d=_matrix(d),
        alpha=alpha,
        beta=beta,
        bias=0 if bias is None else bias.data_ptr(),
        bias_stride=1 if bias is None else bias.stride(0),
        activation=ACTIVATIONS.index(activation),
        batch=list(strides)[: len(batch)],
        precision=PRECISIONS.index(precision),
    )


def run(problem: Any, machine: Machine, config: Config | None = None) -> str:
    """Launches select_config's choice, or a given one, and returns its explanation.

    RuntimeError: what the kernel did that the hardware would not have forgiven.
    """
    chosen = (
        library().select(problem, machine.capability, machine.sm_count)
        if config is None
        else config.to_library(problem)
    )
    return launch(problem, machine, chosen)


def launch(problem: Any, machine: Machine, choice: Any) -> str:
    machine.use()
    library().launch(problem, choice)
    return library().explain(problem, choice)


def listed(problem: Any, machine: Machine, kernel: str) -> list[Any]:
    """The choices of a kernel that select_config weighs."""
    return library().listed(problem, machine.capability, machine.sm_count, kernel)
