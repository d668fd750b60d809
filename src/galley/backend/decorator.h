// SPDX-License-Identifier: Apache-2.0
// A backend around another one: forwards everything, and tells a derived class when ops begin and end. For tests that
// inject faults or watch what an op does, and for tracing. Same thread as the backend it wraps.
#pragma once

#include <memory>
#include <string_view>
#include <utility>

#include "galley/backend/backend.h"

namespace galley::backend {

class BackendDecorator : public Backend {
 public:
  explicit BackendDecorator(std::unique_ptr<Backend> inner) : inner_(std::move(inner)) {}

  [[nodiscard]] std::string_view name() const override { return inner_->name(); }
  [[nodiscard]] Result<Buffer> Allocate(std::size_t bytes, std::string_view purpose) override {
    return inner_->Allocate(bytes, purpose);
  }
  [[nodiscard]] std::uint64_t free_device_bytes() const override { return inner_->free_device_bytes(); }
  [[nodiscard]] std::uint64_t allocated_bytes() const override { return inner_->allocated_bytes(); }
  [[nodiscard]] std::int64_t allocations() const override { return inner_->allocations(); }
  [[nodiscard]] Result<const void*> Upload(const TensorView& weight) override { return inner_->Upload(weight); }
  [[nodiscard]] Result<const void*> UploadMatrix(const TensorView& weight, MatrixUse use) override {
    return inner_->UploadMatrix(weight, use);
  }
  [[nodiscard]] Result<const void*> UploadScales(const TensorView& scales, const TensorView& matrix,
                                                 MatrixUse use) override {
    return inner_->UploadScales(scales, matrix, use);
  }
  [[nodiscard]] Result<const void*> UploadTable(const TensorView& table) override { return inner_->UploadTable(table); }
  void UseFiles(std::span<const io::WeightFile> files, const io::Progress& progress) override {
    inner_->UseFiles(files, progress);
  }
  void ExpectExperts(std::span<const ExpertWeights> routed) override { inner_->ExpectExperts(routed); }
  [[nodiscard]] Status FinishUploads() override { return inner_->FinishUploads(); }
  [[nodiscard]] Status CopyToDevice(void* device, const void* host, std::size_t bytes) override {
    return inner_->CopyToDevice(device, host, bytes);
  }
  [[nodiscard]] Status CopyToHost(void* host, const void* device, std::size_t bytes) override {
    return inner_->CopyToHost(host, device, bytes);
  }
  void CopyOnDevice(void* to, const void* from, std::size_t bytes) override { inner_->CopyOnDevice(to, from, bytes); }
  [[nodiscard]] Status Synchronize() override { return inner_->Synchronize(); }
  [[nodiscard]] bool repeats_steps() const override { return inner_->repeats_steps(); }
  void RunRepeated(const StepKey& key, const std::function<void()>& issue) override { inner_->RunRepeated(key, issue); }

  void Embed(const EmbedArgs& args) override { Forward("Embed", &Backend::Embed, args); }
  void EngramRows(const EngramRowsArgs& args) override { Forward("EngramRows", &Backend::EngramRows, args); }
  void EngramAhead(const EngramGatherArgs& args) override { Forward("EngramAhead", &Backend::EngramAhead, args); }
  void EngramGather(const EngramGatherArgs& args) override { Forward("EngramGather", &Backend::EngramGather, args); }
  void EngramMix(const EngramMixArgs& args) override { Forward("EngramMix", &Backend::EngramMix, args); }
  void MhcBoundary(const MhcBoundaryArgs& args) override { Forward("MhcBoundary", &Backend::MhcBoundary, args); }
  void MeanCopies(const MeanCopiesArgs& args) override { Forward("MeanCopies", &Backend::MeanCopies, args); }
  void Linear(const LinearArgs& args) override { Forward("Linear", &Backend::Linear, args); }
  void AttnIn(const AttnInArgs& args) override { Forward("AttnIn", &Backend::AttnIn, args); }
  void Compress(const CompressArgs& args) override { Forward("Compress", &Backend::Compress, args); }
  void IndexSelect(const IndexSelectArgs& args) override { Forward("IndexSelect", &Backend::IndexSelect, args); }
  void Attention(const AttentionArgs& args) override { Forward("Attention", &Backend::Attention, args); }
  void WindowWrite(const WindowWriteArgs& args) override { Forward("WindowWrite", &Backend::WindowWrite, args); }
  void AttnOut(const AttnOutArgs& args) override { Forward("AttnOut", &Backend::AttnOut, args); }
  void Route(const RouteArgs& args) override { Forward("Route", &Backend::Route, args); }
  void ForeseeMoe(const ForeseeArgs& args) override { Forward("ForeseeMoe", &Backend::ForeseeMoe, args); }
  void Moe(const MoeArgs& args) override { Forward("Moe", &Backend::Moe, args); }
  void Head(const HeadArgs& args) override { Forward("Head", &Backend::Head, args); }
  void DraftWindow(const DraftWindowArgs& args) override { Forward("DraftWindow", &Backend::DraftWindow, args); }
  void DraftAttention(const DraftAttentionArgs& args) override {
    Forward("DraftAttention", &Backend::DraftAttention, args);
  }
  void DraftChain(const DraftChainArgs& args) override { Forward("DraftChain", &Backend::DraftChain, args); }
  void GatherRows(const GatherRowsArgs& args) override { Forward("GatherRows", &Backend::GatherRows, args); }
  [[nodiscard]] bool draws() const override { return inner_->draws(); }
  [[nodiscard]] Status Draw(const DrawArgs& args) override { return inner_->Draw(args); }

 protected:
  virtual void OpBegins([[maybe_unused]] std::string_view op) {}
  virtual void OpEnds([[maybe_unused]] std::string_view op) {}

 private:
  template <typename Args>
  void Forward(std::string_view op, void (Backend::*call)(const Args&), const Args& args) {
    OpBegins(op);
    (inner_.get()->*call)(args);
    OpEnds(op);
  }

  std::unique_ptr<Backend> inner_;
};

}  // namespace galley::backend
