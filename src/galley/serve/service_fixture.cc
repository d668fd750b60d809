// SPDX-License-Identifier: Apache-2.0
#include "galley/serve/service_fixture.h"

#include <gtest/gtest.h>

#include <charconv>

#include "galley/base/check.h"

namespace galley::serve {
namespace {

constexpr std::chrono::seconds kPatience{120};

}  // namespace

const text::Tokenizer& NanoTokenizer() {
  static const auto* tokenizer = [] {
    auto loaded = text::Tokenizer::Load(std::string(GALLEY_SOURCE_DIR) + "/models/nano/tokenizer.json");
    CHECK(loaded.has_value()) << loaded.error().message;
    return new text::Tokenizer(std::move(*loaded));
  }();
  return *tokenizer;
}

void MemoryReply::Send(net::HttpResponse response) {
  std::lock_guard lock(mutex_);
  response_ = std::move(response);
  ++ends_;
  closed_ = nullptr;
  changed_.notify_all();
}

void MemoryReply::StartStream(int status, net::Headers headers) {
  std::lock_guard lock(mutex_);
  EXPECT_FALSE(streaming_);
  streaming_ = true;
  response_.status = status;
  response_.headers = std::move(headers);
  changed_.notify_all();
}

bool MemoryReply::Write(std::string bytes) {
  std::lock_guard lock(mutex_);
  EXPECT_TRUE(streaming_);
  EXPECT_EQ(ends_, 0) << "written after the end: " << bytes;
  if (refusing_) return false;
  response_.body += bytes;
  changed_.notify_all();
  return true;
}

void MemoryReply::Finish() {
  std::lock_guard lock(mutex_);
  ++ends_;
  closed_ = nullptr;
  changed_.notify_all();
}

void MemoryReply::OnClosed(std::function<void()> closed) {
  std::lock_guard lock(mutex_);
  closed_ = std::move(closed);
}

bool MemoryReply::closed() const {
  std::lock_guard lock(mutex_);
  return refusing_ && ends_ == 0;
}

void MemoryReply::Close() {
  std::function<void()> closed;
  {
    std::lock_guard lock(mutex_);
    refusing_ = true;
    closed = std::move(closed_);
  }
  if (closed) closed();
}

void MemoryReply::RefuseWrites() {
  std::lock_guard lock(mutex_);
  refusing_ = true;
}

void MemoryReply::Wait() {
  std::unique_lock lock(mutex_);
  ASSERT_TRUE(changed_.wait_for(lock, kPatience, [this] { return ends_ > 0; })) << "no end; so far " << response_.body;
}

void MemoryReply::WaitForText(std::string_view text) {
  std::unique_lock lock(mutex_);
  ASSERT_TRUE(changed_.wait_for(lock, kPatience, [&] { return response_.body.find(text) != std::string::npos; }))
      << text << " never came; so far " << response_.body;
}

bool MemoryReply::ended() const {
  return ends() > 0;
}
int MemoryReply::ends() const {
  std::lock_guard lock(mutex_);
  return ends_;
}
int MemoryReply::status() const {
  std::lock_guard lock(mutex_);
  return response_.status;
}
std::string MemoryReply::header(std::string_view name) const {
  std::lock_guard lock(mutex_);
  return std::string(response_.headers.Get(name));
}
std::string MemoryReply::text() const {
  std::lock_guard lock(mutex_);
  return response_.body;
}

protocol::Json MemoryReply::json() const {
  auto value = protocol::ParseJson(text());
  EXPECT_TRUE(value.has_value()) << text();
  return value ? std::move(*value) : protocol::Json();
}

namespace {

std::vector<std::string> Fields(const std::string& stream, std::string_view field) {
  std::vector<std::string> values;
  const std::string head = std::string(field) + ": ";
  std::string_view rest = stream;
  while (!rest.empty()) {
    const std::size_t end = std::min(rest.find('\n'), rest.size());
    const std::string_view line = rest.substr(0, end);
    if (line.starts_with(head)) values.emplace_back(line.substr(head.size()));
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  return values;
}

}  // namespace

std::vector<std::string> MemoryReply::data() const {
  return Fields(text(), "data");
}
std::vector<std::string> MemoryReply::names() const {
  return Fields(text(), "event");
}

Served::Served(FakeEngineOptions engine_options, ServiceOptions options, std::vector<std::string> keys)
    : engine(std::make_unique<FakeEngine>(NanoTokenizer(), std::move(engine_options))) {
  if (options.model_names.front() == "model") options.model_names = {"nano"};
  auto checked = Keys::Create(std::move(keys));
  CHECK(checked.has_value()) << checked.error().message;
  service = std::make_unique<Service>(*engine, std::move(options), std::move(*checked));
}

std::shared_ptr<MemoryReply> Served::Begin(std::string_view method, std::string_view path, std::string_view body,
                                           net::Headers headers) {
  auto request = std::make_shared<net::HttpRequest>();
  request->method = method;
  request->path = path;
  request->body = body;
  request->headers = std::move(headers);
  request->accepted = std::chrono::steady_clock::now();
  auto reply = std::make_shared<MemoryReply>();
  service->Handle(request, reply);
  return reply;
}

std::shared_ptr<MemoryReply> Served::Ask(std::string_view method, std::string_view path, std::string_view body,
                                         net::Headers headers) {
  auto reply = Begin(method, path, body, std::move(headers));
  reply->Wait();
  return reply;
}

void Served::WaitIdle() {
  EXPECT_TRUE(service->WaitIdle(kPatience));
}

FakeEngineOptions Says(std::string text) {
  FakeEngineOptions options;
  options.say = [text = std::move(text)](const engine::EngineRequest&, int) { return Saying(NanoTokenizer(), text); };
  return options;
}

std::string At(const protocol::Json& value, std::string_view path) {
  const protocol::Json* at = &value;
  while (!path.empty() && at != nullptr) {
    const std::size_t dot = std::min(path.find('.'), path.size());
    const std::string_view key = path.substr(0, dot);
    path.remove_prefix(std::min(dot + 1, path.size()));
    std::size_t index = 0;
    const bool number = std::from_chars(key.data(), key.data() + key.size(), index).ec == std::errc();
    const protocol::Json::Array* array = at->if_array();
    if (number && array != nullptr)
      at = index < array->size() ? &(*array)[index] : nullptr;
    else
      at = at->Find(key);
  }
  return at == nullptr ? "absent" : DumpJson(*at);
}

}  // namespace galley::serve
