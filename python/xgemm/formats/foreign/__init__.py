"""4-bit checkpoints of other tools: their tensors to canonical weights, bit for bit, and back.

Each format has a module. Its class is made from config.json's `quantization_config`, and answers:

    key, parts       what a layer's tensors are called after its name; every layer has the key
    shape(layer)     N, K and groups from the headers, every dtype and shape checked
    read(layer)      the canonical weight
"""

from xgemm.formats.foreign.methods import FOREIGN_METHODS, ForeignFormat, foreign_format
from xgemm.formats.foreign.section import foreign_section
from xgemm.formats.foreign.shards import Shards

__all__ = ["FOREIGN_METHODS", "ForeignFormat", "Shards", "foreign_format", "foreign_section"]
