"""Writes wgmma_shapes.h, one function for each width of wgmma: no macro can make operand lists.

python csrc/cuda/ptx/generate_wgmma.py > csrc/cuda/ptx/wgmma_shapes.h
"""

WIDTHS = (8, 16, 24, 32, 48, 64, 96, 128, 160, 192, 224, 256)
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


def function(n: int) -> str:
    count = n // 2
    registers = wrapped([f"%{i}" for i in range(count)], " " * 8, '"')
    outputs = wrapped([f'"+f"(d[{i}])' for i in range(count)], " " * 10, "")
    body = [
        "asm volatile(",
        '        "{\\n"',
        '        ".reg .pred accumulate;\\n"',
        f'        "setp.ne.b32 accumulate, %{count + 2}, 0;\\n"',
        f'        "wgmma.mma_async.sync.aligned.m64n{n}k16.f32." TYPE "." TYPE " {{"',
        registers,
        f'        "}}, %{count}, %{count + 1}, accumulate, 1, 1, %{count + 3}, %{count + 4};\\n"',
        '        "}\\n"',
        "        :",
        outputs,
        '        : "l"(desc_a), "l"(desc_b), "r"(accumulate), "n"(kTransposeA), "n"(kTransposeB))',
    ]
    *most, last = "\n".join(body).split("\n")
    macro = "\n".join([*(line.ljust(LINE) + " \\" for line in most), last])
    return f"""
template <typename T, int kTransposeA, int kTransposeB>
__device__ inline void wgmma(float (&d)[{count}], uint64_t desc_a, uint64_t desc_b,
                             int accumulate) {{
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


print("""// Made by generate_wgmma.py: wgmma for each width N, told apart by the N / 2 accumulators.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

// clang-format off
namespace xgemm::ptx {""")
for width in WIDTHS:
    print(function(width), end="")
print("""
}  // namespace xgemm::ptx""")
