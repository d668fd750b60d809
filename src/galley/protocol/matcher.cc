// SPDX-License-Identifier: Apache-2.0
#include "galley/protocol/matcher.h"

#include "galley/base/check.h"

namespace galley::protocol::internal {

Matcher::Matcher(std::string pattern, std::string_view special, bool newlines)
    : pattern_(std::move(pattern)), border_(pattern_.size() + 1, 0), newlines_(newlines) {
  CHECK(!pattern_.empty()) << "an empty pattern matches everywhere";
  if (!special.empty()) {
    special_begin_ = pattern_.find(special);
    special_end_ = special_begin_ + special.size();
  }
  for (std::size_t i = 1, k = 0; i < pattern_.size(); ++i) {
    while (k > 0 && pattern_[i] != pattern_[k]) k = border_[k];
    if (pattern_[i] == pattern_[k]) ++k;
    border_[i + 1] = k;
  }
}

bool Matcher::Fits(std::size_t at, char byte, PieceSource source) const {
  if (pattern_[at] != byte) return false;
  const bool special = at >= special_begin_ && at < special_end_;
  return source != (special ? PieceSource::kOrdinary : PieceSource::kAdded);
}

bool Matcher::Step(char byte, PieceSource source) {
  if (newlines_ && !Fits(matched_, byte, source)) {
    // A newline right behind a broken beginning is not counted: the beginning has become text, and it with it.
    const bool broken = matched_ > 0;
    matched_ = 0;
    newline_count_ = !broken && byte == '\n' && source != PieceSource::kAdded ? newline_count_ + 1 : 0;
    if (broken && Fits(0, byte, source)) matched_ = 1;
    return matched_ == pattern_.size();
  }
  while (matched_ > 0 && !Fits(matched_, byte, source)) matched_ = border_[matched_];
  if (Fits(matched_, byte, source)) ++matched_;
  return matched_ == pattern_.size();
}

void Matcher::Reset() {
  matched_ = 0;
  newline_count_ = 0;
}

}  // namespace galley::protocol::internal
