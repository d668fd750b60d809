// SPDX-License-Identifier: Apache-2.0
#include "galley/text/regex_splitter.h"

#include <fmt/format.h>

#include <cstdint>
#include <utility>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "galley/text/utf8.h"

namespace galley::text {
namespace {

constexpr std::size_t kPatternBytesMax = 4096;
// Steps that one Split may take: one for each pattern item tried and for each byte run over. Ordinary patterns need
// about ten a byte.
constexpr std::int64_t kStepsPerByte = 100;
constexpr std::size_t kCheckedBytesPerStep = 32;  // of UTF-8 validation, which is that much cheaper than a step
constexpr std::int64_t kStepsFixed = 1'000'000;
constexpr std::size_t kJitStackMin = 32 * 1024, kJitStackMax = 1024 * 1024;
constexpr std::uint32_t kHeapLimitKiB = 64 * 1024;

struct Deleter {
  void operator()(pcre2_code* p) const { pcre2_code_free(p); }
  void operator()(pcre2_match_data* p) const { pcre2_match_data_free(p); }
  void operator()(pcre2_match_context* p) const { pcre2_match_context_free(p); }
  void operator()(pcre2_jit_stack* p) const { pcre2_jit_stack_free(p); }
};
template <typename T>
using Owned = std::unique_ptr<T, Deleter>;

struct Budget {
  std::int64_t left;
  std::size_t last_position = 0;
};

// Called before each pattern item. The distance from the last call pays for repeats, which run over text in between.
int SpendStep(pcre2_callout_block* block, void* data) {
  auto* budget = static_cast<Budget*>(data);
  const std::size_t position = block->current_position;
  const std::size_t distance =
      position > budget->last_position ? position - budget->last_position : budget->last_position - position;
  budget->last_position = position;
  budget->left -= 1 + static_cast<std::int64_t>(distance);
  return budget->left < 0 ? PCRE2_ERROR_CALLOUT : 0;
}

std::string PcreMessage(int code) {
  PCRE2_UCHAR buffer[256];
  if (pcre2_get_error_message(code, buffer, sizeof(buffer)) < 0) return fmt::format("PCRE2 error {}", code);
  return reinterpret_cast<const char*>(buffer);
}

// Bytes of the character at `pos`; invalid bytes count one by one.
std::size_t CharLength(std::string_view text, std::size_t pos) {
  std::size_t length = 1;
  while (pos + length < text.size() && (static_cast<unsigned char>(text[pos + length]) & 0xC0U) == 0x80) ++length;
  return length;
}

// Compiled code, its matches being the same whichever runs. The JIT's treats invalid bytes as it meets them; without
// it every match first validates all the text that is left, which for a text cut into many pieces is quadratic. So
// where there is no JIT (the system forbids it, or the pattern does) valid texts run in code that need not look.
struct Pattern {
  Owned<pcre2_code> any;    // for every text
  Owned<pcre2_code> valid;  // for texts known to be UTF-8; null with the JIT
};

// One pattern's matching state for one Split.
class Matcher {
 public:
  Matcher(const Pattern& pattern, Budget& budget)
      : pattern_(pattern),
        budget_(budget),
        data_(pcre2_match_data_create_from_pattern(pattern.any.get(), nullptr)),
        context_(pcre2_match_context_create(nullptr)),
        stack_(pcre2_jit_stack_create(kJitStackMin, kJitStackMax, nullptr)) {
    if (!usable()) return;
    pcre2_set_callout(context_.get(), SpendStep, &budget);
    pcre2_set_heap_limit(context_.get(), kHeapLimitKiB);
    pcre2_jit_stack_assign(context_.get(), nullptr, stack_.get());
  }

  [[nodiscard]] bool usable() const { return data_ != nullptr && context_ != nullptr && stack_ != nullptr; }

  // Appends the ends of the pieces of `text`, shifted by `base`. Returns 0 or the code of the PCRE2 error.
  int Split(std::string_view text, std::size_t base, std::vector<std::size_t>& ends) const {
    std::size_t piece_start = 0, search_from = 0;
    bool matched_before = false;  // a match ended at piece_start
    const bool unchecked = pattern_.valid != nullptr && IsValidUtf8(text);
    const pcre2_code* const code = unchecked ? pattern_.valid.get() : pattern_.any.get();
    while (search_from < text.size()) {
      if (pattern_.valid != nullptr && !unchecked) {
        budget_.left -= static_cast<std::int64_t>((text.size() - search_from) / kCheckedBytesPerStep);
        if (budget_.left < 0) return PCRE2_ERROR_CALLOUT;
      }
      const int rc = pcre2_match(code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), search_from,
                                 unchecked ? PCRE2_NO_UTF_CHECK : 0, data_.get(), context_.get());
      if (rc == PCRE2_ERROR_NOMATCH) break;
      if (rc < 0) return rc;
      const PCRE2_SIZE* span = pcre2_get_ovector_pointer(data_.get());
      const std::size_t begin = span[0], end = span[1];
      // \K can move the start of a match before the search or behind its end; such a match cuts nothing. An empty match
      // where the last one ended would be found forever.
      const bool in_order = begin >= search_from && begin <= end;
      if (!in_order || (begin == end && matched_before && end == piece_start)) {
        search_from += CharLength(text, search_from);
        continue;
      }
      if (begin > piece_start) ends.push_back(base + begin);
      if (end > begin) ends.push_back(base + end);
      piece_start = search_from = end;
      matched_before = true;
    }
    if (piece_start < text.size()) ends.push_back(base + text.size());
    return 0;
  }

 private:
  const Pattern& pattern_;
  Budget& budget_;
  Owned<pcre2_match_data> data_;
  Owned<pcre2_match_context> context_;
  Owned<pcre2_jit_stack> stack_;
};

// NEVER_BACKSLASH_C: \C could end a match inside a character.
constexpr std::uint32_t kCompileOptions = PCRE2_UTF | PCRE2_UCP | PCRE2_AUTO_CALLOUT | PCRE2_NEVER_BACKSLASH_C;

bool HasJit(const pcre2_code* code) {
  std::size_t bytes = 0;
  return pcre2_pattern_info(code, PCRE2_INFO_JITSIZE, &bytes) == 0 && bytes > 0;
}

Result<Pattern> Compile(const std::string& pattern, std::string_view where) {
  if (pattern.size() > kPatternBytesMax) {
    return Err(ErrorCode::kUnsupported,
               fmt::format("the pattern has {} bytes; the limit is {}", pattern.size(), kPatternBytesMax),
               std::string(where));
  }
  int error = 0;
  PCRE2_SIZE offset = 0;
  const auto compile = [&](std::uint32_t options) {
    return Owned<pcre2_code>(
        pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(), options, &error, &offset, nullptr));
  };
  Pattern compiled{compile(kCompileOptions | PCRE2_MATCH_INVALID_UTF), nullptr};
  if (compiled.any == nullptr) {
    return Err(ErrorCode::kUnsupported,
               fmt::format("PCRE2 does not accept the pattern at byte {}: {}", offset, PcreMessage(error)),
               std::string(where));
  }
  pcre2_jit_compile(compiled.any.get(), PCRE2_JIT_COMPLETE);  // without it matching is slower, not different
  if (!HasJit(compiled.any.get())) compiled.valid = compile(kCompileOptions);
  return compiled;
}

}  // namespace

struct RegexSplitter::Impl {
  std::vector<Pattern> patterns;
  std::string where;
};

RegexSplitter::RegexSplitter(std::unique_ptr<const Impl> impl) : impl_(std::move(impl)) {}
RegexSplitter::RegexSplitter(RegexSplitter&&) noexcept = default;
RegexSplitter& RegexSplitter::operator=(RegexSplitter&&) noexcept = default;
RegexSplitter::~RegexSplitter() = default;

Result<RegexSplitter> RegexSplitter::Create(std::span<const std::string> patterns, std::string_view where) {
  auto impl = std::make_unique<Impl>();
  impl->where = fmt::format("{}: pre_tokenizer", where);
  for (const std::string& pattern : patterns) {
    ASSIGN_OR_RETURN(Pattern compiled, Compile(pattern, impl->where));
    impl->patterns.push_back(std::move(compiled));
  }
  return RegexSplitter(std::move(impl));
}

Result<std::vector<std::size_t>> RegexSplitter::Split(std::string_view text) const {
  std::vector<std::size_t> ends;
  if (!text.empty()) ends.push_back(text.size());
  Budget budget{kStepsFixed + kStepsPerByte * static_cast<std::int64_t>(text.size())};
  for (const Pattern& pattern : impl_->patterns) {
    const Matcher matcher(pattern, budget);
    if (!matcher.usable()) return Err(ErrorCode::kResourceExhausted, "no memory for matching", impl_->where);
    std::vector<std::size_t> finer;
    finer.reserve(ends.size());
    std::size_t begin = 0;
    for (const std::size_t end : ends) {
      budget.last_position = 0;
      if (const int rc = matcher.Split(text.substr(begin, end - begin), begin, finer); rc != 0) {
        return Err(
            ErrorCode::kResourceExhausted,
            fmt::format("the split patterns cannot be matched against {} bytes of text within their limits ({}); "
                        "use patterns that backtrack less",
                        text.size(), PcreMessage(rc)),
            impl_->where);
      }
      begin = end;
    }
    ends = std::move(finer);
  }
  return ends;
}

}  // namespace galley::text
