// SPDX-License-Identifier: Apache-2.0
#include "galley/io/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "galley/io/mapped_file.h"
#include "galley/io/test_files.h"

namespace galley::io {
namespace {

using ::testing::HasSubstr;

Result<SafetensorsHeader> Parse(std::string_view bytes) {
  return ParseSafetensors(std::as_bytes(std::span(bytes)), "file");
}

TEST(Safetensors, ReadsEntriesInOffsetOrder) {
  const std::string header =
      R"({"__metadata__":{"format":"pt"},"b":{"dtype":"F32","shape":[2],"data_offsets":[6,14]},)"
      R"("a":{"dtype":"BF16","shape":[1,3],"data_offsets":[0,6]},"s":{"dtype":"I8","shape":[],"data_offsets":[14,15]}})";
  const Result<SafetensorsHeader> parsed = Parse(SafetensorsBytes(header, 15));
  ASSERT_TRUE(parsed) << parsed.error().ToString();
  ASSERT_EQ(parsed->tensors.size(), 3u);
  EXPECT_EQ(parsed->tensors[0].name, "a");
  EXPECT_EQ(parsed->tensors[0].shape, (std::vector<std::int64_t>{1, 3}));
  EXPECT_EQ(parsed->tensors[0].bytes, 6u);  // 3 elements of 2 bytes
  EXPECT_EQ(parsed->tensors[1].offset, 8 + header.size() + 6);
  EXPECT_EQ(parsed->tensors[2].bytes, 1u);  // a scalar has one element
  EXPECT_EQ(parsed->metadata, (std::vector<std::pair<std::string, std::string>>{{"format", "pt"}}));
}

TEST(Safetensors, AcceptsWhatTheFormatAllows) {
  for (
      const auto& [header, bytes] : std::initializer_list<std::pair<std::string_view, std::size_t>>{
          {"{}", 0},
          {"{}      ", 0},                                                     // padded
          {R"({"a":{"dtype":"F32","shape":[0,7],"data_offsets":[0,0]}})", 0},  // without elements
          {R"({"a":{"dtype":"F4","shape":[4],"data_offsets":[0,2]}})", 2},     // two elements a byte
          {R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"e":{"dtype":"F32","shape":[0],"data_offsets":[1,1]}})",
           2},
          {R"({"größe":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"note":null}})", 1},
      }) {
    const Result<SafetensorsHeader> parsed = Parse(SafetensorsBytes(header, bytes));
    EXPECT_TRUE(parsed) << header << ": " << parsed.error().ToString();
  }
}

struct HostileHeader {
  std::string_view header;
  std::size_t data_bytes;
  std::string_view message;  // part of the error
};

TEST(Safetensors, RefusesHostileHeaders) {
  const HostileHeader cases[] = {
      {"", 0, "safetensors header: not valid JSON near byte"},
      {"[]", 0, "not a JSON object but []"},
      {R"({"a":1})", 0, "not an object but 1"},
      {R"({"a":{}})", 0, "no dtype"},
      {R"({"a":{"dtype":5,"shape":[],"data_offsets":[0,1]}})", 1, "dtype 5, not a name"},
      {R"({"a":{"dtype":"F99","shape":[],"data_offsets":[0,1]}})", 1, "unknown dtype \"F99\""},
      {R"({"a":{"dtype":"U8","data_offsets":[0,1]}})", 1, "no shape"},
      {R"({"a":{"dtype":"U8","shape":[-1],"data_offsets":[0,1]}})", 1, "shape [-1], not an array"},
      {R"({"a":{"dtype":"U8","shape":[1.5],"data_offsets":[0,1]}})", 1, "shape [1.5], not an array"},
      {R"({"a":{"dtype":"U8","shape":["1"],"data_offsets":[0,1]}})", 1, "not an array"},
      {R"({"a":{"dtype":"U8","shape":{"0":1},"data_offsets":[0,1]}})", 1, "not an array"},
      {R"({"a":{"dtype":"U8","shape":[1e300],"data_offsets":[0,1]}})", 1, "not an array"},
      {R"({"a":{"dtype":"U8","shape":[18446744073709551615],"data_offsets":[0,1]}})", 1, "not an array"},
      // 2^32 x 2^32 elements; the product is 0 modulo 2^64, which would agree with no data.
      {R"({"a":{"dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,0]}})", 0, "no representable size"},
      // 2^61 elements of 32 bits overflow only in bits.
      {R"({"a":{"dtype":"F32","shape":[2305843009213693952],"data_offsets":[0,0]}})", 0, "no representable size"},
      {R"({"a":{"dtype":"U8","shape":[0,4294967296,4294967296],"data_offsets":[0,0]}})", 0, "no representable size"},
      {R"({"a":{"dtype":"F4","shape":[3],"data_offsets":[0,1]}})", 1, "no representable size"},  // 12 bits
      {R"({"a":{"dtype":"U8","shape":[1]}})", 1, "no data_offsets"},
      {R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0]}})", 1, "not two integers"},
      {R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1,2]}})", 1, "not two integers"},
      {R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[-1,0]}})", 1, "not two integers"},
      {R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[1,0]}})", 1, "are reversed"},
      {R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})", 1, "reach beyond the end of the file"},
      {R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[9223372036854775806,9223372036854775807]}})", 1,
       "reach beyond the end of the file"},
      {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", 4, "hold 4 bytes, but shape [2] of F32 needs 8"},
      {R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})",
       3, "\"a\" and \"b\" overlap: the second starts 1 bytes before the end of the first"},
      {R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})",
       2, "overlap"},
      {R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"b":{"dtype":"U8","shape":[1],"data_offsets":[2,3]}})",
       3, "1 bytes between \"a\" and tensor \"b\" belong to no tensor"},
      {R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})", 2, "1 bytes between \"the header\""},
      {R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 3, "2 bytes after \"a\" belong to no tensor"},
      {"{}", 1, "1 bytes after \"the header\""},
      {R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
       2, "the key \"a\" appears twice"},
      {"{\"a\xFF\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1, "not valid JSON near byte"},
      {"{\"\xC0\x80\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1, "not valid JSON near byte"},
      {R"({"__metadata__":[]})", 0, "__metadata__ is not an object"},
      {R"({"__metadata__":{"k":1}})", 0, "__metadata__ \"k\" is not a string but 1"},
      {R"({"a":{"dtype":"U8","shape":[[[[[[[[[1]]]]]]]]],"data_offsets":[0,1]}})", 1, "nested deeper than 8"},
  };
  for (const HostileHeader& c : cases) {
    const Result<SafetensorsHeader> parsed = Parse(SafetensorsBytes(c.header, c.data_bytes));
    ASSERT_FALSE(parsed) << c.header;
    EXPECT_THAT(parsed.error().message, HasSubstr(std::string(c.message))) << c.header;
    EXPECT_EQ(parsed.error().where, "file");
  }
  std::string dimensions = "1";
  for (int i = 1; i < 65; ++i) dimensions += ",1";
  const std::string header = R"({"a":{"dtype":"U8","shape":[)" + dimensions + R"(],"data_offsets":[0,1]}})";
  EXPECT_THAT(Parse(SafetensorsBytes(header, 1)).error().message,
              HasSubstr("a shape of 65 dimensions; the limit is 64"));
}

TEST(Safetensors, RefusesLyingLengthsAndCutFiles) {
  const std::string whole = SafetensorsBytes(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})", 4);
  ASSERT_TRUE(Parse(whole));
  // Every shorter file is an error: a tensor or the header is then cut.
  for (std::size_t size = 0; size < whole.size(); ++size) {
    EXPECT_FALSE(Parse(std::string_view(whole).substr(0, size))) << size << " of " << whole.size() << " bytes";
  }
  const std::string rest = whole.substr(8);
  struct Case {
    std::uint64_t length;
    std::string_view message;
  };
  for (const Case& c : {Case{rest.size() + 1, "it was cut off"}, Case{100'000'000, "it was cut off"},
                        Case{100'000'001, "the limit is 100000000"}, Case{100'000'000'000, "the limit is 100000000"},
                        Case{~std::uint64_t{0}, "the limit is 100000000"},
                        Case{~std::uint64_t{0} - 7, "the limit is 100000000"}, Case{0, "not valid JSON"}}) {
    const Result<SafetensorsHeader> parsed = Parse(LengthPrefix(c.length) + rest);
    ASSERT_FALSE(parsed) << c.length;
    EXPECT_THAT(parsed.error().message, HasSubstr(std::string(c.message))) << c.length;
  }
  EXPECT_THAT(Parse("").error().message, HasSubstr("0 bytes long, too short"));
}

std::span<const std::byte> Bytes(std::string_view text) {
  return std::as_bytes(std::span(text));
}

TEST(WriteSafetensors, ReadsBackAlignedAndInOrder) {
  const TempDir dir;
  const SafetensorsTensor tensors[] = {{"bytes", "I8", {3}, Bytes("abc")},
                                       {"x \"quoted\"", "BF16", {2, 1}, Bytes("1234")},
                                       {"none", "F32", {0}, {}},
                                       {"wide", "F32", {}, Bytes("wxyz")},
                                       {"more", "BF16", {1}, Bytes("56")}};
  const std::pair<std::string, std::string> metadata[] = {{"prompt", "line\nbreak"}};
  ASSERT_TRUE(WriteSafetensors(dir / "out.safetensors", tensors, metadata));
  const Result<MappedFile> file = MappedFile::Open(dir / "out.safetensors");
  const Result<SafetensorsHeader> parsed = ParseSafetensors(file->bytes(), "file");
  ASSERT_TRUE(parsed) << parsed.error().ToString();
  EXPECT_EQ(parsed->metadata[0].second, "line\nbreak");
  std::vector<std::string> order;
  for (const SafetensorsEntry& entry : parsed->tensors) {
    order.push_back(entry.name);
    EXPECT_EQ(entry.offset % static_cast<std::uint64_t>(*SafetensorsBits(entry.dtype) / 8), 0u) << entry.name;
    for (const SafetensorsTensor& tensor : tensors) {
      if (tensor.name != entry.name || tensor.data.empty()) continue;
      EXPECT_EQ(tensor.shape, entry.shape);
      EXPECT_EQ(std::memcmp(file->bytes().data() + entry.offset, tensor.data.data(), tensor.data.size()), 0);
    }
  }
  EXPECT_EQ(order, (std::vector<std::string>{"none", "wide", "x \"quoted\"", "more", "bytes"}));
  EXPECT_EQ(parsed->tensors[0].offset % 8, 0u);
}

TEST(WriteSafetensors, RefusesWhatItCouldNotReadBack) {
  const TempDir dir;
  const auto write = [&](const SafetensorsTensor& a, const SafetensorsTensor& b) {
    const SafetensorsTensor tensors[] = {a, b};
    return WriteSafetensors(dir / "out", tensors);
  };
  const SafetensorsTensor good{"good", "U8", {1}, Bytes("x")};
  EXPECT_THAT(write(good, good).error().message, HasSubstr("twice"));
  EXPECT_THAT(write(good, {"\xFF", "U8", {1}, Bytes("x")}).error().message, HasSubstr("not UTF-8"));
  EXPECT_THAT(write(good, {"a", "X8", {1}, Bytes("x")}).error().message, HasSubstr("unknown dtype"));
  EXPECT_THAT(write(good, {"a", "F32", {1}, Bytes("x")}).error().message,
              HasSubstr("1 bytes of data do not fit shape [1] of F32"));
  EXPECT_THAT(write(good, {"a", "U8", {-1}, Bytes("x")}).error().message, HasSubstr("do not fit"));
  EXPECT_THAT(write(good, {"__metadata__", "U8", {1}, Bytes("x")}).error().message, HasSubstr("reserves"));
  EXPECT_FALSE(std::filesystem::exists(dir / "out"));
}

}  // namespace
}  // namespace galley::io
