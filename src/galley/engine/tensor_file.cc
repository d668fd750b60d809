// SPDX-License-Identifier: Apache-2.0
// Safetensors files in and out of tensors that own their bytes.
#include <fmt/core.h>

#include <cstring>

#include "galley/base/check.h"
#include "galley/engine/dump.h"
#include "galley/io/mapped_file.h"
#include "galley/io/safetensors.h"

namespace galley::engine {

Status WriteTensors(const std::filesystem::path& path, const TensorMap& tensors) {
  std::vector<io::SafetensorsTensor> list;
  for (const auto& [name, tensor] : tensors) {
    list.push_back({name, std::string(Info(tensor.dtype).safetensors_name), tensor.shape, tensor.data});
  }
  return io::WriteSafetensors(path, list);
}

Result<TensorMap> ReadTensors(const std::filesystem::path& path) {
  ASSIGN_OR_RETURN(const io::MappedFile file, io::MappedFile::Open(path));
  ASSIGN_OR_RETURN(const io::SafetensorsHeader header, io::ParseSafetensors(file.bytes(), path.string()));
  TensorMap tensors;
  for (const io::SafetensorsEntry& entry : header.tensors) {
    const std::optional<DType> dtype = DTypeFromSafetensors(entry.dtype);
    if (!dtype) {
      return Err(ErrorCode::kUnsupported,
                 fmt::format("tensor {} has dtype {}, which this tool does not read", entry.name, entry.dtype),
                 path.string());
    }
    const auto bytes = file.bytes().subspan(entry.offset, entry.bytes);
    tensors[entry.name] = {*dtype, entry.shape, std::vector<std::byte>(bytes.begin(), bytes.end())};
  }
  return tensors;
}

std::vector<std::int32_t> Int32Values(const HostTensor& tensor) {
  CHECK(tensor.dtype == DType::kI32) << Info(tensor.dtype).safetensors_name << " read as I32";
  std::vector<std::int32_t> values(tensor.data.size() / sizeof(std::int32_t));
  if (!values.empty()) std::memcpy(values.data(), tensor.data.data(), tensor.data.size());
  return values;
}

}  // namespace galley::engine
