// SPDX-License-Identifier: MIT
#include <rmsfold/kernel/convert.hpp>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include <rmsfold/core/random.hpp>
#include <rmsfold/tensor/convert.hpp>

#include "support/catch.hpp"

namespace rmsfold {
namespace {

using kernel::Target;
using kernel::WithTarget;

template <class S>
constexpr std::size_t size = sizeof(S);

/// Every value of a 16-bit type; any bits of a wider one, special values among them.
template <class S>
std::vector<S> stored_values(Random& random) {
  std::vector<S> result(65536 + 37);
  for (std::size_t i = 0; i < result.size(); ++i) {
    if constexpr (Half<S>) {
      result[i].bits = static_cast<std::uint16_t>(i);
    } else {
      result[i] = std::bit_cast<S>(static_cast<std::uint32_t>(i % 16 == 0 ? random.bits() & 0xff800000u : random.bits()));
    }
  }
  return result;
}

/// Doubles around everything that happens to S: ties and their neighbours at every exponent, subnormals, zeros; with `special` beyond the largest,
/// infinities and NaNs too.
template <class S>
std::vector<double> values_to_round(Random& random, bool special) {
  const int fraction_bits = static_cast<int>(std::lround(-std::log2(2 * unit_roundoff<S>())));
  const double limit = largest_finite<S>();
  std::vector<double> result;
  for (int exponent = -160; exponent <= 128; ++exponent) {
    for (int k = 0; k < 24; ++k) {
      const std::uint64_t dropped = std::uint64_t{1} << (52 - fraction_bits);
      std::uint64_t fraction = random.bits() >> 12;
      if (k % 4 != 0) fraction = (fraction & ~(dropped - 1)) + dropped / 2;                     // a tie
      if (k % 4 == 1) fraction += random.sign() > 0 ? 1 : ~std::uint64_t{0};                    // beside a tie
      if (k % 8 == 7) fraction = (std::uint64_t{1} << 52) - 1 - (random.bits() & (dropped - 1));  // rounds up to a power of two
      fraction &= (std::uint64_t{1} << 52) - 1;
      const double x = random.sign() * std::bit_cast<double>(fraction | static_cast<std::uint64_t>(1023 + exponent) << 52);
      if (special || std::fabs(x) <= limit) result.push_back(x);
    }
  }
  for (const double x : {0.0, -0.0, limit, -limit, 0x1p-1074, -0x1.8p-1040, underflow_unit<S>(), -3 * underflow_unit<S>()}) result.push_back(x);
  if (special) {
    const double infinity = std::numeric_limits<double>::infinity();
    for (const double x : {infinity, -infinity, std::bit_cast<double>(0x7ff0000000000001u), std::bit_cast<double>(0xfff8000000000000u),
                           std::bit_cast<double>(0xffffffffffffffffu), std::nextafter(limit, infinity), 0x1.fffffefffffffp127, 65519.99, 65520.0, 1e308}) {
      result.push_back(x);
    }
  }
  for (std::size_t i = result.size(); i > 1; --i) std::swap(result[i - 1], result[random.below(i)]);
  return result;
}

/// What one target makes of it: `count` elements at a byte offset, and the bytes around them, which have to stay.
template <class S>
struct Result {
  std::vector<double> loaded;
  std::vector<std::byte> stored, scaled;
  Index overflow = 0, scaled_overflow = 0;
};

template <class S>
Result<S> run(Target target, const std::vector<S>& in, const std::vector<double>& values, std::size_t count, std::size_t offset) {
  const WithTarget with(target);
  std::vector<std::byte> bytes(offset + count * size<S>);
  if (count > 0) std::memcpy(bytes.data() + offset, in.data(), count * size<S>);
  Result<S> result;
  result.loaded.resize(count + 1, 7.0);
  load_as_double<S>(std::span(bytes).subspan(offset), std::span(result.loaded).first(count));
  result.stored.resize(offset + count * size<S> + 1, std::byte{0x5a});
  result.overflow = store_rounded<S>(std::span(values).first(count), std::span(result.stored).subspan(offset, count * size<S>));
  result.scaled.resize(offset + count * size<S> + 1, std::byte{0x5a});
  result.scaled_overflow = scale_rounded<S>(std::span(bytes).subspan(offset), std::span(values).first(count),
                                            std::span(result.scaled).subspan(offset, count * size<S>));
  return result;
}

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

}  // namespace

TEMPLATE_TEST_CASE("kernel: conversions give the bits of the reference on every target", "[kernel]", BF16, F16, float) {
  using S = TestType;
  Random random(71);
  const std::vector<S> all = stored_values<S>(random);
  for (const bool special : {false, true}) {
    std::vector<double> values = values_to_round<S>(random, special);
    while (values.size() < all.size()) values.push_back(random.normal() * 0.02);
    std::vector<S> in = all;
    if (!special) {  // nothing that a block would be done again for
      for (S& s : in) s = is_finite(to_double(s)) ? s : S{};
    }
    // Lengths around the blocks of 32, 64 and 256; odd addresses; and all at once.
    for (const std::size_t count : std::vector<std::size_t>{0, 1, 7, 31, 32, 33, 63, 64, 65, 100, 255, 256, 257, 1000, 65573}) {
      const std::size_t offset = count % 5;
      const Result<S> want = run<S>(Target::scalar, in, values, count, offset);
      for (const Target target : kernel::supported_targets()) {
        CAPTURE(special, count, std::string(kernel::name_of(target)));
        const Result<S> got = run<S>(target, in, values, count, offset);
        CHECK(same_bits(got.loaded, want.loaded));
        CHECK(same_bits(got.stored, want.stored));
        CHECK(same_bits(got.scaled, want.scaled));
        CHECK(got.overflow == want.overflow);
        CHECK(got.scaled_overflow == want.scaled_overflow);
      }
      // The reference is what it says: element by element.
      Index overflow = -1;
      int other = 0;
      for (std::size_t i = 0; i < count; ++i) {
        const S rounded = round_to<S>(values[i]);
        if (overflow < 0 && is_finite(values[i]) && !is_finite(to_double(rounded))) overflow = static_cast<Index>(i);
        other += std::memcmp(&rounded, want.stored.data() + offset + i * size<S>, size<S>) != 0 ? 1 : 0;
        other += std::bit_cast<std::uint64_t>(to_double(in[i])) != std::bit_cast<std::uint64_t>(want.loaded[i]) ? 1 : 0;
      }
      CHECK(other == 0);
      CHECK(want.overflow == overflow);
      if (!special || count > 1000) CHECK((overflow >= 0) == special);
    }
  }
}

TEMPLATE_TEST_CASE("kernel: the first overflow is reported wherever it is", "[kernel]", BF16, F16, float) {
  using S = TestType;
  std::vector<double> values(200, 1.5);
  std::vector<S> ones(200, round_to<S>(1.0));
  std::vector<std::byte> out(values.size() * size<S>);
  for (const Target target : kernel::supported_targets()) {
    const WithTarget with(target);
    for (std::size_t at = 0; at < values.size(); ++at) {
      CAPTURE(at);
      values[at] = -1e300;
      values[199] = 1e300;  // a later one
      values[0] = at == 0 ? -1e300 : std::numeric_limits<double>::infinity();  // not finite before, so no overflow
      CHECK(store_rounded<S>(values, out) == static_cast<Index>(at));
      CHECK(scale_rounded<S>(std::as_bytes(std::span(ones)), values, out) == static_cast<Index>(at));
      values[at] = 1.5;
    }
  }
}

// The twin: another rounding than to nearest, ties to even, is told apart by these values.
TEMPLATE_TEST_CASE("kernel: the values tell roundings apart", "[kernel]", BF16, F16) {
  using S = TestType;
  Random random(72);
  int truncated = 0, twice = 0;
  for (const double x : values_to_round<S>(random, false)) {
    const S right = round_to<S>(x);
    truncated += std::fabs(to_double(right)) > std::fabs(x) ? 1 : 0;
    twice += round_to<S>(static_cast<double>(static_cast<float>(x))) == right ? 0 : 1;
  }
  CHECK(truncated > 50);
  CHECK(twice > 50);
}

}  // namespace rmsfold
