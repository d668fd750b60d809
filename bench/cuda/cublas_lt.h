// SPDX-License-Identifier: Apache-2.0
// The vendor's matrix products, opened at run time for comparison in benchmarks: bf16, fp32 sums. Absent is fine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <tuple>

namespace galley::bench {

inline constexpr std::size_t kCublasWorkspace = std::size_t{32} << 20;

class CublasLt {
 public:
  CublasLt();
  ~CublasLt();
  CublasLt(const CublasLt&) = delete;
  CublasLt& operator=(const CublasLt&) = delete;

  [[nodiscard]] bool usable() const { return handle_ != nullptr; }
  // What was found, for the report.
  [[nodiscard]] const std::string& description() const { return description_; }
  // y[t][r] = sum over k of w[r][k] x[t][k]; device addresses, `work` of kCublasWorkspace bytes, a cudaStream_t. False:
  // the library refuses.
  [[nodiscard]] bool Product(std::int64_t rows, std::int64_t cols, std::int64_t x_rows, const void* w, const void* x,
                             void* y, void* work, void* stream);

 private:
  struct Functions;
  struct Plan;
  [[nodiscard]] Plan* FindPlan(std::int64_t rows, std::int64_t cols, std::int64_t x_rows);

  void* library_ = nullptr;
  Functions* functions_ = nullptr;
  void* handle_ = nullptr;
  std::string description_;
  std::map<std::tuple<std::int64_t, std::int64_t, std::int64_t>, Plan*> plans_;
};

}  // namespace galley::bench
