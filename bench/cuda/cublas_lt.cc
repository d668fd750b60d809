// SPDX-License-Identifier: Apache-2.0
#include "cublas_lt.h"

#include <cublasLt.h>
#include <dlfcn.h>

#include <type_traits>

namespace galley::bench {

struct CublasLt::Functions {
  decltype(&cublasLtCreate) create = nullptr;
  decltype(&cublasLtDestroy) destroy = nullptr;
  decltype(&cublasLtMatmul) matmul = nullptr;
  decltype(&cublasLtMatmulAlgoGetHeuristic) heuristic = nullptr;
  decltype(&cublasLtMatmulDescCreate) make_desc = nullptr;
  decltype(&cublasLtMatmulDescSetAttribute) set_desc = nullptr;
  decltype(&cublasLtMatrixLayoutCreate) make_layout = nullptr;
  decltype(&cublasLtMatmulPreferenceCreate) make_preference = nullptr;
  decltype(&cublasLtMatmulPreferenceSetAttribute) set_preference = nullptr;
};

struct CublasLt::Plan {
  cublasLtMatmulDesc_t desc = nullptr;
  cublasLtMatrixLayout_t w = nullptr, x = nullptr, y = nullptr;
  cublasLtMatmulHeuristicResult_t chosen = {};
  bool usable = false;
};

CublasLt::CublasLt() {
  for (const char* name : {"libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so"}) {
    library_ = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (library_ != nullptr) break;
  }
  description_ = "cuBLASLt is not on this machine (put its folder into LD_LIBRARY_PATH)";
  if (library_ == nullptr) return;
  functions_ = new Functions;
  bool all = true;
  const auto find = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library_, name));
    all = all && function != nullptr;
  };
  find(functions_->create, "cublasLtCreate");
  find(functions_->destroy, "cublasLtDestroy");
  find(functions_->matmul, "cublasLtMatmul");
  find(functions_->heuristic, "cublasLtMatmulAlgoGetHeuristic");
  find(functions_->make_desc, "cublasLtMatmulDescCreate");
  find(functions_->set_desc, "cublasLtMatmulDescSetAttribute");
  find(functions_->make_layout, "cublasLtMatrixLayoutCreate");
  find(functions_->make_preference, "cublasLtMatmulPreferenceCreate");
  find(functions_->set_preference, "cublasLtMatmulPreferenceSetAttribute");
  cublasLtHandle_t handle = nullptr;
  if (!all || functions_->create(&handle) != CUBLAS_STATUS_SUCCESS) {
    description_ = "cuBLASLt is there but cannot be used";
    return;
  }
  handle_ = handle;
  description_ = "cuBLASLt bf16 products as the peer";
}

CublasLt::~CublasLt() {
  // Descriptors are small and the process ends with the benchmark.
  if (handle_ != nullptr) functions_->destroy(static_cast<cublasLtHandle_t>(handle_));
  for (const auto& [shape, plan] : plans_) delete plan;
  delete functions_;
}

CublasLt::Plan* CublasLt::FindPlan(std::int64_t rows, std::int64_t cols, std::int64_t x_rows) {
  Plan*& plan = plans_[{rows, cols, x_rows}];
  if (plan != nullptr) return plan;
  plan = new Plan;
  const auto good = [](cublasStatus_t status) { return status == CUBLAS_STATUS_SUCCESS; };
  const cublasOperation_t transposed = CUBLAS_OP_T;
  const std::size_t workspace = kCublasWorkspace;
  cublasLtMatmulPreference_t preference = nullptr;
  int found = 0;
  // In the library's column order: y [rows][x_rows] = w^T [cols][rows] times x [cols][x_rows].
  const auto u = [](std::int64_t n) { return static_cast<std::uint64_t>(n); };
  plan->usable = good(functions_->make_desc(&plan->desc, CUBLAS_COMPUTE_32F, CUDA_R_32F)) &&
                 good(functions_->set_desc(plan->desc, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof(transposed))) &&
                 good(functions_->make_layout(&plan->w, CUDA_R_16BF, u(cols), u(rows), cols)) &&
                 good(functions_->make_layout(&plan->x, CUDA_R_16BF, u(cols), u(x_rows), cols)) &&
                 good(functions_->make_layout(&plan->y, CUDA_R_16BF, u(rows), u(x_rows), rows)) &&
                 good(functions_->make_preference(&preference)) &&
                 good(functions_->set_preference(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace,
                                                 sizeof(workspace))) &&
                 good(functions_->heuristic(static_cast<cublasLtHandle_t>(handle_), plan->desc, plan->w, plan->x,
                                            plan->y, plan->y, preference, 1, &plan->chosen, &found)) &&
                 found == 1;
  return plan;
}

bool CublasLt::Product(std::int64_t rows, std::int64_t cols, std::int64_t x_rows, const void* w, const void* x, void* y,
                       void* work, void* stream) {
  const Plan* plan = FindPlan(rows, cols, x_rows);
  if (!plan->usable) return false;
  const float one = 1, zero = 0;
  return functions_->matmul(static_cast<cublasLtHandle_t>(handle_), plan->desc, &one, w, plan->w, x, plan->x, &zero, y,
                            plan->y, y, plan->y, &plan->chosen.algo, work, kCublasWorkspace,
                            static_cast<cudaStream_t>(stream)) == CUBLAS_STATUS_SUCCESS;
}

}  // namespace galley::bench
