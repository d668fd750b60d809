// SPDX-License-Identifier: Apache-2.0
#include "galley/base/config_file.h"

#include <fmt/core.h>

#include <toml++/toml.h>

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>

namespace galley::options {
namespace {

constexpr std::size_t kFileBytesMax = std::size_t{1} << 20;
// The library nests a table for every part of a dotted key and recurses over them. Keys end with their line.
constexpr std::ptrdiff_t kDotsOfLineMax = 2000;

Status CheckDots(std::string_view toml, std::string_view where) {
  for (int line = 1; !toml.empty(); ++line) {
    const std::size_t end = std::min(toml.find('\n'), toml.size());
    const std::string_view text = toml.substr(0, end);
    if (std::count(text.begin(), text.end(), '.') > kDotsOfLineMax) {
      return Err(ErrorCode::kInvalidArgument,
                 fmt::format("a line has more than {} dots; break it (a key is one name in a section)", kDotsOfLineMax),
                 fmt::format("{}:{}", where, line));
    }
    toml.remove_prefix(std::min(end + 1, toml.size()));
  }
  return {};
}

tl::unexpected<Error> WrongValue(std::string_view where, const toml::node& node, std::string_view key) {
  return Err(ErrorCode::kInvalidArgument,
             fmt::format("{} must be a string, number, true, false or a list of strings", key),
             fmt::format("{}:{}", where, node.source().begin.line));
}

Result<Value> Convert(const toml::node& node, std::string_view key, std::string_view where) {
  if (const auto* value = node.as_boolean()) return Value(value->get());
  if (const auto* value = node.as_integer()) return Value(value->get());
  if (const auto* value = node.as_floating_point()) return Value(value->get());
  if (const auto* value = node.as_string()) return Value(value->get());
  const toml::array* array = node.as_array();
  if (array == nullptr) return WrongValue(where, node, key);
  std::vector<std::string> list;
  for (const toml::node& item : *array) {
    const auto* text = item.as_string();
    if (text == nullptr) return WrongValue(where, node, key);
    list.push_back(text->get());
  }
  return Value(std::move(list));
}

Result<std::vector<FileEntry>> Flatten(const toml::table& root, std::string_view where) {
  std::vector<FileEntry> entries;
  for (const auto& [section, node] : root) {
    const int line = static_cast<int>(node.source().begin.line);
    const toml::table* table = node.as_table();
    if (table == nullptr) {
      return Err(ErrorCode::kInvalidArgument,
                 fmt::format("{} stands outside a section; put it below one such as [sampling]", section.str()),
                 fmt::format("{}:{}", where, line));
    }
    for (const auto& [key, value] : *table) {
      ASSIGN_OR_RETURN(Value converted, Convert(value, key.str(), where));
      entries.push_back({std::string(section.str()), std::string(key.str()), std::move(converted),
                         static_cast<int>(value.source().begin.line)});
    }
  }
  return entries;
}

}  // namespace

Result<std::vector<FileEntry>> ParseConfigFile(std::string_view toml, std::string_view where) {
  if (toml.size() > kFileBytesMax) {
    return Err(ErrorCode::kInvalidArgument,
               fmt::format("a configuration file has at most {} bytes, this one has {}", kFileBytesMax, toml.size()),
               std::string(where));
  }
  RETURN_IF_ERROR(CheckDots(toml, where));
  try {
    return Flatten(toml::parse(toml), where);
  } catch (const toml::parse_error& error) {
    return Err(ErrorCode::kInvalidArgument, fmt::format("not valid TOML: {}", error.description()),
               fmt::format("{}:{}", where, error.source().begin.line));
  }
}

}  // namespace galley::options
