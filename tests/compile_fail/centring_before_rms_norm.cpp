// expect: an identity before a LayerNorm only
// SPDX-License-Identifier: MIT
/// @file
/// The mean of a writer cannot be removed for an RMSNorm to read; for a LayerNorm it can.
#include <rmsfold/fold/centre.hpp>

namespace rmsfold {

#ifdef SHOULD_FAIL
using Norm = RMSNorm<float>;
#else
using Norm = LayerNorm<float>;
#endif

Linear<float> centred(const Norm& norm, const Linear<float>& writer) { return centre_writer(norm, writer); }

}  // namespace rmsfold
