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
  const auto skinny = sm90::skinny::select(p, device, listing);
  const auto resident = sm90::register_resident::select(p, device, listing);
  const auto wgmma = sm90::wgmma::select(p, device, listing);
  const auto hopper = choose::faster(choose::faster(skinny, resident), wgmma);
  if (hopper) return hopper->choice;
  // On Hopper it was the slowest of all at every size measured.
  const auto sm80 = sm80::select(p, device, listing);
  return sm80 ? std::optional(sm80->choice) : std::nullopt;
}

}  // namespace xgemm::cuda::w4a16
