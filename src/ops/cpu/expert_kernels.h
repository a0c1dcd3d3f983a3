// SPDX-License-Identifier: Apache-2.0
// What expert_gemm needs of an instruction set: one product, and three ways to lay out its operands. One row an
// instruction set (expert_kernels_X.cc); blocking, order and SwiGLU are shared. No torch. Threads: any.
// Format of a packed matrix [depth, columns], the right operand: [columns / 16][depth / 2][16][2], pairs of
// neighbouring k side by side, zeros where the depth is odd and past the last column. Sixteen pairs of a block of
// columns are 1 KiB in one piece: 16 registers of AVX-512, or one AMX tile.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "ops/cpu/indexed_rows.h"
#include "ops/cpu/vec.h"

namespace expertmesh::ops::cpu {

// The operand of the next product: packed when this one is done, by whatever way costs least beside it.
struct PackedNext {
  const Bf16* rows = nullptr;  // `depth` rows of `columns` elements
  int64_t stride = 0;
  int64_t columns = 0;
  int64_t depth = 0;
  uint32_t* out = nullptr;  // not the operand of this one
};

// c[r, n] = sum_k a[r, k] b[k, n] for r < rows, n < columns: fp32 sums, rounded once to nearest even. Rows of a are not
// read past `depth`, rows of c not written past `columns`; both may begin at any element. Depth 0 gives zeros.
// An element is the sum over k in one order, whatever rows, columns and lists are: rows that come in pieces give the
// same bits as together.
// The shapes that matter: a = kernel's panel_rows of weights as they are stored, b = 16 to 256 tokens, depth some
// thousand; a = up to 256 rows of tokens, b = 64 columns of weights; for gradients of weights depth = tokens.
struct ExpertProduct {
  IndexedRows<const Bf16> a;
  const uint32_t* b = nullptr;  // packed, on a cache line of its own
  IndexedRows<Bf16> c;
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t depth = 0;
  bool is_a_far = false;  // rows of a, one behind the other, come from memory: worth fetching before they are used
  // c is larger than the caches: it may be written around them. Who asks for that fences its stores, once behind all
  // of its products.
  bool is_read_late = false;
  PackedNext pack = {};
};

struct ExpertKernels {
  std::string_view name;
  int64_t panel_rows;  // of weights at a time; even
  bool copies_lists;   // rows of A behind a list are copied in each product: better once by the caller of several
  void (*multiply)(const ExpertProduct& product);
  // From a matrix that lies as `depth` rows of `columns` elements.
  void (*pack_rows)(IndexedRows<const Bf16> rows, int64_t columns, int64_t depth, uint32_t* out);
  // From one that lies as `columns` rows of `depth` elements.
  void (*pack_columns)(IndexedRows<const Bf16> rows, int64_t columns, int64_t depth, uint32_t* out);
  // out[c, r] = in[r, c] and nothing else.
  void (*transpose)(IndexedRows<const Bf16> in, int64_t rows, int64_t columns, IndexedRows<Bf16> out,
                    bool is_read_late);
  bool (*runs_here)();  // on this processor
};

extern const ExpertKernels kExpertKernelsAmx;         // AMX bf16, with AVX-512 BF16 around it
extern const ExpertKernels kExpertKernelsAvx512Bf16;  // AVX-512 BF16: dot products
extern const ExpertKernels kExpertKernelsAvx512;      // AVX-512: FMAs on pairs that are widened to fp32
extern const ExpertKernels kExpertKernelsAvx2;        // AVX2 and FMA, as well

// Every row, the fastest first; but dot products only where the processor prefers them (vec.h).
constexpr const ExpertKernels* kExpertKernels[] = {&kExpertKernelsAmx, &kExpertKernelsAvx512Bf16, &kExpertKernelsAvx512,
                                                   &kExpertKernelsAvx2};

// The fastest that runs here; nullptr: none does.
const ExpertKernels* best_expert_kernels();

// All products from now on; nullptr: the fastest.
void TEST_use_expert_kernels(const ExpertKernels* kernels);

}  // namespace expertmesh::ops::cpu
