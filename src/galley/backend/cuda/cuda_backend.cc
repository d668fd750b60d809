// SPDX-License-Identifier: Apache-2.0
#include "galley/backend/cuda/cuda_backend.h"

#include <fmt/core.h>

#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "galley/backend/cuda/cuda_class.h"

namespace galley::backend::cuda {

Result<const void*> CudaBackend::UploadMatrix(const TensorView& weight, MatrixUse use) {
  if (OnDisk(use)) return static_cast<const void*>(weight.data);
  WeightFormat format = WeightFormat::kF32;
  if (weight.dtype == DType::kI8) format = WeightFormat::kMxfp4;
  if (weight.dtype == DType::kF8E4M3) format = WeightFormat::kFp8Block32;
  if (weight.dtype == DType::kBF16) format = WeightFormat::kBF16;
  if (format == WeightFormat::kF32) return Place(weight, {}, use);
  return Place(weight, cuda::ArrangementOfCodes(format, RowsOf(weight), ColsOf(weight)), use);
}

Result<const void*> CudaBackend::UploadTable(const TensorView& table) {
  if (options_.engram_at == backend::WeightPlace::kDevice) return Upload(table);
  if (options_.engram_at == backend::WeightPlace::kDisk) return static_cast<const void*>(table.data);
  ASSIGN_OR_RETURN(Buffer buffer, cuda::AllocateHost(table.bytes(), cuda::kHostEngram, host_table_bytes_));
  host_table_bytes_ += table.bytes();
  std::byte* const to = host_tables_.emplace_back(std::move(buffer)).data();
  if (wanted_.Add(table.data, table.bytes(), 1)) {
    places_.push_back({.to = to, .arrangement = {}, .on_host = true});
  } else {
    std::memcpy(to, table.data, table.bytes());
  }
  return static_cast<const void*>(to);
}

Result<const void*> CudaBackend::UploadScales(const TensorView& scales, const TensorView& matrix, MatrixUse use) {
  if (OnDisk(use)) return static_cast<const void*>(scales.data);
  const auto format = matrix.dtype == DType::kI8 ? WeightFormat::kMxfp4 : WeightFormat::kFp8Block32;
  return Place(scales, cuda::ArrangementOfScales(format, RowsOf(matrix), ColsOf(matrix)), use);
}

void CudaBackend::UseFiles(std::span<const io::WeightFile> files, const io::Progress& progress) {
  wanted_.UseFiles(files, progress);
  if (experts_.slots() != nullptr) experts_.slots()->ReadFrom(files);
}

Status CudaBackend::FinishUploads() {
  if (experts_.slots() != nullptr) RETURN_IF_ERROR(experts_.slots()->Open(stream_));
  const std::vector<WeightPlace> places = std::exchange(places_, {});
  constexpr io::LoadShape kShape;
  static_assert((kShape.buffers + 1) * kShape.buffer_bytes == kCudaLoadBytes);
  return wanted_.Load(kShape, [&](std::size_t buffers, std::size_t bytes) -> Result<std::unique_ptr<io::WeightSink>> {
    ASSIGN_OR_RETURN(std::byte * staging, scratch_.Get(ScratchUse::kUpload, bytes, stream_));
    return cuda::MakeWeightSink({places, staging, buffers, bytes, stream_});
  });
}

Status CudaBackend::CopyToHost(void* host, const void* device, std::size_t bytes) {
  if (bytes == 0) return {};
  RETURN_IF_ERROR(Checked(cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, stream_), "a copy to the host"));
  return Synchronize();
}

Status CudaBackend::Synchronize() {
  Note(cudaStreamSynchronize(stream_), "a step");
  if (error_) return Err(*error_);
  if (std::optional<Error> unread = experts_.TakeUnread()) return Err(std::move(*unread));
  return {};
}

Result<const void*> CudaBackend::Place(const TensorView& weight, const cuda::Arrangement& arrangement, MatrixUse use) {
  const bool on_host = use == MatrixUse::kChosen && options_.experts_at == backend::WeightPlace::kHost;
  ASSIGN_OR_RETURN(std::byte * to, (on_host ? host_experts_ : weights_).Take(weight.bytes(), stream_));
  if (wanted_.Add(weight.data, weight.bytes(), arrangement.grain)) {
    places_.push_back({.to = to, .arrangement = arrangement, .on_host = false});
    return static_cast<const void*>(to);
  }
  uploaded_ = true;
  const bool arrange = arrangement.kind != cuda::Arrangement::Kind::kNone;
  std::byte* copy = to;
  if (arrange) {
    ASSIGN_OR_RETURN(copy, scratch_.Get(ScratchUse::kUpload, weight.bytes(), stream_));
  }
  RETURN_IF_ERROR(Checked(cudaMemcpyAsync(copy, weight.data, weight.bytes(), cudaMemcpyDefault, stream_), "a copy"));
  if (arrange) cuda::Arrange(arrangement, copy, weight.bytes(), to, stream_);
  Note(cudaGetLastError(), "arranging weights");
  return static_cast<const void*>(to);
}

void CudaBackend::RunRepeated(const StepKey& key, const std::function<void()>& issue) {
  using Turn = cuda::StepGraphs::Turn;
  const Turn turn = error_ ? Turn::kIssue : graphs_.Next(key, moves());
  if (turn == Turn::kIssue) return issue();
  if (turn == Turn::kReplay) return Note(graphs_.Replay(key, stream_), "a recorded step");
  if (std::exchange(uploaded_, false)) Note(cudaStreamSynchronize(stream_), "placing weights");
  cudaError_t code = graphs_.BeginRecording(stream_);
  if (code == cudaSuccess) {
    issue();
    // Scratch that grew was freed under the launches recorded before; the step is recorded another time.
    const bool good = !error_ && graphs_.Unmoved(moves());
    code = graphs_.EndRecording(key, good, stream_);
    if (code == cudaSuccess && good) return Note(graphs_.Replay(key, stream_), "a recorded step");
    error_.reset();  // of the recording; what is wrong with the step itself shows below
  }
  if (code != cudaSuccess) graphs_.GiveUp(code);
  issue();
}

}  // namespace galley::backend::cuda

namespace galley::backend {

Result<std::unique_ptr<Backend>> MakeCudaBackend(const CudaOptions& options) {
  int count = 0;
  const cudaError_t found = cudaGetDeviceCount(&count);
  if (found != cudaSuccess || count <= options.device) {
    return Err(ErrorCode::kUnsupported,
               fmt::format("device {} asked for, but this machine offers {} CUDA devices{}", options.device, count,
                           found == cudaSuccess ? std::string() : fmt::format(" ({})", cudaGetErrorString(found))),
               "backend");
  }
  int major = 0, minor = 0;
  RETURN_IF_ERROR([&]() -> Status {
    cudaError_t code = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, options.device);
    if (code == cudaSuccess) {
      code = cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, options.device);
    }
    if (code != cudaSuccess) return Err(cuda::DeviceError(code, "reading the device"));
    if (major < 9) {
      return Err(ErrorCode::kUnsupported,
                 fmt::format("the GPU has compute capability {}, this backend needs 9 (Hopper)", major), "backend");
    }
    return {};
  }());
  cudaError_t code = cudaSetDevice(options.device);
  cudaStream_t stream = nullptr;
  if (code == cudaSuccess) code = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  if (code != cudaSuccess) return Err(cuda::DeviceError(code, "opening the device"));
  ASSIGN_OR_RETURN(Buffer arrivals,
                   cuda::AllocateDevice(cuda::kArrivals * sizeof(std::uint32_t), "counters of ops", stream));
  return std::unique_ptr<Backend>(
      std::make_unique<cuda::CudaBackend>(stream, major == 9 && minor == 0, options, std::move(arrivals)));
}

CudaGraphCounts GraphCountsOf(const Backend& backend) {
  CHECK(backend.name() == "cuda") << backend.name();
  return static_cast<const cuda::CudaBackend&>(backend).graph_counts();
}

void* StreamOf(Backend& backend) {
  CHECK(backend.name() == "cuda") << backend.name();
  return static_cast<cuda::CudaBackend&>(backend).stream();
}

}  // namespace galley::backend
