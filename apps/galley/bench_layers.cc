// SPDX-License-Identifier: Apache-2.0
// `galley bench layers`: one layer of a model at its true shape on the cpu backend, with random weights, in turn with
// what the machine can do at best: bytes read in order a second, and products of registers a second. Fractions are
// those of each round, because the machine may have other work.
#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "bench.h"
#include "galley/backend/cpu/cpu_backend.h"
#include "galley/backend/cpu/topology.h"
#include "galley/base/check.h"
#include "galley/base/math.h"

namespace galley::app {
namespace {

using backend::Weight;
using backend::WeightFormat;
using model::ModelShape;

constexpr int kCopies = 4, kIndexDim = 128, kRopeDims = 64, kWindow = 128, kHistory = 8192, kPrefillRows = 512;
// Weights that rounds use in turn, so that no cache holds what the next one reads. Of an expert's number the rest
// modulo kExpertsHeld tells which it shares its weights with.
constexpr int kDenseSets = 2, kExpertsHeld = 24;
constexpr int kIndexBytes = kIndexDim / 2 + kIndexDim / 32;  // of a key and its scales
constexpr int kDecodeRounds = 25, kPrefillRounds = 3;

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
  int scale_block = 32;

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
        weight.scales = BlockScales(rows, cols);
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
  const std::uint8_t* BlockScales(std::int64_t rows, std::int64_t cols) {
    const std::int64_t down = CeilDiv<std::int64_t>(rows, 32), across = CeilDiv<std::int64_t>(cols, 32);
    const std::uint8_t* scales = Scales(static_cast<std::size_t>(down * across));
    auto* spread = const_cast<std::uint8_t*>(scales);
    const std::int64_t step = scale_block / 32;
    for (std::int64_t r = 0; r < down; ++r) {
      for (std::int64_t c = 0; c < across; ++c)
        spread[r * across + c] = scales[r / step * step * across + c / step * step];
    }
    return scales;
  }
  const std::uint8_t* Scales(std::size_t count) {
    return reinterpret_cast<const std::uint8_t*>(
        Random(store, count, 0x0303030303030303ull, 0x7474747474747474ull));  // 2^-11 … 2^-8
  }
};

struct Dense {
  Weight wq_a, wq_b, wkv, wo_a, wo_b, index_q, index_w, gate, fn_attn, fn_ffn;
  backend::ExpertWeights shared;
};

backend::ExpertWeights MakeExpert(Matrices& make, WeightFormat format, const ModelShape& s) {
  return {.w1 = make.Make(format, s.inter, s.dim),
          .w2 = make.Make(format, s.dim, s.inter),
          .w3 = make.Make(format, s.inter, s.dim)};
}

Dense MakeDense(Matrices& make, const ModelShape& s) {
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
  double bytes = 0;      // of weights and history that it must read
  double flops = 0;      // of its matrix products and attention, but
  double fp4_flops = 0;  // those of MXFP4 matrices
  std::function<void(int run)> call;
};

// A layer with everything it works on, for steps of up to kPrefillRows rows.
class Layer {
 public:
  Layer(backend::cpu::CpuBackend& cpu, const ModelShape& shape) : cpu_(cpu), s_(shape) {
    weights_.scale_block = s_.scale_block;
    for (Dense& set : dense_) set = MakeDense(weights_, s_);
    for (int e = 0; e < s_.experts; ++e) {
      experts_.push_back(e < kExpertsHeld ? MakeExpert(weights_, WeightFormat::kMxfp4, s_)
                                          : experts_[static_cast<std::size_t>(e % kExpertsHeld)]);
    }
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
  // The experts of one row and one more in place of the shared one, all MXFP4: for comparison with others' products.
  Op Fp4Experts();

 private:
  void Moe(int first, int rows, const backend::ExpertWeights& shared);
  BFloat16* Bf16(std::size_t n) { return weights_.Values<BFloat16>(n, 0x807F807F807F807Full, 0x3F003F003F003F00ull); }
  const Dense& dense(int run) const { return dense_[static_cast<std::size_t>(run % kDenseSets)]; }
  void Boundary(const Weight& fn, int rows);
  [[nodiscard]] backend::StepView Step(int rows);

  backend::cpu::CpuBackend& cpu_;
  const ModelShape& s_;
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
    for (const Weight* w : list) sum += static_cast<double>(backend::BytesOf(*w));
    return sum;
  };
  const double t = rows;
  const double places = kWindow + std::min(s_.index_topk, kHistory);
  const int touched = std::min(s_.experts, rows * s_.topk);
  const backend::Rope rope = {frequencies_.data(), kRopeDims};
  std::vector<Op> ops;
  ops.push_back({"mhc (twice)", bytes({&d.fn_attn, &d.fn_ffn}), 2 * t * (size(d.fn_attn) + size(d.fn_ffn)), 0,
                 [=, this](int run) {
                   Boundary(dense(run).fn_attn, rows);
                   Boundary(dense(run).fn_ffn, rows);
                 }});
  ops.push_back({"queries, window rows", bytes({&d.wq_a, &d.wq_b, &d.wkv}),
                 2 * t * (size(d.wq_a) + size(d.wq_b) + size(d.wkv)), 0, [=, this](int run) {
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
  ops.push_back({"index, top-k", bytes({&d.index_q, &d.index_w}) + keys * kIndexBytes,
                 2 * t * (size(d.index_q) + size(d.index_w) + keys * s_.index_heads * kIndexDim), 0,
                 [=, this](int run) {
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
                 4 * t * places * s_.heads * s_.head_dim, 0, [=, this](int) {
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
      {"output projection", bytes({&d.wo_a, &d.wo_b}), 2 * t * (size(d.wo_a) + size(d.wo_b)), 0, [=, this](int run) {
         cpu_.AttnOut(
             {.rows = rows, .groups = s_.o_groups, .o = o_, .wo_a = dense(run).wo_a, .wo_b = dense(run).wo_b, .y = y_});
       }});
  ops.push_back({"router", bytes({&d.gate}), 2 * t * size(d.gate), 0, [=, this](int run) {
                   cpu_.Route({.step = step,
                               .x = x_,
                               .gate = dense(run).gate,
                               .bias = floats_,
                               .topk = s_.topk,
                               .experts = route_.data(),
                               .weights = routed_.data()});
                 }});
  ops.push_back(
      {"experts",
       touched * static_cast<double>(backend::BytesOf(experts_[0])) + static_cast<double>(backend::BytesOf(d.shared)),
       2 * t * 3 * s_.inter * s_.dim, 2 * t * s_.topk * 3 * s_.inter * s_.dim,
       [=, this](int run) { Moe(run * s_.topk, rows, dense(run).shared); }});
  return ops;
}

// Takes experts evenly, from `first` on.
void Layer::Moe(int first, int rows, const backend::ExpertWeights& shared) {
  for (int i = 0; i < rows * s_.topk; ++i) route_[static_cast<std::size_t>(i)] = (first + i) % s_.experts;
  cpu_.Moe({.rows = rows,
            .x = x_,
            .experts = route_.data(),
            .weights = route_weights_.data(),
            .topk = s_.topk,
            .expert_count = s_.experts,
            .routed = experts_.data(),
            .shared = shared,
            .swiglu_limit = 10,
            .y = y_});
}

Op Layer::Fp4Experts() {
  return {"experts, MXFP4", (s_.topk + 1) * static_cast<double>(backend::BytesOf(experts_[0])), 0, 0, [this](int run) {
            const int first = run * (s_.topk + 1);
            Moe(first, 1, experts_[static_cast<std::size_t>((first + s_.topk) % s_.experts)]);
          }};
}

double Seconds(clockid_t clock) {
  timespec time{};
  clock_gettime(clock, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

// Time by the wall or, on a machine that others use too, processor time of this program shared out over its threads.
class Stopwatch {
 public:
  Stopwatch(bool processor_time, int threads) : processor_time_(processor_time), threads_(threads) {}
  [[nodiscard]] double Time(const std::function<void()>& call) const {
    const double begin = Now();
    call();
    return Now() - begin;
  }

 private:
  [[nodiscard]] double Now() const {
    return processor_time_ ? Seconds(CLOCK_PROCESS_CPUTIME_ID) / threads_ : Seconds(CLOCK_MONOTONIC);
  }
  bool processor_time_;
  int threads_;
};

// What the machine does at best, measured when asked.
class Machine {
 public:
  Machine(const backend::cpu::Kernels& kernels, backend::cpu::Team& team, const Stopwatch& watch)
      : kernels_(kernels), team_(team), watch_(watch), data_(new std::byte[kPiece * kPieces + kBehind]) {
    std::fill_n(data_.get(), kPiece * kPieces + kBehind, std::byte{1});
  }
  // Bytes a second, read in order.
  [[nodiscard]] double Read() {
    std::vector<std::uint32_t> seen(kPieces);
    const double time = watch_.Time([&] {
      team_.Run(kPieces, kLarge, [&](std::int64_t i, int) {
        const auto piece = static_cast<std::size_t>(i);
        seen[piece] = kernels_.read_lines(data_.get() + piece * kPiece, kPiece);
      });
    });
    return static_cast<double>(kPiece * kPieces) / time;
  }
  // Operations a second, two for a product and its sum.
  [[nodiscard]] double Floats() { return Operations(kernels_.run_floats, 16); }
  [[nodiscard]] double Fp4() { return kernels_.run_fp4 == nullptr ? Floats() : Operations(kernels_.run_fp4, 128); }

 private:
  static constexpr std::size_t kPiece = std::size_t{1} << 20, kPieces = 512;  // more than caches hold
  static constexpr std::size_t kBehind = 8192;                                // asked for in advance
  static constexpr double kLarge = 1e9;

  double Operations(float (*run)(std::int64_t), int products) {
    constexpr std::int64_t kSteps = 200'000;
    std::vector<float> sums(static_cast<std::size_t>(team_.threads()) * 4);
    const double time = watch_.Time([&] {
      team_.Run(static_cast<std::int64_t>(sums.size()), kLarge,
                [&](std::int64_t i, int) { sums[static_cast<std::size_t>(i)] = run(kSteps); });
    });
    CHECK(sums[0] > 0) << "products of positive numbers";
    return static_cast<double>(kSteps) * 16 * 2 * products * static_cast<double>(sums.size()) / time;
  }

  const backend::cpu::Kernels& kernels_;
  backend::cpu::Team& team_;
  const Stopwatch& watch_;
  std::unique_ptr<std::byte[]> data_;
};

struct Range {
  double low = 0, median = 0, high = 0;
};
Range RangeOf(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return {values.front(), values[values.size() / 2], values.back()};
}

// Times of ops in rounds, and what share of them the machine would need at best, from the same round.
class Series {
 public:
  Series(std::size_t ops, bool decode) : decode_(decode), times_(ops), shares_(ops) {}

  void Round(const std::vector<Op>& ops, const Stopwatch& watch, Machine& machine, int round) {
    const double read = decode_ ? machine.Read() : 0, floats = decode_ ? 0 : machine.Floats(),
                 fp4 = decode_ ? 0 : machine.Fp4();
    std::vector<double> times;
    for (const Op& op : ops) times.push_back(watch.Time([&] { op.call(round); }));
    const double read_rate = decode_ ? (read + machine.Read()) / 2 : 0;
    const double float_rate = decode_ ? 0 : (floats + machine.Floats()) / 2;
    const double fp4_rate = decode_ ? 0 : (fp4 + machine.Fp4()) / 2;
    reads_.push_back(read_rate);
    floats_.push_back(float_rate);
    fp4_.push_back(fp4_rate);
    double all = 0, least = 0;
    for (std::size_t i = 0; i < ops.size(); ++i) {
      const double best = decode_ ? ops[i].bytes / read_rate : ops[i].flops / float_rate + ops[i].fp4_flops / fp4_rate;
      times_[i].push_back(times[i]);
      shares_[i].push_back(best / times[i]);
      all += times[i];
      least += best;
    }
    layer_times_.push_back(all);
    layer_shares_.push_back(least / all);
  }

  void Report(Terminal& terminal, const std::vector<Op>& ops, int rows) const {
    const Range read = RangeOf(reads_), floats = RangeOf(floats_), fp4 = RangeOf(fp4_);
    if (decode_) {
      terminal.Write(fmt::format("\nmemory read {:.1f} GB/s ({:.1f} to {:.1f})\n", read.median / 1e9, read.low / 1e9,
                                 read.high / 1e9));
    } else {
      terminal.Write(fmt::format("\nfp32 {:.0f} GFLOP/s ({:.0f} to {:.0f}), MXFP4 {:.0f} ({:.0f} to {:.0f})\n",
                                 floats.median / 1e9, floats.low / 1e9, floats.high / 1e9, fp4.median / 1e9,
                                 fp4.low / 1e9, fp4.high / 1e9));
    }
    terminal.Write(fmt::format("{:<24}{:>10}{:>10}{:>10}{:>9}{:>16}\n",
                               fmt::format("{} row{}", rows, decode_ ? "" : "s"), "ms", decode_ ? "MB" : "GFLOP",
                               decode_ ? "GB/s" : "GFLOP/s", "of best", "rounds"));
    const auto line = [&](const std::string& name, const std::vector<double>& times, const std::vector<double>& shares,
                          double work) {
      const Range time = RangeOf(times), share = RangeOf(shares);
      terminal.Write(fmt::format("{:<24}{:>10.3f}{:>10.2f}{:>10.1f}{:>8.0f}%{:>9.0f} to {:.0f}%\n", name,
                                 time.median * 1e3, work / (decode_ ? 1e6 : 1e9), work / time.median / 1e9,
                                 100 * share.median, 100 * share.low, 100 * share.high));
    };
    double all = 0;
    for (std::size_t i = 0; i < ops.size(); ++i) {
      const double work = decode_ ? ops[i].bytes : ops[i].flops + ops[i].fp4_flops;
      line(ops[i].name, times_[i], shares_[i], work);
      all += work;
    }
    line("the layer", layer_times_, layer_shares_, all);
  }

 private:
  bool decode_;
  std::vector<std::vector<double>> times_, shares_;
  std::vector<double> layer_times_, layer_shares_, reads_, floats_, fp4_;
};

}  // namespace

Result<int> RunBenchOnGpu([[maybe_unused]] Context& context, [[maybe_unused]] GpuBench kind) {
#ifdef GALLEY_CUDA
  return RunBenchCuda(context, kind);
#else
  return Err(ErrorCode::kUnsupported, "this build has no cuda backend; make one with `make cuda`", "backend");
#endif
}

Result<int> RunBenchLayers(Context& context) {
  const options::Values& values = context.values;
  const std::string& backend_name = values.String("backend");
  if (backend_name == "cuda") return RunBenchOnGpu(context, GpuBench::kLayers);
  if (backend_name != "cpu" && backend_name != "auto") {
    return Err(ErrorCode::kUnsupported, fmt::format("measures the cpu and cuda backends, not {}", backend_name),
               "layers");
  }
  const ModelShape& shape = ShapeOf(values);
  const std::vector<std::string> only = values.List("only");
  const auto wanted = [&only](std::string_view part, bool otherwise) {
    return only.empty() ? otherwise : std::find(only.begin(), only.end(), part) != only.end();
  };
  if (!only.empty() && !wanted("decode", false) && !wanted("moe", false) && !wanted("prefill", false))
    return Err(ErrorCode::kInvalidArgument,
               fmt::format("there is no part \"{}\"; parts are decode, prefill and moe", only.front()), "only");
  ASSIGN_OR_RETURN(const backend::cpu::IsaEntry* isa, backend::cpu::FindIsa(values.String("isa")));
  const backend::cpu::Placement placement = backend::cpu::PlaceThreads(static_cast<int>(values.Int("threads")));
  const int threads = placement.threads;
  backend::cpu::CpuBackend cpu({.threads = threads, .isa = "auto", .processors = placement.processors}, *isa);
  const bool processor_time = values.Bool("processor-time");
  const Stopwatch watch(processor_time, threads);

  backend::cpu::Team team(threads, placement.processors);
  Machine machine(isa->kernels(), team, watch);
  context.terminal.Write(
      fmt::format("{} layer with history of {} tokens, random weights, {} of {} experts held; {}, {} thread{}, {}; "
                  "medians of rounds\n",
                  shape.name, kHistory, kExpertsHeld, shape.experts, isa->name, threads, threads == 1 ? "" : "s",
                  processor_time ? "processor time" : "wall time"));
  Layer layer(cpu, shape);
  const auto measure = [&](const std::vector<Op>& ops, int rows, int rounds) {
    Series series(ops.size(), rows == 1);
    for (const Op& op : ops) op.call(0);  // memory of the op grows once
    for (int round = 1; round <= rounds; ++round) series.Round(ops, watch, machine, round);
    series.Report(context.terminal, ops, rows);
  };
  if (wanted("decode", true)) measure(layer.Ops(1), 1, kDecodeRounds);
  if (wanted("moe", false)) measure({layer.Fp4Experts()}, 1, kDecodeRounds);
  if (wanted("prefill", true)) measure(layer.Ops(kPrefillRows), kPrefillRows, kPrefillRounds);
  return kExitOk;
}

}  // namespace galley::app
