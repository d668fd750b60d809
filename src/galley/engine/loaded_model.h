// SPDX-License-Identifier: Apache-2.0
// A model that is ready to run: checkpoint, tokenizer, backend, forward pass and the memory of its sequences, opened in
// that order so that the first thing that is wrong is the one reported. Owned by one thread.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>

#include "galley/backend/backend.h"
#include "galley/base/error.h"
#include "galley/engine/device_options.h"
#include "galley/engine/memory_plan.h"
#include "galley/io/weight_file.h"
#include "galley/model/checkpoint.h"
#include "galley/model/dsv4/model.h"
#include "galley/model/dsv4/state.h"
#include "galley/text/tokenizer.h"

namespace galley::engine {

struct LoadOptions {
  std::filesystem::path model_dir;
  DeviceOptions device = {};
  int rows_max = 256;  // rows of the largest step
  int logit_rows_max = 1;
  int sequences_max = 1;           // of one step; as many slots are made
  int blocks = 0;                  // history blocks; 0: enough for every slot at full length
  bool drafts = false;             // model::ModelOptions::drafts
  model::RewindRows rewind = {};   // model::StateLayout::Make
  int window_places = 0;           // model::ModelOptions::window_places
  std::int64_t max_seq_len = 0;    // 0: what the config states, or 8192 when it states nothing
  std::int64_t grammar_cache = 0;  // bytes that others keep, for the plan
  std::int64_t longest = 0;        // no sequence will be longer, so memory for more is not taken; 0: not known
  int snapshots = 0;               // places for saved slots that the caller will take from the backend
  std::int64_t memory_limit = 0;   // bytes that the plan may take; 0: what the process may use
  io::Progress on_load = {};       // EngineOptions::on_load
  // EngineOptions::wrap_backend
  std::function<std::unique_ptr<backend::Backend>(std::unique_ptr<backend::Backend>)> wrap_backend = {};
};

// Bytes that are free in the memory that a backend's device has of its own, which is what a start there compares with;
// 0: none, or there is no such device here.
[[nodiscard]] std::int64_t DeviceMemory(std::string_view backend);

// What the options mean for a model: positions of the longest sequence, and the counts that memory is planned for.
struct Sizing {
  std::int64_t max_seq_len = 0;
  MemoryOptions memory;
};
// Pure. Errors: kInvalidArgument naming option, value and limit.
[[nodiscard]] Result<Sizing> SizeFor(const LoadOptions& options, const model::Config& config);

class LoadedModel {
 public:
  // Errors: those of Checkpoint::Open and Tokenizer::Load; kInvalidArgument (an option out of range, a tokenizer that
  // does not belong to the model); kUnsupported (a backend that this build has not); kResourceExhausted (the memory
  // plan does not fit, with numbers; nothing has been loaded then); kCancelled (on_load); those of reading weights.
  [[nodiscard]] static Result<LoadedModel> Load(const LoadOptions& options);

  [[nodiscard]] const model::Config& config() const { return checkpoint_->config(); }
  [[nodiscard]] const text::Tokenizer& tokenizer() const { return *tokenizer_; }
  [[nodiscard]] backend::Backend& backend() { return *backend_; }
  [[nodiscard]] const Compute& compute() const { return compute_; }
  [[nodiscard]] model::Model& model() { return *model_; }
  [[nodiscard]] model::StateStorage& state() { return *state_; }
  [[nodiscard]] std::int64_t max_seq_len() const { return max_seq_len_; }
  [[nodiscard]] const MemoryPlan& memory_plan() const { return memory_plan_; }

 private:
  LoadedModel() = default;

  // The model refers to the checkpoint and the backend, so they are declared, and so destroyed, in this order.
  std::unique_ptr<model::Checkpoint> checkpoint_;
  std::unique_ptr<text::Tokenizer> tokenizer_;
  Compute compute_;
  std::unique_ptr<backend::Backend> backend_;
  std::unique_ptr<model::Model> model_;
  std::unique_ptr<model::StateStorage> state_;
  std::int64_t max_seq_len_ = 0;
  MemoryPlan memory_plan_;
};

}  // namespace galley::engine
