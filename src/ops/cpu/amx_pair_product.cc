// SPDX-License-Identifier: Apache-2.0
#include "ops/cpu/amx_pair_product.h"

namespace expertmesh::ops::cpu {

[[gnu::target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,avx2,fma")]] void multiply_pairs_amx(
    const PairProduct& product) {
  multiply_pairs_on_tiles<AmxTiles>(product);
}

}  // namespace expertmesh::ops::cpu
