// expect: fold the gain first
// SPDX-License-Identifier: MIT
/// @file
/// A gain-carrying norm and an Orthogonal<double> rotation do not compile together; the norm without its gain does.
#include <rmsfold/fold/rotate.hpp>
#include <rmsfold/group/orthogonal.hpp>

namespace rmsfold {

#ifdef SHOULD_FAIL
RMSNorm<float> rotated(const RMSNorm<float>& norm, const Orthogonal<double>& q) { return rotate_norm(norm, q); }
#else
UnitRMSNorm<float> rotated(const RMSNorm<float>& norm, const Orthogonal<double>& q) {
  return rotate_norm(norm.without_gain(), q);
}
#endif

}  // namespace rmsfold
