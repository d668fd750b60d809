// SPDX-License-Identifier: Apache-2.0
// Encoders for the threads that read requests: one is lent at a time, so its cache stays warm and as many exist as are
// ever used at once. Any thread.
#pragma once

#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "galley/text/tokenizer.h"

namespace galley::serve {

class EncoderPool {
 public:
  explicit EncoderPool(const text::Tokenizer& tokenizer) : tokenizer_(tokenizer) {}

  class Loan {
   public:
    Loan(EncoderPool& pool, std::unique_ptr<text::Encoder> encoder) : pool_(pool), encoder_(std::move(encoder)) {}
    ~Loan() { pool_.Return(std::move(encoder_)); }
    Loan(const Loan&) = delete;
    Loan& operator=(const Loan&) = delete;
    [[nodiscard]] text::Encoder& operator*() { return *encoder_; }

   private:
    EncoderPool& pool_;
    std::unique_ptr<text::Encoder> encoder_;
  };

  [[nodiscard]] Loan Lend() {
    std::unique_ptr<text::Encoder> encoder;
    {
      std::lock_guard lock(mutex_);
      if (!free_.empty()) {
        encoder = std::move(free_.back());
        free_.pop_back();
      }
    }
    if (encoder == nullptr) encoder = std::make_unique<text::Encoder>(tokenizer_);
    return {*this, std::move(encoder)};
  }

 private:
  void Return(std::unique_ptr<text::Encoder> encoder) {
    std::lock_guard lock(mutex_);
    free_.push_back(std::move(encoder));
  }

  const text::Tokenizer& tokenizer_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<text::Encoder>> free_;
};

}  // namespace galley::serve
