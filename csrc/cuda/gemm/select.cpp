// Which kernel a dense problem gets: the one that is estimated to take the least time.
#include "cuda/gemm/select.h"

#include <algorithm>

#include "common/math.h"
#include "cuda/choose/constants_of.h"
#include "cuda/gemm/align/plan.h"
#include "cuda/gemm/fp32/select.h"
#include "cuda/gemm/gemv/select.h"
#include "cuda/gemm/sm80/select.h"
#include "cuda/gemm/sm90/persistent/select.h"
#include "cuda/gemm/sm90/persistent/shifted.h"
#include "cuda/gemm/sm90/single_tile/select.h"
#include "cuda/gemm/sm90/skinny/select.h"
#include "cuda/gemm/sm90/tma_fit.h"
#include "cuda/gemm/tf32/select.h"

namespace xgemm::cuda::gemm {
namespace {

using choose::Estimate;
using choose::faster;
using choose::Listing;
using choose::Scored;

// Of copying operands so that TMA can read them: 3.5 us on an H200, and what the launches cost the
// host. A product of fewer us than kHostBoundUs waits for the host alone: it is one launch.
constexpr double kCopyLaunchUs = 4.5, kCopyBytesPerUs = 3.8e6, kHostBoundUs = 10.0;

int64_t batch_of(const GemmProblem& p) {
  int64_t batch = 1;
  for (int i = 0; i < p.batch_dims; ++i) batch *= p.batch[i].size;
  return batch;
}

Choice simt_choice(const GemmProblem& p, const DeviceInfo& device, const char* reason) {
  const int64_t tiles =
      ceil_div<int64_t>(p.m, simt::kBlock) * ceil_div<int64_t>(p.n, simt::kBlock) * batch_of(p);
  const int64_t ctas = std::min<int64_t>(tiles, int64_t{device.sm_count} * 64);
  return {.config = simt::Config{.ctas = static_cast<int>(ctas)}, .reason = reason};
}

// Rows or columns of the smaller side from which on tiles are ahead of `sm90 skinny`, whose
// candidates are then not listed (on an H200 ahead in 39 of 40 products of 500 to 640, by 19 %, and
// in 11 of 12 of 280 to 456, by 11 %).
constexpr int64_t kMinForTiles = 264;
// But where D is small and K long: it alone cuts K into four and eight parts (60 products take 0.90
// of the time).
constexpr int64_t kSmallOutput = 160 * 1024, kLongK = 4000;
bool suits_skinny_kernel(const GemmProblem& p) {
  if (std::min(p.m, p.n) < kMinForTiles) return true;
  return p.m * p.n * batch_of(p) <= kSmallOutput && p.k >= kLongK;
}

// The kernels that read by TMA, for a problem that it can read.
std::optional<Scored<Choice>> select_tma(const GemmProblem& p, const DeviceInfo& device,
                                         Listing<Choice>* listing) {
  std::optional<Scored<Choice>> best = sm90::persistent::select(p, device, listing);
  if (suits_skinny_kernel(p)) best = faster(best, sm90::skinny::select(p, device, listing));
  return faster(best, sm90::single_tile::select(p, device, listing));
}

// Whether TMA would read few rows of A (or columns of B) that do not lie along K: for each k a
// piece of a line, and all SMs the same lines at the same time.
bool skinny_across_k(const GemmProblem& p, int64_t extent, bool k_major) {
  return !k_major && align::is_skinny_side(p, extent);
}

// The problem after copies of A, or B, or both.
struct Copied {
  GemmProblem problem;
  align::Copies copies{};

  Copied(const GemmProblem& p, bool copy_a, bool copy_b) : problem(p) {
    if (copy_a) copies.a = align::order_of_a(p);
    if (copy_b) copies.b = align::order_of_b(p);
    copies.bytes = align::read_copies(&problem, copies, nullptr).bytes;
  }

  // The copies come first.
  void add_to(const DeviceInfo& device, Choice* choice, Estimate* estimate) const {
    if (!copies.any()) return;
    choice->copies = copies;
    choice->workspace_bytes += copies.bytes;
    const double bytes_per_us = kCopyBytesPerUs * choose::constants_of(device).dram_speed;
    const double us = kCopyLaunchUs + 2.0 * static_cast<double>(copies.bytes) / bytes_per_us;
    estimate->us += us;
    estimate->parts.copies += us;
  }
};

// The same after copies of the operands that need one, or gain by it.
std::optional<Scored<Choice>> select_copied(const GemmProblem& p, const DeviceInfo& device,
                                            Listing<Choice>* listing) {
  // More dimensions of the batch than a tensor map has may merge in copies.
  const bool many = p.batch_dims > sm90::kMaxTmaBatchDims;
  const bool copy_a = many || !sm90::a_fits_tma(p) || skinny_across_k(p, p.m, sm90::a_k_major(p));
  const bool copy_b = many || !sm90::b_fits_tma(p) || skinny_across_k(p, p.n, sm90::b_k_major(p));
  const Copied copied(p, copy_a, copy_b);
  if (!sm90::extents_fit_tma(copied.problem)) return std::nullopt;
  const size_t first = choose::size_of(listing);
  auto best = select_tma(copied.problem, device, listing);
  choose::adjust(&best, listing, first, [&](Choice& choice, Estimate& estimate) {
    choice.reason = "a copy of what TMA cannot read, or not well, pays";
    copied.add_to(device, &choice, &estimate);
  });
  return best;
}

// As operands lie, or after copies.
std::optional<Scored<Choice>> select_16_bit(const GemmProblem& p, const DeviceInfo& device,
                                            Listing<Choice>* listing) {
  const auto pays = [](const std::optional<Scored<Choice>>& best) {
    return !best || best->estimate.us > kHostBoundUs;
  };
  auto best = gemv::select(p, device, listing);
  const bool hopper = device.capability == 90 && p.k > 0;
  // mma.sync is behind wherever TMA can read.
  if (hopper && sm90::extents_fit_tma(p) && sm90::a_fits_tma(p) && sm90::b_fits_tma(p)) {
    best = faster(best, select_tma(p, device, listing));
    const bool skinny =
        skinny_across_k(p, p.m, sm90::a_k_major(p)) || skinny_across_k(p, p.n, sm90::b_k_major(p));
    if (skinny && pays(best)) best = faster(best, select_copied(p, device, listing));
    return best;
  }
  best = faster(best, sm80::select(p, device, listing));
  if (!hopper || !pays(best)) return best;
  best = faster(best, select_copied(p, device, listing));
  return faster(best, select_shifted(p, device, listing));
}

}  // namespace

Choice select_config(const GemmProblem& p, const DeviceInfo& device, Listing<Choice>* listing) {
  if (p.m == 0 || p.n == 0 || batch_of(p) == 0) {
    return {.config = Nothing{}, .reason = "the result is empty"};
  }
  std::optional<Scored<Choice>> best;
  if (p.dtype == DType::kF32) {
    best = fp32::select(p, device, listing);
    if (p.precision != Precision::kIeee) best = faster(best, tf32::select(p, device, listing));
  } else if (p.alpha != 1.0f || p.beta != 0.0f) {
    return simt_choice(p, device, "alpha is not 1 or beta is not 0");
  } else {
    best = select_16_bit(p, device, listing);
  }
  return best ? best->choice : simt_choice(p, device, "no other kernel takes it");
}

std::optional<Scored<Choice>> select_shifted(const GemmProblem& p, const DeviceInfo& device,
                                             Listing<Choice>* listing) {
  const bool copy_b = !sm90::b_fits_tma(p);
  const Copied copied(p, false, copy_b);
  if (!sm90::extents_fit_tma(copied.problem) || !sm90::persistent::fits_shifted(copied.problem)) {
    return std::nullopt;
  }
  const size_t first = choose::size_of(listing);
  auto best = sm90::persistent::select_shifted(copied.problem, device, listing);
  choose::adjust(&best, listing, first, [&](Choice& choice, Estimate& estimate) {
    choice.reason = "a has rows that TMA can read shifted, and that pays";
    copied.add_to(device, &choice, &estimate);
  });
  return best;
}

}  // namespace xgemm::cuda::gemm
