// SPDX-License-Identifier: Apache-2.0
#include "galley/protocol/vectors_for_test.h"

#include <fmt/format.h>
#include <lzma.h>

#include <array>
#include <fstream>
#include <iterator>

#include "galley/base/check.h"

namespace galley::protocol {

std::string ReadVectorText(std::string_view name) {
  const std::string path = fmt::format("{}/tests/cases/recipe/{}.jsonl.xz", GALLEY_SOURCE_DIR, name);
  std::ifstream file(path, std::ios::binary);
  CHECK(file.good()) << path;
  const std::string packed((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  lzma_stream stream = LZMA_STREAM_INIT;
  CHECK(lzma_stream_decoder(&stream, UINT64_MAX, 0) == LZMA_OK);
  stream.next_in = reinterpret_cast<const std::uint8_t*>(packed.data());
  stream.avail_in = packed.size();
  std::string text;
  std::array<std::uint8_t, 1 << 16> buffer{};
  lzma_ret status = LZMA_OK;
  while (status == LZMA_OK) {
    stream.next_out = buffer.data();
    stream.avail_out = buffer.size();
    status = lzma_code(&stream, LZMA_FINISH);
    text.append(reinterpret_cast<const char*>(buffer.data()), buffer.size() - stream.avail_out);
  }
  lzma_end(&stream);
  CHECK(status == LZMA_STREAM_END) << path << " is damaged";
  return text;
}

std::vector<Json> ReadVectors(std::string_view name) {
  const std::string text = ReadVectorText(name);
  std::vector<Json> rows;
  std::string_view rest = text;
  while (!rest.empty()) {
    const std::size_t end = rest.find('\n');
    auto row = ParseJson(rest.substr(0, end), {.depth_max = 1000});
    CHECK(row.has_value()) << row.error().message;
    rows.push_back(std::move(*row));
    rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
  }
  return rows;
}

Json At(const Json& value, std::initializer_list<std::string_view> path) {
  const Json* at = &value;
  for (std::string_view key : path) {
    at = at->Find(key);
    if (at == nullptr) return {};
  }
  return *at;
}

std::string TextAt(const Json& value, std::initializer_list<std::string_view> path) {
  const Json found = At(value, path);
  const std::string* text = found.if_string();
  return text == nullptr ? std::string() : *text;
}

}  // namespace galley::protocol
