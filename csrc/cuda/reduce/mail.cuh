// The blocks of a tile bring their accumulators together in memory, in the launch that made them:
// each mails its own to the last one, and every 8 bytes travel in one store with a number that only
// this launch has. So nobody counts, nobody waits for a fence, and nothing needs to be zero before.
//
// Only the last block waits, for blocks that have started before it: it cannot keep them out.
#pragma once

#include <cstdint>
#include <cstring>

#include "cuda/ptx/gpu_flag.h"
#include "cuda/reduce/params.h"

namespace xgemm::cuda::reduce {

template <typename Acc>
class Mail {
 public:
  __device__ Mail(const Params& p, uint32_t first_block, uint32_t columns)
      : slots_(static_cast<ulonglong2*>(p.mail)),
        nonce_(p.nonce),
        first_block_(first_block),
        columns_(columns) {}

  __device__ void send(uint32_t piece, uint32_t column, const Acc& acc) const {
    uint64_t words[kWords] = {};
    memcpy(words, &acc, sizeof(Acc));
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      ptx::st_relaxed_gpu(slot(piece, column) + i, {words[i], nonce_});
    }
  }

  // fold(acc) of the pieces first, first + step, ... below `end`, in this order.
  template <typename Fold>
  __device__ void receive(uint32_t first, uint32_t step, uint32_t end, uint32_t column,
                          const Fold& fold) const {
    constexpr int U = 4;  // in flight
#pragma unroll 1
    for (uint32_t piece = first; piece < end; piece += U * step) {
      ulonglong2 found[U][kWords];
      bool arrived;
      do {
        arrived = true;
#pragma unroll
        for (int i = 0; i < U; ++i) {
#pragma unroll
          for (int word = 0; word < kWords; ++word) {
            if (piece + i * step < end) {
              found[i][word] = ptx::ld_relaxed_gpu(slot(piece + i * step, column) + word);
            } else {
              found[i][word] = {0, nonce_};
            }
            arrived &= found[i][word].y == nonce_;
          }
        }
      } while (!arrived);
#pragma unroll
      for (int i = 0; i < U; ++i) {
        if (piece + i * step >= end) break;
        Acc acc;
        uint64_t words[kWords];
#pragma unroll
        for (int word = 0; word < kWords; ++word) {
          words[word] = found[i][word].x;
          // A graph launches the same number again.
          ptx::st_relaxed_gpu(slot(piece + i * step, column) + word, {0, 0});
        }
        memcpy(&acc, words, sizeof(Acc));
        fold(acc);
      }
    }
  }

 private:
  static constexpr int kWords = (sizeof(Acc) + 7) / 8;
  __device__ ulonglong2* slot(uint32_t piece, uint32_t column) const {
    return slots_ + (int64_t{first_block_ + piece} * columns_ + column) * kWords;
  }
  ulonglong2* slots_;  // [blocks][columns][kWords]
  uint64_t nonce_;
  uint32_t first_block_, columns_;
};

}  // namespace xgemm::cuda::reduce
