// SPDX-License-Identifier: Apache-2.0
#include "ckpt/safetensors_writer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ckpt/test_support.h"

namespace expertmesh::ckpt {
namespace {

using test::bytes_of;
using test::error_of;
using ::testing::HasSubstr;

TEST(PlanSafetensors, EqualsTheReferenceImplementation) {
  const SafetensorsPlan plan = plan_safetensors({{"u64", DType::kU64, {1}},
                                                 {"s", DType::kF32, {}},
                                                 {"bo", DType::kBool, {1}},
                                                 {"u8", DType::kU8, {1}},
                                                 {"i8", DType::kI8, {1}},
                                                 {"e5", DType::kF8E5M2, {1}},
                                                 {"e4", DType::kF8E4M3, {1}},
                                                 {"i16", DType::kI16, {1}},
                                                 {"u16", DType::kU16, {1}},
                                                 {"f16", DType::kF16, {1}},
                                                 {"bf16", DType::kBF16, {1}},
                                                 {"i32", DType::kI32, {1}},
                                                 {"u32", DType::kU32, {1}},
                                                 {"f32", DType::kF32, {1}},
                                                 {"f32.2", DType::kF32, {2, 3}},
                                                 {"f32.1\"\xc3\xa9\x01", DType::kF32, {0, 3}},
                                                 {"f64", DType::kF64, {1}},
                                                 {"i64", DType::kI64, {1}}},
                                                {{"format", "pt"}});
  // Written by the Python package safetensors 0.8.0.
  const std::string kJson =
      R"({"__metadata__":{"format":"pt"},"u64":{"dtype":"U64","shape":[1],"data_offsets":[0,8]},)"
      R"("i64":{"dtype":"I64","shape":[1],"data_offsets":[8,16]},"f64":{"dtype":"F64","shape":[1],"data_offsets":[16,24]},)"
      R"("f32":{"dtype":"F32","shape":[1],"data_offsets":[24,28]},)"
      "\"f32.1\\\"\xc3\xa9\\u0001\":"
      R"({"dtype":"F32","shape":[0,3],"data_offsets":[28,28]},"f32.2":{"dtype":"F32","shape":[2,3],"data_offsets":[28,52]},)"
      R"("s":{"dtype":"F32","shape":[],"data_offsets":[52,56]},"u32":{"dtype":"U32","shape":[1],"data_offsets":[56,60]},)"
      R"("i32":{"dtype":"I32","shape":[1],"data_offsets":[60,64]},"bf16":{"dtype":"BF16","shape":[1],"data_offsets":[64,66]},)"
      R"("f16":{"dtype":"F16","shape":[1],"data_offsets":[66,68]},"u16":{"dtype":"U16","shape":[1],"data_offsets":[68,70]},)"
      R"("i16":{"dtype":"I16","shape":[1],"data_offsets":[70,72]},"e4":{"dtype":"F8_E4M3","shape":[1],"data_offsets":[72,73]},)"
      R"("e5":{"dtype":"F8_E5M2","shape":[1],"data_offsets":[73,74]},"i8":{"dtype":"I8","shape":[1],"data_offsets":[74,75]},)"
      R"("u8":{"dtype":"U8","shape":[1],"data_offsets":[75,76]},"bo":{"dtype":"BOOL","shape":[1],"data_offsets":[76,77]}}      )";
  EXPECT_EQ(plan.head.substr(8), kJson);
  EXPECT_EQ(plan.head.substr(0, 8), std::string("\x38\x04\0\0\0\0\0\0", 8));  // 1080
  EXPECT_EQ(plan.file_bytes, 8U + 1080 + 77);
}

TEST(PlanSafetensors, ReadsBackAsItself) {
  const SafetensorsPlan plan = plan_safetensors({{"a", DType::kBF16, {3, 2}}, {"b", DType::kF32, {}}}, {{"k", "v"}});
  const SafetensorsHeader header =
      parse_safetensors_header(std::string_view(plan.head).substr(8), plan.head.size(),
                               plan.file_bytes - plan.head.size(), "x", base::Code::kModel);
  ASSERT_EQ(header.tensors.size(), 2U);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(header.tensors[i].name, plan.tensors[i].name);
    EXPECT_EQ(header.tensors[i].begin, plan.tensors[i].begin);
    EXPECT_EQ(header.tensors[i].end, plan.tensors[i].end);
  }
  EXPECT_EQ(header.metadata, (Metadata{{"k", "v"}}));
  EXPECT_THROW(plan_safetensors({{"a", DType::kU8, {1}}, {"a", DType::kU8, {2}}}), base::Error);
}

TEST(SafetensorsWriter, WritesInAnyOrder) {
  const test::TempDir dir;
  SafetensorsWriter writer(test::file_system(), dir.path("x"),
                           plan_safetensors({{"a", DType::kU8, {4}}, {"b", DType::kU8, {2}}}));
  writer.write(1, 0, bytes_of("yz"));
  writer.write(0, 2, bytes_of("cd"));
  writer.write(0, 0, bytes_of("ab"));
  writer.finish();
  EXPECT_TRUE(test::file_system().read_all(dir.path("x")).ends_with("abcdyz"));
}

TEST(SafetensorsWriter, RefusesGapsAndOverruns) {
  const test::TempDir dir;
  SafetensorsWriter writer(test::file_system(), dir.path("x"), plan_safetensors({{"a", DType::kU8, {4}}}));
  writer.write(0, 0, bytes_of("abc"));
  EXPECT_THAT(error_of([&] { writer.finish(); })->message(), HasSubstr("3 of 4 bytes"));
  EXPECT_TRUE(error_of([&] { writer.write(0, 3, bytes_of("de")); }));
  EXPECT_TRUE(error_of([&] { writer.write(0, 5, {}); }));
}

TEST(VerifySafetensors, NoticesAnotherFile) {
  const test::TempDir dir;
  const SafetensorsPlan plan = plan_safetensors({{"a", DType::kU8, {4}}});
  test::write(dir.path("x"), plan.head + "abcd");
  EXPECT_NO_THROW(verify_safetensors(test::file_system(), dir.path("x"), plan));
  for (const std::string& text :
       {plan.head + "abc", plan.head + "abcde", std::string(plan.file_bytes, ' '), std::string()}) {
    test::write(dir.path("x"), text);
    EXPECT_THAT(error_of([&] { verify_safetensors(test::file_system(), dir.path("x"), plan); })->message(),
                HasSubstr("does not read back"));
  }
}

}  // namespace
}  // namespace expertmesh::ckpt
