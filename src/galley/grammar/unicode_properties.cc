// SPDX-License-Identifier: Apache-2.0
#include "galley/grammar/unicode_properties.h"

#include <algorithm>

#include "galley/grammar/unicode_tables.h"

namespace galley::grammar {
namespace {

// Reads the numbers of a table: a last digit is one of 40 characters from `0` on, those before it are of 39 from `X`
// on.
class DigitReader {
 public:
  explicit DigitReader(std::string_view digits) : digits_(digits) {}

  // Whether another number follows.
  [[nodiscard]] bool More() {
    while (at_ < digits_.size() && digits_[at_] == '\n') ++at_;
    return at_ < digits_.size();
  }

  std::uint32_t Next() {
    std::uint32_t number = 0;
    while (More()) {
      const char digit = digits_[at_++];
      if (digit < 'X') return number * 40 + static_cast<std::uint32_t>(digit - '0');
      number = number * 39 + static_cast<std::uint32_t>(digit - 'X');
    }
    return number;
  }

 private:
  std::string_view digits_;
  std::size_t at_ = 0;
};

bool Spells(std::string_view names, std::string_view name) {
  for (std::size_t begin = 0; begin < names.size();) {
    const std::size_t end = std::min(names.find(' ', begin), names.size());
    if (names.substr(begin, end - begin) == name) return true;
    begin = end + 1;
  }
  return false;
}

}  // namespace

std::vector<CodePointRange> FindProperty(PropertyKind kind, std::string_view name) {
  std::vector<CodePointRange> ranges;
  const auto row = std::find_if(internal::kPropertyRows.begin(), internal::kPropertyRows.end(),
                                [&](const auto& one) { return one.kind == kind && Spells(one.names, name); });
  if (row == internal::kPropertyRows.end()) return ranges;
  DigitReader digits(internal::kRangeDigits.substr(row->offset));
  std::uint32_t end = 0;
  for (std::uint32_t i = 0; i < row->count; ++i) {
    const std::uint32_t first = end + digits.Next();
    end = first + digits.Next();
    ranges.push_back({first, end});
  }
  return ranges;
}

std::vector<CaseFold> SimpleCaseFolds() {
  std::vector<CaseFold> folds;
  DigitReader digits(internal::kFoldDigits);
  std::uint32_t last = 0;
  const auto next = [&] {
    const std::uint32_t distance = digits.Next();
    last = distance % 2 == 0 ? last + distance / 2 : last - (distance + 1) / 2;
    return last;
  };
  while (digits.More()) {
    const std::uint32_t from = next();
    folds.push_back({from, next()});
  }
  return folds;
}

}  // namespace galley::grammar
