// SPDX-License-Identifier: Apache-2.0
// The forward pass of DeepSeek-V4.1, written once over the op vocabulary (specification section 2). A Model owns the
// activations of its largest step; history and state are passed in. Used by the rank's thread only.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "galley/backend/backend.h"
#include "galley/base/error.h"
#include "galley/base/strong_id.h"
#include "galley/model/checkpoint.h"
#include "galley/model/dsv4/state.h"

namespace galley::model {

// The rows of one sequence in a step: consecutive positions from `start` on.
struct SequenceInput {
  SlotId slot;
  Position start = 0;
  std::span<const TokenId> tokens = {};
  std::span<const std::int32_t> blocks;           // block ids in order, enough for start + tokens.size() positions
  std::span<const std::uint8_t> image_rows = {};  // one per token; empty: no images
  Position history_from = 0;   // positions below are not written to history (replayed rows over shared blocks)
  Position encoder_floor = 0;  // window rows below do not exist in encoder layers
  // Window rows below do not exist in decoder layers, and rows from here on run them. 0: every row.
  Position decoder_floor = 0;
  Position decoder_from = -1;  // first row that runs the decoder layers, where that is not decoder_floor
  int logit_rows = 1;          // logits of the last n rows, all of them at or above decoder_floor
};

// Intermediate tensors as they are made, for the goldens; `data` is a device address, [rows] x row_shape.
struct Observation {
  std::string_view name;
  int layer = -1;  // -1: belongs to no layer
  const void* data = nullptr;
  DType dtype = DType::kBF16;
  Shape row_shape;
};
class Observer {
 public:
  virtual ~Observer() = default;
  // `rows` tells which positions the rows are. Called between launches; the observer synchronises to read.
  virtual void Observe(const Observation& observation, const backend::StepView& rows) = 0;
};

// A run over part of the layers: the residual stream after layer `first - 1` is given, in host memory, instead of being
// computed. What a pipeline stage receives, and how a single layer is tested from exact input.
struct LayerRange {
  int first = 0;
  int end = 0;                  // one past the last layer to run; the head runs only when it is n_layers
  std::span<const BFloat16> h;  // [rows][hc_mult][dim]
  std::span<const float> pre;   // [rows][hc_mult]
};

// A request for drafts: the newest committed position, the token already chosen for the position after it, and how the
// drafts are drawn (SampleParams::position is set by the model).
struct DraftInput {
  SlotId slot;
  Position position = 0;
  TokenId token = 0;
  Position decoder_floor = 0;
  backend::SampleParams sampling;
};
struct Draft {
  std::vector<TokenId> tokens;     // [depth], for positions position + 2 and on
  std::vector<float> confidences;  // [depth], logit of the probability that the draft is accepted
  const float* logits = nullptr;   // [depth][vocab_size] with the Markov bias, on the device, until the next call
};

struct ModelOptions {
  int rows_max = 256;  // rows of the largest step
  int sequences_max = 1;
  int logit_rows_max = 1;
  int window_places = 0;     // AttentionArgs::window_places; 0: the window size, as an engine needs it
  bool drafts = false;       // keep the draft head's rings and allow Drafts
  Position seq_len_max = 0;  // positions of the longest sequence
};

// Device memory that a Model takes beside the weights, in bytes.
struct ModelMemory {
  std::size_t workspace = 0;  // activations of the largest step
  std::size_t tables = 0;     // rotary frequencies, Engram ids and hashes
};

class Model {
 public:
  // A pure function; what Create takes from the backend. Errors: kInvalidArgument (an Engram config that contradicts
  // itself).
  [[nodiscard]] static Result<ModelMemory> PlanMemory(const Config& config, const ModelOptions& options);

  // `compressed_ids` [vocab_size] maps a token to its Engram id; empty when the config has no Engram.
  // Errors: kInvalidArgument (compressed ids do not fit the config), kResourceExhausted, kDevice.
  [[nodiscard]] static Result<std::unique_ptr<Model>> Create(const Checkpoint& checkpoint,
                                                             std::span<const std::int32_t> compressed_ids,
                                                             backend::Backend& backend, const ModelOptions& options);
  ~Model();

  [[nodiscard]] const Config& config() const;
  [[nodiscard]] const ModelOptions& options() const;

  // Prepares a slot for a sequence whose first row will be at `start`: `previous` are the tokens before it, newest
  // last, as many as Engram looks back (fewer at the beginning of the sequence; image tokens as -1).
  [[nodiscard]] Status ResetSlot(StateStorage& state, SlotId slot, Position start, std::span<const TokenId> previous);

  // Runs one step, or with `range` the part of it that the range names. Returns the device address of fp32 logits
  // [n][vocab_size], rows in the order of the sequences, valid until the next call. Errors: kDevice.
  [[nodiscard]] Result<const float*> Forward(std::span<const SequenceInput> sequences, StateStorage& state,
                                             Observer* observer = nullptr, const LayerRange* range = nullptr);

  // Logits of further rows of the last step: of the rows of sequence number `sequence` that ran the decoder layers,
  // those with index [first, first + count), at most options().logit_rows_max of them. Takes the memory of the logits
  // returned before. Errors: kDevice.
  [[nodiscard]] Result<const float*> RowLogits(int sequence, int first, int count, StateStorage& state);

  // Whether steps from now on keep the draft head's rings; they do to begin with. What runs without costs nothing for
  // drafts, and its rows must lie below the decoder floor of later requests for them. Returns whether they are kept:
  // steps that a backend repeats are recorded once, with the rings.
  bool KeepDraftRings(bool keep);

  // Drafts for sequences whose committed rows have all been run with options().drafts; valid until the next call. Each
  // gets `depth` of them (1 to the block size; 0: that), from blocks of as many rows: fewer cost less, and on nano the
  // first ones of a short block are as good as those of a whole one. Errors: kDevice.
  [[nodiscard]] Result<std::span<const Draft>> Drafts(std::span<const DraftInput> inputs, StateStorage& state,
                                                      int depth = 0);

  struct Impl;  // model_impl.h

 private:
  explicit Model(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace galley::model
