// What a way to cut a reduction takes, estimated: what select_config compares.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <limits>

#include "cuda/choose/device_constants.h"
#include "cuda/choose/estimate.h"

namespace xgemm::cuda::reduce {

// What rows and tiles of columns have of their own.
struct Costs {
  double mail, mail_slots;  // once, and for each slot that a thread reads
  double imbalance;
};
inline constexpr Costs kOfRows = {0.83, 0.092, 0.028}, kOfTiles = {0.53, 0.145, 0.085};

// How a problem is cut: `tiles` of outputs, each in `pieces` of the reduced extent.
struct Cut {
  int threads = 0, lanes = 1;
  int64_t tiles = 0, pieces = 1;
  int64_t loads = 0;            // 16-byte ones of a thread
  int64_t outputs_of_tile = 0;  // to bring together
  int batch = 0;                // loads in flight
  int resident = 0;             // threads of an SM
  int64_t run = 0;              // bytes that lie behind one another
  int best_threads = 128;       // all else being equal
  double slower = 1;            // at reading a byte
  double end = 0;               // us that its ending takes more than others'
  double end_alone = 0;         // tiles: the same where a thread has all rows of its columns
  int words_of_slot = 1;        // collected mail, in 8 bytes: positions have two
  bool one_shift = false;
  bool tiled = false;  // columns, not narrow ones
  bool large = false;  // tiles of whole lines, and so many bytes that latencies hide behind them

  const Costs& costs() const { return tiled ? kOfTiles : kOfRows; }
};

// Estimates are in us, without what all ways to cut a problem have in common. The form is a guess;
// the constants were fitted to benchmarks/sweep_reduce.py's times on an H200 (984 problems, of each
// about 75 ways): what is chosen takes 1.043x the fastest's time on average. Those of tiles, of
// collectors and of thin columns were fitted again, over 111 problems of columns, of each 100 to
// 900 ways (1.026x the fastest's time; 1.035x before), and over 43 of few rows (1.018x; 1.057x).
inline constexpr double kBlock = 0.36, kBatch = 0.44,
                        kLoad = 0.018;                  // a batch of loads, a load in it
inline constexpr double kBytes = 1 / 3.6e6, kRun = 16;  // a byte; a run's start, in bytes
inline constexpr double kTileRun = 77;                  // the same of tiles of columns, squared
inline constexpr double kLargeRun = 22;                 // of large ones, cubed
inline constexpr double kLargeReductionBytes = 70e6;
inline constexpr int64_t kTallColumn = 512, kTallestColumn = 16384;
inline constexpr int64_t kLine = 128;
inline constexpr double kCluster = 0.54, kClusterWave = 0.58;
inline constexpr double kMailPiece = 0.0003;
inline constexpr int kFlatLoads = 4;       // that flat columns seem to have more
inline constexpr double kThinBytes = 2.2;  // of an element: less take as long
inline constexpr double kThinEnd = -1.0;   // nothing meets
inline constexpr double kWrappedEnd = 0.3;
inline constexpr double kAloneEnd = -1.0, kMinAloneBytes = 8e6;
inline constexpr double kLaunch = 2.9, kLaunchBytes = 0.96e-6;
inline constexpr double kThreads = 0.071;
inline constexpr int64_t kLongRow = 1024;  // loads
inline constexpr int kLongRowThreads = 256;
inline constexpr int kMinThreads = 64, kMaxBlocksOfSm = 16;
inline constexpr int64_t kMaxMail = 16384;  // slots that one block reads
inline constexpr double kCollectors = 0.42,
                        kCollector = 0.027;          // that tiles have them, and each of all
inline constexpr int kMinOfCollector = 8;            // outputs
inline constexpr int kMaxOfSm = 2, kMaxOfTile = 32;  // collectors

inline constexpr double kCannot = std::numeric_limits<double>::infinity();
// At reading a byte, with blocks of less than 512 threads: one run, and tiles of whole lines.
inline constexpr double kSmallBlocksOfRun = 1.04, kSmallBlocksOfTiles = 1.015;
inline double cube(double x) { return x * x * x; }

// `bytes` are those of the whole input.
inline choose::Estimate estimate(const Cut& cut, double bytes, int sm_count,
                                 const choose::DeviceConstants& gpu) {
  const auto sms = static_cast<double>(sm_count);
  const auto blocks = static_cast<double>(cut.tiles * cut.pieces);
  const double slots = sms * std::min(cut.resident / cut.threads, kMaxBlocksOfSm);
  const double waves = blocks / slots;
  const auto loads = static_cast<double>(cut.loads);
  const double of_batch = kBatch + kLoad * std::min<double>(loads, cut.batch);
  const double latency =
      (kBlock + of_batch * std::ceil(loads / cut.batch)) * std::max(1.0, std::ceil(waves));
  double uneven = 1 + cut.costs().imbalance * (std::ceil(blocks / sms) * sms / blocks - 1);
  if (waves > 1) uneven = 1 + cut.costs().imbalance / waves;
  const auto run = static_cast<double>(cut.run);
  const double of_runs = cut.large   ? cube(kLargeRun / run)
                         : cut.tiled ? std::pow(kTileRun / run, 2)
                                     : kRun / run;
  const double traffic = kBytes * cut.slower * bytes * uneven * (1 + of_runs) / gpu.dram_speed;
  const auto log2 = [](int n) { return static_cast<int>(std::bit_width(unsigned(n))); };
  const int odd_threads = std::abs(log2(cut.threads) - log2(cut.best_threads));
  const double both = cut.large ? std::cbrt(cube(latency) + cube(traffic))
                                : std::sqrt(latency * latency + traffic * traffic);
  const bool alone = cut.tiled && cut.pieces == 1 && cut.lanes == cut.threads && !cut.one_shift;
  return {.us = both + kThreads * odd_threads + cut.end + (alone ? cut.end_alone : 0),
          .parts = {.first_bytes = latency, .dram = traffic}};
}

// Of mail that `collectors` blocks of a tile share, or that its last piece collects (0).
inline double meeting_in_mail(const Cut& cut, int sm_count, int collectors) {
  const int64_t share = cut.outputs_of_tile / std::max(collectors, 1);
  const int64_t slots = cut.pieces * share;
  if (share > cut.threads || slots > kMaxMail) return kCannot;
  if (collectors > 0) {
    if (share == 0 || (collectors > 1 && share < kMinOfCollector)) return kCannot;
    if (cut.tiles * collectors > kMaxOfSm * sm_count) return kCannot;
  }
  // (The last piece's mail takes positions no longer than what was fitted for numbers.)
  const int64_t words = collectors > 0 ? slots * cut.words_of_slot : slots;
  const double of_thread = static_cast<double>(words) / cut.threads;
  const double shared =
      collectors > 0 ? kCollectors + kCollector * static_cast<double>(cut.tiles * collectors) : 0;
  return cut.costs().mail + shared + cut.costs().mail_slots * std::max(of_thread, 2.0) +
         kMailPiece * static_cast<double>(cut.pieces);
}

inline double meeting_in_a_launch(const Cut& cut) {
  return kLaunch +
         kLaunchBytes * 8 * static_cast<double>(cut.pieces * cut.tiles * cut.outputs_of_tile);
}

}  // namespace xgemm::cuda::reduce
