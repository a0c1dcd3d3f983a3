// SPDX-License-Identifier: Apache-2.0
// The logistic function over sixteen floats and what comes with it. No torch.
#pragma once

#include "ops/cpu/vec.h"

namespace expertmesh::ops::cpu {

EXPERTMESH_INLINE Vec sigmoid(Vec x) { return 1.0F / (1.0F + exp(-x)); }

// sigmoid(x) and its derivative, which keeps its digits where sigmoid(x) is next to 1.
struct SigmoidSlope {
  Vec value, slope;
};

EXPERTMESH_INLINE SigmoidSlope sigmoid_slope(Vec x) {
  const Vec small = exp(-max(x, -x)), large = 1.0F / (1.0F + small);
  return {x < 0.0F ? small * large : large, small * large * large};
}

// log(1 + u) within 1 ulp for u in [0, 1]. With s = u / (2 + u) it is 2 atanh(s) = 2 s + s r, where
// r = 2/3 s^2 + 2/5 s^4 + ...; written as u - s (u - r), which rounds the small part only.
EXPERTMESH_INLINE Vec log1p(Vec u) {
  const Vec s = u / (2.0F + u), z = s * s;
  Vec r = splat(2.0F / 17.0F);
  r = r * z + 2.0F / 15.0F;
  r = r * z + 2.0F / 13.0F;
  r = r * z + 2.0F / 11.0F;
  r = r * z + 2.0F / 9.0F;
  r = r * z + 2.0F / 7.0F;
  r = r * z + 2.0F / 5.0F;
  r = r * z + 2.0F / 3.0F;
  return u - s * (u - r * z);
}

// log(1 + e^x), without overflow.
EXPERTMESH_INLINE Vec softplus(Vec x) { return max(x, splat(0.0F)) + log1p(exp(-max(x, -x))); }

}  // namespace expertmesh::ops::cpu
