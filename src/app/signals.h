// SPDX-License-Identifier: Apache-2.0
// Ctrl-C and SIGTERM: the first asks the run to end after its step with the model saved, the second ends the process at
// once with 128 + its number.
#pragma once

#include <csignal>
#include <string>

namespace expertmesh::app {

// A reader of the output that goes away does not end the run.
void ignore_broken_pipes();

// From here on the two signals are wishes; before, each ends the process as it does everywhere. Any thread, any number
// of times.
void take_stop_signals();

// The first of them that came; 0: none yet.
int stop_signal();

// While one of these lives, the two signals remove the file before they end the process as they do everywhere; one
// that is ignored, as in the background of a script, stays so. One at a time.
class FileGoneOnSignal {
 public:
  explicit FileGoneOnSignal(const std::string& path);
  ~FileGoneOnSignal();
  FileGoneOnSignal(const FileGoneOnSignal&) = delete;
  FileGoneOnSignal& operator=(const FileGoneOnSignal&) = delete;

 private:
  std::string path_;
  struct sigaction interrupt_before_{}, terminate_before_{};
};

// While one of these lives, the first Ctrl-C is a wish to stop what is being said, and the second ends the process;
// before and after, each ends the process as it does everywhere. One at a time.
class StoppableAnswer {
 public:
  StoppableAnswer();
  ~StoppableAnswer();
  StoppableAnswer(const StoppableAnswer&) = delete;
  StoppableAnswer& operator=(const StoppableAnswer&) = delete;
};
// Whether the living one was told to stop; without one, false. Any thread.
bool is_answer_stopped();

}  // namespace expertmesh::app
