#include "cuda/w4a16/sm90/register_resident/select.h"

#include <cstdint>

#include "common/math.h"
#include "cuda/choose/constants_of.h"
#include "cuda/w4a16/sm90/register_resident/plan.h"

namespace xgemm::cuda::w4a16::sm90::register_resident {
namespace {

using choose::Estimate;

bool aligned_to(const void* data, int bytes) {
  return reinterpret_cast<uintptr_t>(data) % bytes == 0;
}

// To six products of `sweep_w4a16.py run` on an H200.
constexpr double kStartUs = 5.2;        // a launch, and the last sums
constexpr double kSmBytesPerUs = 23e3;  // from memory: an SM

class Model {
 public:
  using Candidate = Plan;

  Model(const Problem& p, const Plan& plan, const DeviceInfo& device)
      : p_(p), plan_(plan), gpu_(choose::constants_of(device)) {}

  template <typename Search>
  void candidates(Search& search) const {
    search.consider(plan_);
  }

  Estimate estimate(const Plan&, double) const {
    const w4::Layout& layout = p_.weight.layout;
    const double intake = static_cast<double>(layout.units() * layout.strip_bytes()) /
                          (kSmBytesPerUs * gpu_.dram_speed);
    return {.us = kStartUs + intake, .parts = {.launch = kStartUs, .intake = intake}};
  }

  static Choice choice(const Plan& plan) {
    return {.config = plan,
            .reason = "one row and a small weight, all of which is asked for at once"};
  }

 private:
  const Problem& p_;
  Plan plan_;
  const choose::DeviceConstants& gpu_;
};

}  // namespace

std::optional<choose::Scored<Choice>> select(const Problem& p, const DeviceInfo& device,
                                             choose::Listing<Choice>* listing) {
  const w4::Layout& layout = p.weight.layout;
  const bool takes_type = p.dtype == DType::kF16 || p.dtype == DType::kBF16;
  if (device.capability != 90 || !takes_type) return std::nullopt;
  // The kernel for any number of rows sums in another order.
  if (p.batch_invariant) return std::nullopt;
  if (p.m != 1 || layout.n == 0 || layout.k == 0 || !is_plain(p)) return std::nullopt;
  if (p.perm != nullptr || p.x_col_stride != 1 || !aligned_to(p.x, 16)) return std::nullopt;
  const int64_t strips = ceil_div<int64_t>(layout.n, w4::kStripColumns);
  const int64_t warps = ceil_div<int64_t>(layout.units(), kUnits);
  if (strips > device.sm_count || warps > kMaxWarps) return std::nullopt;
  return choose::pick<Choice>(Model(p, {static_cast<int>(warps)}, device), listing);
}

}  // namespace xgemm::cuda::w4a16::sm90::register_resident
