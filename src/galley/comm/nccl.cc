// SPDX-License-Identifier: Apache-2.0
#include "galley/comm/nccl.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "galley/base/check.h"

namespace galley::comm {
namespace {

constexpr int kOldestVersion = 21800, kSuccess = 0, kSum = 0;

struct Element {
  int code;  // NCCL's number of the type
  std::size_t bytes;
};
// By ElementType.
constexpr Element kElements[] = {{1, 1}, {2, 4}, {4, 8}, {7, 4}, {9, 2}};

const Element& Of(ElementType type) {
  return kElements[static_cast<std::size_t>(type)];
}

// NCCL's ncclUniqueId, which goes by value.
struct Id {
  NcclId bytes;
};

}  // namespace

struct Nccl::Functions {
  int (*get_version)(int*) = nullptr;
  const char* (*error_text)(int) = nullptr;
  int (*group_start)() = nullptr;
  int (*group_end)() = nullptr;
  int (*get_id)(Id*) = nullptr;
  int (*init_all)(void**, int, const int*) = nullptr;
  int (*init_rank)(void**, int, Id, int) = nullptr;
  int (*destroy)(void*) = nullptr;
  int (*all_reduce)(const void*, void*, std::size_t, int, int, void*, void*) = nullptr;
  int (*all_gather)(const void*, void*, std::size_t, int, void*, void*) = nullptr;
  int (*reduce_scatter)(const void*, void*, std::size_t, int, int, void*, void*) = nullptr;
  int (*send)(const void*, std::size_t, int, int, void*, void*) = nullptr;
  int (*receive)(void*, std::size_t, int, int, void*, void*) = nullptr;
};

Result<std::shared_ptr<const Nccl>> Nccl::Open(const std::string& path) {
  if (path.empty() || path.find('\0') != std::string::npos)
    return Err(ErrorCode::kUnsupported, "the name of NCCL's library is empty or has a zero in it; name a file");
  std::shared_ptr<Nccl> nccl(new Nccl);
  // Never unloaded: it has threads that end when they like.
  nccl->library_ = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (nccl->library_ == nullptr) {
    const char* reason = dlerror();
    return Err(ErrorCode::kUnsupported,
               fmt::format("NCCL cannot be opened ({}); install it, or put its folder into LD_LIBRARY_PATH",
                           reason != nullptr ? reason : "no reason given"),
               path);
  }
  nccl->functions_ = std::make_unique<Functions>();
  Functions& f = *nccl->functions_;
  std::string missing;
  const auto find = [&]<typename F>(F& function, const char* name) {
    function = reinterpret_cast<F>(dlsym(nccl->library_, name));
    if (function == nullptr) missing += fmt::format("{}{}", missing.empty() ? "" : ", ", name);
  };
  find(f.get_version, "ncclGetVersion");
  find(f.error_text, "ncclGetErrorString");
  find(f.group_start, "ncclGroupStart");
  find(f.group_end, "ncclGroupEnd");
  find(f.get_id, "ncclGetUniqueId");
  find(f.init_all, "ncclCommInitAll");
  find(f.init_rank, "ncclCommInitRank");
  find(f.destroy, "ncclCommDestroy");
  find(f.all_reduce, "ncclAllReduce");
  find(f.all_gather, "ncclAllGather");
  find(f.reduce_scatter, "ncclReduceScatter");
  find(f.send, "ncclSend");
  find(f.receive, "ncclRecv");
  if (!missing.empty()) {
    return Err(ErrorCode::kUnsupported,
               fmt::format("is no NCCL that Galley can use: it lacks {}; 2.18 or newer is needed", missing), path);
  }
  if (const Status asked = nccl->Check(f.get_version(&nccl->version_), "asking NCCL for its version"); !asked)
    return Err(ErrorCode::kUnsupported, asked.error().message, path);
  if (nccl->version_ < kOldestVersion) {
    return Err(ErrorCode::kUnsupported, fmt::format("is NCCL {}; 2.18 or newer is needed", nccl->Version()), path);
  }
  return nccl;
}

Nccl::~Nccl() {
  if (library_ != nullptr) dlclose(library_);
}

std::string Nccl::Version() const {
  // Up to 2.8 a version was 1000 a + 100 b + c.
  const int thousand = version_ < 10000 ? 1000 : 10000;
  return fmt::format("{}.{}.{}", version_ / thousand, version_ % thousand / 100, version_ % 100);
}

Status Nccl::Check(int code, const char* what) const {
  if (code == kSuccess) return {};
  const char* text = functions_->error_text(code);
  return Err(ErrorCode::kDevice, fmt::format("{} failed: {} (NCCL code {}); NCCL_DEBUG=WARN says more", what,
                                             text != nullptr ? text : "no text", code));
}

Status Nccl::Together(const std::function<Status()>& calls) const {
  CHECK(calls != nullptr) << "nothing to call";
  RETURN_IF_ERROR(Check(functions_->group_start(), "beginning a group of calls"));
  // A group has to end whatever happened in it, or every later call would only be added to it.
  struct Group {
    const Functions& functions;
    bool open = true;
    int End() { return std::exchange(open, false) ? functions.group_end() : kSuccess; }
    ~Group() { End(); }
  } group{*functions_};
  const Status status = calls();
  const Status end = Check(group.End(), "starting a group of calls");
  if (status || end) return status ? end : status;
  return Err(status.error().code, fmt::format("{}; then {}", status.error().message, end.error().message));
}

Result<NcclId> MakeNcclId(const Nccl& nccl) {
  Id id{};
  RETURN_IF_ERROR(nccl.Check(nccl.functions().get_id(&id), "making a communicator's id"));
  return id.bytes;
}

NcclRank::NcclRank(std::shared_ptr<const Nccl> nccl, void* communicator, int rank, int size)
    : nccl_(std::move(nccl)), communicator_(communicator), rank_(rank), size_(size) {}
NcclRank::NcclRank(NcclRank&& other) noexcept
    : nccl_(std::move(other.nccl_)),
      communicator_(std::exchange(other.communicator_, nullptr)),
      rank_(other.rank_),
      size_(other.size_) {}
NcclRank::~NcclRank() {
  if (communicator_ != nullptr) nccl_->functions().destroy(communicator_);
}

const Nccl& NcclRank::library() const {
  CHECK(communicator_ != nullptr) << "a rank that was moved from";
  return *nccl_;
}

Status NcclRank::AllReduceSum(const void* in, void* out, std::size_t count, ElementType type, void* stream) const {
  return library().Check(library().functions().all_reduce(in, out, count, Of(type).code, kSum, communicator_, stream),
                         "an all-reduce");
}
Status NcclRank::AllGather(const void* in, void* out, std::size_t each, ElementType type, void* stream) const {
  return library().Check(library().functions().all_gather(in, out, each, Of(type).code, communicator_, stream),
                         "an all-gather");
}
Status NcclRank::ReduceScatterSum(const void* in, void* out, std::size_t each, ElementType type, void* stream) const {
  return library().Check(
      library().functions().reduce_scatter(in, out, each, Of(type).code, kSum, communicator_, stream),
      "a reduce-scatter");
}
Status NcclRank::AllToAll(const void* in, void* out, std::size_t each, ElementType type, void* stream) const {
  const Nccl::Functions& f = library().functions();
  return library().Together([&]() -> Status {
    const std::size_t bytes = each * Of(type).bytes;
    for (int peer = 0; peer < size_; ++peer) {
      const std::size_t at = static_cast<std::size_t>(peer) * bytes;
      RETURN_IF_ERROR(library().Check(
          f.send(static_cast<const std::byte*>(in) + at, each, Of(type).code, peer, communicator_, stream),
          "a send of an all-to-all"));
      RETURN_IF_ERROR(library().Check(
          f.receive(static_cast<std::byte*>(out) + at, each, Of(type).code, peer, communicator_, stream),
          "a receive of an all-to-all"));
    }
    return {};
  });
}

Result<std::vector<NcclRank>> MakeLocalRanks(std::shared_ptr<const Nccl> nccl, std::span<const int> devices) {
  std::vector<int> sorted(devices.begin(), devices.end());
  std::sort(sorted.begin(), sorted.end());
  const auto twice = std::adjacent_find(sorted.begin(), sorted.end());
  if (devices.empty()) return Err(ErrorCode::kInvalidArgument, "a communicator needs at least one device");
  if (twice != sorted.end())
    return Err(ErrorCode::kInvalidArgument, fmt::format("device {} is named twice; each can be one rank", *twice));
  const int size = static_cast<int>(devices.size());
  std::vector<void*> communicators(devices.size());
  RETURN_IF_ERROR(
      nccl->Check(nccl->functions().init_all(communicators.data(), size, devices.data()), "making a communicator"));
  std::vector<NcclRank> ranks;
  for (int r = 0; r < size; ++r) ranks.push_back(NcclRank(nccl, communicators[static_cast<std::size_t>(r)], r, size));
  return ranks;
}

Result<NcclRank> JoinRanks(std::shared_ptr<const Nccl> nccl, const NcclId& id, int rank, int size) {
  if (rank < 0 || rank >= size)
    return Err(ErrorCode::kInvalidArgument, fmt::format("there is no rank {} of {}; ranks count from 0", rank, size));
  void* communicator = nullptr;
  RETURN_IF_ERROR(
      nccl->Check(nccl->functions().init_rank(&communicator, size, Id{id}, rank), "joining a communicator"));
  return NcclRank(std::move(nccl), communicator, rank, size);
}

}  // namespace galley::comm
