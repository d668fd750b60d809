// SPDX-License-Identifier: Apache-2.0
// How every kernel of the backend is launched: as a programmatic dependent of the one before it in the stream. A kernel
// starts with ptx::BeginKernel(), or reads nothing but weights before ptx::WaitForPreviousKernel().
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <utility>

namespace galley::backend::cuda {

// Of the current device: blocks of threads of kernels that stay on one each.
inline int MultiprocessorCount() {
  int device = 0, count = 1;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device);
  return count;
}

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

// The blocks of threads of a z range of `blocks` as one cluster.
inline cudaLaunchAttribute ClusterOf(unsigned blocks) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim.x = 1;
  attribute.val.clusterDim.y = 1;
  attribute.val.clusterDim.z = blocks;
  return attribute;
}

// How many such clusters of a kernel the current device holds at once; 0: none.
template <typename... Parameters>
int ClustersAtOnce(void (*kernel)(Parameters...), unsigned blocks, unsigned threads, std::size_t shared_bytes) {
  cudaLaunchAttribute attribute = ClusterOf(blocks);
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(1, 1, blocks);
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = shared_bytes;
  config.attrs = &attribute;
  config.numAttrs = 1;
  int count = 0;
  return cudaOccupancyMaxActiveClusters(&count, kernel, &config) == cudaSuccess ? count : 0;
}

// LaunchKernel with the blocks of threads of the whole z range as one cluster.
template <typename... Parameters, typename... Arguments>
void LaunchClusters(void (*kernel)(Parameters...), dim3 grid, unsigned threads, std::size_t shared_bytes,
                    cudaStream_t stream, Arguments&&... arguments) {
  cudaLaunchAttribute attributes[2] = {};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1] = ClusterOf(grid.z);
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = 2;
  cudaLaunchKernelEx(&config, kernel, std::forward<Arguments>(arguments)...);
}

}  // namespace galley::backend::cuda
