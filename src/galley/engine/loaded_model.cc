// SPDX-License-Identifier: Apache-2.0
#include "galley/engine/loaded_model.h"

#include <fmt/core.h>

#include <algorithm>

#include "galley/backend/cpu/cpu_backend.h"
#include "galley/backend/cpu/self_test.h"
#include "galley/backend/cpu/topology.h"
#include "galley/backend/cuda/cuda_backend.h"
#include "galley/backend/ref/ref_backend.h"
#include "galley/base/log.h"
#include "galley/base/math.h"
#include "galley/base/range.h"
#include "galley/base/thread_pool.h"
#include "galley/engine/engine.h"
#include "galley/engine/weight_cache.h"
#include "galley/model/model_dir.h"
#include "galley/text/compressed_ids.h"

namespace galley::engine {
namespace {

constexpr std::int64_t kDefaultSeqLen = 8192;
constexpr std::int64_t kSeqLenMax = std::int64_t{1} << 30;  // positions are 32-bit on devices
constexpr std::int64_t kBlocksMax = 1 << 24;
constexpr int kThreadsMax = 1024;
constexpr int kSequencesMax = 4096;

struct MadeBackend {
  std::unique_ptr<backend::Backend> backend;
  Compute compute;
};

struct BackendEntry {
  std::string_view name;
  bool keeps_experts_on_disk;
  // `expert_memory`: 0 where experts are in memory.
  Result<MadeBackend> (*make)(const LoadOptions& options, std::size_t expert_memory);
};

Result<MadeBackend> MakeRef(const LoadOptions& options, std::size_t) {
  const int threads = options.device.threads == 0 ? UsableProcessors() : options.device.threads;
  return MadeBackend{std::make_unique<backend::RefBackend>(threads), {.backend = "ref", .threads = threads}};
}

Result<MadeBackend> MakeCpu(const LoadOptions& options, std::size_t expert_memory) {
  backend::cpu::Placement placement = backend::cpu::PlaceThreads(options.device.threads);
  ASSIGN_OR_RETURN(const backend::cpu::IsaEntry* isa, backend::cpu::UsableIsa(options.device.isa));
  return MadeBackend{std::make_unique<backend::cpu::CpuBackend>(
                         backend::cpu::CpuOptions{.threads = placement.threads,
                                                  .expert_memory = expert_memory,
                                                  .engram_on_disk = options.device.engram == WeightPlace::kDisk,
                                                  .processors = std::move(placement.processors)},
                         *isa),
                     {.backend = "cpu", .isa = std::string(isa->name), .threads = placement.threads}};
}

backend::CudaOptions CudaOptionsOf(const LoadOptions& options, std::size_t expert_memory) {
  const DeviceOptions& device = options.device;
  return {.device = 0,
          .graphs = device.cuda_graphs,
          .experts_at = device.experts,
          .expert_memory = expert_memory,
          .expert_cache = static_cast<std::size_t>(device.expert_cache),
          .engram_at = device.engram};
}

constexpr BackendEntry kBackends[] = {
    {"ref", false, MakeRef},
    {"cpu", true, MakeCpu},
#ifdef GALLEY_CUDA
    {"cuda", true,
     [](const LoadOptions& options, std::size_t expert_memory) -> Result<MadeBackend> {
       auto cuda = backend::MakeCudaBackend(CudaOptionsOf(options, expert_memory));
       if (cuda) return MadeBackend{std::move(*cuda), {.backend = "cuda"}};
       if (cuda.error().code == ErrorCode::kUnsupported) cuda.error().message += "; use --backend cpu";
       return Err(std::move(cuda.error()));
     }},
#endif
};
constexpr std::string_view kFastest = "cpu";  // what "auto" stands for

// A plan may be for a backend of another build.
bool HasOwnMemory(const LoadOptions& options) {
  return BackendName(options.device.backend) == "cuda";
}

// Bytes for experts that are on disk; 0: they are in memory. `memory` has all other options.
Result<std::int64_t> ExpertMemory(const LoadOptions& options, const model::Config& config,
                                  const MemoryOptions& memory) {
  const std::int64_t asked = options.device.expert_memory, least = kExpertsLeast * ExpertRoomOf(config);
  if (options.device.experts != WeightPlace::kDisk) return 0;
  if (asked == 0) return ExpertMemoryThatFits(config, memory, MemoryLimit(options.memory_limit));
  if (asked >= least) return asked;
  return Err(
      ErrorCode::kInvalidArgument,
      fmt::format("{} bytes hold fewer than {} of this model's experts; give at least {}", asked, kExpertsLeast, least),
      "expert-memory");
}

// Null: not in this build.
const BackendEntry* EntryOf(const LoadOptions& options) {
  const auto* found = std::find_if(std::begin(kBackends), std::end(kBackends), [&](const BackendEntry& entry) {
    return entry.name == BackendName(options.device.backend);
  });
  return found == std::end(kBackends) ? nullptr : found;
}

Status CheckExpertsPlace(const LoadOptions& options, const BackendEntry* entry) {
  const DeviceOptions& device = options.device;
  if (device.expert_cache < 0 ||
      (device.expert_cache > 0 && (device.experts == WeightPlace::kDevice || !HasOwnMemory(options)))) {
    return Err(
        ErrorCode::kInvalidArgument,
        "is for experts that lie elsewhere than with the GPU; leave it out, or use --backend cuda with --experts "
        "host or disk",
        "expert-cache");
  }
  if (device.experts != WeightPlace::kDisk || entry == nullptr || entry->keeps_experts_on_disk) return {};
  return Err(ErrorCode::kUnsupported,
             fmt::format("the {} backend has every expert in memory; use --backend cpu", entry->name), "experts");
}

Result<const BackendEntry*> ChooseBackend(const LoadOptions& options) {
  const BackendEntry* chosen = EntryOf(options);
  RETURN_IF_ERROR(CheckExpertsPlace(options, chosen));
  if (chosen != nullptr) return chosen;
  const std::string_view name = BackendName(options.device.backend);
  std::string names;
  for (const BackendEntry& entry : kBackends) {
    names += fmt::format("{}{}", names.empty() ? "" : ", ", entry.name);
  }
  const std::string_view advice = name == "cuda" ? "; `make cuda` makes one that has it" : "";
  return Err(ErrorCode::kUnsupported, fmt::format("\"{}\" is not in this build; it has: {}{}", name, names, advice),
             "backend");
}

Result<std::int64_t> SequenceLength(std::int64_t asked, std::int64_t trained) {
  RETURN_IF_ERROR(CheckRange("max-seq-len", asked, 0, kSeqLenMax));
  if (asked == 1)
    return Err(ErrorCode::kInvalidArgument, "1 has no room for a prompt and an answer; give at least 2, or 0",
               "max-seq-len");
  const std::int64_t limit = trained == 0 ? kSeqLenMax : trained;
  if (asked > limit) {
    return Err(
        ErrorCode::kInvalidArgument,
        fmt::format("{} positions asked for, but the model's config allows {}; choose at most that", asked, limit),
        "max-seq-len");
  }
  if (asked != 0) return asked;
  return trained != 0 ? trained : kDefaultSeqLen;
}

}  // namespace

std::string Compute::ToText() const {
  std::string text = backend;
  if (!isa.empty()) text += " " + isa;
  if (threads > 0) text += fmt::format(", {} thread{}", threads, threads == 1 ? "" : "s");
  return text;
}

std::string_view BackendName(std::string_view asked) {
  return asked == "auto" ? kFastest : asked;
}

std::int64_t DeviceMemory([[maybe_unused]] std::string_view backend) {
#ifdef GALLEY_CUDA
  if (BackendName(backend) == "cuda") return static_cast<std::int64_t>(backend::CudaFreeBytes());
#endif
  return 0;
}

Result<Sizing> SizeFor(const LoadOptions& options, const model::Config& config) {
  RETURN_IF_ERROR(CheckRange("step-rows", options.rows_max, 1, kStepRowsMax));
  RETURN_IF_ERROR(CheckRange("max-seqs", options.sequences_max, 1, kSequencesMax));
  RETURN_IF_ERROR(CheckRange("snapshots", options.snapshots, 0, kBlocksMax));
  const BackendEntry* backend = EntryOf(options);
  RETURN_IF_ERROR(CheckExpertsPlace(options, backend));
  Sizing sizing;
  ASSIGN_OR_RETURN(sizing.max_seq_len, SequenceLength(options.max_seq_len, config.max_seq_len));
  if (options.longest > 0) sizing.max_seq_len = std::min(sizing.max_seq_len, options.longest);
  const std::int64_t full = CeilDiv<std::int64_t>(sizing.max_seq_len, backend::kBlockTokens) * options.sequences_max;
  RETURN_IF_ERROR(CheckRange("blocks", options.blocks, 0, kBlocksMax));
  if (options.blocks == 0) RETURN_IF_ERROR(CheckRange("blocks", full, 1, kBlocksMax));
  // What does not fit the blocks cannot be served, however long the model could be.
  const std::int64_t blocks = options.blocks > 0 ? options.blocks : full;
  sizing.max_seq_len = std::min(sizing.max_seq_len, blocks * backend::kBlockTokens);
  sizing.memory = {.model = {.rows_max = options.rows_max,
                             .sequences_max = options.sequences_max,
                             .logit_rows_max = options.logit_rows_max,
                             .window_places = options.window_places,
                             .drafts = options.drafts && config.dspark.n_stages > 0,
                             .seq_len_max = sizing.max_seq_len},
                   .blocks = static_cast<int>(blocks),
                   .slots = options.sequences_max,
                   .snapshots = options.snapshots,
                   .own_memory = HasOwnMemory(options),
                   .experts = options.device.experts,
                   .engram = options.device.engram,
                   .expert_memory = 0,
                   .expert_cache = options.device.expert_cache,
                   .reads_weights_ahead = backend == nullptr || backend->keeps_experts_on_disk,
                   .rewind = options.rewind,
                   .grammar_cache = options.grammar_cache};
  if (HasOwnMemory(options)) {
    const bool recorded = options.device.cuda_graphs && !backend::CopiesChosenExperts(CudaOptionsOf(options, 0));
    sizing.memory.recorded_step_bytes =
        recorded ? static_cast<std::int64_t>(backend::kCudaGraphsMax * backend::kCudaGraphBytes) : 0;
    sizing.memory.load_bytes = static_cast<std::int64_t>(backend::kCudaLoadBytes);
    sizing.memory.load_device_bytes = static_cast<std::int64_t>(backend::kCudaLoadDeviceBytes);
  }
  ASSIGN_OR_RETURN(sizing.memory.expert_memory, ExpertMemory(options, config, sizing.memory));
  return sizing;
}

Result<LoadedModel> LoadedModel::Load(const LoadOptions& options) {
  RETURN_IF_ERROR(CheckRange("threads", options.device.threads, 0, kThreadsMax));
  const auto go_on = [&options]() -> Status {
    if (!options.on_load || options.on_load(0, 0)) return {};
    return Err(ErrorCode::kCancelled, "the model was not loaded to the end");
  };
  LoadedModel loaded;
  ASSIGN_OR_RETURN(const BackendEntry* entry, ChooseBackend(options));
  RETURN_IF_ERROR(model::CheckModelDir(options.model_dir));
  ASSIGN_OR_RETURN(const model::LoadedConfig found, model::LoadConfig(options.model_dir));
  ASSIGN_OR_RETURN(const Sizing sizing, SizeFor(options, found.config));
  ASSIGN_OR_RETURN(MadeBackend made, entry->make(options, static_cast<std::size_t>(sizing.memory.expert_memory)));
  loaded.backend_ = std::move(made.backend);
  loaded.compute_ = std::move(made.compute);
  log::Info("computing on {}", loaded.compute_.ToText());
  if (options.wrap_backend) loaded.backend_ = options.wrap_backend(std::move(loaded.backend_));
  const std::filesystem::path& cache = options.device.weight_cache;
  const CacheCheck check = options.device.check_weight_cache ? CacheCheck::kBytes : CacheCheck::kHeader;
  ASSIGN_OR_RETURN(model::Checkpoint checkpoint, cache.empty() ? model::Checkpoint::Open(options.model_dir)
                                                               : OpenWithCache(options.model_dir, cache, check));
  loaded.checkpoint_ = std::make_unique<model::Checkpoint>(std::move(checkpoint));
  RETURN_IF_ERROR(go_on());
  loaded.backend_->UseFiles(loaded.checkpoint_->files(), options.on_load);
  const model::Config& config = loaded.config();
  loaded.max_seq_len_ = sizing.max_seq_len;
  ASSIGN_OR_RETURN(loaded.memory_plan_, PlanMemory(config, sizing.memory));
  loaded.memory_plan_.device_limit = static_cast<std::int64_t>(loaded.backend_->free_device_bytes());
  RETURN_IF_ERROR(loaded.memory_plan_.Fits(MemoryLimit(options.memory_limit)));
  if (const std::string slow = BeyondMemoryNote(loaded.memory_plan_, MemoryLimit(0)); !slow.empty())
    log::Warning("slow: {}", slow);

  ASSIGN_OR_RETURN(text::Tokenizer tokenizer, text::Tokenizer::Load(options.model_dir / "tokenizer.json"));
  loaded.tokenizer_ = std::make_unique<text::Tokenizer>(std::move(tokenizer));
  std::vector<std::int32_t> compressed_ids;
  if (!config.engram.layer_ids.empty()) {
    ASSIGN_OR_RETURN(compressed_ids, text::CompressedIdsFor(*loaded.tokenizer_, config.vocab_size,
                                                            config.engram.compressed_vocab_size));
  }
  RETURN_IF_ERROR(go_on());
  ASSIGN_OR_RETURN(loaded.model_,
                   model::Model::Create(*loaded.checkpoint_, compressed_ids, *loaded.backend_, sizing.memory.model));
  ASSIGN_OR_RETURN(model::StateStorage state,
                   model::StateStorage::Create(*loaded.backend_, config, sizing.memory.blocks, sizing.memory.slots,
                                               sizing.memory.rewind));
  loaded.state_ = std::make_unique<model::StateStorage>(std::move(state));
  return loaded;
}

}  // namespace galley::engine
