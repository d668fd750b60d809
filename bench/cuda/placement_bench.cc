// SPDX-License-Identifier: Apache-2.0
#include "placement_bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <random>
#include <vector>

#include "galley/backend/cuda/cuda_backend.h"

namespace galley::bench {
namespace {

using backend::Backend;
using backend::ExpertWeights;
using backend::Weight;
using backend::WeightFormat;

constexpr int kDim = 5120, kInter = 2304, kTopk = 6;
constexpr int kExperts = 96;  // a quarter of a layer's: 1.8 GB, far more than any cache
constexpr std::size_t kValues = std::size_t{kDim} * kInter;
constexpr double kExpertBytes = 3.0 * kValues * (0.5 + 1.0 / 32);

double Seconds(std::chrono::steady_clock::time_point since) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - since).count();
}

// Random codes and scales of one matrix, which all are copies of.
struct Natural {
  Natural() : codes(kValues / 2), scales(kValues / 32) {
    std::mt19937 random(1);
    for (std::byte& b : codes) b = static_cast<std::byte>(random() & 255);
    for (std::byte& b : scales) b = static_cast<std::byte>(118 + random() % 3);
  }
  std::vector<std::byte> codes, scales;
};

Result<Weight> Upload(Backend& backend, const Natural& natural, std::int64_t rows, std::int64_t cols) {
  const TensorView codes{DType::kI8, {rows, cols / 2}, natural.codes.data()};
  const TensorView scales{DType::kE8M0, {rows, cols / 32}, natural.scales.data()};
  Weight weight{.format = WeightFormat::kMxfp4, .rows = rows, .cols = cols};
  ASSIGN_OR_RETURN(weight.data, backend.UploadMatrix(codes, backend::MatrixUse::kChosen));
  ASSIGN_OR_RETURN(const void* placed, backend.UploadScales(scales, codes, backend::MatrixUse::kChosen));
  weight.scales = static_cast<const std::uint8_t*>(placed);
  return weight;
}

Result<std::vector<ExpertWeights>> UploadExperts(Backend& backend) {
  const Natural natural;
  std::vector<ExpertWeights> experts(kExperts);
  for (ExpertWeights& e : experts) {
    ASSIGN_OR_RETURN(e.w1, Upload(backend, natural, kInter, kDim));
    ASSIGN_OR_RETURN(e.w2, Upload(backend, natural, kDim, kInter));
    ASSIGN_OR_RETURN(e.w3, Upload(backend, natural, kInter, kDim));
  }
  RETURN_IF_ERROR(backend.Synchronize());
  return experts;
}

// Device memory of a call of `rows` rows.
struct Call {
  static Result<Call> Make(Backend& backend, int rows) {
    const auto t = static_cast<std::size_t>(rows);
    Call call;
    const auto take = [&](std::size_t bytes) -> Result<std::byte*> {
      ASSIGN_OR_RETURN(backend::Buffer buffer, backend.Allocate(bytes, "benchmark"));
      return call.buffers.emplace_back(std::move(buffer)).data();
    };
    ASSIGN_OR_RETURN(std::byte * x, take(t * kDim * 2));
    ASSIGN_OR_RETURN(std::byte * y, take(t * kDim * 2));
    ASSIGN_OR_RETURN(std::byte * weights, take(t * kTopk * 4));
    ASSIGN_OR_RETURN(std::byte * chosen, take(t * kTopk * 4));
    ASSIGN_OR_RETURN(std::byte * codes, take(kValues));
    ASSIGN_OR_RETURN(std::byte * scales, take(kValues / 1024));
    const Weight up{.format = WeightFormat::kFp8Block32,
                    .rows = kInter,
                    .cols = kDim,
                    .data = codes,
                    .scales = reinterpret_cast<const std::uint8_t*>(scales)};
    Weight down = up;
    std::swap(down.rows, down.cols);
    call.args = {.rows = rows,
                 .x = reinterpret_cast<const BFloat16*>(x),
                 .experts = reinterpret_cast<const std::int32_t*>(chosen),
                 .weights = reinterpret_cast<const float*>(weights),
                 .topk = kTopk,
                 .expert_count = kExperts,
                 .shared = {.w1 = up, .w2 = down, .w3 = up},
                 .swiglu_limit = 10,
                 .y = reinterpret_cast<BFloat16*>(y)};
    return call;
  }
  // Every row chooses `kTopk` of experts [0, among); returns how many are chosen by some.
  [[nodiscard]] Result<int> Choose(Backend& backend, int among) {
    std::mt19937 random(7);
    std::vector<std::int32_t> all, ids(static_cast<std::size_t>(among));
    for (int e = 0; e < among; ++e) ids[static_cast<std::size_t>(e)] = e;
    for (int t = 0; t < args.rows; ++t) {
      std::ranges::shuffle(ids, random);
      all.insert(all.end(), ids.begin(), ids.begin() + kTopk);
    }
    RETURN_IF_ERROR(backend.CopyToDevice(const_cast<std::int32_t*>(args.experts), all.data(), all.size() * 4));
    RETURN_IF_ERROR(backend.Synchronize());
    std::ranges::sort(all);
    return static_cast<int>(std::ranges::unique(all).begin() - all.begin());
  }

  std::vector<backend::Buffer> buffers;
  backend::MoeArgs args;
};

void Line(const CudaBenchWrite& write, std::string_view what, double bytes, double seconds, double floor) {
  write(fmt::format("| {:<58} | {:>8.2f} | {:>9.1f} | {:>6.1f} | {:>5.2f} |\n", what, bytes / 1e9, seconds * 1e6,
                    bytes / seconds / 1e9, bytes / floor / seconds));
}

// Moe that reads experts where they are. Returns the rate of a plain copy.
Result<double> BenchReading(const CudaBenchWrite& write) {
  ASSIGN_OR_RETURN(const auto backend, backend::MakeCudaBackend({.experts_at = backend::WeightPlace::kHost}));
  const auto begin = std::chrono::steady_clock::now();
  ASSIGN_OR_RETURN(const std::vector<ExpertWeights> experts, UploadExperts(*backend));
  const double upload = Seconds(begin);
  const std::size_t bytes = std::size_t{64} << 20;  // within one piece of pinned memory
  ASSIGN_OR_RETURN(backend::Buffer to, backend->Allocate(bytes, "benchmark"));
  ASSIGN_OR_RETURN(const double copy,
                   backend::MeasureMicroseconds(
                       *backend, [&] { (void)backend->CopyToDevice(to.data(), experts[0].w1.data, bytes); }, 10));
  const double rate = static_cast<double>(bytes) / copy * 1e6;
  Line(write, "experts pinned and arranged", kExperts * kExpertBytes, upload, rate);
  Line(write, "plain copy of 64 MiB of them to the device", static_cast<double>(bytes), copy * 1e-6, rate);
  for (const int rows : {1, 4, 16, 64, 256, 1024}) {
    ASSIGN_OR_RETURN(Call call, Call::Make(*backend, rows));
    ASSIGN_OR_RETURN(const int touched, call.Choose(*backend, kExperts));
    call.args.routed = experts.data();
    ASSIGN_OR_RETURN(const double us, backend::MeasureMicroseconds(
                                          *backend, [&] { backend->Moe(call.args); }, rows > 64 ? 2 : 5));
    Line(write, fmt::format("Moe of {} rows reads {} experts over PCIe", rows, touched), touched * kExpertBytes,
         us * 1e-6, rate);
  }
  return rate;
}

// Moe that copies what was chosen: of every call other experts, so that all of them are copied.
Status BenchCopying(const CudaBenchWrite& write, double rate) {
  ASSIGN_OR_RETURN(const auto backend,
                   backend::MakeCudaBackend({.experts_at = backend::WeightPlace::kHost, .expert_cache = 1}));
  ASSIGN_OR_RETURN(const std::vector<ExpertWeights> experts, UploadExperts(*backend));
  constexpr int kAmong = 16;
  for (const int rows : {1, 16, 256}) {
    ASSIGN_OR_RETURN(Call call, Call::Make(*backend, rows));
    ASSIGN_OR_RETURN(const int touched, call.Choose(*backend, kAmong));
    call.args.expert_count = kAmong;
    const auto run = [&](int calls, bool same) -> Result<double> {
      const auto begin = std::chrono::steady_clock::now();
      for (int i = 0; i < calls; ++i) {
        call.args.routed = experts.data() + (same ? 0 : i * kAmong % kExperts);
        backend->Moe(call.args);
      }
      RETURN_IF_ERROR(backend->Synchronize());
      return Seconds(begin) / calls;
    };
    RETURN_IF_ERROR(run(6, false));
    ASSIGN_OR_RETURN(const double copied, run(24, false));
    RETURN_IF_ERROR(run(1, true));
    ASSIGN_OR_RETURN(const double held, run(24, true));
    Line(write, fmt::format("Moe of {} rows copies {} experts first", rows, touched), touched * kExpertBytes, copied,
         rate);
    Line(write, fmt::format("Moe of {} rows, {} experts on the device already", rows, touched), touched * kExpertBytes,
         held, rate);
  }
  return {};
}

}  // namespace

Status RunPlacementBench(const CudaBenchWrite& write) {
  write("Experts in main memory; the last column is the part of the rate of a plain copy\n");
  write(fmt::format("| {:<58} | {:>8} | {:>9} | {:>6} | {:>5} |\n", "", "GB", "us", "GB/s", "part"));
  ASSIGN_OR_RETURN(const double rate, BenchReading(write));
  return BenchCopying(write, rate);
}

}  // namespace galley::bench
