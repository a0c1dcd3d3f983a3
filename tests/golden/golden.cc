// SPDX-License-Identifier: Apache-2.0
// A summary holds some elements and four sums with random signs. The elements catch a wrong value where they lie; the
// sums catch it anywhere: an error of size e in one element moves a sum by e, independent errors of size e in n
// elements move it by about e * sqrt(n), which is what the bound on the sums allows.
#include "golden.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <string_view>

#include "base/json.h"

namespace expertmesh::golden {
namespace {

const std::string kRoot = EXPERTMESH_SOURCE_DIR "/tests/golden/";
constexpr const char* kFamilies[] = {"qwen3_5_moe", "qwen3_moe"};
constexpr uint64_t kGoldenRatio = 0x9E3779B97F4A7C15;

uint64_t fnv1a64(std::string_view text) {
  uint64_t h = 0xCBF29CE484222325;
  for (const unsigned char c : text) h = (h ^ c) * 0x100000001B3;
  return h;
}

uint64_t mix64(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
  return x ^ (x >> 31);
}

// The generator of golden_weights.py for one tensor: 64 bits for each element.
struct Bits {
  uint64_t start;
  Bits(std::string_view name, uint64_t seed) : start(fnv1a64(name) ^ (seed * kGoldenRatio)) {}
  uint64_t operator()(int64_t i) const { return mix64(start + static_cast<uint64_t>(i) * kGoldenRatio); }
};

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error("cannot read " + path);
  std::ostringstream text;
  text << file.rdbuf();
  return std::move(text).str();
}

const base::Json& member(const base::Json& object, std::string_view key) {
  const base::Json* value = object.find(key);
  if (value == nullptr) throw std::runtime_error(fmt::format("no member \"{}\"", key));
  return *value;
}

double number(const base::Json& value) {
  const std::optional<double> x = value.try_double();
  if (!x) throw std::runtime_error("a number was expected");
  return *x;
}

const base::Json::Array& array(const base::Json& value) {
  const base::Json::Array* items = value.try_array();
  if (items == nullptr) throw std::runtime_error("a list was expected");
  return *items;
}

const std::string& text(const base::Json& value) {
  const std::string* found = value.try_string();
  if (found == nullptr) throw std::runtime_error("a string was expected");
  return *found;
}

int64_t count_of(const base::Json::Array& shape) {
  int64_t count = 1;
  for (const base::Json& size : shape) count *= static_cast<int64_t>(number(size));
  return count;
}

// All tensors of a small safetensors file of float32 and float64, as double.
std::map<std::string, std::vector<double>> read_tensors(const std::string& path) {
  const std::string file = read_file(path);
  uint64_t header_bytes = 0;
  if (file.size() < sizeof(header_bytes)) throw std::runtime_error("too short: " + path);
  std::memcpy(&header_bytes, file.data(), sizeof(header_bytes));
  const base::Json header = base::parse_json(std::string_view(file).substr(8, header_bytes));
  const char* data = file.data() + 8 + header_bytes;
  std::map<std::string, std::vector<double>> tensors;
  for (const auto& [name, entry] : *header.try_object()) {
    if (name == "__metadata__") continue;
    const auto begin = static_cast<size_t>(number(array(member(entry, "data_offsets"))[0]));
    std::vector<double> values(static_cast<size_t>(count_of(array(member(entry, "shape")))));
    const bool is_double = text(member(entry, "dtype")) == "F64";
    for (size_t i = 0; i < values.size(); ++i) {
      float single = 0;
      if (is_double) {
        std::memcpy(&values[i], data + begin + i * sizeof(double), sizeof(double));
      } else {
        std::memcpy(&single, data + begin + i * sizeof(float), sizeof(float));
        values[i] = single;
      }
    }
    tensors.emplace(name, std::move(values));
  }
  return tensors;
}

std::vector<double> sign_sums(const std::string& name, std::span<const float> values, size_t num_sums) {
  std::vector<double> sums(num_sums, 0.0);
  const Bits bits("signs:" + name, 0);
  for (size_t i = 0; i < values.size(); ++i) {
    const uint64_t signs = bits(static_cast<int64_t>(i));
    for (size_t k = 0; k < num_sums; ++k) sums[k] += ((signs >> k) & 1) != 0 ? -values[i] : values[i];
  }
  return sums;
}

}  // namespace

std::vector<std::string> golden_names() {
  std::vector<std::string> names;
  for (const char* family : kFamilies) {
    for (const auto& entry : std::filesystem::directory_iterator(kRoot + family))
      names.push_back(entry.path().filename());
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::string golden_dir(const std::string& name) {
  for (const char* family : kFamilies) {
    const std::string dir = fmt::format("{}{}/{}", kRoot, family, name);
    if (std::filesystem::exists(dir)) return dir;
  }
  throw std::runtime_error("there is no golden " + name);
}

void write_golden_model(const std::string& name, const std::string& out_dir) {
  const base::Json plan = base::parse_json(read_file(golden_dir(name) + "/weights.json"));
  const auto seed = static_cast<uint64_t>(number(member(plan, "seed")));
  base::Json header{base::Json::Object{}};
  std::string data;
  for (const base::Json& tensor : array(member(plan, "tensors"))) {
    const std::string& tensor_name = text(member(tensor, "name"));
    const double mean = number(member(tensor, "mean"));
    const double scale = number(member(tensor, "scale"));
    const base::Json::Array& shape = array(member(tensor, "shape"));
    const auto begin = static_cast<int64_t>(data.size());
    const Bits bits(tensor_name, seed);
    for (int64_t i = 0; i < count_of(shape); ++i) {
      const double u = static_cast<double>(bits(i) >> 40) * 0x1p-23 - 1.0;
      const auto value = static_cast<float>(mean + scale * u);
      data.append(reinterpret_cast<const char*>(&value), sizeof(value));
    }
    const auto end = static_cast<int64_t>(data.size());
    header.set(tensor_name,
               base::Json::Object{{"dtype", "F32"}, {"shape", shape}, {"data_offsets", base::Json::Array{begin, end}}});
  }
  const std::string header_text = base::dump_json(header);
  const uint64_t header_bytes = header_text.size();
  std::ofstream out(out_dir + "/model.safetensors", std::ios::binary);
  out.write(reinterpret_cast<const char*>(&header_bytes), sizeof(header_bytes));
  out << header_text << data;
  out.close();
  if (!out) throw std::runtime_error("cannot write " + out_dir + "/model.safetensors");
  std::filesystem::copy_file(golden_dir(name) + "/config.json", out_dir + "/config.json",
                             std::filesystem::copy_options::overwrite_existing);
}

std::map<std::string, TensorSummary> read_summaries(const std::string& path) {
  std::map<std::string, TensorSummary> summaries;
  for (auto& [name, values] : read_tensors(path)) {
    if (name.ends_with('#')) {
      TensorSummary& summary = summaries[name.substr(0, name.size() - 1)];
      summary.largest = values.at(0);
      summary.norm = values.at(1);
      summary.sign_sums.assign(values.begin() + 2, values.end());
    } else {
      summaries[name].samples.assign(values.begin(), values.end());
    }
  }
  return summaries;
}

std::vector<int64_t> sample_positions(const std::string& name, int64_t count, size_t num_samples) {
  std::vector<int64_t> positions(num_samples);
  const Bits bits("samples:" + name, 0);
  for (size_t i = 0; i < num_samples; ++i) {
    const auto index = static_cast<int64_t>(i);
    positions[i] = static_cast<size_t>(count) == num_samples
                       ? index
                       : static_cast<int64_t>(bits(index) % static_cast<uint64_t>(count));
  }
  return positions;
}

Bound gradient_bound(const std::string& name) {
  for (const std::string_view part : {".linear_attn.A_log", ".linear_attn.dt_bias", ".linear_attn.in_proj_a."}) {
    if (name.find(part) != std::string::npos) return {2e-5, 1.0, 2e-5};
  }
  return kStrict;
}

std::optional<std::string> find_difference(const std::string& name, std::span<const float> values,
                                           const TensorSummary& expected, const Bound& bound, Tally* tally) {
  if (values.size() < expected.samples.size()) {
    return fmt::format("{}: {} elements, the golden kept {} of more", name, values.size(), expected.samples.size());
  }
  const double scale = std::max(expected.largest, 1e-30);
  const auto positions = sample_positions(name, static_cast<int64_t>(values.size()), expected.samples.size());
  double worst = 0;
  size_t worst_at = 0;
  size_t num_typical = 0;
  for (size_t i = 0; i < positions.size(); ++i) {
    const double got = values[static_cast<size_t>(positions[i])];
    double error = std::abs(got - expected.samples[i]) / scale;
    if (std::isnan(error)) error = INFINITY;
    num_typical += error <= bound.typical ? 1 : 0;
    if (error > worst) {
      worst = error;
      worst_at = i;
    }
  }
  const auto share = static_cast<double>(num_typical) / static_cast<double>(positions.size());
  if (tally != nullptr) {
    tally->num_typical += num_typical;
    tally->num_samples += positions.size();
  }
  if (worst > bound.worst || (tally == nullptr && share < bound.typical_share)) {
    return fmt::format(
        "{}[{}]: got {:.9g}, golden {:.9g} (off by {:.2g} of the largest value {:.3g}; {:.1f}% within {:.0e})", name,
        positions[worst_at], values[static_cast<size_t>(positions[worst_at])], expected.samples[worst_at], worst,
        expected.largest, 100 * share, bound.typical);
  }
  const double allowed = 4 * bound.typical * scale * std::sqrt(static_cast<double>(values.size()));
  const std::vector<double> sums = sign_sums(name, values, expected.sign_sums.size());
  for (size_t k = 0; k < sums.size(); ++k) {
    if (!(std::abs(sums[k] - expected.sign_sums[k]) <= allowed)) {
      return fmt::format(
          "{}: signed sum {} is {:.9g}, golden {:.9g}, allowed {:.2g}: an element that was not kept differs", name, k,
          sums[k], expected.sign_sums[k], allowed);
    }
  }
  return std::nullopt;
}

}  // namespace expertmesh::golden
