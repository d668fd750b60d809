// SPDX-License-Identifier: Apache-2.0
#include "galley/serve/http_adapter.h"

#include <utility>

namespace galley::serve {
namespace {

net::Headers ToNet(Headers headers) {
  net::Headers fields;
  for (auto& [name, value] : headers) fields.Add(std::move(name), std::move(value));
  return fields;
}

class HttpReply : public Reply {
 public:
  explicit HttpReply(std::shared_ptr<net::Responder> responder) : responder_(std::move(responder)) {}

  void Send(Response response) override {
    responder_->Send(
        {.status = response.status, .headers = ToNet(std::move(response.headers)), .body = std::move(response.body)});
  }
  void StartStream(int status, Headers headers) override { responder_->StartStream(status, ToNet(std::move(headers))); }
  [[nodiscard]] bool Write(std::string bytes) override { return responder_->Write(std::move(bytes)); }
  void Finish() override { responder_->Finish(); }
  void OnClosed(std::function<void()> closed) override { responder_->OnClosed(std::move(closed)); }

 private:
  std::shared_ptr<net::Responder> responder_;
};

}  // namespace

net::Handler HandlerOf(Service& service) {
  return [&service](const std::shared_ptr<const net::HttpRequest>& http,
                    const std::shared_ptr<net::Responder>& responder) {
    auto request = std::make_shared<Request>();
    request->method = http->method;
    request->path = http->path;
    request->query = http->query;
    request->headers = http->headers.fields();
    request->body = http->body;
    request->peer = http->peer;
    request->accepted = http->accepted;
    service.Handle(request, std::make_shared<HttpReply>(responder));
  };
}

}  // namespace galley::serve
