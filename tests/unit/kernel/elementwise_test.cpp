// SPDX-License-Identifier: MIT
#include <rmsfold/kernel/elementwise.hpp>

#include <bit>
#include <cmath>
#include <limits>
#include <span>
#include <vector>

#include <rmsfold/core/random.hpp>

#include "support/catch.hpp"

namespace rmsfold {
namespace {

using kernel::Target;
using kernel::WithTarget;

/// Whether all are finite, found by every target; they agree.
template <class S>
bool all_finite(const std::vector<S>& values, std::size_t first = 0) {
  const auto bytes = std::as_bytes(std::span(values).subspan(first));
  const Index count = static_cast<Index>(values.size() - first);
  const bool expected = kernel::AllFinite<S>::scalar(bytes.data(), count);
  for (const Target target : kernel::supported_targets()) {
    const WithTarget with(target);
    INFO(kernel::name_of(target) << ", " << count << " elements");
    CHECK(kernel::dispatch<kernel::AllFinite<S>>(bytes.data(), count) == expected);
  }
  return expected;
}

template <class S>
void check_every_place() {
  const double infinity = std::numeric_limits<double>::infinity();
  for (const std::size_t count : {1u, 7u, 16u, 31u, 64u, 100u}) {
    std::vector<S> values(count, round_to<S>(-largest_finite<S>()));
    CHECK(all_finite(values));
    for (std::size_t i = 0; i < count; ++i) {
      const S before = values[i];
      for (const double special : {infinity, -infinity, std::nan("")}) {
        values[i] = round_to<S>(special);
        CHECK_FALSE(all_finite(values));
      }
      CHECK(all_finite(values, i + 1));
      values[i] = before;
    }
  }
}

}  // namespace

TEST_CASE("kernel: one element that is not finite is seen wherever it is", "[kernel]") {
  check_every_place<F16>();
  check_every_place<BF16>();
  check_every_place<float>();
  check_every_place<double>();
  CHECK(kernel::dispatch<kernel::AllFinite<BF16>>(static_cast<const std::byte*>(nullptr), Index{0}));
}

TEST_CASE("kernel: of sixteen bits exactly those with the largest exponent are not finite", "[kernel]") {
  for (std::uint32_t bits = 0; bits < 65536; bits += 3) {
    BF16 brain;
    brain.bits = static_cast<std::uint16_t>(bits);
    F16 half;
    half.bits = static_cast<std::uint16_t>(bits);
    const std::vector<BF16> brains(33, brain);
    const std::vector<F16> halves(33, half);
    const bool brain_is_finite = (bits & 0x7f80) != 0x7f80;
    const bool half_is_finite = (bits & 0x7c00) != 0x7c00;
    if (kernel::dispatch<kernel::AllFinite<BF16>>(std::as_bytes(std::span(brains)).data(), Index{33}) !=
        brain_is_finite)
      FAIL("BF16 " << bits);
    if (kernel::dispatch<kernel::AllFinite<F16>>(std::as_bytes(std::span(halves)).data(), Index{33}) != half_is_finite)
      FAIL("F16 " << bits);
  }
}

TEST_CASE("kernel: products, and the worst ratio to a bound, are those of the reference in every target", "[kernel]") {
  Random random(5);
  for (Index count = 0; count <= 70; ++count) {
    const std::size_t size = static_cast<std::size_t>(count);
    std::vector<double> expected(size), found(size), more(size), by(size);
    for (std::size_t i = 0; i < size; ++i) {
      expected[i] = random.normal();
      found[i] = expected[i] + 1e-3 * random.normal();
      more[i] = 1e-4 * std::fabs(random.normal());
      by[i] = random.normal();
    }
    std::vector<double> products = expected;
    kernel::Multiply::scalar(products.data(), by.data(), count);
    for (const double* const errors : {static_cast<const double*>(more.data()), static_cast<const double*>(nullptr)}) {
      const double worst =
          kernel::WorstRatio::scalar(expected.data(), found.data(), count, 0x1p-9, 1e-40, 1e-4, errors);
      // The definition, one entry at a time.
      double largest = 0;
      for (std::size_t i = 0; i < size; ++i) {
        const double error = 1e-4 + (errors != nullptr ? more[i] : 0);
        const double bound = 0x1p-9 * (std::fabs(expected[i]) + error) + 1e-40 + error;
        largest = (std::max)(largest, std::fabs(found[i] - expected[i]) / bound);
      }
      CHECK(worst == largest);
      for (const Target target : kernel::supported_targets()) {
        const WithTarget with(target);
        INFO(kernel::name_of(target) << ", " << count << " elements");
        std::vector<double> x = expected;
        kernel::dispatch<kernel::Multiply>(x.data(), static_cast<const double*>(by.data()), count);
        CHECK(x == products);
        const auto ratio = [&] {
          return kernel::dispatch<kernel::WorstRatio>(static_cast<const double*>(expected.data()),
                                                      static_cast<const double*>(found.data()), count, 0x1p-9, 1e-40,
                                                      1e-4, errors);
        };
        CHECK(ratio() == worst);
        if (count > 0) {  // what is not finite is not lost in a maximum, wherever it is
          const std::size_t place = static_cast<std::size_t>(count * 7 / 11);
          const double before = found[place];
          for (const double special : {std::nan(""), std::numeric_limits<double>::infinity()}) {
            found[place] = special;
            CHECK_FALSE(is_finite(ratio()));
          }
          found[place] = before;
        }
      }
    }
  }
}

}  // namespace rmsfold
