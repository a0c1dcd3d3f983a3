// SPDX-License-Identifier: Apache-2.0
// What a rank can do at most, measured in some 100 ms: products in the cache, and copies from memory to memory. With
// all ranks measuring at once, each sees what the others leave it.
#pragma once

namespace expertmesh::train {

struct Roofline {
  double fp32_flops_per_s = 0;
  double bf16_flops_per_s = 0;  // the faster of dense products and experts
  double copy_bytes_per_s = 0;  // read and written
};

Roofline measure_roofline();

}  // namespace expertmesh::train
