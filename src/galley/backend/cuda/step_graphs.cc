// SPDX-License-Identifier: Apache-2.0
#include "galley/backend/cuda/step_graphs.h"

#include <algorithm>

#include "galley/base/log.h"

namespace galley::backend::cuda {

CudaGraphCounts StepGraphs::counts() const {
  CudaGraphCounts counts = counts_;
  counts.on = on_;
  counts.held = static_cast<int>(std::ranges::count_if(entries_, [](const Entry& e) { return e.run != nullptr; }));
  return counts;
}

StepGraphs::Entry* StepGraphs::Find(const StepKey& key) {
  const auto found = std::ranges::find(entries_, key, &Entry::key);
  return found == entries_.end() ? nullptr : &*found;
}

void StepGraphs::Clear() {
  for (Entry& entry : entries_) {
    if (entry.run != nullptr) cudaGraphExecDestroy(entry.run);
    entry.run = nullptr;
  }
}

StepGraphs::Turn StepGraphs::Next(const StepKey& key, std::int64_t scratch) {
  if (!on_) return Turn::kIssue;
  if (scratch != scratch_) Clear();
  scratch_ = scratch;
  if (const Entry* entry = Find(key)) return entry->run != nullptr ? Turn::kReplay : Turn::kRecord;
  entries_.push_back({.key = key, .last_use = ++clock_});
  return Turn::kIssue;
}

cudaError_t StepGraphs::Replay(const StepKey& key, cudaStream_t stream) {
  Entry* entry = Find(key);
  if (entry == nullptr || entry->run == nullptr) return cudaErrorInvalidValue;
  entry->last_use = ++clock_;
  ++counts_.replayed;
  return cudaGraphLaunch(entry->run, stream);
}

cudaError_t StepGraphs::BeginRecording(cudaStream_t stream) {
  return cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed);
}

cudaError_t StepGraphs::EndRecording(const StepKey& key, bool good, cudaStream_t stream) {
  cudaGraph_t graph = nullptr;
  cudaError_t code = cudaStreamEndCapture(stream, &graph);
  cudaGraphExec_t run = nullptr;
  std::size_t before = 0, after = 0, total = 0;
  if (code == cudaSuccess && good) {
    cudaMemGetInfo(&before, &total);
    code = cudaGraphInstantiate(&run, graph, 0);
    if (code == cudaSuccess) code = cudaGraphUpload(run, stream);
    if (code == cudaSuccess) code = cudaStreamSynchronize(stream);
    cudaMemGetInfo(&after, &total);
  }
  if (graph != nullptr) {
    std::size_t nodes = 0;
    if (cudaGraphGetNodes(graph, nullptr, &nodes) == cudaSuccess)
      counts_.nodes_max = std::max(counts_.nodes_max, nodes);
    cudaGraphDestroy(graph);
  }
  Entry* entry = Find(key);
  if (code != cudaSuccess || !good || entry == nullptr) {
    if (run != nullptr) cudaGraphExecDestroy(run);
    cudaGetLastError();
    return code;
  }
  DropOldest(stream);
  entry->run = run;
  ++counts_.recorded;
  counts_.bytes += before > after ? before - after : 0;
  return cudaSuccess;
}

void StepGraphs::DropOldest(cudaStream_t stream) {
  const auto held = std::ranges::count_if(entries_, [](const Entry& e) { return e.run != nullptr; });
  if (held < static_cast<std::ptrdiff_t>(kCudaGraphsMax)) return;
  const auto oldest = std::ranges::min_element(
      entries_, {}, [](const Entry& e) { return e.run != nullptr ? e.last_use : std::int64_t{1} << 62; });
  cudaStreamSynchronize(stream);  // it may still run
  cudaGraphExecDestroy(oldest->run);
  oldest->run = nullptr;
}

void StepGraphs::GiveUp(cudaError_t reason) {
  cudaGetLastError();
  on_ = false;
  Clear();
  log::Warning("decode steps run without CUDA graphs: {} ({}); --cuda-graphs off avoids the attempt",
               cudaGetErrorString(reason), cudaGetErrorName(reason));
}

}  // namespace galley::backend::cuda
