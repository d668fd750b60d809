// SPDX-License-Identifier: Apache-2.0
// Collectives between GPUs by NCCL, which is opened at run time: programs start without it, and one binary runs with
// every release since 2.18. Neither CUDA's headers nor NCCL's are needed. Streams are cudaStream_t of the rank's
// device, memory is that device's; calls return when the work is in the stream.
#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "galley/base/error.h"

namespace galley::comm {

// The library. Immutable and safe to share.
class Nccl {
 public:
  // Errors: kUnsupported (the library is not there, lacks a function, or is older than 2.18).
  [[nodiscard]] static Result<std::shared_ptr<const Nccl>> Open(const std::string& path = "libnccl.so.2");
  ~Nccl();
  Nccl(const Nccl&) = delete;
  Nccl& operator=(const Nccl&) = delete;

  // "2.28.9".
  [[nodiscard]] std::string Version() const;

  // What `calls` starts begins together: needed where one thread calls for several ranks, each of which would wait for
  // the others. What it has started begins although it fails or throws, so after a call for some ranks alone their
  // communicator is of no use. Errors: those of `calls`, kDevice.
  [[nodiscard]] Status Together(const std::function<Status()>& calls) const;

  struct Functions;
  [[nodiscard]] const Functions& functions() const { return *functions_; }
  // kDevice with what failed and NCCL's text; nothing for success.
  [[nodiscard]] Status Check(int code, const char* what) const;

 private:
  Nccl() = default;
  void* library_ = nullptr;
  std::unique_ptr<Functions> functions_;
  int version_ = 0;
};

enum class ElementType { kByte, kInt32, kInt64, kFloat, kBFloat16 };

// What the ranks of a communicator know it by: made by one of them, brought to the others.
using NcclId = std::array<char, 128>;
[[nodiscard]] Result<NcclId> MakeNcclId(const Nccl& nccl);

// One rank of a communicator. Every rank has to make the same calls in the same order. For one thread at a time.
class NcclRank {
 public:
  NcclRank(NcclRank&& other) noexcept;
  NcclRank& operator=(NcclRank&&) = delete;
  ~NcclRank();

  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int size() const { return size_; }

  // out[i] = the sum of in[i] over ranks; `out` may be `in`. The order of the sum is NCCL's, the same in every run with
  // the same ranks and settings, and not that of another number of ranks. kByte is added modulo 256.
  [[nodiscard]] Status AllReduceSum(const void* in, void* out, std::size_t count, ElementType type, void* stream) const;
  // out [size][each] = `each` elements of every rank, in the order of ranks.
  [[nodiscard]] Status AllGather(const void* in, void* out, std::size_t each, ElementType type, void* stream) const;
  // out [each] = the sum over ranks of this rank's part of in [size][each].
  [[nodiscard]] Status ReduceScatterSum(const void* in, void* out, std::size_t each, ElementType type,
                                        void* stream) const;
  // out [size][each]: part r is what rank r's in [size][each] has for this rank. `out` is not `in`.
  [[nodiscard]] Status AllToAll(const void* in, void* out, std::size_t each, ElementType type, void* stream) const;

 private:
  [[nodiscard]] const Nccl& library() const;
  friend Result<std::vector<NcclRank>> MakeLocalRanks(std::shared_ptr<const Nccl> nccl, std::span<const int> devices);
  friend Result<NcclRank> JoinRanks(std::shared_ptr<const Nccl> nccl, const NcclId& id, int rank, int size);
  NcclRank(std::shared_ptr<const Nccl> nccl, void* communicator, int rank, int size);

  std::shared_ptr<const Nccl> nccl_;
  void* communicator_;
  int rank_, size_;
};

// A rank for each of `devices`, all in this process. Errors: kInvalidArgument (none, or one twice), kDevice.
[[nodiscard]] Result<std::vector<NcclRank>> MakeLocalRanks(std::shared_ptr<const Nccl> nccl,
                                                           std::span<const int> devices);
// Rank `rank` of `size`, on the thread's current device; waits for the others. Errors: kInvalidArgument (no such rank),
// kDevice.
[[nodiscard]] Result<NcclRank> JoinRanks(std::shared_ptr<const Nccl> nccl, const NcclId& id, int rank, int size);

}  // namespace galley::comm
