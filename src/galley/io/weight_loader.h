// SPDX-License-Identifier: Apache-2.0
// Fills copies of weights by large reads past the page cache, several at a time and from several files, through a fixed
// number of buffers. In three parts: PlanReads, a function of what is wanted alone; ReadWeights, whose threads read
// what the plan says; and a sink, which brings the bytes from a buffer to their places, in a device's memory say. Used
// by one thread, which is the one that calls the sink. Bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "galley/base/aligned_bytes.h"
#include "galley/base/error.h"
#include "galley/io/weight_file.h"

namespace galley::io {

class WeightReader;

struct WantedBytes {
  const std::byte* data = nullptr;  // where its file is mapped
  std::size_t bytes = 0;
  std::size_t grain = 1;  // it is cut at multiples of this only: what a sink has to see at once
};

// Bytes [offset, offset + bytes) of wanted[index], which a read leaves at `at` of its buffer.
struct ReadPart {
  std::size_t index = 0, offset = 0, bytes = 0, at = 0;
};
struct PlannedRead {
  const std::byte* data = nullptr;
  std::size_t bytes = 0;
  std::size_t first_part = 0, parts = 0;
};
struct ReadPlan {
  std::vector<PlannedRead> reads;  // those that follow each other are of different files, as far as there are any
  std::vector<ReadPart> parts;
  std::uint64_t bytes = 0;  // wanted in all
};

// The least size of buffers, at least `usual`, that holds a grain of each.
[[nodiscard]] std::size_t BufferBytesFor(std::span<const WantedBytes> wanted, std::size_t usual);
// Every wanted byte once, in the order of the files; what lies close together comes with one read. Buffers are of
// BufferBytesFor, or more in multiples of kReadUnit. Pure: of mappings the addresses alone count.
[[nodiscard]] ReadPlan PlanReads(std::span<const WantedBytes> wanted, std::span<const WeightFile> files,
                                 std::size_t buffer_bytes);

// Owns the buffers that reads go to, each as large as the plan was made for, at multiples of kReadUnit.
class WeightSink {
 public:
  virtual ~WeightSink() = default;
  [[nodiscard]] virtual std::span<std::byte* const> buffers() const = 0;
  // Begins to bring these parts of a buffer to their places. It is not written to before Release has returned.
  [[nodiscard]] virtual Status Take(std::size_t buffer, std::span<const ReadPart> parts) = 0;
  // Waits until they are there.
  [[nodiscard]] virtual Status Release(std::size_t buffer) = 0;
};

// Host memory: part of wanted[i] is copied to places[i].
class MemorySink final : public WeightSink {
 public:
  // Keeps `places`, which outlives it.
  MemorySink(std::span<std::byte* const> places, std::size_t buffers, std::size_t buffer_bytes);
  [[nodiscard]] std::span<std::byte* const> buffers() const override { return addresses_; }
  [[nodiscard]] Status Take(std::size_t buffer, std::span<const ReadPart> parts) override;
  [[nodiscard]] Status Release(std::size_t) override { return {}; }

 private:
  std::span<std::byte* const> places_;
  std::vector<AlignedBytes> memory_;
  std::vector<std::byte*> addresses_;
};

// Reads with `readers` >= 1 threads, no more than there are buffers. Progress is told as sinks take bytes, and a few
// times a second while none come. All threads have ended and all buffers are released when it returns. Errors: those of
// WeightReader, checking the files' sizes before and after; those of the sink; kCancelled.
[[nodiscard]] Status ReadWeights(const ReadPlan& plan, const WeightReader& files, WeightSink& sink, int readers,
                                 const Progress& progress);

// How much is read at a time. Buffers are the memory that loading takes, at most.
struct LoadShape {
  int readers = 8;
  std::size_t buffers = 12;  // some are with the sink
  std::size_t buffer_bytes = std::size_t{16} << 20;
};

// Collects what a backend wants, whose places it knows by the number of each, until all of it is read.
class WantedWeights {
 public:
  // Where weights lie; valid until Load, which tells `progress`.
  void UseFiles(std::span<const WeightFile> files, Progress progress);
  // As WantedBytes; false when the bytes are in no file, so that they cannot be read later.
  [[nodiscard]] bool Add(const std::byte* data, std::size_t bytes, std::size_t grain);
  [[nodiscard]] bool empty() const { return wanted_.empty(); }

  using MakeSink = std::function<Result<std::unique_ptr<WeightSink>>(std::size_t buffers, std::size_t buffer_bytes)>;
  // Reads everything that was added, and forgets it. Errors: those of ReadWeights and `make`.
  [[nodiscard]] Status Load(const LoadShape& shape, const MakeSink& make);

 private:
  std::vector<WeightFile> files_;
  Progress progress_;
  std::vector<WantedBytes> wanted_;
};

}  // namespace galley::io
