// SPDX-License-Identifier: MIT
#include <rmsfold/core/half.hpp>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include <rmsfold/core/random.hpp>

#include "support/catch.hpp"

namespace rmsfold {
namespace {

constexpr double inf = std::numeric_limits<double>::infinity();

template <Half S>
S from_bits(unsigned bits) {
  return S{static_cast<std::uint16_t>(bits)};
}

/// The value by the definition of an IEEE binary interchange format, from its three fields.
template <Half S>
double value_by_definition(unsigned bits) {
  const int bias = (1 << (S::exponent_bits - 1)) - 1;
  const int exponent = static_cast<int>((bits & 0x7fffu) >> S::fraction_bits);
  const int fraction = static_cast<int>(bits & ((1u << S::fraction_bits) - 1));
  const double sign = (bits & 0x8000u) != 0 ? -1 : 1;
  if (exponent == (1 << S::exponent_bits) - 1)
    return fraction == 0 ? sign * inf : std::numeric_limits<double>::quiet_NaN();
  if (exponent == 0) return sign * std::ldexp(fraction, 1 - bias - S::fraction_bits);
  return sign * std::ldexp((1 << S::fraction_bits) + fraction, exponent - bias - S::fraction_bits);
}

template <Half S>
constexpr unsigned infinity_bits = ((1u << S::exponent_bits) - 1) << S::fraction_bits;

/// Nearest stored value by search among all of them, ties to the even bit pattern; overflow where the next value of an
/// unbounded exponent would begin.
template <Half S>
unsigned nearest_by_search(double x) {
  static const std::vector<double> table = [] {
    std::vector<double> values;
    for (unsigned bits = 0; bits < infinity_bits<S>; ++bits) values.push_back(value_by_definition<S>(bits));
    values.push_back(2 * values.back() - values[values.size() - 2]);  // stands for infinity
    return values;
  }();
  const unsigned sign = std::signbit(x) ? 0x8000u : 0;
  const double magnitude = std::fabs(x);
  const auto above = std::lower_bound(table.begin(), table.end(), magnitude);
  if (above == table.end()) return sign | infinity_bits<S>;
  const unsigned high = static_cast<unsigned>(above - table.begin());
  if (high == 0) return sign;
  // Both distances are exact: neighbours share an exponent range with x, and long double is at least as wide as double.
  const long double up = static_cast<long double>(*above) - magnitude;
  const long double down = static_cast<long double>(magnitude) - table[high - 1];
  const bool take_high = up < down || (up == down && high % 2 == 0);
  return sign | (take_high ? high : high - 1);
}

}  // namespace

TEMPLATE_TEST_CASE("half: every bit pattern has the value of its definition and survives the round trip", "[core]", F16,
                   BF16) {
  int wrong_values = 0;
  int wrong_trips = 0;
  for (unsigned bits = 0; bits < 0x10000u; ++bits) {
    const double value = to_double(from_bits<TestType>(bits));
    const double expected = value_by_definition<TestType>(bits);
    const unsigned back = round_to<TestType>(value).bits;
    if (std::isnan(expected)) {
      wrong_values += !std::isnan(value);
      wrong_trips += (back & 0x7fffu) <= infinity_bits<TestType> || (back & 0x8000u) != (bits & 0x8000u);
    } else {
      wrong_values += !(value == expected) || std::signbit(value) != std::signbit(expected);
      wrong_trips += back != bits;
    }
  }
  CHECK(wrong_values == 0);
  CHECK(wrong_trips == 0);
}

TEMPLATE_TEST_CASE("half: between every two neighbours the nearer one, and the even one from the middle", "[core]", F16,
                   BF16) {
  int wrong = 0;
  for (unsigned bits = 0; bits + 1 < infinity_bits<TestType>; ++bits) {
    const double low = value_by_definition<TestType>(bits);
    const double high = value_by_definition<TestType>(bits + 1);
    const double middle = low + (high - low) / 2;  // exact
    for (const unsigned sign : {0u, 0x8000u}) {
      const auto rounds_to = [&](double x, unsigned expected) {
        return round_to<TestType>(sign == 0 ? x : -x).bits == (sign | expected);
      };
      wrong += !rounds_to(middle, bits % 2 == 0 ? bits : bits + 1);
      wrong += !rounds_to(std::nextafter(middle, 0), bits);
      wrong += !rounds_to(std::nextafter(middle, inf), bits + 1);
      wrong += !rounds_to(std::nextafter(low, inf), bits);
      wrong += !rounds_to(std::nextafter(high, 0), bits + 1);
    }
  }
  CHECK(wrong == 0);
}

TEMPLATE_TEST_CASE("half: rounding agrees with a search among all values", "[core]", F16, BF16) {
  Random random(11);
  int wrong = 0;
  for (int i = 0; i < 200000; ++i) {
    // Exponents from below the smallest subnormal to above the largest finite value.
    constexpr int bias = (1 << (TestType::exponent_bits - 1)) - 1;
    const int exponent =
        static_cast<int>(random.below(2 * bias + TestType::fraction_bits + 8)) - bias - TestType::fraction_bits - 4;
    const double x = random.sign() * std::ldexp(1 + random.uniform(), exponent);
    wrong += round_to<TestType>(x).bits != nearest_by_search<TestType>(x);
  }
  CHECK(wrong == 0);
}

TEMPLATE_TEST_CASE("half: ends of the range", "[core]", F16, BF16) {
  const double largest = largest_finite<TestType>();
  CHECK(round_to<TestType>(largest).bits == infinity_bits<TestType> - 1);
  const double beyond = largest * (1 + unit_roundoff<TestType>() /
                                           (2 - 2 * unit_roundoff<TestType>()));  // half a step further: tie to even
  CHECK(round_to<TestType>(beyond).bits == infinity_bits<TestType>);
  CHECK(round_to<TestType>(std::nextafter(beyond, 0)).bits == infinity_bits<TestType> - 1);
  CHECK(round_to<TestType>(1e300).bits == infinity_bits<TestType>);
  CHECK(round_to<TestType>(-inf).bits == (0x8000u | infinity_bits<TestType>));

  const double tiny = underflow_unit<TestType>();
  CHECK(to_double(from_bits<TestType>(1)) == 2 * tiny);
  CHECK(round_to<TestType>(tiny).bits == 0);
  CHECK(round_to<TestType>(std::nextafter(tiny, 1)).bits == 1);
  CHECK(round_to<TestType>(3 * tiny).bits == 2);
  CHECK(round_to<TestType>(-0.0).bits == 0x8000u);
  CHECK(round_to<TestType>(-5e-324).bits == 0x8000u);
  CHECK(round_to<TestType>(0.0).bits == 0);

  // u is half a step at 1.
  CHECK(to_double(from_bits<TestType>(round_to<TestType>(1.0).bits + 1u)) == 1 + 2 * unit_roundoff<TestType>());
}

TEMPLATE_TEST_CASE("half: a NaN never becomes an infinity, whatever its payload", "[core]", F16, BF16) {
  for (const std::uint64_t payload :
       {std::uint64_t{1}, std::uint64_t{1} << 20, std::uint64_t{1} << 51, (std::uint64_t{1} << 52) - 1}) {
    for (const std::uint64_t sign : {std::uint64_t{0}, std::uint64_t{1} << 63}) {
      const double nan = std::bit_cast<double>(sign | (std::uint64_t{0x7ff} << 52) | payload);
      const TestType stored = round_to<TestType>(nan);
      CHECK((stored.bits & 0x7fffu) > infinity_bits<TestType>);
      CHECK(std::isnan(to_double(stored)));
    }
  }
}

TEST_CASE("half: float and double are stored as they are", "[core]") {
  CHECK(round_to<double>(0.1) == 0.1);
  CHECK(to_double(0.1f) == static_cast<double>(0.1f));
  CHECK(round_to<float>(1 + 0x1p-24 + 0x1p-50) == 1.0f + 0x1p-23f);
  CHECK(round_to<float>(1 + 0x1p-24) == 1.0f);
  CHECK(unit_roundoff<float>() == 0x1p-24);
  CHECK(unit_roundoff<double>() == 0x1p-53);
  CHECK(to_double(std::numeric_limits<float>::denorm_min()) == 2 * underflow_unit<float>());
}

TEST_CASE("half: E2, a bf16 is not rounded twice", "[core]") {
  const double x = 1 + 0x1p-8 + 0x1p-30;
  CHECK(to_double(round_to<BF16>(x)) == 1.0078125);
  CHECK(to_double(round_to<BF16>(static_cast<double>(static_cast<float>(x)))) ==
        1.0);  // the mistake, so the case can tell
  const double y = 1 + 0x1p-11 + 0x1p-40;
  CHECK(to_double(round_to<F16>(y)) == 1 + 0x1p-10);
  CHECK(to_double(round_to<F16>(static_cast<double>(static_cast<float>(y)))) == 1.0);
}

TEST_CASE("half: I8, the cast before or after the gain is one bf16 step", "[core]") {
  const double normalised = 1.00390625;
  const double gain = 1.0078125;
  const auto bf16 = [](double x) { return to_double(round_to<BF16>(x)); };
  CHECK(bf16(bf16(normalised) * gain) == 1.0078125);
  CHECK(bf16(normalised * gain) == 1.015625);
}

}  // namespace rmsfold
