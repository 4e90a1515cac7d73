#include "emulator/tensor_core.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <array>
#include <cmath>
#include <cstring>
#include <list>

#include "cuda/tile/layout_index.h"

namespace xgemm::emulator {
namespace {

float decode(Type16 type, uint16_t bits) {
  static const auto kF16 = [] {
    std::array<float, 1 << 16> table;
    for (uint32_t i = 0; i < table.size(); ++i)
      table[i] = Binary16::decode(static_cast<uint16_t>(i));
    return table;
  }();
  return type == Type16::kF16 ? kF16[bits] : BFloat16::decode(bits);
}

struct Pair {
  float low, high;
};
Pair decode2(Type16 type, uint32_t word) {
  return {decode(type, static_cast<uint16_t>(word)),
          decode(type, static_cast<uint16_t>(word >> 16))};
}

// TF32 has fp32's first 19 bits.
float decode_tf32(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  bits &= 0xffffe000u;
  std::memcpy(&x, &bits, 4);
  return x;
}

// As the tensor cores round sums of TF32 products.
float round_towards_zero(double x) {
  const float rounded = static_cast<float>(x);
  return std::abs(double{rounded}) > std::abs(x) ? std::nextafterf(rounded, 0.0f) : rounded;
}

uint8_t* matrix_row(uint32_t address) {
  if (address % 16 != 0) fail("a matrix row that is not aligned to 16 bytes");
  return static_cast<uint8_t*>(shared_pointer(address));
}

}  // namespace

void ldmatrix(uint32_t* d, int matrices, uint32_t row, bool trans) {
  struct Operands {
    const uint8_t* row;
    uint32_t* d;
  } mine{nullptr, d};
  // The other lanes' addresses are not used.
  if (current().lane() < 8 * matrices) mine.row = matrix_row(row);
  meet_warp(trans ? "ldmatrix.trans" : "ldmatrix", ~0u, &mine, [matrices, trans](Operands** all) {
    for (int matrix = 0; matrix < matrices; ++matrix) {
      uint16_t values[8][8];
      for (int r = 0; r < 8; ++r) std::memcpy(values[r], all[matrix * 8 + r]->row, 16);
      for (int lane = 0; lane < kWarp; ++lane) {
        const int r = lane / 4, c = lane % 4 * 2;
        const uint32_t low = trans ? values[c][r] : values[r][c];
        const uint32_t high = trans ? values[c + 1][r] : values[r][c + 1];
        all[lane]->d[matrix] = low | high << 16;
      }
    }
  });
}

void stmatrix_x4(void* row, const uint32_t (&r)[4]) {
  struct Operands {
    uint8_t* row;
    const uint32_t (*r)[4];
  } mine{matrix_row(shared_address(row)), &r};
  meet_warp("stmatrix", ~0u, &mine, [](Operands** all) {
    for (int matrix = 0; matrix < 4; ++matrix) {
      for (int lane = 0; lane < kWarp; ++lane) {
        std::memcpy(all[matrix * 8 + lane / 4]->row + lane % 4 * 4, &(*all[lane]->r)[matrix], 4);
      }
    }
  });
}

void stmatrix_trans(void* row, int matrices, const uint32_t (&r)[4]) {
  struct Operands {
    void* row;
    const uint32_t (*r)[4];
  } mine{row, &r};
  meet_warp("stmatrix.trans", ~0u, &mine, [matrices](Operands** all) {
    for (int matrix = 0; matrix < matrices; ++matrix) {
      for (int lane = 0; lane < kWarp; ++lane) {
        for (int i = 0; i < 2; ++i) {
          const auto bits = static_cast<uint16_t>((*all[lane]->r)[matrix] >> (16 * i));
          uint8_t* to = matrix_row(shared_address(all[matrix * 8 + lane % 4 * 2 + i]->row));
          std::memcpy(to + lane / 4 * 2, &bits, 2);
        }
      }
    }
  });
}

void mma_m16n8k16(Type16 type, float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  struct Operands {
    float (*d)[4];
    const uint32_t (*a)[4], (*b)[2];
  } mine{&d, &a, &b};
  meet_warp("mma", ~0u, &mine, [type](Operands** all) {
    float x[16][16], y[8][16];  // A by rows, B by columns
    for (int lane = 0; lane < kWarp; ++lane) {
      for (int i = 0; i < 4; ++i) {
        const Pair pair = decode2(type, (*all[lane]->a)[i]);
        const auto [row, k] = cuda::layout::fragment_place(16, 8, lane, 2 * i);
        x[row][k] = pair.low, x[row][k + 1] = pair.high;
      }
      for (int i = 0; i < 2; ++i) {
        const Pair pair = decode2(type, (*all[lane]->b)[i]);
        const auto [column, k] = cuda::layout::fragment_place(8, 8, lane, 2 * i);
        y[column][k] = pair.low, y[column][k + 1] = pair.high;
      }
    }
    for (int lane = 0; lane < kWarp; ++lane) {
      for (int i = 0; i < 4; ++i) {
        const cuda::layout::Place at = cuda::layout::fragment_place(16, 8, lane, i);
        const float *row = x[at.row], *column = y[at.column];
        float sum = 0.0f;
        for (int k = 0; k < 16; ++k) sum += row[k] * column[k];
        (*all[lane]->d)[i] += sum;
      }
    }
  });
}

void wmma_load(uint32_t (&fragment)[8], const void* tile, int stride) {
  if (reinterpret_cast<uintptr_t>(tile) % 32 != 0) fail("wmma.load: the tile must lie at 32 bytes");
  if (stride % 8 != 0) fail("wmma.load: the stride must be a multiple of 8");
  const int lane = current().lane();
  const auto* row = static_cast<const uint16_t*>(tile) + lane / 2 * stride + lane % 2 * 8;
  std::memcpy(fragment, row, 16);
  std::memcpy(fragment + 4, row, 16);  // the hardware keeps each element twice, too
}

void wmma_mma(float (&d)[8], const uint32_t (&a)[8], const uint32_t (&b)[8]) {
  struct Operands {
    float (*d)[8];
    const uint32_t (*a)[8], (*b)[8];
  } mine{&d, &a, &b};
  meet_warp("wmma.mma", ~0u, &mine, [](Operands** all) {
    float x[16][16], y[16][16];
    for (int lane = 0; lane < kWarp; ++lane) {
      for (int i = 0; i < 4; ++i) {
        const Pair of_a = decode2(Type16::kF16, (*all[lane]->a)[i]);
        const Pair of_b = decode2(Type16::kF16, (*all[lane]->b)[i]);
        const int row = lane / 2, column = lane % 2 * 8 + 2 * i;
        x[row][column] = of_a.low, x[row][column + 1] = of_a.high;
        y[row][column] = of_b.low, y[row][column + 1] = of_b.high;
      }
    }
    for (int lane = 0; lane < kWarp; ++lane) {
      for (int i = 0; i < 8; ++i) {
        float sum = 0.0f;
        for (int k = 0; k < 16; ++k) sum += x[lane / 2][k] * y[k][lane % 2 * 8 + i];
        (*all[lane]->d)[i] += sum;
      }
    }
  });
}

void wmma_store(float* tile, const float (&d)[8], int stride) {
  const int lane = current().lane();
  std::memcpy(tile + lane / 2 * stride + lane % 2 * 8, d, sizeof(d));
}

void mma_m16n8k8_tf32(float (&d)[4], const float (&a)[4], const float (&b)[2]) {
  struct Operands {
    float (*d)[4];
    const float (*a)[4], (*b)[2];
  } mine{&d, &a, &b};
  meet_warp("mma", ~0u, &mine, [](Operands** all) {
    float x[16][8], y[8][8];  // A by rows, B by columns
    for (int lane = 0; lane < kWarp; ++lane) {
      for (int i = 0; i < 4; ++i) {
        x[lane / 4 + i % 2 * 8][lane % 4 + i / 2 * 4] = decode_tf32((*all[lane]->a)[i]);
      }
      for (int i = 0; i < 2; ++i) y[lane / 4][lane % 4 + i * 4] = decode_tf32((*all[lane]->b)[i]);
    }
    for (int lane = 0; lane < kWarp; ++lane) {
      for (int i = 0; i < 4; ++i) {
        const float *row = x[lane / 4 + i / 2 * 8], *column = y[lane % 4 * 2 + i % 2];
        double sum = (*all[lane]->d)[i];
        for (int k = 0; k < 8; ++k) sum += double{row[k]} * column[k];
        (*all[lane]->d)[i] = round_towards_zero(sum);
      }
    }
  });
}

void mma_m16n8k4_f64(double (&d)[4], const double (&a)[2], double b) {
  struct Operands {
    double (*d)[4];
    const double (*a)[2];
    double b;
  } mine{&d, &a, b};
  meet_warp("mma", ~0u, &mine, [](Operands** all) {
    for (int lane = 0; lane < kWarp; ++lane) {
      for (int i = 0; i < 4; ++i) {
        const int row = lane / 4, column = lane % 4 * 2 + i % 2;
        double sum = (*all[lane]->d)[i];
        for (int k = 0; k < 4; ++k) {
          sum += (*all[row * 4 + k]->a)[i / 2] * all[column * 4 + k]->b;
        }
        (*all[lane]->d)[i] = sum;
      }
    }
  });
}

// Products under way. The registers that they add to hold NaN until the thread has waited for them;
// their values are kept here.
struct Products {
  struct Sum {
    float* registers;
    std::vector<float> value;
    int products = 0;  // that it still gets
  };
  struct Product {
    WarpgroupProduct operands;
    Sum* sum;
  };
  using Group = std::vector<Product>;
  std::list<Sum> sums;
  Group open;
  std::deque<Group> groups;
  bool fenced = false;  // since the registers were last the thread's own
};

namespace {

// The shared memory that a descriptor shows: element `mn` of 16 k.
class Matrix {
 public:
  Matrix(uint64_t descriptor, bool mn_major)
      : start_((descriptor & 0x3fff) << 4),
        leading_((descriptor >> 16 & 0x3fff) << 4),
        stride_((descriptor >> 32 & 0x3fff) << 4),
        mn_major_(mn_major) {
    if ((descriptor >> 49 & 7) != 0) fail("wgmma: base offsets are not emulated");
    constexpr int kBits[] = {0, 3, 2, 1};
    swizzle_bits_ = kBits[descriptor >> 62];
    span_ = 16 << swizzle_bits_;
    if (span_ == 16 && mn_major) fail("wgmma: MN-major without a swizzle is not emulated");
  }

  uint16_t read(int mn, int k) const {
    const int elements = span_ / 2;
    uint32_t at = start_;
    if (mn_major_) {
      at += mn / elements * leading_ + k / 8 * stride_ + k % 8 * span_ + mn % elements * 2;
    } else {
      at += mn / 8 * stride_ + mn % 8 * span_;
      at += span_ == 16 ? k / 8 * leading_ + k % 8 * 2 : k * 2;
    }
    uint16_t bits;
    std::memcpy(&bits, shared_pointer(cuda::layout::swizzled(at, swizzle_bits_)), 2);
    return bits;
  }

  float read_float(int mn, int k) const {  // along k
    if (mn_major_ || span_ == 16) fail("wgmma: TF32 operands lie along k, with a swizzle");
    uint32_t at = start_ + mn / 8 * stride_ + mn % 8 * span_ + k * 4;
    float value;
    std::memcpy(&value, shared_pointer(cuda::layout::swizzled(at, swizzle_bits_)), 4);
    return value;
  }

 private:
  uint32_t start_, leading_, stride_;
  bool mn_major_;
  int swizzle_bits_, span_;  // span: bytes of the swizzle's row
};

// The same as compute, of m64nNk8. Sums are rounded towards zero, as the tensor cores do.
void compute_tf32(const std::array<Products::Product*, kWarpgroup>& all, const Matrix& b) {
  const WarpgroupProduct& first = all[0]->operands;
  for (int row = 0; row < 64; ++row) {
    float x[8];
    const int thread = row / 16 * kWarp + row % 8 * 4;
    for (int k = 0; k < 8; ++k) {
      float value;
      if (first.a_registers != nullptr) {
        const uint32_t* a = all[thread + k % 4]->operands.a_registers;
        std::memcpy(&value, a + row / 8 % 2 + k / 4 * 2, 4);
      } else {
        value = Matrix(first.a, false).read_float(row, k);
      }
      x[k] = decode_tf32(value);
    }
    for (int column = 0; column < first.n; ++column) {
      float& d =
          all[thread + column % 8 / 2]->sum->value[column / 8 * 4 + row / 8 % 2 * 2 + column % 2];
      double sum = first.accumulate ? d : 0.0;
      for (int k = 0; k < 8; ++k) sum += double{x[k]} * decode_tf32(b.read_float(column, k));
      d = round_towards_zero(sum);
    }
  }
}

// What one instruction adds to the sums of the 128 threads.
void compute(const std::array<Products::Product*, kWarpgroup>& all) {
  const WarpgroupProduct& first = all[0]->operands;
  for (const Products::Product* product : all) {
    const WarpgroupProduct& p = product->operands;
    if (p.a != first.a || p.b != first.b || p.n != first.n || p.accumulate != first.accumulate) {
      fail("wgmma: the threads of a warpgroup give different operands");
    }
  }
  const Matrix b(first.b, first.b_mn_major);
  if (first.type == Type16::kTf32) return compute_tf32(all, b);
  float x[64][16], y[16][256];
  for (int row = 0; row < 64; ++row) {
    for (int k = 0; k < 16; ++k) {
      if (first.a_registers != nullptr) {
        const int thread = row / 16 * kWarp + row % 8 * 4 + k % 8 / 2;
        const uint32_t word = all[thread]->operands.a_registers[row / 8 % 2 + k / 8 * 2];
        x[row][k] = decode(first.type, static_cast<uint16_t>(word >> (k % 2 * 16)));
      } else {
        x[row][k] = decode(first.type, Matrix(first.a, first.a_mn_major).read(row, k));
      }
    }
  }
  for (int column = 0; column < first.n; ++column) {
    for (int k = 0; k < 16; ++k) y[k][column] = decode(first.type, b.read(column, k));
  }
  for (int row = 0; row < 64; ++row) {
    float sum[256] = {};
    for (int k = 0; k < 16; ++k) {
      for (int column = 0; column < first.n; ++column) sum[column] += x[row][k] * y[k][column];
    }
    const int thread = row / 16 * kWarp + row % 8 * 4;
    for (int column = 0; column < first.n; ++column) {
      float& d =
          all[thread + column % 8 / 2]->sum->value[column / 8 * 4 + row / 8 % 2 * 2 + column % 2];
      d = (first.accumulate ? d : 0.0f) + sum[column];
    }
  }
}

void compute_group(Products::Group** groups) {
  const size_t count = groups[0]->size();
  for (int i = 0; i < kWarpgroup; ++i) {
    if (groups[i]->size() != count) fail("wgmma: the threads of a warpgroup differ in a group");
  }
  for (size_t product = 0; product < count; ++product) {
    std::array<Products::Product*, kWarpgroup> all;
    for (int i = 0; i < kWarpgroup; ++i) all[i] = &(*groups[i])[product];
    compute(all);
  }
}

Products& mine() {
  Thread& thread = current();
  if (thread.products == nullptr) thread.products = std::make_shared<Products>();
  return *thread.products;
}

void meet_warpgroup(const char* what, Products::Group* group) {
  const Thread& thread = current();
  thread.block->warpgroups[thread.linear / kWarpgroup].meet(what, thread.linear % kWarpgroup,
                                                            kWarpgroup, group, compute_group);
}

}  // namespace

void wgmma_fence() { mine().fenced = true; }

void wgmma(const WarpgroupProduct& product) {
  Products& own = mine();
  Products::Sum* sum = nullptr;
  for (Products::Sum& other : own.sums) {
    if (other.registers == product.d) sum = &other;
  }
  if (sum == nullptr) {
    if (!own.fenced) fail("wgmma without wgmma.fence after its registers were used");
    const int count = product.n / 2;
    sum = &own.sums.emplace_back(product.d, std::vector<float>(product.d, product.d + count));
    std::fill_n(product.d, count, std::nanf(""));
  }
  ++sum->products;
  own.open.push_back({product, sum});
}

void wgmma_commit_group() {
  Products& own = mine();
  own.groups.push_back(std::move(own.open));
  own.open.clear();
  if (!options.late_products) meet_warpgroup("wgmma.commit_group", &own.groups.back());
}

void wgmma_wait_group(size_t pending) {
  Products& own = mine();
  for (; own.groups.size() > pending; own.groups.pop_front()) {
    if (options.late_products) meet_warpgroup("wgmma.wait_group", &own.groups.front());
    for (Products::Product& product : own.groups.front()) --product.sum->products;
  }
  for (auto sum = own.sums.begin(); sum != own.sums.end();) {
    if (sum->products > 0) {
      ++sum;
      continue;
    }
    std::copy(sum->value.begin(), sum->value.end(), sum->registers);
    sum = own.sums.erase(sum);
    own.fenced = false;
  }
}

}  // namespace xgemm::emulator
