// SPDX-License-Identifier: Apache-2.0
// Server-sent events as the HTML standard defines text/event-stream: writing, and reading from pieces of any size.
// Pure; a parser belongs to one thread.
#pragma once

#include <cstddef>
#include <deque>
#include <optional>
#include <string>
#include <string_view>

namespace galley::net {

struct SseEvent {
  std::string event;  // empty: "message"
  std::string data;
  std::string id;

  bool operator==(const SseEvent&) const = default;
};

// Adds "event: …" unless `event` is empty, one "data: …" for each line of `data`, an empty line. `event` holds no line
// break.
void AppendSse(std::string& out, std::string_view event, std::string_view data);
// The same as a string of its own.
[[nodiscard]] std::string FormatSse(std::string_view event, std::string_view data);

class SseParser {
 public:
  // An event longer than that is a failure of the sender's.
  explicit SseParser(std::size_t event_bytes_max = 16 << 20) : event_bytes_max_(event_bytes_max) {}

  void Feed(std::string_view bytes);
  [[nodiscard]] std::optional<SseEvent> Next();  // events in order; nullopt: none is complete
  [[nodiscard]] std::size_t comments() const { return comments_; }
  [[nodiscard]] bool failed() const { return failed_; }  // too long; nothing more is read

 private:
  void OnLine(std::string_view line);

  std::size_t event_bytes_max_;
  std::string line_;
  SseEvent event_;
  bool has_data_ = false;
  bool after_return_ = false;  // the last byte was '\r': a '\n' belongs to it
  bool began_ = false;         // past the byte order mark
  bool failed_ = false;
  std::size_t comments_ = 0;
  std::deque<SseEvent> ready_;
};

}  // namespace galley::net
