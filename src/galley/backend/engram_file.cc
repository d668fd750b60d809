// SPDX-License-Identifier: Apache-2.0
#include "galley/backend/engram_file.h"

#include <sys/mman.h>

#include <cstddef>
#include <cstring>

#include "galley/io/weight_reader.h"

namespace galley::backend {
namespace {

// Calls run(codes, scales) of each row.
template <typename Run>
void ForRows(const EngramGatherArgs& args, Run&& run) {
  const auto dim = static_cast<std::size_t>(args.dim);
  const std::size_t count = static_cast<std::size_t>(args.rows) * static_cast<std::size_t>(args.columns);
  for (std::size_t i = 0; i < count; ++i) {
    const auto row = static_cast<std::size_t>(args.row_numbers[i]);
    run(args.codes + row * dim, args.scales + row * (dim / 32));
  }
}

}  // namespace

void AskForRows(const EngramGatherArgs& args) {
  const auto dim = static_cast<std::size_t>(args.dim);
  const auto ask = [](const std::uint8_t* data, std::size_t bytes) {
    const std::size_t before = reinterpret_cast<std::uintptr_t>(data) % io::kReadUnit;
    (void)madvise(const_cast<std::uint8_t*>(data - before), bytes + before, MADV_WILLNEED);
  };
  ForRows(args, [&](const std::uint8_t* codes, const std::uint8_t* scales) {
    ask(codes, dim);
    ask(scales, dim / 32);
  });
}

void CopyRows(const EngramGatherArgs& args, std::uint8_t* codes, std::uint8_t* scales) {
  const auto dim = static_cast<std::size_t>(args.dim);
  ForRows(args, [&](const std::uint8_t* from_codes, const std::uint8_t* from_scales) {
    std::memcpy(codes, from_codes, dim);
    std::memcpy(scales, from_scales, dim / 32);
    codes += dim;
    scales += dim / 32;
  });
}

}  // namespace galley::backend
