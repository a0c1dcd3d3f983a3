// SPDX-License-Identifier: Apache-2.0
// What the operators of the table do, for the trace of a rank: operations where a formula counts them, and bytes that
// are read and written at least.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>

#include "base/trace.h"
#include "ops/operators.h"

namespace expertmesh::ops {

inline double bytes_of(const at::Tensor& tensor) {
  return tensor.defined() ? static_cast<double>(tensor.numel()) * static_cast<double>(tensor.element_size()) : 0.0;
}

// Of causal attention: queries and keys, scores and values are two products over half of each document's square. The
// backward makes five: the scores again, and the gradients of values, scores, queries and keys.
constexpr int kAttentionProducts = 2, kAttentionBackwardProducts = 5;
double attention_flops(std::span<const int64_t> cu_seqlens, int64_t heads, int64_t head_dim, int products);

base::Work work_of(const at::Tensor& q_TND, const at::Tensor& k_TMD, const at::Tensor& v_TMD,
                   std::span<const int64_t> cu_seqlens, double scale);
base::Work work_of(const CrossEntropyInput& input);
base::Work work_of(const GatedDeltaInput& input);
base::Work work_of(const CausalConvInput& input);
base::Work work_of(const CachedAttentionInput& input);
base::Work work_of(const at::Tensor& hidden_TH, const at::Tensor& weight_VH, const at::Tensor& targets_T);

// Of an operator on rows: x comes first, and its result is as large.
template <typename... Others>
base::Work work_of(const at::Tensor& x, const Others&... /*others*/) {
  return {.flops = 0, .bytes = 2 * bytes_of(x)};
}

// The name of an operator, as a template's argument.
template <size_t N>
struct SpanName {
  // Implicit, so that a literal can stand there. NOLINTNEXTLINE(google-explicit-constructor)
  constexpr SpanName(const char (&literal)[N]) {
    for (size_t i = 0; i < N; ++i) text[i] = literal[i];
  }
  char text[N]{};
};

namespace detail {

template <auto Function, SpanName Name, typename Signature = decltype(Function)>
struct Spanned;

template <auto Function, SpanName Name, typename Result, typename... Arguments>
struct Spanned<Function, Name, Result (*)(Arguments...)> {
  static Result call(Arguments... arguments) {
    const base::Span span(Name.text);
    span.does([&] { return work_of(arguments...); });
    return Function(arguments...);
  }
};

}  // namespace detail

// A function of the table, in a span.
template <auto Function, SpanName Name>
constexpr auto spanned = &detail::Spanned<Function, Name>::call;

}  // namespace expertmesh::ops
