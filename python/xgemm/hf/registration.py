"""What transformers is told of the quantization method. transformers has no entry point."""

from __future__ import annotations

import transformers

from xgemm.formats.manifest import QUANT_METHOD

# In 5.0 the loading of weights is another; tried with 5.12, tested with 5.23.
OLDEST_TRANSFORMERS = (5, 12)


def register() -> None:
    """Make transformers know the method; again and again, it makes no difference."""
    version = transformers.__version__
    if tuple(int(part) for part in version.split(".")[:2]) < OLDEST_TRANSFORMERS:
        oldest = ".".join(map(str, OLDEST_TRANSFORMERS))
        raise ImportError(
            f"xgemm.hf needs transformers {oldest} or later, found {version}: "
            "pip install -U transformers"
        )
    from transformers.quantizers import auto

    from xgemm.hf.casts import let_casts_pass
    from xgemm.hf.config import XgemmConfig
    from xgemm.hf.quantizer import XgemmHfQuantizer

    # Not by auto.register_*, which refuse a name that is known: a reload registers once more.
    auto.AUTO_QUANTIZATION_CONFIG_MAPPING[QUANT_METHOD] = XgemmConfig
    auto.AUTO_QUANTIZER_MAPPING[QUANT_METHOD] = XgemmHfQuantizer
    let_casts_pass()
