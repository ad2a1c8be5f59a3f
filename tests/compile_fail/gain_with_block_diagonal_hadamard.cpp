// expect: fold the gain first
// SPDX-License-Identifier: MIT
/// @file
/// A gain-carrying norm and a BlockDiagonal<Hadamard> rotation do not compile together; the norm without its gain does.
#include <rmsfold/fold/rotate.hpp>
#include <rmsfold/group/block_diagonal.hpp>
#include <rmsfold/group/hadamard.hpp>

namespace rmsfold {

#ifdef SHOULD_FAIL
RMSNorm<float> rotated(const RMSNorm<float>& norm, const BlockDiagonal<Hadamard>& q) { return rotate_norm(norm, q); }
#else
UnitRMSNorm<float> rotated(const RMSNorm<float>& norm, const BlockDiagonal<Hadamard>& q) {
  return rotate_norm(norm.without_gain(), q);
}
#endif

}  // namespace rmsfold
