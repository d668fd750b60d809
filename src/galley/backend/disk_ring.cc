// SPDX-License-Identifier: Apache-2.0
#include "galley/backend/disk_ring.h"

#include <linux/io_uring.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <thread>

#include "galley/base/check.h"

namespace galley::backend {
namespace {

constexpr auto kWordBytes = static_cast<std::uint32_t>(sizeof(std::uint32_t));

// Part of a mapped ring, as the kernel lays it out.
std::atomic_ref<std::uint32_t> Word(void* ring, std::uint32_t at) {
  return std::atomic_ref(*reinterpret_cast<std::uint32_t*>(static_cast<std::byte*>(ring) + at));
}

// Memory shared with the kernel.
class Mapping {
 public:
  Mapping(int ring, std::size_t bytes, off_t part)
      : data_(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, ring, part)), bytes_(bytes) {}
  ~Mapping() {
    if (data_ != MAP_FAILED) munmap(data_, bytes_);
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  [[nodiscard]] bool mapped() const { return data_ != MAP_FAILED; }
  [[nodiscard]] void* data() const { return data_; }

 private:
  void* data_;
  std::size_t bytes_;
};

}  // namespace

struct DiskRing::Memory {
  Memory(int ring, const io_uring_params& p)
      : descriptor(ring),
        params(p),
        requests(ring, p.sq_off.array + p.sq_entries * sizeof(std::uint32_t), IORING_OFF_SQ_RING),
        results(ring, p.cq_off.cqes + p.cq_entries * sizeof(io_uring_cqe), IORING_OFF_CQ_RING),
        entries(ring, p.sq_entries * sizeof(io_uring_sqe), IORING_OFF_SQES) {}
  ~Memory() { close(descriptor); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  int descriptor;
  io_uring_params params;
  Mapping requests, results, entries;
};

DiskRing::DiskRing() = default;
DiskRing::~DiskRing() = default;

std::unique_ptr<DiskRing> DiskRing::Create(unsigned depth) {
  io_uring_params params = {};
  const long descriptor = syscall(SYS_io_uring_setup, depth, &params);
  if (descriptor < 0) return nullptr;
  std::unique_ptr<DiskRing> ring(new DiskRing());
  ring->memory_ = std::make_unique<Memory>(static_cast<int>(descriptor), params);
  const Memory& m = *ring->memory_;
  if (!m.requests.mapped() || !m.results.mapped() || !m.entries.mapped()) return nullptr;
  // A filter may let it be made and refuse its use: one request that does nothing tells.
  io_uring_sqe nothing = {};
  nothing.opcode = IORING_OP_NOP;
  ring->Add(&nothing);
  if (!ring->Enter()) return nullptr;
  const std::optional<Done> done = ring->Take();
  return done && done->result == 0 ? std::move(ring) : nullptr;
}

void DiskRing::Push(int descriptor, void* to, std::uint32_t bytes, off_t offset, std::uint64_t tag) {
  io_uring_sqe entry = {};
  entry.opcode = IORING_OP_READ;
  entry.fd = descriptor;
  entry.off = static_cast<std::uint64_t>(offset);
  entry.addr = reinterpret_cast<std::uint64_t>(to);
  entry.len = bytes;
  entry.user_data = tag;
  Add(&entry);
}

void DiskRing::Add(const void* entry) {
  const io_sqring_offsets& at = memory_->params.sq_off;
  void* ring = memory_->requests.data();
  CHECK(pushed_ < memory_->params.sq_entries) << pushed_ << " reads pushed at once";
  const std::uint32_t tail = Word(ring, at.tail).load(std::memory_order_relaxed);
  const std::uint32_t slot = tail & Word(ring, at.ring_mask).load(std::memory_order_relaxed);
  std::memcpy(static_cast<io_uring_sqe*>(memory_->entries.data()) + slot, entry, sizeof(io_uring_sqe));
  Word(ring, at.array + slot * kWordBytes).store(slot, std::memory_order_relaxed);
  Word(ring, at.tail).store(tail + 1, std::memory_order_release);
  ++pushed_;
}

bool DiskRing::Enter() {
  while (true) {
    const long taken =
        syscall(SYS_io_uring_enter, memory_->descriptor, pushed_, 1u, IORING_ENTER_GETEVENTS, nullptr, std::size_t{0});
    if (taken >= 0) {
      pushed_ -= static_cast<unsigned>(taken);
      if (pushed_ == 0) return true;
    } else if (errno != EINTR && errno != EAGAIN && errno != EBUSY) {
      return false;
    } else {
      std::this_thread::yield();
    }
  }
}

void DiskRing::Submit() {
  CHECK(Enter()) << "io_uring_enter: error " << errno << " after it has worked";
}

std::optional<DiskRing::Done> DiskRing::Take() {
  const io_cqring_offsets& at = memory_->params.cq_off;
  void* ring = memory_->results.data();
  const std::uint32_t head = Word(ring, at.head).load(std::memory_order_relaxed);
  if (head == Word(ring, at.tail).load(std::memory_order_acquire)) return std::nullopt;
  const std::uint32_t slot = head & Word(ring, at.ring_mask).load(std::memory_order_relaxed);
  const auto* results = reinterpret_cast<const io_uring_cqe*>(static_cast<std::byte*>(ring) + at.cqes);
  const Done done = {results[slot].user_data, results[slot].res};
  Word(ring, at.head).store(head + 1, std::memory_order_release);
  return done;
}

}  // namespace galley::backend
