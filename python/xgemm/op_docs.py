"""The page of each operator: shapes, dtypes, units, gradients, errors, and where its code is."""

from __future__ import annotations

_MUL = """Matrix product with fused bias and activation; with a packed weight, the 4-bit linear.

mul(a, b, bias=None, *, activation="none", precision="ieee") -> Tensor
    activation(a @ b + bias), operands and batches as torch.matmul takes them.

    a: [..., M, K] or [K]; float32, float16 or bfloat16, any strides.
    b: [..., K, N] or [K]; a's dtype and device.
    bias: [N] (of one element where b is 1-D); a's dtype.
    activation: none, relu, gelu (erf), gelu_tanh, silu.
    precision: how float32 operands are multiplied: ieee (float32), tf32x3 (three tensor-core
        products, about as exact; docs/design/fp32.md), tf32. The CPU: float32 always. 16-bit: ieee.
    Returns torch.matmul's shape, in a's dtype.

mul.w4a16(a, qweight, n, k, group_size, bias=None, perm=None, *, bf16_scales=False, zeros=False,
          activation="none", batch_invariant=False) -> Tensor
    activation(a W^T + bias), W[n, k] = (code - zero) * scale; xgemm.linear calls it.

    a: [..., K] or [K]; float16, bfloat16 or float32, any strides.
    qweight: uint8, the packed bytes of W [N, K] (docs/design/packed-layout.md), contiguous.
    n, k: N and K. group_size: k that share a scale: 32, 64, 128, or -1 for all of K.
    bias: [N], a's dtype. perm: int32 [K], act-order: channel j of W multiplies a[..., perm[j]].
    bf16_scales: scales are bfloat16, else float16. zeros: zero points are stored, else 8.
    batch_invariant: a row's bits do not depend on the number of rows.
    Returns [..., N] in a's dtype. Where a row of a is not finite, no element of its product is, and
        other rows are as ever. The CPU gives the infinities and NaN of the product with the
        dequantized W (float32), for any number of rows; on CUDA an infinity may be NaN there.

Numbers: float32 accumulation, bias and activation in float32, one rounding to the result's dtype.
Gradients: in a, b and bias (W has none), of any order, backward and forward (torch.func.jvp); there
the activation follows the rounded product.
torch.vmap: over any operand. A batched bias, and the activation with it, follows the rounded
product; a batched qweight or perm costs one call for each sample.
Autocast: a, b and bias are cast as torch.matmul's operands are.
Errors: ValueError, naming the argument, what was expected and what it got.
Source: csrc/ops/mul.cpp, csrc/ops/w4a16.cpp; kernels in csrc/cpu/sgemm, csrc/cpu/w4a16,
csrc/cuda/gemm, csrc/cuda/w4a16.
"""

_MUL_INTO = """mul and mul.w4a16 into a tensor that is given.

mul_into(dst, a, b, bias=None, *, activation="none", precision="ieee") -> None
mul_into.w4a16(dst, a, qweight, n, k, group_size, bias=None, perm=None, *, bf16_scales=False,
               zeros=False, activation="none", batch_invariant=False) -> None

    dst: the shape, dtype and device that mul would return, any strides; overwritten. It must share
        no element with itself or an input. An inference tensor is written in inference mode only.
    The other arguments are mul's.

Numbers: mul's. Gradients: none; ValueError where dst or an operand requires one in grad mode or has
a tangent. torch.vmap: refused.
Errors: ValueError, naming the argument, what was expected and what it got; nothing is written then.
Source: csrc/ops/mul.cpp, csrc/ops/w4a16.cpp.
"""

_SGEMM = """The BLAS product in float32: alpha op(a) op(b) + beta c.

sgemm(a, b, c=None, *, transa=False, transb=False, alpha=1.0, beta=0.0, precision="ieee") -> Tensor

    a: float32 [..., M, K], or [..., K, M] with transa; any strides.
    b: float32 [..., K, N], or [..., N, K] with transb.
    c: float32, the result's shape; needed where beta is not 0, not read where it is 0.
    alpha, beta: rounded to float32. precision: as in mul.
    Returns float32 [..., M, N].

Gradients: in a, b and c, of any order, backward and forward. torch.vmap: over any operand.
Autocast: not cast; it is float32 by definition.
Errors: ValueError, naming the argument, what was expected and what it got.
Source: csrc/ops/sgemm.cpp; kernels in csrc/cpu/sgemm.
"""

_SGEMM_INTO = """sgemm that overwrites C, as BLAS has it: c = alpha op(a) op(b) + beta c.

sgemm_into(c, a, b, *, transa=False, transb=False, alpha=1.0, beta=0.0, precision="ieee") -> None

    c: float32 [..., M, N], any strides (a leading dimension is a stride); it must share no element
        with itself, a or b. Not read where beta is 0. An inference tensor is written in inference
        mode only.
    The other arguments are sgemm's.

Gradients: none; ValueError where c, a or b requires one in grad mode or has a tangent.
torch.vmap: refused.
Errors: ValueError, naming the argument, what was expected and what it got; nothing is written then.
Source: csrc/ops/sgemm.cpp.
"""

_W4A16_GRAD_A = """The gradient of mul.w4a16 in its activations: grad W.

w4a16_grad_a(grad, qweight, n, k, group_size, perm=None, *, bf16_scales=False, zeros=False)
    -> Tensor

    grad: [..., N]; float16, bfloat16 or float32.
    The other arguments are mul.w4a16's.
    Returns [..., K] in grad's dtype, its channels in a's order where there is a perm.

Gradients: in grad, backward and forward. torch.vmap: as mul.w4a16.
Errors: ValueError, naming the argument, what was expected and what it got.
Source: csrc/ops/w4a16.cpp.
"""

_PACK = """Pack canonical 4-bit codes, scales and zeros for the kernels; xgemm.pack calls it.

pack_w4(codes, scales, zeros, group_size) -> Tensor

    codes: uint8 [N, K], each 0..15. scales: float16 or bfloat16 [groups, N], finite.
    zeros: float16 [groups, N], finite, or None where the zero point is 8.
    group_size: 32, 64, 128, or -1; groups = ceil(K / group_size).
    Returns uint8 [ceil(N/64), row_bytes]: docs/design/packed-layout.md.

Errors: ValueError, naming the argument, what was expected and what it got.
Source: csrc/ops/pack.cpp; csrc/cpu/w4a16/pack.cpp, csrc/cuda/w4a16/pack.cu.
"""

_UNPACK = """The codes, scales and zeros of a packed weight; xgemm.unpack calls it.

unpack_w4(qweight, n, k, group_size, *, bf16_scales=False, zeros=False) -> (Tensor, Tensor, Tensor)

    Returns codes uint8 [N, K], scales float16 (bfloat16 with bf16_scales) [groups, N] and zeros
    float16 [groups, N], or [0, N] without zeros: what pack_w4 was given.

Errors: ValueError, naming the argument, what was expected and what it got.
Source: csrc/ops/pack.cpp; csrc/cpu/w4a16/pack.cpp, csrc/cuda/w4a16/pack.cu.
"""

_DEQUANTIZE = """A packed weight as a dense tensor; PackedWeight.dequantize calls it.

dequantize_w4(qweight, n, k, group_size, *, bf16_scales=False, zeros=False, dtype="float32",
              fp4=False) -> Tensor

    dtype: float32, float16 or bfloat16, to which each weight is rounded once.
    fp4: the weight is MXFP4: as in moe.w4a16.
    Returns [N, K], its channels in the packed order (a perm is not applied).

Errors: ValueError, naming the argument, what was expected and what it got.
Source: csrc/ops/dequantize.cpp; csrc/cpu/w4a16/dequantize.cpp, csrc/cuda/w4a16/dequantize.cu.
"""

_MOE_SORT = """The slots of a router, ordered by expert: what moe.w4a16 is given.

moe_sort(ids, experts) -> Tensor

    ids: int32 or int64 [T, k], the expert of each slot s = t k + j, token t's j-th; below 0 or
        `experts` and more stands for no expert.
    experts: how many there are.
    Returns int32 [experts + 1 + T k]: bounds, so that expert e has bounds[e + 1] - bounds[e] slots
        from bounds[e] on, then the slots ordered by expert, and by number within an expert. Those
        of no expert come last.

The host waits for nothing: a CUDA graph can capture it. Errors: ValueError, naming the argument,
what was expected and what it got. Gradients: none, as for any integers.
Source: csrc/ops/moe.cpp, csrc/cuda/w4a16/grouped.
"""

_MOE = """The product of a mixture of experts: each slot's row times its expert's 4-bit weight.

moe.w4a16(a, qweight, sorted, top_k, n, k, group_size, bias=None, perm=None, weights=None, *,
          bf16_scales=False, zeros=False, activation="none", fp4=False) -> Tensor
    y[s] = activation(a[row of s] W_e^T + bias[e]), e the expert of slot s = t top_k + j.

    a: [T, K], where slot s reads row s // top_k, or [T top_k, K], a row for each slot; float16,
        bfloat16 or float32 (on CUDA by a general path).
    qweight: uint8 [E, rows, row_bytes], the packed bytes of each expert's W [N, K], contiguous.
    sorted: moe_sort's result for E experts. top_k: slots of a token.
    n, k, group_size, bf16_scales, zeros: as in mul.w4a16.
    bias: [E, N], a's dtype. perm: int32 [E, K], act-order. Both may be None.
    weights: [T, top_k], of any float dtype: the result is the sum over j of weights[t, j]
        y[t top_k + j], in the order of j.
    activation: none, relu, gelu, gelu_tanh, silu; silu_and_mul and gelu_tanh_and_mul take the first
        N / 2 columns as a gate: y has N / 2 columns, act(gate) times the rest.
    fp4: the weights are MXFP4: codes are E2M1 floats, 0, .5, 1, 1.5, 2, 3, 4, 6, with the sign in
        bit 3; group_size 32, bf16 scales, no zeros.
    Returns y [T top_k, N or N / 2] in a's dtype, 0 in the slots of no expert; with weights the
        sums, [T, N or N / 2].

Numbers: float32 accumulation, bias and activation in float32, one rounding to a's dtype, and one
more of the sum; the CPU also rounds a gate and what it multiplies. On CUDA a slot's bits do not
depend on the other slots, nor on how many there are. The host waits for nothing: a CUDA graph can
capture the op, and be replayed with other experts.
Gradients: none; ValueError where an operand requires one in grad mode (xgemm.nn.QuantExperts has
them). torch.vmap: one call for each sample.
Errors: ValueError, naming the argument, what was expected and what it got.
Source: csrc/ops/moe.cpp, csrc/ops/moe_cpu.cpp; kernels in csrc/cpu/w4a16, csrc/cuda/w4a16/grouped.
"""

_EXPLAIN = """Which kernel a problem gets, and why; for people, not for torch.compile.

explain(op, m, n, k, *, dtype="float32", group_size=128, zeros=False, bf16_scales=False,
        transa=False, transb=False, batch_invariant=False, device="cpu", precision="ieee",
        json=False, candidates=True) -> str

    op: mul, mul.w4a16 or sgemm. m, n, k: the problem's sizes.
    dtype: of the activations. The rest: as in the op.
    json: a JSON object: family, device, problem, choice (with reason and, on CUDA, estimate_us) and
        candidates, all that were weighed, the least estimate first. xgemm.explain gives it parsed.
    candidates: False leaves these, and the estimates, out of the JSON: a tenth of the time.

Errors: ValueError, naming the argument, what was expected and what it got.
Source: csrc/ops/explain.cpp.
"""

_EXPLAIN_REDUCE = """Which kernel the reduction of a contiguous tensor gets, and why.

explain_reduce(op, shape, dim=None, *, dtype="float32", p=2.0, device="cpu", json=False,
               candidates=True) -> str

    op: sum, mean, prod, amax, amin, norm, argmax or argmin. shape: the tensor's.
    dim: an int, a list of them, or None for all. dtype, p: as in the op.
    json, candidates: as in explain.

Errors: ValueError, naming the argument, what was expected and what it got; IndexError for a
    dimension that is not there.
Source: csrc/ops/reduce.cpp.
"""

_ALL_DTYPES = "float16, bfloat16, float32, float64, or an integer type or bool"
_FLOATS = "float16, bfloat16, float32 or float64"


def _reduction(
    name: str,
    title: str,
    result: str,
    gradient: str,
    dtypes: str = _ALL_DTYPES,
    options: tuple[str, str] = ("", ""),
    one_dim: bool = False,
) -> str:
    dims = "an int" if one_dim else "an int or a list of them"
    everything = "None: over all elements, flattened" if one_dim else "None or []: all dimensions"
    return f"""{title}

{name}(x, dim=None, keepdim=False{options[0]}) -> Tensor

    x: {dtypes}; any shape and strides.
    dim: {dims}, negative ones counted from the end. {everything}.
    keepdim: reduced dimensions stay, of size 1.{options[1]}
    Returns {result}.

Gradients: {gradient}. torch.vmap: one call for all samples.
Errors: ValueError or IndexError, naming the argument, what was expected and what it got.
Source: csrc/ops/reduce.cpp; kernels in csrc/cpu/reduce and csrc/cuda/reduce.
"""


DOCS = {
    "mul": _MUL,
    "mul_into": _MUL_INTO,
    "sgemm": _SGEMM,
    "sgemm_into": _SGEMM_INTO,
    "w4a16_grad_a": _W4A16_GRAD_A,
    "pack_w4": _PACK,
    "unpack_w4": _UNPACK,
    "dequantize_w4": _DEQUANTIZE,
    "moe_sort": _MOE_SORT,
    "moe": _MOE,
    "explain": _EXPLAIN,
    "explain_reduce": _EXPLAIN_REDUCE,
    "sum": _reduction(
        "sum",
        "Sum over dimensions.",
        "x's dtype; int64 for integers and bool",
        "in x, backward and forward",
    ),
    "mean": _reduction(
        "mean", "Mean over dimensions.", "x's dtype", "in x, backward and forward", _FLOATS
    ),
    "prod": _reduction(
        "prod",
        "Product over dimensions.",
        "x's dtype; int64 for integers and bool",
        "in x, backward and forward",
    ),
    "amax": _reduction(
        "amax",
        "Largest element; NaN wins.",
        "x's dtype",
        "in x, shared evenly among equal ones; backward and forward",
    ),
    "amin": _reduction(
        "amin",
        "Smallest element; NaN wins.",
        "x's dtype",
        "in x, shared evenly among equal ones; backward and forward",
    ),
    "norm": _reduction(
        "norm",
        "The p-norm of vectors: (sum |x|^p)^(1/p).",
        "x's dtype",
        "in x, backward and forward",
        _FLOATS,
        (", p=2.0", "\n    p: the order; inf, -inf and 0 as in torch.linalg.vector_norm."),
    ),
    "argmax": _reduction(
        "argmax",
        "Index of the largest element, the first of equal ones; NaN wins.",
        "int64",
        "none",
        one_dim=True,
    ),
    "argmin": _reduction(
        "argmin",
        "Index of the smallest element, the first of equal ones; NaN wins.",
        "int64",
        "none",
        one_dim=True,
    ),
}
