// SPDX-License-Identifier: Apache-2.0
// Products on AMX tiles (amx_expert_product.h). What has the format of a tile for AVX-512 has it for AMX.
#include "ops/cpu/amx_expert_product.h"

namespace expertmesh::ops::cpu {
namespace {

[[gnu::target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,avx2,fma")]] void multiply(const ExpertProduct& product) {
  multiply_on_tiles<AmxTiles>(product);
}

}  // namespace

const ExpertKernels kExpertKernelsAmx{
    .name = "amx",
    .panel_rows = kAmxSide,
    .copies_lists = true,
    .multiply = multiply,
    .pack_rows = [](IndexedRows<const Bf16> rows, int64_t columns, int64_t depth,
                    uint32_t* out) { kExpertKernelsAvx512.pack_rows(rows, columns, depth, out); },
    .pack_columns = [](IndexedRows<const Bf16> rows, int64_t columns, int64_t depth,
                       uint32_t* out) { kExpertKernelsAvx512.pack_columns(rows, columns, depth, out); },
    .transpose = [](IndexedRows<const Bf16> in, int64_t rows, int64_t columns, IndexedRows<Bf16> out,
                    bool is_read_late) { kExpertKernelsAvx512.transpose(in, rows, columns, out, is_read_late); },
    .runs_here = [] { return has_amx() && kExpertKernelsAvx512Bf16.runs_here(); },
};

}  // namespace expertmesh::ops::cpu
