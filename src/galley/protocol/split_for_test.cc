// SPDX-License-Identifier: Apache-2.0
#include "galley/protocol/split_for_test.h"

#include "galley/protocol/vectors_for_test.h"

namespace galley::protocol {
namespace {

// Index of the only text chunk, or -1.
int TextChunk(const Json& row) {
  int found = -1, index = 0;
  const Json chunks = At(row, {"chunks"});
  for (const Json& chunk : *chunks.if_array()) {
    if (chunk.Find("tokens") != nullptr) return -1;
    if (chunk.Find("text") != nullptr) found = found == -1 ? index : -2;
    ++index;
  }
  return found;
}

}  // namespace

std::vector<Json> WholeCases() {
  std::vector<Json> cases;
  for (Json row : ReadVectors("stream")) {
    if (TextChunk(row) < 0) continue;
    row.Set("file", "stream");
    cases.push_back(std::move(row));
  }
  return cases;
}

std::string WholeText(const Json& row) {
  const Json chunks = At(row, {"chunks"});
  return TextAt((*chunks.if_array())[static_cast<std::size_t>(TextChunk(row))], {"text"});
}

std::vector<std::size_t> Boundaries(const Json& row) {
  const std::string text = WholeText(row);
  std::vector<std::size_t> at;
  for (std::size_t i = 1; i < text.size(); ++i)
    if ((static_cast<unsigned char>(text[i]) & 0xC0) != 0x80) at.push_back(i);
  return at;
}

Json CutAt(const Json& row, std::size_t at) {
  Json cut = row;
  Json::Array& chunks = *cut.Find("chunks")->if_array();
  const auto index = static_cast<std::ptrdiff_t>(TextChunk(row));
  Json& first = chunks[static_cast<std::size_t>(index)];
  const std::string text = TextAt(first, {"text"});
  Json second = Json::MakeObject({{"text", text.substr(at)}, {"n", 0}});
  first.Set("text", text.substr(0, at));
  chunks.insert(chunks.begin() + index + 1, std::move(second));
  return cut;
}

}  // namespace galley::protocol
