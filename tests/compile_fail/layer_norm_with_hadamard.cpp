// expect: only rotations that fix the ones vector commute with it
// SPDX-License-Identifier: MIT
/// @file
/// A LayerNorm and a generic Hadamard rotation do not compile together; one that fixes the ones vector does.
#include <rmsfold/fold/layer_norm.hpp>
#include <rmsfold/group/hadamard_fixing_ones.hpp>

namespace rmsfold {

#ifdef SHOULD_FAIL
using Rotation = Hadamard;
#else
using Rotation = HadamardFixingOnes;
#endif

UnitLayerNorm<float> rotated(const UnitLayerNorm<float>& norm, const Rotation& q) { return rotate_norm(norm, q); }

}  // namespace rmsfold
