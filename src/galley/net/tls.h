// SPDX-License-Identifier: Apache-2.0
// TLS 1.2 and 1.3 by OpenSSL as a transformation of bytes: what came from the peer goes in, plain text comes out, and
// the other way round. Pure apart from OpenSSL's random numbers: no sockets. A context is immutable and shared by
// threads; a session belongs to one connection and is used by one thread at a time.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "galley/base/error.h"

namespace galley::net {

class TlsContext {
 public:
  // PEM files. Errors: kIo (cannot be read), kCorrupt (not PEM, or key and certificate do not fit together).
  [[nodiscard]] static Result<std::shared_ptr<const TlsContext>> ForServer(const std::string& certificate_file,
                                                                           const std::string& key_file);
  ~TlsContext();
  TlsContext(const TlsContext&) = delete;
  TlsContext& operator=(const TlsContext&) = delete;

 private:
  friend class TlsSession;
  struct Native;
  explicit TlsContext(std::unique_ptr<Native> native);
  std::unique_ptr<Native> native_;
};

class TlsSession {
 public:
  // The server's side.
  explicit TlsSession(std::shared_ptr<const TlsContext> context);
  ~TlsSession();
  TlsSession(const TlsSession&) = delete;
  TlsSession& operator=(const TlsSession&) = delete;

  // Bytes from the peer; what they decrypt to is appended to TakePlain's text. An error (kUnavailable) is final; what
  // TakeWire then holds (an alert) may still be sent.
  [[nodiscard]] Status Receive(std::string_view wire);
  // Plain text for the peer. It has to wait for ready().
  [[nodiscard]] Status Encrypt(std::string_view plain);
  void Close();  // says goodbye

  [[nodiscard]] std::string TakePlain();
  [[nodiscard]] std::string TakeWire();                              // bytes to send now
  [[nodiscard]] bool ready() const;                                  // the handshake is over
  [[nodiscard]] bool peer_closed() const { return peer_closed_; }    // the peer said goodbye
  [[nodiscard]] bool met_plain_http() const { return plain_http_; }  // what failed was an HTTP request without TLS

 private:
  struct Native;
  [[nodiscard]] Status Advance();

  std::shared_ptr<const TlsContext> context_;
  std::unique_ptr<Native> native_;
  std::string plain_;
  bool peer_closed_ = false;
  bool plain_http_ = false;
};

}  // namespace galley::net
