// SPDX-License-Identifier: Apache-2.0
// Standard input, output and error of the program, as the commands see them. Results go to output, everything for the
// person at the keyboard (progress, warnings, errors) goes to error. A reader of our output that went away is not an
// error: writing then does nothing and output_closed() says so. Owned by main; used by one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "galley/base/error.h"
#include "interrupt.h"

namespace galley::app {

struct Descriptors {
  int in = 0;
  int out = 1;
  int err = 2;
};

// What ReadLine came to.
enum class ReadEnd { kLine, kEndOfInput, kInterrupted };

class Terminal {
 public:
  explicit Terminal(Descriptors descriptors);
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  [[nodiscard]] bool in_is_tty() const { return in_is_tty_; }
  [[nodiscard]] bool out_is_tty() const { return out_is_tty_; }
  [[nodiscard]] bool err_is_tty() const { return err_is_tty_; }

  // Exactly these bytes, at once.
  void Write(std::string_view text);
  // Text that a model or a file made: on a terminal, control characters other than newline and tab are shown as U+FFFD,
  // so that a text cannot drive the terminal.
  void WriteForeign(std::string_view text);
  // One line on standard error, with the program's name in front; clears the progress line first.
  void Complain(std::string_view message);
  // One line on standard error, shown on a terminal as WriteForeign does.
  void Note(std::string_view line);
  // Replaces the progress line; nothing unless standard error is a terminal. "" clears it.
  void Progress(std::string_view line);

  [[nodiscard]] bool output_closed() const { return output_closed_; }
  // kIo when a write failed for another reason than a reader that went away (a full disk).
  [[nodiscard]] const Status& write_status() const { return write_status_; }

  // The rest of standard input. kInvalidArgument above `bytes_max`, kIo.
  [[nodiscard]] Result<std::string> ReadAll(std::size_t bytes_max);
  // The next line without its end; the last one needs none. Errors: kInvalidArgument for a line above 16 MiB, kIo.
  [[nodiscard]] Result<ReadEnd> ReadLine(const Interrupt& interrupt, std::string& line);

 private:
  Descriptors descriptors_;
  bool in_is_tty_;
  bool out_is_tty_;
  bool err_is_tty_;
  bool output_closed_ = false;
  bool progress_shown_ = false;
  Status write_status_;
  std::string buffer_;  // read ahead by ReadLine
  bool input_ended_ = false;
};

// `text` with C0 and C1 control characters, except newline and tab, replaced by U+FFFD. `text` is UTF-8.
[[nodiscard]] std::string WithoutControls(std::string_view text);

}  // namespace galley::app
