// SPDX-License-Identifier: Apache-2.0
#include "galley/engine/mask_worker.h"

#include <limits>

#include "galley/base/check.h"

namespace galley::engine {

void ApplyMask(std::span<const std::uint32_t> mask, std::span<float> logits) {
  for (std::size_t i = 0; i < logits.size(); ++i) {
    if ((mask[i / 32] >> (i % 32) & 1u) == 0) logits[i] = -std::numeric_limits<float>::infinity();
  }
}

namespace {

// Looks past the drafts one by one and leaves the constraint as it was.
void FillMasks(MaskJob& job) {
  const std::size_t words = job.masks.size() / (1 + job.drafts.size());
  int accepted = 0;
  for (job.filled = 0;;) {
    const auto at = static_cast<std::size_t>(job.filled);
    job.status = job.constraint->FillMask(job.masks.subspan(at * words, words));
    if (!job.status) break;
    ++job.filled;
    if (at == job.drafts.size() || !job.constraint->Accept(job.drafts[at])) break;
    ++accepted;
    if (job.constraint->IsComplete()) break;  // the draft would end the sequence
  }
  if (accepted > 0) job.constraint->Rollback(accepted);
}

}  // namespace

MaskWorker::MaskWorker() : thread_([this] { Loop(); }) {}

MaskWorker::~MaskWorker() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void MaskWorker::Start(std::span<MaskJob> jobs) {
  if (jobs.empty()) return;
  {
    std::lock_guard lock(mutex_);
    CHECK(jobs_.empty()) << "masks of another step are under way";
    jobs_ = jobs;
  }
  changed_.notify_all();
}

void MaskWorker::Wait() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return jobs_.empty(); });
}

void MaskWorker::Loop() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return stopping_ || !jobs_.empty(); });
    if (jobs_.empty()) return;
    const std::span<MaskJob> jobs = jobs_;
    lock.unlock();
    for (MaskJob& job : jobs) FillMasks(job);
    lock.lock();
    jobs_ = {};
    changed_.notify_all();
  }
}

}  // namespace galley::engine
