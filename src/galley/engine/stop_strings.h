// SPDX-License-Identifier: Apache-2.0
// Stop strings: finds in a growing text the first place where one of several strings ends, and holds back text that may
// still become one. The result does not depend on how the text is cut into pieces. Work is linear in the text whatever
// the strings are (Aho and Corasick, "Efficient string matching", CACM 1975). A StopSet is immutable and may be shared
// by threads; a StopMatcher belongs to one sequence. Lengths are bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "galley/base/error.h"

namespace galley::engine {

inline constexpr std::size_t kStopStringsMax = 64;
inline constexpr std::size_t kStopStringBytesMax = 1024;

class StopSet {
 public:
  // No strings: nothing ever stops.
  StopSet() : nodes_(1) {}
  // Errors: kInvalidArgument for more than kStopStringsMax strings, and for one that is empty, longer than
  // kStopStringBytesMax or not UTF-8. `field` names the list, and with an index the string, in the error.
  [[nodiscard]] static Result<StopSet> Create(std::span<const std::string> stops, std::string_view field = "stop");

  [[nodiscard]] std::span<const std::string> strings() const { return stops_; }
  // Whether one of the strings lies inside `text`. Linear in the text.
  [[nodiscard]] bool OccursIn(std::string_view text) const;

 private:
  friend class StopMatcher;
  struct Edge {
    unsigned char byte;
    std::int32_t node;
  };
  // One prefix of a stop string. Edges are sorted by byte.
  struct Node {
    std::vector<Edge> edges;
    std::int32_t shorter = 0;      // node of the longest proper suffix that is a prefix too; 0 is the empty prefix
    std::int32_t length = 0;       // of this prefix
    std::int32_t stop_index = -1;  // first of the strings that end here, own or as suffixes; -1: none
  };
  [[nodiscard]] std::int32_t Child(std::int32_t node, unsigned char byte) const;
  // The longest prefix of a string that ends with `byte` after what `node` stands for.
  [[nodiscard]] std::int32_t After(std::int32_t node, unsigned char byte) const;
  void Insert(std::string_view stop, std::int32_t index);
  void LinkSuffixes();

  std::vector<std::string> stops_;
  std::vector<Node> nodes_;
};

class StopMatcher {
 public:
  // `set` must outlive the matcher.
  explicit StopMatcher(const StopSet& set) : set_(&set) {}

  // Text that is now certain not to be part of a stop string. When pieces are whole UTF-8 characters, so is the output.
  // The string that ends first wins, of several that end at the same byte the first of the set; the text then ends
  // before it, and later calls return nothing.
  [[nodiscard]] std::string Append(std::string_view piece);
  // End of the text, or something in between that no stop string spans: gives out what was held back.
  [[nodiscard]] std::string Flush();

  // Index of the string that was found.
  [[nodiscard]] std::optional<std::size_t> stopped() const { return stopped_; }

 private:
  const StopSet* set_;
  std::int32_t node_ = 0;
  std::string held_;  // the prefix that node_ stands for
  std::optional<std::size_t> stopped_;
};

}  // namespace galley::engine
