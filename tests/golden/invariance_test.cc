// SPDX-License-Identifier: Apache-2.0
// The value of a row depends on its inputs and its sequence's state only: not on chunk borders, on prefill against
// decode, on what else is in the step, on which slot and blocks hold the sequence, nor on threads. Equality here is of
// bits.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <numeric>

#include "galley/backend/cpu/cpu_backend.h"
#include "galley/backend/cpu/tile_model.h"
#ifdef GALLEY_CUDA
#include "galley/backend/cuda/cuda_backend.h"
#endif
#include "galley/backend/decorator.h"
#include "galley/backend/ref/ref_backend.h"
#include "galley/base/check.h"
#include "galley/base/rng.h"
#include "galley/model/dsv4/model.h"
#include "galley/text/compressed_ids.h"

#ifndef GALLEY_TEST_BACKENDS
#define GALLEY_TEST_BACKENDS "ref", "cpu/auto", "cpu/amx"
#endif

namespace galley {
namespace {

const std::filesystem::path kProbe = std::filesystem::path(GALLEY_SOURCE_DIR) / "tests/golden/v41_probe";
constexpr int kBlocksMax = 12, kRowsMax = 320, kSlots = 3;

std::vector<TokenId> RandomIds(std::size_t count, std::uint32_t stream) {
  std::vector<TokenId> ids;
  for (std::size_t i = 0; i < count; ++i) {
    ids.push_back(static_cast<TokenId>(3 + Philox4x32({static_cast<std::uint32_t>(i), stream, 0, 0}, {1, 2})[0] % 480));
  }
  return ids;
}

// Steps of up to 256 rows are padded and repeated (Backend::RunRepeated), or not.
enum class Steps { kRepeated, kPlain };

// What a backend that does not repeat steps becomes when it claims to.
class Repeating : public backend::BackendDecorator {
 public:
  using BackendDecorator::BackendDecorator;
  [[nodiscard]] bool repeats_steps() const override { return true; }
};

// Backends under test, by name.
class Invariance : public testing::TestWithParam<const char*> {
 public:
  static std::unique_ptr<backend::Backend> MakeBackend(int threads, Steps steps) {
#ifdef GALLEY_CUDA
    if (std::string_view(GetParam()).starts_with("cuda")) {
      using backend::ProductForm;
      const ProductForm form = std::string_view(GetParam()) == "cuda/split" ? ProductForm::kSplit : ProductForm::kAuto;
      auto cuda = backend::MakeCudaBackend(
          {.device = 0, .graphs = steps == Steps::kRepeated, .linears = form, .experts = form});
      CHECK(cuda) << cuda.error().ToString();
      return std::move(*cuda);
    }
#endif
    if (steps == Steps::kPlain) return MakeOnHost(threads);
    return std::make_unique<Repeating>(MakeOnHost(threads));
  }
  static std::unique_ptr<backend::Backend> MakeOnHost(int threads) {
    if (std::string_view(GetParam()) == "ref") return std::make_unique<backend::RefBackend>(threads);
    const auto isa = backend::cpu::FindIsaOrModel(GetParam() + 4);
    CHECK(isa) << isa.error().ToString();
    return std::make_unique<backend::cpu::CpuBackend>(backend::cpu::CpuOptions{.threads = threads, .processors = {}},
                                                      **isa);
  }
  void SetUp() override {
    if (std::string_view(GetParam()).starts_with("cpu/") && !backend::cpu::FindIsaOrModel(GetParam() + 4))
      GTEST_SKIP() << "this processor cannot run " << GetParam();
  }
};

// A model with its own memory; the probe checkpoint has every kind of layer.
struct Rig {
  explicit Rig(int threads = 2, Steps steps = Steps::kPlain, int slot_count = kSlots, int blocks_each = kBlocksMax)
      : slots(slot_count), slot_blocks(blocks_each), backend(Invariance::MakeBackend(threads, steps)) {
    auto opened = model::Checkpoint::Open(kProbe);
    EXPECT_TRUE(opened) << opened.error().ToString();
    checkpoint = std::make_unique<model::Checkpoint>(std::move(*opened));
    const auto tokenizer = text::Tokenizer::Load(kProbe / "tokenizer.json");
    EXPECT_TRUE(tokenizer) << tokenizer.error().ToString();
    const auto ids = text::BuildCompressedIds(*tokenizer, checkpoint->config().vocab_size).ids;
    auto made = model::Model::Create(*checkpoint, ids, *backend,
                                     {.rows_max = kRowsMax,
                                      .sequences_max = slots,
                                      .logit_rows_max = kRowsMax,
                                      .window_places = 0,
                                      .seq_len_max = slot_blocks * backend::kBlockTokens});
    EXPECT_TRUE(made) << made.error().ToString();
    model = std::move(*made);
    auto storage = model::StateStorage::Create(*backend, checkpoint->config(), slots * slot_blocks, slots);
    EXPECT_TRUE(storage);
    state = std::make_unique<model::StateStorage>(std::move(*storage));
  }

  int slots, slot_blocks;
  std::unique_ptr<backend::Backend> backend;
  std::unique_ptr<model::Checkpoint> checkpoint;
  std::unique_ptr<model::Model> model;
  std::unique_ptr<model::StateStorage> state;
};

// One sequence in one slot of a rig, with blocks of its own.
struct SequenceRun {
  SequenceRun(Rig& in, int slot_index, std::vector<TokenId> tokens, Position floor = 0)
      : rig(in), slot(slot_index), ids(std::move(tokens)), decoder_floor(floor) {
    // Blocks in falling order and interleaved with those of other slots: a table, not a range.
    for (int b = rig.slot_blocks; b-- > 0;) blocks.push_back(b * rig.slots + slot_index);
  }

  // The next `rows` rows; logits are asked for every row that runs the decoder.
  [[nodiscard]] model::SequenceInput Next(std::size_t rows) {
    const Position start = done;
    done += static_cast<Position>(rows);
    const Position decoder_rows = std::clamp<Position>(done - decoder_floor, 0, static_cast<Position>(rows));
    return {.slot = slot,
            .start = start,
            .tokens = std::span(ids).subspan(static_cast<std::size_t>(start), rows),
            .blocks = blocks,
            .decoder_floor = decoder_floor,
            .logit_rows = static_cast<int>(decoder_rows)};
  }

  void Collect(const float* values, int rows) {
    const auto count = static_cast<std::size_t>(rows) * static_cast<std::size_t>(rig.checkpoint->config().vocab_size);
    const std::size_t before = logits.size();
    logits.resize(before + count);
    EXPECT_TRUE(rig.backend->CopyToHost(logits.data() + before, values, count * sizeof(float)));
  }

  // Runs the whole sequence in steps of `chunk` rows, alone.
  void Alone(std::size_t chunk) {
    while (static_cast<std::size_t>(done) < ids.size()) {
      const model::SequenceInput input = Next(std::min(chunk, ids.size() - static_cast<std::size_t>(done)));
      const auto result = rig.model->Forward({&input, 1}, *rig.state);
      ASSERT_TRUE(result);
      Collect(*result, input.logit_rows);
    }
  }

  // History entries of every owner that are complete, as bytes.
  [[nodiscard]] std::vector<std::uint8_t> History() const {
    std::vector<std::uint8_t> bytes;
    for (std::size_t owner = 0; owner < rig.state->layout().owners.size(); ++owner) {
      const backend::HistorySlab slab = rig.state->Slab(owner);
      for (std::int64_t j = 0; j < done / slab.ratio; ++j) {
        const backend::HistoryEntry e = backend::EntryAt(slab, blocks.data(), j);
        const auto append = [&](const std::uint8_t* part, std::size_t size) {
          const std::size_t before = bytes.size();
          bytes.resize(before + size);
          EXPECT_TRUE(rig.backend->CopyToHost(bytes.data() + before, part, size));
        };
        append(e.latent, slab.latent_bytes());
        append(e.latent_scales, slab.latent_scales());
        append(e.key, slab.key_bytes());
        append(e.key_scales, slab.key_scales());
      }
    }
    return bytes;
  }

  Rig& rig;
  SlotId slot;
  std::vector<TokenId> ids;
  std::vector<std::int32_t> blocks;
  Position decoder_floor;
  Position done = 0;
  std::vector<float> logits;
};

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

TEST_P(Invariance, ChunksOfAnySizeAndDecodeEqualOnePrefill) {
  Rig rig;
  const std::vector<TokenId> ids = RandomIds(200, 1);
  SequenceRun whole(rig, 0, ids);
  whole.Alone(200);
  // One row; odd, so that pairs are cut; as many as the ring holds.
  for (const std::size_t chunk : {1, 7, 133}) {
    SequenceRun run(rig, 1, ids);
    run.Alone(chunk);
    EXPECT_TRUE(SameBits(run.logits, whole.logits)) << "chunk " << chunk;
    EXPECT_EQ(run.History(), whole.History()) << "chunk " << chunk;
  }
}

TEST_P(Invariance, TruncatedDecoderDoesNotDependOnChunks) {
  Rig rig;
  const std::vector<TokenId> ids = RandomIds(200, 2);
  const Position tail_start = 200 - 140;
  SequenceRun full(rig, 2, ids);
  full.Alone(200);
  SequenceRun whole(rig, 0, ids, tail_start);
  whole.Alone(200);
  EXPECT_FALSE(
      SameBits(whole.logits, {full.logits.end() - static_cast<std::ptrdiff_t>(whole.logits.size()), full.logits.end()}))
      << "truncation changed nothing, so this test shows nothing";
  EXPECT_EQ(whole.History(), full.History()) << "history comes from the encoder, which runs every row";
  for (const std::size_t chunk : {1, 59, 61}) {  // just below and above the tail start
    SequenceRun run(rig, 1, ids, tail_start);
    run.Alone(chunk);
    EXPECT_TRUE(SameBits(run.logits, whole.logits)) << "chunk " << chunk;
  }
}

TEST_P(Invariance, SequencesThatShareAStepDoNotSeeEachOther) {
  Rig rig;
  const std::vector<std::vector<TokenId>> prompts = {RandomIds(150, 3), RandomIds(61, 4), RandomIds(9, 5)};
  std::vector<std::vector<float>> alone;
  for (const std::vector<TokenId>& prompt : prompts) {
    SequenceRun run(rig, 0, prompt);
    run.Alone(prompt.size());
    alone.push_back(run.logits);
  }
  std::vector<SequenceRun> runs;
  for (int i = 0; i < kSlots; ++i) runs.emplace_back(rig, kSlots - 1 - i, prompts[static_cast<std::size_t>(i)]);
  // Mixed steps: rows of every unfinished sequence, in numbers that change from step to step.
  for (std::uint32_t step = 0;
       std::any_of(runs.begin(), runs.end(),
                   [](const SequenceRun& r) { return static_cast<std::size_t>(r.done) < r.ids.size(); });
       ++step) {
    std::vector<model::SequenceInput> inputs;
    std::vector<SequenceRun*> owners;
    for (SequenceRun& run : runs) {
      const std::size_t left = run.ids.size() - static_cast<std::size_t>(run.done);
      const std::size_t rows = std::min<std::size_t>(
          left, 1 + Philox4x32({step, static_cast<std::uint32_t>(run.slot.value), 9, 0}, {5, 0})[0] % 40);
      if (rows == 0) continue;
      inputs.push_back(run.Next(rows));
      owners.push_back(&run);
    }
    const auto result = rig.model->Forward(inputs, *rig.state);
    ASSERT_TRUE(result);
    const float* at = *result;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      owners[i]->Collect(at, inputs[i].logit_rows);
      at += static_cast<std::ptrdiff_t>(inputs[i].logit_rows) * rig.checkpoint->config().vocab_size;
    }
  }
  for (std::size_t i = 0; i < runs.size(); ++i) EXPECT_TRUE(SameBits(runs[i].logits, alone[i])) << "sequence " << i;
}

// Steps as decode with drafts makes them: one to five rows of each sequence, some sequences missing.
std::vector<std::vector<float>> DecodeTogether(Rig& rig, std::vector<SequenceRun>& runs, std::uint32_t steps) {
  for (std::uint32_t step = 0; step < steps; ++step) {
    std::vector<model::SequenceInput> inputs;
    std::vector<SequenceRun*> owners;
    for (SequenceRun& run : runs) {
      const auto words = Philox4x32({step, static_cast<std::uint32_t>(run.slot.value), 10, 0}, {5, 0});
      // Often the same again, so that steps repeat.
      const std::size_t rows = step % 4 != 0 ? 1 : words[0] % 6;
      if (rows == 0) continue;
      inputs.push_back(run.Next(rows));
      owners.push_back(&run);
    }
    if (inputs.empty()) continue;
    const auto result = rig.model->Forward(inputs, *rig.state);
    EXPECT_TRUE(result) << result.error().ToString();
    if (!result) break;
    const float* at = *result;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      owners[i]->Collect(at, inputs[i].logit_rows);
      at += static_cast<std::ptrdiff_t>(inputs[i].logit_rows) * rig.checkpoint->config().vocab_size;
    }
  }
  std::vector<std::vector<float>> logits;
  for (SequenceRun& run : runs) logits.push_back(run.logits);
  return logits;
}

TEST_P(Invariance, RepeatedStepsEqualPlainOnes) {
  constexpr std::uint32_t kSteps = 40;
  std::vector<std::vector<float>> logits[2];
  std::vector<std::uint8_t> history[2];
  for (const Steps steps : {Steps::kPlain, Steps::kRepeated}) {
    Rig rig(2, steps);
    std::vector<SequenceRun> runs;
    for (int i = 0; i < kSlots; ++i) {
      // 40 rows of prompt are a step of their own; the rest is decoded.
      const std::vector<TokenId> ids = RandomIds(300, static_cast<std::uint32_t>(20 + i));
      runs.emplace_back(rig, i, std::vector<TokenId>(ids.begin(), ids.begin() + 40));
      runs.back().Alone(40);
      runs.back().ids = ids;
    }
    const auto index = static_cast<std::size_t>(steps == Steps::kPlain ? 0 : 1);
    logits[index] = DecodeTogether(rig, runs, kSteps);
    for (const SequenceRun& run : runs) {
      const std::vector<std::uint8_t> bytes = run.History();
      history[index].insert(history[index].end(), bytes.begin(), bytes.end());
    }
#ifdef GALLEY_CUDA
    if (steps == Steps::kRepeated) {
      const backend::CudaGraphCounts counts = backend::GraphCountsOf(*rig.backend);
      std::printf("  graphs: %d recorded, %lld replays, %zu nodes, %.2f MiB each\n", counts.recorded,
                  static_cast<long long>(counts.replayed), counts.nodes_max,
                  static_cast<double>(counts.bytes) / (1 << 20) / std::max(counts.recorded, 1));
      EXPECT_TRUE(counts.on) << "recording was given up";
      EXPECT_GT(counts.replayed, 20);
    }
#endif
  }
  for (std::size_t i = 0; i < kSlots; ++i) EXPECT_TRUE(SameBits(logits[0][i], logits[1][i])) << "sequence " << i;
  EXPECT_EQ(history[0], history[1]);
}

// Sequences of many lengths decode one row each, in steps of every number of them: 1 to 256 on a GPU, where other
// kernels run for other numbers. A row that runs again writes what it wrote, so every step starts from the same state.
TEST_P(Invariance, NumberOfRowsDoesNotMatter) {
  const bool gpu = std::string_view(GetParam()).starts_with("cuda");
  const int sequences = gpu ? 256 : 17;
  std::vector<int> sizes = {1, 2, 3, 5, 8, 13, 16, 17};
  if (gpu) sizes.insert(sizes.end(), {31, 32, 33, 64, 65, 80, 128, 129, 255, 256});
  std::vector<std::vector<float>> alone;
  for (const Steps steps : {Steps::kPlain, Steps::kRepeated}) {
    Rig rig(2, steps, sequences, 2);
    if (gpu && steps == Steps::kPlain) {
      sizes.resize(256);
      std::iota(sizes.begin(), sizes.end(), 1);
    }
    std::vector<SequenceRun> runs;
    for (int i = 0; i < sequences; ++i) {
      const auto length = static_cast<std::size_t>(1 + i * 37 % 150);
      runs.emplace_back(rig, i, RandomIds(length, static_cast<std::uint32_t>(40 + i)));
      runs.back().Alone(length);
      runs.back().ids.push_back(7 + i);
    }
    const auto decode = [&](int first, int rows) {
      std::vector<model::SequenceInput> inputs;
      for (int i = 0; i < rows; ++i) {
        SequenceRun& run = runs[static_cast<std::size_t>((first + i) % sequences)];
        inputs.push_back(run.Next(1));
        --run.done;
      }
      const auto result = rig.model->Forward(inputs, *rig.state);
      CHECK(result) << result.error().ToString();
      const auto vocab = static_cast<std::size_t>(rig.checkpoint->config().vocab_size);
      std::vector<std::vector<float>> logits(static_cast<std::size_t>(rows), std::vector<float>(vocab));
      for (std::size_t i = 0; i < logits.size(); ++i) {
        CHECK(rig.backend->CopyToHost(logits[i].data(), *result + i * vocab, vocab * sizeof(float))) << "row " << i;
      }
      return logits;
    };
    for (int i = 0; i < sequences && steps == Steps::kPlain; ++i) alone.push_back(decode(i, 1)[0]);
    for (const int rows : sizes) {
      const int first = rows * 11;
      const std::vector<std::vector<float>> together = decode(first, rows);
      for (std::size_t i = 0; i < together.size(); ++i) {
        const std::size_t sequence = (static_cast<std::size_t>(first) + i) % alone.size();
        ASSERT_TRUE(SameBits(together[i], alone[sequence])) << "sequence " << sequence << " in a step of " << rows;
      }
    }
  }
}

TEST_P(Invariance, ThreadsDoNotMatter) {
  const std::vector<TokenId> ids = RandomIds(140, 6);
  std::vector<std::vector<float>> results;
  for (const int threads : {1, 3}) {
    Rig rig(threads);
    SequenceRun run(rig, 0, ids);
    run.Alone(140);
    results.push_back(run.logits);
  }
  EXPECT_TRUE(SameBits(results[0], results[1]));
}

// Replay after a prefix hit, the exact kind: rows far enough before the hit rebuild the state bit for bit, and history
// below the hit is left alone even though it is recomputed.
TEST_P(Invariance, ReplayOfEnoughRowsRebuildsTheState) {
  Rig rig;
  const std::vector<TokenId> ids = RandomIds(300, 7);
  SequenceRun cold(rig, 0, ids);
  cold.Alone(300);
  const Position hit = 256;
  // From row 0: the probe's four encoder layers reach back 4 * 127 = 508 rows, more than there are.
  SequenceRun warm(rig, 1, ids);
  warm.blocks = cold.blocks;
  const std::vector<std::uint8_t> before = cold.History();
  std::vector<model::SequenceInput> inputs = {warm.Next(300)};
  inputs[0].history_from = hit;
  const auto result = rig.model->Forward(inputs, *rig.state);
  ASSERT_TRUE(result);
  warm.Collect(*result, 300);
  EXPECT_TRUE(SameBits(warm.logits, cold.logits));
  EXPECT_EQ(cold.History(), before);
}

// Bounded replay: 128 rows before the hit, window floor at their start, Engram told the ids before them. Shared history
// stays as it was, Engram's rows are those of a cold run, and where the replay starts does not depend on chunks.
TEST_P(Invariance, BoundedReplayLeavesSharedHistoryAlone) {
  Rig rig;
  const std::vector<TokenId> ids = RandomIds(300, 8);
  SequenceRun cold(rig, 0, ids);
  cold.Alone(300);
  const std::vector<std::uint8_t> before = cold.History();
  const Position hit = 256, start = hit - 128;
  std::vector<std::vector<float>> results;
  for (const std::size_t chunk : {172, 31}) {
    SequenceRun warm(rig, 1, ids);
    warm.blocks = cold.blocks;
    const std::vector<std::uint8_t> used(rig.state->layout().slot_bytes, 0x55);
    ASSERT_TRUE(rig.backend->CopyToDevice(rig.state->WindowRing(0).At(1, 0), used.data(), used.size()));
    ASSERT_TRUE(
        rig.model->ResetSlot(*rig.state, SlotId{1}, start, std::span(ids).first(static_cast<std::size_t>(start))));
    warm.done = start;
    while (static_cast<std::size_t>(warm.done) < ids.size()) {
      model::SequenceInput input = warm.Next(std::min(chunk, ids.size() - static_cast<std::size_t>(warm.done)));
      input.history_from = hit;
      input.encoder_floor = start;
      input.decoder_floor = start;
      const auto result = rig.model->Forward({&input, 1}, *rig.state);
      ASSERT_TRUE(result);
      warm.Collect(*result, input.logit_rows);
    }
    results.push_back(warm.logits);
  }
  EXPECT_TRUE(SameBits(results[0], results[1]));
  // History of rows from the hit on is written anew from replayed rows; below the hit every byte is the cold run's.
  const std::vector<std::uint8_t> after = cold.History();
  for (std::size_t owner = 0; owner < rig.state->layout().owners.size(); ++owner) {
    const backend::HistorySlab slab = rig.state->Slab(owner);
    const std::size_t offset = owner == 0 ? 0 : 150 * rig.state->Slab(0).entry_bytes();  // owner 0: 300 / 2 entries
    const std::size_t shared_bytes = static_cast<std::size_t>(hit / slab.ratio) * slab.entry_bytes();
    EXPECT_EQ(std::memcmp(before.data() + offset, after.data() + offset, shared_bytes), 0) << "owner " << owner;
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, Invariance, testing::Values(GALLEY_TEST_BACKENDS), [](const auto& backend) {
  std::string name = backend.param;
  std::replace(name.begin(), name.end(), '/', '_');
  return name;
});

}  // namespace
}  // namespace galley
