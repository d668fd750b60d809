// SPDX-License-Identifier: Apache-2.0
#include "galley/engine/mask_worker.h"

#include <algorithm>
#include <functional>

#include "galley/base/check.h"

namespace galley::engine {

namespace {

// Looks past the drafts one by one and leaves the constraint as it was.
void FillMasks(MaskJob& job) {
  const std::size_t words = job.masks.size() / (1 + job.drafts.size());
  int accepted = 0;
  job.open = 0;
  for (job.filled = 0;;) {
    const auto at = static_cast<std::size_t>(job.filled);
    if (job.constraint->IsOpen()) {
      job.open |= 1u << at;
    } else {
      job.status = job.constraint->FillMask(job.masks.subspan(at * words, words));
      if (!job.status) break;
    }
    ++job.filled;
    if (at == job.drafts.size() || !job.constraint->Accept(job.drafts[at])) break;
    ++accepted;
    if (job.constraint->IsComplete()) break;  // the draft would end the sequence
  }
  if (accepted > 0) job.constraint->Rollback(accepted);
}

}  // namespace

MaskWorker::MaskWorker(int threads) : pool_(threads), thread_([this] { Loop(); }) {}

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

void MaskWorker::Run(std::span<MaskJob> jobs) {
  if (jobs.size() == 1) return FillMasks(jobs[0]);
  order_.clear();
  for (MaskJob& job : jobs) order_.push_back(&job);
  const auto group = [](const MaskJob* job) { return job->constraint->group(); };
  std::ranges::sort(order_, std::less<>(), group);
  groups_.clear();
  for (std::size_t i = 0; i < order_.size(); ++i) {
    if (i == 0 || group(order_[i]) != group(order_[i - 1])) groups_.push_back(i);
  }
  const auto count = static_cast<std::int64_t>(groups_.size());
  groups_.push_back(order_.size());
  pool_.ParallelFor(count, [this](std::int64_t i) {
    const auto at = static_cast<std::size_t>(i);
    for (std::size_t k = groups_[at]; k < groups_[at + 1]; ++k) FillMasks(*order_[k]);
  });
}

void MaskWorker::Loop() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return stopping_ || !jobs_.empty(); });
    if (jobs_.empty()) return;
    const std::span<MaskJob> jobs = jobs_;
    lock.unlock();
    Run(jobs);
    lock.lock();
    jobs_ = {};
    changed_.notify_all();
  }
}

}  // namespace galley::engine
