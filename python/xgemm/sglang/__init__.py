"""What SGLang calls: with xgemm installed beside it, its int4 linears run on xgemm's kernels.

SGLang finds `register` by the entry point "xgemm" of the group `sglang.srt.plugins`. It calls it in
every process. `XGEMM_SGLANG=0` leaves SGLang as it is; so does `SGLANG_PLUGINS` without "xgemm".
"""

from xgemm.sglang.plugin import register

__all__ = ["register"]
