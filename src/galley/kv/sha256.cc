// SPDX-License-Identifier: Apache-2.0
#include "galley/kv/sha256.h"

#include <openssl/evp.h>

#include <bit>

#include "galley/base/check.h"

namespace galley::kv {

static_assert(std::endian::native == std::endian::little, "token ids are hashed as they lie in memory");

// OpenSSL fails these calls only when it is out of memory or built without SHA-256, neither of which input can cause.
struct Sha256::Context {
  EVP_MD* algorithm = EVP_MD_fetch(nullptr, "SHA256", nullptr);
  EVP_MD_CTX* state = EVP_MD_CTX_new();

  ~Context() {
    EVP_MD_CTX_free(state);
    EVP_MD_free(algorithm);
  }
};

std::string Digest::ToHex() const {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string hex;
  for (const std::uint8_t byte : bytes) {
    hex += kDigits[byte >> 4];
    hex += kDigits[byte & 15];
  }
  return hex;
}

Sha256::Sha256() : context_(std::make_unique<Context>()) {
  CHECK(context_->algorithm != nullptr && context_->state != nullptr) << "OpenSSL offers no SHA-256";
  Start();
}

Sha256::~Sha256() = default;

void Sha256::Start() {
  CHECK(EVP_DigestInit_ex2(context_->state, context_->algorithm, nullptr) == 1);
}

Sha256& Sha256::Bytes(std::span<const std::uint8_t> bytes) {
  CHECK(EVP_DigestUpdate(context_->state, bytes.data(), bytes.size()) == 1);
  return *this;
}

Sha256& Sha256::U32(std::uint32_t value) {
  CHECK(EVP_DigestUpdate(context_->state, &value, sizeof value) == 1);
  return *this;
}

Sha256& Sha256::I64(std::int64_t value) {
  CHECK(EVP_DigestUpdate(context_->state, &value, sizeof value) == 1);
  return *this;
}

Sha256& Sha256::Field(std::string_view text) {
  U32(static_cast<std::uint32_t>(text.size()));
  CHECK(EVP_DigestUpdate(context_->state, text.data(), text.size()) == 1);
  return *this;
}

Sha256& Sha256::Tokens(std::span<const std::int32_t> ids) {
  CHECK(EVP_DigestUpdate(context_->state, ids.data(), ids.size_bytes()) == 1);
  return *this;
}

Digest Sha256::Finish() {
  Digest digest;
  unsigned int size = 0;
  CHECK(EVP_DigestFinal_ex(context_->state, digest.bytes.data(), &size) == 1 && size == digest.bytes.size());
  Start();
  return digest;
}

}  // namespace galley::kv
