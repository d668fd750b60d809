// SPDX-License-Identifier: Apache-2.0
#include "galley/text/regex_splitter.h"

#include <fmt/format.h>

#include <cstdint>
#include <utility>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

namespace galley::text {
namespace {

constexpr std::size_t kPatternBytesMax = 4096;
// Steps that one Split may take: one for each pattern item tried and for each byte run over. Ordinary patterns need
// about ten a byte.
constexpr std::int64_t kStepsPerByte = 500;
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

// One pattern's matching state for one Split.
class Matcher {
 public:
  Matcher(const pcre2_code* code, Budget& budget)
      : code_(code),
        data_(pcre2_match_data_create_from_pattern(code, nullptr)),
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
    while (search_from < text.size()) {
      const int rc = pcre2_match(code_, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), search_from, 0,
                                 data_.get(), context_.get());
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
  const pcre2_code* code_;
  Owned<pcre2_match_data> data_;
  Owned<pcre2_match_context> context_;
  Owned<pcre2_jit_stack> stack_;
};

Result<Owned<pcre2_code>> Compile(const std::string& pattern, std::string_view where) {
  if (pattern.size() > kPatternBytesMax) {
    return Err(ErrorCode::kUnsupported,
               fmt::format("the pattern has {} bytes; the limit is {}", pattern.size(), kPatternBytesMax),
               std::string(where));
  }
  int error = 0;
  PCRE2_SIZE offset = 0;
  // NEVER_BACKSLASH_C: \C could end a match inside a character.
  Owned<pcre2_code> code(
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                    PCRE2_UTF | PCRE2_UCP | PCRE2_MATCH_INVALID_UTF | PCRE2_AUTO_CALLOUT | PCRE2_NEVER_BACKSLASH_C,
                    &error, &offset, nullptr));
  if (code == nullptr) {
    return Err(ErrorCode::kUnsupported,
               fmt::format("PCRE2 does not accept the pattern at byte {}: {}", offset, PcreMessage(error)),
               std::string(where));
  }
  pcre2_jit_compile(code.get(), PCRE2_JIT_COMPLETE);  // without it matching is slower, not different
  return code;
}

}  // namespace

struct RegexSplitter::Impl {
  std::vector<Owned<pcre2_code>> codes;
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
    ASSIGN_OR_RETURN(Owned<pcre2_code> code, Compile(pattern, impl->where));
    impl->codes.push_back(std::move(code));
  }
  return RegexSplitter(std::move(impl));
}

Result<std::vector<std::size_t>> RegexSplitter::Split(std::string_view text) const {
  std::vector<std::size_t> ends;
  if (!text.empty()) ends.push_back(text.size());
  Budget budget{kStepsFixed + kStepsPerByte * static_cast<std::int64_t>(text.size())};
  for (const Owned<pcre2_code>& code : impl_->codes) {
    const Matcher matcher(code.get(), budget);
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
