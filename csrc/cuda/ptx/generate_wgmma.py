"""Writes wgmma_shapes.h, two functions for each width of wgmma: no macro can make operand lists.

python csrc/cuda/ptx/generate_wgmma.py > csrc/cuda/ptx/wgmma_shapes.h
python csrc/cuda/ptx/generate_wgmma.py tf32 > csrc/cuda/ptx/wgmma_tf32.h
"""

import sys

WIDTHS = (8, 16, 24, 32, 48, 64, 96, 128, 144, 160, 192, 224, 256)
TF32_WIDTHS = (64, 128, 192, 256)
LINE = 98


def wrapped(items: list[str], indent: str, quote: str) -> str:
    """Items joined by commas, in lines of at most LINE characters."""
    lines, line = [], ""
    for item in items:
        piece = item + ", "
        if line and len(indent) + len(line) + len(piece) + 2 * len(quote) > LINE:
            lines.append(line)
            line = ""
        line += piece
    lines.append(line.removesuffix(", "))
    return "\n".join(f"{indent}{quote}{text if quote else text.rstrip()}{quote}" for text in lines)


def function(n: int, register_a: bool) -> str:
    count = n // 2
    a_operands = 4 if register_a else 1
    registers = wrapped([f"%{i}" for i in range(count)], " " * 8, '"')
    outputs = wrapped([f'"+f"(d[{i}])' for i in range(count)], " " * 10, "")
    desc_b = count + a_operands
    if register_a:
        operand_a = "{" + ", ".join(f"%{count + i}" for i in range(4)) + "}"
        inputs = ", ".join(f'"r"(a[{i}])' for i in range(4))
        transposes, immediates = f"%{desc_b + 2}", '"n"(kTransposeB)'
    else:
        operand_a, inputs = f"%{count}", '"l"(desc_a)'
        transposes = f"%{desc_b + 2}, %{desc_b + 3}"
        immediates = '"n"(kTransposeA), "n"(kTransposeB)'
    body = [
        "asm volatile(",
        '        "{\\n"',
        '        ".reg .pred accumulate;\\n"',
        f'        "setp.ne.b32 accumulate, %{desc_b + 1}, 0;\\n"',
        f'        "wgmma.mma_async.sync.aligned.m64n{n}k16.f32." TYPE "." TYPE " {{"',
        registers,
        f'        "}}, {operand_a}, %{desc_b}, accumulate, 1, 1, {transposes};\\n"',
        '        "}\\n"',
        "        :",
        outputs,
        f'        : {inputs}, "l"(desc_b), "r"(accumulate), {immediates})',
    ]
    *most, last = "\n".join(body).split("\n")
    macro = "\n".join([*(line.ljust(LINE) + " \\" for line in most), last])
    if register_a:
        head = f"""
template <typename T, int kTransposeB>
__device__ inline void wgmma(float (&d)[{count}], const uint32_t (&a)[4], uint64_t desc_b,
                             int accumulate) {{"""
    else:
        head = f"""
template <typename T, int kTransposeA, int kTransposeB>
__device__ inline void wgmma(float (&d)[{count}], uint64_t desc_a, uint64_t desc_b,
                             int accumulate) {{"""
    return f"""{head}
#define XGEMM_WGMMA(TYPE) \\
    {macro}
  if constexpr (std::is_same_v<T, __half>) {{
    XGEMM_WGMMA("f16");
  }} else {{
    XGEMM_WGMMA("bf16");
  }}
#undef XGEMM_WGMMA
}}
"""


def tf32_function(n: int, register_a: bool) -> str:
    count = n // 2
    a_operands = 4 if register_a else 1
    registers = wrapped([f"%{i}" for i in range(count)], " " * 6, '"')
    outputs = wrapped([f'"+f"(d[{i}])' for i in range(count)], " " * 8, "")
    if register_a:
        parameter = "const float (&a)[4]"
        a = "{" + ", ".join(f"%{count + i}" for i in range(4)) + "}"
        inputs = """"r"(__float_as_uint(a[0])), "r"(__float_as_uint(a[1])),
        "r"(__float_as_uint(a[2])), "r"(__float_as_uint(a[3])),"""
    else:
        parameter, a, inputs = "uint64_t desc_a", f"%{count}", '"l"(desc_a),'
    return f"""
__device__ inline void wgmma_tf32(float (&d)[{count}], {parameter}, uint64_t desc_b,
                                  int accumulate) {{
  asm volatile(
      "{{\\n"
      ".reg .pred accumulate;\\n"
      "setp.ne.b32 accumulate, %{count + a_operands + 1}, 0;\\n"
      "wgmma.mma_async.sync.aligned.m64n{n}k8.f32.tf32.tf32 {{"
{registers}
      "}}, {a}, %{count + a_operands}, accumulate, 1, 1;\\n"
      "}}\\n"
      :
{outputs}
      : {inputs} "l"(desc_b), "r"(accumulate));
}}
"""


SHAPES = """\
// Made by generate_wgmma.py: wgmma for each width N, told apart by the N / 2 accumulators.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

// clang-format off
namespace xgemm::ptx {"""

TF32 = """\
// Made by generate_wgmma.py: wgmma m64nNk8 over TF32 operands, N told by the N / 2 accumulators.
// d += a b, or d = a b where `accumulate` is 0. A is in registers: lane 4 g + t of warp w has
// A[16 w + g + 8 (i % 2)][t + 4 (i / 2)] in a[i], or in shared memory; B is in shared memory. There
// both lie along k. The lowest 13 bits of both are not looked at.
#pragma once

#include <cstdint>

// clang-format off
namespace xgemm::ptx {"""

if sys.argv[1:] == ["tf32"]:
    tf32 = [tf32_function(n, register_a) for n in TF32_WIDTHS for register_a in (False, True)]
    print(TF32 + "".join("\n" + text.rstrip("\n") for text in tf32))
else:
    both = [function(width, register_a) for width in WIDTHS for register_a in (False, True)]
    print(SHAPES + "".join("\n" + text.rstrip("\n") for text in both))
print("\n}  // namespace xgemm::ptx")
