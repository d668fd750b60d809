// SPDX-License-Identifier: Apache-2.0
#include "slice_bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <utility>

#include "fill.h"
#include "galley/backend/cuda/cuda_backend.h"
#include "galley/backend/decorator.h"
#include "galley/backend/memory_formats.h"
#include "galley/base/rng.h"
#include "galley/model/dsv4/model.h"
#include "galley/model/random_weights.h"
#include "galley/model/tensor_list.h"

namespace galley::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kSteps = 24;  // of decode at each count of sequences
constexpr int kPrefills = 5;

double MicrosecondsSince(Clock::time_point begin) {
  return std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
}

double Median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

// Bytes of weights that a step of `rows` rows with evenly chosen experts has to read, but the few rows of tables.
double WeightBytes(const model::Config& config, int rows) {
  const double chosen = 1.0 - std::pow(1.0 - static_cast<double>(config.n_activated_experts) / config.n_routed_experts,
                                       static_cast<double>(rows));
  double bytes = 0;
  for (const model::ImpliedTensor& tensor : model::ImpliedTensors(config)) {
    if (tensor.part == model::Part::kEmbedding || tensor.part == model::Part::kEngramTables) continue;
    const auto all = static_cast<double>(TensorView{tensor.dtype, tensor.shape, nullptr}.bytes());
    bytes += tensor.part == model::Part::kRoutedExperts ? all * chosen : all;
  }
  return bytes;
}

// While it counts, waits for the device before and after every op and adds up the time between.
class TimedOps final : public backend::BackendDecorator {
 public:
  struct Total {
    int calls = 0;
    double us = 0;
  };
  using BackendDecorator::BackendDecorator;

  void Count(bool counts) { counts_ = counts; }
  [[nodiscard]] const std::map<std::string, Total, std::less<>>& totals() const { return totals_; }

 private:
  void OpBegins([[maybe_unused]] std::string_view op) override {
    if (!counts_) return;
    (void)Synchronize();  // the step's own wait reports what fails
    begin_ = Clock::now();
  }
  void OpEnds(std::string_view op) override {
    if (!counts_) return;
    (void)Synchronize();
    Total& total = totals_[std::string(op)];
    ++total.calls;
    total.us += MicrosecondsSince(begin_);
  }

  bool counts_ = false;
  Clock::time_point begin_;
  std::map<std::string, Total, std::less<>> totals_;
};

class Slice {
 public:
  static Result<Slice> Create(const SliceOptions& options) {
    Slice slice(options);
    ASSIGN_OR_RETURN(std::unique_ptr<backend::Backend> cuda, backend::MakeCudaBackend({}));
    slice.cuda_ = cuda.get();
    slice.backend_ = std::make_unique<TimedOps>(std::move(cuda));
    const int sequences = *std::ranges::max_element(options.rows);
    const model::ModelOptions model{.rows_max = std::max(options.context, sequences),
                                    .sequences_max = sequences,
                                    .logit_rows_max = sequences,
                                    .seq_len_max = options.context + 2 * kSteps};
    const model::Checkpoint weights = model::RandomCheckpoint(slice.config_, 1);
    std::vector<std::int32_t> ids;  // of tokens, for Engram
    for (int token = 0; slice.config_.engram.n_heads > 0 && token < slice.config_.vocab_size; ++token)
      ids.push_back(static_cast<std::int32_t>(token % slice.config_.engram.compressed_vocab_size));
    ASSIGN_OR_RETURN(slice.model_, model::Model::Create(weights, ids, *slice.backend_, model));
    slice.blocks_each_ = static_cast<int>(model.seq_len_max / backend::kBlockTokens) + 1;
    ASSIGN_OR_RETURN(model::StateStorage state, model::StateStorage::Create(*slice.backend_, slice.config_,
                                                                            slice.blocks_each_ * sequences, sequences));
    slice.state_ = std::make_unique<model::StateStorage>(std::move(state));
    return slice;
  }

  // Bytes a second that the device reads.
  Result<double> Bandwidth() {
    constexpr std::size_t kBytes = std::size_t{4} << 30;
    ASSIGN_OR_RETURN(backend::Buffer data, backend_->Allocate(kBytes, "benchmark"));
    ASSIGN_OR_RETURN(backend::Buffer out, backend_->Allocate(256, "benchmark"));
    void* stream = backend::StreamOf(*cuda_);
    ASSIGN_OR_RETURN(const double us, backend::MeasureMicroseconds(
                                          *cuda_, [&] { ReadAll(data.data(), kBytes, out.data(), stream); }, 10));
    return static_cast<double>(kBytes) / us * 1e6;
  }

  // Microseconds of a step of all tokens of the context.
  Result<double> Prefill() {
    std::vector<double> times;
    for (int i = 0; i < kPrefills; ++i) {
      RETURN_IF_ERROR(model_->ResetSlot(*state_, SlotId(0), 0, {}));
      ASSIGN_OR_RETURN(const double us, Timed(1, 0, options_.context, 1));
      if (i > 0) times.push_back(us);
    }
    for (; filled_ < *std::ranges::max_element(options_.rows); ++filled_) {
      state_->CopySlot(*backend_, SlotId(0), *state_, SlotId(filled_));
      for (int b = 0; b < blocks_each_; ++b)
        state_->CopyBlock(*backend_, BlockId(b), *state_, BlockId(filled_ * blocks_each_ + b));
    }
    RETURN_IF_ERROR(backend_->Synchronize());
    return Median(times);
  }

  // What the ops of such a step take, each waited for.
  Result<std::vector<std::pair<std::string, TimedOps::Total>>> PrefillOps() {
    RETURN_IF_ERROR(model_->ResetSlot(*state_, SlotId(0), 0, {}));
    backend_->Count(true);
    ASSIGN_OR_RETURN([[maybe_unused]] const double us, Timed(1, 0, options_.context, 1));
    backend_->Count(false);
    std::vector<std::pair<std::string, TimedOps::Total>> ops(backend_->totals().begin(), backend_->totals().end());
    std::ranges::sort(ops, std::greater{}, [](const auto& op) { return op.second.us; });
    return ops;
  }

  struct Decode {
    double waited = 0;  // microseconds of a step, the device awaited after each
    double ahead = 0;   // of one of many that are issued without waiting
  };
  Result<Decode> Steps(int sequences) {
    std::vector<double> times;
    for (int i = 0; i < kSteps; ++i) {
      ASSIGN_OR_RETURN(const double us, Timed(sequences, options_.context + i, 1, 1));
      if (i >= 4) times.push_back(us);  // recording, warming up
    }
    ASSIGN_OR_RETURN(const double all, Timed(sequences, options_.context + kSteps, 1, kSteps));
    return Decode{Median(times), all / kSteps};
  }

  [[nodiscard]] const model::Config& config() const { return config_; }

 private:
  explicit Slice(const SliceOptions& options)
      : options_(options), config_(model::SliceOf(options.shape, options.layers)) {}

  // `steps` steps, `rows` rows of each sequence from `start` on, then one wait.
  Result<double> Timed(int sequences, Position start, int rows, int steps) {
    tokens_.resize(static_cast<std::size_t>(sequences));
    blocks_.resize(tokens_.size());
    const auto begin = Clock::now();
    for (int step = 0; step < steps; ++step) {
      std::vector<model::SequenceInput> inputs;
      for (int s = 0; s < sequences; ++s) {
        std::vector<TokenId>& tokens = tokens_[static_cast<std::size_t>(s)];
        std::vector<std::int32_t>& blocks = blocks_[static_cast<std::size_t>(s)];
        tokens.clear();
        blocks.clear();
        for (int i = 0; i < rows; ++i) {
          tokens.push_back(static_cast<TokenId>(
              MixBits(static_cast<std::uint64_t>(start + step + i) << 20 | static_cast<std::uint64_t>(s)) %
              static_cast<std::uint64_t>(config_.vocab_size)));
        }
        for (int b = 0; b < blocks_each_; ++b) blocks.push_back(s * blocks_each_ + b);
        inputs.push_back({.slot = SlotId(s), .start = start + step, .tokens = tokens, .blocks = blocks});
      }
      ASSIGN_OR_RETURN([[maybe_unused]] const float* logits, model_->Forward(inputs, *state_));
    }
    RETURN_IF_ERROR(backend_->Synchronize());
    return MicrosecondsSince(begin);
  }

  SliceOptions options_;
  model::Config config_;
  std::unique_ptr<TimedOps> backend_;
  backend::Backend* cuda_ = nullptr;  // within it
  std::unique_ptr<model::Model> model_;
  std::unique_ptr<model::StateStorage> state_;
  int blocks_each_ = 0, filled_ = 1;
  std::vector<std::vector<TokenId>> tokens_;
  std::vector<std::vector<std::int32_t>> blocks_;
};

}  // namespace

Status RunSliceBench(const SliceOptions& options, const CudaBenchWrite& write) {
  ASSIGN_OR_RETURN(Slice slice, Slice::Create(options));
  ASSIGN_OR_RETURN(const double bandwidth, slice.Bandwidth());
  write(
      fmt::format("a slice of {} layers of {}'s shape and its head{}, random weights, {} tokens before each sequence's "
                  "row; not the model\n",
                  options.layers, options.shape.title,
                  options.shape.engram_heads > 0 ? ", one layer with Engram and small tables" : "", options.context));
  write(fmt::format("read bandwidth of this run: {:.2f} TB/s; floor: reading the weights that a step needs\n\n",
                    bandwidth / 1e12));
  ASSIGN_OR_RETURN(const double prefill, slice.Prefill());
  write(
      "| step | waiting for each, µs | issued ahead, µs | a layer | floor | of floor "
      "|\n|---|---:|---:|---:|---:|---:|\n");
  write(fmt::format("| prefill, {} rows | {:.0f} | | {:.0f} | | |\n", options.context, prefill,
                    prefill / options.layers));
  for (const int sequences : options.rows) {
    ASSIGN_OR_RETURN(const Slice::Decode step, slice.Steps(sequences));
    const double floor = WeightBytes(slice.config(), sequences) / bandwidth * 1e6;
    write(fmt::format("| {} sequences, a row each | {:.0f} | {:.0f} | {:.0f} | {:.0f} | {:.0f} % |\n", sequences,
                      step.waited, step.ahead, step.ahead / options.layers, floor, 100 * floor / step.ahead));
  }
  ASSIGN_OR_RETURN(const auto ops, slice.PrefillOps());
  write("\n| op of one more prefill step, each waited for | calls | all, µs | one, µs |\n|---|---:|---:|---:|\n");
  for (const auto& [op, total] : ops)
    write(fmt::format("| {} | {} | {:.0f} | {:.0f} |\n", op, total.calls, total.us, total.us / total.calls));
  return {};
}

}  // namespace galley::bench
