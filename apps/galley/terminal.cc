// SPDX-License-Identifier: Apache-2.0
#include "terminal.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

namespace galley::app {
namespace {

constexpr std::string_view kClearLine = "\r\033[K";
constexpr std::size_t kLineBytesMax = std::size_t{16} << 20;

// Writes everything, whatever the kernel takes at a time. Returns 0 or the error number.
int WriteAll(int descriptor, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(descriptor, text.data(), text.size());
    if (written < 0 && errno != EINTR) return errno;
    if (written > 0) text.remove_prefix(static_cast<std::size_t>(written));
  }
  return 0;
}

}  // namespace

Terminal::Terminal(Descriptors descriptors)
    : descriptors_(descriptors),
      in_is_tty_(::isatty(descriptors.in) == 1),
      out_is_tty_(::isatty(descriptors.out) == 1),
      err_is_tty_(::isatty(descriptors.err) == 1) {}

void Terminal::Write(std::string_view text) {
  if (output_closed_ || !write_status_ || text.empty()) return;
  const int error = WriteAll(descriptors_.out, text);
  if (error == EPIPE || error == EBADF) {
    output_closed_ = true;
  } else if (error != 0) {
    write_status_ = Err(ErrorCode::kIo, fmt::format("cannot write: {}", std::strerror(error)), "standard output");
  }
}

void Terminal::WriteForeign(std::string_view text) {
  Write(out_is_tty_ ? WithoutControls(text) : std::string(text));
}

void Terminal::Complain(std::string_view message) {
  Note(fmt::format("galley: {}", message));
}

void Terminal::Note(std::string_view line) {
  Progress("");
  // Messages quote names and spellings from files. Nowhere is left to report a failure to report.
  (void)WriteAll(descriptors_.err, fmt::format("{}\n", err_is_tty_ ? WithoutControls(line) : std::string(line)));
}

void Terminal::Progress(std::string_view line) {
  if (!err_is_tty_ || (line.empty() && !progress_shown_)) return;
  (void)WriteAll(descriptors_.err, fmt::format("{}{}", kClearLine, line));
  progress_shown_ = !line.empty();
}

Result<std::string> Terminal::ReadAll(std::size_t bytes_max) {
  std::string text = std::exchange(buffer_, {});
  std::array<char, 65536> chunk;
  while (!input_ended_) {
    const ssize_t count = ::read(descriptors_.in, chunk.data(), chunk.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) {
      return Err(ErrorCode::kIo, fmt::format("cannot read: {}", std::strerror(errno)), "standard input");
    }
    input_ended_ = count == 0;
    text.append(chunk.data(), static_cast<std::size_t>(count));
    if (text.size() > bytes_max) {
      return Err(ErrorCode::kInvalidArgument, fmt::format("more than {} bytes; give a shorter text", bytes_max),
                 "standard input");
    }
  }
  return text;
}

Result<ReadEnd> Terminal::ReadLine(const Interrupt& interrupt, std::string& line) {
  std::size_t searched = 0;
  while (true) {
    const std::size_t newline = buffer_.find('\n', searched);
    if (newline != std::string::npos || (input_ended_ && !buffer_.empty())) {
      line = buffer_.substr(0, newline);
      buffer_.erase(0, std::min(newline, buffer_.size() - 1) + 1);
      if (line.ends_with('\r')) line.pop_back();
      return ReadEnd::kLine;
    }
    if (input_ended_) return ReadEnd::kEndOfInput;
    searched = buffer_.size();
    if (searched > kLineBytesMax) {
      return Err(ErrorCode::kInvalidArgument, fmt::format("a line has more than {} bytes", kLineBytesMax),
                 "standard input");
    }
    if (!interrupt.WaitReadable(descriptors_.in)) return ReadEnd::kInterrupted;
    std::array<char, 4096> chunk;
    const ssize_t count = ::read(descriptors_.in, chunk.data(), chunk.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) {
      return Err(ErrorCode::kIo, fmt::format("cannot read: {}", std::strerror(errno)), "standard input");
    }
    input_ended_ = count == 0;
    buffer_.append(chunk.data(), static_cast<std::size_t>(count));
  }
}

std::string WithoutControls(std::string_view text) {
  constexpr std::string_view kReplacement = "\xEF\xBF\xBD";
  std::string out;
  out.reserve(text.size());
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const bool c0 = (byte < 0x20 && byte != '\n' && byte != '\t') || byte == 0x7F;
    const bool c1 = byte == 0xC2 && i + 1 < text.size() && static_cast<unsigned char>(text[i + 1]) < 0xA0;
    if (c0 || c1) out += kReplacement;
    if (c1) ++i;
    if (!c0 && !c1) out += text[i];
  }
  return out;
}

}  // namespace galley::app
