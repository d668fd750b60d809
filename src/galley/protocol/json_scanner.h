// SPDX-License-Identifier: Apache-2.0
// Finds the end of one JSON value in a stream of bytes by counting brackets outside strings. It does not check the
// value: a model in JSON mode may be wrong, and what it wrote is passed on as it is.
#pragma once

namespace galley::protocol::internal {

class JsonScanner {
 public:
  // Takes a byte; true when it ends a value in brackets.
  bool Step(char c) {
    if (in_string_) {
      if (escaped_)
        escaped_ = false;
      else if (c == '\\')
        escaped_ = true;
      else if (c == '"')
        in_string_ = false;
      return false;
    }
    const bool blank = c == ' ' || c == '\n' || c == '\r' || c == '\t';
    if (depth_ == 0 && !blank && c != '{' && c != '[') bare_ = true;
    if (bare_) return false;
    if (c == '"') in_string_ = true;
    if (c == '{' || c == '[') ++depth_;
    if (c == '}' || c == ']') return --depth_ == 0;
    return false;
  }
  // A value without brackets, whose end this scanner does not find.
  [[nodiscard]] bool bare() const { return bare_; }

 private:
  int depth_ = 0;
  bool in_string_ = false;
  bool escaped_ = false;
  bool bare_ = false;
};

}  // namespace galley::protocol::internal
