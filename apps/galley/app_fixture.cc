// SPDX-License-Identifier: Apache-2.0
#include "app_fixture.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>

#include "galley/base/check.h"
#include "program.h"

namespace galley::app {
namespace {

class FakeGenerator : public engine::Generator {
 public:
  explicit FakeGenerator(FakeModel& model) : model_(model) {
    config_.eos_token_id = 1;
    config_.max_seq_len = model.max_seq_len;
  }

  const model::Config& config() const override { return config_; }
  const text::Tokenizer& tokenizer() const override { return NanoTokenizer(); }

  Result<engine::GenerateResult> Generate(const engine::GenerateRequest& request) override {
    model_.requests.push_back(request);
    if (model_.fail_generate) return Err(*model_.fail_generate);
    const auto total = static_cast<std::int64_t>(request.prompt_ids.size());
    if (request.on_prefill) request.on_prefill(total / 2, total);
    if (request.on_prefill) request.on_prefill(total, total);
    engine::GenerateResult result;
    result.timings = {.prefill_s = 0.5, .decode_s = 0.25};
    for (const TokenId id : model_.say(request.prompt_ids)) {
      if (request.cancelled && request.cancelled()) {
        result.finish = engine::FinishReason::kCancelled;
        return result;
      }
      if (result.tokens.size() == static_cast<std::size_t>(request.max_tokens)) return result;
      engine::GeneratedToken token;
      token.id = id;
      if (request.sampling.top_logprobs >= 0) {
        token.logprob = -0.5F;
        token.alternatives.assign(static_cast<std::size_t>(request.sampling.top_logprobs),
                                  {.id = id, .logprob = -0.5F});
      }
      result.tokens.push_back(token);
      const bool wanted = request.on_token(token);
      const bool ends = std::find(request.stop_ids.begin(), request.stop_ids.end(), id) != request.stop_ids.end();
      if (ends || !wanted) {
        result.finish = engine::FinishReason::kStop;
        return result;
      }
    }
    return result;
  }

 private:
  FakeModel& model_;
  model::Config config_;
};

std::string Drain(int descriptor) {
  CHECK(::lseek(descriptor, 0, SEEK_SET) == 0);
  std::string text;
  std::array<char, 4096> chunk;
  while (true) {
    const ssize_t count = ::read(descriptor, chunk.data(), chunk.size());
    CHECK(count >= 0);
    if (count == 0) return text;
    text.append(chunk.data(), static_cast<std::size_t>(count));
  }
}

int MemoryFile(std::string_view content) {
  const int descriptor = ::memfd_create("test", MFD_CLOEXEC);
  CHECK(descriptor >= 0);
  CHECK(::write(descriptor, content.data(), content.size()) == static_cast<ssize_t>(content.size()));
  CHECK(::lseek(descriptor, 0, SEEK_SET) == 0);
  return descriptor;
}

}  // namespace

std::filesystem::path NanoDir() {
  return std::filesystem::path(GALLEY_SOURCE_DIR) / "models" / "nano";
}

const text::Tokenizer& NanoTokenizer() {
  static const text::Tokenizer* const tokenizer = [] {
    Result<text::Tokenizer> loaded = text::Tokenizer::Load(NanoDir() / "tokenizer.json");
    CHECK(loaded.has_value()) << loaded.error().ToString();
    return new text::Tokenizer(std::move(*loaded));
  }();
  return *tokenizer;
}

void FakeModel::Say(std::string text) {
  say = [text = std::move(text)](const std::vector<TokenId>&) {
    std::vector<TokenId> ids = *NanoTokenizer().Encode(text, text::AddedTokens::kMatch);
    ids.push_back(1);
    return ids;
  };
}

GeneratorFactory FakeModel::Factory() {
  return [this](const engine::GeneratorOptions& options) -> Result<std::unique_ptr<engine::Generator>> {
    created.push_back(options);
    if (fail_create) return Err(*fail_create);
    return std::make_unique<FakeGenerator>(*this);
  };
}

std::string FakeModel::PromptText(std::size_t i) const {
  return *NanoTokenizer().Decode(requests.at(i).prompt_ids);
}

RunOutcome RunApp(FakeModel& model, const Invocation& run) {
  std::signal(SIGPIPE, SIG_IGN);  // as main does
  const int in = MemoryFile(run.input), err = MemoryFile("");
  int out = -1;
  if (run.close_output) {
    std::array<int, 2> ends{};
    CHECK(::pipe2(ends.data(), O_CLOEXEC) == 0);
    ::close(ends[0]);
    out = ends[1];
  } else {
    out = MemoryFile("");
  }
  // As if installed in the build tree of this checkout, where the small model is two folders up.
  const Process process{run.arguments, run.environment,
                        std::filesystem::path(GALLEY_SOURCE_DIR) / "build" / "release" / "galley", model.Factory()};
  RunOutcome outcome;
  {
    Terminal terminal({.in = in, .out = out, .err = err});
    outcome.exit_code = RunProgram(process, terminal);
  }
  if (!run.close_output) outcome.out = Drain(out);
  outcome.err = Drain(err);
  for (const int descriptor : {in, out, err}) ::close(descriptor);
  return outcome;
}

TemporaryFile::TemporaryFile(std::string_view content) : path_(testing::TempDir() + "galley_app_XXXXXX") {
  const int descriptor = ::mkstemp(path_.data());
  CHECK(descriptor >= 0);
  CHECK(::write(descriptor, content.data(), content.size()) == static_cast<ssize_t>(content.size()));
  ::close(descriptor);
}

TemporaryFile::~TemporaryFile() {
  ::unlink(path_.c_str());
}

}  // namespace galley::app
