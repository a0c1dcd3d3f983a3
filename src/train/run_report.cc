// SPDX-License-Identifier: Apache-2.0
#include "train/run_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/json.h"

namespace expertmesh::train {
namespace {

base::Json number(double value) { return std::isfinite(value) ? base::Json(value) : base::Json(nullptr); }

// One list a figure, with an entry a layer: a fraction of the text that an object a layer would be.
base::Json load_columns(const std::vector<LayerLoad>& loads) {
  const auto rounded = [](double value) { return base::Json(std::round(value * 1e4) / 1e4); };
  base::Json::Array layer, max_over_mean, dead, entropy;
  for (const LayerLoad& load : loads) {
    layer.emplace_back(load.layer);
    max_over_mean.push_back(rounded(load.max_over_mean));
    dead.emplace_back(load.dead);
    entropy.push_back(rounded(load.entropy));
  }
  return base::Json(
      base::Json::Object{{"layer", layer}, {"max_over_mean", max_over_mean}, {"dead", dead}, {"entropy", entropy}});
}

constexpr double kWidth = 760, kHeight = 420;
constexpr double kLeft = 70, kRight = 20, kTop = 40, kBottom = 50;

// 1, 2 or 5 times a power of ten, so that about `count` of them fill `span`.
double round_tick(double span, int count) {
  const double raw = span / count;
  const double power = std::pow(10.0, std::floor(std::log10(raw)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (raw <= factor * power) return factor * power;
  }
  return 10.0 * power;
}

struct Axes {
  double x_low, x_high, y_low, y_high;
  double x(double value) const { return kLeft + (value - x_low) / (x_high - x_low) * (kWidth - kLeft - kRight); }
  double y(double value) const {
    return kHeight - kBottom - (value - y_low) / (y_high - y_low) * (kHeight - kTop - kBottom);
  }
};

Axes axes_of(const std::vector<CurvePoint>& points) {
  Axes axes{0, 1, INFINITY, -INFINITY};
  for (const CurvePoint& point : points) {
    axes.x_high = std::max(axes.x_high, static_cast<double>(point.step));
    if (!std::isfinite(point.value)) continue;
    axes.y_low = std::min(axes.y_low, point.value);
    axes.y_high = std::max(axes.y_high, point.value);
  }
  if (!std::isfinite(axes.y_low)) axes.y_low = 0, axes.y_high = 1;
  const double margin = std::max(1e-6, 0.05 * (axes.y_high - axes.y_low));
  axes.y_low -= margin;
  axes.y_high += margin;
  return axes;
}

std::string polyline(const std::vector<CurvePoint>& points, const Axes& axes, const std::string& style) {
  std::string svg, run;
  const auto flush = [&] {
    if (!run.empty()) svg += fmt::format("<polyline fill=\"none\" {} points=\"{}\"/>\n", style, run);
    run.clear();
  };
  for (const CurvePoint& point : points) {
    if (!std::isfinite(point.value)) {
      flush();
      continue;
    }
    run += fmt::format("{:.1f},{:.1f} ", axes.x(static_cast<double>(point.step)), axes.y(point.value));
  }
  flush();
  return svg;
}

std::string grid(const Axes& axes) {
  std::string svg;
  const double y_tick = round_tick(axes.y_high - axes.y_low, 6), x_tick = std::max(1.0, round_tick(axes.x_high, 8));
  for (double value = std::ceil(axes.y_low / y_tick) * y_tick; value <= axes.y_high; value += y_tick) {
    svg += fmt::format("<line class=\"g\" x1=\"{}\" x2=\"{}\" y1=\"{:.1f}\" y2=\"{:.1f}\"/>", kLeft, kWidth - kRight,
                       axes.y(value), axes.y(value));
    svg += fmt::format("<text text-anchor=\"end\" x=\"{}\" y=\"{:.1f}\">{:.4g}</text>\n", kLeft - 8, axes.y(value) + 4,
                       value);
  }
  for (double value = 0; value <= axes.x_high; value += x_tick) {
    svg += fmt::format("<text text-anchor=\"middle\" x=\"{:.1f}\" y=\"{}\">{:.0f}</text>\n", axes.x(value),
                       kHeight - kBottom + 20, value);
  }
  return svg;
}

// Exponential moving average over about a tenth of the run.
std::vector<CurvePoint> smoothed(const std::vector<CurvePoint>& points) {
  std::vector<CurvePoint> result;
  const double keep = 1.0 - 1.0 / std::max(2.0, static_cast<double>(points.size()) / 10.0);
  double average = NAN;
  for (const CurvePoint& point : points) {
    if (!std::isfinite(point.value)) continue;
    average = std::isnan(average) ? point.value : keep * average + (1.0 - keep) * point.value;
    result.push_back({point.step, average});
  }
  return result;
}

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) out += c == '<' ? "&lt;" : c == '&' ? "&amp;" : std::string(1, c);
  return out;
}

}  // namespace

std::string log_line(const StepRecord& record) {
  const LayerLoad* worst = worst_load(record);
  return base::dump_json(
      base::Json(base::Json::Object{{"epoch", record.epoch},
                                    {"step", record.step},
                                    {"loss", number(record.loss)},
                                    {"grad_norm", number(record.grad_norm)},
                                    {"learning_rate", record.learning_rate},
                                    {"total_steps", record.total_steps},
                                    {"tokens_per_s", record.tokens_per_s},
                                    {"tokens_seen", record.tokens_seen},
                                    {"step_s", record.step_s},
                                    {"load_wait_s", record.load_wait_s},
                                    {"skipped_steps", record.skipped_steps},
                                    {"expert_load_max_over_mean", worst == nullptr ? 0.0 : worst->max_over_mean},
                                    {"aux_loss", record.aux_loss ? number(*record.aux_loss) : base::Json(nullptr)},
                                    {"expert_load", load_columns(record.expert_load)},
                                    {"rss_mib", record.rss_mib}}),
      base::JsonStyle::kPython);
}

LogFile::LogFile(base::FileSystem& fs, const std::string& output_dir)
    : file_(fs.open_append(base::join_path(output_dir, "trainer_log.jsonl"))) {}

void LogFile::write(const StepRecord& record) { file_->append(log_line(record) + "\n"); }

std::string loss_curve_svg(const std::vector<CurvePoint>& points, const std::string& title) {
  const Axes axes = axes_of(points);
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" viewBox=\"0 0 {0} {1}\">\n"
      "<style>text{{font:12px sans-serif;fill:#333}} .g{{stroke:#e4e4e4}}</style>\n"
      "<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
      "<text x=\"{2}\" y=\"24\" style=\"font-size:15px\">{3}</text>\n",
      kWidth, kHeight, kLeft, escaped(title));
  svg += grid(axes);
  constexpr size_t kEnoughToSmooth = 30;
  const bool smooth = points.size() >= kEnoughToSmooth;
  svg += polyline(points, axes, smooth ? "stroke=\"#a9c4e6\"" : "stroke=\"#1f5fa8\" stroke-width=\"1.8\"");
  if (smooth) svg += polyline(smoothed(points), axes, "stroke=\"#1f5fa8\" stroke-width=\"2\"");
  svg += fmt::format("<text text-anchor=\"middle\" x=\"{}\" y=\"{}\">step</text>\n</svg>\n", kWidth / 2, kHeight - 12);
  return svg;
}

}  // namespace expertmesh::train
