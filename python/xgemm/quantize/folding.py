"""Scales of a layer's input channels, folded into the layer that computes them.

    W x = (W diag(s)) (diag(s)^-1 x):  the columns of W times s, and what gives x divided by s

What gives x is found in the block itself, not by names. A norm, where the tensor that it returns is
the one that the layers read: every module with a matrix that reads it (a router of experts, too)
has its columns scaled. Else a linear layer before them, some rows of which reach the channels one
by one: v to o through attention, up to down beside a gate, fc1 to fc2 through ReLU. Whether a
candidate is one, the block decides: folded with random powers of two, which are exact, its outputs
must stay. So a norm whose output is also added to the residual, or a layer behind GELU, drops out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from xgemm.nn.float_experts import expert_weights, experts_projections
from xgemm.nn.float_linear import is_conv1d, linear_shape
from xgemm.quantize.calibrate.block import Block, Call, Layer, first_input
from xgemm.quantize.calibrate.replay import Stop

Tensor = torch.Tensor

# How far, relative to its norm, the output of a block may move: by powers of two, which norms of
# the form 1 + w and sums in another order round; and by any scales, which round every weight.
PROBE_TOLERANCE = (1e-5, 2.0)  # at least, and in units of the dtype's epsilon
SCALES_TOLERANCE = (1e-4, 8.0)

MOST_CANDIDATES = 4  # linear layers that are tried as what gives a layer its input


def call_of(block: Block, module: nn.Module, batch: int = 0) -> Call:
    """The first call of a submodule of the block over a batch."""
    found: list[Call] = []

    def hook(module: nn.Module, args: Any, kwargs: Any) -> None:
        mask = block.replay.batches[batch].mask_of(first_input(args, kwargs))
        found.append(Call(args, kwargs, mask, block.device))
        raise Stop

    block.run_hooked(batch, [module], hook)
    return found[0]


def first_output(output: Any) -> Tensor:
    """The first tensor of what a module gives."""
    while not isinstance(output, Tensor):
        output = next(iter(output.values() if isinstance(output, dict) else output))
    return output


@dataclass(frozen=True)
class Scaled:
    """A parameter, and the dimension of it that a vector of scales belongs to.

    rows: which index of the dimension each channel has; None: the channel's own.
    offset: what the module adds to the parameter: 1 in Gemma's norms.
    """

    module: nn.Module
    name: str
    dim: int
    rows: Tensor | None = None
    offset: float = 0.0

    @property
    def parameter(self) -> nn.Parameter:
        parameter = self.module._parameters[self.name]
        assert parameter is not None  # it was seen
        return parameter

    def times(self, s: Tensor) -> Tensor:
        """The parameter's values with each channel's times s: [K], or [E, K] of E experts."""
        data = self.parameter.detach()
        size = data.shape[self.dim]
        factor = torch.ones(*s.shape[:-1], size, device=data.device)
        rows = torch.arange(size, device=data.device) if self.rows is None else self.rows
        factor[..., rows] = s.to(factor.device, torch.float32)
        shape = [1] * data.dim()
        shape[self.dim] = size
        if s.dim() == 2:
            shape[0] = s.shape[0]
        wide = (data.float() + self.offset) * factor.view(shape) - self.offset
        return wide.to(data.dtype)


@dataclass(frozen=True)
class Fold:
    """Where scales of the channels that `readers` read go: into them, and from `producers`.

    shared: for each channel the one that stands for it, where several come from one row of a
        producer (heads of keys and values that several heads of queries read); else None.
    """

    producers: list[Scaled]
    readers: list[Scaled]
    shared: Tensor | None = None


class Folding:
    """Finds the folds of a block and applies scales, as long as the block computes the same."""

    def __init__(self, block: Block) -> None:
        self._block = block
        self._call = call_of(block, block.module)
        self._trace = _Trace(block.module, self._call)
        self._outputs = self._run().clone()
        self._random = torch.Generator().manual_seed(block.settings.seed)
        self._outside = _outside(block)

    def find(self, group: list[Layer]) -> Fold | None:
        """What scales of the channels that `group` reads can be folded into; None: nothing."""
        for fold in self._candidates(group):
            if any(self._is_outside(part) for part in (*fold.producers, *fold.readers)):
                continue
            experts: Any = group[0].module
            of_each = [experts.num_experts] if is_down(group[0]) else []
            steps = torch.randint(-1, 2, (*of_each, group[0].k), generator=self._random)
            s = torch.exp2(steps.float())
            if fold.shared is not None:
                s = s[fold.shared]
            before = self._scaled(fold, s)
            same = self._error() <= self._bound(PROBE_TOLERANCE)
            self._undo(before)
            if same:
                return fold
        return None

    def apply(self, fold: Fold, s: Tensor) -> bool:
        """Fold the scales; False, and nothing is changed, where the block computes otherwise."""
        before = self._scaled(fold, s)
        if self._error() <= self._bound(SCALES_TOLERANCE):
            self._outputs = self._run().clone()  # rounded a little: what the next fold is to keep
            return True
        self._undo(before)
        return False

    def _is_outside(self, part: Scaled) -> bool:
        """Whether scales in `part` would change what the model computes beside the block."""
        return part.module in self._outside or part.parameter in self._outside

    def _scaled(self, fold: Fold, s: Tensor) -> dict[nn.Parameter, Tensor]:
        """Scale the parameters of `fold`; returns what they were."""
        before: dict[nn.Parameter, Tensor] = {}
        for parts, factor in ((fold.producers, 1 / s), (fold.readers, s)):
            for part in parts:
                before.setdefault(part.parameter, part.parameter.detach().clone())
                self._block.replace(part.parameter, part.times(factor))
        return before

    def _undo(self, before: dict[nn.Parameter, Tensor]) -> None:
        for parameter, value in before.items():
            self._block.replace(parameter, value)

    def _run(self) -> Tensor:
        return first_output(self._call.run(self._block.module))

    def _error(self) -> float:
        error = (self._run().float() - self._outputs.float()).norm()
        return float(error / self._outputs.float().norm().clamp(min=1e-30))

    def _bound(self, tolerance: tuple[float, float]) -> float:
        return max(tolerance[0], tolerance[1] * torch.finfo(self._outputs.dtype).eps)

    # ---- candidates ----

    def _candidates(self, group: list[Layer]) -> Iterator[Fold]:
        first = group[0]
        if is_down(first):
            yield from _expert_folds(first)
            return
        readers = self._trace.readers_of(first.module)
        norm = self._trace.norm_before(first.module, first.k)
        if norm is not None:
            for offset in (0.0, 1.0):
                names = [n for n, p in norm._parameters.items() if p is not None]
                yield Fold(
                    [Scaled(norm, n, 0, offset=offset if n == "weight" else 0.0) for n in names],
                    readers,
                )
            return
        for module in self._trace.linears_before(first.module):
            n, _ = linear_shape(module) or (0, 0)
            for rows, shared in _rows(n, first.k, self._head_dim(first.module)):
                producers = [Scaled(module, "weight", int(is_conv1d(module)), rows)]
                if module._parameters.get("bias") is not None:
                    producers.append(Scaled(module, "bias", 0, rows))
                yield Fold(producers, readers, shared)

    def _head_dim(self, module: nn.Module) -> int | None:
        """Of the attention that `module` is in, as it says itself."""
        parent = self._trace.parents.get(module)
        sizes = (getattr(parent, name, None) for name in ("head_dim", "head_size"))
        return next((size for size in sizes if isinstance(size, int) and size > 0), None)


def _outside(block: Block) -> set[nn.Module | nn.Parameter]:
    """What of the model has a name outside of the block, too: shared layers and tied weights."""
    model = block.replay.model
    named: list[tuple[str, Any]] = [*model.named_modules(remove_duplicate=False)]
    named += model.named_parameters(remove_duplicate=False)
    return {part for name, part in named if not f"{name}.".startswith(f"{block.name}.")}


def _rows(n: int, k: int, head_dim: int | None) -> Iterator[tuple[Tensor, Tensor | None]]:
    """(The row of a producer of n rows that gives each of k channels, `Fold.shared`).

    A joined layer has v, or up, last (Phi-3, GPT-2), or the parts of each head together (GPT-NeoX).
    """
    channel = torch.arange(k)
    if n >= k and n % k == 0:
        for start in range(n - k, -1, -k):
            yield channel + start, None
    if head_dim is None or k % head_dim or n % head_dim:
        return
    head, inner = channel // head_dim, channel % head_dim
    if n == 3 * k:
        yield 3 * head_dim * head + 2 * head_dim + inner, None
    width = n if n < k else (n - k) // 2  # of all values, which several heads of queries read
    if 0 < width < k and k % width == 0 and width % head_dim == 0:
        each = k // width
        yield n - width + head // each * head_dim + inner, head // each * each * head_dim + inner


def _expert_folds(layer: Layer) -> Iterator[Fold]:
    """Of the down projections of experts: the rows of the first projection that are not gates."""
    experts: Any = layer.module
    projections = experts_projections(experts) or {}
    up, down = projections
    channel = torch.arange(layer.k)
    # The rows are gates, then ups; or by turns; or no gates are there.
    gated = projections[up][0] == 2 * layer.k
    for rows in [channel + layer.k, 2 * channel + 1] if gated else [channel]:
        producers = [Scaled(experts, up, _expert_dim(experts, columns=False), rows)]
        if experts._parameters.get(f"{up}_bias") is not None:
            producers.append(Scaled(experts, f"{up}_bias", 1, rows))
        yield Fold(producers, [Scaled(experts, down, _expert_dim(experts, columns=True))])


def _expert_dim(experts: nn.Module, columns: bool) -> int:
    """Where the columns, or the rows, of an expert's [N, K] lie in the 3-D parameters."""
    transposed = expert_weights(experts, torch.empty(1, 1, 2))[0].shape[0] == 2
    return 2 if columns != transposed else 1


class _Trace:
    """One run of a block: which tensor each module read and gave, by its address."""

    def __init__(self, root: nn.Module, call: Call) -> None:
        self.parents = {child: m for m in root.modules() for child in m.children()}
        self._read: dict[nn.Module, tuple[int, int]] = {}
        self._gave: dict[nn.Module, tuple[int, int]] = {}  # in the order in which they ended
        held: list[Tensor] = []  # so that no two tensors have one address

        def before(module: nn.Module, args: Any, kwargs: Any) -> None:
            if any(isinstance(value, Tensor) for value in (*args, *kwargs.values())):
                x = first_input(args, kwargs)
                held.append(x)
                self._read.setdefault(module, (x.data_ptr(), x.numel()))

        def after(module: nn.Module, args: Any, output: Any) -> None:
            if isinstance(output, Tensor):
                held.append(output)
                self._gave.setdefault(module, (output.data_ptr(), output.numel()))

        handles = []
        for module in root.modules():
            handles.append(module.register_forward_pre_hook(before, with_kwargs=True))
            handles.append(module.register_forward_hook(after))
        try:
            call.run(root)
        finally:
            for handle in handles:
                handle.remove()

    def norm_before(self, module: nn.Module, k: int) -> nn.Module | None:
        """The module with a vector of k weights that gave what `module` read."""
        for found, given in self._gave.items():
            weight = found._parameters.get("weight")
            vector = weight is not None and tuple(weight.shape) == (k,)
            if vector and given == self._read.get(module):
                return found
        return None

    def readers_of(self, module: nn.Module) -> list[Scaled]:
        """The matrices of all modules that read what `module` reads, by their columns."""
        found = []
        for reader, read in self._read.items():
            if read != self._read.get(module):
                continue
            projections = experts_projections(reader)
            if projections is not None:
                up = next(iter(projections))
                found.append(Scaled(reader, up, _expert_dim(reader, columns=True)))
                continue
            columns = 0 if is_conv1d(reader) else 1
            found += [
                Scaled(reader, name, columns)
                for name, matrix in reader._parameters.items()
                if matrix is not None and matrix.dim() == 2 and matrix.is_floating_point()
            ]
        return found

    def linears_before(self, module: nn.Module) -> list[nn.Module]:
        """Linear layers that ended before `module` did: those beside it, then others, each from
        the last one back."""
        ended = list(self._gave)
        here = ended[: ended.index(module)] if module in ended else []
        linears = [m for m in reversed(here) if linear_shape(m) is not None]
        linears.sort(key=lambda m: self.parents.get(m) is not self.parents.get(module))
        return linears[:MOST_CANDIDATES]


def is_down(layer: Layer) -> bool:
    return layer.projection == "down_proj"
