// SPDX-License-Identifier: Apache-2.0
// The files of a run: a JSON line a logging step, and the loss curve as an SVG at the end.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/file.h"
#include "train/observer.h"

namespace expertmesh::train {

// output_dir/trainer_log.jsonl: upstream's keys first, in its order, then ours. Numbers that are not finite become
// null.
class LogFile {
 public:
  LogFile(base::FileSystem& fs, const std::string& output_dir);
  void write(const StepRecord& record);

 private:
  std::unique_ptr<base::WritableFile> file_;
};

// One line of the log, without the newline.
std::string log_line(const StepRecord& record);

struct CurvePoint {
  int64_t step = 0;
  double value = 0;  // not finite: a gap
};

// A self-contained SVG: axes with round ticks, the values, and their smoothed course once there are enough of them.
std::string loss_curve_svg(const std::vector<CurvePoint>& points, const std::string& title);

}  // namespace expertmesh::train
