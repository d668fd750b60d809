// SPDX-License-Identifier: Apache-2.0
// Kinds of `galley bench`: each is one file with one function, listed in bench.cc.
#pragma once

#include <string_view>

#include "command.h"
#include "galley/model/shapes.h"

namespace galley::app {

struct BenchKind {
  std::string_view name;
  std::string_view summary;
  Result<int> (*run)(Context& context);  // exit code
};

// What is measured on a GPU: single ops, a decode layer, steps over a few layers.
enum class GpuBench { kKernels, kLayers, kSlice };

// bench.cc: the shape that --shape names.
const model::ModelShape& ShapeOf(const options::Values& values);
// bench_layers.cc
Result<int> RunBenchLayers(Context& context);
// Errors: kUnsupported in builds without the CUDA backend.
Result<int> RunBenchOnGpu(Context& context, GpuBench kind);
// bench_cuda.cc, in builds with the CUDA backend.
Result<int> RunBenchCuda(Context& context, GpuBench kind);
// bench_throughput.cc
Result<int> RunBenchThroughput(Context& context);
// bench_verify_plan.cc
Result<int> RunBenchVerifyPlan(Context& context);

}  // namespace galley::app
