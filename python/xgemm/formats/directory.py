"""What a model's directory says of itself: whether its weights are float, else who made them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from xgemm.formats.files import check_directory, present, read_json
from xgemm.formats.manifest import CONFIG_FILE, QUANT_METHOD
from xgemm.formats.trust import refuse_foreign_names

# Files beside config.json that say that the weights are 4-bit already, in older checkpoints.
QUANTIZED_FILES = {"quantize_config.json": "gptq", "quant_config.json": "awq"}
ADAPTER_FILE = "adapter_config.json"  # peft's; transformers puts such an adapter into the model


def read_config(directory: Path) -> dict[str, Any]:
    """The object in config.json, or an error that says that this is no model's directory."""
    if not present(directory / CONFIG_FILE):
        raise FileNotFoundError(f"{directory} holds no {CONFIG_FILE}: not a model's directory")
    return read_json(directory / CONFIG_FILE)


def quantized_by(directory: Path, config: dict[str, Any]) -> str | None:
    """The method that quantized the weights ("xgemm", "gptq", ...); None where they are float.

    Looks into the config, the configs nested in it (text_config, ...) and older kinds of files.
    """
    files = (method for file, method in QUANTIZED_FILES.items() if (directory / file).is_file())
    return _method_of(config) or next(files, None)


def _method_of(config: dict[str, Any]) -> str | None:
    for key in ("quantization_config", "compression_config"):
        section = config.get(key)
        if isinstance(section, dict):
            return str(section.get("quant_method") or _old_bitsandbytes(section) or key).lower()
    nested = (_method_of(value) for value in config.values() if isinstance(value, dict))
    return next((method for method in nested if method), None)


def _old_bitsandbytes(section: dict[str, Any]) -> str | None:
    return "bitsandbytes" if section.keys() & {"load_in_4bit", "load_in_8bit"} else None


def is_xgemm(directory: Path) -> bool:
    return quantized_by(directory, read_config(directory)) == QUANT_METHOD


def check_source(directory: Path, config: dict[str, Any], trust_remote_code: bool = False) -> None:
    """Refuse a directory that from_pretrained would wait for, or take more from than it holds.

    ValueError for an entry that is not a regular file, for an adapter, for an index that names
    files elsewhere and, unless trust_remote_code, for a config that names code or other files.
    """
    check_directory(directory)
    refuse_adapter(directory)
    for index in directory.glob("*.index.json"):
        names = read_json(index).get("weight_map")
        for name in set(map(str, names.values())) if isinstance(names, dict) else ():
            if Path(name).is_absolute() or ".." in Path(name).parts:
                raise ValueError(f"load: {index}: {name!r:.100} is not a file of the directory")
    if not trust_remote_code:
        refuse_foreign_names(directory / CONFIG_FILE, config)


def refuse_adapter(directory: Path) -> None:
    """ValueError for a directory that transformers would take for an adapter of some base model."""
    if present(directory / ADAPTER_FILE):
        raise ValueError(
            f"load: {directory / ADAPTER_FILE}: the directory holds an adapter, which is not read "
            "here: merge it first, or move it into a directory of its own"
        )
