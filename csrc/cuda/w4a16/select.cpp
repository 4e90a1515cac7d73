// Which kernel a product with a packed weight gets: the one that is estimated to take the least
// time.
#include "cuda/w4a16/select.h"

#include "cuda/w4a16/sm80/select.h"
#include "cuda/w4a16/sm90/register_resident/select.h"
#include "cuda/w4a16/sm90/skinny/select.h"
#include "cuda/w4a16/sm90/wgmma/select.h"

namespace xgemm::cuda::w4a16 {

std::optional<Choice> select_config(const Problem& p, const DeviceInfo& device,
                                    choose::Listing<Choice>* listing) {
  if (p.dtype == DType::kF32) return std::nullopt;
  if (p.m == 0 || p.weight.layout.n == 0)
    return Choice{.config = Nothing{}, .reason = "the result is empty"};
  // Another kernel sums in another order: where bits must not depend on M, one kernel takes all M,
  // and the skinny one takes none.
  const auto skinny = sm90::skinny::select(p, device, listing);
  const auto wgmma = sm90::wgmma::select(p, device, listing);
  // Where estimates tie, the stream is ahead with 8 rows or fewer: behind another product it begins
  // before that has ended. (H200, 12 layers in 5 formats, cold, one product by itself: with the fit
  // before this one 0.3 % over the best of both up to 8 rows, 1 % with more.)
  // In perm's order it took 1.19 times as long where they tied (8 rows, 3 layers); with 2 to 8 rows
  // 45 products take 0.94 of the time.
  const double favour = p.perm == nullptr ? (p.m <= 8 ? 1.04 : 1.0) : (p.m == 1 ? 1.0 : 0.96);
  if (skinny && (!wgmma || skinny->estimate.us <= wgmma->estimate.us * favour)) {
    // Faster still, where it takes the problem.
    if (auto resident = sm90::register_resident::select(p, device)) return resident;
    return skinny->choice;
  }
  if (wgmma) return wgmma->choice;
  // On Hopper it was the slowest of all at every size measured.
  const auto sm80 = sm80::select(p, device, listing);
  return sm80 ? std::optional(sm80->choice) : std::nullopt;
}

}  // namespace xgemm::cuda::w4a16
