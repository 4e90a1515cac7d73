#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>

#include "common/math.h"
#include "cuda/choose/constants_of.h"
#include "cuda/gemm/fp32/plan.h"
#include "cuda/gemm/fp32/select.h"
#include "cuda/gemm/split_k.h"

namespace xgemm::cuda::gemm::fp32 {
namespace {

using choose::Estimate;

// A roofline, in microseconds of an H200, cold L2, fitted to half of 625 random products of one to
// four rows or columns (docs/measurements/fp32.md, "The choice").
constexpr double kLaunchUs = 3.066, kMemoryBytesPerUs = 4.331e6;
// What a run of B's contiguous elements costs memory more than its own bytes; and where it does not
// begin with a line.
constexpr double kRunBytes = 0.958, kSplitLineBytes = 67.16;
// Of a pass of a CTA's warps, from their loads, of 16 bytes or of 4, to their products; for each
// row of A; to start a CTA and to end it; and to sum what each part of its warps has.
constexpr double kVectorPassUs = 0.923, kPassUs = 0.644, kRowUs = 0.063, kCtaUs = 2.131;
constexpr double kPartUs = 0.047, kStartsUs = 0.91e-3;  // the last: between two CTAs of a grid
constexpr double kClusterUs = 1.198;                    // of the sums of a cluster's splits of K
// Of the SMs, those that clusters of more than two find room on: GPCs are not multiples of four.
constexpr double kClusterSmShare = 0.8832;

constexpr int kMaxCluster = 8;
constexpr int64_t kMaxSplits = 64, kMaxWorkspace = int64_t{1} << 28, kMaxCtas = INT32_MAX;

// Warps that an SM's registers suffice for (benchmarks/kernel_resources.py).
constexpr int warps_of_sm(int block_m) {
  constexpr int kRegistersOfSm = 64 * 1024;
  return kRegistersOfSm / (32 * (block_m == 1 ? 80 : block_m == 2 ? 96 : 128));
}

struct Candidate {
  int block_n, cluster;
  int64_t splits;  // of K: the CTAs of a cluster, where there are several
};

class Model {
 public:
  using Candidate = fp32::Candidate;

  Model(const Params& p, const DeviceInfo& device) : p_(p), device_(device) {}

  // Every compiled number of columns, by every power of two of splits that leaves each some k:
  // those of a cluster, as far as there are clusters of so many.
  template <typename Search>
  void candidates(Search& search) const {
    const int64_t least = least_splits(p_.k);
    const bool clusters = device_.capability == 90 && least == 1;
    const auto consider = [&](const Candidate& c) {
      const Splits splits = splits_of(p_, c.splits, kBlockK);
      if (splits.count < c.splits || (c.cluster > 1 && ctas_of(c) > kMaxCtas)) return;
      if (c.cluster == 1 && c.splits > least && splits.workspace_bytes > kMaxWorkspace) return;
      search.consider(c);
    };
    for (const int block_n : along_k() ? std::span<const int>(kGemvColumnsAlongK) : kGemvColumns) {
      for (int64_t splits = least; splits <= std::max(least, kMaxSplits); splits *= 2) {
        const bool clustered = clusters && splits <= kMaxCluster;
        consider({block_n, clustered ? static_cast<int>(splits) : 1, splits});
      }
    }
  }

  Estimate estimate(const Candidate& c, double) const;

  Choice choice(const Candidate& c) const {
    const bool in_memory = c.cluster == 1;
    return {.config = Config{.block_m = block_m(),
                             .block_n = c.block_n,
                             .stages = 0,
                             .cluster = c.cluster,
                             .splits = static_cast<int>(c.splits),
                             .ctas = static_cast<int>(std::min(ctas_of(c), kMaxCtas))},
            .workspace_bytes = in_memory ? splits_of(p_, c.splits, kBlockK).workspace_bytes : 0};
  }

 private:
  bool along_k() const { return p_.b.access == Access::kAlongK; }
  int block_m() const { return p_.m == 3 ? 4 : static_cast<int>(p_.m); }
  int64_t ctas_of(const Candidate& c) const {
    return ceil_div<int64_t>(p_.n, c.block_n) * p_.batches * c.splits;
  }
  // CTAs that run at once.
  double slots_of(const Candidate& c, int warps) const {
    const double sms = device_.sm_count * (c.cluster > 2 ? kClusterSmShare : 1);
    const int of_sm = std::max(warps_of_sm(block_m()) / warps, 1);
    return std::max(std::floor(sms * of_sm / c.cluster), 1.0) * c.cluster;
  }

  const Params& p_;
  const DeviceInfo& device_;
};

Estimate Model::estimate(const Candidate& c, double) const {
  constexpr int64_t kLine = 32;  // elements
  const auto& gpu = choose::constants_of(device_);
  const auto [k_per_split, splits, workspace] = splits_of(p_, c.splits, kBlockK);
  const int64_t stride = along_k() ? p_.b.row_stride : p_.b.k_stride;
  const double in_line = 1 - static_cast<double>(std::gcd(stride, kLine)) / kLine;
  const int64_t runs_of_row = along_k() ? splits : ceil_div<int64_t>(p_.n, c.block_n);
  const double runs =
      static_cast<double>(along_k() ? p_.n : p_.k) * static_cast<double>(runs_of_row);
  const double bytes = 4.0 * static_cast<double>(p_.k) * static_cast<double>(p_.m + p_.n) +
                       runs * (kRunBytes + kSplitLineBytes * in_line);
  const double bytes_per_us = kMemoryBytesPerUs * gpu.dram_speed;
  const double dram_us = bytes * static_cast<double>(p_.batches) / bytes_per_us;

  const GemvCut cut = gemv_cut(p_, c.block_n, k_per_split, splits);
  const double waves = std::ceil(static_cast<double>(ctas_of(c)) / slots_of(c, cut.warps));
  const double pass_us = (cut.vectors ? kVectorPassUs : kPassUs) + kRowUs * block_m();
  const double starts_us = static_cast<double>(ctas_of(c)) * kStartsUs / gpu.clock_speed;
  const double cta_us = kCtaUs + kPartUs * cut.parts + cut.passes * pass_us;
  const double issue_us = waves * cta_us / gpu.clock_speed;
  const double splits_us = c.splits == 1   ? 0
                           : c.cluster > 1 ? kClusterUs
                                           : reduce_us(splits, workspace, gpu);
  return {.us = kLaunchUs + starts_us + std::hypot(dram_us, issue_us) + splits_us,
          .parts = {.launch = kLaunchUs + starts_us,
                    .dram = dram_us,
                    .issue = issue_us,
                    .exchange = splits_us}};
}

}  // namespace

std::optional<choose::Scored<Choice>> select_gemv(const Params& p, const DeviceInfo& device,
                                                  choose::Listing<Choice>* listing) {
  if (p.m > kMaxGemvRows) return std::nullopt;
  return choose::pick<Choice>(Model(p, device), listing);
}

}  // namespace xgemm::cuda::gemm::fp32
