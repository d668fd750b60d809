// SPDX-License-Identifier: Apache-2.0
// Reads of files that one thread keeps in flight: Linux's io_uring, by its system calls. Owned and used by one thread;
// no reads may be in flight when it goes. Bytes.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

namespace galley::backend {

class DiskRing {
 public:
  struct Done {
    std::uint64_t tag;
    std::int32_t result;  // bytes read, or minus an errno
  };

  // Room for `depth` reads at a time. Nothing where the kernel has no io_uring or does not let this process use it, as
  // in most containers.
  [[nodiscard]] static std::unique_ptr<DiskRing> Create(unsigned depth);
  ~DiskRing();
  DiskRing(const DiskRing&) = delete;
  DiskRing& operator=(const DiskRing&) = delete;

  // Adds a read, which begins with the next Submit. At most `depth` are in flight.
  void Push(int descriptor, void* to, std::uint32_t bytes, off_t offset, std::uint64_t tag);
  // Begins what was pushed and waits for one read to end.
  void Submit();
  // The next read that has ended; nothing when there is none.
  [[nodiscard]] std::optional<Done> Take();

 private:
  struct Memory;
  DiskRing();
  [[nodiscard]] bool Enter();
  void Add(const void* entry);
  std::unique_ptr<Memory> memory_;
  unsigned pushed_ = 0;  // since Submit
};

}  // namespace galley::backend
