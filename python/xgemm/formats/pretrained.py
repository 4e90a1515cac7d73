"""transformers models for `load`: made from a config.json, of transformers' own classes only."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from xgemm.formats.foreign import foreign_format
from xgemm.formats.headers import FOREIGN_FILE, checkpoint_files


def make_transformers_model(path: Path, config: dict[str, Any]) -> nn.Module:
    """The model that a transformers config.json describes, its parameters on the meta device.

    The class is transformers' own: code that the directory may hold is never run.
    """
    cls = _class(path, config)
    import accelerate
    import transformers

    model_config = transformers.AutoConfig.from_pretrained(
        path, local_files_only=True, trust_remote_code=False
    )
    if hasattr(model_config, "quantization_config"):
        del model_config.quantization_config  # else transformers looks for its own quantizer
    # Buffers are made for real: some, such as rotary tables, are in no checkpoint.
    with accelerate.init_empty_weights(include_buffers=False):
        return cls(model_config)


def finish_transformers_model(model: nn.Module, path: Path, config: dict[str, Any]) -> None:
    """What from_pretrained does after the weights: generation config, recipe, eval mode."""
    from transformers import GenerationConfig

    from xgemm.hf import XgemmConfig

    if (path / "generation_config.json").is_file():
        model.generation_config = GenerationConfig.from_pretrained(path, local_files_only=True)
    model_config: Any = model.config
    model_config.quantization_config = XgemmConfig.from_dict(config["quantization_config"])
    model.eval()


def load_pretrained(
    path: Path,
    config: dict[str, Any],
    device: torch.device | str | int | None,
    dtype: torch.dtype | None,
) -> nn.Module:
    """What save_pretrained wrote, read by from_pretrained of the class that config.json names.

    transformers writes and reads the names of older checkpoints, so only it knows what they are.
    """
    cls = _class(path, config)
    import xgemm.hf  # noqa: F401 (tells transformers of the method)

    placed = {} if device is None else {"device_map": {"": device}}
    model: nn.Module = cls.from_pretrained(
        path, local_files_only=True, trust_remote_code=False, dtype=dtype or "auto", **placed
    )
    return model


def load_foreign(
    path: Path,
    config: dict[str, Any],
    source: tuple[Path, dict[str, Any]],
    device: torch.device | str | int | None,
    dtype: torch.dtype | None,
) -> nn.Module:
    """The model of a directory that another tool quantized; `source`: see foreign_section."""
    foreign_format(*source)  # an unknown method is refused before anything is imported
    for file in checkpoint_files(path, FOREIGN_FILE):
        if not (path / file).is_file():
            raise FileNotFoundError(f"load: {path / file} is missing")
    cls = _class(path, config)
    from xgemm.hf import foreign

    return foreign.load_foreign(cls, path, source, device, dtype)


def load_gguf(
    path: Path, device: torch.device | str | int | None, dtype: torch.dtype | None
) -> nn.Module:
    """The model of a GGUF file."""
    try:
        import gguf  # noqa: F401
        import transformers  # noqa: F401
    except ImportError as error:
        raise ImportError(
            f"load: a GGUF file needs {error.name}: pip install 'xgemm[hf]' gguf"
        ) from None
    from xgemm.hf.attach import attach
    from xgemm.hf.gguf_model import load_gguf

    model, _ = load_gguf(path, dtype=dtype or torch.float32)
    attach(model)
    loaded: nn.Module = model if device is None else model.to(device)
    return loaded


def _class(path: Path, config: dict[str, Any]) -> Any:
    """The class of transformers' own that config.json names."""
    architectures = config.get("architectures")
    if not isinstance(config.get("model_type"), str) or not isinstance(architectures, list):
        raise ValueError(
            f"load: {path} describes no transformers model: pass the module to fill as model="
        )
    try:
        import accelerate  # noqa: F401
        import transformers
    except ImportError:
        raise ImportError(
            "load needs transformers and accelerate to make the model: pip install transformers "
            "accelerate, or pass the module to fill as model="
        ) from None
    name = architectures[0] if architectures else None
    cls = getattr(transformers, name, None) if isinstance(name, str) else None
    if not (isinstance(cls, type) and issubclass(cls, transformers.PreTrainedModel)):
        raise ValueError(f"load: {path}: transformers has no architecture {name!r}")
    return cls
