// SPDX-License-Identifier: Apache-2.0
// `galley bench layers`: one layer of a model at its true shape on the cpu backend, with random weights, beside what
// the machine can do at best in the same run: bytes read in order a second, and products of registers a second.
#include <fmt/core.h>
#include <time.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "bench.h"
#include "galley/backend/cpu/cpu_backend.h"
#include "galley/backend/cpu/topology.h"
#include "galley/base/check.h"
#include "galley/base/rng.h"

namespace galley::app {
namespace {

using backend::Weight;
using backend::WeightFormat;

// Hidden size and so on of one layer; formats and ops are those of V4.1 whatever the shape.
struct Shape {
  std::string_view name;
  int dim, q_rank, heads, head_dim, o_groups, o_rank, inter, experts, topk, index_heads, index_topk;
};
constexpr Shape kShapes[] = {
    {"v41", 5120, 1280, 64, 512, 8, 1024, 2304, 384, 6, 32, 512},
    {"v4flash", 4096, 1024, 64, 512, 8, 1024, 2048, 256, 6, 64, 512},
    {"v4pro", 7168, 1536, 128, 512, 16, 1024, 3072, 384, 6, 64, 1024},
};
constexpr int kCopies = 4, kIndexDim = 128, kRopeDims = 64, kWindow = 128, kHistory = 8192, kPrefillRows = 512;
constexpr int kDenseSets = 2;  // used in turn, so that no cache holds what the next run reads
// Experts that are held: enough that those of one step are not in a cache when it comes.
constexpr int kExpertsHeld = 24;

using Bytes = std::vector<std::byte>;

// Random codes. FP8 and bf16 take exponents near those of trained weights; every MXFP4 code appears.
std::byte* Random(std::vector<Bytes>& store, std::size_t bytes, std::uint64_t keep, std::uint64_t set) {
  Bytes& data = store.emplace_back((bytes + 7) / 8 * 8 + 64);
  std::uint64_t state = 0x9E3779B97F4A7C15ull * (store.size() + 1);
  for (std::size_t i = 0; i < data.size(); i += 8) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    const std::uint64_t word = (state & keep) | set;
    std::copy_n(reinterpret_cast<const std::byte*>(&word), 8, data.data() + i);
  }
  return data.data();
}

struct Matrices {
  std::vector<Bytes> store;
  double bytes = 0;

  Weight Make(WeightFormat format, std::int64_t rows, std::int64_t cols) {
    const auto n = static_cast<std::size_t>(rows * cols);
    Weight weight = {.format = format, .rows = rows, .cols = cols};
    switch (format) {
      case WeightFormat::kMxfp4:
        weight.data = Random(store, n / 2, ~0ull, 0);
        weight.scales = Scales(n / 32);
        break;
      case WeightFormat::kFp8Block32:
        weight.data = Random(store, n, 0xB7B7B7B7B7B7B7B7ull, 0x2020202020202020ull);
        weight.scales = Scales(n / 1024);
        break;
      case WeightFormat::kBF16:
        weight.data = Random(store, n * 2, 0x807F807F807F807Full, 0x3C003C003C003C00ull);
        break;
      case WeightFormat::kF32:
        weight.data = Random(store, n * 4, 0x807FFFFF807FFFFFull, 0x3C0000003C000000ull);
        break;
    }
    return weight;
  }
  template <typename T>
  T* Values(std::size_t count, std::uint64_t keep, std::uint64_t set) {
    return reinterpret_cast<T*>(Random(store, count * sizeof(T), keep, set));
  }

 private:
  const std::uint8_t* Scales(std::size_t count) {
    return reinterpret_cast<const std::uint8_t*>(
        Random(store, count, 0x0303030303030303ull, 0x7474747474747474ull));  // 2^-11 … 2^-8
  }
};

std::size_t WeightBytes(const Weight& w) {
  const auto n = static_cast<std::size_t>(w.rows * w.cols);
  switch (w.format) {
    case WeightFormat::kMxfp4:
      return n / 2 + n / 32;
    case WeightFormat::kFp8Block32:
      return n + n / 1024;
    case WeightFormat::kBF16:
      return n * 2;
    case WeightFormat::kF32:
      return n * 4;
  }
  return 0;
}

struct Dense {
  Weight wq_a, wq_b, wkv, wo_a, wo_b, index_q, index_w, gate, fn_attn, fn_ffn;
  backend::ExpertWeights shared;
};

backend::ExpertWeights MakeExpert(Matrices& make, WeightFormat format, const Shape& s) {
  return {.w1 = make.Make(format, s.inter, s.dim),
          .w2 = make.Make(format, s.dim, s.inter),
          .w3 = make.Make(format, s.inter, s.dim)};
}

Dense MakeDense(Matrices& make, const Shape& s) {
  constexpr auto kFp8 = WeightFormat::kFp8Block32;
  Dense d;
  d.wq_a = make.Make(kFp8, s.q_rank, s.dim);
  d.wq_b = make.Make(kFp8, std::int64_t{s.heads} * s.head_dim, s.q_rank);
  d.wkv = make.Make(kFp8, s.head_dim, s.dim);
  d.wo_a = make.Make(kFp8, std::int64_t{s.o_groups} * s.o_rank, std::int64_t{s.heads} * s.head_dim / s.o_groups);
  d.wo_b = make.Make(kFp8, s.dim, std::int64_t{s.o_groups} * s.o_rank);
  d.index_q = make.Make(kFp8, std::int64_t{s.index_heads} * kIndexDim, s.q_rank);
  d.index_w = make.Make(WeightFormat::kBF16, s.index_heads, s.dim);
  d.gate = make.Make(WeightFormat::kBF16, s.experts, s.dim);
  d.fn_attn = make.Make(WeightFormat::kF32, kCopies * (kCopies + 2), std::int64_t{kCopies} * s.dim);
  d.fn_ffn = make.Make(WeightFormat::kF32, kCopies * (kCopies + 2), std::int64_t{kCopies} * s.dim);
  d.shared = MakeExpert(make, kFp8, s);
  return d;
}

struct Op {
  std::string name;
  double bytes = 0;  // of weights and history that it must read
  double flops = 0;  // of its matrix products and attention
  std::function<void(int run)> call;
};

double ExpertBytes(const backend::ExpertWeights& e) {
  return static_cast<double>(WeightBytes(e.w1) + WeightBytes(e.w2) + WeightBytes(e.w3));
}

// A layer with everything it works on, for steps of up to kPrefillRows rows.
class Layer {
 public:
  Layer(backend::cpu::CpuBackend& cpu, const Shape& shape) : cpu_(cpu), s_(shape) {
    for (Dense& set : dense_) set = MakeDense(weights_, s_);
    for (int e = 0; e < kExpertsHeld; ++e) experts_.push_back(MakeExpert(weights_, WeightFormat::kMxfp4, s_));
    const auto rows = static_cast<std::size_t>(kPrefillRows), dim = static_cast<std::size_t>(s_.dim);
    const auto wide = static_cast<std::size_t>(s_.heads * s_.head_dim);
    const auto bf16 = [&](std::size_t n) { return Bf16(n); };
    h_ = bf16(rows * kCopies * dim);
    x_ = bf16(rows * dim);
    y_ = bf16(rows * dim);
    qr_ = bf16(rows * static_cast<std::size_t>(s_.q_rank));
    q_ = bf16(rows * wide);
    o_ = bf16(rows * wide);
    norm_ = bf16(std::max(dim, wide));
    floats_ = weights_.Values<float>(rows * 64 + static_cast<std::size_t>(s_.experts), 0x807FFFFF807FFFFFull,
                                     0x3E0000003E000000ull);
    pre_.resize(rows * kCopies);
    post_.resize(rows * kCopies);
    comb_.resize(rows * kCopies * kCopies);
    route_.resize(rows * static_cast<std::size_t>(s_.topk));
    route_weights_.assign(route_.size(), 0.25f);
    routed_.resize(route_.size());
    list_.resize(rows * static_cast<std::size_t>(s_.index_topk));
    window_.resize(rows * backend::WindowRecordBytes(s_.head_dim));
    ring_ = {.base = Random(weights_.store, 133 * backend::WindowRecordBytes(s_.head_dim), 0x3737373737373737ull,
                            0x4040404040404040ull),
             .slot_bytes = 133 * backend::WindowRecordBytes(s_.head_dim),
             .rows = 133,
             .row_bytes = backend::WindowRecordBytes(s_.head_dim)};
    slab_ = {.base = nullptr, .ratio = 1, .latent_dim = s_.head_dim, .index_dim = kIndexDim};
    const int block_count = (kHistory + kPrefillRows) / backend::kBlockTokens + 1;
    slab_.base =
        Random(weights_.store, static_cast<std::size_t>(block_count) * slab_.block_bytes(), 0x7777777777777777ull, 0);
    for (int b = 0; b < block_count; ++b) blocks_.push_back(b);
    frequencies_.assign(kRopeDims / 2, 0.01f);
  }

  std::vector<Op> Ops(int rows);

 private:
  BFloat16* Bf16(std::size_t n) { return weights_.Values<BFloat16>(n, 0x807F807F807F807Full, 0x3F003F003F003F00ull); }
  const Dense& dense(int run) const { return dense_[static_cast<std::size_t>(run % kDenseSets)]; }
  void Boundary(const Weight& fn, int rows);
  [[nodiscard]] backend::StepView Step(int rows);

  backend::cpu::CpuBackend& cpu_;
  const Shape& s_;
  Matrices weights_;
  Dense dense_[kDenseSets];
  std::vector<backend::ExpertWeights> experts_;
  BFloat16 *h_, *x_, *y_, *qr_, *q_, *o_, *norm_;
  float* floats_;
  std::vector<float> pre_, post_, comb_, route_weights_, routed_, frequencies_;
  std::vector<std::int32_t> route_, list_, blocks_, positions_, sequence_of_;
  std::vector<std::uint8_t> window_;
  backend::Ring ring_;
  backend::HistorySlab slab_;
  backend::SequenceEntry entry_;
};

backend::StepView Layer::Step(int rows) {
  entry_ = {.rows = rows, .start = kHistory};
  positions_.resize(static_cast<std::size_t>(rows));
  for (int i = 0; i < rows; ++i) positions_[static_cast<std::size_t>(i)] = kHistory + i;
  sequence_of_.assign(static_cast<std::size_t>(rows), 0);
  return {.rows = rows,
          .sequences = 1,
          .tokens = nullptr,
          .positions = positions_.data(),
          .row_sequence = sequence_of_.data(),
          .image_rows = nullptr,
          .table = &entry_,
          .blocks = blocks_.data()};
}

void Layer::Boundary(const Weight& fn, int rows) {
  cpu_.MhcBoundary({.rows = rows,
                    .dim = s_.dim,
                    .copies = kCopies,
                    .norm_eps = 1e-6f,
                    .h = h_,
                    .y = y_,
                    .post_in = floats_,
                    .comb_in = floats_,
                    .fn = static_cast<const float*>(fn.data),
                    .base = floats_,
                    .scale = floats_,
                    .sinkhorn_iters = 20,
                    .hc_eps = 1e-6f,
                    .pre_out = pre_.data(),
                    .post_out = post_.data(),
                    .comb_out = comb_.data(),
                    .pre_in = floats_,
                    .norm = norm_,
                    .x = x_});
}

std::vector<Op> Layer::Ops(int rows) {
  const backend::StepView step = Step(rows);
  const Dense& d = dense_[0];
  const auto size = [](const Weight& w) { return static_cast<double>(w.rows * w.cols); };
  const auto bytes = [](std::initializer_list<const Weight*> list) {
    double sum = 0;
    for (const Weight* w : list) sum += static_cast<double>(WeightBytes(*w));
    return sum;
  };
  const double t = rows;
  const double places = kWindow + std::min(s_.index_topk, kHistory);
  const int touched = std::min(kExpertsHeld, rows * s_.topk);
  const backend::Rope rope = {frequencies_.data(), kRopeDims};
  std::vector<Op> ops;
  ops.push_back({"mhc (twice)", bytes({&d.fn_attn, &d.fn_ffn}), 0, [=, this](int run) {
                   Boundary(dense(run).fn_attn, rows);
                   Boundary(dense(run).fn_ffn, rows);
                 }});
  ops.push_back({"queries, window rows", bytes({&d.wq_a, &d.wq_b, &d.wkv}),
                 2 * t * (size(d.wq_a) + size(d.wq_b) + size(d.wkv)), [=, this](int run) {
                   const Dense& w = dense(run);
                   cpu_.AttnIn({.step = step,
                                .x = x_,
                                .wq_a = w.wq_a,
                                .wq_b = w.wq_b,
                                .wkv = w.wkv,
                                .q_norm = norm_,
                                .kv_norm = norm_,
                                .heads = s_.heads,
                                .head_dim = s_.head_dim,
                                .eps = 1e-6f,
                                .rope = rope,
                                .qr = qr_,
                                .q = q_,
                                .window = window_.data()});
                 }});
  const double keys = kHistory;
  ops.push_back({"index, top-k", bytes({&d.index_q, &d.index_w}) + keys * (kIndexDim / 2 + kIndexDim / 32),
                 2 * t * (size(d.index_q) + size(d.index_w) + keys * s_.index_heads * kIndexDim), [=, this](int run) {
                   cpu_.IndexSelect({.step = step,
                                     .x = x_,
                                     .qr = qr_,
                                     .wq_b = dense(run).index_q,
                                     .weights_proj = dense(run).index_w,
                                     .heads = s_.index_heads,
                                     .topk = s_.index_topk,
                                     .rope = rope,
                                     .slab = slab_,
                                     .list = list_.data()});
                 }});
  ops.push_back({"attention",
                 kWindow * static_cast<double>(ring_.row_bytes) +
                     s_.index_topk * static_cast<double>(slab_.latent_bytes() + slab_.latent_scales()),
                 4 * t * places * s_.heads * s_.head_dim, [=, this](int) {
                   cpu_.Attention({.step = step,
                                   .q = q_,
                                   .window = window_.data(),
                                   .ring = ring_,
                                   .window_size = kWindow,
                                   .window_places = kWindow,
                                   .heads = s_.heads,
                                   .head_dim = s_.head_dim,
                                   .sink = floats_,
                                   .rope = rope,
                                   .list = list_.data(),
                                   .topk = s_.index_topk,
                                   .slab = slab_,
                                   .out = o_});
                 }});
  ops.push_back(
      {"output projection", bytes({&d.wo_a, &d.wo_b}), 2 * t * (size(d.wo_a) + size(d.wo_b)), [=, this](int run) {
         cpu_.AttnOut(
             {.rows = rows, .groups = s_.o_groups, .o = o_, .wo_a = dense(run).wo_a, .wo_b = dense(run).wo_b, .y = y_});
       }});
  ops.push_back({"router", bytes({&d.gate}), 2 * t * size(d.gate), [=, this](int run) {
                   cpu_.Route({.step = step,
                               .x = x_,
                               .gate = dense(run).gate,
                               .bias = floats_,
                               .topk = s_.topk,
                               .experts = route_.data(),
                               .weights = routed_.data()});
                 }});
  ops.push_back({"experts", touched * ExpertBytes(experts_[0]) + ExpertBytes(d.shared),
                 2 * t * (s_.topk + 1) * 3 * s_.inter * s_.dim, [=, this](int run) {
                   // Every step takes other experts, evenly.
                   for (int i = 0; i < rows * s_.topk; ++i)
                     route_[static_cast<std::size_t>(i)] = (run * s_.topk + i) % kExpertsHeld;
                   cpu_.Moe({.rows = rows,
                             .x = x_,
                             .experts = route_.data(),
                             .weights = route_weights_.data(),
                             .topk = s_.topk,
                             .expert_count = kExpertsHeld,
                             .routed = experts_.data(),
                             .shared = dense(run).shared,
                             .swiglu_limit = 10,
                             .y = y_});
                 }});
  return ops;
}

double Seconds(clockid_t clock) {
  timespec time{};
  clock_gettime(clock, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

// The least time of several runs, by the wall or, on a machine that others use too, by the processor time of this
// program shared out over its threads.
class Stopwatch {
 public:
  Stopwatch(bool processor_time, int threads) : processor_time_(processor_time), threads_(threads) {}
  [[nodiscard]] double Least(int runs, const std::function<void(int)>& call) const {
    double least = 1e30;
    for (int run = 0; run < runs; ++run) {
      const double begin = Now();
      call(run);
      least = std::min(least, Now() - begin);
    }
    return least;
  }

 private:
  [[nodiscard]] double Now() const {
    return processor_time_ ? Seconds(CLOCK_PROCESS_CPUTIME_ID) / threads_ : Seconds(CLOCK_MONOTONIC);
  }
  bool processor_time_;
  int threads_;
};

struct Ceiling {
  double read_bytes = 0, flops = 0;  // a second
};

Ceiling Measure(const backend::cpu::Kernels& kernels, backend::cpu::Team& team, const Stopwatch& watch) {
  constexpr std::size_t kPiece = std::size_t{4} << 20, kPieces = 128;  // 512 MiB: more than caches hold
  const std::unique_ptr<std::byte[]> data(new std::byte[kPiece * kPieces + 8192]);
  std::fill_n(data.get(), kPiece * kPieces + 8192, std::byte{1});
  std::vector<std::uint32_t> seen(kPieces);
  constexpr double kLarge = 1e9;
  const double read = watch.Least(7, [&](int) {
    team.Run(kPieces, kLarge, [&](std::int64_t i, int) {
      seen[static_cast<std::size_t>(i)] = kernels.read_lines(data.get() + static_cast<std::size_t>(i) * kPiece, kPiece);
    });
  });
  constexpr std::int64_t kDots = 200'000;
  std::vector<float> sums(static_cast<std::size_t>(team.threads()) * 4);
  const double dots = watch.Least(7, [&](int) {
    team.Run(static_cast<std::int64_t>(sums.size()), kLarge,
             [&](std::int64_t i, int) { sums[static_cast<std::size_t>(i)] = kernels.run_dots(kDots); });
  });
  CHECK(sums[0] > 0) << "products of positive numbers";
  return {static_cast<double>(kPiece * kPieces) / read,
          static_cast<double>(kDots) * 16 * 64 * static_cast<double>(sums.size()) / dots};
}

void Report(Terminal& terminal, std::vector<Op> ops, const Stopwatch& watch, const Ceiling& ceiling, int rows) {
  const bool decode = rows == 1;
  terminal.Write(fmt::format("\n{:<24}{:>10}{:>10}{:>12}{:>14}\n", fmt::format("{} row{}", rows, decode ? "" : "s"),
                             "ms", decode ? "MB" : "GFLOP", decode ? "GB/s" : "GFLOP/s",
                             decode ? "of read" : "of products"));
  double all_ms = 0, all_work = 0;
  const auto line = [&](const std::string& name, double ms, double work) {
    const double rate = work / ms * 1e3, best = decode ? ceiling.read_bytes : ceiling.flops;
    terminal.Write(fmt::format("{:<24}{:>10.3f}{:>10.2f}{:>12.1f}{:>13.0f}%\n", name, ms, work / (decode ? 1e6 : 1e9),
                               rate / 1e9, 100 * rate / best));
  };
  for (const Op& op : ops) {
    op.call(0);  // memory of the op grows once
    const double ms = 1e3 * watch.Least(decode ? 12 : 3, op.call);
    const double work = decode ? op.bytes : op.flops;
    line(op.name, ms, work);
    all_ms += ms;
    all_work += work;
  }
  line("the layer", all_ms, all_work);
}

Result<int> RunCuda([[maybe_unused]] Context& context, [[maybe_unused]] bool layers) {
#ifdef GALLEY_CUDA
  return RunBenchCuda(context, layers);
#else
  return Err(ErrorCode::kUnsupported, "this build has no cuda backend; make one with `make cuda`", "backend");
#endif
}

}  // namespace

Result<int> RunBenchKernels(Context& context) {
  const std::string& backend = context.values.String("backend");
  if (backend == "cuda") return RunCuda(context, /*layers=*/false);
  return Err(ErrorCode::kUnsupported,
             fmt::format("measures the cuda backend only, not {}; add --backend cuda", backend), "kernels");
}

Result<int> RunBenchLayers(Context& context) {
  const options::Values& values = context.values;
  const std::string &shape_name = values.String("shape"), &backend_name = values.String("backend");
  if (backend_name == "cuda") return RunCuda(context, /*layers=*/true);
  if (backend_name != "cpu" && backend_name != "auto") {
    return Err(ErrorCode::kUnsupported, fmt::format("measures the cpu and cuda backends, not {}", backend_name),
               "layers");
  }
  const auto* shape =
      std::find_if(std::begin(kShapes), std::end(kShapes), [&](const Shape& s) { return s.name == shape_name; });
  CHECK(shape != std::end(kShapes)) << "the option table allows " << shape_name;
  ASSIGN_OR_RETURN(const backend::cpu::IsaEntry* isa, backend::cpu::FindIsa(values.String("isa")));
  const int threads = backend::cpu::PlaceThreads(static_cast<int>(values.Int("threads"))).threads;
  backend::cpu::CpuBackend cpu({.threads = threads, .isa = "auto", .processors = {}}, *isa);
  const bool processor_time = values.Bool("processor-time");
  const Stopwatch watch(processor_time, threads);

  backend::cpu::Team team(threads);
  const Ceiling ceiling = Measure(isa->kernels(), team, watch);
  context.terminal.Write(
      fmt::format("{} layer with history of {} tokens, random weights, {} of {} experts held; {}, {} thread{}, {}\n"
                  "in this run: memory read {:.1f} GB/s, products of registers {:.1f} GFLOP/s\n",
                  shape->name, kHistory, kExpertsHeld, shape->experts, isa->name, threads, threads == 1 ? "" : "s",
                  processor_time ? "processor time" : "wall time", ceiling.read_bytes / 1e9, ceiling.flops / 1e9));
  Layer layer(cpu, *shape);
  for (const int rows : {1, kPrefillRows}) Report(context.terminal, layer.Ops(rows), watch, ceiling, rows);
  return kExitOk;
}

}  // namespace galley::app
