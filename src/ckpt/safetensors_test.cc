// SPDX-License-Identifier: Apache-2.0
#include "ckpt/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include "ckpt/convert.h"
#include "ckpt/test_support.h"

namespace expertmesh::ckpt {
namespace {

using test::error_of;
using ::testing::HasSubstr;

SafetensorsHeader read(const std::string& path) {
  return read_safetensors_header(*test::file_system().open_read(path), path, base::Code::kModel);
}

std::string file_of(const std::string& json, const std::string& data = {}) {
  std::string text;
  for (size_t i = 0; i < 8; ++i) text += static_cast<char>((json.size() >> (8 * i)) & 0xff);
  return text + json + data;
}

std::vector<std::string> header_cases() { return test::file_system().list(test::cases_path("headers")); }

class HeaderCase : public ::testing::TestWithParam<std::string> {};

double value_at(const std::string& data, const TensorInfo& tensor, int64_t i) {
  const char* at = data.data() + tensor.begin + static_cast<uint64_t>(i) * dtype_bytes(tensor.dtype);
  if (tensor.dtype == DType::kI64) {
    int64_t value;
    std::memcpy(&value, at, sizeof value);
    return static_cast<double>(value);
  }
  float value;
  convert_elements(at, tensor.dtype, &value, DType::kF32, 1);
  return value;
}

TEST_P(HeaderCase, AsExpected) {
  const base::Json all = base::parse_json(test::file_system().read_all(test::cases_path("expected.json")));
  const base::Json* wanted = all.find("headers/" + GetParam());
  ASSERT_NE(wanted, nullptr);
  const std::string path = test::cases_path("headers/" + GetParam());
  if (const base::Json* error = wanted->find("error")) {
    test::expect_case(*error, error_of([&] { read(path); }), path);
    return;
  }
  const SafetensorsHeader header = read(path);
  const std::string data = test::file_system().read_all(path);
  const base::Json::Object& tensors = *wanted->find("ok")->find("tensors")->try_object();
  EXPECT_EQ(header.tensors.size(), tensors.size());
  for (const TensorInfo& tensor : header.tensors) {
    const base::Json* expected = wanted->find("ok")->find("tensors")->find(tensor.name);
    ASSERT_NE(expected, nullptr) << tensor.name;
    EXPECT_EQ(dtype_name(tensor.dtype), *expected->find("dtype")->try_string());
    base::Json::Array shape(tensor.shape.begin(), tensor.shape.end());
    EXPECT_EQ(base::Json(shape), *expected->find("shape"));
    const base::Json::Array& values = *expected->find("values")->try_array();
    ASSERT_EQ(numel(tensor.shape), static_cast<int64_t>(values.size()));
    for (size_t i = 0; i < values.size(); ++i) {
      EXPECT_EQ(value_at(data, tensor, static_cast<int64_t>(i)), values[i].try_double());
    }
  }
  if (const base::Json* metadata = wanted->find("ok")->find("metadata")) {
    ASSERT_EQ(header.metadata.size(), metadata->try_object()->size());
    for (const auto& [key, value] : header.metadata) EXPECT_EQ(*metadata->find(key), base::Json(value));
  }
}

INSTANTIATE_TEST_SUITE_P(Files, HeaderCase, ::testing::ValuesIn(header_cases()),
                         [](const auto& test) { return test.param.substr(0, test.param.find('.')); });

constexpr const char* kGood =
    R"({"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2,1],"data_offsets":[0,8]},)"
    R"("b\u00e9":{"dtype":"BF16","shape":[],"data_offsets":[8,10]},"z":{"dtype":"U8","shape":[0],"data_offsets":[10,10]}})";

TEST(Safetensors, EveryTruncationIsRefusedWithTheFile) {
  const test::TempDir dir;
  const std::string path = dir.path("model.safetensors"), whole = file_of(kGood, "0123456789");
  test::write(path, whole);
  ASSERT_EQ(read(path).tensors.size(), 3U);
  for (size_t length = 0; length < whole.size(); ++length) {
    test::write(path, whole.substr(0, length));
    const auto error = error_of([&] { read(path); });
    ASSERT_TRUE(error) << length;
    EXPECT_EQ(error->where(), path);
    EXPECT_EQ(error->code(), base::Code::kModel);
  }
  test::write(path, whole + "x");
  EXPECT_THAT(error_of([&] { read(path); })->message(), HasSubstr("trailing"));
}

TEST(Safetensors, EveryChangedByteIsReadOrRefused) {
  const std::string json = kGood;
  for (size_t at = 0; at < json.size(); ++at) {
    for (const char c : {'\0', '"', '}', ',', '9', '-', '\x80', ' '}) {
      std::string changed = json;
      changed[at] = c;
      const auto error = error_of([&] {
        for (const TensorInfo& tensor : parse_safetensors_header(changed, 8, 10, "x", base::Code::kModel).tensors) {
          ASSERT_LE(tensor.end, 18U);
          ASSERT_LE(tensor.begin, tensor.end);
        }
      });
      if (error) {
        ASSERT_EQ(error->code(), base::Code::kModel) << error->text();
      }
    }
  }
}

struct BadHeader {
  std::string json;
  std::string message;
};

class BadHeaders : public ::testing::TestWithParam<BadHeader> {};

TEST_P(BadHeaders, AreRefused) {
  const auto error =
      error_of([&] { parse_safetensors_header(GetParam().json, 100, 8, "model.safetensors", base::Code::kModel); });
  ASSERT_TRUE(error) << GetParam().json;
  EXPECT_THAT(error->message(), HasSubstr(GetParam().message));
}

INSTANTIATE_TEST_SUITE_P(
    Texts, BadHeaders,
    ::testing::Values(
        BadHeader{R"( {"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]}})", "starts with '{'"},
        BadHeader{R"({"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]}}{})", "after the end"},
        BadHeader{std::string(R"({"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]}})") + '\0', "after the end"},
        BadHeader{R"({"a":{"dtype":"u8","shape":[8],"data_offsets":[0,8]}})", "unknown dtype u8"},
        BadHeader{R"({"a":{"dtype":"","shape":[8],"data_offsets":[0,8]}})", "unknown dtype"},
        BadHeader{R"({"a":{"dtype":5,"shape":[8],"data_offsets":[0,8]}})", "dtype is an integer"},
        BadHeader{R"({"a":{"dtype":["U8"],"shape":[8],"data_offsets":[0,8]}})", "dtype is a list"},
        BadHeader{R"({"a":{"dtype":"U8","dtype":"U8","shape":[8],"data_offsets":[0,8]}})", "two dtypes"},
        BadHeader{R"({"a":{"dtype":"U8","shape":[8],"shape":[8],"data_offsets":[0,8]}})", "shape twice"},
        BadHeader{R"({"a":{"dtype":"U8","shape":["8"],"data_offsets":[0,8]}})", "instead of an integer"},
        BadHeader{R"({"a":{"dtype":"U8","shape":[null],"data_offsets":[0,8]}})", "instead of an integer"},
        BadHeader{R"({"a":{"dtype":"U8","shape":[[8]],"data_offsets":[0,8]}})", "instead of an integer"},
        BadHeader{R"({"a":{"dtype":"U8","shape":[8.0],"data_offsets":[0,8]}})", "instead of an integer"},
        BadHeader{R"({"a":{"dtype":"U8","shape":[1e300],"data_offsets":[0,8]}})", "instead of an integer"},
        BadHeader{R"({"a":{"dtype":"U8","shape":[9223372036854775808],"data_offsets":[0,8]}})", "too large"},
        BadHeader{R"({"a":{"dtype":"U8","shape":8,"data_offsets":[0,8]}})", "shape is an integer"},
        BadHeader{R"({"a":{"dtype":"U8","shape":{},"data_offsets":[0,8]}})", "shape is an object"},
        BadHeader{R"({"a":{"dtype":"U8","shape":[8],"data_offsets":[]}})", "pair of 2"},
        BadHeader{R"({"a":{"dtype":"U8","shape":[8],"data_offsets":"0,8"}})", "data_offsets is a string"},
        BadHeader{R"({"a":{"dtype":"U8","data_offsets":[0,8]}})", "no shape"},
        BadHeader{R"({"a":{"dtype":"U8","shape":[8]}})", "pair of 2"}, BadHeader{R"({"a":[]})", "is a list"},
        BadHeader{R"({"a":3})", "is an integer"},
        BadHeader{R"({"a":{"dtype":"U8","shape":[9],"data_offsets":[0,9]}})", "truncated"},
        BadHeader{R"({"a":{"dtype":"F64","shape":[0,9223372036854775807],"data_offsets":[0,8]}})", "takes 0 bytes"},
        BadHeader{R"({"a":{"dtype":"F64","shape":[9223372036854775807],"data_offsets":[0,8]}})", "overflows"},
        BadHeader{R"({"__metadata__":[],"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]}})", "is a list"},
        BadHeader{R"({"__metadata__":3})", "__metadata__ is not an object"},
        BadHeader{R"({"__metadata__":{"k":["v"]}})", "strings to strings"},
        BadHeader{R"({"__metadata__":{"k":"v","k":"v"}})", "twice"},
        BadHeader{R"({"__metadata__":{},"__metadata__":{}})", "twice"}, BadHeader{"{}", "8 bytes follow"}));

TEST(Safetensors, ManyDimsAndLongNames) {
  std::string shape = "1";
  for (int i = 1; i < 64; ++i) shape += ",1";
  const auto header = [](const std::string& name, const std::string& dims) {
    return "{\"" + name + "\":{\"dtype\":\"U8\",\"shape\":[" + dims + "],\"data_offsets\":[0,1]}}";
  };
  EXPECT_EQ(parse_safetensors_header(header("a", shape), 0, 1, "x", base::Code::kModel).tensors[0].shape.size(), 64U);
  const auto error = error_of([&] {
    parse_safetensors_header(header(std::string(1 << 20, 'n'), shape + ",1"), 0, 1, "x", base::Code::kModel);
  });
  EXPECT_THAT(error->message(), HasSubstr("more than 64 dims"));
  EXPECT_LT(error->message().size(), 1000U);  // the name is cut
  EXPECT_EQ(parse_safetensors_header(header("", "1"), 0, 1, "x", base::Code::kModel).tensors[0].name, "");
}

TEST(Safetensors, UnknownKeysAreSkippedAsTheReferenceDoes) {
  const auto header = parse_safetensors_header(
      R"({"a":{"dtype":"U8","x":[1,{}],"shape":[1],"y":{"shape":[2]},"data_offsets":[0,1],"z":1}})", 0, 1, "x",
      base::Code::kModel);
  EXPECT_EQ(header.tensors[0].shape, Shape{1});
}

TEST(Safetensors, DisplayName) {
  EXPECT_EQ(display_name("a\x1b[31m\n"), "a\\u001b[31m\\n");
  const std::string cut = display_name(std::string(199, 'x') + "\xc3\xa9" + "yyyy");
  EXPECT_EQ(cut, std::string(199, 'x') + "...");
}

TEST(Safetensors, HugeLengthsTakeNoMemory) {
  const test::TempDir dir;
  struct rusage before{}, after{};
  ::getrusage(RUSAGE_SELF, &before);
  for (const uint64_t length : {uint64_t{100'000'001}, uint64_t{1} << 31, uint64_t{1} << 32, uint64_t{6} << 30,
                                (uint64_t{1} << 63) - 1, UINT64_MAX}) {
    std::string text(10, '{');
    for (size_t i = 0; i < 8; ++i) text[i] = static_cast<char>((length >> (8 * i)) & 0xff);
    test::write(dir.path("x"), text);
    EXPECT_THAT(error_of([&] { read(dir.path("x")); })->message(), HasSubstr(std::to_string(length)));
  }
  ::getrusage(RUSAGE_SELF, &after);
  EXPECT_LT(after.ru_maxrss - before.ru_maxrss, 64 << 10);
}

TEST(Safetensors, SaysWhatElseTheFileMayBe) {
  const test::TempDir dir;
  const std::pair<std::string, std::string> kFiles[] = {{"PK\x03\x04 and so on, more than eight", "pickle"},
                                                        {"GGUF\x03 and so on, more than eight", "GGUF"},
                                                        {"<!DOCTYPE html><html>", "web page"},
                                                        {"version https://git-lfs.github.com/spec/v1\n", "LFS"}};
  for (const auto& [text, hint] : kFiles) {
    test::write(dir.path("x"), text);
    EXPECT_THAT(error_of([&] { read(dir.path("x")); })->hint(), HasSubstr(hint));
  }
}

}  // namespace
}  // namespace expertmesh::ckpt
