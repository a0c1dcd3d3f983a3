// SPDX-License-Identifier: Apache-2.0
#include "app/output_file.h"

#include "base/log.h"

namespace expertmesh::app {

OutputFile::OutputFile(std::string path)
    : path_(std::move(path)),
      growing_path_(path_ + ".tmp"),
      gone_on_signal_(growing_path_),
      file_(fs_->create(growing_path_)) {}

OutputFile::~OutputFile() {
  if (file_ == nullptr) return;
  try {
    fs_->remove_file(growing_path_);
  } catch (const base::Error& error) {
    base::log_warn("{}", error.reason());
  }
}

void OutputFile::finish() {
  file_->sync();
  file_->close();
  fs_->rename(growing_path_, path_);
  file_.reset();
}

}  // namespace expertmesh::app
