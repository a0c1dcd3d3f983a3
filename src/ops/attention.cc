// SPDX-License-Identifier: Apache-2.0
#include <ATen/Parallel.h>

#include "base/check.h"
#include "ops/cpu/pair_product.h"
#include "ops/native.h"
#include "ops/product.h"

namespace expertmesh::ops::native {

at::Tensor attention(const at::Tensor& q_TND, const at::Tensor& k_TMD, const at::Tensor& v_TMD,
                     std::span<const int64_t> cu_seqlens, double scale) {
  EXPERTMESH_CHECK(q_TND.size(1) % k_TMD.size(1) == 0, "{} query heads, {} key heads", q_TND.size(1), k_TMD.size(1));
  EXPERTMESH_CHECK(!cu_seqlens.empty() && cu_seqlens.back() == q_TND.size(0), "documents of {} tokens, {} queries",
                   cu_seqlens.empty() ? 0 : cu_seqlens.back(), q_TND.size(0));
  const int64_t num_tasks = (static_cast<int64_t>(cu_seqlens.size()) - 1) * k_TMD.size(1);
  // fp32 goes through ATen: it is there to be compared with transformers, which does the same. So does bf16 where there
  // are too few tasks for the threads, unless the library multiplies it badly. With AVX-512 the own kernel
  // is three times as fast, so that half of the threads are enough for it.
  const int64_t per_task = cpu::has_pair_products() ? 2 : 1;
  const bool suits_tiles =
      num_tasks * per_task >= at::get_num_threads() || q_TND.size(0) < 256 || !library_multiplies(at::kBFloat16);
  const bool takes_tiles = q_TND.scalar_type() == at::kBFloat16 && suits_tiles;
  return takes_tiles ? attention_tiles(q_TND, k_TMD, v_TMD, cu_seqlens, scale)
                     : attention_flash(q_TND, k_TMD, v_TMD, cu_seqlens, scale);
}

}  // namespace expertmesh::ops::native
