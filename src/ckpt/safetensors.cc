// SPDX-License-Identifier: Apache-2.0
// The JSON text is walked once by events; tensors are collected, then sorted by offset and checked to tile the data.
#include "ckpt/safetensors.h"

#include <algorithm>
#include <span>
#include <tuple>
#include <unordered_set>

#include "base/json_events.h"

namespace expertmesh::ckpt {
namespace {

using base::Error;
using base::Json;

constexpr uint64_t kLengthBytes = 8;
constexpr std::string_view kMetadataKey = "__metadata__";
constexpr int kMaxDepth = 4;  // the format needs 3

class HeaderReader final : public base::JsonEvents {
 public:
  HeaderReader(uint64_t data_begin, uint64_t data_bytes, const std::string& path, base::Code code)
      : data_begin_(data_begin), data_bytes_(data_bytes), path_(path), code_(code) {}

  void on_begin(bool is_object) override {
    ++depth_;
    if (depth_ == 1) {
      if (!is_object) fail("the header is a list, not a JSON object");
    } else if (depth_ == 2) {
      if (!is_object) fail_tensor("is a list, not an object");
      info_ = {};
      has_dtype_ = has_shape_ = has_offsets_ = false;
      num_offsets_ = 0;
    } else if (in_metadata_) {
      fail("__metadata__ must map strings to strings");
    } else if (is_known_key()) {
      begin_list(is_object);
    }
  }

  void on_end(bool /*is_object*/) override {
    if (depth_ == 2) {
      if (!in_metadata_) finish_tensor();
      in_metadata_ = false;
    }
    --depth_;
  }

  void on_key(std::string_view key) override {
    if (depth_ == 1) {
      if (!names_.emplace(key).second) fail(fmt::format("tensor {} is there twice (duplicate key)", display_name(key)));
      in_metadata_ = key == kMetadataKey;
      name_ = key;
    } else if (depth_ == 2) {  // deeper ones belong to keys that are not known here
      key_ = key;
      if (in_metadata_) check_new_metadata_key();
    }
  }

  void on_scalar(Json value) override {
    if (depth_ == 0) fail("the header is not a JSON object");
    if (depth_ == 1) {
      if (in_metadata_) fail("__metadata__ is not an object");
      fail_tensor(fmt::format("is {}, not an object", value.kind()));
    }
    if (in_metadata_) {
      if (!value.is_string()) fail(fmt::format("__metadata__ value of {} is {}, not a string", key_, value.kind()));
      header_.metadata.emplace_back(key_, *value.try_string());
    } else if (depth_ == 2) {
      tensor_scalar(value);
    } else if (key_ == "shape") {
      add_dim(value);
    } else if (key_ == "data_offsets") {
      add_offset(value);
    }
  }

  SafetensorsHeader finish() {
    auto& tensors = header_.tensors;
    // Zero-size tensors sort before the one that begins where they are.
    std::sort(tensors.begin(), tensors.end(), [](const TensorInfo& a, const TensorInfo& b) {
      return std::tie(a.begin, a.end) < std::tie(b.begin, b.end);
    });
    uint64_t expected = 0;
    for (TensorInfo& tensor : tensors) {
      name_ = tensor.name;
      if (tensor.begin != expected) {
        fail_tensor(fmt::format("begins at offset {}, expected {}: tensors must not {}", tensor.begin, expected,
                                tensor.begin < expected ? "overlap" : "leave a hole"));
      }
      expected = tensor.end;
      tensor.begin += data_begin_;
      tensor.end += data_begin_;
    }
    if (expected != data_bytes_) {
      fail(fmt::format("the tensors take {} bytes, but {} bytes follow the header: {}", expected, data_bytes_,
                       expected > data_bytes_ ? "the file is truncated" : "there are trailing bytes"));
    }
    return std::move(header_);
  }

 private:
  [[noreturn]] void fail(const std::string& message) const {
    throw Error(code_, "ckpt/safetensors", "bad header: " + message).at(path_);
  }
  [[noreturn]] void fail_tensor(const std::string& message) const {
    fail(fmt::format("tensor {} {}", display_name(name_), message));
  }

  bool is_known_key() const { return key_ == "dtype" || key_ == "shape" || key_ == "data_offsets"; }

  // A list or object under dtype, shape or data_offsets.
  void begin_list(bool is_object) {
    const std::string_view kind = is_object ? "an object" : "a list";
    if (depth_ == 4) fail_tensor(fmt::format("{} holds {} instead of an integer", key_, kind));
    if (is_object || key_ == "dtype") {
      fail_tensor(fmt::format("{} is {}, not a {}", key_, kind, key_ == "dtype" ? "string" : "list"));
    }
    bool& seen = key_ == "shape" ? has_shape_ : has_offsets_;
    if (seen) fail_tensor(fmt::format("has {} twice", key_));
    seen = true;
  }

  void check_new_metadata_key() {
    if (!metadata_keys_.insert(key_).second)
      fail(fmt::format("__metadata__ key {} is there twice", display_name(key_)));
  }

  void tensor_scalar(const Json& value) {
    if (key_ == "dtype") {
      if (has_dtype_) fail_tensor("has two dtypes");
      if (!value.is_string()) fail_tensor(fmt::format("dtype is {}, not a string", value.kind()));
      const auto dtype = base::try_dtype(*value.try_string());
      if (!dtype) fail_tensor(fmt::format("has the unknown dtype {}", display_name(*value.try_string())));
      info_.dtype = *dtype;
      has_dtype_ = true;
    } else if (is_known_key()) {
      fail_tensor(fmt::format("{} is {}, not a list", key_, value.kind()));
    }
  }

  void add_dim(const Json& value) {
    if (!value.is_integer()) fail_tensor(fmt::format("shape holds {} instead of an integer", value.kind()));
    const auto size = value.try_int64();
    if (!size || *size < 0) {
      fail_tensor(fmt::format("shape holds {}, which is {}", base::dump_json(value), size ? "negative" : "too large"));
    }
    if (info_.shape.size() == kMaxDims) fail_tensor(fmt::format("shape has more than {} dims", kMaxDims));
    info_.shape.push_back(*size);
  }

  void add_offset(const Json& value) {
    if (!value.is_integer()) fail_tensor(fmt::format("data_offsets holds {} instead of an integer", value.kind()));
    const auto offset = value.try_int64();
    if (!offset || *offset < 0) {
      fail_tensor(fmt::format("data_offsets holds {}, which is {}", base::dump_json(value),
                              offset || base::dump_json(value).starts_with('-') ? "negative" : "too large"));
    }
    if (num_offsets_ == 2) fail_tensor("data_offsets must be a pair of 2 offsets, but has more");
    (num_offsets_++ == 0 ? info_.begin : info_.end) = static_cast<uint64_t>(*offset);
  }

  void finish_tensor() {
    if (!has_dtype_) fail_tensor("has no dtype");
    if (!has_shape_) fail_tensor("has no shape");
    if (num_offsets_ != 2) {
      fail_tensor(fmt::format("data_offsets must be a pair of 2 offsets, but has {}", num_offsets_));
    }
    if (info_.begin > info_.end) {
      fail_tensor(fmt::format("data_offsets are reversed: {} > {}", info_.begin, info_.end));
    }
    if (info_.end > data_bytes_) {
      fail_tensor(fmt::format("ends at offset {}, but only {} bytes follow the header: the file is truncated",
                              info_.end, data_bytes_));
    }
    check_byte_count();
    info_.name = name_;
    header_.tensors.push_back(std::move(info_));
  }

  void check_byte_count() const {
    const std::string shape = shape_text(info_.shape);
    const auto count = try_numel(info_.shape);
    int64_t bytes = 0;
    if (!count || __builtin_mul_overflow(*count, static_cast<int64_t>(dtype_bytes(info_.dtype)), &bytes)) {
      fail_tensor(fmt::format("has shape {}, whose size overflows", shape));
    }
    if (static_cast<uint64_t>(bytes) != info_.bytes()) {
      fail_tensor(fmt::format("of shape {} and dtype {} takes {} bytes, but data_offsets hold {}", shape,
                              dtype_name(info_.dtype), bytes, info_.bytes()));
    }
  }

  uint64_t data_begin_, data_bytes_;
  const std::string& path_;
  base::Code code_;
  SafetensorsHeader header_;
  std::unordered_set<std::string> names_, metadata_keys_;
  int depth_ = 0;
  bool in_metadata_ = false;
  std::string name_, key_;
  TensorInfo info_;
  int num_offsets_ = 0;
  bool has_dtype_ = false, has_shape_ = false, has_offsets_ = false;
};

// What else the file may be, from its first bytes.
std::string_view guess(std::string_view start) {
  if (start.starts_with("version https://git-lfs")) {
    return "This is a Git LFS pointer, not the weights: fetch them with `git lfs pull`.";
  }
  if (start.starts_with("PK\x03\x04") || start.starts_with("\x80\x02")) {
    return "This looks like a PyTorch pickle, which is never loaded: convert it to safetensors.";
  }
  if (start.starts_with("GGUF")) return "This is a GGUF file: only safetensors are read.";
  if (start.starts_with("<!DOCTYPE") || start.starts_with("<html")) {
    return "This is a web page, not the weights: download the file again.";
  }
  return {};
}

std::string shorten(std::string_view text, size_t limit) {
  if (text.size() <= limit) return std::string(text);
  while (limit > 0 && (static_cast<unsigned char>(text[limit]) & 0xc0U) == 0x80U) --limit;  // whole characters
  return std::string(text.substr(0, limit)) + "...";
}

}  // namespace

std::string display_name(std::string_view name) {
  const std::string quoted = base::json_quote(shorten(name, 200));
  return quoted.substr(1, quoted.size() - 2);
}

SafetensorsHeader parse_safetensors_header(std::string_view json, uint64_t data_begin, uint64_t data_bytes,
                                           const std::string& path, base::Code code) {
  const auto fail = [&](const std::string& message) -> Error {
    return std::move(Error(code, "ckpt/safetensors", "bad header: " + message).at(path));
  };
  if (!json.starts_with('{')) throw fail("it is not a JSON object, which starts with '{'");
  HeaderReader reader(data_begin, data_bytes, path, code);
  try {
    base::parse_json_events(json, {.max_depth = kMaxDepth}, reader);
  } catch (const base::JsonError& error) {
    throw fail(fmt::format("not valid JSON: {} (byte {} of the header)", error.message, error.offset));
  }
  return reader.finish();
}

SafetensorsHeader read_safetensors_header(const base::ReadableFile& file, const std::string& path, base::Code code) {
  const uint64_t size = file.size();
  std::string start(std::min<uint64_t>(size, 32), '\0');
  file.pread(std::as_writable_bytes(std::span(start)), 0);
  const auto refuse = [&](const std::string& message) -> Error {
    Error error(code, "ckpt/safetensors", message);
    error.at(path);
    if (const std::string_view hint = guess(start); !hint.empty()) error.hint(std::string(hint));
    return error;
  };
  if (size == 0) throw refuse("the file is empty (0 bytes), not a safetensors file");
  if (size < kLengthBytes) {
    throw refuse(fmt::format("the file has {} bytes, too short for the 8 bytes of a safetensors header length", size));
  }
  uint64_t length = 0;
  for (size_t i = 0; i < kLengthBytes; ++i) length |= uint64_t{static_cast<unsigned char>(start[i])} << (8 * i);
  if (length > size - kLengthBytes) {
    throw refuse(fmt::format("header of {} bytes, but the file has {} bytes: truncated, or not a safetensors file",
                             length, size));
  }
  if (length > kMaxHeaderBytes) {
    throw refuse(fmt::format("header of {} bytes, more than the {} allowed", length, kMaxHeaderBytes));
  }
  if (length < 2) throw refuse(fmt::format("header of {} bytes, too short for a JSON object", length));
  std::string json(length, '\0');
  file.pread(std::as_writable_bytes(std::span(json)), kLengthBytes);
  const uint64_t data_begin = kLengthBytes + length;
  return parse_safetensors_header(json, data_begin, size - data_begin, path, code);
}

}  // namespace expertmesh::ckpt
