"""The entry in transformers' tables of quantization methods. transformers has no entry point."""

from __future__ import annotations

import transformers

from xgemm.formats.manifest import QUANT_METHOD

OLDEST_TRANSFORMERS = 5  # the first with ConversionOps, by which weights are quantized as they load


def register() -> None:
    """Make transformers know the method; again and again, it makes no difference."""
    version = transformers.__version__
    if int(version.partition(".")[0]) < OLDEST_TRANSFORMERS:
        raise ImportError(
            f"xgemm.hf needs transformers {OLDEST_TRANSFORMERS}.0 or later, found {version}: "
            "pip install -U transformers"
        )
    from transformers.quantizers import auto

    from xgemm.hf.config import XgemmConfig
    from xgemm.hf.quantizer import XgemmHfQuantizer

    # Not by auto.register_*, which refuse a name that is known: a reload registers once more.
    auto.AUTO_QUANTIZATION_CONFIG_MAPPING[QUANT_METHOD] = XgemmConfig
    auto.AUTO_QUANTIZER_MAPPING[QUANT_METHOD] = XgemmHfQuantizer
