"""A transformers model made from a GGUF file, its 4-bit linears on xgemm where the file has any."""

from __future__ import annotations

import contextlib
import fnmatch
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, cast

import accelerate
import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

from xgemm.formats.packed import pack
from xgemm.hf.gguf import GgufLlama, GgufTensor
from xgemm.hf.gguf_header import architecture_of
from xgemm.hf.source import load_float
from xgemm.nn import QuantLinear

Progress = Callable[[int, int, str], None]


def load_gguf(
    path: Path,
    progress: Progress = lambda done, total, name: None,
    skip: Iterable[str] = (),
    dtype: torch.dtype = torch.float32,
) -> tuple[Any, list[str]]:
    """(The model of a GGUF file in eval mode, the names of its QuantLinears).

    Of the llama architecture: linears held in Q4_0, Q4_1 or Q4_K become QuantLinears over the
    file's own codes, but for those that a pattern of `skip` names; all else is dequantized to
    `dtype`. A file of another architecture, or with tensors that are not known here, is dequantized
    by transformers as a whole, and no linear is taken over.
    """
    with _errors_that_name(path):
        llama = GgufLlama(path) if architecture_of(path) == "llama" else None
        if llama is None or llama.unknown:
            model = load_float(path.parent, gguf_file=path.name, dtype=dtype)
            forget_quantization(model)
            return model, []
        return llama_model(llama, gguf_config(path), progress, skip, dtype)


@contextlib.contextmanager
def _errors_that_name(path: Path) -> Iterator[None]:
    """What transformers and gguf find wrong with a file has many types, and no name of the file."""
    try:
        yield
    except ImportError:
        raise
    except Exception as error:
        if path.name in str(error):
            raise
        raise ValueError(f"{path}: {type(error).__name__}: {error}") from error


def gguf_config(path: Path) -> Any:
    """transformers' config of a GGUF file."""
    return AutoConfig.from_pretrained(
        path.parent, gguf_file=path.name, local_files_only=True, trust_remote_code=False
    )


def llama_model(
    llama: GgufLlama,
    config: Any,
    progress: Progress = lambda done, total, name: None,
    skip: Iterable[str] = (),
    dtype: torch.dtype = torch.float32,
) -> tuple[Any, list[str]]:
    """As `load_gguf`, of a file that is open already."""
    patterns = list(skip)
    # Buffers are made for real: rotary tables are in no file.
    with accelerate.init_empty_weights(include_buffers=False):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    taken = []
    for done, tensor in enumerate(llama.tensors):
        progress(done, len(llama.tensors), tensor.module)
        skipped = any(fnmatch.fnmatchcase(tensor.module, pattern) for pattern in patterns)
        if _place(model, tensor, dtype, take_over=not skipped, path=llama.path):
            taken.append(tensor.module)
    progress(len(llama.tensors), len(llama.tensors), "")
    model.tie_weights()
    lacking = [name for name, parameter in model.named_parameters() if parameter.is_meta]
    if lacking:
        raise ValueError(f"{llama.path}: the file lacks {', '.join(lacking[:5])}")
    forget_quantization(model)
    return model.eval(), taken


def _place(
    model: nn.Module, tensor: GgufTensor, dtype: torch.dtype, take_over: bool, path: Path
) -> bool:
    """Puts a tensor into its module; True where that became a QuantLinear."""
    module = model.get_submodule(tensor.module)
    expected = tuple(cast(torch.Tensor, module.weight).shape)
    if expected != tensor.shape:
        raise ValueError(
            f"{path}: {tensor.module} is {list(tensor.shape)}, the model has {list(expected)}"
        )
    weight = tensor.packed_weight() if take_over else None
    if weight is None:
        values = tensor.dequantize().to(dtype)
        module.weight = nn.Parameter(values, requires_grad=False)
        return False
    model.set_submodule(tensor.module, QuantLinear.from_packed(pack(weight), dtype=dtype))
    return True


def forget_quantization(model: nn.Module) -> None:
    """The weights are plain by now, but save_pretrained refuses while these say otherwise."""
    for owner in (model, model.config):
        for name in ("quantization_config", "hf_quantizer", "is_quantized", "quantization_method"):
            if name in vars(owner):
                delattr(owner, name)
