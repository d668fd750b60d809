// SPDX-License-Identifier: Apache-2.0
// A backend that copies its weights: what it reads gives the bits of the mapped files, loading tells how far it is, and
// can be ended.
#include "galley/engine/loaded_model.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "galley/backend/decorator.h"
#include "galley/engine/sequence.h"
#include "galley/io/weight_loader.h"

namespace galley::engine {
namespace {

// Does with host memory what a device does with its own.
class Copying final : public backend::BackendDecorator {
 public:
  using BackendDecorator::BackendDecorator;

  Result<const void*> Upload(const TensorView& weight) override { return Place(weight, 1); }
  Result<const void*> UploadMatrix(const TensorView& weight, backend::MatrixUse) override {
    return Place(weight, weight.bytes() / static_cast<std::size_t>(weight.dim(0)));  // a row
  }
  Result<const void*> UploadScales(const TensorView& scales, const TensorView&, backend::MatrixUse) override {
    return Place(scales, scales.bytes());
  }
  Result<const void*> UploadTable(const TensorView& table) override { return Place(table, 1); }
  void UseFiles(std::span<const io::WeightFile> files, const io::Progress& progress) override {
    wanted_.UseFiles(files, progress);
  }
  Status FinishUploads() override {
    constexpr io::LoadShape kShape = {.readers = 3, .buffers = 4, .buffer_bytes = 64 << 10};
    return wanted_.Load(kShape, [this](std::size_t buffers, std::size_t bytes) {
      return Result<std::unique_ptr<io::WeightSink>>(std::make_unique<io::MemorySink>(places_, buffers, bytes));
    });
  }

 private:
  Result<const void*> Place(const TensorView& weight, std::size_t grain) {
    EXPECT_TRUE(wanted_.Add(weight.data, weight.bytes(), grain));
    places_.push_back(copies_.emplace_back(weight.bytes()).data());
    return static_cast<const void*>(places_.back());
  }
  io::WantedWeights wanted_;
  std::vector<AlignedBytes> copies_;
  std::vector<std::byte*> places_;
};

Result<LoadedModel> Load(bool copying, const io::Progress& on_load = {}, const char* model = "models/nano") {
  LoadOptions options = {.model_dir = std::filesystem::path(GALLEY_SOURCE_DIR) / model,
                         .device = {.threads = 1},
                         .drafts = true,
                         .max_seq_len = 128,
                         .on_load = on_load};
  if (copying) {
    options.wrap_backend = [](std::unique_ptr<backend::Backend> inner) {
      return std::unique_ptr<backend::Backend>(std::make_unique<Copying>(std::move(inner)));
    };
  }
  return LoadedModel::Load(options);
}

std::vector<float> Logits(LoadedModel& loaded) {
  const TokenId tokens[] = {0, 554, 17, 300, 9};
  auto logits = Sequence(loaded).Append(tokens, 1);
  EXPECT_TRUE(logits) << logits.error().ToString();
  return logits ? *logits : std::vector<float>();
}

TEST(LoadedModel, CopiedWeightsAreTheFiles) {
  std::vector<std::pair<std::uint64_t, std::uint64_t>> told;
  auto copied = Load(true, [&](std::uint64_t done, std::uint64_t total) {
    told.emplace_back(done, total);
    return true;
  });
  auto mapped = Load(false);
  ASSERT_TRUE(copied) << copied.error().ToString();
  ASSERT_TRUE(mapped);
  const std::vector<float> logits = Logits(*copied);
  EXPECT_FALSE(logits.empty());
  EXPECT_EQ(logits, Logits(*mapped));
  EXPECT_EQ(told.front(), std::pair(std::uint64_t{0}, std::uint64_t{0}));
  EXPECT_EQ(told.back().first, told.back().second);
  EXPECT_EQ(static_cast<std::int64_t>(told.back().second), copied->memory_plan().BytesOf(MemoryKind::kWeights));
  EXPECT_TRUE(std::is_sorted(told.begin(), told.end()));
}

// The probe has a vision tower, which is not loaded.
TEST(LoadedModel, PlansTheWeightsThatAreLoaded) {
  std::uint64_t bytes = 0;
  const auto loaded = Load(
      true, [&](std::uint64_t, std::uint64_t total) { return bytes = total, true; }, "tests/golden/v41_probe");
  ASSERT_TRUE(loaded) << loaded.error().ToString();
  EXPECT_GT(loaded->config().vision.n_layers, 0);
  EXPECT_EQ(static_cast<std::int64_t>(bytes), loaded->memory_plan().BytesOf(MemoryKind::kWeights));
}

TEST(LoadedModel, IsEndedByTheAnswerNo) {
  // Before the files are read, as that begins, and on the way.
  for (const auto& least : {std::pair(0u, 0u), std::pair(0u, 1u), std::pair(1u, 1u)}) {
    bool refused = false;
    const auto ended = Load(true, [&](std::uint64_t done, std::uint64_t total) {
      EXPECT_FALSE(refused);
      refused = done >= least.first && total >= least.second;
      return !refused;
    });
    ASSERT_FALSE(ended);
    EXPECT_EQ(ended.error().code, ErrorCode::kCancelled);
  }
}

}  // namespace
}  // namespace galley::engine
