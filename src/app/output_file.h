// SPDX-License-Identifier: Apache-2.0
// A result file that grows beside its place and moves there once it is whole: under its name there is all of it or
// nothing, also where a signal ends the process. Threads: one. Errors: kData, kResources for a full disk.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "app/signals.h"
#include "base/file.h"

namespace expertmesh::app {

class OutputFile {
 public:
  explicit OutputFile(std::string path);
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;
  ~OutputFile();  // what was not finished goes away

  void append(std::string_view text) { file_->append(text); }
  void finish();

 private:
  std::unique_ptr<base::FileSystem> fs_ = base::make_posix_file_system(base::Code::kData);
  std::string path_, growing_path_;
  FileGoneOnSignal gone_on_signal_;  // before the file is there, so that no signal comes between
  std::unique_ptr<base::WritableFile> file_;
};

}  // namespace expertmesh::app
