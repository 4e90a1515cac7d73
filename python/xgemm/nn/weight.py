"""ReadOnlyWeight: what a packed layer answers when it is asked for its float `weight`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch.utils._pytree import tree_any, tree_map

__all__ = ["ReadOnlyWeight"]

_HOW_TO_WRITE = (
    "this weight is read-only: it stands for a 4-bit weight that is stored packed. To change it, "
    "take the float layer (to_linear), change its weight and quantize it again "
    "(QuantLinear.from_linear). To merge an adapter: xgemm.hf.merge_adapter or merge_and_unload. "
    "An adapter whose initialization changes the base weight needs the float model"
)
_DETACH = (torch.ops.aten.detach.default, torch.ops.aten.alias.default)


class ReadOnlyWeight(torch.Tensor):
    """A float tensor that is made when it is first used, and cannot be written into.

    Shape, strides, dtype and device cost nothing. Any operation gets the dequantized tensor, made
    anew for each one, and gives an ordinary tensor; a view of it is read-only too. It has no
    gradient. An operation that would write into it raises RuntimeError.

    shape, dtype, device, strides (None: contiguous), storage_offset: what it answers.
    make: gives the tensor.
    """

    _make: Callable[[], torch.Tensor]
    # transformers initializes the weights that a checkpoint lacks: this one is never among them.
    _is_hf_initialized = True

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Nothing of its own: torch's fused layers step aside where a weight has this function.

        They would read the weight and not call the layer, which has a kernel for packed weights.
        """
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))

    @staticmethod
    def __new__(
        cls,
        shape: tuple[int, ...],
        dtype: torch.dtype,
        device: torch.device,
        make: Callable[[], torch.Tensor],
        strides: tuple[int, ...] | None = None,
        storage_offset: int | torch.SymInt | None = None,
    ) -> ReadOnlyWeight:
        self: ReadOnlyWeight = torch.Tensor._make_wrapper_subclass(
            cls,
            shape,
            strides=strides,
            storage_offset=storage_offset,
            dtype=dtype,
            device=device,
            requires_grad=False,
        )
        self._make = make
        return self

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _DETACH:
            source = args[0]
            return _of(source, source._make)
        aliased = False
        for index, argument in enumerate(func._schema.arguments):
            if argument.alias_info is None:
                continue
            given = args[index] if index < len(args) else kwargs.get(argument.name)
            if tree_any(_is_read_only, given):
                if argument.alias_info.is_write:
                    _refuse(func._schema.name.partition("::")[2])
                aliased = True
        result = func(*tree_map(_value, args), **tree_map(_value, kwargs))
        return tree_map(_read_only_view, result) if aliased else result

    def dequantize(self) -> torch.Tensor:
        """The tensor that this one stands for, as an ordinary one."""
        return self._make()

    # What gives a tensor of its own memory, also where nothing is to be converted.

    def to(self, *args: Any, **options: Any) -> torch.Tensor:
        return self._make().to(*args, **options)

    def cpu(self, *args: Any, **options: Any) -> torch.Tensor:
        return self._make().cpu(*args, **options)

    def cuda(self, *args: Any, **options: Any) -> torch.Tensor:
        return self._make().cuda(*args, **options)

    def contiguous(self, *args: Any, **options: Any) -> torch.Tensor:
        return self._make().contiguous(*args, **options)

    def float(self, *args: Any, **options: Any) -> torch.Tensor:
        return self._make().float(*args, **options)

    def half(self, *args: Any, **options: Any) -> torch.Tensor:
        return self._make().half(*args, **options)

    def bfloat16(self, *args: Any, **options: Any) -> torch.Tensor:
        return self._make().bfloat16(*args, **options)

    # What reads the data without an operation.

    def data_ptr(self) -> int:
        # torch would answer 0, which is the address of every such weight, and of none.
        raise RuntimeError(
            "data_ptr: this weight has no memory of its own, as it is stored packed: "
            "dequantize() gives a tensor that has"
        )

    def numpy(self, *, force: bool = False) -> Any:
        return self._make().numpy(force=force)

    def tolist(self) -> Any:
        return self._make().tolist()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return self._make().__array__(dtype)

    def __dlpack__(self, **options: Any) -> Any:
        return self._make().__dlpack__(**options)

    def __deepcopy__(self, memo: dict[int, Any]) -> torch.Tensor:
        return self._make().clone()

    def __reduce_ex__(self, proto: Any) -> Any:
        return self._make().__reduce_ex__(proto)

    def __repr__(self, **options: Any) -> str:  # type: ignore[override]
        dtype = str(self.dtype).removeprefix("torch.")
        return f"ReadOnlyWeight(shape={list(self.shape)}, dtype={dtype}, device={self.device})"

    # What writes without an operation, or would write into a temporary.

    def __setitem__(self, index: Any, value: Any) -> None:
        _refuse("an assignment to elements")

    @property
    def data(self) -> torch.Tensor:
        return self.detach()

    @data.setter
    def data(self, value: Any) -> None:
        _refuse("an assignment to data")

    @property
    def requires_grad(self) -> bool:
        return False

    @requires_grad.setter
    def requires_grad(self, value: bool) -> None:
        self.requires_grad_(value)

    def requires_grad_(self, requires_grad: bool = True) -> ReadOnlyWeight:
        if requires_grad:
            _refuse("requires_grad_")
        return self


def is_made_by(weight: Any, make: Callable[[], torch.Tensor]) -> bool:
    """Whether `weight` is the one that `make` gives."""
    return isinstance(weight, ReadOnlyWeight) and weight._make == make


def refuse_assignment(layer: str, name: str = "weight") -> NoReturn:
    """The error of an assignment to the attribute `name` of a layer."""
    raise RuntimeError(f"{layer}: {name} cannot be assigned: {_HOW_TO_WRITE}")


def _refuse(what: str) -> NoReturn:
    raise RuntimeError(f"{what}: {_HOW_TO_WRITE}")


def _is_read_only(value: Any) -> bool:
    return isinstance(value, ReadOnlyWeight)


def _value(value: Any) -> Any:
    return value._make() if isinstance(value, ReadOnlyWeight) else value


def _of(like: torch.Tensor, make: Callable[[], torch.Tensor]) -> ReadOnlyWeight:
    return ReadOnlyWeight(
        tuple(like.shape), like.dtype, like.device, make, like.stride(), like.storage_offset()
    )


def _read_only_view(value: Any) -> Any:
    # A write into a view of the temporary would be lost without a word.
    if type(value) is not torch.Tensor:
        return value
    return _of(value, lambda: value)
