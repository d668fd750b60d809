// SPDX-License-Identifier: Apache-2.0
#include "cuda_bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <iterator>
#include <memory>
#include <random>
#include <vector>

#include "collectives_bench.h"
#include "cublas_lt.h"
#include "fill.h"
#include "galley/backend/cuda/cuda_backend.h"
#include "galley/backend/cuda/draw_staging.h"
#include "galley/backend/cuda/kernels.h"
#include "galley/backend/expert_store.h"
#include "galley/backend/memory_formats.h"
#include "galley/base/check.h"
#include "galley/model/shapes.h"
#include "placement_bench.h"
#include "product_rates.h"

namespace galley::bench {
namespace {

using backend::ExpertWeights;
using backend::Weight;
using backend::WeightFormat;
constexpr auto kFp8 = WeightFormat::kFp8Block32;

using model::ModelShape;
constexpr int kVocab = model::kShapeVocab, kWindow = 128;

class Bench {
 public:
  // `forms`: one backend for each form of products that is compared; memory comes from the first.
  Bench(std::vector<std::unique_ptr<backend::Backend>> forms, const ModelShape& shape, const CudaBenchWrite& write)
      : forms_(std::move(forms)),
        shape_(shape),
        write_(write),
        backend_(*forms_.front()),
        stream_(backend::StreamOf(backend_)) {}

  // The one that is measured now.
  [[nodiscard]] backend::Backend& backend() { return *forms_[current_]; }
  [[nodiscard]] const ModelShape& shape() const { return shape_; }
  [[nodiscard]] const CublasLt& cublas() const { return cublas_; }
  [[nodiscard]] void* stream() const { return stream_; }

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
    WriteAlone(fmt::format("cuBLASLt bf16 {}x{}, {} rows", rows, cols, x_rows), *us,
               2.0 * static_cast<double>(rows * cols) * x_rows);
  }
  // What knows no forms.
  void ReportAlone(const std::string& name, double flop, const std::function<void()>& issue) {
    const auto us = backend::MeasureMicroseconds(backend_, issue, 20);
    CHECK(us) << name << ": " << us.error().ToString();
    WriteAlone(name, *us, flop);
  }
  void Write(const std::string& text) { write_(text); }
  void WriteAlone(const std::string& name, double us, double flop) {
    Write(fmt::format("| {} | {:.1f} | | | | | | {:.0f} |\n", name, us, flop / us / 1e6));
  }
  void MeasureBandwidth() {
    constexpr std::size_t kBytes = std::size_t{4} << 30;
    const auto* data = Random<std::uint8_t>(kBytes, Pattern::kAny);
    auto* out = Raw<std::uint32_t>(1);
    const auto us = backend::MeasureMicroseconds(
        backend_, [&] { ReadAll(data, kBytes, out, stream_); }, 10);
    CHECK(us) << us.error().ToString();
    bandwidth_ = static_cast<double>(kBytes) / *us * 1e6;
    Write(fmt::format("shapes of {}, random weights; read bandwidth of this run: {:.2f} TB/s; {}\n", shape_.title,
                      bandwidth_ / 1e12, cublas_.description()));
    Write("stream and split: forms of products, same bits (docs/cuda.md);\n");
    Write("auto: what runs by itself; rates are of the fastest\n\n");
    Write("| op | stream µs | split µs | auto µs | floor µs | GB/s | of floor | TFLOP/s |\n");
    Write("|---|---:|---:|---:|---:|---:|---:|---:|\n");
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
  const ModelShape& shape_;
  CudaBenchWrite write_;
  backend::Backend& backend_;
  void* stream_;
  CublasLt cublas_;
  std::uint64_t seed_ = 0;
  double bandwidth_ = 1;
  std::vector<backend::Buffer> buffers_;
};

// Elements of `rows` rows.
std::size_t CountOf(int rows, std::int64_t each) {
  return static_cast<std::size_t>(rows * each);
}
double BytesOf(std::initializer_list<Weight> weights) {
  double sum = 0;
  for (const Weight& weight : weights) sum += static_cast<double>(backend::BytesOf(weight));
  return sum;
}
int WindowBytes(const ModelShape& shape) {
  return static_cast<int>(backend::WindowRecordBytes(shape.head_dim));
}

// What each op works on, at the model's shapes. A layer connects them by pointing one's input at another's output.
struct Projections {
  explicit Projections(Bench& b)
      : shape(b.shape()),
        wq_a(b.Matrix(kFp8, shape.q_rank, shape.dim)),
        wq_b(b.Matrix(kFp8, std::int64_t{shape.heads} * shape.head_dim, shape.q_rank)),
        wkv(b.Matrix(kFp8, shape.head_dim, shape.dim)),
        wo_a(b.Matrix(kFp8, std::int64_t{shape.o_groups} * shape.o_rank,
                      std::int64_t{shape.heads} * shape.head_dim / shape.o_groups)),
        wo_b(b.Matrix(kFp8, shape.dim, std::int64_t{shape.o_groups} * shape.o_rank)),
        norm(b.Random<BFloat16>(static_cast<std::size_t>(shape.dim), Pattern::kBF16)) {}

  [[nodiscard]] backend::AttnInArgs In(Bench& b, const backend::StepView& step) const {
    return {.step = step,
            .x = b.Random<BFloat16>(CountOf(step.rows, shape.dim), Pattern::kBF16),
            .wq_a = wq_a,
            .wq_b = wq_b,
            .wkv = wkv,
            .q_norm = norm,
            .kv_norm = norm,
            .heads = shape.heads,
            .head_dim = shape.head_dim,
            .eps = 1e-20f,
            .rope = b.Rope(),
            .qr = b.Raw<BFloat16>(CountOf(step.rows, shape.q_rank)),
            .q = b.Raw<BFloat16>(CountOf(step.rows, shape.heads * shape.head_dim)),
            .window = b.Raw<std::uint8_t>(CountOf(step.rows, WindowBytes(shape)))};
  }
  [[nodiscard]] backend::AttnOutArgs Out(const BFloat16* o, int rows, BFloat16* y) const {
    return {.rows = rows, .groups = shape.o_groups, .o = o, .wo_a = wo_a, .wo_b = wo_b, .y = y};
  }
  [[nodiscard]] double in_bytes() const { return BytesOf({wq_a, wq_b, wkv}); }
  [[nodiscard]] double out_bytes() const { return BytesOf({wo_a, wo_b}); }
  [[nodiscard]] double values() const {
    double sum = 0;
    for (const Weight& w : {wq_a, wq_b, wkv, wo_a, wo_b}) sum += static_cast<double>(w.rows * w.cols);
    return sum;
  }

  const ModelShape& shape;
  Weight wq_a, wq_b, wkv, wo_a, wo_b;
  const BFloat16* norm;
};

backend::StepView StepOf(Bench& b, int rows) {
  return b.Step(rows, std::max(8191, rows), rows > 256 ? 1 : rows);
}

void Dense(Bench& b, const std::vector<int>& row_counts) {
  const Projections projections(b);
  for (const int rows : row_counts) {
    const backend::AttnInArgs in = projections.In(b, StepOf(b, rows));
    auto* y = b.Raw<BFloat16>(CountOf(rows, b.shape().dim));
    const double flop = 2.0 * rows * projections.values();
    const int replays = rows > 256 ? 3 : 20;
    b.Report(
        fmt::format("attention projections (AttnIn + AttnOut), {} rows", rows),
        projections.in_bytes() + projections.out_bytes(), flop, 1,
        [&] {
          b.backend().AttnIn(in);
          b.backend().AttnOut(projections.Out(in.q, rows, y));
        },
        replays);
    const auto one = [&](const char* name, const Weight& w) {
      b.Report(
          fmt::format("Linear {} {}x{}, {} rows", name, w.rows, w.cols, rows), static_cast<double>(w.rows * w.cols),
          2.0 * rows * static_cast<double>(w.rows * w.cols), 1,
          [&] { b.backend().Linear({.rows = rows, .weight = w, .x = in.q, .out = in.q}); }, replays);
    };
    const auto* o = b.Random<BFloat16>(CountOf(rows, projections.wq_b.rows), Pattern::kBF16);
    b.Report(
        fmt::format("AttnIn, {} rows", rows), projections.in_bytes(), 0, 1, [&] { b.backend().AttnIn(in); }, replays);
    b.Report(
        fmt::format("AttnOut, {} rows", rows), projections.out_bytes(), 0, 1,
        [&] { b.backend().AttnOut(projections.Out(o, rows, y)); }, replays);
    if (rows == 16) continue;
    for (const auto& [name, w] : {std::pair{"wq_b", &projections.wq_b}, std::pair{"wo_b", &projections.wo_b}}) {
      one(name, *w);
      b.ReportPeer(w->rows, w->cols, rows, replays);
    }
    if (rows == 64) one("wq_a", projections.wq_a);
  }
}

std::vector<std::int32_t> Choices(const ModelShape& shape, int rows, bool zipf, std::mt19937_64& random) {
  std::vector<double> weights;
  for (int e = 0; e < shape.experts; ++e) weights.push_back(zipf ? 1.0 / (e + 10) : 1.0);
  std::discrete_distribution<int> draw(weights.begin(), weights.end());
  std::vector<std::int32_t> all;
  for (int t = 0; t < rows; ++t) {
    std::vector<std::int32_t> mine;
    while (std::ssize(mine) < shape.topk) {
      const int e = draw(random) * 37 % shape.experts;
      if (std::find(mine.begin(), mine.end(), e) == mine.end()) mine.push_back(e);
    }
    all.insert(all.end(), mine.begin(), mine.end());
  }
  return all;
}

struct Experts {
  explicit Experts(Bench& b) : shared(One(b, kFp8)) {
    for (int e = 0; e < b.shape().experts; ++e) routed.push_back(One(b, WeightFormat::kMxfp4));
  }
  static ExpertWeights One(Bench& b, WeightFormat format) {
    const ModelShape& s = b.shape();
    return {.w1 = b.Matrix(format, s.inter, s.dim),
            .w2 = b.Matrix(format, s.dim, s.inter),
            .w3 = b.Matrix(format, s.inter, s.dim)};
  }
  // Of so many routed ones and the shared one.
  [[nodiscard]] double bytes(double touched) const {
    return touched * static_cast<double>(backend::BytesOf(routed.front())) +
           static_cast<double>(backend::BytesOf(shared));
  }

  std::vector<ExpertWeights> routed;
  ExpertWeights shared;
};

// Several draws of experts, so that a replay does not find the last one's in the cache.
struct MoeCalls {
  MoeCalls(Bench& b, const Experts& experts, int rows, bool zipf, int sets, std::mt19937_64& random) {
    const ModelShape& s = b.shape();
    args = {.rows = rows,
            .x = b.Random<BFloat16>(CountOf(rows, s.dim), Pattern::kBF16),
            .weights = b.Place(std::vector<float>(CountOf(rows, s.topk), 0.25f)),
            .topk = s.topk,
            .expert_count = s.experts,
            .routed = experts.routed.data(),
            .shared = experts.shared,
            .swiglu_limit = 10,
            .y = b.Random<BFloat16>(CountOf(rows, s.dim), Pattern::kBF16)};
    for (int set = 0; set < sets; ++set) {
      std::vector<std::int32_t> choices = Choices(s, rows, zipf, random);
      chosen.push_back(b.Place(choices));
      std::sort(choices.begin(), choices.end());
      touched += static_cast<double>(std::unique(choices.begin(), choices.end()) - choices.begin()) / sets;
    }
  }
  void Run(Bench& b, const std::int32_t* experts) {
    args.experts = experts;
    b.backend().Moe(args);
  }

  backend::MoeArgs args;
  std::vector<const std::int32_t*> chosen;
  double touched = 0;  // experts of one set
};

struct Router {
  explicit Router(Bench& b)
      : gate(b.Matrix(WeightFormat::kBF16, b.shape().experts, b.shape().dim)),
        bias(b.Random<float>(static_cast<std::size_t>(b.shape().experts), Pattern::kFloat)) {}

  [[nodiscard]] backend::RouteArgs Args(Bench& b, const backend::StepView& step, const BFloat16* x) const {
    const std::size_t choices = CountOf(step.rows, b.shape().topk);
    return {.step = step,
            .x = x,
            .gate = gate,
            .bias = bias,
            .topk = b.shape().topk,
            .scale = 1.5f,
            .experts = b.Raw<std::int32_t>(choices),
            .weights = b.Raw<float>(choices)};
  }

  Weight gate;
  const float* bias;
};

void Moe(Bench& b, const std::vector<int>& row_counts) {
  const Experts experts(b);
  const Router router(b);
  std::mt19937_64 random(7);
  for (const int rows : row_counts) {
    for (const bool zipf : {false, true}) {
      const int sets = rows > 256 ? 1 : 4;
      MoeCalls calls(b, experts, rows, zipf, sets, random);
      const double flop = 2.0 * rows * 3 * b.shape().inter * b.shape().dim * (b.shape().topk + 1);
      b.Report(
          fmt::format("Moe {} rows, {}, {:.1f} experts", rows, zipf ? "Zipf" : "uniform", calls.touched),
          experts.bytes(calls.touched), flop, sets,
          [&] {
            for (const std::int32_t* chosen : calls.chosen) calls.Run(b, chosen);
          },
          rows > 256 ? 3 : 10);
    }
  }
  for (const int rows : row_counts) {
    const auto* x = b.Random<BFloat16>(CountOf(rows, b.shape().dim), Pattern::kBF16);
    const backend::RouteArgs args = router.Args(b, StepOf(b, rows), x);
    const Weight& gate = router.gate;
    b.Report(fmt::format("Route {} rows", rows), BytesOf({gate}),
             2.0 * rows * static_cast<double>(gate.rows * gate.cols), 1, [&] { b.backend().Route(args); });
  }
}

// Over a window and as many entries of a history of 8,192 tokens as an index lists.
backend::AttentionArgs AttentionOf(Bench& b, const backend::StepView& step) {
  const ModelShape& s = b.shape();
  const bool prefill = step.rows > 256;
  backend::HistorySlab slab{.ratio = 1, .latent_dim = s.head_dim, .index_dim = 128};
  slab.base = b.Random<std::byte>(CountOf(prefill ? 1 : step.rows, 64) * slab.block_bytes(), Pattern::kE4M3);
  std::vector<std::int32_t> list;
  const int listed = s.index_topk;
  for (int r = 0; r < step.rows; ++r) {
    const int visible = prefill ? r + 1 : 8192;
    for (int i = 0; i < listed; ++i) list.push_back(visible >= listed ? i * (visible / listed) : i < visible ? i : -1);
  }
  const int record = WindowBytes(s), places = kWindow + 5;
  return {.step = step,
          .q = b.Random<BFloat16>(CountOf(step.rows, s.heads * s.head_dim), Pattern::kBF16),
          .window = b.Random<std::uint8_t>(CountOf(step.rows, record), Pattern::kE4M3),
          .ring = {.base = b.Random<std::byte>(CountOf(step.rows, places * record), Pattern::kE4M3),
                   .slot_bytes = CountOf(places, record),
                   .rows = places,
                   .row_bytes = static_cast<std::size_t>(record)},
          .window_size = kWindow,
          .window_places = kWindow,
          .heads = s.heads,
          .head_dim = s.head_dim,
          .sink = b.Random<float>(static_cast<std::size_t>(s.heads), Pattern::kFloat),
          .rope = b.Rope(),
          .list = b.Place(list),
          .topk = listed,
          .slab = slab,
          .out = b.Raw<BFloat16>(CountOf(step.rows, s.heads * s.head_dim))};
}

// Keys, queries and the result.
double AttentionBytes(const backend::AttentionArgs& args) {
  const auto entry = static_cast<double>(args.slab.latent_bytes() + args.slab.latent_scales());
  return args.step.rows * (args.window_size * static_cast<double>(args.ring.row_bytes) + args.topk * entry +
                           4.0 * args.heads * args.head_dim);
}

void Attention(Bench& b, const std::vector<int>& row_counts) {
  for (const int rows : row_counts) {
    const bool prefill = rows > 256;
    const backend::AttentionArgs args = AttentionOf(b, b.Step(rows, 8191, prefill ? 1 : rows));
    b.Report(
        fmt::format("Attention {} rows, {} + {} keys", rows, args.window_size, args.topk), AttentionBytes(args),
        4.0 * rows * (args.window_size + args.topk) * args.heads * args.head_dim, 1,
        [&] { b.backend().Attention(args); }, prefill ? 3 : 20);
  }
}

void Index(Bench& b) {
  constexpr int kRows = 64, kPosition = 131071;
  const ModelShape& s = b.shape();
  const Weight wq_b = b.Matrix(kFp8, std::int64_t{s.index_heads} * 128, s.q_rank);
  const Weight proj = b.Matrix(WeightFormat::kBF16, s.index_heads, s.dim);
  const auto* x = b.Random<BFloat16>(CountOf(kRows, s.dim), Pattern::kBF16);
  const auto* qr = b.Random<BFloat16>(CountOf(kRows, s.q_rank), Pattern::kBF16);
  const backend::StepView step = b.Step(kRows, kPosition, kRows);
  auto* candidates = b.Raw<std::int32_t>(kRows * 2048);
  auto* list = b.Raw<std::int32_t>(CountOf(kRows, s.index_topk));
  const backend::Rope rope = b.Rope();
  for (const int ratio : {1, 2}) {
    backend::HistorySlab slab{.ratio = ratio, .latent_dim = s.head_dim, .index_dim = 128};
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
               kRows * keys * 68, kRows * keys * 2 * s.index_heads * 128, 1, [&] {
                 b.backend().IndexSelect({.step = step,
                                          .x = x,
                                          .qr = qr,
                                          .wq_b = wq_b,
                                          .weights_proj = proj,
                                          .heads = s.index_heads,
                                          .topk = s.index_topk,
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

backend::MhcBoundaryArgs BoundaryOf(Bench& b, int rows) {
  const auto t = static_cast<std::size_t>(rows), dim = static_cast<std::size_t>(b.shape().dim);
  auto *post = b.Random<float>(t * 4, Pattern::kFloat), *comb = b.Random<float>(t * 16, Pattern::kFloat);
  return {.rows = rows,
          .dim = b.shape().dim,
          .copies = 4,
          .norm_eps = 1e-20f,
          .h = b.Random<BFloat16>(t * 4 * dim, Pattern::kBF16),
          .y = b.Random<BFloat16>(t * dim, Pattern::kBF16),
          .post_in = post,
          .comb_in = comb,
          .fn = b.Random<float>(24 * 4 * dim, Pattern::kFloat),
          .base = b.Random<float>(24, Pattern::kFloat),
          .scale = b.Random<float>(3, Pattern::kFloat),
          .sinkhorn_iters = 20,
          .hc_eps = 1e-6f,
          .pre_out = b.Raw<float>(t * 4),
          .post_out = post,
          .comb_out = comb,
          .pre_in = b.Random<float>(t * 4, Pattern::kFloat),
          .norm = b.Random<BFloat16>(dim, Pattern::kBF16),
          .x = b.Raw<BFloat16>(t * dim)};
}

void Boundary(Bench& b, const std::vector<int>& row_counts) {
  for (const int rows : row_counts) {
    const backend::MhcBoundaryArgs args = BoundaryOf(b, rows);
    b.Report(fmt::format("MhcBoundary {} rows", rows), rows * (args.dim * 2.0 * 10) + 24 * 4.0 * args.dim * 4,
             rows * 2.0 * 24 * 4 * args.dim, 1, [&] { b.backend().MhcBoundary(args); });
  }
}

void Head(Bench& b) {
  const int dim = b.shape().dim;
  const Weight head = b.Matrix(WeightFormat::kBF16, kVocab, dim);
  const auto* norm = b.Random<BFloat16>(static_cast<std::size_t>(dim), Pattern::kBF16);
  for (const int rows : {1, 64}) {
    std::vector<std::int32_t> list;
    for (int i = 0; i < rows; ++i) list.push_back(i);
    const auto* x = b.Random<BFloat16>(CountOf(rows, dim), Pattern::kBF16);
    auto* logits = b.Raw<float>(static_cast<std::size_t>(rows) * kVocab);
    b.Report(fmt::format("Head {} rows", rows), static_cast<double>(kVocab) * dim * 2 + rows * 4.0 * kVocab,
             2.0 * rows * kVocab * dim, 1, [&] {
               b.backend().Head({.dim = dim,
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

// Draws from rows of bell-shaped logits: the launch, and under "call" all of Backend::Draw with copies and waiting.
void Draws(Bench& b, const std::vector<int>&) {
  constexpr int kMost = 64, kChanges = 500;
  std::mt19937_64 random(5);
  std::normal_distribution<float> normal(0, 3);
  std::vector<float> logits(static_cast<std::size_t>(kMost) * kVocab);
  for (float& v : logits) v = normal(random);
  const auto* placed = b.Place(logits);
  std::vector<std::uint32_t> words(backend::MaskWords(kVocab));
  for (std::uint32_t& word : words) word = static_cast<std::uint32_t>(random());
  std::vector<backend::LogitChange> changes;
  for (int i = 0; i < kChanges; ++i) changes.push_back({.id = i * 251, .bias = 0.5f, .penalty = 1});
  const auto* device_words = b.Place(words);
  const auto* device_changes = b.Place(changes);
  struct Kind {
    const char* name;
    float top_p;
    int top_k;
    bool changed;
    int alternatives;
  };
  constexpr Kind kKinds[] = {{"temperature", 1, 0, false, -1},
                             {"top-p 0.95", 0.95f, 0, false, -1},
                             {"top-k 50, top-p 0.95", 0.95f, 50, false, -1},
                             {"top-p, mask, penalties", 0.95f, 0, true, -1},
                             {"top-p, mask, penalties, 20 logprobs", 0.95f, 0, true, backend::kAlternativesMax}};
  auto* drawn = b.Raw<backend::DrawnToken>(kMost);
  auto* ranked = b.Raw<backend::RankedToken>(kMost * backend::kAlternativesMax);
  for (const Kind& kind : kKinds) {
    for (const int rows : {1, kMost}) {
      std::vector<backend::cuda::DrawRow> device_rows;
      std::vector<backend::DrawRequest> requests;
      for (int i = 0; i < rows; ++i) {
        const backend::SampleParams params{
            .top_k = kind.top_k, .top_p = kind.top_p, .seed = random(), .position = i + 1000};
        requests.push_back({.row = i, .params = params, .changes = {}, .given = -1, .alternatives = kind.alternatives});
        device_rows.push_back({.params = params, .row = i, .alternatives = kind.alternatives});
        if (!kind.changed) continue;
        requests.back().changes = {
            .allowed = words.data(), .repeated = words.data(), .repetition = 1.1f, .logits = changes};
        backend::cuda::DrawRow& row = device_rows.back();
        row.allowed = row.repeated = 0, row.change_count = kChanges, row.repetition = 1.1f;
      }
      backend::cuda::DrawLaunch launch{.count = rows,
                                       .vocab = kVocab,
                                       .logits = placed,
                                       .rows = b.Place(device_rows),
                                       .words = device_words,
                                       .changes = device_changes,
                                       .drawn = drawn,
                                       .ranked = ranked};
      backend::cuda::ChooseForm(requests, launch);
      const double bytes = rows * 4.0 * kVocab;
      b.Report(fmt::format("Draw {} rows, {}", rows, kind.name), bytes, 0, 1,
               [&] { backend::cuda::DrawRows(launch, static_cast<cudaStream_t>(backend::StreamOf(b.backend()))); });
      std::vector<backend::DrawnToken> tokens(static_cast<std::size_t>(rows));
      std::vector<backend::RankedToken> tops(static_cast<std::size_t>(rows) * backend::kAlternativesMax);
      constexpr int kCalls = 50;
      std::chrono::steady_clock::time_point begin;
      for (int call = -5; call < kCalls; ++call) {
        if (call == 0) begin = std::chrono::steady_clock::now();
        CHECK(b.backend().Draw({.count = rows,
                                .vocab = kVocab,
                                .logits = placed,
                                .requests = requests.data(),
                                .drawn = tokens.data(),
                                .ranked = tops.data()}))
            << kind.name;
      }
      const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - begin;
      b.Write(fmt::format("| the call, {} rows, {} | {:.1f} | | | | | | |\n", rows, kind.name, took.count() / kCalls));
    }
  }
}

// One decode layer without compressor and indexer, which 36 of the 40 layers do not have, nor Engram: every op that
// each layer has, in one graph. Not the model.
void Layer(Bench& b, const std::vector<int>& row_counts) {
  constexpr int kSets = 2;
  const Projections projections(b);
  const Experts experts(b);
  const Router router(b);
  std::mt19937_64 random(11);
  for (const int rows : row_counts) {
    if (rows > 256) continue;
    const backend::StepView step = b.Step(rows, 8191, rows);
    MoeCalls moe(b, experts, rows, false, kSets, random);
    backend::MhcBoundaryArgs boundary = BoundaryOf(b, rows);
    moe.args.x = boundary.x;
    boundary.y = moe.args.y;
    backend::AttnInArgs in = projections.In(b, step);
    in.x = boundary.x;
    backend::AttentionArgs attention = AttentionOf(b, step);
    attention.q = in.q;
    attention.window = in.window;
    const backend::AttnOutArgs out = projections.Out(attention.out, rows, moe.args.y);
    const backend::RouteArgs route = router.Args(b, step, boundary.x);
    const double bytes = projections.in_bytes() + projections.out_bytes() + experts.bytes(moe.touched) +
                         BytesOf({router.gate}) + 2 * 24 * 16.0 * b.shape().dim + AttentionBytes(attention);
    b.Report(
        fmt::format("decode layer, {} rows, {:.1f} experts, without index", rows, moe.touched), bytes, 0, kSets,
        [&] {
          for (const std::int32_t* chosen : moe.chosen) {
            b.backend().MhcBoundary(boundary);
            b.backend().AttnIn(in);
            b.backend().Attention(attention);
            b.backend().WindowWrite({.step = step, .window = in.window, .ring = attention.ring});
            b.backend().AttnOut(out);
            b.backend().MhcBoundary(boundary);
            b.backend().Route(route);
            moe.Run(b, chosen);
          }
        },
        20);
  }
}

// What products of FP8 codes could reach without copies, exact in bf16 and as FP8 products.
void ProductRates(Bench& b) {
  struct Way {
    ProductWay way;
    const char* name;
  };
  constexpr Way kWays[] = {{ProductWay::kExact, "decoded to bf16"},
                           {ProductWay::kPromoted, "e4m3, sums of 32 scaled and added"},
                           {ProductWay::kBare, "bf16 alone"}};
  constexpr int kBlocks = 4096;
  const int multiprocessors = MultiprocessorCount();
  auto* out = b.Raw<float>(static_cast<std::size_t>(multiprocessors) * 384);
  for (const int columns : {128, 192}) {
    for (const Way& way : kWays) {
      const int rows = RowsOf(way.way, columns);
      b.ReportAlone(fmt::format("products in shared memory, {} x {}, {}", rows, columns, way.name),
                    2.0 * rows * 32 * columns * kBlocks * multiprocessors,
                    [&] { MultiplyInShared(way.way, columns, kBlocks, multiprocessors, out, b.stream()); });
    }
  }
}

struct Part {
  std::string_view name;
  void (*run)(Bench& b, const std::vector<int>& row_counts);
};
constexpr Part kParts[] = {
    {"layer", Layer},
    {"moe", Moe},
    {"dense", Dense},
    {"attention", Attention},
    {"mhc", Boundary},
    {"head", [](Bench& b, const std::vector<int>&) { Head(b); }},
    {"index", [](Bench& b, const std::vector<int>&) { Index(b); }},
    {"draw", Draws},
    {"products", [](Bench& b, const std::vector<int>&) { ProductRates(b); }},
};

}  // namespace

Status RunCudaBench(const CudaBenchOptions& options, const CudaBenchWrite& write) {
  std::string names = "placement, collectives (each alone)";
  for (const Part& part : kParts) names += fmt::format(", {}", part.name);
  for (const std::string& name : options.only) {
    const bool alone = name == "placement" || name == "collectives";
    if (alone && options.only.size() > 1)
      return Err(ErrorCode::kInvalidArgument, fmt::format("{} is measured alone", name), "only");
    if (!alone && std::ranges::find(kParts, name, &Part::name) == std::end(kParts)) {
      return Err(ErrorCode::kInvalidArgument, fmt::format("\"{}\" is no part; parts are {}", name, names), "only");
    }
  }
  if (options.only == std::vector<std::string>{"placement"}) {
    if (options.shape.name != "v41")
      return Err(ErrorCode::kUnsupported, "placement is measured at the shape v41 only; leave this option out",
                 "shape");
    return RunPlacementBench(write);
  }
  if (options.only == std::vector<std::string>{"collectives"}) return RunCollectivesBench(write);
  std::vector<std::unique_ptr<backend::Backend>> forms;
  using backend::ProductForm;
  for (const ProductForm form : {ProductForm::kStream, ProductForm::kSplit, ProductForm::kAuto}) {
    ASSIGN_OR_RETURN(std::unique_ptr<backend::Backend> made,
                     backend::MakeCudaBackend({.device = 0, .graphs = false, .linears = form, .experts = form}));
    forms.push_back(std::move(made));
  }
  Bench bench(std::move(forms), options.shape, write);
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
