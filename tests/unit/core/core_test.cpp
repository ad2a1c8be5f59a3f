// SPDX-License-Identifier: MIT
// The small headers of the lowest floor in one translation unit: checked, error, finite, parallel, tolerance.
#include <rmsfold/core/checked.hpp>
#include <rmsfold/core/error.hpp>
#include <rmsfold/core/finite.hpp>
#include <rmsfold/core/parallel.hpp>
#include <rmsfold/core/tolerance.hpp>

#include <bit>
#include <set>
#include <vector>

#include "support/catch.hpp"

namespace rmsfold {

using test::has_text;

TEST_CASE("checked: sums and products at the edge of 64 bits", "[core]") {
  constexpr std::uint64_t top = ~std::uint64_t{0};
  CHECK(checked_add(top - 1, 1) == top);
  CHECK_THROWS_AS(checked_add(top, 1), RangeError);
  CHECK_THROWS_WITH(checked_add(top, 1), has_text("18446744073709551615 + 1"));
  CHECK(checked_mul(0, top) == 0);
  CHECK(checked_mul(top, 0) == 0);
  CHECK(checked_mul(0x100000000, 0xffffffff) == 0xffffffff00000000);
  CHECK_THROWS_AS(checked_mul(0x100000000, 0x100000000), RangeError);
  CHECK_THROWS_WITH(checked_mul(std::uint64_t{1} << 40, std::uint64_t{1} << 40),
                    has_text("1099511627776 * 1099511627776"));
}

TEST_CASE("checked: narrow keeps the value or throws", "[core]") {
  CHECK(narrow<std::int8_t>(127) == 127);
  CHECK_THROWS_AS(narrow<std::int8_t>(128), RangeError);
  CHECK_THROWS_AS(narrow<std::uint64_t>(-1), RangeError);
  CHECK_THROWS_AS(narrow<Index>(~std::uint64_t{0}), RangeError);
}

TEST_CASE("error: one family, with formatted messages", "[core]") {
  CHECK_THROWS_AS(detail::raise<ShapeError>("{} x {}", 2, 3), Error);
  CHECK_THROWS_WITH(detail::raise<ShapeError>("{} x {}", 2, 3), "2 x 3");
}

TEST_CASE("finite: decided by the exponent, for every NaN payload", "[core]") {
  for (unsigned exponent = 0; exponent < 0x800u; ++exponent) {
    for (const std::uint64_t fraction : {std::uint64_t{0}, std::uint64_t{1}, (std::uint64_t{1} << 52) - 1}) {
      for (const std::uint64_t sign : {std::uint64_t{0}, std::uint64_t{1} << 63}) {
        const double x = std::bit_cast<double>(sign | (std::uint64_t{exponent} << 52) | fraction);
        if (is_finite(x) != (exponent != 0x7ffu)) FAIL_CHECK("exponent " << exponent << ", fraction " << fraction);
      }
    }
  }
  for (const std::uint32_t fraction : {0u, 1u, 0x400000u, 0x7fffffu})
    CHECK_FALSE(is_finite(std::bit_cast<float>(0x7f800000u | fraction)));
  CHECK(is_finite(std::bit_cast<float>(0x7f7fffffu)));
  CHECK(is_finite(std::bit_cast<float>(0x80000001u)));
}

TEST_CASE("finite: position of the first", "[core]") {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const std::vector<double> values{1, 0, -std::numeric_limits<double>::infinity(), nan};
  CHECK(first_non_finite(values.data(), 4) == 2);
  CHECK(first_non_finite(values.data(), 2) == -1);
  CHECK(first_non_finite(values.data(), 0) == -1);
}

TEST_CASE("parallel: every index once, whatever the number of threads", "[core]") {
  for (const unsigned threads : {0u, 1u, 2u, 7u, 100u}) {
    for (const Index count : {Index{0}, Index{1}, Index{5}, Index{1000}}) {
      CAPTURE(threads, count);
      std::vector<int> seen(static_cast<std::size_t>(count), 0);
      parallel_for(count, threads, [&](Index i) { ++seen[static_cast<std::size_t>(i)]; });
      CHECK(seen == std::vector<int>(static_cast<std::size_t>(count), 1));
    }
  }
}

TEST_CASE("parallel: an exception of a worker reaches the caller, and stops the rest", "[core]") {
  for (const unsigned threads : {1u, 4u}) {
    CAPTURE(threads);
    std::atomic<Index> calls{0};
    const auto body = [&](Index i) {
      ++calls;
      if (i == 3) throw RangeError("index 3");
    };
    CHECK_THROWS_WITH(parallel_for(1000000, threads, body), "index 3");
    CHECK(calls < 1000000);
    CHECK_THROWS_AS(parallel_for(1000000, threads, body), RangeError);
  }
}

TEST_CASE("tolerance: the constants as derived", "[core]") {
  CHECK(gamma_n(0, 0x1p-53) == 0);
  CHECK(gamma_n(1, 0.25) == 0.25 / 0.75);
  CHECK(gamma_n(4, 0.25) == std::numeric_limits<double>::infinity());
  CHECK(gamma_n(5, 0.25) == std::numeric_limits<double>::infinity());
  CHECK(orthogonality_tolerance<double>(16) == 16 * 0x1p-52);
  CHECK(orthogonality_tolerance<float>(0) == 0);
}

}  // namespace rmsfold
