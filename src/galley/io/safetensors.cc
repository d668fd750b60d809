// SPDX-License-Identifier: Apache-2.0
#include "galley/io/safetensors.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <set>
#include <tuple>

#include "galley/io/file.h"
#include "galley/io/json.h"
#include "galley/io/text.h"

namespace galley::io {
namespace {

struct DTypeBits {
  std::string_view name;
  int bits;
};
constexpr DTypeBits kDTypes[] = {
    {"F32", 32}, {"BF16", 16},       {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"I8", 8},      {"U8", 8},
    {"BOOL", 8}, {"F16", 16},        {"I16", 16},    {"U16", 16},    {"I32", 32},    {"U32", 32},
    {"I64", 64}, {"U64", 64},        {"F64", 64},    {"C64", 64},    {"F8_E5M2", 8}, {"F8_E4M3FNUZ", 8},
    {"F4", 4},   {"F8_E5M2FNUZ", 8}, {"F6_E2M3", 6}, {"F6_E3M2", 6},
};

constexpr std::size_t kPrefix = 8;  // bytes of the header's length
constexpr JsonLimits kHeaderLimits = {.max_bytes = kSafetensorsHeaderMax, .max_depth = 8, .max_values = 4'000'000};

tl::unexpected<Error> Corrupt(std::string message, std::string_view where) {
  return Err(ErrorCode::kCorrupt, std::move(message), std::string(where));
}

// Bytes of a tensor, or nothing when a dimension is negative, the product overflows or the elements do not fill bytes.
std::optional<std::uint64_t> TensorBytes(std::span<const std::int64_t> shape, int bits) {
  std::int64_t elements = 1;
  bool empty = false;
  for (const std::int64_t dim : shape) {
    if (dim < 0) return std::nullopt;
    empty = empty || dim == 0;
    if (__builtin_mul_overflow(elements, std::max<std::int64_t>(dim, 1), &elements)) return std::nullopt;
  }
  std::int64_t total_bits = 0;
  if (__builtin_mul_overflow(elements, bits, &total_bits) || total_bits % 8 != 0) return std::nullopt;
  return empty ? 0 : static_cast<std::uint64_t>(total_bits / 8);
}

// Array of integers >= 0, or nothing.
std::optional<std::vector<std::int64_t>> Integers(const Json* json) {
  const Json::Array* array = json == nullptr ? nullptr : json->array();
  if (array == nullptr) return std::nullopt;
  std::vector<std::int64_t> values;
  values.reserve(array->size());
  for (const Json& element : *array) {
    const std::int64_t* value = element.integer();
    if (value == nullptr || *value < 0) return std::nullopt;
    values.push_back(*value);
  }
  return values;
}

std::string ShowMember(const Json& object, std::string_view key) {
  const Json* member = object.Find(key);
  return member == nullptr ? fmt::format("no {}", key) : fmt::format("{} {}", key, member->Show());
}

// One member of the header. `data_begin` is where the tensors' bytes start, `file_size` where they end.
Result<SafetensorsEntry> ParseEntry(const std::string& name, const Json& json, std::uint64_t data_begin,
                                    std::uint64_t file_size, std::string_view where) {
  const auto corrupt = [&](const std::string& message) {
    return Corrupt(fmt::format("tensor \"{}\": {}", Printable(name), message), where);
  };
  if (json.object() == nullptr) return corrupt("its header entry is not an object but " + json.Show());
  SafetensorsEntry entry{name, {}, {}, 0, 0};
  const Json* dtype = json.Find("dtype");
  if (dtype == nullptr || dtype->string() == nullptr) return corrupt(ShowMember(json, "dtype") + ", not a name");
  const std::optional<int> bits = SafetensorsBits(*dtype->string());
  if (!bits) return corrupt("unknown dtype " + dtype->Show());
  entry.dtype = *dtype->string();
  std::optional<std::vector<std::int64_t>> shape = Integers(json.Find("shape"));
  if (!shape) return corrupt(ShowMember(json, "shape") + ", not an array of integers from 0 to 2^63 - 1");
  constexpr std::size_t kDimensionsMax = 64;
  if (shape->size() > kDimensionsMax) {
    return corrupt(fmt::format("a shape of {} dimensions; the limit is {}", shape->size(), kDimensionsMax));
  }
  entry.shape = std::move(*shape);
  const std::optional<std::uint64_t> bytes = TensorBytes(entry.shape, *bits);
  if (!bytes) return corrupt(fmt::format("{} of {} has no representable size", ShowMember(json, "shape"), entry.dtype));
  entry.bytes = *bytes;
  const std::optional<std::vector<std::int64_t>> offsets = Integers(json.Find("data_offsets"));
  if (!offsets || offsets->size() != 2) {
    return corrupt(ShowMember(json, "data_offsets") + ", not two integers from 0 to 2^63 - 1");
  }
  const auto begin = static_cast<std::uint64_t>((*offsets)[0]);
  const auto end = static_cast<std::uint64_t>((*offsets)[1]);
  const std::uint64_t room = file_size - data_begin;
  if (begin > end || end > room) {
    return corrupt(fmt::format("data_offsets [{}, {}] {}; the file has {} bytes of data", begin, end,
                               begin > end ? "are reversed" : "reach beyond the end of the file", room));
  }
  if (end - begin != entry.bytes) {
    return corrupt(fmt::format("data_offsets [{}, {}] hold {} bytes, but {} of {} needs {}", begin, end, end - begin,
                               ShowMember(json, "shape"), entry.dtype, entry.bytes));
  }
  entry.offset = data_begin + begin;
  return entry;
}

Status ParseMetadata(const Json& json, SafetensorsHeader& header, std::string_view where) {
  if (json.object() == nullptr) return Corrupt("__metadata__ is not an object but " + json.Show(), where);
  for (const auto& [key, value] : *json.object()) {
    if (value.string() == nullptr) {
      return Corrupt(fmt::format("__metadata__ \"{}\" is not a string but {}", Printable(key), value.Show()), where);
    }
    header.metadata.emplace_back(key, *value.string());
  }
  return {};
}

// Sorts by offset and checks that the tensors fill the data without overlap or hole. Tensors without elements lie
// between others and take no part.
Status CheckCoverage(SafetensorsHeader& header, std::uint64_t data_begin, std::uint64_t file_size,
                     std::string_view where) {
  std::sort(header.tensors.begin(), header.tensors.end(), [](const SafetensorsEntry& a, const SafetensorsEntry& b) {
    return std::tie(a.offset, a.bytes, a.name) < std::tie(b.offset, b.bytes, b.name);
  });
  std::uint64_t position = data_begin;
  std::string_view previous = "the header";
  for (const SafetensorsEntry& entry : header.tensors) {
    if (entry.bytes == 0) continue;
    if (entry.offset < position) {
      return Corrupt(fmt::format("tensors \"{}\" and \"{}\" overlap: the second starts {} bytes before the end of the "
                                 "first",
                                 Printable(previous), Printable(entry.name), position - entry.offset),
                     where);
    }
    if (entry.offset > position) {
      return Corrupt(fmt::format("{} bytes between \"{}\" and tensor \"{}\" belong to no tensor",
                                 entry.offset - position, Printable(previous), Printable(entry.name)),
                     where);
    }
    position = entry.offset + entry.bytes;
    previous = entry.name;
  }
  if (position != file_size) {
    return Corrupt(fmt::format("{} bytes after \"{}\" belong to no tensor", file_size - position, Printable(previous)),
                   where);
  }
  return {};
}

// The header's text. The first eight bytes are its length, little-endian.
Result<std::string_view> HeaderText(std::span<const std::byte> file, std::string_view where) {
  if (file.size() < kPrefix) {
    return Corrupt(
        fmt::format("{} bytes long, too short for a safetensors file: it is empty or was cut off", file.size()), where);
  }
  std::uint64_t length = 0;
  for (std::size_t i = kPrefix; i-- > 0;) length = length << 8 | std::to_integer<std::uint64_t>(file[i]);
  if (length > kSafetensorsHeaderMax) {
    return Corrupt(fmt::format("states a header of {} bytes; the limit is {}. Is this a safetensors file?", length,
                               kSafetensorsHeaderMax),
                   where);
  }
  if (length > file.size() - kPrefix) {
    return Corrupt(fmt::format("states a header of {} bytes, but the file is only {} bytes long: it was cut off",
                               length, file.size()),
                   where);
  }
  return std::string_view(reinterpret_cast<const char*>(file.data()) + kPrefix, static_cast<std::size_t>(length));
}

}  // namespace

std::optional<int> SafetensorsBits(std::string_view dtype) {
  for (const DTypeBits& row : kDTypes) {
    if (row.name == dtype) return row.bits;
  }
  return std::nullopt;
}

Result<SafetensorsHeader> ParseSafetensors(std::span<const std::byte> file, std::string_view where) {
  ASSIGN_OR_RETURN(const std::string_view text, HeaderText(file, where));
  Result<Json> json = ParseJson(text, where, kHeaderLimits);
  if (!json) {
    Error error = json.error();
    error.message = "safetensors header: " + error.message;
    return Err(std::move(error));
  }
  if (json->object() == nullptr) return Corrupt("safetensors header: not a JSON object but " + json->Show(), where);
  SafetensorsHeader header;
  const std::uint64_t data_begin = kPrefix + text.size();
  header.tensors.reserve(json->object()->size());
  for (const auto& [name, value] : *json->object()) {
    if (name == "__metadata__") {
      RETURN_IF_ERROR(ParseMetadata(value, header, where));
      continue;
    }
    ASSIGN_OR_RETURN(SafetensorsEntry entry, ParseEntry(name, value, data_begin, file.size(), where));
    header.tensors.push_back(std::move(entry));
  }
  RETURN_IF_ERROR(CheckCoverage(header, data_begin, file.size(), where));
  return header;
}

namespace {

bool IsUtf8(std::string_view text) {
  while (!text.empty()) {
    const std::size_t length = Utf8SequenceLength(text);
    if (length == 0) return false;
    text.remove_prefix(length);
  }
  return true;
}

Status CheckTensors(std::span<const SafetensorsTensor> tensors) {
  std::set<std::string_view> names;
  for (const SafetensorsTensor& tensor : tensors) {
    const auto invalid = [&](std::string message) {
      return Err(ErrorCode::kInvalidArgument, std::move(message), "tensor \"" + Printable(tensor.name) + '"');
    };
    if (!IsUtf8(tensor.name)) return invalid("the name is not UTF-8");
    if (tensor.name == "__metadata__") return invalid("the format reserves this name");
    if (!names.insert(tensor.name).second) return invalid("the name appears twice");
    const std::optional<int> bits = SafetensorsBits(tensor.dtype);
    if (!bits) return invalid("unknown dtype \"" + Printable(tensor.dtype) + '"');
    const std::optional<std::uint64_t> bytes = TensorBytes(tensor.shape, *bits);
    if (!bytes || *bytes != tensor.data.size()) {
      return invalid(
          fmt::format("{} bytes of data do not fit shape {} of {}", tensor.data.size(), tensor.shape, tensor.dtype));
    }
  }
  return {};
}

std::string HeaderJson(std::span<const SafetensorsTensor* const> order,
                       std::span<const std::pair<std::string, std::string>> metadata) {
  std::string json = "{";
  const auto separate = [&json] {
    if (json.back() != '{') json += ',';
  };
  if (!metadata.empty()) {
    json += "\"__metadata__\":{";
    for (const auto& [key, value] : metadata) {
      separate();
      json += JsonQuote(key) + ':' + JsonQuote(value);
    }
    json += '}';
  }
  std::uint64_t begin = 0;
  for (const SafetensorsTensor* tensor : order) {
    separate();
    const std::uint64_t end = begin + tensor->data.size();
    json += fmt::format(R"({}:{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})", JsonQuote(tensor->name),
                        tensor->dtype, fmt::join(tensor->shape, ","), begin, end);
    begin = end;
  }
  json += '}';
  json.append((8 - json.size() % 8) % 8, ' ');
  return json;
}

}  // namespace

Status WriteSafetensors(const std::filesystem::path& path, std::span<const SafetensorsTensor> tensors,
                        std::span<const std::pair<std::string, std::string>> metadata,
                        const std::function<void(std::span<const std::byte>)>& written) {
  RETURN_IF_ERROR(CheckTensors(tensors));
  std::vector<const SafetensorsTensor*> order;
  order.reserve(tensors.size());
  for (const SafetensorsTensor& tensor : tensors) order.push_back(&tensor);
  // Widest elements first keeps every tensor aligned: a span of wider elements ends at a multiple of narrower ones.
  std::stable_sort(order.begin(), order.end(), [](const SafetensorsTensor* a, const SafetensorsTensor* b) {
    return *SafetensorsBits(a->dtype) > *SafetensorsBits(b->dtype);
  });
  const std::string header = HeaderJson(order, metadata);
  std::array<std::byte, kPrefix> prefix;
  for (std::size_t i = 0; i < kPrefix; ++i) prefix[i] = static_cast<std::byte>(header.size() >> (8 * i));
  return WriteFileAtomic(path, [&](const Sink& sink) -> Status {
    RETURN_IF_ERROR(sink(prefix));
    RETURN_IF_ERROR(sink(std::as_bytes(std::span(header))));
    for (const SafetensorsTensor* tensor : order) {
      RETURN_IF_ERROR(sink(tensor->data));
      if (written) written(tensor->data);
    }
    return {};
  });
}

}  // namespace galley::io
