// SPDX-License-Identifier: Apache-2.0
#include "comm/rank_errors.h"

#include <algorithm>
#include <mutex>
#include <new>
#include <string>
#include <vector>

namespace expertmesh::comm {
namespace {

struct Translators {
  std::mutex mutex;
  std::vector<ErrorTranslator> list;
};

Translators& translators() {
  static Translators instance;
  return instance;
}

}  // namespace

void register_error_translator(ErrorTranslator translator) {
  Translators& all = translators();
  const std::lock_guard lock(all.mutex);
  if (std::find(all.list.begin(), all.list.end(), translator) == all.list.end()) all.list.push_back(translator);
}

base::Error translate_exception(const std::exception_ptr& thrown) {
  std::vector<ErrorTranslator> list;
  {
    Translators& all = translators();
    const std::lock_guard lock(all.mutex);
    list = all.list;
  }
  for (const ErrorTranslator translator : list) {
    if (auto error = translator(thrown)) return *std::move(error);
  }
  try {
    std::rethrow_exception(thrown);
  } catch (const base::Error& error) {
    return error;
  } catch (const std::bad_alloc&) {
    return base::make_error(base::Code::kResources, "resources/memory", "out of memory")
        .hint("Use more ranks, a smaller micro_batch_size or cutoff_len, or a machine with more memory.");
  } catch (const std::exception& error) {
    return base::make_error(base::Code::kInternal, "internal", "unexpected failure: {}", error.what());
  } catch (...) {
    return base::make_error(base::Code::kInternal, "internal", "unexpected failure of an unknown type");
  }
}

}  // namespace expertmesh::comm
