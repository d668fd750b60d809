// SPDX-License-Identifier: Apache-2.0
// How the blocks of threads of one grid finish together what each of them made a part of: the last ones to arrive wait
// for the few that are still missing and share the rest of the work. They must be few beside what the device holds at
// once, since they keep their places while others have yet to start.
#pragma once

#include "galley/backend/cuda/kernels.h"
#include "galley/backend/cuda/ptx/arrival.cuh"

namespace galley::backend::cuda {

// Groups of blocks; each has two of the counters.
inline constexpr int kArrivalGroups = kArrivals / 2;

// By all threads of the block, once a launch. Of the group's `blocks` blocks the last `finishers` to arrive get numbers
// from 0 on and may read what the group has written; the others get negative ones. `number`: in shared memory.
__device__ __forceinline__ int ArriveInGroup(std::uint32_t* arrivals, int group, int blocks, int finishers,
                                             int& number) {
  __syncthreads();
  std::uint32_t* counter = arrivals + group * 2;
  if (threadIdx.x == 0) {
    const int before = static_cast<int>(ptx::AddArrival(counter));
    number = before + finishers - blocks;
    if (number >= 0 && before + 1 < blocks) {
      while (ptx::Arrivals(counter) < static_cast<std::uint32_t>(blocks)) {
      }
    }
  }
  __syncthreads();
  // Whoever is the last to have seen all of them clears the counters, beside what the others do meanwhile.
  if (number >= 0 && threadIdx.x + 1 == blockDim.x &&
      ptx::AddCount(counter + 1) + 1 == static_cast<std::uint32_t>(finishers)) {
    counter[0] = counter[1] = 0;
  }
  return number;
}

}  // namespace galley::backend::cuda
