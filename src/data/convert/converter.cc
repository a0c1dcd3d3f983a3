// SPDX-License-Identifier: Apache-2.0
#include "data/convert/converter.h"

#include <array>

#include "data/convert/converters.h"

namespace expertmesh::data {
namespace {

constexpr std::array<Converter, 6> kConverters = {{
    {"", "rows in the internal message format: messages of blocks {type, value}", convert_internal},
    {"alpaca", "instruction, input, output and an optional system", convert_alpaca},
    {"sharegpt", "conversations of {from, value}, optional tools", convert_sharegpt},
    {"pair", "preference pairs: chosen and rejected lists of {role, content}", convert_pair},
    {"openai", "messages of {role, content}, tool_calls, optional tools", convert_openai},
    {"tokenized", "input_ids and labels of equal length; -100 is not supervised", convert_tokenized},
}};

}  // namespace

std::span<const Converter> converters() { return kConverters; }

const Converter* find_converter(std::string_view name) {
  for (const Converter& converter : kConverters) {
    if (converter.name == name) return &converter;
  }
  return nullptr;
}

}  // namespace expertmesh::data
