// SPDX-License-Identifier: Apache-2.0
// The memory plan against what is really taken, against known figures of the full-size model, and as a gate.
#include "galley/engine/memory_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <map>
#include <regex>
#include <set>
#include <string>

#include "galley/engine/engine_for_test.h"
#include "galley/engine/loaded_model.h"
#include "galley/engine/plan_advice.h"
#include "galley/io/test_files.h"
#include "galley/model/model_dir.h"
#include "galley/model/test_configs.h"

namespace galley::engine {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

struct PlanCase {
  const char* model;
  bool drafts;
  const char* backend;
};

class MemoryPlanOf : public ::testing::TestWithParam<PlanCase> {};

TEST_P(MemoryPlanOf, EqualsWhatIsTaken) {
  const LoadOptions options = {.model_dir = std::filesystem::path(GALLEY_SOURCE_DIR) / GetParam().model,
                               .device = {.backend = GetParam().backend, .threads = 1},
                               .rows_max = 192,
                               .logit_rows_max = 7,
                               .sequences_max = 5,
                               .blocks = 33,
                               .drafts = GetParam().drafts,
                               .max_seq_len = 700,
                               .snapshots = 3};
  auto loaded = LoadedModel::Load(options);
  ASSERT_TRUE(loaded) << loaded.error().ToString();
  const MemoryPlan& plan = loaded->memory_plan();
  // Weights are read where their files are mapped, and snapshots are taken by the executor.
  const auto taken = [&] { return static_cast<std::int64_t>(loaded->backend().allocated_bytes()); };
  const std::int64_t before = taken();
  EXPECT_EQ(before, plan.total() - plan.BytesOf(MemoryKind::kWeights) - plan.BytesOf(MemoryKind::kSnapshots));
  const auto state = model::StateStorage::Create(loaded->backend(), loaded->config(), 33, 5);
  ASSERT_TRUE(state);
  EXPECT_EQ(taken() - before, plan.BytesOf(MemoryKind::kBlocks) + plan.BytesOf(MemoryKind::kSlots));
  const std::int64_t then = taken();
  const auto places = model::StateStorage::Create(loaded->backend(), loaded->config(), 3, 3);
  ASSERT_TRUE(places);
  EXPECT_EQ(taken() - then, plan.BytesOf(MemoryKind::kSnapshots));
  EXPECT_EQ(plan.tokens, 33 * 128);
}

INSTANTIATE_TEST_SUITE_P(
    Models, MemoryPlanOf,
    ::testing::Values(PlanCase{"tests/golden/v41_probe", false, "ref"}, PlanCase{"tests/golden/v41_probe", true, "ref"},
                      PlanCase{"models/nano", true, "ref"}, PlanCase{"tests/golden/v41_probe", true, "cpu"},
                      PlanCase{"models/nano", true, "cpu"}),
    [](const auto& test) { return std::string(test.param.drafts ? "Drafts" : "Plain") + std::to_string(test.index); });

// Facts of the published model: 113,920 bytes of history a block; 128 sequences of 8,192 tokens are 64 blocks each.
TEST(MemoryPlanTest, FullSizeModelWithoutItsWeights) {
  const auto config = model::ParseConfig(model::FlashConfigJson(), "config.json");
  ASSERT_TRUE(config);
  EngineOptions options;
  options.max_seqs = 128;
  options.max_seq_len = 8192;
  options.step_rows_max = 4096;
  const auto plan = PlanMemory(options, *config);
  ASSERT_TRUE(plan) << plan.error().ToString();
  EXPECT_EQ(plan->BytesOf(MemoryKind::kBlocks), std::int64_t{128} * 64 * 113'920);
  EXPECT_EQ(plan->tokens, 128 * 8192);
  EXPECT_NEAR(static_cast<double>(plan->BytesOf(MemoryKind::kWeights)), 510e9, 5e9);
  // Logits alone: one row a sequence, 129,280 fp32 values.
  EXPECT_GT(plan->BytesOf(MemoryKind::kWorkspace), std::int64_t{128} * 129'280 * 4);
  const std::string text = ToText(*plan, std::int64_t{1} << 40);
  for (const char* word : {"routed experts (I8 F8_E8M0)", "8192 x 111.25 KiB", "history of 1048576 tokens", "fits"}) {
    EXPECT_THAT(text, HasSubstr(word));
  }
  EXPECT_THAT(ToText(*plan, std::int64_t{1} << 30), HasSubstr("does not fit"));
  options.grammar_cache = std::int64_t{256} << 20;
  EXPECT_EQ(PlanMemory(options, *config)->total() - plan->total(), options.grammar_cache);
}

TEST(MemoryPlanTest, StartIsRefusedByOneByte) {
  EngineOptions options = Options();
  const auto config = model::ParseConfig(io::ReadBytes(kProbe / "config.json"), "config.json");
  ASSERT_TRUE(config) << config.error().ToString();
  const auto plan = PlanMemory(options, *config);
  ASSERT_TRUE(plan);
  options.memory_limit = plan->total();
  const auto fits = Engine::Create(options);
  ASSERT_TRUE(fits) << fits.error().ToString();
  EXPECT_EQ((*fits)->memory_plan().total(), plan->total());
  options.memory_limit = plan->total() - 1;
  const auto refused = Engine::Create(options);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kResourceExhausted);
  EXPECT_THAT(refused.error().ToString(), HasSubstr("may be used; lower "));
}

// What stays on disk leaves the plan, which then says what that costs.
TEST(MemoryPlanTest, PartsOnDisk) {
  io::TempDir dir;
  io::WriteBytes(dir / "config.json", model::FlashConfigJson());
  const auto loaded = model::LoadConfig(dir.path());
  ASSERT_TRUE(loaded);
  EngineOptions options;
  options.max_seqs = 1;
  options.max_seq_len = 4096;
  options.memory_limit = std::int64_t{128} << 30;
  options.device.backend = "cpu";
  const auto all = PlanMemory(options, loaded->config);
  ASSERT_TRUE(all);
  EXPECT_TRUE(all->notes.empty());
  options.device.experts = options.device.engram = WeightPlace::kDisk;
  options.device.expert_memory = std::int64_t{64} << 30;
  const auto plan = PlanMemory(options, loaded->config);
  ASSERT_TRUE(plan);
  // 40 layers of 384 experts and 3 draft stages of 128, of 3 * 2304 * 5120 * 17 / 32 bytes; Engram rows of 256 codes
  // and 8 scales.
  const std::int64_t experts = std::int64_t{40 * 384 + 3 * 128} * 3 * 2304 * 5120 / 32 * 17;
  const std::int64_t tables = std::int64_t{384006168 + 384016682} * (256 + 8);
  EXPECT_EQ(all->total() - plan->total(), experts - (std::int64_t{64} << 30) + tables);
  ASSERT_EQ(plan->notes.size(), 2u);
  // 6 / 384 of them are 4.51 GB; 64 GiB are 3645 of 15744.
  EXPECT_THAT(
      plan->notes[0],
      HasSubstr("a token uses 4.20 GiB of routed experts; with 23 % of all in memory and every one used alike"));
  // 2 layers, 8 heads, n-grams of 2 to 4.
  EXPECT_THAT(plan->notes[1], HasSubstr("a token reads 48 rows of Engram tables"));
  EXPECT_THAT(ToText(*plan, options.memory_limit), HasSubstr("  slow: a token uses"));
  EXPECT_THAT(ToJson(*plan, options.memory_limit), HasSubstr("\"notes\": [\n    \"a token uses"));

  // What does not fit says what would: experts alone, or Engram's tables as well.
  EXPECT_THAT(all->Fits(std::int64_t{256} << 30).error().message,
              HasSubstr("the weights alone do not fit, so keep routed experts on disk (--experts disk), which take "));
  EXPECT_THAT(all->Fits(std::int64_t{64} << 30).error().message,
              HasSubstr("(--experts disk), which take 275.67 GiB, of which 32.00 GiB would be held in memory, and keep "
                        "Engram tables on disk (--engram disk), which "
                        "take 188.83 GiB"));
  EXPECT_THAT(all->Fits(1 << 30).error().message, HasSubstr("do not fit, so choose a smaller model or a machine"));
  EXPECT_THAT(plan->Fits(std::int64_t{32} << 30).error().message,
              HasSubstr("so lower the memory for routed experts, which take 64.00 GiB, to 21.95 GiB (--expert-memory "
                        "22481MiB)"));
  // More than the machine has, because a larger limit was given.
  EXPECT_EQ(BeyondMemoryNote(*plan, plan->total()), "");
  EXPECT_THAT(BeyondMemoryNote(*plan, plan->total() - 1), HasSubstr("read from disk again"));

  options.device.expert_memory = 1000;
  const auto too_little = PlanMemory(options, loaded->config);
  ASSERT_FALSE(too_little);
  EXPECT_THAT(too_little.error().message, HasSubstr("hold fewer than 4 of this model's experts; give at least"));

  // `ref` reads rows of mapped tables when it meets them, and has every expert in memory.
  options.device.backend = "ref";
  EXPECT_THAT(PlanMemory(options, loaded->config).error().message, HasSubstr("use --backend cpu"));
  options.device.experts = WeightPlace::kDevice;
  const auto mapped = PlanMemory(options, loaded->config);
  ASSERT_TRUE(mapped);
  ASSERT_EQ(mapped->notes.size(), 1u);
  EXPECT_THAT(mapped->notes[0], HasSubstr("one after the other when they are used"));
  EXPECT_THAT(mapped->Fits(std::int64_t{64} << 30).error().message, HasSubstr("choose a smaller model"));
}

// Without --expert-memory: half of the limit, or what all else leaves of it, or as little as works. What is planned is
// what the start takes.
TEST(MemoryPlanTest, ExpertsTakeWhatIsLeft) {
  const auto config = model::ParseConfig(model::FlashConfigJson(), "config.json");
  ASSERT_TRUE(config);
  EngineOptions options;
  options.max_seqs = 1;
  options.max_seq_len = 8192;
  options.grammar_cache = std::int64_t{256} << 20;
  options.device = {.backend = "cpu", .experts = WeightPlace::kDisk, .expert_memory = 1 << 30};
  options.device.engram = WeightPlace::kDisk;
  const auto given = PlanMemory(options, *config);
  ASSERT_TRUE(given);
  const std::int64_t others = given->total() - options.device.expert_memory, least = 4 * ExpertRoomOf(*config);
  EXPECT_LT(others, std::int64_t{11} << 30);
  options.device.expert_memory = 0;
  struct {
    std::int64_t limit, experts;
  } const cases[] = {{4 * others, 2 * others},
                     {2 * others, others},
                     {2 * others - 2, others - 2},
                     {others + least, least},
                     {others + least - 1, least},
                     {others / 2, least},
                     {100, least},
                     {std::int64_t{24} << 30, std::int64_t{12} << 30},
                     {std::int64_t{16} << 30, (std::int64_t{16} << 30) - others}};
  for (const auto& [limit, experts] : cases) {
    options.memory_limit = limit;
    const auto plan = PlanMemory(options, *config);
    ASSERT_TRUE(plan) << plan.error().ToString();
    EXPECT_EQ(plan->total(), others + experts) << limit;
    EXPECT_EQ(plan->Fits(limit).has_value(), limit >= others + least) << limit;
  }
  // More than all experts is not taken.
  options.memory_limit = std::int64_t{1} << 40;
  EXPECT_EQ(PlanMemory(options, *config)->total(), others + std::int64_t{40 * 384 + 3 * 128} * ExpertRoomOf(*config));

  EngineOptions probe = Options();
  probe.device.backend = "cpu";
  probe.device.experts = WeightPlace::kDisk;
  const auto small = model::ParseConfig(io::ReadBytes(kProbe / "config.json"), "config.json");
  ASSERT_TRUE(small);
  probe.device.expert_memory = 4 * ExpertRoomOf(*small);
  probe.memory_limit = PlanMemory(probe, *small)->total() + 1000;
  probe.device.expert_memory = 0;
  const auto started = Engine::Create(probe);
  ASSERT_TRUE(started) << started.error().ToString();
  EXPECT_EQ((*started)->memory_plan().total(), probe.memory_limit);
}

// What is planned for weights is what a load asks for: no vision tower, and the experts of draft stages once.
TEST(MemoryPlanTest, VisionIsNotPlanned) {
  const auto with = model::ParseConfig(model::FlashConfigJson(), "config.json");
  ASSERT_TRUE(with && with->vision.n_layers > 0);
  EXPECT_EQ(ToText(*PlanMemory(EngineOptions(), *with), 1).find("vision"), std::string::npos);
}

// A GPU has memory of its own: what lies in which for every placement, what a step moves, and what limits it.
TEST(MemoryPlanTest, TwoMemoriesForAGpu) {
  const auto config = model::ParseConfig(model::FlashConfigJson(), "config.json");
  ASSERT_TRUE(config);
  EngineOptions options;
  options.device.backend = "cuda";
  options.device.expert_memory = std::int64_t{64} << 30;
  options.max_seqs = 16;
  options.max_seq_len = 4096;
  const std::int64_t expert = std::int64_t{3} * 2304 * 5120 / 32 * 17;  // codes of half a byte, a scale for 32
  const std::int64_t experts =
      expert * (40 * 384 + std::int64_t{config->dspark.n_stages} * config->dspark.n_routed_experts);
  const std::int64_t tables = std::int64_t{384006168 + 384016682} * (256 + 8), recorded = std::int64_t{24 * 16} << 20;
  const auto all = PlanMemory(options, *config);
  ASSERT_TRUE(all);
  EXPECT_EQ(all->total(), all->DeviceBytes() + all->HostBytes());
  EXPECT_EQ(all->HostBytes(), std::int64_t{12 * 16} << 20);  // buffers for loading
  for (const WeightPlace at : {WeightPlace::kDevice, WeightPlace::kHost, WeightPlace::kDisk}) {
    for (const WeightPlace engram : {WeightPlace::kDevice, WeightPlace::kHost, WeightPlace::kDisk}) {
      for (const std::int64_t cache : {std::int64_t{0}, expert * 1000 + 7}) {
        if (cache > 0 && (at == WeightPlace::kDevice || engram != WeightPlace::kHost)) continue;
        options.device.experts = at, options.device.engram = engram, options.device.expert_cache = cache;
        const auto plan = PlanMemory(options, *config);
        ASSERT_TRUE(plan) << plan.error().ToString();
        const bool copies = at == WeightPlace::kDisk || cache > 0;
        const std::int64_t places = copies ? (cache > 0 ? 1000 : 384) * expert - recorded : 0;
        const std::int64_t rows = std::int64_t{512} * 2 * 24 * (4 + 256 + 8);  // of a step: numbers, codes, scales
        EXPECT_EQ(plan->DeviceBytes(), all->DeviceBytes() - (at == WeightPlace::kDevice ? 0 : experts) -
                                           (engram == WeightPlace::kDevice ? 0 : tables) + places);
        EXPECT_EQ(plan->HostBytes(), all->HostBytes() +
                                         (at == WeightPlace::kHost   ? experts
                                          : at == WeightPlace::kDisk ? options.device.expert_memory
                                                                     : 0) +
                                         (engram == WeightPlace::kHost   ? tables
                                          : engram == WeightPlace::kDisk ? rows
                                                                         : 0));
        EXPECT_EQ(plan->notes.size(),
                  (at == WeightPlace::kDisk ? 1u : 0u) + (engram == WeightPlace::kDisk ? 1u : 0u) + (copies ? 1u : 0u));
        ASSERT_EQ(plan->speeds.size(), 3u);  // of 1, 16 and 512 rows
        EXPECT_EQ(plan->speeds[0].limit(), at == WeightPlace::kDevice ? "device memory"
                                           : at == WeightPlace::kHost ? "PCIe"
                                                                      : "disk");
      }
    }
  }
  // A token uses 6 of 384 experts in each of 40 layers: 4.51 GB, 90 ms at 50 GB/s.
  options.device = {.backend = "cuda", .experts = WeightPlace::kHost};
  const auto host = PlanMemory(options, *config);
  ASSERT_TRUE(host);
  EXPECT_EQ(host->speeds[0].link_bytes, static_cast<double>(40 * 6 * expert));
  EXPECT_NEAR(host->speeds[0].seconds(), 0.0922, 0.0001);  // and 8.5 GB of other weights at 4,400
  EXPECT_THAT(ToText(*host, std::int64_t{1} << 40),
              HasSubstr("4.20 GiB over PCIe: about 92.2 ms, 11 tokens/s, by PCIe"));
  EXPECT_THAT(ToText(*host, std::int64_t{1} << 40), HasSubstr("every expert chosen alike, no bounds"));
  EXPECT_THAT(ToJson(*host, std::int64_t{1} << 40), HasSubstr("\"limit\": \"PCIe\""));
  // What a token reads from disk is the same in both lines: of 15744 experts, the draft head's among them, 64 GiB of
  // main memory hold 3645, and 40 GB of the device 2127 or, with 80, 4254.
  for (const auto& [places, missing] : {std::pair(2127, 15744 - 3645), std::pair(4254, 15744 - 4254)}) {
    options.device = {.backend = "cuda", .experts = WeightPlace::kDisk};
    options.device.expert_memory = std::int64_t{64} << 30;
    options.device.expert_cache = places * expert;
    const auto disk = PlanMemory(options, *config);
    ASSERT_TRUE(disk);
    EXPECT_NEAR(disk->speeds[0].disk_bytes, 240.0 * static_cast<double>(expert) * missing / 15744, 1);
    EXPECT_NEAR(disk->speeds[0].link_bytes, 240.0 * static_cast<double>(expert) * (15744 - places) / 15744, 1);
    const std::string read = SizeText(static_cast<std::int64_t>(disk->speeds[0].disk_bytes));
    EXPECT_THAT(disk->notes[0], HasSubstr("it reads " + read + " of that from disk"));
    EXPECT_THAT(ToText(*disk, std::int64_t{1} << 40), HasSubstr(", " + read + " from disk: about "));
  }
}

// Each memory has its limit, and advice of its own.
TEST(MemoryPlanTest, EachMemoryOfAGpuHasItsLimit) {
  const auto config = model::ParseConfig(model::FlashConfigJson(), "config.json");
  ASSERT_TRUE(config);
  EngineOptions options;
  options.device.backend = "cuda";
  options.max_seqs = 1;
  options.max_seq_len = 4096;
  auto plan = PlanMemory(options, *config);
  ASSERT_TRUE(plan);
  EXPECT_TRUE(plan->Fits(std::int64_t{1} << 30));  // no device is known
  EXPECT_THAT(ToText(*plan, std::int64_t{1} << 30), HasSubstr("not checked: there is no GPU here"));
  EXPECT_THAT(ToJson(*plan, std::int64_t{1} << 30), HasSubstr("\"device_checked\": false"));
  plan->device_limit = std::int64_t{140} << 30;
  const std::string message = plan->Fits(std::int64_t{1} << 30).error().message;
  EXPECT_THAT(message, HasSubstr("of device memory are planned"));
  EXPECT_THAT(message, HasSubstr("keep routed experts in main memory or on disk (--experts host or disk), which take"));
  EXPECT_THAT(message, HasSubstr("and keep Engram tables in main memory or on disk (--engram host or disk)"));
  EXPECT_THAT(ToText(*plan, std::int64_t{1} << 30), HasSubstr("does not fit"));
  options.device.experts = options.device.engram = WeightPlace::kHost;
  plan = PlanMemory(options, *config);
  ASSERT_TRUE(plan);
  plan->device_limit = std::int64_t{140} << 30;
  EXPECT_TRUE(plan->Fits(std::int64_t{600} << 30));
  const std::string main = plan->Fits(std::int64_t{400} << 30).error().message;
  EXPECT_THAT(main, HasSubstr("of main memory are planned"));
  EXPECT_THAT(main, HasSubstr("keep routed experts on disk (--experts disk), which take"));
  options.device.expert_cache = 1;
  options.device.experts = WeightPlace::kDevice;
  EXPECT_THAT(PlanMemory(options, *config).error().message,
              HasSubstr("use --backend cuda with --experts host or disk"));
}

// The advice names the option whose part is largest, and how much of it would fit.
TEST(MemoryPlanTest, RefusalSaysWhatToLower) {
  MemoryPlan plan;
  plan.items = {{MemoryKind::kWeights, "weights", 1, 1000},
                {MemoryKind::kWorkspace, "step", 1, 500},
                {MemoryKind::kBlocks, "blocks", 100, 50},
                {MemoryKind::kSlots, "slots", 4, 100}};
  EXPECT_TRUE(plan.Fits(6900));
  // 5000 of 6900 are blocks; 3000 less the other 1900 leave 1100, which is 22 blocks of 50.
  EXPECT_EQ(
      plan.Fits(3000).error().ToString(),
      "memory: 6.74 KiB are planned (weights 1000 B, workspace 500 B, blocks 4.88 KiB, slots 400 B), but 2.93 KiB "
      "may be used; lower the tokens to hold, which take 4.88 KiB, to 2816 (--blocks 22, or lower --max-seq-len; of "
      "plan: --max-tokens)");
  EXPECT_THAT(plan.Fits(900).error().message, HasSubstr("the weights alone do not fit"));
}

// Every option that a refusal names, set to the value that it gives, is enough when several are offered, and all are
// together when all are needed; nothing is offered that is at its least.
TEST(MemoryPlanTest, AdviceIsEnough) {
  const auto config = model::ParseConfig(model::FlashConfigJson(), "config.json");
  ASSERT_TRUE(config);
  EngineOptions start;
  start.max_seqs = 64;
  start.max_seq_len = 65536;
  start.step_rows_max = 4000;
  start.blocks = 64 * 512;
  start.snapshots = 300;
  start.grammar_cache = std::int64_t{512} << 20;
  start.device = {.backend = "cpu", .experts = WeightPlace::kDevice};
  const std::map<std::string, std::function<void(EngineOptions&, std::int64_t)>> apply = {
      {"--step-rows",
       [](EngineOptions& options, std::int64_t value) { options.step_rows_max = static_cast<int>(value); }},
      {"--blocks", [](EngineOptions& options, std::int64_t value) { options.blocks = static_cast<int>(value); }},
      {"--max-seqs", [](EngineOptions& options, std::int64_t value) { options.max_seqs = static_cast<int>(value); }},
      {"--snapshots", [](EngineOptions& options, std::int64_t value) { options.snapshots = static_cast<int>(value); }},
      {"--grammar-cache", [](EngineOptions& options, std::int64_t value) { options.grammar_cache = value; }},
      {"--expert-memory", [](EngineOptions& options, std::int64_t value) { options.device.expert_memory = value; }},
      {"--experts", [](EngineOptions& options, std::int64_t) { options.device.experts = WeightPlace::kDisk; }},
      {"--engram", [](EngineOptions& options, std::int64_t) { options.device.engram = WeightPlace::kDisk; }},
  };
  const std::regex named(R"((, or |, and )?(?:lower|keep) [^()]*\((--[a-z-]+) (\d+|disk)(MiB|KiB)?)");
  std::set<std::string> seen;
  for (const char* variant : {"in memory", "on disk", "small steps"}) {
    if (variant == std::string("on disk")) {
      start.device.experts = start.device.engram = WeightPlace::kDisk;
      start.device.expert_memory = std::int64_t{3} << 30;
    } else if (variant == std::string("small steps")) {
      start.step_rows_max = 129, start.snapshots = 0, start.blocks = 64;
      start.device.expert_memory = 4 * ExpertRoomOf(*config);
    }
    const auto plan = PlanMemory(start, *config);
    ASSERT_TRUE(plan);
    for (const int percent : {99, 98, 96, 93, 80, 66, 55, 20, 4}) {
      start.memory_limit = plan->total() / 100 * percent;
      const std::string message = plan->Fits(start.memory_limit).error().message;
      EngineOptions changed = start;
      int count = 0;
      for (std::sregex_iterator it(message.begin(), message.end(), named), end; it != end; ++it, ++count) {
        const std::smatch& match = *it;
        if (match[1] == ", or ") {
          EXPECT_TRUE(PlanMemory(changed, *config)->Fits(start.memory_limit)) << message;
          changed = start;
        }
        ASSERT_TRUE(apply.contains(match[2])) << message;
        seen.insert(match[2]);
        const std::int64_t unit = match[4] == "MiB" ? 1 << 20 : match[4] == "KiB" ? 1 << 10 : 1;
        apply.at(match[2])(changed, match[3] == "disk" ? 0 : std::stoll(match[3]) * unit);
      }
      if (count == 0) {
        EXPECT_THAT(message, HasSubstr("choose a smaller model"));
      } else {
        EXPECT_TRUE(PlanMemory(changed, *config)->Fits(start.memory_limit)) << message;
      }
    }
  }
  EXPECT_EQ(seen.size(), apply.size()) << ::testing::PrintToString(seen);

  EngineOptions least = start;
  least.step_rows_max = 129, least.snapshots = 0, least.max_seqs = 1, least.blocks = 1, least.grammar_cache = 0;
  least.device.expert_memory = 4 * ExpertRoomOf(*config);
  const auto smallest = PlanMemory(least, *config);
  ASSERT_TRUE(smallest) << smallest.error().ToString();
  EXPECT_THAT(smallest->Fits(smallest->total() - 1).error().message,
              AllOf(HasSubstr("are needed whatever else is lowered"), Not(HasSubstr("--"))));
}

TEST(MemoryPlanTest, ShortTimesAreInMilliseconds) {
  const auto config = model::ParseConfig(io::ReadBytes(kProbe / "config.json"), "config.json");
  ASSERT_TRUE(config);
  EngineOptions options = Options();
  options.device = {.backend = "cpu", .experts = WeightPlace::kDisk, .expert_memory = 4 * ExpertRoomOf(*config)};
  const auto plan = PlanMemory(options, *config);
  ASSERT_TRUE(plan);
  ASSERT_FALSE(plan->notes.empty());
  EXPECT_THAT(plan->notes[0], HasSubstr(" ms a token at 1 GB/s"));
}

}  // namespace
}  // namespace galley::engine
