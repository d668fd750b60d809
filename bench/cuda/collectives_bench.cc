// SPDX-License-Identifier: Apache-2.0
#include "collectives_bench.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "galley/backend/cuda/device_memory.h"
#include "galley/comm/nccl.h"

namespace galley::bench {
namespace {

using comm::ElementType;
using comm::Nccl;
using comm::NcclRank;

constexpr std::size_t kSizes[] = {64 << 10, 1 << 20, 64 << 20, 512 << 20};  // bytes a GPU has
constexpr int kRounds = 20;

Status Check(cudaError_t code, const char* what) {
  if (code == cudaSuccess) return {};
  return Err(backend::cuda::DeviceError(code, what));
}

// One GPU's memory and stream, given back at the end.
class Gpu {
 public:
  [[nodiscard]] static Result<Gpu> Make(int device, std::size_t bytes) {
    Gpu gpu(device);
    RETURN_IF_ERROR(Check(cudaSetDevice(device), "choosing a GPU"));
    RETURN_IF_ERROR(Check(cudaMalloc(&gpu.in_, bytes), "memory for a collective"));
    RETURN_IF_ERROR(Check(cudaMalloc(&gpu.out_, bytes), "memory for a collective"));
    RETURN_IF_ERROR(Check(cudaStreamCreate(&gpu.stream_), "a stream"));
    return gpu;
  }
  Gpu(Gpu&& other) noexcept
      : device_(other.device_),
        in_(std::exchange(other.in_, nullptr)),
        out_(std::exchange(other.out_, nullptr)),
        stream_(std::exchange(other.stream_, nullptr)) {}
  Gpu& operator=(Gpu&&) = delete;
  ~Gpu() {
    cudaSetDevice(device_);
    cudaFree(in_);
    cudaFree(out_);
    if (stream_ != nullptr) cudaStreamDestroy(stream_);
  }

  [[nodiscard]] Status Fill(const std::vector<std::int32_t>& values) const {
    RETURN_IF_ERROR(Check(cudaSetDevice(device_), "choosing a GPU"));
    return Check(cudaMemcpy(in_, values.data(), values.size() * 4, cudaMemcpyHostToDevice), "a copy to a GPU");
  }
  [[nodiscard]] Status Read(std::vector<std::int32_t>& values) const {
    RETURN_IF_ERROR(Check(cudaSetDevice(device_), "choosing a GPU"));
    return Check(cudaMemcpy(values.data(), out_, values.size() * 4, cudaMemcpyDeviceToHost), "a copy from a GPU");
  }
  [[nodiscard]] Status Wait() const { return Check(cudaStreamSynchronize(stream_), "a collective"); }
  [[nodiscard]] const void* in() const { return in_; }
  [[nodiscard]] void* out() const { return out_; }
  [[nodiscard]] void* stream() const { return stream_; }

 private:
  explicit Gpu(int device) : device_(device) {}
  int device_;
  void *in_ = nullptr, *out_ = nullptr;
  cudaStream_t stream_ = nullptr;
};

struct Collective {
  const char* name;
  // `count`: 32-bit elements that the GPU has.
  Status (*run)(const NcclRank& rank, const Gpu& gpu, std::size_t count);
  // Element i of `count` that rank `rank` has to get, where rank r has Value(r, i).
  std::int32_t (*expected)(int rank, int ranks, std::size_t i, std::size_t count);
};
std::int32_t Value(int rank, std::size_t i) {
  return static_cast<std::int32_t>(i % 65536) * 8 + rank;
}
constexpr Collective kCollectives[] = {
    {"all-reduce",
     [](const NcclRank& rank, const Gpu& gpu, std::size_t count) {
       return rank.AllReduceSum(gpu.in(), gpu.out(), count, ElementType::kInt32, gpu.stream());
     },
     [](int, int ranks, std::size_t i, std::size_t) { return ranks * Value(0, i) + ranks * (ranks - 1) / 2; }},
    {"all-to-all",
     [](const NcclRank& rank, const Gpu& gpu, std::size_t count) {
       return rank.AllToAll(gpu.in(), gpu.out(), count / static_cast<std::size_t>(rank.size()), ElementType::kInt32,
                            gpu.stream());
     },
     [](int rank, int ranks, std::size_t i, std::size_t count) {
       const std::size_t each = count / static_cast<std::size_t>(ranks);
       return Value(static_cast<int>(i / each), static_cast<std::size_t>(rank) * each + i % each);
     }},
};

Status CheckResult(const Collective& of, const std::vector<Gpu>& gpus, std::size_t count) {
  std::vector<std::int32_t> got(count);
  for (std::size_t r = 0; r < gpus.size(); ++r) {
    RETURN_IF_ERROR(gpus[r].Read(got));
    for (std::size_t i = 0; i < count; ++i) {
      const std::int32_t want = of.expected(static_cast<int>(r), static_cast<int>(gpus.size()), i, count);
      if (got[i] == want) continue;
      return Err(ErrorCode::kInternal, fmt::format("{} of {} elements: rank {} has {} at {} instead of {}", of.name,
                                                   count, r, got[i], i, want));
    }
  }
  return {};
}

}  // namespace

Status RunCollectivesBench(const CudaBenchWrite& write) {
  // Without multicast, which not every host allows; who sets the variable is asked first.
  setenv("NCCL_NVLS_ENABLE", "0", 0);
  int count = 0;
  if (const cudaError_t code = cudaGetDeviceCount(&count); code != cudaSuccess || count == 0) {
    return Err(ErrorCode::kUnsupported,
               fmt::format("collectives need a GPU, and this machine offers none ({}); run this on one that has some",
                           cudaGetErrorString(code)),
               "only");
  }
  ASSIGN_OR_RETURN(const std::shared_ptr<const Nccl> nccl, Nccl::Open());
  std::vector<int> devices(static_cast<std::size_t>(count));
  std::iota(devices.begin(), devices.end(), 0);
  ASSIGN_OR_RETURN(const std::vector<NcclRank> ranks, comm::MakeLocalRanks(nccl, devices));
  std::vector<Gpu> gpus;
  for (const int device : devices) {
    ASSIGN_OR_RETURN(Gpu gpu, Gpu::Make(device, *std::ranges::max_element(kSizes)));
    gpus.push_back(std::move(gpu));
  }
  write(fmt::format("NCCL {}, {} GPU{}; multicast is off unless NCCL_NVLS_ENABLE says otherwise\n\n", nccl->Version(),
                    count, count == 1 ? ", so what it computes is copies on it" : "s"));
  write("| collective | bytes a GPU has | µs | GB/s |\n|---|---:|---:|---:|\n");
  for (const Collective& collective : kCollectives) {
    for (const std::size_t bytes : kSizes) {
      // As many elements as every rank can have an equal part of.
      const std::size_t size = ranks.size(), elements = bytes / 4 / size * size;
      for (std::size_t r = 0; r < size; ++r) {
        std::vector<std::int32_t> values(elements);
        for (std::size_t i = 0; i < elements; ++i) values[i] = Value(static_cast<int>(r), i);
        RETURN_IF_ERROR(gpus[r].Fill(values));
      }
      const auto every_rank = [&]() -> Status {
        for (std::size_t r = 0; r < size; ++r) RETURN_IF_ERROR(collective.run(ranks[r], gpus[r], elements));
        return {};
      };
      const auto run = [&](int rounds) -> Status {
        for (int round = 0; round < rounds; ++round) RETURN_IF_ERROR(nccl->Together(every_rank));
        for (const Gpu& gpu : gpus) RETURN_IF_ERROR(gpu.Wait());
        return {};
      };
      RETURN_IF_ERROR(run(3));
      RETURN_IF_ERROR(CheckResult(collective, gpus, elements));
      const auto begin = std::chrono::steady_clock::now();
      RETURN_IF_ERROR(run(kRounds));
      const double us =
          std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count() / kRounds;
      write(fmt::format("| {} | {} | {:.1f} | {:.1f} |\n", collective.name, elements * 4, us,
                        static_cast<double>(elements * 4) / us / 1e3));
    }
  }
  return {};
}

}  // namespace galley::bench
