// SPDX-License-Identifier: Apache-2.0
// A library with NCCL's functions, for tests without GPUs: ranks are in one process, memory is the host's, and grouped
// calls run when the group ends. Calls outside of a group are groups of their own, so they need a communicator of one
// rank. FAKE_NCCL_VERSION and FAKE_NCCL_WITHOUT_SEND make libraries that must be refused.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <deque>
#include <map>
#include <utility>
#include <vector>

#ifndef FAKE_NCCL_VERSION
#define FAKE_NCCL_VERSION 22809
#endif

namespace {

constexpr int kInternalError = 3, kInvalidUsage = 5;

struct World {
  int size = 0, alive = 0;
};
struct Rank {
  World* world;
  int rank;
};
enum class Kind { kAllReduce, kAllGather, kReduceScatter, kSend, kReceive };
struct Call {
  Kind kind;
  Rank* rank;
  const void* in;
  void* out;
  std::size_t count;
  int type, peer;
};

std::vector<Call> calls;
int depth = 0, fail_with = 0, alive = 0;

std::size_t BytesOf(int type) {
  constexpr std::size_t kBytes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};
  return kBytes[type];
}
template <typename T>
void Add(void* to, const void* from, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) static_cast<T*>(to)[i] += static_cast<const T*>(from)[i];
}
void AddAny(void* to, const void* from, std::size_t count, int type) {
  if (type == 7) {
    Add<float>(to, from, count);
  } else if (type == 4) {
    Add<std::uint64_t>(to, from, count);
  } else if (type == 2) {
    Add<std::uint32_t>(to, from, count);
  } else {
    Add<std::uint8_t>(to, from, count);  // bytes; there is no sum of other types here
  }
}

// One call of each rank of a world.
int RunCollective(std::vector<Call> of) {
  std::sort(of.begin(), of.end(), [](const Call& a, const Call& b) { return a.rank->rank < b.rank->rank; });
  const bool adds = of[0].kind != Kind::kAllGather;
  if (adds && of[0].type != 1 && of[0].type != 2 && of[0].type != 4 && of[0].type != 7) return kInvalidUsage;
  const std::size_t bytes = of[0].count * BytesOf(of[0].type), ranks = of.size();
  if (static_cast<int>(ranks) != of[0].rank->world->size) return kInvalidUsage;  // real ones would wait for ever
  for (const Call& call : of) {
    if (call.kind != of[0].kind || call.count != of[0].count || call.type != of[0].type) return kInvalidUsage;
  }
  std::vector<std::vector<char>> ins;
  for (std::size_t r = 0; r < ranks; ++r) {
    const char* in = static_cast<const char*>(of[r].in);
    ins.emplace_back(in, in + bytes * (of[0].kind == Kind::kReduceScatter ? ranks : 1));
  }
  for (std::size_t r = 0; r < ranks; ++r) {
    char* out = static_cast<char*>(of[r].out);
    if (of[0].kind == Kind::kAllGather) {
      for (std::size_t from = 0; from < ranks; ++from) std::memcpy(out + from * bytes, ins[from].data(), bytes);
      continue;
    }
    const std::size_t at = of[0].kind == Kind::kReduceScatter ? r * bytes : 0;
    std::memcpy(out, ins[0].data() + at, bytes);
    for (std::size_t from = 1; from < ranks; ++from) AddAny(out, ins[from].data() + at, of[0].count, of[0].type);
  }
  return 0;
}

int Run() {
  std::vector<Call> collective;
  // Sends wait for their receives: by world, sender, receiver.
  std::map<std::pair<World*, std::pair<int, int>>, std::deque<const Call*>> sends;
  for (const Call& call : calls) {
    if (call.kind == Kind::kSend) sends[{call.rank->world, {call.rank->rank, call.peer}}].push_back(&call);
    if (call.kind != Kind::kSend && call.kind != Kind::kReceive) collective.push_back(call);
  }
  for (const Call& call : calls) {
    if (call.kind != Kind::kReceive) continue;
    auto& waiting = sends[{call.rank->world, {call.peer, call.rank->rank}}];
    if (waiting.empty() || waiting.front()->count != call.count) return kInvalidUsage;
    std::memcpy(call.out, waiting.front()->in, call.count * BytesOf(call.type));
    waiting.pop_front();
  }
  return collective.empty() ? 0 : RunCollective(collective);
}

int Start(const Call& call) {
  if (fail_with != 0) return std::exchange(fail_with, 0);
  calls.push_back(call);
  if (depth > 0) return 0;
  const int code = Run();
  calls.clear();
  return code;
}

}  // namespace

extern "C" {

struct FakeId {
  char bytes[128];
};

// The next call that computes or connects fails so.
void fakeNcclFailNext(int code) {
  fail_with = code;
}
// Ranks that were made and not destroyed.
int fakeNcclAlive() {
  return alive;
}

int ncclGetVersion(int* version) {
  *version = FAKE_NCCL_VERSION;
  return 0;
}
const char* ncclGetErrorString(int code) {
  return code == kInternalError ? "internal error" : code == kInvalidUsage ? "invalid usage" : "unknown";
}
int ncclGroupStart() {
  ++depth;
  return 0;
}
int ncclGroupEnd() {
  if (--depth > 0) return 0;
  const int code = Run();
  calls.clear();
  return code;
}
int ncclGetUniqueId(FakeId* id) {
  std::memset(id->bytes, 7, sizeof(id->bytes));
  return 0;
}
int ncclCommInitAll(void** ranks, int size, const int*) {
  if (fail_with != 0) return std::exchange(fail_with, 0);
  auto* world = new World{size, size};
  for (int r = 0; r < size; ++r) ranks[r] = new Rank{world, r};
  alive += size;
  return 0;
}
int ncclCommInitRank(void** rank, int size, FakeId id, int number) {
  if (fail_with != 0) return std::exchange(fail_with, 0);
  for (const char c : id.bytes) {
    if (c != 7) return kInvalidUsage;
  }
  *rank = new Rank{new World{size, 1}, number};
  ++alive;
  return 0;
}
int ncclCommDestroy(void* rank) {
  auto* it = static_cast<Rank*>(rank);
  if (--it->world->alive == 0) delete it->world;
  delete it;
  --alive;
  return 0;
}
int ncclAllReduce(const void* in, void* out, std::size_t count, int type, int, void* rank, void*) {
  return Start({Kind::kAllReduce, static_cast<Rank*>(rank), in, out, count, type, 0});
}
int ncclAllGather(const void* in, void* out, std::size_t count, int type, void* rank, void*) {
  return Start({Kind::kAllGather, static_cast<Rank*>(rank), in, out, count, type, 0});
}
int ncclReduceScatter(const void* in, void* out, std::size_t count, int type, int, void* rank, void*) {
  return Start({Kind::kReduceScatter, static_cast<Rank*>(rank), in, out, count, type, 0});
}
#ifndef FAKE_NCCL_WITHOUT_SEND
int ncclSend(const void* in, std::size_t count, int type, int peer, void* rank, void*) {
  return Start({Kind::kSend, static_cast<Rank*>(rank), in, nullptr, count, type, peer});
}
#endif
int ncclRecv(void* out, std::size_t count, int type, int peer, void* rank, void*) {
  return Start({Kind::kReceive, static_cast<Rank*>(rank), nullptr, out, count, type, peer});
}

}  // extern "C"
