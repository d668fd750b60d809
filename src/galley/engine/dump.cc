// SPDX-License-Identifier: Apache-2.0
#include "galley/engine/dump.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <set>

#include "galley/backend/sampling.h"
#include "galley/base/check.h"
#include "galley/engine/loaded_model.h"
#include "galley/engine/sequence.h"
#include "galley/engine/tensor_collector.h"
#include "galley/engine/token_check.h"
#include "galley/tensor/numeric.h"
#include "galley/tensor/quantize.h"

namespace galley::engine {
namespace {

constexpr int kLogitRows = 2;  // logits of the last rows of the prompt

template <typename T>
HostTensor MakeTensor(DType dtype, Shape shape, const std::vector<T>& values) {
  HostTensor tensor{dtype, std::move(shape), std::vector<std::byte>(values.size() * sizeof(T))};
  if (!values.empty()) std::memcpy(tensor.data.data(), values.data(), tensor.data.size());
  return tensor;
}

HostTensor Int32Tensor(const std::vector<std::int32_t>& values) {
  return MakeTensor(DType::kI32, {static_cast<std::int64_t>(values.size())}, values);
}

std::vector<Position> AllRows(Position length) {
  std::vector<Position> rows;
  for (Position p = 0; p < length; ++p) rows.push_back(p);
  return rows;
}

std::vector<std::int32_t> ToInt32(const std::vector<Position>& positions) {
  return {positions.begin(), positions.end()};
}

// Drafts made along a continuation, one entry a position.
struct DraftDump {
  std::vector<std::int32_t> positions, first_tokens, tokens;
  std::vector<float> confidences, logits;
  std::vector<std::byte> main_hidden;
};

struct Greedy {
  std::vector<std::int32_t> ids, second;
  std::vector<float> margin;
};

// One prompt run over a loaded model, and the tensors that came out.
class Dumper {
 public:
  Dumper(LoadedModel& loaded, const DumpOptions& options)
      : loaded_(loaded), options_(options), length_(static_cast<Position>(options.ids.size())) {
    rows_ = options.rows.empty() ? GoldenRows(length_) : options.rows;
  }

  [[nodiscard]] Result<TensorMap> Run();

 private:
  // Prefill in chunks; returns logits of the last rows, of which there are at most kLogitRows at `floor` or above.
  [[nodiscard]] Result<std::vector<float>> Prefill(Sequence& sequence, TensorCollector& collector,
                                                   Position floor = 0) const;
  // With `drafts`, the draft head runs at the first options.drafts positions of the continuation.
  [[nodiscard]] Result<Greedy> Continue(Sequence& sequence, std::span<const float> logits, int count,
                                        DraftDump* drafts = nullptr) const;
  [[nodiscard]] Status RunDraft(Position position, TokenId next, const TensorCollector& collector,
                                DraftDump& drafts) const;
  void TakeDrafts(const DraftDump& drafts);
  [[nodiscard]] Status TakeRows(const TensorCollector& collector);
  [[nodiscard]] Status TakeWindow(const TensorCollector& collector, int layer);
  [[nodiscard]] Status TakeHistory(int owner_layer);
  [[nodiscard]] Status RunTruncated();
  [[nodiscard]] Status Copy(const TensorCollector& collector, const std::string& name, const std::string& as,
                            const std::vector<Position>& positions);
  [[nodiscard]] int DraftPositions() const {
    return options_.drafts >= 0 ? options_.drafts : length_ > 8 ? 4 : 2;  // the rule of the golden files
  }
  [[nodiscard]] HostTensor LogitTensor(const std::vector<float>& logits) const {
    const std::int64_t vocab = loaded_.config().vocab_size;
    const auto rows = static_cast<std::int64_t>(logits.size()) / vocab;
    return MakeTensor(DType::kF32, {rows, vocab}, logits);
  }

  LoadedModel& loaded_;
  const DumpOptions& options_;
  Position length_;
  std::vector<Position> rows_;
  TensorMap tensors_;
};

Result<std::vector<float>> Dumper::Prefill(Sequence& sequence, TensorCollector& collector, Position floor) const {
  const std::span<const TokenId> ids = options_.ids;
  const auto chunk = static_cast<std::size_t>(loaded_.model().options().rows_max);
  const auto first_logit_row = static_cast<std::size_t>(std::max(length_ - kLogitRows, floor));
  std::vector<float> logits;
  for (std::size_t done = 0; done < ids.size();) {
    const std::size_t rows = std::min(chunk, ids.size() - done);
    const std::size_t end = done + rows;
    const std::size_t logit_rows = end > first_logit_row ? end - std::max(done, first_logit_row) : 0;
    ASSIGN_OR_RETURN(const std::vector<float> part,
                     sequence.Append(ids.subspan(done, rows), static_cast<int>(logit_rows), &collector));
    logits.insert(logits.end(), part.begin(), part.end());
    done = end;
  }
  return logits;
}

Result<Greedy> Dumper::Continue(Sequence& sequence, std::span<const float> logits, int count, DraftDump* drafts) const {
  const auto vocab = static_cast<std::size_t>(loaded_.config().vocab_size);
  std::vector<float> row(logits.end() - static_cast<std::ptrdiff_t>(vocab), logits.end());
  const int draft_count = drafts != nullptr && loaded_.model().options().drafts ? DraftPositions() : 0;
  Greedy greedy;
  std::vector<backend::RankedToken> ranked;
  for (int i = 0; i < count; ++i) {
    const std::span<const backend::RankedToken> top = backend::TopTokens(row, 2, ranked);
    if (top.size() < 2) {
      return Err(ErrorCode::kCorrupt,
                 fmt::format("the model gave fewer than two usable logits at position {}, so there is no greedy "
                             "continuation: its weights hold NaN or infinity, or its vocabulary one token; --greedy 0 "
                             "leaves it out",
                             sequence.length()));
    }
    greedy.ids.push_back(top[0].id);
    greedy.second.push_back(top[1].id);
    greedy.margin.push_back(row[static_cast<std::size_t>(top[0].id)] - row[static_cast<std::size_t>(top[1].id)]);
    if (i + 1 == count || sequence.length() == loaded_.max_seq_len()) break;
    TensorCollector collector(loaded_.backend(), {sequence.length()}, {});
    const bool draft = i < draft_count;
    ASSIGN_OR_RETURN(row, sequence.Append({&top[0].id, 1}, 1, draft ? &collector : nullptr));
    const std::span<const backend::RankedToken> next = backend::TopTokens(row, 1, ranked);
    if (draft && !next.empty()) RETURN_IF_ERROR(RunDraft(sequence.length() - 1, next[0].id, collector, *drafts));
  }
  return greedy;
}

Status Dumper::RunDraft(Position position, TokenId next, const TensorCollector& collector, DraftDump& drafts) const {
  const model::Config& c = loaded_.config();
  const model::DraftInput input = {
      .slot = SlotId{0}, .position = position, .token = next, .decoder_floor = 0, .sampling = {.temperature = 0}};
  ASSIGN_OR_RETURN(const std::span<const model::Draft> result, loaded_.model().Drafts({&input, 1}, loaded_.state()));
  ASSIGN_OR_RETURN(const std::optional<HostTensor> main_hidden, collector.Take("main_hidden", {position}));
  CHECK(main_hidden.has_value()) << "position " << position << " showed no main hidden";
  drafts.positions.push_back(static_cast<std::int32_t>(position));
  drafts.first_tokens.push_back(next);
  drafts.main_hidden.insert(drafts.main_hidden.end(), main_hidden->data.begin(), main_hidden->data.end());
  drafts.tokens.insert(drafts.tokens.end(), result[0].tokens.begin(), result[0].tokens.end());
  drafts.confidences.insert(drafts.confidences.end(), result[0].confidences.begin(), result[0].confidences.end());
  const std::size_t values = static_cast<std::size_t>(c.dspark.block_size) * static_cast<std::size_t>(c.vocab_size);
  drafts.logits.resize(drafts.logits.size() + values);
  return loaded_.backend().CopyToHost(drafts.logits.data() + drafts.logits.size() - values, result[0].logits,
                                      values * sizeof(float));
}

void Dumper::TakeDrafts(const DraftDump& drafts) {
  const model::Config& c = loaded_.config();
  const auto n = static_cast<std::int64_t>(drafts.positions.size());
  if (n == 0) return;
  const std::int64_t block = c.dspark.block_size;
  const auto targets = static_cast<std::int64_t>(c.dspark.target_layer_ids.size());
  tensors_["dspark.pos"] = Int32Tensor(drafts.positions);
  tensors_["dspark.token"] = Int32Tensor(drafts.first_tokens);
  tensors_["dspark.main_hidden"] = {DType::kBF16, {n, targets * c.dim}, drafts.main_hidden};
  tensors_["dspark.tokens"] = MakeTensor(DType::kI32, {n, block}, drafts.tokens);
  tensors_["dspark.confidence"] = MakeTensor(DType::kF32, {n, block}, drafts.confidences);
  tensors_["dspark.logits"] = MakeTensor(DType::kF32, {n, block, c.vocab_size}, drafts.logits);
}

Status Dumper::Copy(const TensorCollector& collector, const std::string& name, const std::string& as,
                    const std::vector<Position>& positions) {
  ASSIGN_OR_RETURN(std::optional<HostTensor> tensor, collector.Take(name, positions));
  if (tensor) tensors_[as] = std::move(*tensor);
  return {};
}

// Records of 512 codes and 16 scales come out as the bf16 values that they stand for.
Status Dumper::TakeWindow(const TensorCollector& collector, int layer) {
  ASSIGN_OR_RETURN(const std::optional<HostTensor> records, collector.Take(TensorName("window_records", layer), rows_));
  CHECK(records.has_value()) << "layer " << layer << " showed no window records";
  const auto dim = static_cast<std::size_t>(loaded_.config().head_dim);
  std::vector<BFloat16> values;
  std::vector<float> row(dim);
  for (std::size_t i = 0; i < rows_.size(); ++i) {
    const auto* record = reinterpret_cast<const std::uint8_t*>(records->data.data()) +
                         i * backend::WindowRecordBytes(static_cast<int>(dim));
    DequantizeFp8(record, record + dim, row);
    for (const float value : row) values.push_back(ToBFloat16(value));
  }
  tensors_[TensorName("window_kv", layer)] =
      MakeTensor(DType::kBF16, {static_cast<std::int64_t>(rows_.size()), static_cast<std::int64_t>(dim)}, values);
  return {};
}

// Latents and index keys as they lie in the history blocks.
Status Dumper::TakeHistory(int owner_layer) {
  const model::Config& c = loaded_.config();
  const std::size_t owner = loaded_.state().layout().owner_of(c, owner_layer);
  backend::HistorySlab slab = loaded_.state().Slab(owner);
  std::vector<std::byte> bytes(static_cast<std::size_t>(loaded_.state().blocks()) * slab.block_bytes());
  RETURN_IF_ERROR(loaded_.backend().CopyToHost(bytes.data(), slab.base, bytes.size()));
  slab.base = bytes.data();
  std::vector<std::int32_t> blocks(static_cast<std::size_t>(loaded_.state().blocks()));
  std::iota(blocks.begin(), blocks.end(), 0);

  const std::int64_t entries = length_ / slab.ratio;
  std::set<std::int32_t> groups;
  for (const Position p : rows_) {
    if (entries > 0) groups.insert(static_cast<std::int32_t>(std::min<std::int64_t>(p / slab.ratio, entries - 1)));
  }
  std::vector<float> latent(static_cast<std::size_t>(c.head_dim)), key(static_cast<std::size_t>(c.index_head_dim));
  std::vector<BFloat16> latents, keys;
  for (std::int32_t j = 0; j < entries; ++j) {
    const backend::HistoryEntry entry = backend::EntryAt(slab, blocks.data(), j);
    DequantizeFp4Index(entry.key, entry.key_scales, key);
    for (const float value : key) keys.push_back(ToBFloat16(value));
    if (!groups.contains(j)) continue;
    DequantizeFp4Kv(entry.latent, entry.latent_scales, latent);
    for (const float value : latent) latents.push_back(ToBFloat16(value));
  }
  tensors_[TensorName("groups", owner_layer)] = Int32Tensor({groups.begin(), groups.end()});
  tensors_[TensorName("compressed", owner_layer)] =
      MakeTensor(DType::kBF16, {static_cast<std::int64_t>(groups.size()), c.head_dim}, latents);
  tensors_[TensorName("index_k", owner_layer)] = MakeTensor(DType::kBF16, {entries, c.index_head_dim}, keys);
  return {};
}

// First `width` columns of an I32 matrix.
HostTensor CutColumns(const HostTensor& tensor, std::int64_t width) {
  const std::vector<std::int32_t> values = Int32Values(tensor);
  std::vector<std::int32_t> cut;
  for (std::int64_t r = 0; r < tensor.shape[0]; ++r) {
    const auto begin = values.begin() + r * tensor.shape[1];
    cut.insert(cut.end(), begin, begin + width);
  }
  return MakeTensor(DType::kI32, {tensor.shape[0], width}, cut);
}

Status Dumper::TakeRows(const TensorCollector& collector) {
  const model::Config& c = loaded_.config();
  for (const char* name : {"final", "main_hidden"}) RETURN_IF_ERROR(Copy(collector, name, name, rows_));
  RETURN_IF_ERROR(Copy(collector, "embed", "embed", rows_));
  HostTensor& embed = tensors_["embed"];  // [R][C][D] with equal copies: keep the first
  const std::size_t row_bytes = static_cast<std::size_t>(c.dim) * sizeof(BFloat16);
  for (std::size_t r = 0; r < rows_.size(); ++r) {
    std::memmove(embed.data.data() + r * row_bytes,
                 embed.data.data() + r * static_cast<std::size_t>(c.hc_mult) * row_bytes, row_bytes);
  }
  embed.shape = {embed.shape[0], c.dim};
  embed.data.resize(rows_.size() * row_bytes);

  const bool short_prompt = length_ <= 8;
  for (int layer = 0; layer < c.n_layers; ++layer) {
    for (const char* name : {"h", "pre", "router_idx", "router_w", "index_q", "index_w", "topk"}) {
      RETURN_IF_ERROR(Copy(collector, TensorName(name, layer), TensorName(name, layer), rows_));
    }
    RETURN_IF_ERROR(
        Copy(collector, TensorName("engram_rows", layer), TensorName("engram_rows", layer), AllRows(length_)));
    RETURN_IF_ERROR(TakeWindow(collector, layer));
    if (c.is_kv_source(layer)) RETURN_IF_ERROR(TakeHistory(layer));
    if (c.is_index_source(layer)) {
      HostTensor& topk = tensors_[TensorName("topk", layer)];
      const std::int64_t entries = length_ / c.compress_ratios[static_cast<std::size_t>(layer)];
      topk = CutColumns(topk, std::min<std::int64_t>(c.index_topk, entries));
    }
    const bool full =
        std::find(options_.full_layers.begin(), options_.full_layers.end(), layer) != options_.full_layers.end();
    if (full) {
      RETURN_IF_ERROR(Copy(collector, TensorName("h", layer), TensorName("h_all", layer), AllRows(length_)));
      RETURN_IF_ERROR(Copy(collector, TensorName("pre", layer), TensorName("pre_all", layer), AllRows(length_)));
    }
    if (full || short_prompt) {
      RETURN_IF_ERROR(Copy(collector, TensorName("attn_o", layer), TensorName("attn_o", layer), rows_));
    }
  }
  return {};
}

Status Dumper::RunTruncated() {
  const Position tail_start = length_ - options_.truncate_decoder;
  if (options_.truncate_decoder <= 0 || tail_start <= 0) return {};
  std::vector<Position> tail_rows;
  std::copy_if(rows_.begin(), rows_.end(), std::back_inserter(tail_rows), [&](Position p) { return p >= tail_start; });
  TensorCollector collector(loaded_.backend(), {tail_rows.begin(), tail_rows.end()}, {});
  Sequence sequence(loaded_, tail_start);
  ASSIGN_OR_RETURN(const std::vector<float> logits, Prefill(sequence, collector, tail_start));
  ASSIGN_OR_RETURN(const Greedy greedy, Continue(sequence, logits, options_.replay_greedy));
  RETURN_IF_ERROR(Copy(collector, "main_hidden", "replay.main_hidden", tail_rows));
  tensors_["replay.tail_start"] = Int32Tensor({static_cast<std::int32_t>(tail_start)});
  tensors_["replay.logits"] = LogitTensor(logits);
  tensors_["replay.greedy.ids"] = Int32Tensor(greedy.ids);
  tensors_["replay.greedy.margin"] =
      MakeTensor(DType::kF32, {static_cast<std::int64_t>(greedy.margin.size())}, greedy.margin);
  return {};
}

Result<TensorMap> Dumper::Run() {
  std::set<std::string> complete;
  for (const int layer : options_.full_layers) {
    complete.insert({TensorName("h", layer), TensorName("pre", layer)});
  }
  for (const int layer : loaded_.config().engram.layer_ids) complete.insert(TensorName("engram_rows", layer));
  TensorCollector collector(loaded_.backend(), {rows_.begin(), rows_.end()}, complete);
  {
    Sequence sequence(loaded_);
    ASSIGN_OR_RETURN(const std::vector<float> logits, Prefill(sequence, collector));
    RETURN_IF_ERROR(TakeRows(collector));  // before the continuation adds to the history
    DraftDump drafts;
    ASSIGN_OR_RETURN(const Greedy greedy, Continue(sequence, logits, options_.greedy, &drafts));
    TakeDrafts(drafts);
    tensors_["ids"] = Int32Tensor(options_.ids);
    tensors_["rows"] = Int32Tensor(ToInt32(rows_));
    tensors_["logits"] = LogitTensor(logits);
    tensors_["greedy.ids"] = Int32Tensor(greedy.ids);
    tensors_["greedy.second"] = Int32Tensor(greedy.second);
    tensors_["greedy.margin"] =
        MakeTensor(DType::kF32, {static_cast<std::int64_t>(greedy.margin.size())}, greedy.margin);
  }
  RETURN_IF_ERROR(RunTruncated());
  return std::move(tensors_);
}

Status CheckIds(const DumpOptions& options, const LoadedModel& loaded) {
  if (options.ids.empty()) return Err(ErrorCode::kInvalidArgument, "there are no ids to run", "ids");
  RETURN_IF_ERROR(CheckPromptIds(options.ids, loaded.config(), "ids"));
  if (static_cast<std::int64_t>(options.ids.size()) > loaded.max_seq_len()) {
    return Err(ErrorCode::kInvalidArgument,
               fmt::format("{} ids do not fit the context of {}", options.ids.size(), loaded.max_seq_len()), "ids");
  }
  for (const int layer : options.full_layers) {
    if (layer >= 0 && layer < loaded.config().n_layers) continue;
    return Err(ErrorCode::kInvalidArgument,
               fmt::format("layer {} does not exist; the model has layers 0 … {}", layer, loaded.config().n_layers - 1),
               "full-layer");
  }
  for (const Position row : options.rows) {
    if (row >= 0 && row < static_cast<Position>(options.ids.size())) continue;
    return Err(ErrorCode::kInvalidArgument,
               fmt::format("row {} does not exist; the prompt has rows 0 … {}", row, options.ids.size() - 1), "rows");
  }
  return {};
}

}  // namespace

std::vector<Position> GoldenRows(Position length) {
  std::set<Position> rows;
  if (length <= 8) {
    for (Position p = 0; p < length; ++p) rows.insert(p);
  } else if (length <= 48) {
    rows = {0, 1, 2, length / 3, length / 2, length / 2 + 1};
  } else {
    rows = {0, 1, 127, 128, 129, 255, 256, length / 2, length - 129, length - 128};
  }
  for (Position p = length - 3; p < length; ++p) rows.insert(p);
  std::vector<Position> inside;
  std::copy_if(rows.begin(), rows.end(), std::back_inserter(inside), [&](Position p) { return p >= 0 && p < length; });
  return inside;
}

Result<TensorMap> Dump(const DumpOptions& options) {
  const auto length =
      static_cast<int>(std::min<std::size_t>(std::max<std::size_t>(options.ids.size(), 1), kStepRowsMax));
  const std::int64_t continuation = std::max(options.greedy, options.replay_greedy);
  ASSIGN_OR_RETURN(LoadedModel loaded,
                   LoadedModel::Load({.model_dir = options.model_dir,
                                      .device = options.device,
                                      .rows_max = options.chunk > 0 ? std::min(options.chunk, length) : length,
                                      .logit_rows_max = kLogitRows,
                                      .sequences_max = 1,
                                      .blocks = 0,
                                      .drafts = options.drafts != 0,
                                      .window_places = options.official_window ? length : 0,
                                      .max_seq_len = 0,
                                      .longest = static_cast<std::int64_t>(options.ids.size()) + continuation,
                                      .on_load = options.on_load}));
  RETURN_IF_ERROR(CheckIds(options, loaded));
  return Dumper(loaded, options).Run();
}

}  // namespace galley::engine
