// expect: permutations and one global sign only
// SPDX-License-Identifier: MIT
/// @file
/// A LayerNorm with a gain is transported by a permutation, not by one with signs.
#include <rmsfold/fold/layer_norm.hpp>
#include <rmsfold/group/permutation.hpp>

namespace rmsfold {

#ifdef SHOULD_FAIL
using Transport = SignedPermutation;
#else
using Transport = Permutation;
#endif

LayerNorm<float> moved(const LayerNorm<float>& norm, const Transport& p) { return rotate_norm(norm, p); }

}  // namespace rmsfold
