// SPDX-License-Identifier: Apache-2.0
// Where the time of a decode step and of a draft pass goes, op by op: nano on the cpu backend, each shape many times,
// medians in microseconds. Columns are sequences x rows each of a step, and sequences of a draft pass.
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <map>

#include "galley/backend/decorator.h"
#include "galley/base/rng.h"
#include "galley/engine/loaded_model.h"

namespace galley {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kSequencesMax = 96;
constexpr int kBlocksEach = 8;
constexpr const char* kTotal = "all";

double MicrosecondsSince(Clock::time_point begin) {
  return std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
}

// Time of every op since Take, by name.
class Watch : public backend::BackendDecorator {
 public:
  using BackendDecorator::BackendDecorator;
  [[nodiscard]] std::map<std::string_view, double> Take() { return std::exchange(us_, {}); }

 protected:
  void OpBegins(std::string_view) override { begin_ = Clock::now(); }
  void OpEnds(std::string_view op) override { us_[op] += MicrosecondsSince(begin_); }

 private:
  std::map<std::string_view, double> us_;
  Clock::time_point begin_;
};

// A column of the table: median microseconds by op.
struct Column {
  std::string title;
  std::map<std::string, double> us = {};
};

class Bench {
 public:
  static Result<Bench> Create(const std::string& model_dir, const std::string& isa, int threads, int context) {
    Bench bench;
    engine::LoadOptions options{.model_dir = model_dir};
    options.device = {.backend = "cpu", .isa = isa, .threads = threads};
    options.rows_max = options.logit_rows_max = 6 * kSequencesMax;
    options.sequences_max = kSequencesMax;
    options.blocks = kSequencesMax * kBlocksEach;
    options.drafts = true;
    options.max_seq_len = kBlocksEach * backend::kBlockTokens;
    options.wrap_backend = [&bench](std::unique_ptr<backend::Backend> inner) {
      auto watch = std::make_unique<Watch>(std::move(inner));
      bench.watch_ = watch.get();
      return watch;
    };
    ASSIGN_OR_RETURN(engine::LoadedModel loaded, engine::LoadedModel::Load(options));
    bench.loaded_ = std::make_unique<engine::LoadedModel>(std::move(loaded));
    bench.context_ = context;
    bench.tokens_.resize(kSequencesMax);
    bench.blocks_.resize(kSequencesMax);
    return bench;
  }

  Result<Column> Step(int sequences, int rows, int repeats) {
    RETURN_IF_ERROR(FillContexts(sequences));
    std::vector<model::SequenceInput> inputs;
    for (int s = 0; s < sequences; ++s) inputs.push_back(Input(s, context_, rows, rows));
    return Measure(fmt::format("{}x{}", sequences, rows), repeats, [&]() -> Status {
      ASSIGN_OR_RETURN([[maybe_unused]] const float* logits, loaded_->model().Forward(inputs, loaded_->state()));
      return {};
    });
  }

  Result<Column> Drafts(int sequences, int repeats) {
    RETURN_IF_ERROR(FillContexts(sequences));
    std::vector<model::DraftInput> inputs;
    for (int s = 0; s < sequences; ++s)
      inputs.push_back({.slot = SlotId(s), .position = context_ - 1, .token = TokenAt(s, context_), .sampling = {}});
    for (model::DraftInput& input : inputs) input.sampling.temperature = 0;
    return Measure(fmt::format("draft {}", sequences), repeats, [&]() -> Status {
      ASSIGN_OR_RETURN([[maybe_unused]] const auto drafts, loaded_->model().Drafts(inputs, loaded_->state()));
      return {};
    });
  }

 private:
  static TokenId TokenAt(int sequence, Position p) {
    return static_cast<TokenId>(
        3 + Philox4x32({static_cast<std::uint32_t>(p), static_cast<std::uint32_t>(sequence), 0, 0}, {1, 2})[0] % 2000);
  }

  model::SequenceInput Input(int sequence, Position start, int rows, int logit_rows) {
    std::vector<TokenId>& tokens = tokens_[static_cast<std::size_t>(sequence)];
    std::vector<std::int32_t>& blocks = blocks_[static_cast<std::size_t>(sequence)];
    tokens.clear();
    for (int i = 0; i < rows; ++i) tokens.push_back(TokenAt(sequence, start + i));
    blocks.clear();
    for (int b = 0; b < kBlocksEach; ++b) blocks.push_back(sequence * kBlocksEach + b);
    return {.slot = SlotId(sequence), .start = start, .tokens = tokens, .blocks = blocks, .logit_rows = logit_rows};
  }

  // Of so many sequences.
  Status FillContexts(int sequences) {
    for (; filled_ < sequences; ++filled_) {
      RETURN_IF_ERROR(loaded_->model().ResetSlot(loaded_->state(), SlotId(filled_), 0, {}));
      const model::SequenceInput input = Input(filled_, 0, static_cast<int>(context_), 0);
      ASSIGN_OR_RETURN([[maybe_unused]] const float* logits, loaded_->model().Forward({&input, 1}, loaded_->state()));
    }
    return {};
  }

  template <typename Run>
  Result<Column> Measure(std::string title, int repeats, const Run& run) {
    std::map<std::string, std::vector<double>> samples;
    for (int i = -2; i < repeats; ++i) {
      (void)watch_->Take();
      const auto begin = Clock::now();
      RETURN_IF_ERROR(run());
      const double total = MicrosecondsSince(begin);
      if (i < 0) continue;  // warming up
      for (const auto& [op, us] : watch_->Take()) samples[std::string(op)].push_back(us);
      samples[kTotal].push_back(total);
    }
    Column column{.title = std::move(title)};
    for (auto& [op, values] : samples) {
      std::ranges::sort(values);
      column.us[op] = values[values.size() / 2];
    }
    return column;
  }

  std::unique_ptr<engine::LoadedModel> loaded_;
  Watch* watch_ = nullptr;
  Position context_ = 0;
  int filled_ = 0;
  std::vector<std::vector<TokenId>> tokens_;
  std::vector<std::vector<std::int32_t>> blocks_;
};

Status RunBench(const std::string& model_dir, const std::string& isa, int threads, int context, int repeats,
                const std::string& only) {
  ASSIGN_OR_RETURN(Bench bench, Bench::Create(model_dir, isa, threads, context));
  std::vector<Column> columns;
  for (const auto& [sequences, rows] : {std::pair{1, 1}, {2, 1}, {1, 3}, {1, 6}, {4, 1}, {16, 1}, {16, 6}, {64, 1}}) {
    if (!only.empty() && only != fmt::format("{}x{}", sequences, rows)) continue;
    ASSIGN_OR_RETURN(Column column, bench.Step(sequences, rows, repeats));
    columns.push_back(std::move(column));
  }
  for (const int sequences : {1, 4, 16}) {
    if (!only.empty() && only != fmt::format("draft {}", sequences)) continue;
    ASSIGN_OR_RETURN(Column column, bench.Drafts(sequences, repeats));
    columns.push_back(std::move(column));
  }
  std::map<std::string, double> ops;
  for (const Column& column : columns) {
    for (const auto& [op, us] : column.us) ops[op] = std::max(ops[op], us);
  }
  fmt::print("{:<15}", "us");
  for (const Column& column : columns) fmt::print("{:>9}", column.title);
  fmt::print("\n");
  for (const auto& [op, most] : ops) {
    fmt::print("{:<15}", op);
    for (const Column& column : columns) fmt::print("{:>9.0f}", column.us.contains(op) ? column.us.at(op) : 0.0);
    fmt::print("\n");
  }
  return {};
}

}  // namespace
}  // namespace galley

int main(int argc, char** argv) {  // NOLINT(bugprone-exception-escape): the program ends with it
  CLI::App app("Time of decode steps and draft passes, op by op");
  std::string model_dir = std::string(GALLEY_SOURCE_DIR) + "/models/nano", isa = "auto", only;
  int threads = 0, context = 96, repeats = 200;
  app.add_option("--model", model_dir, "model directory");
  app.add_option("--isa", isa, "instruction set");
  app.add_option("--threads", threads, "0: as many as the process may use");
  app.add_option("--context", context, "tokens of each sequence before the step")->check(CLI::Range(1, 900));
  app.add_option("--repeats", repeats, "steps of each shape")->check(CLI::Range(1, 100000));
  app.add_option("--only", only, "one column, by its title; for profiles");
  CLI11_PARSE(app, argc, argv);
  const galley::Status status = galley::RunBench(model_dir, isa, threads, context, repeats, only);
  if (status) return 0;
  fmt::print(stderr, "step_bench: {}\n", status.error().ToString());
  return 1;
}
