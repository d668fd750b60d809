// SPDX-License-Identifier: Apache-2.0
#include "placement_bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <memory>
#include <random>
#include <span>
#include <system_error>
#include <utility>
#include <vector>

#include "galley/backend/cuda/cuda_backend.h"
#include "galley/backend/expert_store.h"
#include "galley/io/mapped_file.h"
#include "galley/io/weight_loader.h"

namespace galley::bench {
namespace {

using backend::Backend;
using backend::ExpertWeights;
using backend::Weight;
using backend::WeightFormat;

constexpr int kDim = 5120, kInter = 2304, kTopk = 6;
constexpr int kExperts = 96;  // a quarter of a layer's: 1.8 GB, far more than any cache
constexpr std::size_t kValues = std::size_t{kDim} * kInter;
constexpr std::size_t kMatrixBytes = kValues / 2 + kValues / 32;
constexpr double kExpertBytes = 3.0 * kMatrixBytes;
constexpr int kAmong = 16;  // experts of a call that has them brought

double Seconds(std::chrono::steady_clock::time_point since) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - since).count();
}

// Random codes and scales of one matrix, which all are copies of: codes, then scales.
std::vector<std::byte> RandomMatrix() {
  std::vector<std::byte> bytes(kMatrixBytes);
  std::mt19937 random(1);
  for (std::size_t i = 0; i < bytes.size(); ++i)
    bytes[i] = static_cast<std::byte>(i < kValues / 2 ? random() & 255 : 118 + random() % 3);
  return bytes;
}

Result<Weight> Upload(Backend& backend, const std::byte* natural, std::int64_t rows, std::int64_t cols) {
  const TensorView codes{DType::kI8, {rows, cols / 2}, natural};
  const TensorView scales{DType::kE8M0, {rows, cols / 32}, natural + kValues / 2};
  Weight weight{.format = WeightFormat::kMxfp4, .rows = rows, .cols = cols};
  ASSIGN_OR_RETURN(weight.data, backend.UploadMatrix(codes, backend::MatrixUse::kChosen));
  ASSIGN_OR_RETURN(const void* placed, backend.UploadScales(scales, codes, backend::MatrixUse::kChosen));
  weight.scales = static_cast<const std::uint8_t*>(placed);
  return weight;
}

// `matrix(i)`: matrix number i of all.
template <typename Matrix>
Result<std::vector<ExpertWeights>> UploadExperts(Backend& backend, const Matrix& matrix) {
  std::vector<ExpertWeights> experts(kExperts);
  std::size_t i = 0;
  for (ExpertWeights& e : experts) {
    ASSIGN_OR_RETURN(e.w1, Upload(backend, matrix(i++), kInter, kDim));
    ASSIGN_OR_RETURN(e.w2, Upload(backend, matrix(i++), kDim, kInter));
    ASSIGN_OR_RETURN(e.w3, Upload(backend, matrix(i++), kInter, kDim));
  }
  RETURN_IF_ERROR(backend.FinishUploads());
  RETURN_IF_ERROR(backend.Synchronize());
  return experts;
}

Result<std::byte*> Take(Backend& backend, std::vector<backend::Buffer>& buffers, std::size_t bytes) {
  ASSIGN_OR_RETURN(backend::Buffer buffer, backend.Allocate(bytes, "benchmark"));
  return buffers.emplace_back(std::move(buffer)).data();
}

// The shared expert, one for all calls on a backend.
struct Shared {
  static Result<Shared> Make(Backend& backend) {
    Shared shared;
    ASSIGN_OR_RETURN(const std::byte* codes, Take(backend, shared.buffers, kValues));
    ASSIGN_OR_RETURN(const std::byte* scales, Take(backend, shared.buffers, kValues / 1024));
    const Weight up{.format = WeightFormat::kFp8Block32,
                    .rows = kInter,
                    .cols = kDim,
                    .data = codes,
                    .scales = reinterpret_cast<const std::uint8_t*>(scales)};
    Weight down = up;
    std::swap(down.rows, down.cols);
    shared.weights = {.w1 = up, .w2 = down, .w3 = up};
    return shared;
  }
  std::vector<backend::Buffer> buffers;
  ExpertWeights weights;
};

// Device memory of a call of `rows` rows.
struct Call {
  static Result<Call> Make(Backend& backend, const Shared& shared, int rows) {
    const auto t = static_cast<std::size_t>(rows);
    Call call;
    ASSIGN_OR_RETURN(std::byte * x, Take(backend, call.buffers, t * kDim * 2));
    ASSIGN_OR_RETURN(std::byte * y, Take(backend, call.buffers, t * kDim * 2));
    ASSIGN_OR_RETURN(std::byte * weights, Take(backend, call.buffers, t * kTopk * 4));
    ASSIGN_OR_RETURN(std::byte * chosen, Take(backend, call.buffers, t * kTopk * 4));
    call.args = {.rows = rows,
                 .x = reinterpret_cast<const BFloat16*>(x),
                 .experts = reinterpret_cast<const std::int32_t*>(chosen),
                 .weights = reinterpret_cast<const float*>(weights),
                 .topk = kTopk,
                 .expert_count = kExperts,
                 .shared = shared.weights,
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

// Of a file that is not needed any more.
struct Remover {
  ~Remover() {
    std::error_code ignored;
    std::filesystem::remove(path, ignored);
  }
  std::filesystem::path path;
};

void Line(const CudaBenchWrite& write, std::string_view what, double bytes, double seconds, double floor) {
  write(fmt::format("| {:<58} | {:>8.2f} | {:>9.1f} | {:>6.1f} | {:>5.2f} |\n", what, bytes / 1e9, seconds * 1e6,
                    bytes / seconds / 1e9, bytes / floor / seconds));
}

// Moe that reads experts where they are. Returns the rate of a plain copy.
Result<double> BenchReading(const CudaBenchWrite& write) {
  ASSIGN_OR_RETURN(const auto backend, backend::MakeCudaBackend({.experts_at = backend::WeightPlace::kHost}));
  const std::vector<std::byte> matrix = RandomMatrix();
  const auto begin = std::chrono::steady_clock::now();
  ASSIGN_OR_RETURN(const std::vector<ExpertWeights> experts,
                   UploadExperts(*backend, [&](std::size_t) { return matrix.data(); }));
  const double upload = Seconds(begin);
  const std::size_t bytes = std::size_t{64} << 20;  // within one piece of pinned memory
  ASSIGN_OR_RETURN(backend::Buffer to, backend->Allocate(bytes, "benchmark"));
  ASSIGN_OR_RETURN(const double copy,
                   backend::MeasureMicroseconds(
                       *backend, [&] { (void)backend->CopyToDevice(to.data(), experts[0].w1.data, bytes); }, 10));
  const double rate = static_cast<double>(bytes) / copy * 1e6;
  Line(write, "experts pinned and arranged", kExperts * kExpertBytes, upload, rate);
  Line(write, "plain copy of 64 MiB of them to the device", static_cast<double>(bytes), copy * 1e-6, rate);
  ASSIGN_OR_RETURN(const Shared shared, Shared::Make(*backend));
  for (const int rows : {1, 4, 16, 64, 256, 1024}) {
    ASSIGN_OR_RETURN(Call call, Call::Make(*backend, shared, rows));
    ASSIGN_OR_RETURN(const int touched, call.Choose(*backend, kExperts));
    call.args.routed = experts.data();
    ASSIGN_OR_RETURN(const double us, backend::MeasureMicroseconds(
                                          *backend, [&] { backend->Moe(call.args); }, rows > 64 ? 2 : 5));
    Line(write, fmt::format("Moe of {} rows reads {} experts over PCIe", rows, touched), touched * kExpertBytes,
         us * 1e-6, rate);
  }
  return rate;
}

// Seconds a call that takes the next kAmong experts, or always the same ones.
Result<double> TimeCalls(Backend& backend, Call& call, const std::vector<ExpertWeights>& experts, int calls,
                         bool same) {
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < calls; ++i) {
    call.args.routed = experts.data() + (same ? 0 : i * kAmong % kExperts);
    backend.Moe(call.args);
  }
  RETURN_IF_ERROR(backend.Synchronize());
  return Seconds(begin) / calls;
}

// Moe that copies what was chosen: of every call other experts, so that all of them are copied.
Status BenchCopying(const CudaBenchWrite& write, double rate) {
  ASSIGN_OR_RETURN(const auto backend,
                   backend::MakeCudaBackend({.experts_at = backend::WeightPlace::kHost, .expert_cache = 1}));
  const std::vector<std::byte> matrix = RandomMatrix();
  ASSIGN_OR_RETURN(const std::vector<ExpertWeights> experts,
                   UploadExperts(*backend, [&](std::size_t) { return matrix.data(); }));
  ASSIGN_OR_RETURN(const Shared shared, Shared::Make(*backend));
  for (const int rows : {1, 16, 256}) {
    ASSIGN_OR_RETURN(Call call, Call::Make(*backend, shared, rows));
    ASSIGN_OR_RETURN(const int touched, call.Choose(*backend, kAmong));
    call.args.expert_count = kAmong;
    RETURN_IF_ERROR(TimeCalls(*backend, call, experts, 6, false));
    ASSIGN_OR_RETURN(const double copied, TimeCalls(*backend, call, experts, 24, false));
    RETURN_IF_ERROR(TimeCalls(*backend, call, experts, 1, true));
    ASSIGN_OR_RETURN(const double held, TimeCalls(*backend, call, experts, 24, true));
    Line(write, fmt::format("Moe of {} rows copies {} experts first", rows, touched), touched * kExpertBytes, copied,
         rate);
    Line(write, fmt::format("Moe of {} rows, {} experts on the device already", rows, touched), touched * kExpertBytes,
         held, rate);
  }
  return {};
}

// Moe whose experts are read from a file first, against plain reads of the file.
Status BenchDisk(const CudaBenchWrite& write) {
  const std::filesystem::path path = std::filesystem::temp_directory_path() / "galley_placement_bench";
  const std::vector<std::byte> matrix = RandomMatrix();
  {
    std::ofstream file(path, std::ios::binary);
    for (int i = 0; i < 3 * kExperts; ++i)
      file.write(reinterpret_cast<const char*>(matrix.data()), static_cast<std::streamsize>(matrix.size()));
    if (!file.flush()) return Err(ErrorCode::kIo, "cannot be written", path.string());
  }
  const Remover remover{path};
  ASSIGN_OR_RETURN(const io::MappedFile mapped, io::MappedFile::Open(path));
  const io::WeightFile file{mapped.bytes(), path};
  const double bytes = kExperts * kExpertBytes;
  const auto matrix_of = [&](std::size_t i) { return mapped.bytes().data() + i * kMatrixBytes; };

  std::vector<std::byte> copy(mapped.bytes().size());
  std::byte* const place = copy.data();
  double plain = 0;
  for (int round = 0; round < 2; ++round) {  // the first finds what the system has not written yet
    io::WantedWeights wanted;
    wanted.UseFiles({&file, 1}, {});
    if (!wanted.Add(mapped.bytes().data(), copy.size(), 1)) return Err(ErrorCode::kIo, "is empty", path.string());
    const auto begin = std::chrono::steady_clock::now();
    RETURN_IF_ERROR(
        wanted.Load({}, [&](std::size_t buffers, std::size_t each) -> Result<std::unique_ptr<io::WeightSink>> {
          return std::unique_ptr<io::WeightSink>(std::make_unique<io::MemorySink>(std::span(&place, 1), buffers, each));
        }));
    plain = Seconds(begin);
  }
  Line(write, "experts read from disk into main memory", bytes, plain, bytes / plain);

  // A store of two calls' experts, so that each is read for each call.
  const std::size_t store = 2 * kAmong * backend::ExpertRoom(static_cast<std::size_t>(kExpertBytes));
  ASSIGN_OR_RETURN(const auto backend,
                   backend::MakeCudaBackend({.experts_at = backend::WeightPlace::kDisk, .expert_memory = store}));
  backend->UseFiles({&file, 1}, {});
  ASSIGN_OR_RETURN(const std::vector<ExpertWeights> experts, UploadExperts(*backend, matrix_of));
  ASSIGN_OR_RETURN(const Shared shared, Shared::Make(*backend));
  ASSIGN_OR_RETURN(Call call, Call::Make(*backend, shared, 64));
  ASSIGN_OR_RETURN(const int touched, call.Choose(*backend, kAmong));
  call.args.expert_count = kAmong;
  RETURN_IF_ERROR(TimeCalls(*backend, call, experts, kExperts / kAmong, false));  // the store's memory is pinned here
  ASSIGN_OR_RETURN(const double seconds, TimeCalls(*backend, call, experts, kExperts / kAmong, false));
  Line(write, fmt::format("Moe of 64 rows reads {} experts from disk", touched), touched * kExpertBytes, seconds,
       bytes / plain);
  return {};
}

}  // namespace

Status RunPlacementBench(const CudaBenchWrite& write) {
  write("Experts that lie elsewhere; the last column is the part of the rate of a plain copy, or of plain reads\n");
  write(fmt::format("| {:<58} | {:>8} | {:>9} | {:>6} | {:>5} |\n", "", "GB", "us", "GB/s", "part"));
  ASSIGN_OR_RETURN(const double rate, BenchReading(write));
  RETURN_IF_ERROR(BenchCopying(write, rate));
  return BenchDisk(write);
}

}  // namespace galley::bench
