// SPDX-License-Identifier: MIT
/// @file
/// Random gains.
#include "support/random_layer.hpp"

#include <cmath>

namespace rmsfold::test {

RowVector<double> random_gain(Index n, Random& random) {
  RowVector<double> gain(n);
  for (Index j = 0; j < n; ++j) gain[j] = 0.2 * std::pow(25.0, random.uniform()) * (j % 3 == 2 ? -1 : 1);
  return gain;
}

}  // namespace rmsfold::test
