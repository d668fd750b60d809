// SPDX-License-Identifier: Apache-2.0
// Runs the program in the test's process, with a generator that says what the test wants and descriptors that the test
// reads. Test code only.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "command.h"
#include "galley/engine/generator.h"
#include "galley/text/tokenizer.h"

namespace galley::app {

// Where the small model of the source tree lies.
[[nodiscard]] std::filesystem::path NanoDir();
[[nodiscard]] const text::Tokenizer& NanoTokenizer();

// What generators were asked, shared between a test and the generators it causes.
struct FakeModel {
  // Tokens to say after a prompt; more than max_tokens are cut.
  std::function<std::vector<TokenId>(const std::vector<TokenId>& prompt_ids)> say;
  std::int64_t max_seq_len = 8192;
  std::optional<Error> fail_create;
  std::optional<Error> fail_generate;

  std::vector<engine::GeneratorOptions> created;
  std::vector<engine::GenerateRequest> requests;

  // Says the tokens of `text`, in which control tokens are meant, and the end-of-sentence token.
  void Say(std::string text);
  [[nodiscard]] GeneratorFactory Factory();
  // Prompt of request `i` as text, control tokens spelled.
  [[nodiscard]] std::string PromptText(std::size_t i) const;
};

struct Invocation {
  std::vector<std::string> arguments;
  std::string input = {};
  options::Environment environment = {};
  bool close_output = false;  // as when the reader of a pipe went away
};

struct RunOutcome {
  int exit_code = 0;
  std::string out;
  std::string err;
};

[[nodiscard]] RunOutcome RunApp(FakeModel& model, const Invocation& run);

// A file of a test that is removed with it.
class TemporaryFile {
 public:
  explicit TemporaryFile(std::string_view content);
  ~TemporaryFile();
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace galley::app
