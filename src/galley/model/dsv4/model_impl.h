// SPDX-License-Identifier: Apache-2.0
// What a Model consists of, and one run over it. Private to the model's sources.
#pragma once

#include <array>
#include <initializer_list>
#include <memory>
#include <vector>

#include "galley/model/dsv4/engram_hash.h"
#include "galley/model/dsv4/model.h"
#include "galley/model/dsv4/step_rows.h"
#include "galley/model/dsv4/weights.h"
#include "galley/model/dsv4/workspace.h"

namespace galley::model {

struct Model::Impl {
  Config config;
  ModelOptions options;
  backend::Backend* backend = nullptr;
  bool keep_draft_rings = true;
  Weights weights;
  Workspace workspace;
  std::size_t blocks_max = 0;  // block ids that one step can carry

  std::vector<std::int32_t> compressed_ids;  // host copy, for ResetSlot
  std::int32_t engram_pad = 0;
  backend::Buffer device_compressed_ids;
  std::vector<backend::Buffer> hash_arrays;
  std::vector<backend::EngramHashView> hashes;  // [engram layers]
  std::array<backend::Buffer, 2> frequencies;   // window-only layers, layers with history

  // Host arrays of the step that runs.
  StepRows all_rows, tail_rows;
  std::vector<std::int32_t> logit_rows, block_ids;
  std::vector<backend::DraftStageKv> draft_stages;
  std::vector<std::int32_t> draft_rows, draft_first_tokens;
  std::vector<backend::SampleParams> draft_params;
  std::vector<Draft> drafts;  // of the last call; more when a call before had more
  // Of the last step: rows of its sequences that ran the decoder layers, whose final activations are in workspace.x.
  std::vector<backend::SequenceEntry> scored;

  [[nodiscard]] bool compressed(int layer) const { return config.compress_ratios[static_cast<std::size_t>(layer)] > 0; }
  // Rotation of draft stages and of layers without history.
  [[nodiscard]] backend::Rope window_rope() const {
    return {.frequencies = frequencies[0].as<float>(), .dims = config.rope_head_dim};
  }
  [[nodiscard]] backend::Rope rope(int layer) const {
    return {.frequencies = frequencies[compressed(layer) ? 1 : 0].as<float>(), .dims = config.rope_head_dim};
  }
};

// One step: the layers in order over the rows of a step. Between two sub-layers the output `y` of the first waits to be
// expanded into the residual stream by the launch that prepares the second.
class ForwardStep {
 public:
  ForwardStep(Model::Impl& model, StateStorage& state, Observer* observer)
      : m_(model),
        w_(model.workspace),
        state_(state),
        observer_(observer),
        all_(model.all_rows),
        tail_(model.tail_rows) {}

  [[nodiscard]] Result<const float*> Run(std::span<const SequenceInput> sequences, const LayerRange* range);
  [[nodiscard]] Result<const float*> RowLogits(int sequence, int first, int count);
  // draft_step.cc
  [[nodiscard]] Result<std::span<const Draft>> RunDrafts(std::span<const DraftInput> inputs, int depth);

 private:
  // Copies the host arrays of one row set to the device and points its view at them.
  [[nodiscard]] Status Place(RowSet& set, const StepRows& rows);
  // The residual stream that the first layer of this run reads.
  [[nodiscard]] Status StartStream(const LayerRange* range);
  void EmbedRows();
  void FindEngramRows();
  void Collapse();
  void RunLayer(int layer);
  [[nodiscard]] backend::EngramGatherArgs EngramRowsOf(int layer);
  void EngramLayer(int layer);
  void CaptureMainHidden(int layer);
  // Ends the previous site and prepares x for the next one.
  void Boundary(const MhcWeights& site, const BFloat16* norm);
  void ExpandPending();
  void AttentionSite(int layer, bool history_written);
  void CompressRows(int layer);
  void SelectEntries(int layer);
  void Attend(int layer);
  void ProjectIn(const AttentionWeights& weights, const backend::Rope& rope);
  void ProjectOut(const AttentionWeights& weights);
  // `layer` names the observations.
  void Foresee(int layer, bool next);
  void MoeSite(int layer, const MoeWeights& weights, int selected);
  // Decoder start with rows that only the encoder runs: history of all rows, then on with the tail.
  void SwitchToTail(int layer);
  // Draft head: rings of the step's rows; a block of rows through the stages.
  void StoreDraftWindow();
  void RunDraftStage(int stage);
  [[nodiscard]] Result<std::span<const Draft>> DrawDrafts(std::span<const DraftInput> inputs, int depth);
  [[nodiscard]] const float* Logits(const std::vector<std::int32_t>& rows);
  void Head(const std::int32_t* rows, int count);
  // Decode steps, padded to few sizes, which a backend may record once and replay.
  [[nodiscard]] bool CanRepeat() const;
  [[nodiscard]] Result<const float*> RunRepeated();

  [[nodiscard]] RowSet& set() { return w_.sets[static_cast<std::size_t>(current_)]; }
  [[nodiscard]] const backend::StepView& view() { return set().view; }
  void Observe(std::string_view name, int layer, const void* data, DType dtype,
               std::initializer_list<std::int64_t> row_shape);

  Model::Impl& m_;
  Workspace& w_;
  StateStorage& state_;
  Observer* observer_;
  StepRows& all_;
  StepRows& tail_;
  int current_ = 0;       // 0: all rows, 1: tail rows
  bool pending_ = false;  // y has not been expanded into h yet
};

}  // namespace galley::model
