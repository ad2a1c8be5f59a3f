// SPDX-License-Identifier: MIT
/// @file
/// The library under a compiler that is told there are no NaNs: a NaN must fail all the same, and sound input must still pass.
#include <rmsfold/rmsfold.hpp>

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <span>
#include <vector>

namespace {

using namespace rmsfold;

/// A NaN that the compiler cannot know of.
float hidden_nan() {
  volatile std::uint32_t hidden = 0x7fc00000u;
  const std::uint32_t bits = hidden;
  float result = 0;
  std::memcpy(&result, &bits, sizeof result);
  return result;
}

/// One site: a norm, two readers, a batch, and what is wrong with it.
struct Site {
  RowVector<float> gain{RowVector<float>::Zero(12)};
  std::vector<Linear<float>> readers{{Matrix<float>::Zero(5, 12), RowVector<float>::Zero(5)}, {Matrix<float>::Zero(3, 12), {}}};
  Matrix<float> x{Matrix<float>::Zero(4, 12)};

  Site() {
    Random random(11);
    const auto fill = [&](auto& m) {
      for (Index i = 0; i < m.size(); ++i) m.data()[i] = static_cast<float>(random.normal());
    };
    fill(gain);
    fill(x);
    fill(*readers[0].bias);
    for (Linear<float>& reader : readers) fill(reader.weight);
  }

  bool passes() const {
    Random random(13);
    return check_equivalence(RMSNorm<float>(gain, 1e-5), std::span<const Linear<float>>(readers), Hadamard::random(12, random), x).passed();
  }
};

}  // namespace

int main() {
#ifndef __FAST_MATH__
  std::puts("built without -ffast-math: this test would show nothing");
  return 1;
#endif
  int failures = 0;
  const auto require = [&](bool holds, const char* what) {
    if (!holds) {
      std::puts(what);
      ++failures;
    }
  };

  const float values[] = {1.0f, hidden_nan()};
  require(first_non_finite(values, 2) == 1, "first_non_finite misses a NaN");

  require(Site().passes(), "the checker fails a sound site");
  Site site;
  site.x(2, 7) = hidden_nan();
  require(!site.passes(), "the checker passes a NaN in the batch");
  site = Site();
  site.gain[3] = hidden_nan();
  require(!site.passes(), "the checker passes a NaN in the gain");
  site = Site();
  site.readers[1].weight(0, 0) = hidden_nan();
  require(!site.passes(), "the checker passes a NaN in a reader");
  site = Site();
  (*site.readers[0].bias)[4] = hidden_nan();
  require(!site.passes(), "the checker passes a NaN in a bias");
  return failures;
}
