// SPDX-License-Identifier: Apache-2.0
// The server behind TLS, against OpenSSL's own client side; and what is not TLS at all.
#include "galley/net/tls.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>

#include <filesystem>

#include "galley/net/test_raw_client.h"
#include "galley/net/test_server.h"

namespace galley::net {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

// A key and a certificate for "localhost" that it signs itself, valid for an hour, in files of a folder of their own.
class Certificate {
 public:
  Certificate() : folder_(testing::TempDir() + "galley_tls_" + std::to_string(getpid())) {
    std::filesystem::create_directories(folder_);
    const std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)> key(EVP_EC_gen("P-256"), &EVP_PKEY_free);
    const std::unique_ptr<X509, decltype(&X509_free)> made(X509_new(), &X509_free);
    X509* certificate = made.get();
    ASN1_INTEGER_set(X509_get_serialNumber(certificate), 1);
    X509_gmtime_adj(X509_getm_notBefore(certificate), -60);
    X509_gmtime_adj(X509_getm_notAfter(certificate), 3600);
    X509_set_pubkey(certificate, key.get());
    X509_NAME* name = X509_get_subject_name(certificate);
    const std::string host = "localhost";
    X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC, reinterpret_cast<const unsigned char*>(host.data()),
                               static_cast<int>(host.size()), -1, 0);
    X509_set_issuer_name(certificate, name);
    EXPECT_NE(X509_sign(certificate, key.get(), EVP_sha256()), 0);
    const auto write = [](const std::string& file, auto&& put) {
      const std::unique_ptr<BIO, decltype(&BIO_free)> out(BIO_new_file(file.c_str(), "w"), &BIO_free);
      EXPECT_TRUE(out != nullptr && put(out.get()) == 1) << file;
    };
    write(chain(), [&](BIO* out) { return PEM_write_bio_X509(out, certificate); });
    write(files().key,
          [&](BIO* out) { return PEM_write_bio_PrivateKey(out, key.get(), nullptr, nullptr, 0, nullptr, nullptr); });
  }
  ~Certificate() { std::filesystem::remove_all(folder_); }
  Certificate(const Certificate&) = delete;
  Certificate& operator=(const Certificate&) = delete;

  [[nodiscard]] std::string chain() const { return folder_ + "/chain.pem"; }
  [[nodiscard]] TlsFiles files() const { return {.certificate = chain(), .key = folder_ + "/key.pem"}; }

 private:
  std::string folder_;
};

// A client that trusts that certificate alone and speaks one version.
class TlsClient {
 public:
  TlsClient(int port, const std::string& trusted, int version) : raw_(port) {
    SSL_CTX* context = context_.get();
    SSL_CTX_set_security_level(context, 0);  // old versions have to come as far as the server
    SSL_CTX_set_min_proto_version(context, version);
    SSL_CTX_set_max_proto_version(context, version);
    SSL_CTX_load_verify_locations(context, trusted.c_str(), nullptr);
    session_.reset(SSL_new(context));
    constexpr std::array<unsigned char, 12> kProtocols = {2, 'h', '2', 8, 'h', 't', 't', 'p', '/', '1', '.', '1'};
    SSL_set_alpn_protos(session_.get(), kProtocols.data(), kProtocols.size());
    const timeval patience{.tv_sec = 60, .tv_usec = 0};
    setsockopt(raw_.descriptor(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    SSL_set_fd(session_.get(), raw_.descriptor());
    connected_ = SSL_connect(session_.get()) == 1;
  }

  [[nodiscard]] bool connected() const { return connected_; }
  [[nodiscard]] bool trusted() const { return SSL_get_verify_result(session_.get()) == X509_V_OK; }
  [[nodiscard]] std::string protocol() const {
    const unsigned char* name = nullptr;
    unsigned length = 0;
    SSL_get0_alpn_selected(session_.get(), &name, &length);
    return {reinterpret_cast<const char*>(name), length};
  }
  bool Send(const std::string& text) {
    return SSL_write(session_.get(), text.data(), static_cast<int>(text.size())) == static_cast<int>(text.size());
  }
  // All that comes until it ends in `text` or the server closes.
  std::string Until(std::string_view text) {
    std::string all;
    std::array<char, 4096> piece;
    while (!all.ends_with(text)) {
      const int count = SSL_read(session_.get(), piece.data(), static_cast<int>(piece.size()));
      if (count <= 0) break;
      all.append(piece.data(), static_cast<std::size_t>(count));
    }
    return all;
  }
  void Leave() { raw_.Close(); }

 private:
  RawClient raw_;
  std::unique_ptr<SSL_CTX, decltype(&SSL_CTX_free)> context_{SSL_CTX_new(TLS_client_method()), &SSL_CTX_free};
  std::unique_ptr<SSL, decltype(&SSL_free)> session_{nullptr, &SSL_free};
  bool connected_ = false;
};

TEST(Tls, RequestsAndStreamsInTheVersionsThatAreSafe) {
  const Certificate certificate;
  TestServer server({.tls = certificate.files()});
  EXPECT_THAT(server->addresses(), testing::ElementsAre(StartsWith("https://127.0.0.1:")));
  EXPECT_FALSE(TlsClient(server.port(), certificate.chain(), TLS1_1_VERSION).connected());
  for (const int version : {TLS1_2_VERSION, TLS1_3_VERSION}) {
    TlsClient client(server.port(), certificate.chain(), version);
    ASSERT_TRUE(client.connected()) << version;
    EXPECT_TRUE(client.trusted());
    EXPECT_EQ(client.protocol(), "http/1.1");
    // Longer than a record, and than one batch of them.
    const std::string body(300'000, 'b');
    ASSERT_TRUE(client.Send("POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 300000\r\n\r\n" + body));
    EXPECT_THAT(client.Until("POST  " + body), StartsWith("HTTP/1.1 200 OK\r\n"));
    ASSERT_TRUE(client.Send("GET /hold HTTP/1.1\r\nHost: h\r\n\r\n")) << "the connection stays";
    const Reply reply = server.Held();
    reply->StartStream(200, {{"Content-Type", "text/event-stream"}});
    for (const std::string_view event : {"one", "two"}) {
      ASSERT_TRUE(reply->Write("data: " + std::string(event) + "\n\n"));
      EXPECT_THAT(client.Until("data: " + std::string(event) + "\n\n\r\n"), HasSubstr(event)) << "at once";
    }
    std::atomic<bool> gone = false;
    reply->OnClosed([&] { gone = true; });
    client.Leave();
    EXPECT_TRUE(Eventually([&] { return gone.load(); }));
  }
}

// What comes to the port without being TLS: plain HTTP is answered in plain, all of it is told to the log, and half a
// greeting holds the connection only for as long as half a head would.
TEST(Tls, WhatIsNoTlsIsToldOrClosed) {
  const Certificate certificate;
  std::mutex mutex;
  std::vector<std::string> told;
  ServerOptions options{.tls = certificate.files()};
  options.on_rejected = [&](std::string_view, int status, std::string_view reason) {
    const std::lock_guard lock(mutex);
    told.push_back(std::to_string(status) + " " + std::string(reason));
  };
  TestServer server(options);
  options.head_timeout = std::chrono::milliseconds(50);
  TestServer hasty(options);
  struct Case {
    std::string name, bytes, answer, told;
  };
  const std::string https = "400 this port speaks HTTPS: begin the address with https://";
  const Case cases[] = {
      {"HTTP", "GET / HTTP/1.1\r\nHost: h\r\n\r\n", "HTTP/1.1 400 Bad Request\r\n", https},
      {"HTTP with a body", "POST /v1/messages HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\n{}", "HTTP/1.1 400 ",
       https},
      {"zeros", std::string(500, '\0'), "", "400 TLS failed: "},
      {"broken greeting", "\x16\x03\x01\x01\x01" + std::string(300, '\x7F'), "", "400 TLS failed: "},
      {"half a greeting", std::string("\x16\x03\x01\x02\x00\x01", 6), "", ""},
      {"nothing", "", "", ""},
  };
  for (const Case& test : cases) {
    RawClient client(test.told.empty() ? hasty.port() : server.port());
    ASSERT_TRUE(client.Send(test.bytes)) << test.name;
    const std::string all = client.UntilEnd();
    EXPECT_TRUE(client.ended()) << test.name;
    if (test.answer.empty()) {
      EXPECT_THAT(all, Not(HasSubstr("HTTP"))) << test.name;
    } else {
      EXPECT_THAT(all, StartsWith(test.answer)) << test.name;
      EXPECT_THAT(all, HasSubstr("https://")) << test.name;
    }
    const std::lock_guard lock(mutex);
    if (!test.told.empty()) {
      ASSERT_FALSE(told.empty()) << test.name;
      EXPECT_THAT(told.back(), StartsWith(test.told)) << test.name;
    }
  }
  EXPECT_TRUE(TlsClient(server.port(), certificate.chain(), TLS1_3_VERSION).connected());
}

}  // namespace
}  // namespace galley::net
