// SPDX-License-Identifier: Apache-2.0
// The client against the server: over TCP of both families, unix sockets and TLS.
#include "galley/net/http_client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <future>
#include <string>
#include <thread>

#include "galley/net/event_loop.h"
#include "galley/net/http_server.h"
#include "galley/net/test_raw_client.h"
#include "galley/net/test_server.h"
#include "galley/net/tls.h"

namespace galley::net {
namespace {

using ::testing::HasSubstr;
using namespace std::chrono_literals;

class ScratchFolder {
 public:
  ScratchFolder() : path_(std::filesystem::temp_directory_path() / ("galley_net_" + std::to_string(getpid()))) {
    std::filesystem::create_directories(path_);
  }
  ~ScratchFolder() { std::filesystem::remove_all(path_); }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  [[nodiscard]] std::string operator/(const std::string& name) const { return (path_ / name).string(); }

 private:
  std::filesystem::path path_;
};

// A key and a certificate for 127.0.0.1 and "localhost", signed by itself, valid for an hour.
TlsFiles MakeCertificate(const ScratchFolder& folder, const std::string& name) {
  const TlsFiles files = {folder / (name + ".pem"), folder / (name + ".key")};
  EVP_PKEY* key = EVP_EC_gen("P-256");
  X509* certificate = X509_new();
  X509_set_version(certificate, 2);
  ASN1_INTEGER_set(X509_get_serialNumber(certificate), 1);
  X509_gmtime_adj(X509_getm_notBefore(certificate), -60);
  X509_gmtime_adj(X509_getm_notAfter(certificate), 3600);
  X509_set_pubkey(certificate, key);
  X509_NAME* subject = X509_get_subject_name(certificate);
  X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_ASC, reinterpret_cast<const unsigned char*>("test"), -1, -1, 0);
  X509_set_issuer_name(certificate, subject);
  X509V3_CTX context;
  X509V3_set_ctx(&context, certificate, certificate, nullptr, nullptr, 0);
  X509_EXTENSION* names = X509V3_EXT_conf_nid(nullptr, &context, NID_subject_alt_name, "DNS:localhost,IP:127.0.0.1");
  X509_add_ext(certificate, names, -1);
  X509_sign(certificate, key, EVP_sha256());
  std::FILE* out = std::fopen(files.certificate.c_str(), "w");
  PEM_write_X509(out, certificate);
  std::fclose(out);
  out = std::fopen(files.key.c_str(), "w");
  PEM_write_PrivateKey(out, key, nullptr, nullptr, 0, nullptr, nullptr);
  std::fclose(out);
  X509_EXTENSION_free(names);
  X509_free(certificate);
  EVP_PKEY_free(key);
  return files;
}

HttpRequest MakeRequest(std::string method, std::string path) {
  HttpRequest request;
  request.method = std::move(method);
  request.path = std::move(path);
  return request;
}

// Whole answers, kept connections, large bodies, and a stream read event by event.
void Exercise(TestServer& server, const std::string& address, const ClientOptions& options = {}) {
  auto client = HttpClient::Create(address, options);
  ASSERT_TRUE(client) << client.error().ToString();
  const std::int64_t before = server->stats().accepted;
  auto answer = client->Get("/echo?a=1");
  ASSERT_TRUE(answer) << answer.error().ToString();
  EXPECT_EQ(answer->status, 200);
  EXPECT_EQ(answer->body, "GET a=1 ");
  const std::string large(3'000'000, 'x');
  answer = client->PostJson("/echo", large);
  ASSERT_TRUE(answer) << answer.error().ToString();
  EXPECT_EQ(answer->body, "POST  " + large);
  answer = client->Send(MakeRequest("HEAD", "/echo"));
  ASSERT_TRUE(answer) << answer.error().ToString();
  EXPECT_EQ(answer->body, "");
  EXPECT_EQ(client->Get("/nothing")->status, 404);
  EXPECT_EQ(server->stats().accepted, before + 1) << "the connection was kept";

  std::thread writer([&] {
    const Reply reply = server.Held();
    reply->StartStream(200, {{"Content-Type", "text/event-stream"}});
    for (int i = 0; i < 100; ++i) EXPECT_TRUE(reply->Write(FormatSse("n", std::to_string(i))));
    EXPECT_TRUE(reply->Write(FormatSse("", std::string(200'000, 'y'))));
    reply->Finish();
  });
  auto stream = client->Open(MakeRequest("GET", "/hold"));
  ASSERT_TRUE(stream) << stream.error().ToString();
  EXPECT_EQ(stream->status(), 200);
  EXPECT_EQ(stream->headers().Get("content-type"), "text/event-stream");
  for (int i = 0; i < 100; ++i) {
    auto event = stream->NextEvent();
    ASSERT_TRUE(event && *event) << i;
    EXPECT_EQ(**event, (SseEvent{"n", std::to_string(i), ""}));
  }
  auto event = stream->NextEvent();
  ASSERT_TRUE(event && *event);
  EXPECT_EQ((*event)->data, std::string(200'000, 'y'));
  event = stream->NextEvent();
  ASSERT_TRUE(event);
  EXPECT_FALSE(*event) << "the end";
  writer.join();
}

TEST(HttpClient, OverTcp) {
  TestServer server;
  EXPECT_EQ(server->addresses(), std::vector<std::string>{"http://127.0.0.1:" + std::to_string(server.port())});
  Exercise(server, server->addresses()[0]);
  Exercise(server, "http://localhost:" + std::to_string(server.port()) + "/");
}

TEST(HttpClient, OverIpv6) {
  if (auto possible = Listen("[::1]:0"); possible) {
    close(possible->descriptor);
  } else {
    GTEST_SKIP() << "no IPv6 here: " << possible.error().ToString();
  }
  ServerOptions options;
  options.listen = {"[::1]:0"};
  TestServer server(options);
  Exercise(server, "http://[::1]:" + std::to_string(server.port()));
}

TEST(HttpClient, OverAUnixSocket) {
  const ScratchFolder folder;
  ServerOptions options;
  options.listen = {"unix:" + (folder / "s")};
  {
    TestServer server(options);
    EXPECT_EQ(server.port(), 0);
    Exercise(server, server->addresses()[0]);
    EXPECT_FALSE(HttpServer::Create(options, [](const Request&, const Reply&) {})) << "it is in use";
  }
  EXPECT_FALSE(std::filesystem::exists(folder / "s"));
  // What a process that died leaves behind is taken over; another file is not.
  auto stale = Listen(options.listen[0]);
  ASSERT_TRUE(stale);
  close(stale->descriptor);
  {
    TestServer server(options);
    Exercise(server, server->addresses()[0]);
  }
  std::ofstream(folder / "s") << "precious";
  EXPECT_FALSE(HttpServer::Create(options, [](const Request&, const Reply&) {}));
  EXPECT_TRUE(std::filesystem::exists(folder / "s"));
}

TEST(HttpClient, OverTls) {
  const ScratchFolder folder;
  const TlsFiles files = MakeCertificate(folder, "server");
  ServerOptions options;
  options.tls = files;
  TestServer server(options);
  const std::string port = std::to_string(server.port());
  EXPECT_EQ(server->addresses()[0], "https://127.0.0.1:" + port);
  ClientOptions client;
  client.authorities_file = files.certificate;
  Exercise(server, "https://127.0.0.1:" + port, client);
  Exercise(server, "https://localhost:" + port, client);

  // A client that does not know the certificate sends nothing over the connection.
  ClientOptions stranger;
  stranger.authorities_file = MakeCertificate(folder, "other").certificate;
  auto untrusted = HttpClient::Create("https://127.0.0.1:" + port, stranger);
  ASSERT_TRUE(untrusted);
  EXPECT_THAT(untrusted->Get("/echo").error().message, HasSubstr("certificate verify failed"));

  // Plain HTTP on the port of TLS, and a client that connects and goes.
  RawClient plain(server.port());
  plain.Send("GET /echo HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_THAT(plain.UntilEnd(), ::testing::Not(HasSubstr("200 OK")));
  EXPECT_TRUE(plain.ended());
}

TEST(HttpClient, AClientOverTlsThatGoesAwayIsNoticed) {
  const ScratchFolder folder;
  ServerOptions options;
  options.tls = MakeCertificate(folder, "server");
  TestServer server(options);
  ClientOptions client_options;
  client_options.authorities_file = options.tls.certificate;
  auto client = HttpClient::Create(server->addresses()[0], client_options);
  ASSERT_TRUE(client);
  Reply reply;
  std::thread writer([&] {
    reply = server.Held();
    reply->StartStream(200, {});
  });
  {
    auto stream = client->Open(MakeRequest("GET", "/hold"));
    ASSERT_TRUE(stream) << stream.error().ToString();
  }
  writer.join();
  EXPECT_TRUE(Eventually([&] { return reply->closed(); }));
}

TEST(Tls, NamesAreChecked) {
  const ScratchFolder folder;
  const TlsFiles files = MakeCertificate(folder, "server");
  const auto server_context = TlsContext::ForServer(files.certificate, files.key);
  const auto client_context = TlsContext::ForClient(files.certificate);
  ASSERT_TRUE(server_context && client_context);
  for (const auto& [host, good] : {std::pair<std::string, bool>{"localhost", true},
                                   {"127.0.0.1", true},
                                   {"example.org", false},
                                   {"127.0.0.2", false}}) {
    TlsSession server(*server_context);
    TlsSession client(*client_context, host);
    Status result;
    for (int i = 0; i < 10 && result && !(client.ready() && server.ready()); ++i) {
      result = server.Receive(client.TakeWire());
      if (result) result = client.Receive(server.TakeWire());
    }
    EXPECT_EQ(result.has_value(), good) << host;
    if (!good) continue;
    ASSERT_TRUE(client.Encrypt("hello"));
    ASSERT_TRUE(server.Receive(client.TakeWire()));
    EXPECT_EQ(server.TakePlain(), "hello");
    client.Close();
    ASSERT_TRUE(server.Receive(client.TakeWire()));
    EXPECT_TRUE(server.peer_closed());
  }
}

TEST(Tls, UnusableFilesAreNamed) {
  const ScratchFolder folder;
  const TlsFiles one = MakeCertificate(folder, "one");
  const TlsFiles two = MakeCertificate(folder, "two");
  EXPECT_EQ(TlsContext::ForServer(folder / "missing", one.key).error().code, ErrorCode::kIo);
  EXPECT_EQ(TlsContext::ForServer(one.certificate, folder / "missing").error().where, folder / "missing");
  EXPECT_EQ(TlsContext::ForServer(one.certificate, one.certificate).error().code, ErrorCode::kIo);
  EXPECT_FALSE(TlsContext::ForServer(one.certificate, two.key));
  EXPECT_EQ(TlsContext::ForClient(folder / "missing").error().code, ErrorCode::kIo);
  ServerOptions options;
  options.tls.certificate = one.certificate;
  EXPECT_EQ(options.Validate().error().where, "tls");
}

TEST(HttpClient, KeptConnectionsThatEndedAreReplaced) {
  ServerOptions options;
  options.idle_timeout = 30ms;
  TestServer server(options);
  auto client = HttpClient::Create(server->addresses()[0]);
  ASSERT_TRUE(client);
  for (int i = 0; i < 3; ++i) {
    auto answer = client->Get("/echo");
    ASSERT_TRUE(answer) << answer.error().ToString();
    EXPECT_TRUE(Eventually([&] { return server->stats().connections == 0; }));
  }
  EXPECT_EQ(server->stats().accepted, 3);
}

TEST(HttpClient, WaitsHaveDeadlines) {
  TestServer server;
  ClientOptions options;
  options.idle_timeout = 400ms;
  auto client = HttpClient::Create(server->addresses()[0], options);
  ASSERT_TRUE(client);
  EXPECT_EQ(client->Get("/hold").error().code, ErrorCode::kDeadline);
  server.Held();
  auto stream_client = HttpClient::Create(server->addresses()[0], options);
  std::thread writer([&] {
    const Reply reply = server.Held();
    reply->StartStream(200, {});
    EXPECT_TRUE(Eventually([&] { return reply->closed(); }));
  });
  {
    auto stream = stream_client->Open(MakeRequest("GET", "/hold"));
    ASSERT_TRUE(stream);
    EXPECT_EQ(stream->Read().error().code, ErrorCode::kDeadline);
  }
  writer.join();
}

TEST(HttpClient, FailuresAreTold) {
  for (const std::string address : {"", "localhost:80", "http://", "http://:80", "http://h/path", "ftp://h"}) {
    const auto client = HttpClient::Create(address);
    EXPECT_EQ(client.has_value() ? ErrorCode::kInternal : client.error().code, ErrorCode::kInvalidArgument) << address;
  }
  int free_port = 0;
  {
    const TestServer gone;
    free_port = gone.port();
  }
  auto refused = HttpClient::Create("http://127.0.0.1:" + std::to_string(free_port));
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->Get("/").error().code, ErrorCode::kUnavailable);

  // A stream that breaks off is not taken for one that ended.
  TestServer server;
  auto client = HttpClient::Create(server->addresses()[0]);
  std::promise<void> half_came;
  std::thread writer([&] {
    Reply reply = server.Held();
    reply->StartStream(200, {});
    EXPECT_TRUE(reply->Write("half"));
    half_came.get_future().wait();
    reply.reset();
  });
  auto stream = client->Open(MakeRequest("GET", "/hold"));
  auto piece = stream->Read();
  half_came.set_value();
  EXPECT_EQ(piece.value_or("nothing"), "half");
  piece = stream->Read();
  writer.join();
  ASSERT_FALSE(piece);
  EXPECT_EQ(piece.error().code, ErrorCode::kUnavailable);
}

}  // namespace
}  // namespace galley::net
