#include "emulator/tensor_map.h"

#include <array>
#include <cstring>

#include "cuda/tile/layout_index.h"

namespace xgemm::emulator {
namespace {

constexpr int kMaxRank = 5;
constexpr uint32_t kMark = 0x7e4502a9;  // of a map that was encoded

// What lies in a CUtensorMap.
struct Map {
  uint32_t mark;
  uint8_t rank, element_bytes, swizzle_bits, tf32;  // tf32: loads round to it
  uint8_t* address;
  uint64_t extent[kMaxRank], stride[kMaxRank - 1];  // elements, bytes
  uint16_t box[kMaxRank];

  uint32_t box_bytes() const {
    uint32_t bytes = element_bytes;
    for (int i = 0; i < rank; ++i) bytes *= box[i];
    return bytes;
  }
};
static_assert(sizeof(Map) <= sizeof(CUtensorMap));

Map decode(const CUtensorMap* map) {
  Map decoded;
  std::memcpy(&decoded, map, sizeof decoded);
  if (decoded.mark != kMark) fail("a tensor map that nobody has encoded");
  return decoded;
}

using Position = std::array<int64_t, kMaxRank>;

// Calls piece(shared memory, global memory, bytes of the 16 that exist) for the pieces of a box.
// Pieces that lie outside of the tensor have no global memory.
template <typename Piece>
void for_each_piece(const Map& map, uint8_t* window, uint32_t shared, const Position& at,
                    Piece piece) {
  const int row_bytes = map.box[0] * map.element_bytes;
  const uint32_t rows = map.box_bytes() / static_cast<uint32_t>(row_bytes);
  for (uint32_t row = 0; row < rows; ++row) {
    bool inside = true;
    uint8_t* global = map.address;
    uint32_t rest = row;
    for (int i = 1; i < map.rank; ++i) {
      const int64_t index = at[i] + rest % map.box[i];
      rest /= map.box[i];
      inside &= index >= 0 && index < static_cast<int64_t>(map.extent[i]);
      global += index * static_cast<int64_t>(map.stride[i - 1]);
    }
    for (int byte = 0; byte < row_bytes; byte += 16) {
      const int64_t first = at[0] * map.element_bytes + byte;
      const int64_t left = static_cast<int64_t>(map.extent[0]) * map.element_bytes - first;
      const int valid =
          !inside || first < 0 ? 0 : static_cast<int>(std::clamp<int64_t>(left, 0, 16));
      uint32_t to = shared + row * static_cast<uint32_t>(row_bytes) + static_cast<uint32_t>(byte);
      to = cuda::layout::swizzled(to, map.swizzle_bits);
      piece(window + to, valid == 0 ? nullptr : global + first, valid);
    }
  }
}

Position position(const Map& map, Coordinates at) {
  if (static_cast<int>(at.size()) != map.rank) fail("coordinates of another rank than the map's");
  Position all{};
  std::copy(at.begin(), at.end(), all.begin());
  if (all[0] * map.element_bytes % 16 != 0) {
    fail("TMA: the inner coordinate is not a multiple of 16 bytes");
  }
  return all;
}

// Four numbers, to nearest.
void round_to_tf32(uint8_t* numbers) {
  uint32_t bits[4];
  std::memcpy(bits, numbers, 16);
  for (uint32_t& x : bits) {
    if ((x & 0x7f800000u) != 0x7f800000u) x = (x + 0xfffu + (x >> 13 & 1)) & 0xffffe000u;
  }
  std::memcpy(numbers, bits, 16);
}

uint32_t checked_address(const void* pointer) {
  const uint32_t address = shared_address(pointer);
  if (address % 128 != 0) fail("TMA: shared memory that is not aligned to 128 bytes");
  return address;
}

}  // namespace

void check_tensor_map(const CUtensorMap* map) { decode(map); }

void tma_load(void* dst, const CUtensorMap* tensor_map, uint64_t* barrier, Coordinates coordinates,
              uint32_t cta_mask) {
  const Map map = decode(tensor_map);
  const Position at = position(map, coordinates);
  const uint32_t shared = checked_address(dst);
  shared_address(barrier);
  const unsigned own = current().block->rank;
  if (cta_mask == 0) cta_mask = 1u << own;
  for (unsigned rank = 0; cta_mask >> rank != 0; ++rank) {
    if ((cta_mask >> rank & 1) == 0) continue;
    uint8_t* window = static_cast<uint8_t*>(shared_pointer_in(dst, rank)) - shared;
    auto* counted = static_cast<uint64_t*>(shared_pointer_in(barrier, rank));
    start_copy([=] {
      for_each_piece(map, window, shared, at, [&](uint8_t* to, const uint8_t* from, int valid) {
        if (valid > 0) std::memcpy(to, from, static_cast<size_t>(valid));
        std::memset(to + valid, 0, static_cast<size_t>(16 - valid));
        if (map.tf32) round_to_tf32(to);
      });
      mbarrier_complete(counted, map.box_bytes());
    });
  }
}

void tma_store(const CUtensorMap* tensor_map, const void* src, Coordinates coordinates) {
  const Map map = decode(tensor_map);
  const Position at = position(map, coordinates);
  const uint32_t shared = checked_address(src);
  uint8_t* window = current().block->window;
  current().stores.add({[=] {
    // The GPU leaves out 16 bytes of which all lie outside, and writes the others whole.
    for_each_piece(map, window, shared, at, [](const uint8_t* from, uint8_t* to, int valid) {
      if (valid > 0) std::memcpy(to, from, 16);
    });
  }});
}

CUresult encode_tiled(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* address,
                      const cuuint64_t* extents, const cuuint64_t* strides, const cuuint32_t* box,
                      const cuuint32_t* element_strides, CUtensorMapInterleave,
                      CUtensorMapSwizzle swizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill) {
  constexpr uint8_t kElementBytes[] = {1, 2, 2, 4, 4};
  constexpr uint32_t kSpans[] = {256 * 16, 32, 64, 128};
  constexpr uint8_t kSwizzleBits[] = {0, 1, 2, 3};
  bool good = rank >= 1 && rank <= kMaxRank && reinterpret_cast<uintptr_t>(address) % 16 == 0;
  if (!good) return CUDA_ERROR_INVALID_VALUE;
  Map encoded{};
  encoded.mark = kMark;
  encoded.rank = static_cast<uint8_t>(rank);
  encoded.element_bytes = kElementBytes[type];
  encoded.tf32 = type == CU_TENSOR_MAP_DATA_TYPE_TFLOAT32;
  encoded.swizzle_bits = kSwizzleBits[swizzle];
  encoded.address = static_cast<uint8_t*>(address);
  for (uint32_t i = 0; i < rank; ++i) {
    good &= extents[i] >= 1 && extents[i] <= uint64_t{1} << 32;
    good &= box[i] >= 1 && box[i] <= 256 && element_strides[i] == 1;
    encoded.extent[i] = extents[i];
    encoded.box[i] = static_cast<uint16_t>(box[i]);
    if (i + 1 == rank) continue;
    good &= strides[i] % 16 == 0 && strides[i] < uint64_t{1} << 40;
    encoded.stride[i] = strides[i];
  }
  const uint32_t inner_bytes = box[0] * encoded.element_bytes;
  good &= inner_bytes % 16 == 0 && inner_bytes <= kSpans[swizzle];
  if (!good) return CUDA_ERROR_INVALID_VALUE;
  *map = {};
  std::memcpy(map, &encoded, sizeof encoded);
  return CUDA_SUCCESS;
}

}  // namespace xgemm::emulator
