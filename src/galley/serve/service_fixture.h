// SPDX-License-Identifier: Apache-2.0
// A service over a fake engine with nano's tokenizer, and replies that tests can look into. Test code only.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "galley/protocol/json.h"
#include "galley/serve/fake_engine.h"
#include "galley/serve/service.h"

namespace galley::serve {

[[nodiscard]] const text::Tokenizer& NanoTokenizer();

// Keeps what it is given; Close plays a client that goes away.
class MemoryReply : public net::Responder {
 public:
  void Send(net::HttpResponse response) override;
  void StartStream(int status, net::Headers headers) override;
  [[nodiscard]] bool Write(std::string bytes) override;
  void Finish() override;
  void OnClosed(std::function<void()> closed) override;
  [[nodiscard]] bool closed() const override;

  void Close();
  void RefuseWrites();  // as the transport does with a client that reads too slowly
  // Waits for the end; fails the test after a generous time.
  void Wait();
  void WaitForText(std::string_view text);

  [[nodiscard]] bool ended() const;
  [[nodiscard]] int ends() const;
  [[nodiscard]] int status() const;
  [[nodiscard]] std::string header(std::string_view name) const;
  [[nodiscard]] std::string text() const;  // of the response, or of the stream so far
  [[nodiscard]] protocol::Json json() const;
  // `data:` of the stream's events, in order, and their names.
  [[nodiscard]] std::vector<std::string> data() const;
  [[nodiscard]] std::vector<std::string> names() const;

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  net::HttpResponse response_;
  bool streaming_ = false;
  bool refusing_ = false;
  int ends_ = 0;
  std::function<void()> closed_;
};

struct Served {
  explicit Served(FakeEngineOptions engine_options = {}, ServiceOptions options = {},
                  std::vector<std::string> keys = {});

  std::unique_ptr<FakeEngine> engine;
  std::unique_ptr<Service> service;

  // Does not wait for the end.
  [[nodiscard]] std::shared_ptr<MemoryReply> Begin(std::string_view method, std::string_view path,
                                                   std::string_view body = "", net::Headers headers = {});
  [[nodiscard]] std::shared_ptr<MemoryReply> Ask(std::string_view method, std::string_view path,
                                                 std::string_view body = "", net::Headers headers = {});
  [[nodiscard]] std::shared_ptr<MemoryReply> Post(std::string_view path, std::string_view body) {
    return Ask("POST", path, body);
  }
  // Until the engine has nothing of this service any more.
  void WaitIdle();
};

// An engine that says `text` to everybody.
[[nodiscard]] FakeEngineOptions Says(std::string text);

// Member at a path of keys and indexes, as JSON text: At(reply->json(), "choices.0.message.content").
[[nodiscard]] std::string At(const protocol::Json& value, std::string_view path);

}  // namespace galley::serve
