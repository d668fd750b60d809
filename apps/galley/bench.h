// SPDX-License-Identifier: Apache-2.0
// Kinds of `galley bench`: each is one file with one function, listed in bench.cc.
#pragma once

#include <string_view>

#include "command.h"

namespace galley::app {

struct BenchKind {
  std::string_view name;
  std::string_view summary;
  Result<int> (*run)(Context& context);  // exit code
};

// bench_layers.cc
Result<int> RunBenchLayers(Context& context);
Result<int> RunBenchKernels(Context& context);
// bench_cuda.cc, in builds with the CUDA backend. `layers`: a decode layer only.
Result<int> RunBenchCuda(Context& context, bool layers);
// bench_throughput.cc
Result<int> RunBenchThroughput(Context& context);
// bench_verify_plan.cc
Result<int> RunBenchVerifyPlan(Context& context);

}  // namespace galley::app
