"""Sibling layers whose packed rows lie in one tensor and are multiplied by one call.

The layers that read one tensor (q, k and v of an attention; gate and up of an MLP) stay what they
were: QuantLinear modules under their own names, each with a `qweight` and a `bias` of its own. But
those lie one after another in one tensor, as the packed layout concatenates along dimension 0. So a
state dict, a checkpoint, an adapter and an optimizer see the unfused model, and nothing is to be
split when it is saved. What changes is who multiplies: the first of the siblings to be called
computes the columns of all, and the others take theirs.

Why so, and not a forward of ours for each attention and MLP class: transformers has some 400 such
classes with as many forwards (norms of q and k, caches, rotary embeddings, hooks between them). A
copy of each would be wrong one release later, and a wrapper around a part (LoRA) would be passed
over. Why not a memory on the layers alone, which is given up when the input is another tensor: an
inference tensor has no version counter, so a write between two calls would go unseen. Hence:

- A product is kept only while the parent's forward runs, in a variable of its thread. It is gone
  when that returns or raises, so nothing is held between steps and no call sees another's.
- Only siblings are joined whose parent's forward provably gives them one tensor, unwritten
  (quantize/siblings.py). Each call still compares: the same tensor object, the same version where
  there is one, the same weights. Whatever differs computes its own columns from its own rows.
- In grad mode (training, checkpointing) and under autocast each layer multiplies by itself: there
  the launches are not the limit, and slices of one tensor would share its version counter.

The results are slices along the last dimension of one tensor: contiguous where x is one row.
`.view(*shape, -1, head_dim)` takes them as they are.
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.compiler import is_dynamo_compiling, is_exporting
from torch.nn.modules.module import _global_forward_hooks, _global_forward_pre_hooks

from xgemm.autograd import plain_w4a16
from xgemm.formats.packed import ROW_COLUMNS
from xgemm.nn.large_pages import ask_for_large_pages
from xgemm.nn.linear import QuantLinear

__all__ = ["FusedLinear", "JoinedWeight"]

_w4a16 = torch.ops.xgemm.mul.w4a16
# Its results are no views to autograd: each has a version counter of its own, as a linear's has.
_split = torch.unsafe_split_with_sizes
_grad_enabled = torch.is_grad_enabled
_transforms = torch._C._are_functorch_transforms_active
_autocast_enabled = torch._C._is_any_autocast_enabled
_inference_mode = torch.is_inference_mode_enabled

# accelerate moves the tensors of a hooked layer, and a forward that was replaced is to be called.
_KEEP_APART = {"_hf_hook", "forward"}
# [input, its state when it was read, each part's columns until they are taken, how many are left]
Product = list[Any]


class _Open(threading.local):
    """The products of the parent whose forward runs in this thread; None outside of one."""

    def __init__(self) -> None:
        self.products: dict[Any, Product] | None = None


_open = _Open()
_NOTHING: Product = [None, 0, (), 0]  # never written


def _state(tensor: torch.Tensor) -> int:
    """What must not change between siblings: inference mode, and the count of writes if any."""
    if is_dynamo_compiling():  # knows neither; the parent's source was read for both
        return 0
    version = -1 if tensor.is_inference() else tensor._version
    return 2 * version + _inference_mode()


class JoinedWeight:
    """The packed rows and biases of several QuantLinear layers, each one tensor.

    The tensors of the layers (its parts) are slices of those here; a part of n columns has
    ceil(n / 64) packed rows. Where a part's tensors are replaced or moved, the parts are on their
    own until every one of them was, and lie in one tensor again from then on.
    """

    def __init__(self, count: int) -> None:
        self.parts: list[weakref.ref[FusedLinear] | None] = [None] * count
        self.moved: set[int] = set()
        # False once the layers were seen to read different tensors, or not all of them any.
        self.same_input = True
        self.qweight: nn.Parameter | None = None
        self.bias: nn.Parameter | None = None
        self.perm: torch.Tensor | None = None
        # Of each part: qweight, its address, bias, its address. Empty: not in one tensor now.
        self.weights: list[tuple[Any, int, Any, int]] = []
        self.n = self.k = self.group_size = 0
        self.options: dict[str, Any] = {}
        self.columns: list[int] = []  # widths of the slices: the parts' and the padding between
        self.slices: list[int] | None = None  # those of the parts, where there is padding

    # ---- the tensors ----

    def part(self, index: int) -> FusedLinear | None:
        reference = self.parts[index]
        return None if reference is None else reference()

    def members(self) -> list[FusedLinear] | None:
        """The parts, where all of them are alive and whole."""
        found = [self.part(index) for index in range(len(self.parts))]
        members = [part for part in found if part is not None and "_parameters" in part.__dict__]
        return members if len(members) == len(found) else None

    def add(self, part: FusedLinear, index: int) -> None:
        self.parts[index] = weakref.ref(part)
        self.changed(index)

    def whole(self) -> bool:
        """Whether every part's tensors are the slices of those here."""
        parts = [self.part(index) for index in range(len(self.parts))]
        return bool(self.weights) and all(
            part is not None
            and _KEEP_APART.isdisjoint(part.__dict__)
            and self.holds(part._parameters, index)
            for index, part in enumerate(parts)
        )

    def separate(self, index: int) -> None:
        """Part `index` has other tensors than before: the parts are on their own."""
        self.qweight = self.bias = self.perm = None
        self.weights = []
        self.moved.add(index)

    def changed(self, index: int) -> None:
        """Part `index` may have other tensors than before, and has them all."""
        if not self.whole():
            self.separate(index)
            if len(self.moved) == len(self.parts):
                self.join()

    def join(self) -> None:
        """Lay the parts' tensors into one, if they are of one format and device."""
        members = self.members()
        if members is None or reason_not_to_join(members) is not None:
            return
        with torch.inference_mode(False), torch.no_grad():
            self.lay_out(members)

    def lay_out(self, members: list[FusedLinear]) -> None:
        first = members[0]
        self.moved.clear()
        self.columns, starts, slices = [], [], []
        for index, part in enumerate(members):
            starts.append(sum(self.columns))
            slices.append(len(self.columns))
            self.columns.append(part.out_features)
            padding = -part.out_features % ROW_COLUMNS
            if padding and index + 1 < len(members):
                self.columns.append(padding)
        self.slices = None if len(slices) == len(self.columns) else slices
        self.n, self.k, self.group_size = sum(self.columns), first.in_features, first.group_size
        self.perm, self.options = first.perm, dict(first._options)
        joined = torch.cat([part.qweight.data for part in members])
        ask_for_large_pages(joined)
        self.qweight = nn.Parameter(joined, requires_grad=False)
        biases = [part.bias.data for part in members if part.bias is not None]
        if biases:
            self.bias = nn.Parameter(biases[0].new_zeros(self.n), requires_grad=False)
        for start, part in zip(starts, members, strict=True):
            rows = self.qweight.data.narrow(0, start // ROW_COLUMNS, part.qweight.shape[0])
            part.qweight.data = _storage_of_its_own(rows)
            if self.bias is not None and part.bias is not None:
                own = self.bias.data.narrow(0, start, part.out_features)
                part.bias.data = _storage_of_its_own(own.copy_(part.bias.data))
            self.weights.append(_weights(part))

    def holds(self, parameters: dict[str, Any], index: int) -> bool:
        """Whether the tensors of part `index` still are the slices of those here."""
        if not self.weights:
            return False
        qweight, address, bias, bias_address = self.weights[index]
        mine: tuple[Any, Any] = (parameters.get("qweight"), parameters.get("bias"))
        if mine[0] is not qweight or mine[1] is not bias:
            return False  # in a replica of DataParallel, under torch.func.functional_call
        if is_dynamo_compiling():  # a tensor has no address there; replaced ones are noticed
            return True
        same: bool = mine[0].data_ptr() == address
        return same and (bias is None or mine[1].data_ptr() == bias_address)

    # ---- the product ----

    def multiply(self, input: torch.Tensor) -> Product:
        n, k, group_size, bias, perm = self.n, self.k, self.group_size, self.bias, self.perm
        qweight: Any = self.qweight
        options = self.options
        if perm is None and "activation" not in options and not is_dynamo_compiling():
            zeros, bf16_scales = "zeros" in options, "bf16_scales" in options
            product = plain_w4a16(input, qweight, n, k, group_size, bias, bf16_scales, zeros)
        else:
            product = _w4a16(input, qweight, n, k, group_size, bias, perm, **options)
        columns = list(_split(product, self.columns, -1))
        if self.slices is not None:
            columns = [columns[i] for i in self.slices]
        return [input, _state(input), columns, len(columns)]

    # ---- copies: a part enters itself into the copy when it is whole ----

    def __deepcopy__(self, memo: dict[int, Any]) -> JoinedWeight:
        copy = JoinedWeight(len(self.parts))
        copy.same_input = self.same_input
        memo[id(self)] = copy
        return copy

    def __reduce__(self) -> Any:
        return JoinedWeight, (len(self.parts),)


class FusedLinear(QuantLinear):
    """A QuantLinear whose rows are a slice of a JoinedWeight: what `xgemm.fuse` makes of one.

    Outside its parent's forward, in grad mode and under autocast it is a QuantLinear like any.
    """

    _joined: JoinedWeight
    _index: int

    def __call__(self, input: torch.Tensor) -> Any:
        # Written for the host's time, as `_shared`: a call that does not multiply is to be cheaper
        # than one, and nn.Module's own __call__ costs as much as taking the columns.
        products = _open.products
        if not (
            products is None
            or self._forward_hooks
            or self._forward_pre_hooks
            or _global_forward_hooks
            or _global_forward_pre_hooks
            or self._compiled_call_impl is not None
        ):
            output = self._shared(products, input)
            if output is not None:
                return output
        return super().__call__(input)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        products = _open.products  # asked again: Dynamo does not come here by __call__
        if products is not None:
            if self._forward_hooks or self._forward_pre_hooks:  # which may write what siblings read
                products[self._joined] = _NOTHING
            output = self._shared(products, input)
            if output is not None:
                return output
        return QuantLinear.forward(self, input)

    def _shared(self, products: dict[Any, Product], input: torch.Tensor) -> torch.Tensor | None:
        """This layer's columns of the siblings' product; None: it is to multiply by itself."""
        joined, index = self._joined, self._index
        if _grad_enabled() or not joined.holds(self._parameters, index):
            return None
        product = products.get(joined)
        if product is None:
            if not joined.same_input or _autocast_enabled():
                return None
            if not isinstance(input, torch.Tensor):  # a proxy of torch.fx, or a mistake
                return None
            try:
                products[joined] = product = joined.multiply(input)
            except (RuntimeError, TypeError):  # a nested tensor, or an error that the layer names
                products[joined] = _NOTHING
                return None
        elif product is _NOTHING or product[2][index] is None:
            return None
        elif product[0] is not input or product[1] != _state(input):
            joined.same_input = product[0] is input
            products[joined] = _NOTHING
            return None
        outputs = product[2]
        output: torch.Tensor | None = outputs[index]
        outputs[index] = None
        product[3] -= 1
        if product[3] == 0:  # for the next input, and not to hold this one
            del products[joined]
        return output

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> FusedLinear:
        super()._apply(fn, recurse)
        self._joined.changed(self._index)
        return self

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        super()._load_from_state_dict(*args, **kwargs)
        self._joined.changed(self._index)

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name in ("qweight", "bias", "perm", *_KEEP_APART) and not self._joined.whole():
            self._joined.separate(self._index)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._joined.add(self, self._index)


def reason_not_to_join(layers: Sequence[QuantLinear]) -> str | None:
    """Why the packed rows of `layers` cannot lie in one tensor; None where they can."""
    first = layers[0]
    names = ("in_features", "group_size", "bf16_scales", "has_zeros")
    for layer in layers:
        for name in names:
            if getattr(layer, name) != getattr(first, name):
                return f"{name} is {getattr(first, name)} and {getattr(layer, name)}"
        if layer.activation != "none":
            return f"an activation is fused ({layer.activation})"
        if layer.qweight.device != first.qweight.device:
            return f"they are on {first.qweight.device} and {layer.qweight.device}"
        if type(layer.qweight.data) is not torch.Tensor or layer.qweight.is_meta:
            return f"qweight is a {type(layer.qweight.data).__name__} on {layer.qweight.device}"
        if layer.qweight.numel() == 0:
            return "qweight is empty"
        if layer.qweight.is_inference():
            return "qweight was made in inference mode"
        if not layer.qweight.is_cuda and (layer.qweight.is_shared() or layer.qweight.is_pinned()):
            return "qweight is in shared or pinned memory"
        if not _same_order(layer.perm, first.perm):
            return "their channels are in different orders (act-order)"
    biases = [layer.bias for layer in layers if layer.bias is not None]
    if len({(bias.dtype, bias.device) for bias in biases}) > 1:
        return f"bias is {biases[0].dtype} and {biases[-1].dtype}"
    return None


def _same_order(a: torch.Tensor | None, b: torch.Tensor | None) -> bool:
    return a is b or (a is not None and b is not None and torch.equal(a, b))


def _weights(part: QuantLinear) -> tuple[Any, int, Any, int]:
    bias: Any = part.bias
    return part.qweight, part.qweight.data_ptr(), bias, 0 if bias is None else bias.data_ptr()


def _storage_of_its_own(rows: torch.Tensor) -> torch.Tensor:
    """The same memory, as a storage that begins and ends with `rows` and keeps the rest alive.

    Whoever saves tensors tells shared ones by their storages: torch.save writes a storage whole,
    and accelerate drops what it takes for a second name of the same tensor.
    """
    return torch.from_dlpack(rows)


# ---- the parent ----


def sharing(run: Callable[..., Any]) -> Callable[..., Any]:
    """`run`, with fused layers that it calls sharing their products.

    Only for a function that calls siblings with one tensor and writes it nowhere between.
    """

    @functools.wraps(run)
    def shared(*args: Any, **kwargs: Any) -> Any:
        if (
            _grad_enabled()
            or _autocast_enabled()
            or _transforms()  # torch.vmap cannot split a product as multiply does
            or (is_dynamo_compiling() and is_exporting())
        ):
            return run(*args, **kwargs)  # an exported program has the parts' names only
        outer = _open.products
        products: dict[Any, Product] = {}
        _open.products = products
        try:
            result = run(*args, **kwargs)
        finally:
            _open.products = outer
        for joined, (_, _, _, untaken) in products.items():
            if untaken:  # columns of a sibling that was not called
                joined.same_input = False
        return result

    return shared


@functools.cache
def fusing_class(base: Any) -> Any:
    """`base` with a forward in which sibling layers share their products."""
    return fused_subclass(base, sharing(base.forward), fusing_class)


def fused_subclass(
    base: Any, forward: Callable[..., Any], remake: Callable[..., Any], *options: Any
) -> Any:
    """`base` with another forward, under base's own name.

    remake: a function of a module, which makes the class from `base` and `options` again: pickle
        and copy find a class by its name, which is base's.
    """

    def reduce(self: nn.Module, protocol: int) -> Any:
        made_by: Any = base.__reduce_ex__(self, protocol)
        make, arguments, *rest = made_by
        return _restore, (base, make, arguments[1:], remake, options), *rest

    namespace = {
        "forward": forward,
        "__reduce_ex__": reduce,
        "__module__": base.__module__,
        "__qualname__": base.__qualname__,
        "__doc__": base.__doc__,
        "xgemm_base": base,
    }
    return type(base.__name__, (base,), namespace)


def _restore(
    base: Any,
    make: Callable[..., Any],
    arguments: Any,
    remake: Callable[..., Any],
    options: tuple[Any, ...],
) -> Any:
    return make(remake(base, *options), *arguments)
