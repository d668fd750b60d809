// SPDX-License-Identifier: Apache-2.0
// `galley dump`: intermediate tensors of a prompt, written or compared with those of another implementation.
#include "galley/engine/dump.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <functional>

#include "command.h"
#include "files.h"
#include "galley/base/log.h"
#include "galley/engine/tensor_compare.h"
#include "loading.h"

namespace galley::app {
namespace {

using engine::DumpOptions;
using engine::TensorMap;

// The values of an integer tensor of the golden file, which is input: any dtype may stand there.
Result<std::vector<std::int32_t>> Integers(const TensorMap& golden, const std::string& name, std::string_view where) {
  const auto found = golden.find(name);
  if (found == golden.end()) return std::vector<std::int32_t>{};
  if (found->second.dtype != DType::kI32) {
    return Err(ErrorCode::kInvalidArgument, fmt::format("tensor {} must hold I32 values", name), std::string(where));
  }
  return engine::Int32Values(found->second);
}

// Layers whose whole stream the golden file stores: names like layers.3.h_all.
std::vector<int> FullLayers(const TensorMap& golden) {
  constexpr std::string_view kPrefix = "layers.", kSuffix = ".h_all";
  std::vector<int> layers;
  for (const auto& [name, tensor] : golden) {
    if (!name.starts_with(kPrefix) || !name.ends_with(kSuffix)) continue;
    const char* const end = name.data() + name.size() - kSuffix.size();
    int layer = 0;
    const auto [stop, code] = std::from_chars(name.data() + kPrefix.size(), end, layer);
    if (code == std::errc() && stop == end) layers.push_back(layer);
  }
  std::sort(layers.begin(), layers.end());
  return layers;
}

// Whether such a layer exists is checked where the model is known.
Result<std::vector<int>> LayerNumbers(const std::vector<std::string>& texts) {
  std::vector<int> layers;
  for (const std::string& text : texts) {
    const char* const end = text.data() + text.size();
    int layer = 0;
    const auto [stop, code] = std::from_chars(text.data(), end, layer);
    if (code != std::errc() || stop != end || layer < 0) {
      return Err(ErrorCode::kInvalidArgument, fmt::format("\"{}\" is not a layer number", text), "--full-layer");
    }
    layers.push_back(layer);
  }
  return layers;
}

// What has to be run so that the tensors of the golden file can be compared: its prompt, positions and lengths, where
// the options do not say otherwise.
Status FollowGolden(const TensorMap& golden, const options::Values& values, std::string_view where,
                    DumpOptions& options) {
  ASSIGN_OR_RETURN(const std::vector<std::int32_t> ids, Integers(golden, "ids", where));
  ASSIGN_OR_RETURN(const std::vector<std::int32_t> rows, Integers(golden, "rows", where));
  ASSIGN_OR_RETURN(const std::vector<std::int32_t> tail_start, Integers(golden, "replay.tail_start", where));
  ASSIGN_OR_RETURN(const std::vector<std::int32_t> greedy, Integers(golden, "greedy.ids", where));
  ASSIGN_OR_RETURN(const std::vector<std::int32_t> replay_greedy, Integers(golden, "replay.greedy.ids", where));
  const bool own_ids = !options.ids.empty();
  if (!own_ids) options.ids.assign(ids.begin(), ids.end());
  if (!own_ids) options.rows.assign(rows.begin(), rows.end());
  if (options.ids.empty()) {
    return Err(ErrorCode::kInvalidArgument, "the file has no tensor ids with the prompt; give it with --ids",
               std::string(where));
  }
  const auto length = static_cast<std::int64_t>(options.ids.size());
  for (const Position row : options.rows) {
    if (row < 0 || row >= length) {
      return Err(ErrorCode::kInvalidArgument,
                 fmt::format("tensor rows names position {} of a prompt of {}", row, length), std::string(where));
    }
  }
  if (std::adjacent_find(options.rows.begin(), options.rows.end(), std::greater_equal<>()) != options.rows.end()) {
    return Err(ErrorCode::kInvalidArgument, "tensor rows must name ascending positions", std::string(where));
  }
  if (options.truncate_decoder == 0 && !tail_start.empty() && tail_start[0] > 0 && tail_start[0] < length) {
    options.truncate_decoder = static_cast<int>(length - tail_start[0]);
  }
  if (values.source("greedy") == options::Source::kDefault) options.greedy = static_cast<int>(greedy.size());
  options.replay_greedy = static_cast<int>(replay_greedy.size());
  if (values.source("drafts") == options::Source::kDefault) {
    ASSIGN_OR_RETURN(const std::vector<std::int32_t> drafts, Integers(golden, "dspark.pos", where));
    options.drafts = static_cast<int>(drafts.size());
  }
  if (options.full_layers.empty()) options.full_layers = FullLayers(golden);
  return {};
}

// An error if there were tensors of the golden file that nothing here can be compared with.
Status AllCompared(const std::vector<engine::Difference>& rows, const std::string& where) {
  const auto apart = [](const engine::Difference& row) { return !row.note.empty(); };
  const auto first = std::find_if(rows.begin(), rows.end(), apart);
  if (first == rows.end()) return {};
  return Err(ErrorCode::kInvalidArgument,
             fmt::format("{} of {} tensors could not be compared, first {}: {}; the file has to be of the same model "
                         "(--model) and of a run with the same settings",
                         std::count_if(rows.begin(), rows.end(), apart), rows.size(), first->name, first->note),
             where);
}

}  // namespace

Result<int> RunDump(Context& context) {
  const options::Values& values = context.values;
  const std::string &out = values.String("out"), &compare = values.String("compare");
  if (out.empty() && compare.empty()) {
    return Err(ErrorCode::kInvalidArgument, "nothing to do; give --out FILE, --compare GOLDEN, or both");
  }
  DumpOptions options;
  if (values.Has("ids")) {
    ASSIGN_OR_RETURN(options.ids, ReadIds(context));
  }
  if (options.ids.empty() && compare.empty()) {
    return Err(ErrorCode::kInvalidArgument, values.Has("ids")
                                                ? "the file of --ids holds no ids"
                                                : "there is no prompt; give its token ids with --ids FILE");
  }
  if (!out.empty()) RETURN_IF_ERROR(CheckWritable(out));
  ASSIGN_OR_RETURN(options.model_dir, ModelDir(context));
  RETURN_IF_ERROR(CheckWeights(context, options.model_dir));
  options.device = ReadDevice(context);
  options.on_load = ShowLoading(context.terminal);
  options.chunk = static_cast<int>(values.Int("chunk"));
  options.truncate_decoder = static_cast<int>(values.Int("truncate-decoder"));
  options.greedy = static_cast<int>(values.Int("greedy"));
  options.drafts = static_cast<int>(values.Int("drafts"));
  ASSIGN_OR_RETURN(options.full_layers, LayerNumbers(values.List("full-layer")));
  options.official_window = !values.Bool("engine-window");

  TensorMap golden;
  if (options.truncate_decoder >= static_cast<int>(options.ids.size()) && !options.ids.empty()) {
    log::Warning(
        "--truncate-decoder {}: the prompt has only {} tokens, so nothing is cut and there are no tensors replay.*",
        options.truncate_decoder, options.ids.size());
  }
  if (!compare.empty()) {
    ASSIGN_OR_RETURN(golden, engine::ReadTensors(compare));
    RETURN_IF_ERROR(FollowGolden(golden, values, compare, options));
  }
  ASSIGN_OR_RETURN(const TensorMap ours, engine::Dump(options));
  if (!out.empty()) RETURN_IF_ERROR(engine::WriteTensors(out, ours));
  if (!compare.empty()) {
    const std::vector<engine::Difference> rows = engine::CompareTensors(ours, golden);
    context.terminal.WriteForeign(engine::DifferenceTable(rows));
    RETURN_IF_ERROR(AllCompared(rows, compare));
  }
  return kExitOk;
}

}  // namespace galley::app
