// How long a way to cut a reduction takes: what the engine compares.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "cuda/choose/device_constants.h"
#include "cuda/choose/estimate.h"
#include "cuda/reduce/problem.h"

namespace xgemm::cuda::reduce {

// What a candidate has its threads do.
struct Work {
  int64_t loads = 0;            // of a thread
  int batch = 8;                // of them in flight
  int passes = 1;               // loads for each: two where two are shifted into one
  int resident = 1024;          // threads of an SM
  int64_t run = 0;              // bytes behind one another that a block reads at once
  bool narrow = false;          // tiles are narrower than the rows that they are parts of
  double unread = 1;            // bytes that are read for each that counts
  double lines = 4;             // of 128 bytes that a warp's load touches, or turns at a bank
  double shuffles = 0;          // of a thread at a block's end
  double combines = 0;          // of accumulators, one after the other
  bool alone = false;           // a thread has outputs for itself: none of these but for pieces
  int64_t outputs_of_tile = 1;  // that pieces bring together
};

// us from the launch until loads are under way, and of an SM for a warp's load.
struct KernelCosts {
  double start, load;
};
constexpr KernelCosts costs_of(Kernel kernel) {
  switch (kernel) {
    case Kernel::kShortRows:
      return {5.0, 0.002};
    case Kernel::kRaggedRows:
      return {5.0, 0.013};
    case Kernel::kTeamRows:
      return {4.54, 0.002};
    case Kernel::kLoneRows:
      return {3.94, 0.002};
    case Kernel::kRowPieces:
      return {4.94, 0.002};
    case Kernel::kRows:
      return {4.59, 0.004};
    case Kernel::kRuns:  // which counts as ragged rows do
      return {4.59, 0.013};
    case Kernel::kColumns:
    case Kernel::kShifted:
      return {4.08, 0.006};
    case Kernel::kWrapped:
      return {4.85, 0.007};
    case Kernel::kStrided:
      return {5.72, 0};
    default:
      return {3.52, 0};
  }
}

// Of an H200, in us. benchmarks/sweep_reduce.py's times of 339 sums of fp16 and fp32 gave them and
// the table above, and 180 others judged them.
struct CostConstants {
  double batch = 0.76, load_of_batch = 0.0067;  // until loads have come
  double megabyte = 0.207;                      // of all SMs
  double megabyte_of_sm = 3.5;                  // of one
  double unequal_sms = 0.037;                   // some read slower: of one turn
  double run = 14, narrow_run = 80;             // bytes: where blocks read so many they lose half
  double narrow_pieces = 0.1;                   // more is lost where pieces read other rows
  double line = 0.00082;                        // of an SM for a warp's load
  double block = 0.062;                         // of an SM
  double shuffle = 0.031, combine = 0.032;
  double launch = 2.9, result = 8e-6;  // a second launch, and 8 bytes that it reads
  double mail = 0.55, slot = 0.185;    // of a thread that reads it
  double collectors = 1.0, collector = 0.008;
};
inline constexpr CostConstants kCosts{};

inline constexpr int kMaxBlocksOfSm = 32;
inline constexpr double kFewestSlots = 2;  // of a thread: fewer take as long

// 8-byte words of all pieces' results for a tile.
inline double words_of_tile(const Config& config, const Work& work, Kind kind) {
  return static_cast<double>(accumulator_bytes(kind) / 8 * config.pieces * work.outputs_of_tile);
}
// Of mail, that a thread of the blocks that read it has.
inline double slots_of_thread(const Config& config, const Work& work, Kind kind) {
  return words_of_tile(config, work, kind) / std::max(config.collectors, 1) / config.threads;
}

inline double meeting_us(const Config& config, const Work& work, Kind kind, bool groups) {
  if (config.pieces == config.cluster && !groups) return 0;
  if (!config.mail) {
    return kCosts.launch +
           kCosts.result * static_cast<double>(config.tiles) * words_of_tile(config, work, kind);
  }
  const double slots = std::max(slots_of_thread(config, work, kind), kFewestSlots);
  const double collecting =
      config.collectors == 0
          ? 0
          : kCosts.collectors +
                kCosts.collector * static_cast<double>(config.tiles * config.collectors);
  return kCosts.mail + kCosts.slot * slots + collecting;
}

// Without the meeting. `megabytes` are those of the input and of the results.
inline choose::Estimate estimate(const Config& config, const Work& work, double megabytes,
                                 int sm_count, const choose::DeviceConstants& gpu) {
  const KernelCosts kernel = costs_of(config.kernel);
  const double sms = sm_count;
  const auto blocks = static_cast<double>(config.tiles * config.pieces);
  const int of_sm = std::clamp(work.resident / config.threads, 1, kMaxBlocksOfSm);
  const double waves = std::max(blocks / (sms * of_sm), 1.0);
  const double busiest = waves > 1 ? blocks / sms + 0.5 : std::ceil(blocks / sms);
  const auto loads = static_cast<double>(work.loads * work.passes);
  const auto batch = static_cast<double>(std::min<int64_t>(work.loads, work.batch));
  const auto batches = static_cast<double>((work.loads + work.batch - 1) / work.batch);
  const bool ends = !work.alone || config.pieces > 1;
  const double end = ends ? kCosts.shuffle * work.shuffles + kCosts.combine * work.combines : 0;
  const double of_block =
      (kCosts.batch + kCosts.load_of_batch * batch) * batches * work.passes + end;
  const auto run = static_cast<double>(work.run);
  const double of_run = kCosts.narrow_run / run;
  const double lost = work.narrow ? of_run * of_run + (config.pieces > 1 ? kCosts.narrow_pieces : 0)
                                  : std::sqrt(std::sqrt(kCosts.run / run));
  const double read = megabytes * work.unread;
  const choose::Parts parts = {
      .launch = kernel.start,
      .first_bytes = of_block * std::ceil(waves),
      .dram =
          read * kCosts.megabyte * (1 + kCosts.unequal_sms / waves) * (1 + lost) / gpu.dram_speed,
      .intake = read / blocks * busiest * kCosts.megabyte_of_sm / gpu.clock_speed,
      .issue =
          (blocks / sms * config.threads / 32 * loads * (kernel.load + kCosts.line * work.lines) +
           kCosts.block * blocks / sms) /
          gpu.clock_speed};
  const auto fourth = [](double x) { return x * x * x * x; };
  const double sum =
      fourth(parts.first_bytes) + fourth(parts.dram) + fourth(parts.intake) + fourth(parts.issue);
  return {.us = kernel.start + std::sqrt(std::sqrt(sum)), .parts = parts};
}

}  // namespace xgemm::cuda::reduce
