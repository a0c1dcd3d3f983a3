// SPDX-License-Identifier: Apache-2.0
#include "model/common/kv_cache.h"

#include <algorithm>
#include <vector>

#include "ops/new_tensor.h"

namespace expertmesh::model {
namespace {

// Room for `length` tokens: caches grow by doubling, so a token is copied a bounded number of times.
void make_room(at::Tensor& cache_MSD, const at::Tensor& new_NMD, int64_t used, int64_t length) {
  constexpr int64_t kLeastRoom = 64;
  const int64_t room = cache_MSD.defined() ? cache_MSD.size(1) : 0;
  if (length <= room) return;
  const at::Tensor wider =
      ops::new_tensor({new_NMD.size(1), std::max({length, 2 * room, kLeastRoom}), new_NMD.size(2)}, new_NMD.options());
  if (used > 0) wider.narrow(1, 0, used).copy_(cache_MSD.narrow(1, 0, used));
  cache_MSD = wider;
}

void append(at::Tensor& cache_MSD, const at::Tensor& new_NMD, int64_t used) {
  const int64_t count = new_NMD.size(0);
  if (count == 0) return;
  make_room(cache_MSD, new_NMD, used, used + count);
  cache_MSD.narrow(1, used, count).copy_(new_NMD.transpose(0, 1));
}

}  // namespace

bool all_begin_here(std::span<LayerCache* const> caches) {
  return std::all_of(caches.begin(), caches.end(), [](const LayerCache* cache) { return cache->length == 0; });
}

void keep_keys_and_values(const at::Tensor& k_TMD, const at::Tensor& v_TMD, const LayerContext& context) {
  const std::vector<int64_t>& cu = context.batch.cu_seqlens;
  for (size_t d = 0; d < context.caches.size(); ++d) {
    LayerCache& cache = *context.caches[d];
    const int64_t count = cu[d + 1] - cu[d];
    append(cache.keys_MSD, k_TMD.narrow(0, cu[d], count), cache.length);
    append(cache.values_MSD, v_TMD.narrow(0, cu[d], count), cache.length);
    cache.length += count;
  }
}

at::Tensor attend_to_caches(const at::Tensor& q_TND, const LayerContext& context, double scale) {
  std::vector<at::Tensor> keys, values;
  std::vector<int64_t> lengths;
  for (const LayerCache* cache : context.caches) {
    keys.push_back(cache->keys_MSD);
    values.push_back(cache->values_MSD);
    lengths.push_back(cache->length);
  }
  return context.runtime.ops->cached_attention({.q_TND = q_TND,
                                                .keys_MSD = keys,
                                                .values_MSD = values,
                                                .cu_seqlens = context.batch.cu_seqlens,
                                                .lengths = lengths,
                                                .scale = scale});
}

}  // namespace expertmesh::model
