// SPDX-License-Identifier: Apache-2.0
// Memory of a V4.1 model's sequences: history slabs addressed by block id, and slots. The layout is a pure function of
// the config; StateStorage holds the bytes. Owned by the rank; who may use which block or slot is decided elsewhere.
#pragma once

#include <vector>

#include "galley/backend/backend.h"
#include "galley/backend/memory_formats.h"
#include "galley/base/error.h"
#include "galley/base/strong_id.h"
#include "galley/model/config.h"

namespace galley::model {

// Rows before the newest one that may have to run again, beyond what rejected drafts take back: a snapshot restarts so
// far before its position. Draft rings follow the decoder's.
struct RewindRows {
  int encoder = 0;
  int decoder = 0;
  int drafts = 0;  // rejected drafts of any kind; the draft head's own depth if that is more
};

struct StateLayout {
  struct Owner {
    int layer = 0;
    int ratio = 1;
    std::size_t block_bytes = 0;        // history of one block in this owner's slab
    std::size_t input_ring_offset = 0;  // in the slot; ratio 2 only
  };
  std::vector<Owner> owners;
  std::vector<std::size_t> window_offset;  // [n_layers], in the slot
  std::vector<std::size_t> draft_offset;   // [draft stages], window rings of the draft head
  std::size_t id_ring_offset = 0;
  int backtrack_rows = 0;  // rows that rejected drafts can take back: the draft depth
  RewindRows rewind;
  int window_ring_rows = 0;   // window + backtrack, of layers that never rewind further
  int encoder_ring_rows = 0;  // and with the rows to rewind
  int decoder_ring_rows = 0;
  int input_ring_rows = 0;  // pair + backtrack
  int id_ring_rows = 0;     // earlier ids of the longest n-gram + backtrack, at least one
  std::size_t window_record_bytes = 0;
  std::size_t input_record_bytes = 0;
  std::size_t slot_bytes = 0;
  std::size_t block_bytes = 0;  // over all owners

  [[nodiscard]] static StateLayout Make(const Config& config, RewindRows rewind = {});
  [[nodiscard]] int ring_rows(const Config& config, int layer) const {
    return layer < config.decoder_start() ? encoder_ring_rows : decoder_ring_rows;
  }
  // Index into `owners` of the owner of `layer`'s compressed history.
  [[nodiscard]] std::size_t owner_of(const Config& config, int layer) const;
};

class StateStorage {
 public:
  // Errors: kResourceExhausted.
  [[nodiscard]] static Result<StateStorage> Create(backend::Backend& backend, const Config& config, int blocks,
                                                   int slots, RewindRows rewind = {});

  [[nodiscard]] const StateLayout& layout() const { return layout_; }
  [[nodiscard]] int blocks() const { return blocks_; }
  [[nodiscard]] int slots() const { return slots_; }
  [[nodiscard]] backend::HistorySlab Slab(std::size_t owner) const;
  [[nodiscard]] backend::Ring WindowRing(int layer) const;
  [[nodiscard]] backend::Ring DraftRing(int stage) const;
  [[nodiscard]] backend::Ring InputRing(std::size_t owner) const;
  [[nodiscard]] backend::Ring IdRing() const;

  // Copies the whole state of a slot, or the history of a block, into another place of this or another storage of the
  // same layout (fork, snapshot).
  void CopySlot(backend::Backend& backend, SlotId from, StateStorage& target, SlotId to) const;
  void CopyBlock(backend::Backend& backend, BlockId from, StateStorage& target, BlockId to) const;

 private:
  StateStorage() = default;
  [[nodiscard]] backend::Ring RingAt(std::size_t offset, int rows, std::size_t row_bytes) const;

  StateLayout layout_;
  int blocks_ = 0, slots_ = 0;
  int latent_dim_ = 0, index_dim_ = 0, decoder_start_ = 0;
  std::vector<backend::Buffer> slabs_;
  backend::Buffer slot_memory_;
};

}  // namespace galley::model
