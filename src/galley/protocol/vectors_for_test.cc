// SPDX-License-Identifier: Apache-2.0
#include "galley/protocol/vectors_for_test.h"

#include <fmt/format.h>
#include <lzma.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <iterator>

#include "galley/base/check.h"

namespace galley::protocol {

std::string ReadXz(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file.good()) return {};
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

std::string ReadVectorText(std::string_view name) {
  const std::string path = fmt::format("{}/tests/cases/recipe/{}.jsonl.xz", GALLEY_SOURCE_DIR, name);
  std::string text = ReadXz(path);
  CHECK(!text.empty()) << path;
  return text;
}

const text::Tokenizer* SharedTokenizer() {
  static const auto* tokenizer = [] {
    const std::string json = ReadXz(std::string(GALLEY_SHARED_DIR) + "/recipe/tokenizer.json.xz");
    if (json.empty()) return static_cast<text::Tokenizer*>(nullptr);
    auto loaded = text::Tokenizer::FromJson(json);
    CHECK(loaded.has_value()) << loaded.error().message;
    return new text::Tokenizer(std::move(*loaded));
  }();
  return tokenizer;
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

bool SameJson(const Json& a, const Json& b) {
  if (const Json::Object* members = a.if_object()) {
    if (!b.is_object() || members->size() != b.if_object()->size()) return false;
    return std::all_of(members->begin(), members->end(), [&](const Json::Member& member) {
      const Json* other = b.Find(member.key);
      return other != nullptr && SameJson(member.value, *other);
    });
  }
  if (const Json::Array* elements = a.if_array()) {
    return b.is_array() &&
           std::equal(elements->begin(), elements->end(), b.if_array()->begin(), b.if_array()->end(), SameJson);
  }
  return a == b;
}

}  // namespace galley::protocol
