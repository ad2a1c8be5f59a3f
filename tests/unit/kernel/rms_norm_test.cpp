// SPDX-License-Identifier: MIT
#include <rmsfold/kernel/rms_norm.hpp>

#include <bit>
#include <cmath>
#include <concepts>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include <rmsfold/core/random.hpp>
#include <rmsfold/core/tolerance.hpp>
#include <rmsfold/norm/rms_norm.hpp>

#include "support/catch.hpp"

namespace rmsfold {
namespace {

using kernel::Product;
using kernel::Target;
using kernel::WithTarget;

/// Every length around the vectors and the blocks of 16 and 64, and long ones: another order of the additions shows in
/// the last place of one of seven of these.
std::vector<Index> lengths() {
  std::vector<Index> result(50, 512);
  for (const Index n : {127, 128, 129, 255, 1000, 4096}) result.push_back(n);
  for (Index n = 1; n <= 70; ++n) result.push_back(n);
  return result;
}

/// Numbers of many sizes whose squares do not overflow, zeros of both signs and subnormals among them. Sums of their
/// squares are inexact in double too; in every third row the squares are near the least floats.
template <class T>
std::vector<T> numbers(Index n, Random& random) {
  std::vector<T> result(static_cast<std::size_t>(n));
  const bool small = random.below(3) == 0;
  for (T& x : result) {
    double value = std::ldexp(random.normal(),
                              small ? static_cast<int>(random.below(12)) - 76 : static_cast<int>(random.below(30)) - 4);
    if (random.below(16) == 0) value = random.sign() * (random.below(2) == 0 ? 0.0 : 3 * underflow_unit<T>());
    x = round_to<T>(value);
  }
  return result;
}

/// With all that a gain may be.
template <class G>
std::vector<G> gains(Index n, Random& random) {
  using Limits = std::numeric_limits<G>;
  std::vector<G> result(static_cast<std::size_t>(n));
  for (G& g : result) g = static_cast<G>(to_double(round_to<BF16>(random.normal())));  // with which a BF16 gives ties
  for (const G special : {G(0), -G(0), Limits::infinity(), Limits::quiet_NaN(), (Limits::max)(), -(Limits::min)(),
                          Limits::denorm_min(), G(1) / G(3)}) {
    result[random.below(result.size())] = special;
  }
  return result;
}

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

/// A row from and to addresses that are no multiples of a vector; what is around it has to stay.
template <class T, class G>
std::vector<T> normalised(const std::vector<T>& x, double s, const G* gain, bool in_place) {
  std::vector<T> from(x.size() + 2, round_to<T>(7.0)), to(x.size() + 2, round_to<T>(7.0));
  std::copy(x.begin(), x.end(), from.begin() + 1);
  std::vector<T>& result = in_place ? from : to;
  const T* row = from.data() + 1;
  kernel::dispatch<kernel::Normalise<T, G>>(row, s, gain, result.data() + 1, static_cast<Index>(x.size()), row);
  return result;
}

template <class T, class G>
void check_normalise(const std::vector<T>& x, const std::vector<G>& gain, double s) {
  for (const G* g : {gain.data(), static_cast<const G*>(nullptr)}) {
    std::vector<T> want(x.size() + 2, round_to<T>(7.0));
    for (std::size_t j = 0; j < x.size(); ++j) {
      Product<T> value = static_cast<Product<T>>(to_double(x[j])) * static_cast<Product<T>>(s);
      if (g != nullptr) value *= static_cast<Product<T>>(g[j]);
      want[j + 1] = round_to<T>(static_cast<double>(value));
    }
    for (const Target target : kernel::supported_targets()) {
      CAPTURE(x.size(), s, g != nullptr, sizeof(G), std::string(kernel::name_of(target)));
      const WithTarget with(target);
      CHECK(same_bits(normalised(x, s, g, false), want));
      CHECK(same_bits(normalised(x, s, g, true), want));
    }
  }
}

}  // namespace

TEMPLATE_TEST_CASE("kernel: the norm has the same bits on every target", "[kernel]", float, double, BF16) {
  using T = TestType;
  Random random(81);
  for (const Index n : lengths()) {
    const std::vector<T> x = numbers<T>(n, random);
    const double sum = kernel::SumOfSquares<T>::scalar(x.data(), n);
    for (const Target target : kernel::supported_targets()) {
      CAPTURE(n, std::string(kernel::name_of(target)));
      const WithTarget with(target);
      CHECK(kernel::dispatch<kernel::SumOfSquares<T>>(x.data(), n) == sum);
    }
    long double exact = 0;
    for (const T& value : x)
      exact += static_cast<long double>(to_double(value)) * static_cast<long double>(to_double(value));
    // A square and three additions in the type of products, one in double for each block of 64, four in the end, and
    // the long double, which has at most the error of a double. All terms are positive. Squares may be subnormal.
    const double bound = gamma_n(4, unit_roundoff<Product<T>>()) +
                         gamma_n(static_cast<double>(n) / 64 + 5 + static_cast<double>(n), 0x1p-53);
    CHECK(std::fabs(static_cast<double>(sum - exact)) <=
          bound * static_cast<double>(exact) + static_cast<double>(n) * underflow_unit<Product<T>>());

    for (const double s : {1.0, 0.37, 1e-19}) {
      check_normalise(x, gains<float>(n, random), s);
      if constexpr (!std::same_as<T, BF16>) check_normalise(x, gains<double>(n, random), s);
    }
  }
}

// The twin: these numbers tell one rounding from two, and ties to even from ties upwards.
TEMPLATE_TEST_CASE("kernel: the norm's numbers tell roundings apart", "[kernel]", float, BF16) {
  using T = TestType;
  using P = Product<T>;
  Random random(82);
  const std::vector<float> gain = gains<float>(4096, random);
  int twice = 0, upwards = 0;
  std::size_t i = 0;
  for (const T& value : numbers<T>(4096, random)) {
    const float g = gain[i++];
    if (!is_finite(g)) continue;
    const P p = static_cast<P>(to_double(value)) * P(0.37);
    const T once = round_to<T>(static_cast<double>(p * static_cast<P>(g)));
    twice += round_to<T>(to_double(round_to<T>(static_cast<double>(p))) * static_cast<double>(g)) == once ? 0 : 1;
    upwards += (std::bit_cast<std::uint32_t>(static_cast<float>(to_double(value)) * g) & 0x1ffffu) == 0x8000u ? 1 : 0;
  }
  CHECK(twice > 50);
  if (std::same_as<T, BF16>) CHECK(upwards > 5);  // with s = 1 these are halfway, above an even one
}

TEMPLATE_TEST_CASE("kernel: whole norms do not depend on the target", "[kernel]", float, double, BF16) {
  using T = TestType;
  Random random(83);
  const Index n = GENERATE(5, 64, 100);
  const double infinity = std::numeric_limits<double>::infinity();
  // An ordinary row; and one of zeros, of the least and of the largest numbers, with an infinity, with a NaN, and one
  // whose squares are subnormal floats.
  std::vector<T> x = numbers<T>(7 * n, random);
  for (Index j = 0; j < n; ++j) {
    x[static_cast<std::size_t>(n + j)] = round_to<T>(0.0);
    x[static_cast<std::size_t>(2 * n + j)] = round_to<T>(underflow_unit<T>() * static_cast<double>(2 + 2 * (j % 3)));
    x[static_cast<std::size_t>(3 * n + j)] = round_to<T>(random.sign() * largest_finite<T>());
    x[static_cast<std::size_t>(6 * n + j)] = round_to<T>(std::ldexp(random.normal(), -75));
  }
  x[static_cast<std::size_t>(4 * n)] = round_to<T>(infinity);
  x[static_cast<std::size_t>(5 * n + 1)] = round_to<T>(std::numeric_limits<double>::quiet_NaN());
  const double eps = GENERATE(0.0, 1e-6, 1e-40);
  RowVector<float> weight(n);
  for (Index j = 0; j < n; ++j) weight[j] = static_cast<float>(1 + 0.3 * random.normal());
  const RMSNorm<float> norm(weight, eps);
  std::vector<T> want(x.size());
  {
    const WithTarget with(Target::scalar);
    norm.apply(x, std::span(want));
  }
  for (const Target target : kernel::supported_targets()) {
    CAPTURE(n, eps, std::string(kernel::name_of(target)));
    const WithTarget with(target);
    std::vector<T> y = x;
    norm.apply(y, std::span(y));
    CHECK(same_bits(y, want));
  }
  for (Index t = 0; t < 7; ++t) {
    CAPTURE(n, eps, t);
    long double mean = 0;
    bool finite = true;
    for (Index j = 0; j < n; ++j) {
      const double value = to_double(x[static_cast<std::size_t>(t * n + j)]);
      mean += static_cast<long double>(value) * static_cast<long double>(value) / static_cast<long double>(n);
      finite = finite && is_finite(value);
    }
    bool within = true, outside = true, any_not_finite = false;
    for (Index j = 0; j < n; ++j) {
      const std::size_t i = static_cast<std::size_t>(t * n + j);
      const auto at = [&](long double root) {
        return static_cast<double>(static_cast<long double>(to_double(x[i])) / root *
                                   static_cast<long double>(weight[j]));
      };
      const double got = to_double(want[i]);
      any_not_finite = any_not_finite || !is_finite(got);
      // As above for the sum, of which the root halves the error; mean, eps, root, reciprocal, two products, and s
      // itself in the type of products; then the rounding to T.
      const double allowed = 1.001 * (unit_roundoff<T>() + gamma_n(6, unit_roundoff<Product<T>>()) +
                                      gamma_n(static_cast<double>(n) + 8, 0x1p-53));
      const double exact = mean > 0 || eps > 0 ? at(std::sqrt(mean + static_cast<long double>(eps))) : 0;
      within = within && std::fabs(got - exact) <= allowed * std::fabs(exact) + 2 * underflow_unit<T>();
      const double wrong = at(std::sqrt(mean) + static_cast<long double>(eps));  // the twin: eps outside the root
      outside = outside && std::fabs(got - wrong) <= allowed * std::fabs(wrong) + 2 * underflow_unit<T>();
    }
    CHECK(within == finite);
    CHECK(any_not_finite == !finite);
    if (t == 2 && eps > 0 && sizeof(T) < 8) CHECK_FALSE(outside);
  }
}

}  // namespace rmsfold
