// SPDX-License-Identifier: Apache-2.0
// `galley calibrate`: fits the confidences of a model's draft head to what is accepted, and writes the result beside
// the model, where engines find it.
#include "galley/engine/calibration.h"

#include <fmt/core.h>

#include <algorithm>

#include "answer.h"
#include "command.h"
#include "files.h"
#include "galley/engine/draft_rounds.h"
#include "galley/io/file.h"
#include "galley/model/model_dir.h"
#include "galley/protocol/json.h"
#include "galley/text/tokenizer.h"
#include "interrupt.h"
#include "loading.h"

namespace galley::app {
namespace {

using protocol::Json;

constexpr std::size_t kPieceTokens = 48;
// Fewer say little: perfect survivals show an error of 0.76 % by chance on 17,136 rounds, so of about 7 % on 200.
constexpr std::size_t kRoundsMin = 200;

// Prompts from the text, or with none so many times the bare beginning of a text.
Result<std::vector<std::vector<TokenId>>> Prompts(Context& context, const std::filesystem::path& model_dir,
                                                  const model::Config& config) {
  const auto count = static_cast<std::size_t>(context.values.Int("requests"));
  if (!context.values.Has("prompt-file")) {
    return std::vector<std::vector<TokenId>>(count, {config.bos_token_id});
  }
  ASSIGN_OR_RETURN(const std::string text, ReadText(context, /*strip_newline=*/false));
  ASSIGN_OR_RETURN(const text::Tokenizer tokenizer, text::Tokenizer::Load(model_dir / "tokenizer.json"));
  ASSIGN_OR_RETURN(const std::vector<TokenId> ids, tokenizer.Encode(text));
  auto prompts = engine::CutPrompts(ids, kPieceTokens, count, config.bos_token_id);
  if (prompts.size() < 2) {
    return Err(ErrorCode::kInvalidArgument,
               fmt::format("{} tokens are too few; give at least {}", ids.size(), 2 * kPieceTokens), "prompt-file");
  }
  return prompts;
}

std::string Report(const engine::Calibration& calibration, const std::vector<engine::DraftRound>& held_out,
                   std::size_t fitted, const std::filesystem::path& file, bool json) {
  const double before = engine::CalibrationError(held_out, {}), after = engine::CalibrationError(held_out, calibration);
  if (json) {
    Json places(Json::Array{});
    for (const auto& [temperature, shift] : calibration.places) {
      places.Push(Json::MakeObject({{"temperature", temperature}, {"shift", shift}}));
    }
    const Json object = Json::MakeObject({{"rounds_fitted", static_cast<std::int64_t>(fitted)},
                                          {"rounds_held_out", static_cast<std::int64_t>(held_out.size())},
                                          {"error_before", before},
                                          {"error_after", after},
                                          {"confidences", std::move(places)},
                                          {"file", file.string()}});
    return protocol::DumpJson(object) + "\n";
  }
  std::string text = fmt::format("{} rounds fitted, {} held out\n", fitted, held_out.size());
  text += "place   temperature    shift   error before   after\n";
  for (std::size_t place = 0; place < calibration.places.size(); ++place) {
    const auto& [temperature, shift] = calibration.places[place];
    text += fmt::format("{:>5}   {:>11.3f}   {:>6.3f}   {:>10.2f} %   {:>5.2f} %\n", place + 1, temperature, shift,
                        100 * engine::CalibrationError(held_out, {}, place),
                        100 * engine::CalibrationError(held_out, calibration, place));
  }
  text += fmt::format(" mean                          {:>10.2f} %   {:>5.2f} %\nwritten to {}\n", 100 * before,
                      100 * after, file.string());
  return text;
}

}  // namespace

Result<int> RunCalibrate(Context& context) {
  const options::Values& values = context.values;
  ASSIGN_OR_RETURN(const std::filesystem::path model_dir, ModelDir(context));
  RETURN_IF_ERROR(model::CheckModelDir(model_dir));
  RETURN_IF_ERROR(CheckWeights(context, model_dir));
  ASSIGN_OR_RETURN(const model::LoadedConfig config, model::LoadConfig(model_dir));
  std::filesystem::path file = values.String("out");
  if (file.empty()) file = model_dir / engine::kCalibrationFile;
  RETURN_IF_ERROR(CheckWritable(file));
  ASSIGN_OR_RETURN(std::vector<std::vector<TokenId>> prompts, Prompts(context, model_dir, config.config));

  engine::EngineOptions options;
  options.model_dir = model_dir;
  options.device = ReadDevice(context);
  options.on_load = ShowLoading(context.terminal);
  options.max_seqs = 8;
  engine::RoundsRequest request;
  request.tokens = static_cast<int>(values.Int("max-tokens"));
  options.max_seq_len = static_cast<std::int64_t>(kPieceTokens) + 1 + request.tokens;
  request.temperature = values.Float("temperature");
  request.seed = values.Has("seed") ? static_cast<std::uint64_t>(values.Int("seed")) : DrawSeed();
  const Interrupt interrupt;
  std::vector<engine::DraftRound> parts[2];  // every other prompt is held out
  for (std::size_t part = 0; part < 2; ++part) {
    request.prompts.clear();
    for (std::size_t i = part; i < prompts.size(); i += 2) request.prompts.push_back(prompts[i]);
    request.seed += prompts.size() * part;
    request.on_progress = [&](std::int64_t rounds) {
      context.terminal.Progress(fmt::format("{}: {} rounds", part == 0 ? "fitting" : "held out", rounds));
      return !interrupt.requested() && !context.terminal.output_closed();
    };
    ASSIGN_OR_RETURN(parts[part], engine::CollectRounds(options, request));
  }
  context.terminal.Progress("");
  if (const std::size_t fewest = std::min(parts[0].size(), parts[1].size()); fewest < kRoundsMin) {
    return Err(ErrorCode::kInvalidArgument,
               fmt::format("{} rounds had drafts to verify, where {} to fit and as many to check are the least that "
                           "say something; raise --max-tokens or --requests",
                           fewest, kRoundsMin),
               "requests");
  }
  const engine::Calibration calibration = engine::FitCalibration(parts[0]);
  RETURN_IF_ERROR(io::WriteFileAtomic(file, engine::ToJson(calibration)));
  context.terminal.Write(Report(calibration, parts[1], parts[0].size(), file, values.Bool("json")));
  return kExitOk;
}

}  // namespace galley::app
