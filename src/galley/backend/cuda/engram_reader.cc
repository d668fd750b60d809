// SPDX-License-Identifier: Apache-2.0
#include "galley/backend/cuda/engram_reader.h"

#include "galley/backend/cuda/device_memory.h"
#include "galley/backend/engram_file.h"

namespace galley::backend::cuda {
namespace {

constexpr HostWeights kRows = {"Engram rows of a step", "a smaller step or --engram device"};

Status Checked(cudaError_t code) {
  if (code == cudaSuccess) return {};
  return Err(DeviceError(code, "reading Engram rows ahead"));
}

}  // namespace

EngramReader::~EngramReader() {
  if (beside_ != nullptr) cudaStreamSynchronize(beside_);
  for (const auto& [codes, table] : tables_) {
    if (table.read != nullptr) cudaEventDestroy(table.read);
  }
  if (numbered_ != nullptr) cudaEventDestroy(numbered_);
  if (beside_ != nullptr) cudaStreamDestroy(beside_);
}

Status EngramReader::Reserve(Table& table, const EngramGatherArgs& args, cudaStream_t stream) {
  if (beside_ == nullptr) {
    RETURN_IF_ERROR(Checked(cudaStreamCreateWithFlags(&beside_, cudaStreamNonBlocking)));
    RETURN_IF_ERROR(Checked(cudaEventCreateWithFlags(&numbered_, cudaEventDisableTiming)));
  }
  if (table.read == nullptr) RETURN_IF_ERROR(Checked(cudaEventCreateWithFlags(&table.read, cudaEventDisableTiming)));
  const auto cells = static_cast<std::size_t>(args.rows) * static_cast<std::size_t>(args.columns);
  const auto dim = static_cast<std::size_t>(args.dim);
  if (table.numbers.bytes() >= cells * sizeof(std::int32_t)) return {};
  // The old ones may still be in use.
  RETURN_IF_ERROR(Checked(cudaStreamSynchronize(beside_)));
  RETURN_IF_ERROR(Checked(cudaStreamSynchronize(stream)));
  ++moves_;
  table.numbers = Buffer{}, table.codes = Buffer{}, table.scales = Buffer{};
  ASSIGN_OR_RETURN(table.numbers, AllocateHost(cells * sizeof(std::int32_t), kRows, 0));
  ASSIGN_OR_RETURN(table.codes, AllocateHost(cells * dim, kRows, 0));
  ASSIGN_OR_RETURN(table.scales, AllocateHost(cells * (dim / 32), kRows, 0));
  return {};
}

void EngramReader::Read(void* job) {
  const auto* j = static_cast<const Job*>(job);
  EngramGatherArgs args = j->args;
  args.row_numbers = j->table->numbers.as<std::int32_t>();
  AskForRows(args);
  CopyRows(args, j->table->codes.as<std::uint8_t>(), j->table->scales.as<std::uint8_t>());
}

Status EngramReader::Ahead(const EngramGatherArgs& args, cudaStream_t stream) {
  Table& table = tables_[args.codes];
  RETURN_IF_ERROR(Reserve(table, args, stream));
  Job& job = jobs_[{args.codes, args.rows}];
  if (job.table == nullptr) job = {.table = &table, .args = args};  // else a step in flight may read it
  const auto bytes =
      static_cast<std::size_t>(args.rows) * static_cast<std::size_t>(args.columns) * sizeof(std::int32_t);
  RETURN_IF_ERROR(Checked(cudaEventRecord(numbered_, stream)));
  RETURN_IF_ERROR(Checked(cudaStreamWaitEvent(beside_, numbered_, 0)));
  RETURN_IF_ERROR(
      Checked(cudaMemcpyAsync(table.numbers.data(), args.row_numbers, bytes, cudaMemcpyDeviceToHost, beside_)));
  RETURN_IF_ERROR(Checked(cudaLaunchHostFunc(beside_, Read, &job)));
  RETURN_IF_ERROR(Checked(cudaEventRecord(table.read, beside_)));
  table.ahead = true;
  return {};
}

Result<EngramGatherArgs> EngramReader::Rows(const EngramGatherArgs& args, cudaStream_t stream) {
  Table& table = tables_[args.codes];
  if (!table.ahead) RETURN_IF_ERROR(Ahead(args, stream));
  table.ahead = false;
  RETURN_IF_ERROR(Checked(cudaStreamWaitEvent(stream, table.read, 0)));
  EngramGatherArgs rows = args;
  rows.row_numbers = nullptr;
  rows.codes = table.codes.as<std::uint8_t>();
  rows.scales = table.scales.as<std::uint8_t>();
  return rows;
}

}  // namespace galley::backend::cuda
