// SPDX-License-Identifier: Apache-2.0
// Files and texts that commands are given, and the model that comes with the program.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "command.h"
#include "galley/base/error.h"
#include "galley/base/strong_id.h"
#include "galley/engine/device_options.h"
#include "galley/engine/speculation.h"

namespace galley::protocol {
class Json;
}  // namespace galley::protocol

namespace galley::app {

inline constexpr std::size_t kConfigBytesMax = std::size_t{2} << 20;
inline constexpr std::size_t kPromptBytesMax = std::size_t{64} << 20;

// Errors: kNotFound, kInvalidArgument (a directory, more than `bytes_max`), kIo.
[[nodiscard]] Result<std::string> ReadFile(const std::filesystem::path& path, std::size_t bytes_max);

// Makes sure that a result can be written before the work for it begins: creates the file or leaves an existing one as
// it is. Errors: kInvalidArgument, kNotFound, kIo.
[[nodiscard]] Status CheckWritable(const std::filesystem::path& path);

// The text of --prompt-file, of the arguments joined by blanks, or of standard input (for `-` and when nothing else is
// given and it is not a terminal). With `strip_newline` one newline at the end of a file or of standard input is taken
// off. Errors: kInvalidArgument when the text is given twice or not at all or is not UTF-8; those of reading.
[[nodiscard]] Result<std::string> ReadText(Context& context, bool strip_newline);

// A JSON array of token ids; `where` names it in errors.
[[nodiscard]] Result<std::vector<TokenId>> ParseIds(std::string_view json, std::string_view where);
// The ids of the file of --ids, `-` being standard input.
[[nodiscard]] Result<std::vector<TokenId>> ReadIds(Context& context);

// --model, or the model that comes with the program: `models/nano` of the source tree that the binary was built in, or
// `share/galley/models/nano` beside the installed one. kNotFound says where it looked.
[[nodiscard]] Result<std::filesystem::path> ModelDir(const Context& context);

// The digest of every byte of the model's weights, with progress on the terminal. Errors: those of
// engine::DigestWeights.
[[nodiscard]] Result<std::string> WeightsDigest(Context& context, const std::filesystem::path& model_dir);
// With --weights-digest: whether the model is the one that was meant; ReadDevice has a weight cache compared with it.
// Errors: kCorrupt with both digests; those above.
[[nodiscard]] Status CheckWeights(Context& context, const std::filesystem::path& model_dir);

// --backend, --isa, --threads, --cuda-graphs, --experts, --expert-memory, --expert-cache, --engram and --weight-cache.
[[nodiscard]] engine::DeviceOptions ReadDevice(const Context& context);

// What computes, into a report: "isa" and "threads" where the backend has them, behind the members it has.
void AddCompute(protocol::Json& report, const engine::Compute& compute);

// --speculation, --draft-tokens and, where the command has it, --fixed-acceptance.
[[nodiscard]] Result<engine::SpeculationOptions> ReadSpeculation(const options::Values& values);

}  // namespace galley::app
