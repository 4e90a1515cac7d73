"""Swaps a model's small operations for the kernels of decode_kernels, while a step is recorded.

What a module computes is found by trial, not by its name alone: a candidate takes a module's place
only where both give the same numbers on random input. What is not recognised stays as it is, and
is recorded as the small kernels that it launches.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from xgemm.nn.fused import sharing
from xgemm.nn.fused_norm import close, draw, norm_eps

ATTENTION = "xgemm_decode"  # its name among transformers' attention implementations
_patching = threading.Lock()  # one model at a time: functions of transformers' modules are replaced

Forward = Callable[..., torch.Tensor]
Make = Callable[[Any], Forward | None]  # the fast forward of a module, None where there is none


@contextlib.contextmanager
def fused(model: Any, dtype: torch.dtype, device: torch.device) -> Iterator[None]:
    """Within the block the model's norms, rotations, gated MLPs and attention are kernels of ours.

    model: a transformers model on `device`, called with one new token a sequence, a cache whose
        update gives the whole static cache, and a bool attention mask [B, 1, 1, length].
    """
    with _patching, contextlib.ExitStack() as undo, torch.no_grad():
        trials: dict[type, Make] = {}
        for module in model.modules():
            kind = type(module)
            if kind not in trials:
                trials[kind] = _trial(module, dtype, device)
            forward = trials[kind](module)
            if forward is not None and "forward" not in vars(module):
                module.forward = forward
                undo.callback(vars(module).pop, "forward")
        for source in {type(module).__module__ for module in model.modules()}:
            _patch_rotation(sys.modules[source], dtype, device, undo)
        _patch_attention(model, undo)
        yield


def _trial(module: Any, dtype: torch.dtype, device: torch.device) -> Make:
    """What makes the fast forward of modules of this type, where it computes the same."""
    for make in (_norm, _one_plus_norm, _gated_mlp):
        try:
            forward = make(module)
            size = _input_size(module)
            if forward is None or size is None:
                continue
            (x,) = draw([(3, 1, size)], dtype, device)
            if close(forward(x), module(x)):
                return make
        except (RuntimeError, TypeError, ValueError, AttributeError):
            continue  # another signature or form than the candidate's
    return lambda module: None


def _input_size(module: Any) -> int | None:
    weight = module._parameters.get("weight")
    if weight is not None and weight.dim() == 1:
        return weight.shape[0]
    size = getattr(getattr(module, "gate_proj", None), "in_features", None)
    return size if isinstance(size, int) else None


def _norm_of(module: Any, one_plus: bool) -> Forward | None:
    from xgemm.hf.decode_kernels import rms_norm

    eps, weight = norm_eps(module), module._parameters.get("weight")
    if eps is None:
        return None

    def forward(hidden_states: torch.Tensor) -> torch.Tensor:
        return rms_norm(hidden_states, weight, eps[1], one_plus)

    return forward


def _norm(module: Any) -> Forward | None:
    return _norm_of(module, one_plus=False)


def _one_plus_norm(module: Any) -> Forward | None:
    return _norm_of(module, one_plus=True)


def _gated_mlp(module: Any) -> Forward | None:
    """down(silu(gate(x)) * up(x)), by whatever linears the module has."""
    from xgemm.hf.decode_kernels import silu_mul

    names = {"gate_proj", "up_proj", "down_proj"}
    if not names <= set(module._modules):
        return None
    gate, up, down = (module.get_submodule(name) for name in ("gate_proj", "up_proj", "down_proj"))

    def forward(x: torch.Tensor) -> torch.Tensor:
        return down(silu_mul(gate(x), up(x)))

    return sharing(forward)  # one product, where xgemm.fuse joined gate and up


def _patch_rotation(
    source: Any, dtype: torch.dtype, device: torch.device, undo: contextlib.ExitStack
) -> None:
    """Replaces a modeling file's `apply_rotary_pos_emb`, where it rotates halves of whole heads."""
    from xgemm.hf.decode_kernels import rotate

    theirs = getattr(source, "apply_rotary_pos_emb", None)
    if theirs is None:
        return

    def mine(
        q: torch.Tensor,
        k: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        *args: Any,
        **kw: Any,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        plain = not args and not kw and q.dim() == 4 and q.shape[2] == 1
        if plain and q.shape[-1] == k.shape[-1] == cos.shape[-1] == sin.shape[-1]:
            return rotate(q, k, cos, sin)
        return theirs(q, k, cos, sin, *args, **kw)

    shapes = [(2, 3, 1, 64), (2, 2, 1, 64), (2, 1, 64), (2, 1, 64)]
    sample = draw(shapes, dtype, device)
    try:
        if not all(map(close, mine(*sample), theirs(*sample))):
            return
    except (RuntimeError, TypeError, ValueError):
        return
    source.apply_rotary_pos_emb = mine
    undo.callback(setattr, source, "apply_rotary_pos_emb", theirs)


def _patch_attention(model: Any, undo: contextlib.ExitStack) -> None:
    """Registers our attention, and makes it the model's where the model's is torch's SDPA."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    config: Any = model.config
    if config._attn_implementation != "sdpa":
        return
    ALL_ATTENTION_FUNCTIONS.register(ATTENTION, _attention)
    for module in model.modules():
        of_module: Any = getattr(module, "config", None)
        if getattr(of_module, "_attn_implementation", None) == "sdpa":
            # The property's setter checks names; the value behind it is what modules read.
            of_module._attn_implementation_internal = ATTENTION
            undo.callback(setattr, of_module, "_attn_implementation_internal", "sdpa")


def _attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """transformers' attention interface: ours for one token over a static cache, else SDPA."""
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    from xgemm.hf.decode_kernels import attend

    ours = (
        query.shape[2] == 1
        and attention_mask is not None
        and attention_mask.dtype == torch.bool
        and attention_mask.shape[1:] == (1, 1, key.shape[2])
        and not any(options.get(name) is not None for name in ("softcap", "s_aux", "position_bias"))
        and key.is_contiguous()
        and value.is_contiguous()
        and query.stride(-1) == 1
        and max(key.shape[-1], value.shape[-1]) <= 256
    )
    if not ours or attention_mask is None:
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout, scaling, **options
        )
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    return attend(query, key, value, attention_mask[:, 0, 0], scale), None
