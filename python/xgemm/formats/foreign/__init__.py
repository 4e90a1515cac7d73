"""4-bit checkpoints of other tools: their tensors to canonical weights, bit for bit, and back.

Each format has a module. Its class is made from config.json's `quantization_config`, and answers:

    key, parts       what a layer's tensors are called after its name; every layer has the key
    shape(layer)     N, K and groups from the headers, every dtype and shape checked
    read(layer)      the canonical weight

A writer beside it makes a layer's tensors, and the `quantization_config` of all.
"""

from xgemm.formats.foreign.bitsandbytes import Quantizer
from xgemm.formats.foreign.methods import (
    FOREIGN_METHODS,
    FOREIGN_WRITERS,
    ForeignFormat,
    ForeignWriter,
    foreign_format,
    is_read,
)
from xgemm.formats.foreign.section import foreign_section
from xgemm.formats.foreign.shards import Shards, TensorFiles
from xgemm.formats.foreign.written import Written

__all__ = [
    "FOREIGN_METHODS",
    "FOREIGN_WRITERS",
    "ForeignFormat",
    "ForeignWriter",
    "Quantizer",
    "Shards",
    "TensorFiles",
    "Written",
    "foreign_format",
    "foreign_section",
    "is_read",
]
