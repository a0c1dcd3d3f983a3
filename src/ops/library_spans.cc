// SPDX-License-Identifier: Apache-2.0
// at::RecordFunction has one member more without NDEBUG, and the library is built with it.
#ifndef NDEBUG
#define NDEBUG
#endif
#include "ops/library_spans.h"

#include <ATen/core/Tensor.h>
#include <ATen/record_function.h>

#include <algorithm>
#include <array>
#include <memory>
#include <string_view>

#include "base/trace.h"

namespace expertmesh::ops {
namespace {

// Calls that make or view tensors and compute nothing.
constexpr std::array<std::string_view, 8> kWithoutWork = {
    "aten::empty", "aten::empty_strided", "aten::detach", "aten::view",
    "aten::t",     "aten::narrow",        "aten::slice",  "aten::select"};

thread_local bool t_is_in_call = false;

// Two operations for each element of the result and each step of the sum.
double flops_of(std::string_view name, c10::ArrayRef<const c10::IValue> inputs) {
  const auto tensor = [&](size_t i) -> const at::Tensor* {
    return i < inputs.size() && inputs[i].isTensor() ? &inputs[i].toTensor() : nullptr;
  };
  const size_t first = name == "aten::addmm" ? 1 : 0;
  const at::Tensor *a = tensor(first), *b = tensor(first + 1);
  if (a == nullptr || b == nullptr || !a->defined() || !b->defined()) return 0;
  const bool is_linear = name == "aten::linear";
  if (!is_linear && name != "aten::mm" && name != "aten::addmm" && name != "aten::bmm" && name != "aten::matmul")
    return 0;
  if (a->dim() == 0 || b->dim() < 2) return 0;
  return 2.0 * static_cast<double>(a->numel()) * static_cast<double>(b->size(is_linear ? -2 : -1));
}

struct InCall : at::ObserverContext {};

std::unique_ptr<at::ObserverContext> start(const at::RecordFunction& call) {
  base::Trace* trace = base::current_trace();
  if (trace == nullptr || t_is_in_call || trace->is_in_operator()) return nullptr;
  const std::string_view name = call.name();
  if (std::find(kWithoutWork.begin(), kWithoutWork.end(), name) != kWithoutWork.end()) return nullptr;
  t_is_in_call = true;
  trace->open(name, base::SpanKind::kLibrary);
  if (const double flops = flops_of(name, call.inputs()); flops > 0) trace->add_work({.flops = flops, .bytes = 0});
  return std::make_unique<InCall>();
}

void finish(const at::RecordFunction& /*call*/, at::ObserverContext* context) {
  if (context == nullptr) return;
  t_is_in_call = false;
  if (base::Trace* trace = base::current_trace()) trace->close();
}

}  // namespace

LibrarySpans::LibrarySpans()
    : handle_(at::addThreadLocalCallback(
          at::RecordFunctionCallback(start, finish).needsInputs(true).scopes({at::RecordScope::FUNCTION}))) {}

LibrarySpans::~LibrarySpans() { at::removeCallback(handle_); }

}  // namespace expertmesh::ops
