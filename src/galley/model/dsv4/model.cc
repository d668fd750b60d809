// SPDX-License-Identifier: Apache-2.0
#include "galley/model/dsv4/model.h"

#include <fmt/core.h>

#include <algorithm>

#include "galley/base/check.h"
#include "galley/base/math.h"
#include "galley/model/dsv4/model_impl.h"
#include "galley/model/dsv4/rope.h"

namespace galley::model {
namespace {

template <typename T>
Result<backend::Buffer> ToDevice(backend::Backend& backend, const std::vector<T>& values, std::string_view purpose) {
  ASSIGN_OR_RETURN(backend::Buffer buffer, backend.Allocate(values.size() * sizeof(T), purpose));
  RETURN_IF_ERROR(backend.CopyToDevice(buffer.data(), values.data(), values.size() * sizeof(T)));
  return buffer;
}

Status PlaceEngram(Model::Impl& m, std::span<const std::int32_t> compressed_ids) {
  const Config& c = m.config;
  if (c.engram.layer_ids.empty()) return {};
  if (static_cast<std::int64_t>(compressed_ids.size()) < c.vocab_size) {
    return Err(ErrorCode::kInvalidArgument,
               fmt::format("the tokenizer has {} tokens, but the model's vocabulary is {}; use the tokenizer.json that "
                           "came with the model",
                           compressed_ids.size(), c.vocab_size));
  }
  const std::int64_t distinct = *std::max_element(compressed_ids.begin(), compressed_ids.end()) + std::int64_t{1};
  if (distinct != c.engram.compressed_vocab_size) {
    return Err(ErrorCode::kInvalidArgument,
               fmt::format("the tokenizer gives {} compressed ids for Engram, but the model was trained with {}; every "
                           "look-up would be wrong. Use the tokenizer.json that came with the model",
                           distinct, c.engram.compressed_vocab_size));
  }
  m.compressed_ids.assign(compressed_ids.begin(), compressed_ids.end());
  m.engram_pad = m.compressed_ids[static_cast<std::size_t>(c.engram.pad_id)];
  ASSIGN_OR_RETURN(m.device_compressed_ids, ToDevice(*m.backend, m.compressed_ids, "Engram ids"));
  ASSIGN_OR_RETURN(const std::vector<EngramHash> hashes, MakeEngramHashes(c.engram));
  for (const EngramHash& hash : hashes) {
    backend::EngramHashView view;
    for (const auto& [values, pointer] :
         {std::pair{&hash.multipliers, &view.multipliers}, std::pair{&hash.primes, &view.primes},
          std::pair{&hash.offsets, &view.offsets}}) {
      ASSIGN_OR_RETURN(backend::Buffer buffer, ToDevice(*m.backend, *values, "Engram hash"));
      *pointer = buffer.as<std::int64_t>();
      m.hash_arrays.push_back(std::move(buffer));
    }
    m.hashes.push_back(view);
  }
  return {};
}

// Block ids that one step can carry.
std::size_t BlocksMax(const ModelOptions& options) {
  return static_cast<std::size_t>(CeilDiv<Position>(options.seq_len_max, backend::kBlockTokens)) *
         static_cast<std::size_t>(options.sequences_max);
}

}  // namespace

Model::Model(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Model::~Model() = default;

const Config& Model::config() const {
  return impl_->config;
}
const ModelOptions& Model::options() const {
  return impl_->options;
}

Result<std::unique_ptr<Model>> Model::Create(const Checkpoint& checkpoint, std::span<const std::int32_t> compressed_ids,
                                             backend::Backend& backend, const ModelOptions& options) {
  CHECK(options.rows_max >= 1 && options.sequences_max >= 1 && options.seq_len_max >= 1) << "empty model options";
  auto impl = std::make_unique<Impl>();
  impl->config = checkpoint.config();
  if (options.drafts && impl->config.dspark.n_stages == 0) {
    return Err(ErrorCode::kUnsupported, "this model has no draft head; run it without drafts");
  }
  impl->options = options;
  impl->backend = &backend;
  RETURN_IF_ERROR(PlaceEngram(*impl, compressed_ids));
  ASSIGN_OR_RETURN(impl->weights, Weights::Load(checkpoint, backend));
  for (const bool compressed : {false, true}) {
    ASSIGN_OR_RETURN(impl->frequencies[compressed ? 1 : 0],
                     ToDevice(backend, RopeFrequencies(impl->config, compressed), "rotary frequencies"));
  }
  impl->blocks_max = BlocksMax(options);
  for (StepRows* rows : {&impl->all_rows, &impl->tail_rows}) {
    rows->Reserve(options.rows_max, std::max(options.rows_max, options.sequences_max));
  }
  impl->block_ids.reserve(impl->blocks_max);
  impl->logit_rows.reserve(static_cast<std::size_t>(options.logit_rows_max));
  impl->scored.reserve(static_cast<std::size_t>(options.sequences_max));
  ASSIGN_OR_RETURN(impl->workspace, Workspace::Create(backend, impl->config, options, impl->blocks_max));
  return std::unique_ptr<Model>(new Model(std::move(impl)));
}

Result<ModelMemory> Model::PlanMemory(const Config& config, const ModelOptions& options) {
  ModelMemory memory;
  memory.workspace = Workspace::Bytes(config, options, BlocksMax(options));
  for (const bool compressed : {false, true}) {
    memory.tables += RopeFrequencies(config, compressed).size() * sizeof(float);
  }
  if (config.engram.layer_ids.empty()) return memory;
  memory.tables += static_cast<std::size_t>(config.vocab_size) * sizeof(std::int32_t);
  ASSIGN_OR_RETURN(const std::vector<EngramHash> hashes, MakeEngramHashes(config.engram));
  for (const EngramHash& hash : hashes) {
    memory.tables += (hash.multipliers.size() + hash.primes.size() + hash.offsets.size()) * sizeof(hash.multipliers[0]);
  }
  return memory;
}

Status Model::ResetSlot(StateStorage& state, SlotId slot, Position start, std::span<const TokenId> previous) {
  if (impl_->config.engram.layer_ids.empty()) return {};
  const backend::Ring ring = state.IdRing();
  const auto count = std::min<Position>(static_cast<Position>(previous.size()), std::min<Position>(start, ring.rows));
  for (Position back = 1; back <= count; ++back) {
    const TokenId token = previous[previous.size() - static_cast<std::size_t>(back)];
    const std::int32_t id = token < 0 ? -1 : impl_->compressed_ids[static_cast<std::size_t>(token)];
    RETURN_IF_ERROR(impl_->backend->CopyToDevice(ring.At(slot.value, start - back), &id, sizeof(id)));
  }
  return {};
}

Result<const float*> Model::Forward(std::span<const SequenceInput> sequences, StateStorage& state, Observer* observer,
                                    const LayerRange* range) {
  return ForwardStep(*impl_, state, observer).Run(sequences, range);
}

Result<const float*> Model::RowLogits(int sequence, int first, int count, StateStorage& state) {
  return ForwardStep(*impl_, state, nullptr).RowLogits(sequence, first, count);
}

bool Model::KeepDraftRings(bool keep) {
  return impl_->keep_draft_rings = keep || impl_->backend->repeats_steps();
}

Result<std::span<const Draft>> Model::Drafts(std::span<const DraftInput> inputs, StateStorage& state, int depth) {
  return ForwardStep(*impl_, state, nullptr).RunDrafts(inputs, depth == 0 ? impl_->config.dspark.block_size : depth);
}

}  // namespace galley::model
