// SPDX-License-Identifier: Apache-2.0
// How every kernel of the backend is launched: as a programmatic dependent of the one before it in the stream. A kernel
// starts with ptx::BeginKernel(), or reads nothing but weights before ptx::WaitForPreviousKernel().
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <utility>

namespace galley::backend::cuda {

template <typename... Parameters, typename... Arguments>
void LaunchKernel(void (*kernel)(Parameters...), dim3 grid, unsigned threads, std::size_t shared_bytes,
                  cudaStream_t stream, Arguments&&... arguments) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  // An error stays until cudaGetLastError, which the backend asks after every op.
  cudaLaunchKernelEx(&config, kernel, std::forward<Arguments>(arguments)...);
}

}  // namespace galley::backend::cuda
