// SPDX-License-Identifier: Apache-2.0
#include "galley/engine/stop_strings.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "galley/text/utf8.h"

namespace galley::engine {
namespace {

Status Validate(std::string_view stop, std::string_view field, std::size_t index) {
  const std::string where = fmt::format("{}[{}]", field, index);
  if (stop.empty()) return Err(ErrorCode::kInvalidArgument, "the string is empty; leave it out", where);
  if (stop.size() > kStopStringBytesMax) {
    return Err(ErrorCode::kInvalidArgument,
               fmt::format("the string has {} bytes, at most {} are allowed", stop.size(), kStopStringBytesMax), where);
  }
  return text::ValidateUtf8(stop, where);
}

}  // namespace

Result<StopSet> StopSet::Create(std::span<const std::string> stops, std::string_view field) {
  if (stops.size() > kStopStringsMax) {
    return Err(ErrorCode::kInvalidArgument,
               fmt::format("{} strings were given, at most {} are allowed", stops.size(), kStopStringsMax),
               std::string(field));
  }
  StopSet set;
  for (std::size_t i = 0; i < stops.size(); ++i) {
    RETURN_IF_ERROR(Validate(stops[i], field, i));
    set.Insert(stops[i], static_cast<std::int32_t>(i));
  }
  set.stops_.assign(stops.begin(), stops.end());
  set.LinkSuffixes();
  return set;
}

std::int32_t StopSet::Child(std::int32_t node, unsigned char byte) const {
  const std::vector<Edge>& edges = nodes_[static_cast<std::size_t>(node)].edges;
  const auto found =
      std::lower_bound(edges.begin(), edges.end(), byte, [](const Edge& e, unsigned char b) { return e.byte < b; });
  return found != edges.end() && found->byte == byte ? found->node : -1;
}

void StopSet::Insert(std::string_view stop, std::int32_t index) {
  std::int32_t node = 0;
  for (const char c : stop) {
    const auto byte = static_cast<unsigned char>(c);
    std::int32_t next = Child(node, byte);
    if (next < 0) {
      next = static_cast<std::int32_t>(nodes_.size());
      const std::int32_t length = nodes_[static_cast<std::size_t>(node)].length + 1;
      nodes_.emplace_back().length = length;
      std::vector<Edge>& edges = nodes_[static_cast<std::size_t>(node)].edges;
      const auto at =
          std::lower_bound(edges.begin(), edges.end(), byte, [](const Edge& e, unsigned char b) { return e.byte < b; });
      edges.insert(at, {byte, next});
    }
    node = next;
  }
  std::int32_t& stop_index = nodes_[static_cast<std::size_t>(node)].stop_index;
  if (stop_index < 0) stop_index = index;
}

// Breadth first, so that the links of all shorter prefixes are there when a node needs them.
void StopSet::LinkSuffixes() {
  std::vector<std::int32_t> queue = {0};
  for (std::size_t i = 0; i < queue.size(); ++i) {
    const std::int32_t parent = queue[i];
    for (const Edge& edge : nodes_[static_cast<std::size_t>(parent)].edges) {
      Node& node = nodes_[static_cast<std::size_t>(edge.node)];
      std::int32_t from = parent;
      while (from != 0) {
        from = nodes_[static_cast<std::size_t>(from)].shorter;
        const std::int32_t next = Child(from, edge.byte);
        if (next >= 0) {
          node.shorter = next;
          break;
        }
      }
      const std::int32_t inherited = nodes_[static_cast<std::size_t>(node.shorter)].stop_index;
      if (inherited >= 0 && (node.stop_index < 0 || inherited < node.stop_index)) node.stop_index = inherited;
      queue.push_back(edge.node);
    }
  }
}

std::int32_t StopSet::After(std::int32_t node, unsigned char byte) const {
  std::int32_t next = Child(node, byte);
  while (next < 0 && node != 0) {
    node = nodes_[static_cast<std::size_t>(node)].shorter;
    next = Child(node, byte);
  }
  return std::max(next, 0);
}

bool StopSet::OccursIn(std::string_view text) const {
  std::int32_t node = 0;
  for (const char c : text) {
    node = After(node, static_cast<unsigned char>(c));
    if (nodes_[static_cast<std::size_t>(node)].stop_index >= 0) return true;
  }
  return false;
}

std::string StopMatcher::Append(std::string_view piece) {
  if (stopped_) return {};
  held_ += piece;
  const std::size_t start = held_.size() - piece.size();
  for (std::size_t i = start; i < held_.size(); ++i) {
    const auto byte = static_cast<unsigned char>(held_[i]);
    node_ = set_->After(node_, byte);
    const std::int32_t found = set_->nodes_[static_cast<std::size_t>(node_)].stop_index;
    if (found >= 0) {
      stopped_ = static_cast<std::size_t>(found);
      std::string text = std::move(held_);
      text.resize(i + 1 - set_->stops_[*stopped_].size());
      held_.clear();
      return text;
    }
  }
  const auto keep = static_cast<std::size_t>(set_->nodes_[static_cast<std::size_t>(node_)].length);
  std::string text = held_.substr(0, held_.size() - keep);
  held_.erase(0, text.size());
  return text;
}

std::string StopMatcher::Flush() {
  node_ = 0;
  return std::exchange(held_, {});
}

}  // namespace galley::engine
