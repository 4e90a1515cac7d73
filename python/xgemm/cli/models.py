"""What `generate` and `eval` share: a language model and its tokenizer from a directory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from xgemm.cli.output import choose_device
from xgemm.cli.progress import counted, import_transformers, step
from xgemm.formats.directory import quantized_by, read_config
from xgemm.formats.files import check_directory

DTYPES = {
    "auto": None,
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
}


def check_options(command: str, device: str, dtype: str) -> str:
    """The device to run on; refuses a --device or --dtype that cannot be."""
    device = choose_device(command, device)
    if dtype not in DTYPES:
        raise ValueError(f"{command}: --dtype must be one of {', '.join(DTYPES)}, got {dtype!r}")
    return device


def load_language_model(
    command: str,
    directory: Path,
    device: str,
    dtype: str,
    trust_remote_code: bool,
    verify: bool,
) -> Any:
    """The model of an xgemm directory, or of a float one; it writes text."""
    config = read_config(directory)  # refuses what is no model's directory, at once
    import_transformers()
    from xgemm.hf.source import load_any

    kind = quantized_by(directory, config) or "float"
    with counted(f"loading {directory} ({kind})"):
        model: Any = load_any(
            directory,
            device=device,
            dtype=DTYPES[dtype],
            trust_remote_code=trust_remote_code,
            verify=verify,
        )
    if not (hasattr(model, "can_generate") and model.can_generate()):
        raise ValueError(
            f"{command}: {type(model).__name__} is no language model that writes text: "
            f"{directory}/config.json names a class without generation"
        )
    if model.main_input_name != "input_ids":
        raise ValueError(
            f"{command}: {type(model).__name__} takes {model.main_input_name}, not text"
        )
    return model


def load_tokenizer(command: str, directory: Path, trust_remote_code: bool) -> Any:
    from transformers import AutoTokenizer

    check_directory(directory, command)
    with step("reading the tokenizer"):
        try:
            return AutoTokenizer.from_pretrained(
                directory, local_files_only=True, trust_remote_code=trust_remote_code
            )
        except ImportError:
            raise
        except Exception as error:  # of many types, where a file is damaged
            raise ValueError(f"{command}: {directory} holds no tokenizer: {error}") from error


def describe(model: Any) -> str:
    """Class, dtype and device, such as "LlamaForCausalLM, float32, cpu"."""
    weight = next(p for p in model.parameters() if p.is_floating_point())
    dtype = str(weight.dtype).removeprefix("torch.")
    return f"{type(model).__name__}, {dtype}, {weight.device}"
