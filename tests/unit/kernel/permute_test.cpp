// SPDX-License-Identifier: MIT
#include <rmsfold/kernel/permute.hpp>

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include <rmsfold/core/random.hpp>
#include <rmsfold/group/signed_permutation.hpp>

#include "support/catch.hpp"

namespace rmsfold {
namespace {

using kernel::Target;
using kernel::WithTarget;

/// Any bits, NaNs and infinities too, at an address that is no multiple of a vector.
template <class S>
std::vector<S> operand(Index size, Random& random) {
  std::vector<S> x(static_cast<std::size_t>(size) + 2);
  for (S& value : x) {
    const std::uint64_t bits = random.bits();
    std::memcpy(static_cast<void*>(&value), &bits, sizeof(S));
  }
  return x;
}

template <class S, class P>
std::vector<S> applied(Target target, const P& p, std::vector<S> x, Index outer, Index inner) {
  const WithTarget with(target);
  p.apply(x.data() + 1, outer, inner);
  return x;
}

template <class S>
bool same_bits(const std::vector<S>& a, const std::vector<S>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(S)) == 0;
}

}  // namespace

TEMPLATE_TEST_CASE("kernel: permutations move the same bits on every target", "[kernel]", BF16, F16, float, double) {
  using S = TestType;
  const Index n = GENERATE(1, 3, 8, 20, 65, 144);
  Random random(91);
  const SignedPermutation p = SignedPermutation::random(n, random);
  // Whole groups of rows and rests; rows less than a vector, of several vectors and a rest.
  for (const auto& [outer, inner] :
       {std::pair<Index, Index>{1, 1}, {7, 1}, {8, 1}, {37, 1}, {3, 5}, {2, 64}, {1, 131}}) {
    const std::vector<S> x = operand<S>(outer * n * inner, random);
    const std::vector<S> moved = applied(Target::scalar, p.moves(), x, outer, inner);
    const std::vector<S> want = applied(Target::scalar, p, x, outer, inner);
    for (const Target target : kernel::supported_targets()) {
      CAPTURE(n, outer, inner, std::string(kernel::name_of(target)));
      CHECK(same_bits(applied(target, p.moves(), x, outer, inner), moved));
      CHECK(same_bits(applied(target, p, x, outer, inner), want));
      CHECK(same_bits(applied(target, p.inverse(), want, outer, inner), x));
      if (n > 8) CHECK_FALSE(same_bits(applied(target, p.inverse(), x, outer, inner), want));  // the twin
    }
  }
}

TEST_CASE("kernel: fixed points and single cycles", "[kernel]") {
  std::vector<Index> cycle{1, 2, 3, 4, 5, 0, 6, 7};
  const SignedPermutation p(cycle, {1, -1, 1, 1, -1, 1, -1, 1});
  std::vector<double> x(8 * 32);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<double>(i) + 1;
  for (const Target target : kernel::supported_targets()) {
    const WithTarget with(target);
    std::vector<double> y = x;
    p.apply(y.data(), 1, 32);
    for (std::size_t j = 0; j < 8; ++j) {
      for (std::size_t k = 0; k < 32; ++k)
        REQUIRE(y[j * 32 + k] == p.sign()[j] * x[static_cast<std::size_t>(cycle[j]) * 32 + k]);
    }
  }
}

}  // namespace rmsfold
