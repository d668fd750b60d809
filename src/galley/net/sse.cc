// SPDX-License-Identifier: Apache-2.0
#include "galley/net/sse.h"

#include <utility>

namespace galley::net {

void AppendSse(std::string& out, std::string_view event, std::string_view data) {
  if (!event.empty()) out.append("event: ").append(event).append("\n");
  for (;;) {
    const std::size_t end = data.find_first_of("\r\n");
    out.append("data: ").append(data.substr(0, end)).append("\n");
    if (end == std::string_view::npos) break;
    data.remove_prefix(end + (data.substr(end, 2) == "\r\n" ? 2 : 1));
  }
  out += '\n';
}

std::string FormatSse(std::string_view event, std::string_view data) {
  std::string out;
  AppendSse(out, event, data);
  return out;
}

void SseParser::Feed(std::string_view bytes) {
  while (!bytes.empty() && !failed_) {
    if (std::exchange(after_return_, false) && bytes.front() == '\n') {
      bytes.remove_prefix(1);
      continue;
    }
    const std::size_t end = bytes.find_first_of("\r\n");
    line_.append(bytes.substr(0, end));
    failed_ = line_.size() + event_.data.size() > event_bytes_max_;
    if (failed_ || end == std::string_view::npos) return;
    after_return_ = bytes[end] == '\r';
    bytes.remove_prefix(end + 1);
    std::string_view line = line_;
    if (!std::exchange(began_, true) && line.starts_with("\xef\xbb\xbf")) line.remove_prefix(3);
    OnLine(line);
    line_.clear();
  }
}

void SseParser::OnLine(std::string_view line) {
  if (line.empty()) {
    // Fields without data make no event, but the id stays for those that follow.
    if (std::exchange(has_data_, false)) ready_.push_back(event_);
    event_.event.clear();
    event_.data.clear();
    return;
  }
  if (line.front() == ':') {
    ++comments_;
    return;
  }
  const std::size_t colon = line.find(':');
  const std::string_view name = line.substr(0, colon);
  std::string_view value = colon == std::string_view::npos ? std::string_view{} : line.substr(colon + 1);
  if (value.starts_with(' ')) value.remove_prefix(1);
  if (name == "data") {
    if (has_data_) event_.data += '\n';
    event_.data += value;
    has_data_ = true;
  } else if (name == "event") {
    event_.event = value;
  } else if (name == "id" && value.find('\0') == std::string_view::npos) {
    event_.id = value;
  }
}

std::optional<SseEvent> SseParser::Next() {
  if (ready_.empty()) return std::nullopt;
  SseEvent event = std::move(ready_.front());
  ready_.pop_front();
  return event;
}

}  // namespace galley::net
