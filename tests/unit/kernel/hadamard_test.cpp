// SPDX-License-Identifier: MIT
#include <rmsfold/kernel/hadamard.hpp>

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <rmsfold/core/random.hpp>
#include <rmsfold/core/tolerance.hpp>
#include <rmsfold/group/hadamard.hpp>

#include "support/catch.hpp"

namespace rmsfold {
namespace {

using kernel::Target;
using kernel::WithTarget;

/// Normal numbers of many sizes, zeros of both signs, subnormals.
template <class S>
std::vector<S> operand(Index size, Random& random) {
  std::vector<S> x(static_cast<std::size_t>(size));
  for (S& value : x) {
    value = static_cast<S>(random.normal());
    const std::uint64_t kind = random.below(16);
    if (kind < 2) value = static_cast<S>(kind == 0 ? 0.0 : -0.0);
    if (kind == 2) value *= std::numeric_limits<S>::denorm_min() * 1000;
    if (kind == 3) value *= static_cast<S>(0x1p20);
  }
  return x;
}

/// Bits are the same, or both are NaN: which of two NaNs an addition returns is the compiler's choice of operands.
template <class S>
int differences(const std::vector<S>& a, const std::vector<S>& b) {
  int count = a.size() == b.size() ? 0 : 1;
  for (std::size_t i = 0; i < (std::min)(a.size(), b.size()); ++i) {
    count += std::memcmp(&a[i], &b[i], sizeof(S)) == 0 || (std::isnan(a[i]) && std::isnan(b[i])) ? 0 : 1;
  }
  return count;
}

/// `[outer, n, inner]` times Q on one target, from an address that is no multiple of a vector.
template <class S>
std::vector<S> applied(Target target, const Hadamard& q, const std::vector<S>& x, Index outer, Index inner) {
  const WithTarget with(target);
  std::vector<S> y(x.size() + 2, S(7));
  std::copy(x.begin(), x.end(), y.begin() + 1);
  q.apply(y.data() + 1, outer, inner);
  REQUIRE((y.front() == 7 && y.back() == 7));
  return {y.begin() + 1, y.end() - 1};
}

template <class S>
void check_targets(const Hadamard& q, const std::vector<std::pair<Index, Index>>& shapes, Random& random) {
  for (const auto& [outer, inner] : shapes) {
    const std::vector<S> x = operand<S>(outer * q.dim() * inner, random);
    const std::vector<S> want = applied(Target::scalar, q, x, outer, inner);
    for (const Target target : kernel::supported_targets()) {
      CAPTURE(q.dim(), outer, inner, sizeof(S), std::string(kernel::name_of(target)));
      CHECK(differences(applied(target, q, x, outer, inner), want) == 0);
    }
  }
}

std::vector<Hadamard> forms(Index n, Random& random) {
  const Hadamard q = Hadamard::random(n, random);
  return {Hadamard(n), q, q.inverse()};
}

}  // namespace

TEST_CASE("kernel: a Hadamard transform gives the bits of the textbook loops on every target", "[kernel]") {
  // Powers of two with one and more passes and steps, blocks alone, behind each other, and before few and many twos.
  const Index n = GENERATE(1, 2, 4, 8, 12, 16, 20, 24, 28, 32, 36, 40, 44, 48, 52, 56, 60, 64, 92, 128, 144, 148, 172,
                           256, 384, 512, 576, 896, 1024, 2048);
  Random random(81);
  for (const Hadamard& q : forms(n, random)) {
    // Single rows, whole groups of rows and rests; columns less than a cache line, whole strips and rests.
    const std::vector<std::pair<Index, Index>> shapes{{1, 1}, {3, 1},  {4, 1},   {17, 1},
                                                      {1, 5}, {2, 16}, {1, 150}, {3, 7}};
    check_targets<float>(q, shapes, random);
    check_targets<double>(q, shapes, random);
  }
}

TEST_CASE("kernel: large orders too", "[kernel]") {
  // Whole rows: powers of two, and 12, 52, 148 and 172 times one that is long enough.
  const Index n = GENERATE(688, 3072, 4096, 8192, 9472, 11008, 13312, 16384);
  Random random(82);
  for (const Hadamard& q : forms(n, random)) {
    check_targets<float>(q, {{5, 1}, {1, 17}}, random);
    check_targets<double>(q, {{5, 1}, {1, 17}}, random);
  }
}

TEST_CASE("kernel: infinities and NaNs go where the textbook loops carry them", "[kernel]") {
  const Index n = GENERATE(64, 144, 512);
  Random random(83);
  const Hadamard q = Hadamard::random(n, random);
  for (const Index inner : {Index{1}, Index{20}}) {
    std::vector<double> x = operand<double>(20 * n, random);
    for (int k = 0; k < 4; ++k) {  // one row or column of twenty; the others stay finite
      x[static_cast<std::size_t>(inner == 1 ? 3 * n + 5 * k : (5 * k) * inner + 3)] =
          k == 0 ? std::numeric_limits<double>::quiet_NaN() : std::numeric_limits<double>::infinity();
    }
    const std::vector<double> want = applied(Target::scalar, q, x, 20 / inner, inner);
    CHECK(differences(want, want) == 0);
    for (const Target target : kernel::supported_targets()) {
      CHECK(differences(applied(target, q, x, 20 / inner, inner), want) == 0);
    }
  }
}

TEST_CASE("kernel: buffers belong to threads", "[kernel]") {
  Random random(84);
  const Hadamard q = Hadamard::random(576, random);
  const Hadamard small = Hadamard::random(256, random);
  const std::vector<float> x = operand<float>(100 * 576, random);
  const std::vector<float> want = applied(kernel::target(), q, x, 100, 1);
  std::vector<std::vector<float>> got(4, x);
  {
    std::vector<std::jthread> threads;
    for (std::vector<float>& y : got) {
      threads.emplace_back([&] {
        std::vector<float> other(256 * 9, 1.0f);
        small.apply(other.data(), 1, 9);
        q.apply(y.data(), 100, 1);
      });
    }
  }
  for (const std::vector<float>& y : got) CHECK(differences(y, want) == 0);
}

// The twin: the same additions in another order, the smallest stride first, give other bits of the same sums.
TEST_CASE("kernel: the operands tell orders of additions apart", "[kernel]") {
  Random random(85);
  const std::vector<float> x = operand<float>(64, random);
  std::vector<float> other = x;
  for (std::size_t stride = 1; stride < 64; stride *= 2) {
    for (std::size_t i = 0; i < 64; ++i) {
      if ((i & stride) != 0) continue;
      const float low = other[i], high = other[i + stride];
      other[i] = low + high;
      other[i + stride] = low - high;
    }
  }
  for (float& value : other) value *= 0.125f;
  const std::vector<float> want = applied(Target::scalar, Hadamard(64), x, 1, 1);
  CHECK(differences(other, want) > 16);
  for (std::size_t i = 0; i < 64; ++i)
    CHECK(std::fabs(other[i] - want[i]) <= 64 * 0x1p-24f * 0x1p23f);  // 64 terms below 2^23
}

// A block adds combinations of four inputs: what it states for that is an error of few roundings, and it holds. The
// twin, input by input as the matrix says, gives other bits.
TEST_CASE("kernel: a block stays within the error terms it states", "[kernel]") {
  const Index n = GENERATE(12, 20, 28, 36, 44, 52, 148, 172);
  const Hadamard q(n);
  // Two for a four, n/4 - 1 for the fours, two for the scale.
  REQUIRE(q.error_terms() == static_cast<double>(n / 4 + 3));
  const SignMatrix signs = hadamard_block(n);
  const double scale = 1 / std::sqrt(static_cast<double>(n));
  // In double the sum, of n terms, and the scale are in error too.
  const double gamma = gamma_n(q.error_terms(), 0x1p-24) + gamma_n(static_cast<double>(n + 3), 0x1p-53);
  Random random(86);
  std::vector<float> x(static_cast<std::size_t>(n));
  for (float& value : x) value = static_cast<float>(random.normal());
  const std::vector<float> y = applied(kernel::target(), q, x, 1, 1);
  int other = 0;
  for (Index j = 0; j < n; ++j) {
    double exact = 0, size = 0;
    float in_turn = 0;
    for (Index i = 0; i < n; ++i) {
      const float value = x[static_cast<std::size_t>(i)];
      exact += static_cast<double>(signs(i, j)) * static_cast<double>(value);
      size += std::fabs(static_cast<double>(value));
      in_turn += static_cast<float>(signs(i, j)) * value;
    }
    const float got = y[static_cast<std::size_t>(j)];
    CHECK(std::fabs(static_cast<double>(got) - scale * exact) <= gamma * scale * size);
    other += in_turn * static_cast<float>(scale) == got ? 0 : 1;
  }
  CHECK(other > 0);
}

}  // namespace rmsfold
