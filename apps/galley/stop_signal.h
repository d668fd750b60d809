// SPDX-License-Identifier: Apache-2.0
// SIGTERM and SIGINT for a server: the first one asks it to stop, a second one ends the process at once, with the code
// that a shell reports for that signal. A signal handler can only reach static storage, which is hidden here.
#pragma once

#include <chrono>

namespace galley::app {

class StopSignal {
 public:
  // Takes both signals over until destruction. At most one exists at a time.
  StopSignal();
  ~StopSignal();
  StopSignal(const StopSignal&) = delete;
  StopSignal& operator=(const StopSignal&) = delete;

  [[nodiscard]] bool requested() const;
  // Blocks until the first signal and returns its number.
  [[nodiscard]] int Wait() const;
};

}  // namespace galley::app
