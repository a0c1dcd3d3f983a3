// SPDX-License-Identifier: Apache-2.0
#include "data/row_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace expertmesh::data {
namespace {

using base::Code;
using base::Error;
using base::make_error;

constexpr std::string_view kTopic = "data/rows";

// "jsonl" of "a/B.JSONL".
std::string extension(const std::string& path) {
  const size_t slash = path.find_last_of('/');
  const size_t dot = path.find_last_of('.');
  if (dot == std::string::npos || (slash != std::string::npos && dot < slash)) return "";
  std::string ending = path.substr(dot + 1);
  for (char& c : ending) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return ending;
}

void check_kind(const std::string& path) {
  const std::string kind = extension(path);
  if (kind == "json" || kind == "jsonl") return;
  constexpr std::string_view kTables[] = {"csv", "parquet", "arrow", "txt"};
  constexpr std::string_view kPacked[] = {"gz", "zst", "xz", "bz2", "zip"};
  if (std::ranges::find(kTables, kind) != std::end(kTables)) {
    throw make_error(Code::kData, std::string(kTopic), "{} files are not read yet", kind)
        .at(path)
        .hint("Convert the rows to json or jsonl.");
  }
  if (std::ranges::find(kPacked, kind) != std::end(kPacked)) {
    throw make_error(Code::kData, std::string(kTopic), "compressed files ({}) are not read", kind)
        .at(path)
        .hint("Unpack it to json or jsonl.");
  }
  throw make_error(
      Code::kData, std::string(kTopic), "{}",
      kind.empty() ? "the file's name has no ending" : fmt::format("files that end in .{} are not read", kind))
      .at(path)
      .hint("Rows are read from .json and .jsonl files.");
}

// Files that are no text at all get one clear message in place of one about their first byte.
void check_magic(std::string_view text, const std::string& path) {
  const auto refuse = [&](std::string_view what, std::string_view hint) {
    throw make_error(Code::kData, std::string(kTopic), "{}, not UTF-8 text", what).at(path).hint(std::string(hint));
  };
  if (text.starts_with("\x1f\x8b")) refuse("gzip compressed data", "Unpack the file first.");
  if (text.starts_with("\x28\xb5\x2f\xfd")) refuse("zstd compressed data", "Unpack the file first.");
  if (text.starts_with("PK\x03\x04")) refuse("a zip archive", "Unpack the file first.");
  if (text.starts_with("PAR1")) refuse("a parquet file", "Convert the rows to jsonl.");
  if (text.starts_with("\xff\xfe") || text.starts_with("\xfe\xff")) refuse("UTF-16 text", "Save the file as UTF-8.");
}

bool is_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

std::vector<RowText> split_lines(std::string_view text) {
  std::vector<RowText> rows;
  uint32_t line = 1;
  for (size_t begin = 0; begin < text.size(); ++line) {
    const void* found = std::memchr(text.data() + begin, '\n', text.size() - begin);
    const size_t end =
        found == nullptr ? text.size() : static_cast<size_t>(static_cast<const char*>(found) - text.data());
    const std::string_view row = text.substr(begin, end - begin);
    if (!std::ranges::all_of(row, is_space)) rows.push_back({.text = row, .line = line, .element = 0});
    begin = end + 1;
  }
  return rows;
}

// Cuts the one array of a file into the text of its elements. Only brackets, quotes and commas are looked at: the
// elements themselves are checked when they are parsed.
class ArraySplitter {
 public:
  ArraySplitter(std::string_view text, const std::string& path) : text_(text), path_(path) {}

  std::vector<RowText> split() {
    skip_space();
    ++at_;  // '[', the caller looked
    skip_space();
    std::vector<RowText> rows;
    if (peek() == ']') {
      ++at_;
    } else {
      do {
        skip_space();
        if (peek() == ']') fail("a comma before the closing bracket of the JSON array");
        const uint32_t line = line_;
        const size_t begin = at_;
        element();
        rows.push_back({text_.substr(begin, at_ - begin), line, static_cast<uint32_t>(rows.size() + 1)});
        skip_space();
      } while (take_comma());
    }
    skip_space();
    if (at_ < text_.size()) fail("text after the end of the JSON array");
    return rows;
  }

 private:
  [[noreturn]] void fail(std::string_view what) const {
    throw make_error(Code::kData, std::string(kTopic), "{}", what).at(fmt::format("{}:{}", path_, line_));
  }

  char peek() const {
    if (at_ >= text_.size()) fail("the JSON array is not closed at the end of the file");
    return text_[at_];
  }

  void step() {
    if (peek() == '\n') ++line_;
    ++at_;
  }

  void skip_space() {
    while (at_ < text_.size() && is_space(text_[at_])) step();
  }

  bool take_comma() {
    const char c = peek();
    if (c != ',' && c != ']') fail("a comma or ']' was expected between the elements of the JSON array");
    ++at_;
    return c == ',';
  }

  void string() {
    for (step(); peek() != '"'; step()) {
      if (peek() == '\\') step();
    }
    step();
  }

  void element() {
    size_t depth = 0;
    const size_t begin = at_;
    while (true) {
      const char c = peek();
      if (depth == 0 && (c == ',' || c == ']' || is_space(c))) break;
      if (c == '"') {
        string();
      } else {
        if (c == '{' || c == '[') ++depth;
        if (c == '}' || c == ']') {
          if (depth == 0) fail("a closing bracket without its opening one in the JSON array");
          --depth;
        }
        step();
      }
      if (depth == 0 && (c == '"' || c == '}' || c == ']')) break;
    }
    if (at_ == begin) fail("an element was expected before the comma of the JSON array");
  }

  std::string_view text_;
  const std::string& path_;
  size_t at_ = 0;
  uint32_t line_ = 1;
};

}  // namespace

RowFile::RowFile(const base::FileSystem& fs, std::string path) : path_(std::move(path)) {
  const base::FileStat stat = fs.stat(path_);
  if (stat.is_directory) {
    throw make_error(Code::kData, std::string(kTopic), "this is a directory, not a file")
        .at(path_)
        .hint("Name one json or jsonl file.");
  }
  check_kind(path_);
  if (!stat.exists) throw make_error(Code::kData, std::string(kTopic), "there is no such file").at(path_);
  if (!stat.is_regular) throw make_error(Code::kData, std::string(kTopic), "not a regular file").at(path_);
  map_ = fs.map(path_);
  const auto bytes = map_->bytes();
  text_ = {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  check_magic(text_, path_);
}

std::vector<RowText> RowFile::split() const {
  std::string_view text = text_;
  if (text.starts_with("\xef\xbb\xbf")) text.remove_prefix(3);
  // An array may stand in a .json file only: in .jsonl a line "[...]" is a bad row.
  const auto* first = std::ranges::find_if_not(text, is_space);
  const bool is_array = extension(path_) == "json" && first != text.end() && *first == '[';
  return is_array ? ArraySplitter(text, path_).split() : split_lines(text);
}

base::Json RowFile::parse(const RowText& row) const {
  base::Json parsed;
  try {
    parsed = base::parse_json(row.text);
  } catch (const base::JsonError& error) {
    const auto line = row.line + static_cast<uint32_t>(error.line) - 1;
    Error failure = make_error(Code::kData, std::string(kTopic), "{}", error.message);
    failure.at(fmt::format("{}:{}:{}", path_, line, error.column));
    if (row.text == "{" && row.element == 0) failure.hint("JSON Lines has one whole object on each line.");
    throw failure;
  }
  if (parsed.is_object()) return parsed;
  const std::string what = row.element == 0 ? "a row" : fmt::format("element {} of the array", row.element);
  Error failure = make_error(Code::kData, std::string(kTopic), "{} must be a JSON object, not {}", what, parsed.kind());
  failure.at(where(row));
  if (row.element == 0 && parsed.is_array()) failure.hint("One array of rows belongs into a .json file.");
  throw failure;
}

std::string RowFile::where(const RowText& row) const { return fmt::format("{}:{}", path_, row.line); }

std::vector<std::string> list_row_files(const base::FileSystem& fs, const std::string& path) {
  if (!fs.stat(path).is_directory) return {path};
  std::vector<std::string> files;
  for (const std::string& name : fs.list(path)) {
    std::string file = base::join_path(path, name);
    if (!name.starts_with('.') && fs.stat(file).is_regular) files.push_back(std::move(file));
  }
  if (files.empty()) throw make_error(Code::kData, std::string(kTopic), "the directory holds no row files").at(path);
  for (const std::string& file : files) {
    if (extension(file) == extension(files.front())) continue;
    throw make_error(Code::kData, std::string(kTopic), "the directory mixes kinds of files: {} and {}", files.front(),
                     file)
        .at(path)
        .hint("Keep row files of one kind in it, or name them one by one in a dataset-info YAML.");
  }
  return files;
}

}  // namespace expertmesh::data
