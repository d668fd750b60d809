// SPDX-License-Identifier: Apache-2.0
// `galley bench kernels`, `layers` and `slice` with `--backend cuda`, in builds with the CUDA backend.
#include "bench.h"
#include "cuda_bench.h"
#include "slice_bench.h"

namespace galley::app {

Result<int> RunBenchCuda(Context& context, GpuBench kind) {
  const options::Values& values = context.values;
  const model::ModelShape& shape = ShapeOf(values);
  const auto write = [&](const std::string& text) { context.terminal.Write(text); };
  const int prefill = static_cast<int>(values.Int("prefill-rows"));
  if (kind == GpuBench::kSlice) {
    if (prefill == 0)
      return Err(ErrorCode::kInvalidArgument, "a slice needs rows to begin with; give some", "prefill-rows");
    RETURN_IF_ERROR(bench::RunSliceBench(
        {.shape = shape, .layers = static_cast<int>(values.Int("layers")), .context = prefill}, write));
    return kExitOk;
  }
  bench::CudaBenchOptions options{.shape = shape, .only = values.List("only"), .prefill = prefill};
  if (kind == GpuBench::kLayers) {
    if (!options.only.empty()) {
      return Err(ErrorCode::kInvalidArgument, "layers on a GPU have no parts; leave it out, or measure kernels",
                 "only");
    }
    options.only = {"layer"};
  }
  RETURN_IF_ERROR(bench::RunCudaBench(options, write));
  return kExitOk;
}

}  // namespace galley::app
