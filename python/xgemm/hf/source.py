"""A float model from a transformers directory: of the class that it says, whole, or refused."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn

from xgemm.formats.directory import check_source, quantized_by, read_config, refuse_adapter
from xgemm.formats.foreign import is_read
from xgemm.formats.manifest import CONFIG_FILE, QUANT_METHOD

SHOWN_NAMES = 5


def model_class(
    directory: Path, config: dict[str, Any], trust_remote_code: bool
) -> type[transformers.PreTrainedModel] | Any:
    """The class that config.json names in `architectures`.

    A class of the directory's own is reached by the Auto class under which `auto_map` lists it, and
    only if trust_remote_code says so.
    """
    names = config.get("architectures")
    name = names[0] if isinstance(names, list) and names else None
    if not isinstance(name, str):
        raise ValueError(
            f"{directory / CONFIG_FILE}: architectures must name the model's class, got {names!r}"
        )
    auto_map = config.get("auto_map")
    for auto, path in auto_map.items() if isinstance(auto_map, dict) else ():
        if isinstance(path, str) and path.rpartition(".")[2] == name:
            if not trust_remote_code:
                break
            return getattr(transformers, auto)
    found = getattr(transformers, name, None)
    if isinstance(found, type) and issubclass(found, transformers.PreTrainedModel):
        return found
    if isinstance(auto_map, dict):
        raise ValueError(
            f"{directory}: {name} is code of the directory's own, which is not run unless "
            "trust_remote_code (--trust-remote-code) is given"
        )
    raise ValueError(
        f"{directory / CONFIG_FILE}: architectures: transformers {transformers.__version__} has no "
        f"class {name!r}"
    )


def load_float(
    directory: Path,
    *,
    device: torch.device | str = "cpu",
    dtype: torch.dtype | str = "auto",
    trust_remote_code: bool = False,
    drop: Iterable[str] = (),
    gguf_file: str | None = None,
) -> Any:
    """The transformers model of a directory, in eval mode; every weight of it comes from there.

    dtype: "auto" takes the checkpoint's.
    drop: patterns of weights in the files that the model may leave aside.
    gguf_file: the name of a GGUF file in `directory`, whose weights transformers dequantizes.

    ValueError where the files lack weights of the model (they would be random), hold weights that
    it has no place for (they would be lost), or weights of other shapes; and for a directory that
    `check_source` refuses.
    """
    where: dict[str, Any] = {"local_files_only": True, "trust_remote_code": trust_remote_code}
    if gguf_file is not None:
        refuse_adapter(directory)
        where["gguf_file"] = gguf_file
        cls: Any = transformers.AutoModelForCausalLM
    else:
        config = read_config(directory)
        check_source(directory, config, trust_remote_code)
        cls = model_class(directory, config, trust_remote_code)
    if torch.device(device).type != "cpu":
        where["device_map"] = {"": device}
    # Mismatched shapes, too, are reported and refused below, with the other two.
    model, info = cls.from_pretrained(
        directory, dtype=dtype, output_loading_info=True, ignore_mismatched_sizes=True, **where
    )
    check_loading(directory, type(model).__name__, info, drop)
    return model.eval()


def check_loading(
    directory: Path, name: str, info: dict[str, Any], drop: Iterable[str] = ()
) -> None:
    """Refuses what from_pretrained reports and goes on with: see `load_float`."""
    missing = sorted(map(str, info.get("missing_keys", ())))
    if missing:
        raise ValueError(
            f"{directory}: {name} needs {_count(missing)} that the files lack and that would be "
            f"random: {_some(missing)}"
        )
    mismatched = sorted(
        f"{name} is {list(found)}, must be {list(expected)}"
        for name, found, expected in info.get("mismatched_keys", ())
    )
    if mismatched:
        raise ValueError(
            f"{directory}: {_count(mismatched)} of another shape than {name} has, which would be "
            f"random: {_some(mismatched)}"
        )
    unexpected = sorted(
        key
        for key in map(str, info.get("unexpected_keys", ()))
        if not any(fnmatch.fnmatchcase(key, pattern) for pattern in drop)
    )
    if unexpected:
        raise ValueError(
            f"{directory}: the files hold {_count(unexpected)} for which {name} has no place and "
            f"which would be lost: {_some(unexpected)} (--drop PATTERN leaves them out)"
        )
    if info.get("error_msgs"):
        raise ValueError(f"{directory}: {info['error_msgs'][0]}")


def load_any(
    directory: Path,
    *,
    device: torch.device | str = "cpu",
    dtype: torch.dtype | None = None,
    trust_remote_code: bool = False,
    verify: bool = True,
) -> nn.Module:
    """The model of a directory that `xgemm.load` reads, or of a float one, in eval mode.

    dtype: of floating-point tensors; None takes the checkpoint's.
    trust_remote_code: run code of a float directory's own; of an xgemm one's, none is run.
    verify: compare an xgemm directory with what was saved, as `xgemm.load` does.
    """
    import xgemm

    method = quantized_by(directory, read_config(directory))
    if method == QUANT_METHOD or is_read(method):
        return xgemm.load(directory, device=device, dtype=dtype, verify=verify)
    return load_float(
        directory, device=device, dtype=dtype or "auto", trust_remote_code=trust_remote_code
    )


def _count(names: list[str]) -> str:
    return f"{len(names)} weight{'' if len(names) == 1 else 's'}"


def _some(names: list[str]) -> str:
    shown = ", ".join(names[:SHOWN_NAMES])
    return shown if len(names) <= SHOWN_NAMES else f"{shown} and {len(names) - SHOWN_NAMES} more"
