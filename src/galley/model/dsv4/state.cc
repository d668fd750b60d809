// SPDX-License-Identifier: Apache-2.0
#include "galley/model/dsv4/state.h"

#include <fmt/core.h>

#include <algorithm>

#include "galley/base/check.h"
#include "galley/base/math.h"

namespace galley::model {
namespace {

constexpr std::size_t kAlignment = 16;

backend::HistorySlab SlabShape(const Config& config, int ratio) {
  return {.base = nullptr, .ratio = ratio, .latent_dim = config.head_dim, .index_dim = config.index_head_dim};
}

}  // namespace

StateLayout StateLayout::Make(const Config& config, RewindRows rewind) {
  StateLayout layout;
  layout.backtrack_rows = std::max(rewind.drafts, config.dspark.n_stages > 0 ? config.dspark.block_size : 0);
  layout.window_ring_rows = config.window_size + layout.backtrack_rows;
  layout.rewind = rewind;
  layout.encoder_ring_rows = layout.window_ring_rows + rewind.encoder;
  layout.decoder_ring_rows = layout.window_ring_rows + rewind.decoder;
  // Rows that rewind are run again before their group is pooled, so these rings need no more.
  layout.input_ring_rows = 2 + layout.backtrack_rows;
  // A row's id is stored before the earlier ones are read, so without drafts to take back it needs a place of its own.
  layout.id_ring_rows = config.engram.max_ngram_size - 1 + std::max(1, layout.backtrack_rows);
  layout.window_record_bytes = backend::WindowRecordBytes(config.head_dim);
  layout.input_record_bytes = 2 * static_cast<std::size_t>(config.head_dim) * sizeof(float);

  const auto reserve = [&layout](int rows, std::size_t row_bytes) {
    const std::size_t at = layout.slot_bytes;
    layout.slot_bytes += RoundUp(static_cast<std::size_t>(rows) * row_bytes, kAlignment);
    return at;
  };
  for (int layer = 0; layer < config.n_layers; ++layer) {
    layout.window_offset.push_back(reserve(layout.ring_rows(config, layer), layout.window_record_bytes));
  }
  for (int stage = 0; stage < config.dspark.n_stages; ++stage) {
    layout.draft_offset.push_back(reserve(layout.decoder_ring_rows, layout.window_record_bytes));
  }
  for (const int layer : config.kv_source_layers) {
    Owner owner{.layer = layer, .ratio = config.compress_ratios[static_cast<std::size_t>(layer)]};
    owner.block_bytes = SlabShape(config, owner.ratio).block_bytes();
    if (owner.ratio > 1) owner.input_ring_offset = reserve(layout.input_ring_rows, layout.input_record_bytes);
    layout.block_bytes += owner.block_bytes;
    layout.owners.push_back(owner);
  }
  if (!config.engram.layer_ids.empty()) layout.id_ring_offset = reserve(layout.id_ring_rows, sizeof(std::int32_t));
  return layout;
}

std::size_t StateLayout::owner_of(const Config& config, int layer) const {
  const int source = config.kv_source(layer);
  for (std::size_t i = 0; i < owners.size(); ++i) {
    if (owners[i].layer == source) return i;
  }
  CHECK(false) << "layer " << layer << " has no KV owner";
  return 0;
}

Result<StateStorage> StateStorage::Create(backend::Backend& backend, const Config& config, int blocks, int slots,
                                          RewindRows rewind) {
  CHECK(blocks >= 0 && slots >= 1) << blocks << " blocks, " << slots << " slots";
  StateStorage storage;
  storage.layout_ = StateLayout::Make(config, rewind);
  storage.blocks_ = blocks;
  storage.slots_ = slots;
  storage.latent_dim_ = config.head_dim;
  storage.index_dim_ = config.index_head_dim;
  storage.decoder_start_ = config.decoder_start();
  for (const StateLayout::Owner& owner : storage.layout_.owners) {
    ASSIGN_OR_RETURN(backend::Buffer slab, backend.Allocate(static_cast<std::size_t>(blocks) * owner.block_bytes,
                                                            fmt::format("history of layer {}", owner.layer)));
    storage.slabs_.push_back(std::move(slab));
  }
  ASSIGN_OR_RETURN(storage.slot_memory_,
                   backend.Allocate(static_cast<std::size_t>(slots) * storage.layout_.slot_bytes, "sequence slots"));
  return storage;
}

void StateStorage::CopySlot(backend::Backend& backend, SlotId from, StateStorage& target, SlotId to) const {
  const std::size_t bytes = layout_.slot_bytes;
  backend.CopyOnDevice(target.slot_memory_.data() + static_cast<std::size_t>(to.value) * bytes,
                       slot_memory_.data() + static_cast<std::size_t>(from.value) * bytes, bytes);
}

void StateStorage::CopyBlock(backend::Backend& backend, BlockId from, StateStorage& target, BlockId to) const {
  for (std::size_t i = 0; i < slabs_.size(); ++i) {
    const std::size_t bytes = layout_.owners[i].block_bytes;
    backend.CopyOnDevice(target.slabs_[i].data() + static_cast<std::size_t>(to.value) * bytes,
                         slabs_[i].data() + static_cast<std::size_t>(from.value) * bytes, bytes);
  }
}

backend::HistorySlab StateStorage::Slab(std::size_t owner) const {
  return {.base = slabs_[owner].data(),
          .ratio = layout_.owners[owner].ratio,
          .latent_dim = latent_dim_,
          .index_dim = index_dim_};
}

backend::Ring StateStorage::RingAt(std::size_t offset, int rows, std::size_t row_bytes) const {
  return {.base = slot_memory_.data() + offset, .slot_bytes = layout_.slot_bytes, .rows = rows, .row_bytes = row_bytes};
}

backend::Ring StateStorage::WindowRing(int layer) const {
  const int rows = layer < decoder_start_ ? layout_.encoder_ring_rows : layout_.decoder_ring_rows;
  return RingAt(layout_.window_offset[static_cast<std::size_t>(layer)], rows, layout_.window_record_bytes);
}

backend::Ring StateStorage::DraftRing(int stage) const {
  return RingAt(layout_.draft_offset[static_cast<std::size_t>(stage)], layout_.decoder_ring_rows,
                layout_.window_record_bytes);
}

backend::Ring StateStorage::InputRing(std::size_t owner) const {
  return RingAt(layout_.owners[owner].input_ring_offset, layout_.input_ring_rows, layout_.input_record_bytes);
}

backend::Ring StateStorage::IdRing() const {
  return RingAt(layout_.id_ring_offset, layout_.id_ring_rows, sizeof(std::int32_t));
}

}  // namespace galley::model
