// SPDX-License-Identifier: Apache-2.0
// Reads the DSML markup of tool calls: a cursor over output that is held back until it is known what it is. Names and
// keys, not only the exact form that the model was taught, are read with blanks and either kind of quotes, in any case
// of letters; what stays unclear is text. Internal to the output parser.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace galley::protocol::internal {

// Bytes that are held back, with the places of the ｜DSML｜ markers that count. Offsets are into `bytes`.
struct HeldOutput {
  std::string bytes;
  std::vector<std::size_t> markers;  // ascending

  // The first marker at or after `from`, or npos.
  [[nodiscard]] std::size_t MarkerFrom(std::size_t from) const;
};

struct Span {
  std::size_t begin = 0;
  std::size_t end = 0;
};

struct CallParameter {
  Span key{};    // without quotes
  Span value{};  // raw
  bool is_string = true;
  bool exact = true;     // written exactly as the model was taught
  std::size_t open = 0;  // of the word `parameter` in the opening tag
};

struct ParsedCall {
  Span name;
  std::size_t name_end = 0;  // of the closing quote
  std::vector<CallParameter> parameters;
  std::size_t closer = 0;  // of the `</` of the closing tag
};

enum class BlockItem {
  kNeedMore,  // what comes next cannot be said yet
  kBlank,     // white space
  kText,      // something that is no markup, or no whole markup
  kOpen,      // <｜DSML｜ calls>
  kClose,     // </｜DSML｜ calls>
  kCall,      // a whole invoke
};

class BlockReader {
 public:
  // Starts reading at `at`.
  explicit BlockReader(std::size_t at) : cursor_(at) {}

  // The next item, which ends at cursor() then. `at_end`: no more output will come, so kNeedMore only says that nothing
  // is left to read or that a call or tag is incomplete.
  [[nodiscard]] BlockItem Next(const HeldOutput& held, bool at_end);

  [[nodiscard]] std::size_t cursor() const { return cursor_; }
  // The call of the last kCall.
  [[nodiscard]] const ParsedCall& call() const { return call_; }

 private:
  enum class Stage { kBetween, kCallHeader, kCallBody, kValue };
  enum class Step { kNeedMore, kContinue, kDone, kBroken };

  [[nodiscard]] BlockItem NextTag(const HeldOutput& held, std::size_t marker, bool closing, bool at_end);
  [[nodiscard]] BlockItem BareTag(const HeldOutput& held, std::size_t marker, bool at_end);
  [[nodiscard]] Step CallHeader(const HeldOutput& held);
  [[nodiscard]] Step CallBody(const HeldOutput& held, bool at_end);
  [[nodiscard]] Step ParameterHeader(const HeldOutput& held, std::size_t at);
  [[nodiscard]] Step Value(const HeldOutput& held, bool at_end);

  std::size_t cursor_;
  Stage stage_ = Stage::kBetween;
  std::size_t at_ = 0;           // reading position inside a call
  std::size_t next_closer_ = 0;  // where the search for the end of a value goes on
  ParsedCall call_;
};

// Length of the marker ｜DSML｜ in bytes.
inline constexpr std::size_t kMarkerBytes = 10;

}  // namespace galley::protocol::internal
