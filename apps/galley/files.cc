// SPDX-License-Identifier: Apache-2.0
#include "files.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <limits>
#include <system_error>

#include "galley/base/thread_pool.h"
#include "galley/engine/model_digest.h"
#include "galley/protocol/json.h"
#include "galley/text/utf8.h"
#include "interrupt.h"

namespace galley::app {
namespace {

ErrorCode CodeOf(int error) {
  return error == ENOENT || error == ENOTDIR ? ErrorCode::kNotFound : ErrorCode::kIo;
}

tl::unexpected<Error> SystemError(std::string_view action, const std::filesystem::path& path, int error) {
  return Err(CodeOf(error), fmt::format("cannot {}: {}", action, std::strerror(error)), path.string());
}

class Descriptor {
 public:
  explicit Descriptor(int value) : value_(value) {}
  ~Descriptor() {
    if (value_ >= 0) ::close(value_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  [[nodiscard]] int get() const { return value_; }

 private:
  int value_;
};

Result<std::string> Checked(std::string text, std::string_view where, bool strip_newline) {
  if (strip_newline && text.ends_with('\n')) text.pop_back();
  if (strip_newline && text.ends_with('\r')) text.pop_back();
  RETURN_IF_ERROR(text::ValidateUtf8(text, where));
  return text;
}

}  // namespace

Result<std::string> ReadFile(const std::filesystem::path& path, std::size_t bytes_max) {
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.get() < 0) return SystemError("open", path, errno);
  std::string text;
  std::array<char, 65536> chunk;
  while (true) {
    const ssize_t count = ::read(file.get(), chunk.data(), chunk.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && errno == EISDIR) {
      return Err(ErrorCode::kInvalidArgument, "this is a directory; name a file", path.string());
    }
    if (count < 0) return SystemError("read", path, errno);
    if (count == 0) return text;
    text.append(chunk.data(), static_cast<std::size_t>(count));
    if (text.size() > bytes_max) {
      return Err(ErrorCode::kInvalidArgument, fmt::format("the file has more than {} bytes", bytes_max), path.string());
    }
  }
}

Status CheckWritable(const std::filesystem::path& path) {
  constexpr mode_t kMode = 0666;
  struct stat info {};
  const bool existed = ::stat(path.c_str(), &info) == 0;
  if (existed && S_ISDIR(info.st_mode)) {
    return Err(ErrorCode::kInvalidArgument, "this is a directory; name a file", path.string());
  }
  if (existed && !S_ISREG(info.st_mode)) {
    return Err(ErrorCode::kInvalidArgument, "this is a pipe or device; name a file", path.string());
  }
  const Descriptor file(::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, kMode));
  if (file.get() < 0) return SystemError("write", path, errno);
  if (!existed) ::unlink(path.c_str());  // what follows may fail, and an empty file would look like a result
  return {};
}

Result<std::string> ReadText(Context& context, bool strip_newline) {
  const std::string& path = context.values.String("prompt-file");
  if (!path.empty() && !context.arguments.empty()) {
    return Err(ErrorCode::kInvalidArgument, "the text is given twice; leave out the arguments or the file",
               "--prompt-file");
  }
  if (!path.empty()) {
    ASSIGN_OR_RETURN(std::string text, ReadFile(path, kPromptBytesMax));
    return Checked(std::move(text), path, strip_newline);
  }
  const bool dash = context.arguments.size() == 1 && context.arguments[0] == "-";
  if (!context.arguments.empty() && !dash) {
    std::string text = context.arguments[0];
    for (const std::string& argument : context.arguments.subspan(1)) text += " " + argument;
    return Checked(std::move(text), "argument", false);
  }
  if (!dash && context.terminal.in_is_tty()) {
    return Err(ErrorCode::kInvalidArgument,
               "there is no text; give it as an argument, with --prompt-file, or on standard input");
  }
  ASSIGN_OR_RETURN(std::string text, context.terminal.ReadAll(kPromptBytesMax));
  return Checked(std::move(text), "standard input", strip_newline);
}

Result<std::vector<TokenId>> ParseIds(std::string_view json, std::string_view where) {
  const std::string place(where);
  const Result<protocol::Json> value = protocol::ParseJson(json);
  const protocol::Json::Array* array = value ? value->if_array() : nullptr;
  if (array == nullptr) {
    return Err(ErrorCode::kInvalidArgument,
               fmt::format("this is not a JSON array of token ids such as [0, 554]{}",
                           value ? "" : ": " + value.error().ToString()),
               place);
  }
  std::vector<TokenId> ids;
  ids.reserve(array->size());
  for (const protocol::Json& item : *array) {
    const std::int64_t* id = item.if_int();
    if (id == nullptr || *id < 0 || *id > std::numeric_limits<TokenId>::max()) {
      return Err(ErrorCode::kInvalidArgument,
                 fmt::format("element {} is not a token id; ids are whole numbers from 0 on", ids.size()), place);
    }
    ids.push_back(static_cast<TokenId>(*id));
  }
  return ids;
}

Result<std::vector<TokenId>> ReadIds(Context& context) {
  const std::string& path = context.values.String("ids");
  if (path == "-") {
    ASSIGN_OR_RETURN(const std::string json, context.terminal.ReadAll(kPromptBytesMax));
    return ParseIds(json, "standard input");
  }
  ASSIGN_OR_RETURN(const std::string json, ReadFile(path, kPromptBytesMax));
  return ParseIds(json, path);
}

Result<std::filesystem::path> ModelDir(const Context& context) {
  const std::string& given = context.values.String("model");
  if (!given.empty()) return std::filesystem::path(given);
  const std::filesystem::path bin = context.executable.parent_path();
  const std::filesystem::path candidates[] = {
      bin / ".." / ".." / "models" / "nano",
      bin / ".." / "share" / "galley" / "models" / "nano",
  };
  std::string looked;
  for (const std::filesystem::path& candidate : candidates) {
    std::error_code error;
    if (std::filesystem::exists(candidate / "config.json", error)) return candidate.lexically_normal();
    looked += fmt::format("{}{}", looked.empty() ? "" : " and ", candidate.lexically_normal().string());
  }
  return Err(ErrorCode::kNotFound,
             fmt::format("the model that comes with Galley is not where it should be (looked in {}); name a model "
                         "directory with --model",
                         looked));
}

Result<std::string> WeightsDigest(Context& context, const std::filesystem::path& model_dir) {
  const Interrupt interrupt;
  const auto result =
      engine::DigestWeights(model_dir, UsableProcessors(), [&](std::uint64_t done, std::uint64_t total) {
        context.terminal.Progress(fmt::format("digest of the weights: {:.0f} %",
                                              100 * static_cast<double>(done) / static_cast<double>(total)));
        return !interrupt.requested();
      });
  context.terminal.Progress("");
  if (!result) return Err(result.error());
  return result->ToHex();
}

Status CheckWeights(Context& context, const std::filesystem::path& model_dir) {
  if (!context.values.Has("weights-digest")) return {};
  std::string expected = context.values.String("weights-digest");
  const auto hex = [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); };
  if (expected.size() != 64 || !std::ranges::all_of(expected, hex)) {
    return Err(ErrorCode::kInvalidArgument, "must be the 64 lower-case digits that `galley inspect --digest` prints",
               "weights-digest");
  }
  ASSIGN_OR_RETURN(const std::string found, WeightsDigest(context, model_dir));
  if (found == expected) return {};
  return Err(ErrorCode::kCorrupt,
             fmt::format("the weights are not those that were meant: their digest is {}, --weights-digest says {}; "
                         "fetch the model again, or give this digest if its weights were changed on purpose",
                         found, expected),
             model_dir.string());
}

engine::DeviceOptions ReadDevice(const Context& context) {
  const options::Values& values = context.values;
  const auto place = [&values](std::string_view option) {
    const std::string& name = values.String(option);
    return name == "disk"   ? engine::WeightPlace::kDisk
           : name == "host" ? engine::WeightPlace::kHost
                            : engine::WeightPlace::kDevice;
  };
  return {.backend = values.String("backend"),
          .isa = values.String("isa"),
          .threads = static_cast<int>(values.Int("threads")),
          .cuda_graphs = values.String("cuda-graphs") == "on",
          .experts = place("experts"),
          .expert_memory = values.Int("expert-memory"),
          .expert_cache = values.Int("expert-cache"),
          .engram = place("engram"),
          .weight_cache = values.String("weight-cache"),
          .check_weight_cache = values.Has("weights-digest")};
}

void AddCompute(protocol::Json& report, const engine::Compute& compute) {
  if (!compute.isa.empty()) report.Set("isa", compute.isa);
  if (compute.threads > 0) report.Set("threads", compute.threads);
}

Result<engine::SpeculationOptions> ReadSpeculation(const options::Values& values) {
  engine::SpeculationOptions speculation;
  const std::optional<engine::SpeculationMode> mode = engine::SpeculationModeFor(values.String("speculation"));
  if (!mode) {
    return Err(ErrorCode::kInvalidArgument, "\"" + values.String("speculation") + "\" is no way to draft",
               "speculation");
  }
  speculation.mode = *mode;
  speculation.draft_tokens = static_cast<int>(values.Int("draft-tokens"));
  if (values.Has("adaptive-verify")) speculation.adaptive = values.Bool("adaptive-verify");
  if (values.Has("fixed-acceptance")) speculation.fixed_accepted = values.Float("fixed-acceptance");
  return speculation;
}

}  // namespace galley::app
