// SPDX-License-Identifier: Apache-2.0
#include <cuda_runtime_api.h>

#include <algorithm>
#include <vector>

#include "galley/backend/cuda/cuda_backend.h"
#include "galley/backend/cuda/device_memory.h"

namespace galley::backend {

using cuda::DeviceError;

Result<double> MeasureMicroseconds(Backend& backend, const std::function<void()>& issue, int replays) {
  auto* stream = static_cast<cudaStream_t>(StreamOf(backend));
  issue();  // scratch grows and kernels are loaded here
  RETURN_IF_ERROR(backend.Synchronize());
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t run = nullptr;
  cudaEvent_t begin = nullptr, end = nullptr;
  std::vector<float> times(static_cast<std::size_t>(replays));
  const cudaError_t code = [&] {
    cudaError_t error = cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed);
    if (error != cudaSuccess) return error;
    issue();
    error = cudaStreamEndCapture(stream, &graph);
    if (error == cudaSuccess) error = cudaGraphInstantiate(&run, graph, 0);
    if (error == cudaSuccess) error = cudaEventCreate(&begin);
    if (error == cudaSuccess) error = cudaEventCreate(&end);
    for (std::size_t i = 0; i < times.size() + 2 && error == cudaSuccess; ++i) {
      cudaEventRecord(begin, stream);
      cudaGraphLaunch(run, stream);
      cudaEventRecord(end, stream);
      error = cudaStreamSynchronize(stream);
      float ms = 0;
      if (error == cudaSuccess) error = cudaEventElapsedTime(&ms, begin, end);
      if (i >= 2) times[i - 2] = ms;
    }
    return error;
  }();
  if (begin != nullptr) cudaEventDestroy(begin);
  if (end != nullptr) cudaEventDestroy(end);
  if (run != nullptr) cudaGraphExecDestroy(run);
  if (graph != nullptr) cudaGraphDestroy(graph);
  if (code != cudaSuccess) return Err(DeviceError(code, "a measurement"));
  RETURN_IF_ERROR(backend.Synchronize());
  std::sort(times.begin(), times.end());
  return static_cast<double>(times[times.size() / 2]) * 1e3;
}

}  // namespace galley::backend
