"""Hugging Face models on xgemm's kernels. Needs the extra `hf`.

Importing this package tells transformers of the quantization method "xgemm": from then on
`AutoModel.from_pretrained` loads xgemm's checkpoints, and quantizes others with an `XgemmConfig`.
"""

from importlib.util import find_spec
from typing import Any

# Some modules of the package, such as the reader of GGUF files, do without transformers.
if find_spec("transformers") is not None:
    from xgemm.hf.registration import register

    register()

    from xgemm.hf.attach import attach
    from xgemm.hf.config import XgemmConfig
    from xgemm.hf.conversion import convert
    from xgemm.hf.generation import accelerate_generation, plain_generation
    from xgemm.hf.modules_to_save import refuse_packed
    from xgemm.hf.peft import (
        merge_adapter,
        merge_and_unload,
        prepare_for_training,
        unmerge_adapter,
    )
    from xgemm.hf.quantizer import XgemmHfQuantizer
    from xgemm.hf.takeover import give_back, take_over

    refuse_packed()

__all__ = [
    "XgemmConfig",
    "XgemmHfQuantizer",
    "accelerate_generation",
    "attach",
    "convert",
    "give_back",
    "merge_adapter",
    "merge_and_unload",
    "plain_generation",
    "prepare_for_training",
    "take_over",
    "unmerge_adapter",
]


def __getattr__(name: str) -> Any:
    if name in __all__:
        raise ImportError(f"xgemm.hf.{name} needs transformers: pip install transformers")
    raise AttributeError(f"module 'xgemm.hf' has no attribute {name!r}")
