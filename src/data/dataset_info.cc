// SPDX-License-Identifier: Apache-2.0
#include "data/dataset_info.h"

#include <algorithm>
#include <array>

#include "config/node.h"
#include "config/scalar.h"
#include "config/suggest.h"
#include "data/convert/converter.h"

namespace expertmesh::data {
namespace {

using base::Code;
using base::Error;
using base::make_error;
using config::Node;

constexpr std::array<std::string_view, 7> kKeys = {"path", "source", "split",    "converter",
                                                   "size", "weight", "streaming"};

Error bad_info(std::string_view name, std::string message, const std::string& place) {
  Error error(Code::kData, "data/dataset_info", fmt::format("data set {}: {}", config::shorten(name), message));
  error.at(place);
  return error;
}

std::string converter_names() {
  std::string names;
  for (const Converter& converter : converters()) {
    if (converter.name.empty()) continue;
    names += names.empty() ? "" : ", ";
    names += converter.name;
  }
  return names;
}

// Reads one entry; every problem is reported with the place of its key.
class EntryReader {
 public:
  EntryReader(const base::FileSystem& fs, const Node::Entry& entry) : fs_(fs), name_(entry.key), node_(entry.value) {
    place_ = entry.place;
  }

  DatasetEntry read() {
    if (!node_.is_map()) fail("expected a mapping with path, source, converter, ...", place_);
    check_keys();
    refuse_unbuilt();
    DatasetEntry entry;
    entry.name = name_;
    entry.where = place_;
    const Node* path = find("path");
    if (path == nullptr) fail("path is missing", place_);
    entry.path = text(*path, "path");
    const bool is_local = source();
    entry.converter = converter();
    if (const Node* size = find("size")) entry.size = count(*size);
    if (const Node* weight = find("weight")) entry.weight = share(*weight);
    check_path(entry.path, path->place, is_local);
    return entry;
  }

 private:
  [[noreturn]] void fail(std::string message, const std::string& place, std::string hint = {}) const {
    throw bad_info(name_, std::move(message), place).hint(std::move(hint));
  }

  const Node* find(std::string_view key) const {
    const Node* value = node_.find(key);
    return value == nullptr || value->is_null() ? nullptr : value;
  }

  // All unknown keys at once, at the place of the first.
  void check_keys() const {
    std::string message;
    std::string place;
    for (const Node::Entry& entry : node_.entries) {
      if (std::ranges::find(kKeys, entry.key) != kKeys.end()) continue;
      const auto nearest = config::try_nearest(entry.key, std::span<const std::string_view>(kKeys));
      if (place.empty()) place = entry.place;
      message += fmt::format("{}unknown key {}{}", message.empty() ? "" : "; ", config::shorten(entry.key),
                             nearest ? fmt::format(", did you mean {}", *nearest) : "");
    }
    if (!message.empty()) fail(message, place, fmt::format("Known keys are {}.", config::join_names(kKeys)));
  }

  template <typename Read>
  auto value(const Node& node, std::string_view key, Read&& read) const {
    try {
      return read();
    } catch (const config::ValueError& error) {
      fail(fmt::format("{} {}", key, error.message), node.place, error.hint);
    }
  }

  std::string text(const Node& node, std::string_view key) const {
    return value(node, key, [&] { return config::read_text(node, false); });
  }

  int64_t count(const Node& node) const {
    return value(node, "size",
                 [&] { return config::read_integer(node, {.min = 1, .max = INT32_MAX}, config::Quotes::kText); });
  }

  double share(const Node& node) const {
    return value(node, "weight", [&] {
      return config::read_number(node, {.min = 0, .max = 1e6, .excludes_min = true}, config::Quotes::kText);
    });
  }

  void refuse_unbuilt() const {
    if (const Node* streaming = find("streaming")) {
      if (value(*streaming, "streaming", [&] { return config::read_bool(*streaming, config::Quotes::kText); })) {
        fail("streaming is not supported", streaming->place, "Remove the key: rows are mapped, not loaded.");
      }
    }
    if (const Node* split = find("split")) {
      if (text(*split, "split") != "train") {
        fail(fmt::format("split {} is not supported, local files have only train", config::describe(*split)),
             split->place);
      }
    }
  }

  // True for `local`; the default names a hub, which is fine where the path is a local one.
  bool source() const {
    const Node* source = find("source");
    if (source == nullptr) return false;
    const std::string name = text(*source, "source");
    if (name == "local") return true;
    if (name == "hf_hub") return false;
    fail(fmt::format("source {} is not supported", config::describe(*source)), source->place,
         "Download the data set and use source: local.");
  }

  std::string converter() const {
    const Node* converter = find("converter");
    if (converter == nullptr) return {};
    const std::string name = text(*converter, "converter");
    if (!name.empty() && find_converter(name) != nullptr) return name;
    std::vector<std::string_view> known;
    for (const Converter& row : converters()) known.push_back(row.name);
    const auto nearest = config::try_nearest(name, std::span<const std::string_view>(known));
    fail(fmt::format("unknown converter {}", config::describe(*converter)), converter->place,
         fmt::format("{}Known are {}.", nearest ? fmt::format("Did you mean {}? ", *nearest) : "", converter_names()));
  }

  void check_path(const std::string& path, const std::string& place, bool is_local) const {
    if (fs_.stat(path).exists) return;
    if (is_local)
      fail(fmt::format("there is no file or directory {}", path), place,
           "Relative paths start at the working directory.");
    fail(fmt::format("there is no file or directory {}, and hubs are not asked", path), place,
         "Download the data set and give its local path with source: local.");
  }

  const base::FileSystem& fs_;
  std::string name_;
  const Node& node_;
  std::string place_;
};

Node parse_info(const base::FileSystem& fs, const std::string& path) {
  if (fs.stat(path).size > config::kMaxFileBytes) {
    throw make_error(Code::kData, "data/dataset_info", "a dataset-info file has at most {} bytes",
                     config::kMaxFileBytes)
        .at(path);
  }
  const std::string content = fs.read_all(path);
  try {
    return config::parse_yaml(content, {.name = path});
  } catch (const Error& error) {  // the same fault, but in data
    throw Error(Code::kData, "data/dataset_info", error.message()).at(error.where()).hint(error.hint());
  }
}

std::vector<DatasetEntry> read_info(const base::FileSystem& fs, const std::string& path) {
  const Node root = parse_info(fs, path);
  if (!root.is_map() || root.entries.empty()) {
    throw make_error(Code::kData, "data/dataset_info", "expected a mapping from names of data sets to their entries")
        .at(path);
  }
  std::vector<DatasetEntry> entries;
  entries.reserve(root.entries.size());
  for (const Node::Entry& entry : root.entries) entries.push_back(EntryReader(fs, entry).read());
  return entries;
}

}  // namespace

std::vector<DatasetEntry> load_dataset_entries(const base::FileSystem& fs, const std::string& train_dataset) {
  const base::FileStat stat = fs.stat(train_dataset);
  if (!stat.exists) {
    throw make_error(Code::kData, "data/train_dataset", "there is no file or directory {}, and hubs are not asked",
                     train_dataset)
        .hint("Download the data set and give its local path.");
  }
  const bool is_yaml = train_dataset.ends_with(".yaml") || train_dataset.ends_with(".yml");
  if (is_yaml && stat.is_regular) return read_info(fs, train_dataset);
  DatasetEntry entry;
  entry.path = entry.where = train_dataset;
  return {entry};
}

}  // namespace expertmesh::data
