// SPDX-License-Identifier: Apache-2.0
#include "galley/net/tls.h"

#include <fmt/core.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <limits>
#include <utility>

#include "galley/base/check.h"

namespace galley::net {
namespace {

struct FreeContext {
  void operator()(SSL_CTX* context) const { SSL_CTX_free(context); }
};
struct FreeSession {
  void operator()(SSL* session) const { SSL_free(session); }
};

// The oldest entry of this thread's OpenSSL queue, which is the cause; the queue is empty afterwards.
std::string TakeReason(std::string_view otherwise) {
  const unsigned long code = ERR_get_error();
  ERR_clear_error();
  if (code == 0) return std::string(otherwise);
  const char* reason = ERR_reason_error_string(code);
  return reason == nullptr ? std::string(otherwise) : std::string(reason);
}

tl::unexpected<Error> CannotLoad(std::string_view what, std::string_view wanted, const std::string& file) {
  const unsigned long code = ERR_peek_error();
  if (ERR_SYSTEM_ERROR(code)) {
    const int error = ERR_GET_REASON(code);
    ERR_clear_error();
    return Err(error == ENOENT || error == ENOTDIR ? ErrorCode::kNotFound : ErrorCode::kIo,
               fmt::format("cannot read the TLS {}: {}", what, std::strerror(error)), file);
  }
  return Err(ErrorCode::kCorrupt,
             fmt::format("the TLS {} must be {}, but OpenSSL says: {}", what, wanted, TakeReason("unknown reason")),
             file);
}

// HTTP/1.1 or nothing: a client that insists on another protocol gets an alert.
int SelectProtocol(SSL*, const unsigned char** out, unsigned char* out_length, const unsigned char* in,
                   unsigned int in_length, void*) {
  static constexpr unsigned char kHttp11[] = "\x08http/1.1";
  unsigned char* chosen = nullptr;
  const int result = SSL_select_next_proto(&chosen, out_length, kHttp11, sizeof kHttp11 - 1, in, in_length);
  *out = chosen;
  return result == OPENSSL_NPN_NEGOTIATED ? SSL_TLSEXT_ERR_OK : SSL_TLSEXT_ERR_ALERT_FATAL;
}

// BIO and SSL functions count in int.
int Clamp(std::size_t size) {
  constexpr std::size_t kMost = std::numeric_limits<int>::max();
  return static_cast<int>(size < kMost ? size : kMost);
}

}  // namespace

struct TlsContext::Native {
  std::unique_ptr<SSL_CTX, FreeContext> context;
};

struct TlsSession::Native {
  std::unique_ptr<SSL, FreeSession> session;
  BIO* from_peer = nullptr;  // owned by the session
  BIO* to_peer = nullptr;
};

TlsContext::TlsContext(std::unique_ptr<Native> native) : native_(std::move(native)) {}
TlsContext::~TlsContext() = default;

Result<std::shared_ptr<const TlsContext>> TlsContext::ForServer(const std::string& certificate_file,
                                                                const std::string& key_file) {
  auto native = std::make_unique<Native>();
  native->context.reset(SSL_CTX_new(TLS_server_method()));
  SSL_CTX* context = native->context.get();
  if (context == nullptr) return Err(ErrorCode::kInternal, "cannot set up TLS: " + TakeReason("out of memory"));
  SSL_CTX_set_min_proto_version(context, TLS1_2_VERSION);
  SSL_CTX_set_options(context, SSL_OP_NO_RENEGOTIATION | SSL_OP_CIPHER_SERVER_PREFERENCE);
  // An idle session keeps no record buffers.
  SSL_CTX_set_mode(context, SSL_MODE_RELEASE_BUFFERS | SSL_MODE_ENABLE_PARTIAL_WRITE);
  SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_alpn_select_cb(context, &SelectProtocol, nullptr);
  ERR_clear_error();
  // Without this the library asks whoever sits at the terminal.
  SSL_CTX_set_default_passwd_cb(context, [](char*, int, int, void*) { return -1; });
  if (SSL_CTX_use_certificate_chain_file(context, certificate_file.c_str()) != 1)
    return CannotLoad("certificate", "a chain in PEM", certificate_file);
  if (SSL_CTX_use_PrivateKey_file(context, key_file.c_str(), SSL_FILETYPE_PEM) != 1)
    return CannotLoad("key", "the private key of the certificate in PEM, not encrypted", key_file);
  if (SSL_CTX_check_private_key(context) != 1) {
    return Err(ErrorCode::kCorrupt, "the TLS key does not belong to the certificate " + certificate_file, key_file);
  }
  return std::shared_ptr<const TlsContext>(new TlsContext(std::move(native)));
}

TlsSession::TlsSession(std::shared_ptr<const TlsContext> context)
    : context_(std::move(context)), native_(std::make_unique<Native>()) {
  native_->session.reset(SSL_new(context_->native_->context.get()));
  SSL* session = native_->session.get();
  native_->from_peer = BIO_new(BIO_s_mem());
  native_->to_peer = BIO_new(BIO_s_mem());
  CHECK(session != nullptr && native_->from_peer != nullptr && native_->to_peer != nullptr) << "out of memory";
  SSL_set_bio(session, native_->from_peer, native_->to_peer);
  SSL_set_accept_state(session);
}

TlsSession::~TlsSession() = default;

bool TlsSession::ready() const {
  return SSL_is_init_finished(native_->session.get()) == 1;
}

Status TlsSession::Receive(std::string_view wire) {
  while (!wire.empty()) {
    const int taken = BIO_write(native_->from_peer, wire.data(), Clamp(wire.size()));
    if (taken <= 0) return Err(ErrorCode::kResourceExhausted, "no memory for TLS records");
    wire.remove_prefix(static_cast<std::size_t>(taken));
  }
  return Advance();
}

Status TlsSession::Advance() {
  SSL* session = native_->session.get();
  std::array<char, 16 << 10> piece;  // a record holds no more
  for (;;) {
    ERR_clear_error();
    const int count = SSL_read(session, piece.data(), static_cast<int>(piece.size()));
    if (count > 0) {
      plain_.append(piece.data(), static_cast<std::size_t>(count));
      continue;
    }
    switch (SSL_get_error(session, count)) {
      case SSL_ERROR_WANT_READ:
      case SSL_ERROR_WANT_WRITE:
        return {};
      case SSL_ERROR_ZERO_RETURN:
        peer_closed_ = true;
        return {};
      default:
        plain_http_ = ERR_GET_REASON(ERR_peek_error()) == SSL_R_HTTP_REQUEST;
        return Err(ErrorCode::kUnavailable, "TLS failed: " + TakeReason("protocol error"));
    }
  }
}

Status TlsSession::Encrypt(std::string_view plain) {
  while (!plain.empty()) {
    ERR_clear_error();
    const int taken = SSL_write(native_->session.get(), plain.data(), Clamp(plain.size()));
    if (taken <= 0) return Err(ErrorCode::kUnavailable, "TLS failed: " + TakeReason("cannot encrypt"));
    plain.remove_prefix(static_cast<std::size_t>(taken));
  }
  return {};
}

void TlsSession::Close() {
  ERR_clear_error();
  if (ready()) SSL_shutdown(native_->session.get());
  ERR_clear_error();
}

std::string TlsSession::TakePlain() {
  return std::exchange(plain_, {});
}

std::string TlsSession::TakeWire() {
  std::string wire(BIO_ctrl_pending(native_->to_peer), '\0');
  if (wire.empty()) return wire;
  const int count = BIO_read(native_->to_peer, wire.data(), Clamp(wire.size()));
  wire.resize(count > 0 ? static_cast<std::size_t>(count) : 0);
  return wire;
}

}  // namespace galley::net
