"""What vLLM calls: with xgemm installed beside it, vLLM's int4 linears run on xgemm's kernels.

vLLM finds `register` by the entry point "xgemm" of the group `vllm.general_plugins`. It calls it in
every process. `XGEMM_VLLM=0` leaves vLLM as it is; so does `VLLM_PLUGINS` without "xgemm", and
`VLLM_DISABLED_KERNELS=XgemmLinearKernel` leaves out the kernel alone.
"""

from xgemm.vllm.plugin import register

__all__ = ["register"]
