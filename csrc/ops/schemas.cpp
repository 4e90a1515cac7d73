// Every op of the library, on one page. Names and meanings are fixed: tensors are positional (with
// defaults where they may be left out), as autograd refuses keyword-only ones; ops that write a
// tensor take it first and return nothing; the overload defined first is the cheap one.
#include <torch/csrc/stable/library.h>

STABLE_TORCH_LIBRARY(xgemm, m) {
  m.def(
      "mul(Tensor a, Tensor b, Tensor? bias=None, *, "
      "str activation=\"none\", str precision=\"ieee\") -> Tensor");
  m.def(
      "mul.w4a16(Tensor a, Tensor qweight, int n, int k, int group_size, Tensor? bias=None, "
      "Tensor? perm=None, *, bool bf16_scales=False, bool zeros=False, "
      "str activation=\"none\", bool batch_invariant=False) -> Tensor");
  m.def(
      "mul_into(Tensor(a!) dst, Tensor a, Tensor b, Tensor? bias=None, *, "
      "str activation=\"none\", str precision=\"ieee\") -> ()");
  m.def(
      "mul_into.w4a16(Tensor(a!) dst, Tensor a, Tensor qweight, int n, int k, int group_size, "
      "Tensor? bias=None, Tensor? perm=None, *, bool bf16_scales=False, bool zeros=False, "
      "str activation=\"none\", bool batch_invariant=False) -> ()");
  m.def(
      "w4a16_grad_a(Tensor grad, Tensor qweight, int n, int k, int group_size, "
      "Tensor? perm=None, *, bool bf16_scales=False, bool zeros=False) -> Tensor");

  m.def("moe_sort(Tensor ids, int experts) -> Tensor");
  m.def(
      "moe.w4a16(Tensor a, Tensor qweight, Tensor sorted, int top_k, int n, int k, "
      "int group_size, Tensor? bias=None, Tensor? perm=None, Tensor? weights=None, *, "
      "bool bf16_scales=False, bool zeros=False, str activation=\"none\", "
      "bool fp4=False) -> Tensor");

  m.def(
      "sgemm(Tensor a, Tensor b, Tensor? c=None, *, bool transa=False, bool transb=False, "
      "float alpha=1.0, float beta=0.0, str precision=\"ieee\") -> Tensor");
  m.def(
      "sgemm_into(Tensor(a!) c, Tensor a, Tensor b, *, bool transa=False, bool transb=False, "
      "float alpha=1.0, float beta=0.0, str precision=\"ieee\") -> ()");

  m.def("sum(Tensor x, int[1]? dim=None, bool keepdim=False) -> Tensor");
  m.def("mean(Tensor x, int[1]? dim=None, bool keepdim=False) -> Tensor");
  m.def("prod(Tensor x, int[1]? dim=None, bool keepdim=False) -> Tensor");
  m.def("amax(Tensor x, int[1]? dim=None, bool keepdim=False) -> Tensor");
  m.def("amin(Tensor x, int[1]? dim=None, bool keepdim=False) -> Tensor");
  m.def("norm(Tensor x, int[1]? dim=None, bool keepdim=False, float p=2.0) -> Tensor");
  m.def("argmax(Tensor x, int? dim=None, bool keepdim=False) -> Tensor");
  m.def("argmin(Tensor x, int? dim=None, bool keepdim=False) -> Tensor");

  // What direct.py calls: the same kernels, by as few arguments as they need.
  m.def("_mul(Tensor a, Tensor b, Tensor? bias) -> Tensor");
  m.def(
      "_mul_w4a16(Tensor a, Tensor qweight, int n, int k, int group_size, Tensor? bias, "
      "bool bf16_scales, bool zeros) -> Tensor");
  m.def(
      "_w4a16_grad_a(Tensor grad, Tensor qweight, int n, int k, int group_size, "
      "bool bf16_scales, bool zeros) -> Tensor");
  m.def("_reduce(Tensor x, int op, int? dim) -> Tensor");

  m.def("pack_w4(Tensor codes, Tensor scales, Tensor? zeros, int group_size) -> Tensor");
  m.def(
      "unpack_w4(Tensor qweight, int n, int k, int group_size, *, bool bf16_scales=False, "
      "bool zeros=False) -> (Tensor, Tensor, Tensor)");
  m.def(
      "dequantize_w4(Tensor qweight, int n, int k, int group_size, *, bool bf16_scales=False, "
      "bool zeros=False, str dtype=\"float32\", bool fp4=False) -> Tensor");

  m.def(
      "explain(str op, int m, int n, int k, *, str dtype=\"float32\", int group_size=128, "
      "bool zeros=False, bool bf16_scales=False, bool transa=False, bool transb=False, "
      "bool batch_invariant=False, str device=\"cpu\", str precision=\"ieee\", "
      "bool json=False, bool candidates=True) -> str");
  m.def(
      "explain_reduce(str op, int[] shape, int[1]? dim=None, *, str dtype=\"float32\", "
      "float p=2.0, str device=\"cpu\", bool json=False, bool candidates=True) -> str");
}
