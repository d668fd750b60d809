// SPDX-License-Identifier: Apache-2.0
// Bytes at an address that is a multiple of 4096: of a vector, a cache line and a unit of direct reads. A value that
// owns its memory, which is not initialised.
#pragma once

#include <cstddef>
#include <memory>
#include <new>

namespace galley {

class AlignedBytes {
 public:
  explicit AlignedBytes(std::size_t bytes = 0)
      : data_(bytes == 0 ? nullptr : static_cast<std::byte*>(::operator new[](bytes, std::align_val_t{kAlignment}))),
        size_(bytes) {}
  [[nodiscard]] std::byte* data() const { return data_.get(); }
  [[nodiscard]] std::size_t size() const { return size_; }

 private:
  static constexpr std::size_t kAlignment = 4096;
  struct Free {
    void operator()(std::byte* p) const { ::operator delete[](p, std::align_val_t{kAlignment}); }
  };
  std::unique_ptr<std::byte[], Free> data_;
  std::size_t size_;
};

}  // namespace galley
