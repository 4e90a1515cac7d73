"""transformers models for `load`: made from a config.json, of transformers' own classes only.

What transformers gets is the object that `load` has read and checked, not the directory: it would
read the file again, or another one, which a config can name.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from xgemm.formats.directory import check_source
from xgemm.formats.documents import Documents
from xgemm.formats.files import file_size
from xgemm.formats.foreign import Quantizer, foreign_format
from xgemm.formats.headers import FOREIGN_FILE, checkpoint_files
from xgemm.formats.manifest import CONFIG_FILE, GENERATION_FILE, SECTION
from xgemm.formats.trust import refuse_foreign_implementations, refuse_foreign_names

MAX_LAYERS = 4096  # of one stack; the deepest models have some 200
_LAYER_COUNTS = ("num_hidden_layers", "encoder_layers", "decoder_layers", "num_decoder_layers")


def make_transformers_model(path: Path, config: dict[str, Any]) -> nn.Module:
    """The model that a transformers config.json describes, its parameters on the meta device.

    The class is transformers' own: code that the directory may hold is never run, and none is
    fetched.
    """
    cls = _class(path, config)
    import accelerate

    model_config = make_config(path, config)
    try:
        # Buffers are made for real: some, such as rotary tables, are in no checkpoint.
        with accelerate.init_empty_weights(include_buffers=False):
            model: nn.Module = cls(model_config)
    except ImportError:
        raise
    except Exception as error:
        raise _no_model(path, cls.__name__, error) from error
    return model


def finish_transformers_model(model: nn.Module, path: Path, documents: Documents) -> None:
    """What from_pretrained does after the weights: generation config, recipe, eval mode."""
    from transformers import GenerationConfig

    from xgemm.hf import XgemmConfig

    if GENERATION_FILE in documents:
        values = copy.deepcopy(documents[GENERATION_FILE])
        try:
            model.generation_config = GenerationConfig.from_dict(values)
        except Exception as error:
            raise _no_model(path, "generation config", error, GENERATION_FILE) from error
    model_config: Any = model.config
    model_config.quantization_config = XgemmConfig.from_dict(documents[CONFIG_FILE][SECTION])
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
    check_source(path, config)
    checkpoint_files(path, FOREIGN_FILE)  # a pickle is refused before anything is imported
    cls = _class(path, config)
    import xgemm.hf  # noqa: F401 (tells transformers of the method)

    placed = {} if device is None else {"device_map": {"": device}}
    make_config(path, config)
    with _errors_that_name(path):
        model: nn.Module = cls.from_pretrained(
            path,
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
            dtype=dtype or "auto",
            **placed,
        )
    return model


def load_foreign(
    path: Path,
    config: dict[str, Any],
    source: tuple[Path, dict[str, Any]],
    device: torch.device | str | int | None,
    dtype: torch.dtype | None,
    requantize: Quantizer | None = None,
) -> nn.Module:
    """The model of a directory that another tool quantized; `source`: see foreign_section."""
    foreign_format(*source, requantize)  # an unknown method is refused before anything is imported
    check_source(path, config)
    for file in checkpoint_files(path, FOREIGN_FILE):
        file_size(path / file)
    cls = _class(path, config)
    from xgemm.hf import foreign

    made = make_config(path, config)
    with _errors_that_name(path):
        return foreign.load_foreign(cls, path, made, source, device, dtype, requantize)


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


def make_config(path: Path, config: dict[str, Any]) -> Any:
    """transformers' config object of config.json; an error names the file."""
    from transformers import CONFIG_MAPPING

    refuse_foreign_names(path / CONFIG_FILE, config)
    values = copy.deepcopy(config)
    values.pop(SECTION, None)  # else transformers looks for its own quantizer
    model_type = values["model_type"]
    if model_type not in CONFIG_MAPPING:
        raise ValueError(
            f"load: {path / CONFIG_FILE}: transformers has no model_type {model_type!r:.100}"
        )
    cls = CONFIG_MAPPING[model_type]
    try:
        # Infinities and NaN, which JSON lacks, are objects in a config.json.
        made = cls.from_dict(cls._decode_special_floats(values))
    except ImportError:
        raise
    except Exception as error:
        raise _no_model(path, "config", error) from error
    made.name_or_path = str(path)
    _check_layers(path, made)
    refuse_foreign_implementations(made, f"load: {path / CONFIG_FILE}")
    return made


def _check_layers(path: Path, config: Any) -> None:
    """Refuse a count of layers that would keep the making of the model busy for ever."""
    for part in (config, *(value for value in vars(config).values() if hasattr(value, "to_dict"))):
        for name in _LAYER_COUNTS:
            count = getattr(part, name, None)
            if isinstance(count, int) and count > MAX_LAYERS:
                raise ValueError(
                    f"load: {path / CONFIG_FILE}: {name} must be at most {MAX_LAYERS}, got {count}"
                )


@contextlib.contextmanager
def _errors_that_name(path: Path) -> Iterator[None]:
    """What transformers raises for a file it does not understand, as a ValueError that says where.

    Errors of the machine (no memory, a GPU that fails, a package that is missing) stay as they are.
    """
    try:
        yield
    except (ImportError, MemoryError):
        raise
    except Exception as error:
        of_the_machine = isinstance(error, RuntimeError) and type(error) is not RuntimeError
        if str(path) in str(error) or of_the_machine:
            raise
        reason = f"{type(error).__name__}: {error}"
        raise ValueError(f"load: {path}: transformers cannot load it: {reason:.300}") from error


def _no_model(path: Path, what: str, error: Exception, file: str = CONFIG_FILE) -> ValueError:
    reason = f"{type(error).__name__}: {error}"
    return ValueError(f"load: {path / file}: transformers makes no {what} of it: {reason:.300}")


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
        raise ValueError(
            f"load: {path}: transformers has no architecture {name!r:.100}: pass the module to "
            "fill as model="
        )
    return cls
