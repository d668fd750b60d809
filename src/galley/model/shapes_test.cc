// SPDX-License-Identifier: Apache-2.0
#include "galley/model/shapes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "galley/backend/ref/ref_backend.h"
#include "galley/model/config_file.h"
#include "galley/model/dsv4/model.h"
#include "galley/model/random_weights.h"
#include "galley/model/tensor_list.h"
#include "galley/model/test_configs.h"

namespace galley::model {
namespace {

TEST(Shapes, AreFoundByName) {
  for (const ModelShape& shape : kModelShapes) EXPECT_EQ(FindShape(shape.name), &shape);
  EXPECT_EQ(FindShape("v5"), nullptr);
  EXPECT_EQ(FindShape(""), nullptr);
}

// Sizes of a slice's matrices are those of the model.
TEST(Shapes, OfFlashEqualItsConfig) {
  const auto flash = ParseConfig(FlashConfigJson(), "config.json");
  ASSERT_TRUE(flash) << flash.error().ToString();
  const Config slice = SliceOf(*FindShape("v41"), 8);
  const auto matrices = [](const Config& config, std::string_view prefix) {
    std::vector<std::pair<std::string, std::vector<std::int64_t>>> list;
    for (const ImpliedTensor& tensor : ImpliedTensors(config)) {
      const bool table = tensor.part == Part::kEngramTables;  // these are smaller
      if (tensor.name.starts_with(prefix) && tensor.name.find("bias_vl") == tensor.name.npos && !table)
        list.emplace_back(tensor.name.substr(prefix.size()), tensor.shape);
    }
    return list;
  };
  // With windows alone; with Engram, but no history in the model; as an owner of history of ratio 1.
  EXPECT_EQ(matrices(slice, "layers.0."), matrices(*flash, "layers.0."));
  EXPECT_THAT(matrices(slice, "layers.1."), testing::IsSupersetOf(matrices(*flash, "layers.1.")));
  EXPECT_EQ(matrices(slice, "layers.4."), matrices(*flash, "layers.20."));
}

TEST(Shapes, SlicesKeepTheRulesOfConfigs) {
  std::vector<bool> usable;  // slices have neither
  for (const Field& field : Fields())
    usable.push_back(!field.flat.starts_with("vision") && !field.flat.starts_with("dspark"));
  for (const ModelShape& shape : kModelShapes) {
    for (int layers = kSliceLayersMin; layers <= 13; ++layers)
      EXPECT_THAT(BrokenRules(SliceOf(shape, layers), usable, Spelling::kFlat), testing::IsEmpty())
          << shape.name << ", " << layers << " layers";
  }
}

// A slice of a model that is small enough for the reference backend: every op has weights, and its logits are numbers.
TEST(Shapes, SlicesRun) {
  constexpr ModelShape kSmall{"small", "Small", 32, 64, 32, 4, 64, 2, 32, 32, 8, 2, 4, 16, 2};
  Config config = SliceOf(kSmall, 6);
  config.vocab_size = 512;
  config.engram.compressed_vocab_size = 300;
  backend::RefBackend ref(1);
  std::vector<std::int32_t> ids;
  for (int token = 0; token < config.vocab_size; ++token) ids.push_back(token % 300);
  constexpr int kRows = 40;
  const Checkpoint weights = RandomCheckpoint(config, 1);  // which the backend uses where they are
  const auto made = Model::Create(weights, ids, ref,
                                  {.rows_max = kRows, .sequences_max = 1, .logit_rows_max = 1, .seq_len_max = kRows});
  ASSERT_TRUE(made) << made.error().ToString();
  auto state = StateStorage::Create(ref, config, 1, 1);
  ASSERT_TRUE(state) << state.error().ToString();
  std::vector<TokenId> tokens;
  for (int i = 0; i < kRows; ++i) tokens.push_back(i * 11 % config.vocab_size);
  const std::vector<std::int32_t> blocks = {0};
  ASSERT_TRUE((*made)->ResetSlot(*state, SlotId(0), 0, {}));
  const SequenceInput input{.slot = SlotId(0), .start = 0, .tokens = tokens, .blocks = blocks};
  const auto logits = (*made)->Forward({&input, 1}, *state);
  ASSERT_TRUE(logits) << logits.error().ToString();
  double sum = 0;
  for (int i = 0; i < config.vocab_size; ++i) sum += std::abs((*logits)[i]);
  EXPECT_TRUE(std::isfinite(sum) && sum > 0) << sum;
}

}  // namespace
}  // namespace galley::model
