// SPDX-License-Identifier: Apache-2.0
#include "cuda_bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <memory>
#include <random>
#include <vector>

#include "cublas_lt.h"
#include "fill.h"
#include "galley/backend/cuda/cuda_backend.h"
#include "galley/base/check.h"

namespace galley::bench {
namespace {

using backend::ExpertWeights;
using backend::Weight;
using backend::WeightFormat;

// V4.1-Flash.
constexpr int kDim = 5120, kInter = 2304, kExperts = 384, kTopk = 6, kHeads = 64, kRank = 1280, kGroups = 8,
              kLowRank = 1024;
constexpr int kVocab = 129280;

class Bench {
 public:
  // `forms`: one backend for each form of products that is compared; memory comes from the first.
  Bench(std::vector<std::unique_ptr<backend::Backend>> forms, const CudaBenchWrite& write)
      : forms_(std::move(forms)), write_(write), backend_(*forms_.front()), stream_(backend::StreamOf(backend_)) {}

  // The one that is measured now.
  [[nodiscard]] backend::Backend& backend() { return *forms_[current_]; }
  [[nodiscard]] const CublasLt& cublas() const { return cublas_; }

  template <typename T>
  T* Random(std::size_t count, Pattern pattern) {
    T* data = Raw<T>(count);
    Fill(data, count * sizeof(T), pattern, ++seed_, stream_);
    return data;
  }
  template <typename T>
  T* Raw(std::size_t count) {
    auto buffer = backend_.Allocate(count * sizeof(T) + 256, "benchmark");
    CHECK(buffer) << buffer.error().ToString();
    buffers_.push_back(std::move(*buffer));
    return buffers_.back().as<T>();
  }
  template <typename T>
  T* Place(const std::vector<T>& values) {
    T* data = Raw<T>(values.size());
    CHECK(backend_.CopyToDevice(data, values.data(), values.size() * sizeof(T))) << "copy";
    return data;
  }
  Weight Matrix(WeightFormat format, std::int64_t rows, std::int64_t cols) {
    const auto count = static_cast<std::size_t>(rows * cols);
    Weight w{.format = format, .rows = rows, .cols = cols};
    if (format == WeightFormat::kBF16) w.data = Random<BFloat16>(count, Pattern::kBF16);
    if (format == WeightFormat::kFp8Block32) {
      w.data = Random<std::uint8_t>(count, Pattern::kE4M3);
      w.scales = Random<std::uint8_t>(count / 1024 + 4, Pattern::kScales);
    }
    if (format == WeightFormat::kMxfp4) {
      w.data = Random<std::uint8_t>(count / 2, Pattern::kAny);
      w.scales = Random<std::uint8_t>(count / 32, Pattern::kScales);
    }
    return w;
  }

  // One line of the report. `bytes` is what must be read and written, 0 when another limit holds; `flop` likewise.
  void Report(const std::string& name, double bytes, double flop, int per_issue, const std::function<void()>& issue,
              int replays = 20) {
    CHECK(backend_.Synchronize()) << name << ": placing its memory";
    const double floor = bytes / bandwidth_ * 1e6;
    std::string line = fmt::format("| {} | ", name);
    double best = 1e30;
    for (current_ = 0; current_ < forms_.size(); ++current_) {
      const auto us = backend::MeasureMicroseconds(*forms_[current_], issue, replays);
      CHECK(us) << name << ": " << us.error().ToString();
      line += fmt::format("{:.1f} | ", *us / per_issue);
      best = std::min(best, *us / per_issue);
    }
    current_ = 0;
    Write(line + fmt::format("{:.1f} | {:.0f} | {:.0f} % | {:.0f} |\n", floor, bytes / best / 1e3, 100 * floor / best,
                             flop / best / 1e6));
  }
  // A bf16 product of the same shape by the vendor's library, weights being twice the bytes.
  void ReportPeer(std::int64_t rows, std::int64_t cols, int x_rows, int replays) {
    if (!cublas_.usable()) return;
    const auto* w = Random<BFloat16>(static_cast<std::size_t>(rows * cols), Pattern::kBF16);
    const auto* x = Random<BFloat16>(static_cast<std::size_t>(cols) * static_cast<std::size_t>(x_rows), Pattern::kBF16);
    auto* y = Raw<BFloat16>(static_cast<std::size_t>(rows) * static_cast<std::size_t>(x_rows));
    auto* work = Raw<std::byte>(kCublasWorkspace);
    bool ok = true;
    const auto us = backend::MeasureMicroseconds(
        backend_, [&] { ok = ok && cublas_.Product(rows, cols, x_rows, w, x, y, work, stream_); }, replays);
    if (!us || !ok) return Write(fmt::format("cuBLASLt refused {} x {}, {} rows\n", rows, cols, x_rows));
    Write(fmt::format("| cuBLASLt bf16 {}x{}, {} rows | {:.1f} | | | | | {:.0f} |\n", rows, cols, x_rows, *us,
                      2.0 * static_cast<double>(rows * cols) * x_rows / *us / 1e6));
  }
  void Write(const std::string& text) { write_(text); }
  void MeasureBandwidth() {
    constexpr std::size_t kBytes = std::size_t{4} << 30;
    const auto* data = Random<std::uint8_t>(kBytes, Pattern::kAny);
    auto* out = Raw<std::uint32_t>(1);
    const auto us = backend::MeasureMicroseconds(
        backend_, [&] { ReadAll(data, kBytes, out, stream_); }, 10);
    CHECK(us) << us.error().ToString();
    bandwidth_ = static_cast<double>(kBytes) / *us * 1e6;
    Write(fmt::format("read bandwidth of this run: {:.2f} TB/s; {}\n", bandwidth_ / 1e12, cublas_.description()));
    Write("stream and split: forms of the products, same bits (docs/cuda.md); rates are of the faster one\n\n");
    Write(
        "| op | stream µs | split µs | floor µs | GB/s | of floor | TFLOP/s |\n|---|---:|---:|---:|---:|---:|---:|\n");
  }

  backend::StepView Step(int rows, int position, int sequences) {
    std::vector<std::int32_t> tokens, positions, row_sequence, blocks;
    std::vector<backend::SequenceEntry> table;
    const int each = rows / sequences, blocks_each = position / backend::kBlockTokens + 1;
    for (int s = 0; s < sequences; ++s) {
      const int start = position + 1 - each;
      table.push_back(
          {.slot = s, .first_row = s * each, .rows = each, .start = start, .block_offset = s * blocks_each});
      for (int i = 0; i < each; ++i) tokens.push_back(i), positions.push_back(start + i), row_sequence.push_back(s);
      for (int b = 0; b < blocks_each; ++b) blocks.push_back(s * blocks_each + b);
    }
    return {.rows = rows,
            .sequences = sequences,
            .position_end = position + 1,
            .tokens = Place(tokens),
            .positions = Place(positions),
            .row_sequence = Place(row_sequence),
            .table = Place(table),
            .blocks = Place(blocks)};
  }
  backend::Rope Rope() { return {.frequencies = Random<float>(32, Pattern::kFloat), .dims = 64}; }

 private:
  std::vector<std::unique_ptr<backend::Backend>> forms_;
  std::size_t current_ = 0;
  CudaBenchWrite write_;
  backend::Backend& backend_;
  void* stream_;
  CublasLt cublas_;
  std::uint64_t seed_ = 0;
  double bandwidth_ = 1;
  std::vector<backend::Buffer> buffers_;
};

void Dense(Bench& b, const std::vector<int>& row_counts) {
  const Weight wq_a = b.Matrix(WeightFormat::kFp8Block32, kRank, kDim),
               wkv = b.Matrix(WeightFormat::kFp8Block32, 512, kDim);
  const Weight wq_b = b.Matrix(WeightFormat::kFp8Block32, kHeads * 512, kRank);
  const Weight wo_a = b.Matrix(WeightFormat::kFp8Block32, kGroups * kLowRank, 4096);
  const Weight wo_b = b.Matrix(WeightFormat::kFp8Block32, kDim, kGroups * kLowRank);
  const auto* norm = b.Random<BFloat16>(kDim, Pattern::kBF16);
  for (const int rows : row_counts) {
    const auto t = static_cast<std::size_t>(rows);
    const backend::StepView step = b.Step(rows, 8191 > rows ? 8191 : rows, rows > 256 ? 1 : rows);
    const auto* x = b.Random<BFloat16>(t * kDim, Pattern::kBF16);
    auto* qr = b.Raw<BFloat16>(t * kRank);
    auto* q = b.Raw<BFloat16>(t * kHeads * 512);
    auto* window = b.Raw<std::uint8_t>(t * 528);
    auto* y = b.Raw<BFloat16>(t * kDim);
    const backend::Rope rope = b.Rope();
    const double flop = 2.0 * rows * (126.6e6 + 0.0);
    const int replays = rows > 256 ? 3 : 20;
    b.Report(
        fmt::format("attention projections (AttnIn + AttnOut), {} rows", rows), 126.6e6 * (1 + 1.0 / 1024), flop, 1,
        [&] {
          b.backend().AttnIn({.step = step,
                              .x = x,
                              .wq_a = wq_a,
                              .wq_b = wq_b,
                              .wkv = wkv,
                              .q_norm = norm,
                              .kv_norm = norm,
                              .heads = kHeads,
                              .head_dim = 512,
                              .eps = 1e-20f,
                              .rope = rope,
                              .qr = qr,
                              .q = q,
                              .window = window});
          b.backend().AttnOut({.rows = rows, .groups = kGroups, .o = q, .wo_a = wo_a, .wo_b = wo_b, .y = y});
        },
        replays);
    const auto one = [&](const char* name, const Weight& w) {
      b.Report(
          fmt::format("Linear {} {}x{}, {} rows", name, w.rows, w.cols, rows), static_cast<double>(w.rows * w.cols),
          2.0 * rows * static_cast<double>(w.rows * w.cols), 1,
          [&] { b.backend().Linear({.rows = rows, .weight = w, .x = q, .out = q + 0}); }, replays);
    };
    if (rows == 16) continue;
    for (const auto& [name, w] : {std::pair{"wq_b", &wq_b}, std::pair{"wo_b", &wo_b}}) {
      one(name, *w);
      b.ReportPeer(w->rows, w->cols, rows, replays);
    }
    if (rows == 64) one("wq_a", wq_a);
  }
}

std::vector<std::int32_t> Choices(int rows, bool zipf, std::mt19937_64& random) {
  std::vector<double> weights;
  for (int e = 0; e < kExperts; ++e) weights.push_back(zipf ? 1.0 / (e + 10) : 1.0);
  std::discrete_distribution<int> draw(weights.begin(), weights.end());
  std::vector<std::int32_t> all;
  for (int t = 0; t < rows; ++t) {
    std::vector<std::int32_t> mine;
    while (mine.size() < kTopk) {
      const int e = draw(random) * 37 % kExperts;
      if (std::find(mine.begin(), mine.end(), e) == mine.end()) mine.push_back(e);
    }
    all.insert(all.end(), mine.begin(), mine.end());
  }
  return all;
}

void Moe(Bench& b, const std::vector<int>& row_counts) {
  std::vector<ExpertWeights> routed;
  for (int e = 0; e < kExperts; ++e) {
    routed.push_back({.w1 = b.Matrix(WeightFormat::kMxfp4, kInter, kDim),
                      .w2 = b.Matrix(WeightFormat::kMxfp4, kDim, kInter),
                      .w3 = b.Matrix(WeightFormat::kMxfp4, kInter, kDim)});
  }
  const ExpertWeights shared{.w1 = b.Matrix(WeightFormat::kFp8Block32, kInter, kDim),
                             .w2 = b.Matrix(WeightFormat::kFp8Block32, kDim, kInter),
                             .w3 = b.Matrix(WeightFormat::kFp8Block32, kInter, kDim)};
  const double expert_bytes = 3.0 * kInter * kDim * (0.5 + 1.0 / 32),
               shared_bytes = 3.0 * kInter * kDim * (1 + 1.0 / 1024);
  std::mt19937_64 random(7);
  const int largest = *std::max_element(row_counts.begin(), row_counts.end());
  const auto* x = b.Random<BFloat16>(static_cast<std::size_t>(largest) * kDim, Pattern::kBF16);
  auto* y = b.Raw<BFloat16>(static_cast<std::size_t>(largest) * kDim);
  for (const int rows : row_counts) {
    for (const bool zipf : {false, true}) {
      const int sets = rows > 256 ? 1 : 4;
      std::vector<const std::int32_t*> experts;
      std::vector<float> ones(static_cast<std::size_t>(rows * kTopk), 0.25f);
      double touched = 0;
      for (int s = 0; s < sets; ++s) {
        std::vector<std::int32_t> choices = Choices(rows, zipf, random);
        experts.push_back(b.Place(choices));
        std::sort(choices.begin(), choices.end());
        touched += static_cast<double>(std::unique(choices.begin(), choices.end()) - choices.begin()) / sets;
      }
      const float* weights = b.Place(ones);
      const double flop = 2.0 * rows * 3 * kInter * kDim * (kTopk + 1);
      b.Report(
          fmt::format("Moe {} rows, {}, {:.1f} experts", rows, zipf ? "Zipf" : "uniform", touched),
          touched * expert_bytes + shared_bytes, flop, sets,
          [&] {
            for (const std::int32_t* chosen : experts) {
              b.backend().Moe({.rows = rows,
                               .x = x,
                               .experts = chosen,
                               .weights = weights,
                               .topk = kTopk,
                               .expert_count = kExperts,
                               .routed = routed.data(),
                               .shared = shared,
                               .swiglu_limit = 10,
                               .y = y});
            }
          },
          rows > 256 ? 3 : 10);
    }
  }
  const Weight gate = b.Matrix(WeightFormat::kBF16, kExperts, kDim);
  const auto* bias = b.Random<float>(kExperts, Pattern::kFloat);
  for (const int rows : row_counts) {
    const backend::StepView step = b.Step(rows, 8191 > rows ? 8191 : rows, rows > 256 ? 1 : rows);
    auto* chosen = b.Raw<std::int32_t>(static_cast<std::size_t>(rows * kTopk));
    auto* weights = b.Raw<float>(static_cast<std::size_t>(rows * kTopk));
    b.Report(fmt::format("Route {} rows", rows), kExperts * kDim * 2.0, 2.0 * rows * kExperts * kDim, 1, [&] {
      b.backend().Route({.step = step,
                         .x = x,
                         .gate = gate,
                         .bias = bias,
                         .topk = kTopk,
                         .scale = 1.5f,
                         .experts = chosen,
                         .weights = weights});
    });
  }
}

void Attention(Bench& b, const std::vector<int>& row_counts) {
  for (const int rows : row_counts) {
    const auto t = static_cast<std::size_t>(rows);
    const bool prefill = rows > 256;
    const int position = 8191;
    const backend::StepView step = b.Step(rows, position, prefill ? 1 : rows);
    backend::HistorySlab slab{.ratio = 1, .latent_dim = 512, .index_dim = 128};
    const std::size_t blocks = static_cast<std::size_t>(prefill ? 1 : rows) * 64;
    slab.base = b.Random<std::byte>(blocks * slab.block_bytes(), Pattern::kE4M3);
    const backend::Ring ring{.base = b.Random<std::byte>(t * 133 * 528, Pattern::kE4M3),
                             .slot_bytes = 133 * 528,
                             .rows = 133,
                             .row_bytes = 528};
    std::vector<std::int32_t> list;
    for (int r = 0; r < rows; ++r) {
      const int visible = prefill ? std::max(1, r + 1) : position + 1;
      for (int i = 0; i < 512; ++i) list.push_back(visible >= 512 ? i * (visible / 512) : i < visible ? i : -1);
    }
    const auto* q = b.Random<BFloat16>(t * kHeads * 512, Pattern::kBF16);
    auto* out = b.Raw<BFloat16>(t * kHeads * 512);
    const auto* window = b.Random<std::uint8_t>(t * 528, Pattern::kE4M3);
    const auto* places = b.Place(list);
    const auto* sink = b.Random<float>(kHeads, Pattern::kFloat);
    const backend::Rope rope = b.Rope();
    b.Report(
        fmt::format("Attention {} rows, 128 + 512 keys", rows), rows * (215e3 + 4.0 * kHeads * 512),
        rows * 640.0 * kHeads * 4 * 512, 1,
        [&] {
          b.backend().Attention({.step = step,
                                 .q = q,
                                 .window = window,
                                 .ring = ring,
                                 .window_size = 128,
                                 .window_places = 128,
                                 .heads = kHeads,
                                 .head_dim = 512,
                                 .sink = sink,
                                 .rope = rope,
                                 .list = places,
                                 .topk = 512,
                                 .slab = slab,
                                 .out = out});
        },
        prefill ? 3 : 20);
  }
}

void Index(Bench& b) {
  constexpr int kRows = 64, kPosition = 131071;
  const Weight wq_b = b.Matrix(WeightFormat::kFp8Block32, 32 * 128, kRank);
  const Weight proj = b.Matrix(WeightFormat::kBF16, 32, kDim);
  const auto* x = b.Random<BFloat16>(kRows * kDim, Pattern::kBF16);
  const auto* qr = b.Random<BFloat16>(kRows * kRank, Pattern::kBF16);
  const backend::StepView step = b.Step(kRows, kPosition, kRows);
  auto* candidates = b.Raw<std::int32_t>(kRows * 2048);
  auto* list = b.Raw<std::int32_t>(kRows * 512);
  const backend::Rope rope = b.Rope();
  for (const int ratio : {1, 2}) {
    backend::HistorySlab slab{.ratio = ratio, .latent_dim = 512, .index_dim = 128};
    slab.base = b.Raw<std::byte>(static_cast<std::size_t>(kRows) * 1024 * slab.block_bytes());
    Fill(slab.base, static_cast<std::size_t>(kRows) * 1024 * slab.block_bytes(), Pattern::kScales, 3,
         backend::StreamOf(b.backend()));
    using backend::CandidateRole;
    for (const CandidateRole role : {CandidateRole::kSource, CandidateRole::kUser, CandidateRole::kNone}) {
      if ((role == CandidateRole::kNone) == (ratio == 1)) continue;
      const bool user = role == CandidateRole::kUser;
      const double keys = user ? 16384 : 131072.0 / ratio;
      b.Report(fmt::format("IndexSelect 64 rows, 128 K, ratio {}, {}", ratio,
                           user                             ? "candidates"
                           : role == CandidateRole::kSource ? "source"
                                                            : "plain"),
               kRows * keys * 68, kRows * keys * 2 * 32 * 128, 1, [&] {
                 b.backend().IndexSelect({.step = step,
                                          .x = x,
                                          .qr = qr,
                                          .wq_b = wq_b,
                                          .weights_proj = proj,
                                          .heads = 32,
                                          .topk = 512,
                                          .rope = rope,
                                          .slab = slab,
                                          .role = role,
                                          .candidate_blocks = 2048,
                                          .candidate_block_size = 8,
                                          .candidates = candidates,
                                          .list = list});
               });
    }
  }
}

void Boundary(Bench& b, const std::vector<int>& row_counts) {
  const auto* fn = b.Random<float>(24 * 4 * kDim, Pattern::kFloat);
  const auto* base = b.Random<float>(24, Pattern::kFloat);
  const auto* scale = b.Random<float>(3, Pattern::kFloat);
  const auto* norm = b.Random<BFloat16>(kDim, Pattern::kBF16);
  for (const int rows : row_counts) {
    const auto t = static_cast<std::size_t>(rows);
    auto* h = b.Random<BFloat16>(t * 4 * kDim, Pattern::kBF16);
    const auto* y = b.Random<BFloat16>(t * kDim, Pattern::kBF16);
    auto* x = b.Raw<BFloat16>(t * kDim);
    auto* pre = b.Random<float>(t * 4, Pattern::kFloat);
    auto* pre_out = b.Raw<float>(t * 4);
    auto* post = b.Random<float>(t * 4, Pattern::kFloat);
    auto* comb = b.Random<float>(t * 16, Pattern::kFloat);
    b.Report(fmt::format("MhcBoundary {} rows", rows), rows * (kDim * 2.0 * 10) + 24 * 4.0 * kDim * 4,
             rows * 2.0 * 24 * 4 * kDim, 1, [&] {
               b.backend().MhcBoundary({.rows = rows,
                                        .dim = kDim,
                                        .copies = 4,
                                        .norm_eps = 1e-20f,
                                        .h = h,
                                        .y = y,
                                        .post_in = post,
                                        .comb_in = comb,
                                        .fn = fn,
                                        .base = base,
                                        .scale = scale,
                                        .sinkhorn_iters = 20,
                                        .hc_eps = 1e-6f,
                                        .pre_out = pre_out,
                                        .post_out = post,
                                        .comb_out = comb,
                                        .pre_in = pre,
                                        .norm = norm,
                                        .x = x});
             });
  }
  const Weight head = b.Matrix(WeightFormat::kBF16, kVocab, kDim);
  for (const int rows : {1, 64}) {
    std::vector<std::int32_t> list;
    for (int i = 0; i < rows; ++i) list.push_back(i);
    const auto* x = b.Random<BFloat16>(static_cast<std::size_t>(rows) * kDim, Pattern::kBF16);
    auto* logits = b.Raw<float>(static_cast<std::size_t>(rows) * kVocab);
    b.Report(fmt::format("Head {} rows", rows), static_cast<double>(kVocab) * kDim * 2 + rows * 4.0 * kVocab,
             2.0 * rows * kVocab * kDim, 1, [&] {
               b.backend().Head({.dim = kDim,
                                 .count = rows,
                                 .row_list = list.data(),
                                 .x = x,
                                 .norm = norm,
                                 .eps = 1e-20f,
                                 .head = head,
                                 .logits = logits});
             });
  }
}

// One decode layer without compressor and indexer, which 36 of the 40 layers do not have, nor Engram: every op that
// each layer has, in one graph. Not the model.
void Layer(Bench& b, const std::vector<int>& row_counts) {
  constexpr auto kFp8 = WeightFormat::kFp8Block32;
  constexpr int kPosition = 8191, kSets = 2;
  const Weight wq_a = b.Matrix(kFp8, kRank, kDim), wkv = b.Matrix(kFp8, 512, kDim),
               wq_b = b.Matrix(kFp8, kHeads * 512, kRank), wo_a = b.Matrix(kFp8, kGroups * kLowRank, 4096),
               wo_b = b.Matrix(kFp8, kDim, kGroups * kLowRank), gate = b.Matrix(WeightFormat::kBF16, kExperts, kDim);
  std::vector<ExpertWeights> routed;
  for (int e = 0; e < kExperts; ++e) {
    routed.push_back({.w1 = b.Matrix(WeightFormat::kMxfp4, kInter, kDim),
                      .w2 = b.Matrix(WeightFormat::kMxfp4, kDim, kInter),
                      .w3 = b.Matrix(WeightFormat::kMxfp4, kInter, kDim)});
  }
  const ExpertWeights shared{
      .w1 = b.Matrix(kFp8, kInter, kDim), .w2 = b.Matrix(kFp8, kDim, kInter), .w3 = b.Matrix(kFp8, kInter, kDim)};
  const auto* fn = b.Random<float>(24 * 4 * kDim, Pattern::kFloat);
  const auto* base = b.Random<float>(24, Pattern::kFloat);
  const auto* scale = b.Random<float>(3, Pattern::kFloat);
  const auto* norm = b.Random<BFloat16>(kDim, Pattern::kBF16);
  const auto* bias = b.Random<float>(kExperts, Pattern::kFloat);
  const auto* sink = b.Random<float>(kHeads, Pattern::kFloat);
  const backend::Rope rope = b.Rope();
  std::mt19937_64 random(11);
  for (const int rows : row_counts) {
    if (rows > 256) continue;
    const auto t = static_cast<std::size_t>(rows);
    const backend::StepView step = b.Step(rows, kPosition, rows);
    backend::HistorySlab slab{.ratio = 1, .latent_dim = 512, .index_dim = 128};
    slab.base = b.Random<std::byte>(t * 64 * slab.block_bytes(), Pattern::kE4M3);
    const backend::Ring ring{.base = b.Random<std::byte>(t * 133 * 528, Pattern::kE4M3),
                             .slot_bytes = 133 * 528,
                             .rows = 133,
                             .row_bytes = 528};
    std::vector<std::int32_t> list;
    for (int r = 0; r < rows; ++r)
      for (int i = 0; i < 512; ++i) list.push_back(i * 16);
    const auto* places = b.Place(list);
    auto *h = b.Random<BFloat16>(t * 4 * kDim, Pattern::kBF16), *y = b.Random<BFloat16>(t * kDim, Pattern::kBF16),
         *x = b.Raw<BFloat16>(t * kDim), *qr = b.Raw<BFloat16>(t * kRank), *q = b.Raw<BFloat16>(t * kHeads * 512),
         *o = b.Raw<BFloat16>(t * kHeads * 512);
    auto *pre = b.Random<float>(t * 4, Pattern::kFloat), *pre_out = b.Raw<float>(t * 4),
         *post = b.Random<float>(t * 4, Pattern::kFloat), *comb = b.Random<float>(t * 16, Pattern::kFloat),
         *weights = b.Random<float>(t * kTopk, Pattern::kFloat), *route_weights = b.Raw<float>(t * kTopk);
    auto* window = b.Raw<std::uint8_t>(t * 528);
    auto* route_experts = b.Raw<std::int32_t>(t * kTopk);
    std::vector<const std::int32_t*> chosen;
    double touched = 0;
    for (int s = 0; s < kSets; ++s) {
      std::vector<std::int32_t> choices = Choices(rows, false, random);
      chosen.push_back(b.Place(choices));
      std::sort(choices.begin(), choices.end());
      touched += static_cast<double>(std::unique(choices.begin(), choices.end()) - choices.begin()) / kSets;
    }
    const auto boundary = [&] {
      b.backend().MhcBoundary({.rows = rows,
                               .dim = kDim,
                               .copies = 4,
                               .norm_eps = 1e-20f,
                               .h = h,
                               .y = y,
                               .post_in = post,
                               .comb_in = comb,
                               .fn = fn,
                               .base = base,
                               .scale = scale,
                               .sinkhorn_iters = 20,
                               .hc_eps = 1e-6f,
                               .pre_out = pre_out,
                               .post_out = post,
                               .comb_out = comb,
                               .pre_in = pre,
                               .norm = norm,
                               .x = x});
    };
    const double values = 3.0 * kInter * kDim;
    const double bytes = 126.6e6 * (1 + 1.0 / 1024) + touched * values * (0.5 + 1.0 / 32) + values * (1 + 1.0 / 1024) +
                         kExperts * kDim * 2.0 + 2 * 24 * 16.0 * kDim + rows * (215e3 + 4.0 * kHeads * 512);
    b.Report(
        fmt::format("decode layer, {} rows, {:.1f} experts, without index", rows, touched), bytes, 0, kSets,
        [&] {
          for (const std::int32_t* experts : chosen) {
            boundary();
            b.backend().AttnIn({.step = step,
                                .x = x,
                                .wq_a = wq_a,
                                .wq_b = wq_b,
                                .wkv = wkv,
                                .q_norm = norm,
                                .kv_norm = norm,
                                .heads = kHeads,
                                .head_dim = 512,
                                .eps = 1e-20f,
                                .rope = rope,
                                .qr = qr,
                                .q = q,
                                .window = window});
            b.backend().Attention({.step = step,
                                   .q = q,
                                   .window = window,
                                   .ring = ring,
                                   .window_size = 128,
                                   .window_places = 128,
                                   .heads = kHeads,
                                   .head_dim = 512,
                                   .sink = sink,
                                   .rope = rope,
                                   .list = places,
                                   .topk = 512,
                                   .slab = slab,
                                   .out = o});
            b.backend().WindowWrite({.step = step, .window = window, .ring = ring});
            b.backend().AttnOut({.rows = rows, .groups = kGroups, .o = o, .wo_a = wo_a, .wo_b = wo_b, .y = y});
            boundary();
            b.backend().Route({.step = step,
                               .x = x,
                               .gate = gate,
                               .bias = bias,
                               .topk = kTopk,
                               .scale = 1.5f,
                               .experts = route_experts,
                               .weights = route_weights});
            b.backend().Moe({.rows = rows,
                             .x = x,
                             .experts = experts,
                             .weights = weights,
                             .topk = kTopk,
                             .expert_count = kExperts,
                             .routed = routed.data(),
                             .shared = shared,
                             .swiglu_limit = 10,
                             .y = y});
          }
        },
        20);
  }
}

struct Part {
  std::string_view name;
  void (*run)(Bench& b, const std::vector<int>& row_counts);
};
constexpr Part kParts[] = {
    {"layer", Layer},         {"moe", Moe},      {"dense", Dense},
    {"attention", Attention}, {"mhc", Boundary}, {"index", [](Bench& b, const std::vector<int>&) { Index(b); }},
};

}  // namespace

Status RunCudaBench(const CudaBenchOptions& options, const CudaBenchWrite& write) {
  std::string names;
  for (const Part& part : kParts) names += fmt::format("{}{}", names.empty() ? "" : ", ", part.name);
  for (const std::string& name : options.only) {
    if (std::ranges::find(kParts, name, &Part::name) == std::end(kParts)) {
      return Err(ErrorCode::kInvalidArgument, fmt::format("\"{}\" is no part; parts are {}", name, names), "only");
    }
  }
  std::vector<std::unique_ptr<backend::Backend>> forms;
  for (const backend::ProductForm form : {backend::ProductForm::kStream, backend::ProductForm::kSplit}) {
    ASSIGN_OR_RETURN(std::unique_ptr<backend::Backend> made,
                     backend::MakeCudaBackend({.device = 0, .graphs = false, .linears = form, .experts = form}));
    forms.push_back(std::move(made));
  }
  Bench bench(std::move(forms), write);
  std::vector<int> rows = options.rows;
  if (options.prefill > 0) rows.push_back(options.prefill);
  bench.MeasureBandwidth();
  for (const Part& part : kParts) {
    const bool wanted = options.only.empty() || std::ranges::find(options.only, part.name) != options.only.end();
    if (wanted) part.run(bench, rows);
  }
  return {};
}

}  // namespace galley::bench
