// SPDX-License-Identifier: Apache-2.0
// `galley bench kernels` and `galley bench layers --backend cuda`, in builds with the CUDA backend.
#include "bench.h"
#include "cuda_bench.h"

namespace galley::app {

Result<int> RunBenchCuda(Context& context, bool layers) {
  const options::Values& values = context.values;
  if (values.String("shape") != "v41") {
    return Err(ErrorCode::kUnsupported, "the cuda backend is measured at the shape v41 only", "shape");
  }
  bench::CudaBenchOptions options{.only = values.List("only")};
  if (layers) options.only = {"layer"};
  options.prefill = static_cast<int>(values.Int("prefill-rows"));
  RETURN_IF_ERROR(bench::RunCudaBench(options, [&](const std::string& text) { context.terminal.Write(text); }));
  return kExitOk;
}

}  // namespace galley::app
