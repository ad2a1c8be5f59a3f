// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// How spread out a tensor's entries are, which decides how well it quantises: a rotation can make it better or worse.

#include <algorithm>
#include <cmath>
#include <string>

#include <rmsfold/model/model.hpp>

namespace rmsfold::model {

/// Statistics of all entries of a tensor.
struct WeightStatistics {
  double largest = 0;   ///< \f$\max|W|\f$
  double rms = 0;       ///< \f$\sqrt{\overline{W^2}}\f$
  double kurtosis = 0;  ///< \f$\overline{W^4}/\overline{W^2}^2\f$: 3 for Gaussian entries, larger with outliers; 0 for a zero tensor
};

/// Statistics of a param, read in pieces. @throws IoError.
[[nodiscard]] inline WeightStatistics weight_statistics(const Model& model, const std::string& param) {
  constexpr std::size_t piece = std::size_t{1} << 20;
  const std::uint64_t count = element_count(model.shape(param));
  WeightStatistics result;
  double second = 0, fourth = 0;
  std::vector<double> values;
  for (std::uint64_t done = 0; done < count; done += values.size()) {
    values.resize(static_cast<std::size_t>((std::min<std::uint64_t>)(piece, count - done)));
    model.read_values(param, done, values);
    for (const double value : values) {
      const double square = value * value;
      result.largest = (std::max)(result.largest, std::fabs(value));
      second += square;
      fourth += square * square;
    }
  }
  const double n = static_cast<double>(count);
  if (second > 0) {
    result.rms = std::sqrt(second / n);
    result.kurtosis = (fourth / n) / ((second / n) * (second / n));
  }
  return result;
}

}  // namespace rmsfold::model
