"""What a model's directory says of itself: whether its weights are float, else who made them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from xgemm.formats.manifest import CONFIG_FILE, QUANT_METHOD, read_json

# Files beside config.json that say that the weights are 4-bit already, in older checkpoints.
QUANTIZED_FILES = {"quantize_config.json": "gptq", "quant_config.json": "awq"}


def read_config(directory: Path) -> dict[str, Any]:
    """The object in config.json, or an error that says that this is no model's directory."""
    if not (directory / CONFIG_FILE).is_file():
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
            return str(section.get("quant_method") or _old_bitsandbytes(section) or key)
    nested = (_method_of(value) for value in config.values() if isinstance(value, dict))
    return next((method for method in nested if method), None)


def _old_bitsandbytes(section: dict[str, Any]) -> str | None:
    return "bitsandbytes" if section.keys() & {"load_in_4bit", "load_in_8bit"} else None


def is_xgemm(directory: Path) -> bool:
    return quantized_by(directory, read_config(directory)) == QUANT_METHOD
