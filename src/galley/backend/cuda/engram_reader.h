// SPDX-License-Identifier: Apache-2.0
// Rows of Engram tables on disk: when the device knows a step's row numbers, the host reads the rows beside the step
// into pinned memory, and the gather waits for them. All of it is issued on streams, so a recorded step does it too.
// Used by the backend's thread only; a thread of the driver reads.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <map>
#include <utility>

#include "galley/backend/backend.h"

namespace galley::backend::cuda {

class EngramReader {
 public:
  EngramReader() = default;
  ~EngramReader();
  EngramReader(const EngramReader&) = delete;
  EngramReader& operator=(const EngramReader&) = delete;

  // Begins to read the rows whose numbers the stream has written by now. Errors: kResourceExhausted, kDevice.
  [[nodiscard]] Status Ahead(const EngramGatherArgs& args, cudaStream_t stream);
  // Lets the stream wait for them, after Ahead if that has not been called. The gather whose rows they are: its table
  // holds these rows alone, in their order.
  [[nodiscard]] Result<EngramGatherArgs> Rows(const EngramGatherArgs& args, cudaStream_t stream);

  // How often memory that recorded steps use has been replaced.
  [[nodiscard]] std::int64_t moves() const { return moves_; }

 private:
  struct Table {
    Buffer numbers, codes, scales;  // of the step's rows
    cudaEvent_t read = nullptr;
    bool ahead = false;  // Ahead has been called for the coming Rows
  };
  // A read of a table for so many rows, as a recorded step may repeat it.
  struct Job {
    const Table* table = nullptr;
    EngramGatherArgs args;
  };
  [[nodiscard]] Status Reserve(Table& table, const EngramGatherArgs& args, cudaStream_t stream);
  static void Read(void* job);

  cudaStream_t beside_ = nullptr;
  cudaEvent_t numbered_ = nullptr;
  std::int64_t moves_ = 0;
  std::map<const void*, Table> tables_;              // by their codes
  std::map<std::pair<const void*, int>, Job> jobs_;  // and by rows
};

}  // namespace galley::backend::cuda
