// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Random norms and linear layers that hide nothing: gains away from 1 and partly negative, biases that are not zero.

#include <rmsfold/core/random.hpp>
#include <rmsfold/fold/linear.hpp>
#include <rmsfold/norm/rms_norm.hpp>

namespace rmsfold::test {

/// Magnitudes log-uniform in 0.2 … 5, every third one negative.
RowVector<double> random_gain(Index n, Random& random);

/// A norm with such a gain.
template <Storage S>
RMSNorm<S> random_norm(Index n, double eps, Random& random) {
  return RMSNorm<S>(rounded<S>(random_gain(n, random)), eps);
}

/// Normal weights and biases.
template <Storage S>
Linear<S> random_linear(Index out, Index in, Random& random) {
  Linear<S> result{rounded<S>(normal_matrix(out, in, random)), std::nullopt};
  result.bias = rounded<S>(RowVector<double>(normal_matrix(1, out, random)));
  return result;
}

}  // namespace rmsfold::test
