// How many clusters a GPU runs at once, for the choice; the launch asks the GPU itself.
#pragma once

#include "common/device.h"

namespace xgemm::cuda::w4a16::sm90 {

// Of an H100 or H200, whose SMs lie in groups of 16 or 18, so that the last ones of a group hold no
// cluster of 4 or 8.
inline int most_clusters(const DeviceInfo& device, int cluster) {
  return cluster <= 2 ? device.sm_count / cluster : device.sm_count * 10 / 11 / cluster;
}

}  // namespace xgemm::cuda::w4a16::sm90
