// SPDX-License-Identifier: MIT
#include <rmsfold/group/hadamard_matrix.hpp>

#include <algorithm>
#include <bitset>
#include <cstdint>
#include <limits>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "support/catch.hpp"

namespace rmsfold {

using test::has_text;

namespace {

/// Orders are listed up to here.
constexpr Index most = 256;

/// Whether all entries are ±1 and HHᵀ = nI, in integers.
bool rows_are_orthogonal(const SignMatrix& h) {
  if (h.rows() != h.cols() || h.cols() > most) return false;
  std::vector<std::bitset<most>> negative(static_cast<std::size_t>(h.rows()));
  for (Index i = 0; i < h.rows(); ++i) {
    for (Index j = 0; j < h.cols(); ++j) {
      if (h(i, j) != 1 && h(i, j) != -1) return false;
      negative[static_cast<std::size_t>(i)][static_cast<std::size_t>(j)] = h(i, j) < 0;
    }
  }
  for (std::size_t i = 0; i < negative.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      if (2 * (negative[i] ^ negative[j]).count() != negative.size()) return false;
    }
  }
  return true;
}

/// On both sides; the second follows from the first, and would not from a wrong first.
bool is_hadamard(const SignMatrix& h) { return rows_are_orthogonal(h) && rows_are_orthogonal(h.transpose()); }

SignMatrix kronecker_product(const std::vector<Index>& factors) {
  SignMatrix h = SignMatrix::Ones(1, 1);
  for (const Index f : factors) {
    const SignMatrix block = hadamard_block(f);
    SignMatrix larger(h.rows() * f, h.cols() * f);
    for (Index i = 0; i < larger.rows(); ++i) {
      for (Index j = 0; j < larger.cols(); ++j)
        larger(i, j) = static_cast<std::int8_t>(h(i / f, j / f) * block(i % f, j % f));
    }
    h = larger;
  }
  return h;
}

/// What a wrong field is built with: integers modulo q, which are no field for q = p^k, k > 1.
struct IntegersModulo {
  Index q;
  [[nodiscard]] Index order() const { return q; }
  [[nodiscard]] Index add(Index a, Index b) const { return (a + b) % q; }
  [[nodiscard]] Index subtract(Index a, Index b) const { return (a - b + q) % q; }
  [[nodiscard]] Index multiply(Index a, Index b) const { return a * b % q; }
  [[nodiscard]] int character(Index a) const {
    if (a == 0) return 0;
    for (Index root = 1; root < q; ++root) {
      if (root * root % q == a) return 1;
    }
    return -1;
  }
};

/// The first law of a finite field of odd order, or of its quadratic character, that does not hold.
template <class F>
std::string broken_law(const F& f) {
  const Index q = f.order();
  std::set<Index> squares;
  for (Index a = 0; a < q; ++a) {
    if (f.add(a, 0) != a || f.multiply(a, 1) != a || f.multiply(a, 0) != 0) return "neutral elements";
    if (a != 0) squares.insert(f.multiply(a, a));
    std::set<Index> multiples;
    for (Index b = 0; b < q; ++b) {
      multiples.insert(f.multiply(a, b));
      if (f.add(a, b) != f.add(b, a) || f.multiply(a, b) != f.multiply(b, a)) return "commutative";
      if (f.add(f.subtract(a, b), b) != a) return "subtraction";
      if (f.character(f.multiply(a, b)) != f.character(a) * f.character(b)) return "the character is multiplicative";
      for (Index c = 0; c < q; c += (std::max)(Index{1}, q / 9)) {
        if (f.add(f.add(a, b), c) != f.add(a, f.add(b, c))) return "addition is associative";
        if (f.multiply(f.multiply(a, b), c) != f.multiply(a, f.multiply(b, c))) return "multiplication is associative";
        if (f.multiply(f.add(a, b), c) != f.add(f.multiply(a, c), f.multiply(b, c))) return "distributive";
      }
    }
    if (a != 0 && static_cast<Index>(multiples.size()) != q) return "quotients";
  }
  if (2 * static_cast<Index>(squares.size()) != q - 1) return "half of the non-zero elements are squares";
  for (Index a = 1; a < q; ++a) {
    if ((f.character(a) == 1) != (squares.count(a) != 0)) return "the character is 1 on squares";
  }
  return "";
}

}  // namespace

TEST_CASE("Prime powers", "[group]") {
  const auto is = [](Index q, Index p, Index k) {
    const std::optional<PrimePower> power = prime_power(q);
    return power && power->prime == p && power->exponent == k;
  };
  CHECK(is(2, 2, 1));
  CHECK(is(8, 2, 3));
  CHECK(is(9, 3, 2));
  CHECK(is(121, 11, 2));
  CHECK(is(243, 3, 5));
  CHECK(is(251, 251, 1));
  for (const Index q :
       {std::numeric_limits<Index>::min(), Index{-3}, Index{0}, Index{1}, Index{6}, Index{45}, Index{77}})
    CHECK_FALSE(prime_power(q));
}

TEST_CASE("Finite field: laws, and the quadratic character", "[group]") {
  const Index q = GENERATE(3, 13, 9, 25, 27, 49, 121);
  CAPTURE(q);
  CHECK(broken_law(FiniteField(q)) == "");
  // The twin: integers modulo q will do for a prime only.
  CHECK((broken_law(IntegersModulo{q}) == "") == (prime_power(q)->exponent == 1));
}

TEST_CASE("Finite field: numbers below p are the integers modulo p", "[group]") {
  const FiniteField field(13);
  const IntegersModulo integers{13};
  for (Index a = 0; a < 13; ++a) {
    CHECK(field.character(a) == integers.character(a));
    for (Index b = 0; b < 13; ++b) CHECK(field.multiply(a, b) == integers.multiply(a, b));
  }
  for (const Index q : {Index{-7}, Index{0}, Index{1}, Index{8}, Index{45}}) {
    CHECK_THROWS_AS(FiniteField(q), InvariantError);
    CHECK_THROWS_WITH(FiniteField(q), has_text("order " + std::to_string(q)));
  }
}

// D4: every construction on its own, over prime fields and others.
TEST_CASE("D4: Paley's first construction", "[group]") {
  const Index q = GENERATE(3, 7, 11, 19, 23, 27, 43, 83, 131, 163, 243, 251);
  CAPTURE(q);
  const SignMatrix h = paley_one(q);
  REQUIRE(h.rows() == q + 1);
  CHECK(is_hadamard(h));
  CHECK(h + h.transpose() == SignMatrix(2 * SignMatrix::Identity(q + 1, q + 1)));  // skew but for the diagonal
  // The twin: a symmetric border is right for q ≡ 1 (mod 4) only.
  SignMatrix symmetric_border = h;
  symmetric_border.col(0).tail(q) = -symmetric_border.col(0).tail(q);
  CHECK_FALSE(rows_are_orthogonal(symmetric_border));
}

TEST_CASE("D4: Paley's second construction", "[group]") {
  const Index q = GENERATE(5, 9, 13, 17, 25, 37, 49, 73, 81, 97, 109, 121, 125);
  CAPTURE(q);
  const SignMatrix h = paley_two(q);
  REQUIRE(h.rows() == 2 * (q + 1));
  CHECK(is_hadamard(h));
  CHECK(h == h.transpose());
  SignMatrix flipped = h;
  flipped(q, 1) = static_cast<std::int8_t>(-flipped(q, 1));
  CHECK_FALSE(rows_are_orthogonal(flipped));
}

TEST_CASE("Paley's constructions need a prime power of the right residue", "[group]") {
  for (const Index q : {Index{-1}, Index{0}, Index{13}, Index{15}, Index{35}})
    CHECK_THROWS_AS(paley_one(q), InvariantError);
  for (const Index q : {Index{-3}, Index{1}, Index{7}, Index{21}, Index{45}})
    CHECK_THROWS_AS(paley_two(q), InvariantError);
  CHECK_THROWS_WITH(paley_one(13), has_text("q = 13") && has_text("3 (mod 4)"));
  CHECK_THROWS_WITH(paley_two(7), has_text("q = 7") && has_text("1 (mod 4)"));
}

TEST_CASE("D4: Williamson's construction", "[group]") {
  const Index t = GENERATE(3, 9, 13, 15, 23, 29, 43);
  CAPTURE(t);
  const std::optional<SignMatrix> rows = williamson_rows(t);
  REQUIRE(rows);
  REQUIRE(rows->rows() == 4);
  REQUIRE(rows->cols() == t);
  CHECK(rows->rightCols(t - 1) == SignMatrix(rows->rightCols(t - 1).rowwise().reverse()));  // symmetric circulants
  CHECK(is_hadamard(williamson(*rows)));
  // The twin: a sign changed in one sequence, symmetrically.
  SignMatrix changed = *rows;
  for (const Index i : {Index{1}, t - 1}) changed(2, i) = static_cast<std::int8_t>(-changed(2, i));
  CHECK_FALSE(rows_are_orthogonal(williamson(changed)));
  CHECK_THROWS_AS(williamson(rows->topRows(3)), ShapeError);
}

TEST_CASE("Williamson's sequences: the shortest, and those that are not found", "[group]") {
  CHECK(is_hadamard(williamson(williamson_rows(1).value())));
  // 39: beyond the search; 47 and 59: there are none; the rest are no odd lengths up to 63.
  const Index t = GENERATE(39, 47, 59, std::numeric_limits<Index>::min(), -3, 0, 2, 44, 65);
  CAPTURE(t);
  CHECK_FALSE(williamson_rows(t));
}

// D1, D4, D5: all orders that there are, 12, 20 and 28 themselves among them.
TEST_CASE("D1: every multiple of 4 up to 256 but three", "[group]") {
  for (Index n = 1; n <= most; ++n) {
    CAPTURE(n);
    const std::optional<std::vector<Index>> factors = hadamard_factors(n);
    REQUIRE(factors.has_value() == (n <= 2 || (n % 4 == 0 && n != 156 && n != 188 && n != 236)));
    if (!factors) continue;
    const SignMatrix h = kronecker_product(*factors);
    REQUIRE(h.rows() == n);
    CHECK(is_hadamard(h));
  }
}

TEST_CASE("Hadamard blocks: the same signs as ever", "[group]") {
  CHECK(hadamard_block(12) == paley_one(11));
  CHECK(hadamard_block(20) == paley_one(19));
  CHECK(hadamard_block(28) == paley_two(13));
  CHECK(hadamard_block(36) == paley_two(17));
  CHECK(hadamard_block(44) == paley_one(43));
  CHECK(hadamard_block(52) == paley_two(25));
  CHECK(hadamard_block(244) == paley_two(121));
  CHECK(hadamard_block(172) == williamson(*williamson_rows(43)));
  // Sequences found, a set bit is a -1: the search has to end at the same ones everywhere.
  const auto found = [](Index t) {
    std::vector<std::uint64_t> bits(4, 0);
    const SignMatrix rows = williamson_rows(t).value();
    for (Index i = 0; i < rows.size(); ++i) {
      if (rows.data()[i] < 0) bits[static_cast<std::size_t>(i / t)] |= std::uint64_t{1} << (i % t);
    }
    return bits;
  };
  CHECK(found(23) == std::vector<std::uint64_t>{0x7ca53e, 0x2c6634, 0x7a5e0, 0x289914});
  CHECK(found(29) == std::vector<std::uint64_t>{0x1bac0d76, 0x19e805e6, 0xca1e14c, 0x111a1622});
  CHECK(found(43) == std::vector<std::uint64_t>{0x5f8536ca1fa, 0x5320e6704ca, 0x6b0b108d0d6, 0x18513fc8a18});
  for (const Index n : {Index{-4}, Index{0}, Index{1}, Index{4}, Index{24}, Index{156}, Index{260}}) {
    CHECK_THROWS_AS(hadamard_block(n), RefusedError);
    CHECK_THROWS_WITH(hadamard_block(n), has_text(std::to_string(n) + " is not"));
  }
}

TEST_CASE("Hadamard factors: the fewest additions", "[group]") {
  const auto factors = [](Index n) { return hadamard_factors(n).value_or(std::vector<Index>{-1}); };
  using Factors = std::vector<Index>;
  CHECK(factors(1).empty());
  CHECK(factors(8) == Factors{2, 2, 2});
  CHECK(factors(12) == Factors{12});
  CHECK(factors(24) == Factors{12, 2});
  CHECK(factors(60) == Factors{60});
  CHECK(factors(72) == Factors{36, 2});    // 12 would leave 6
  CHECK(factors(144) == Factors{12, 12});  // not 36·2·2
  CHECK(factors(336) == Factors{12, 28});
  CHECK(factors(576) == Factors{12, 12, 2, 2});  // not 36·2·2·2·2
  CHECK(factors(720) == Factors{20, 36});        // 12 would leave 60
  CHECK(factors(896) == Factors{28, 2, 2, 2, 2, 2});
  CHECK(factors(1728) == Factors{12, 12, 12});
  CHECK(factors(4864) == Factors{76, 2, 2, 2, 2, 2, 2});
  CHECK(factors(10944) == Factors{12, 12, 76});
  CHECK(factors(11008) == Factors{172, 2, 2, 2, 2, 2, 2});
  CHECK(factors(17408) == Factors{68, 2, 2, 2, 2, 2, 2, 2, 2});
  CHECK(factors(18944) == Factors{148, 2, 2, 2, 2, 2, 2, 2});
  CHECK(factors(25600) == Factors{20, 20, 2, 2, 2, 2, 2, 2});
  CHECK(factors(29568) == Factors{12, 28, 44, 2});  // not one block

  // Against all products, by their cost.
  std::vector<Index> blocks{2};
  for (Index b = 12; b <= most; b += 8) {
    if (hadamard_factors(b)) blocks.push_back(b);
  }
  constexpr Index none = 1000000;
  std::vector<Index> cheapest(8192 + 1, none);
  cheapest[1] = 0;
  for (Index n = 2; n < static_cast<Index>(cheapest.size()); ++n) {
    Index& best = cheapest[static_cast<std::size_t>(n)];
    for (const Index b : blocks) {
      if (n % b == 0) best = (std::min)(best, b - 1 + cheapest[static_cast<std::size_t>(n / b)]);
    }
    const std::optional<std::vector<Index>> found = hadamard_factors(n);
    Index cost = found ? 0 : none;
    Index product = 1;
    for (const Index f : found.value_or(std::vector<Index>{})) {
      cost += f - 1;
      product *= f;
    }
    CAPTURE(n);
    REQUIRE(cost == (std::min)(best, none));
    if (found) REQUIRE(product == n);
  }
}

namespace {

/// The rule for products of 12, 20, 28, 36 and twos before there were other blocks.
std::optional<std::vector<Index>> from_four_blocks(Index n) {
  const auto additions = [](const std::vector<Index>& factors) {
    Index count = 0;
    for (const Index f : factors) count += f - 1;
    return count;
  };
  std::optional<std::vector<Index>> best;
  if ((n & (n - 1)) == 0) {
    best.emplace();
    for (Index rest = n; rest > 1; rest /= 2) best->push_back(2);
  }
  for (const Index block : {12, 20, 28, 36}) {
    if (n % block != 0) continue;
    std::optional<std::vector<Index>> rest = from_four_blocks(n / block);
    if (!rest) continue;
    rest->push_back(block);
    std::sort(rest->begin(), rest->end(), [](Index a, Index b) { return std::pair(a == 2, a) < std::pair(b == 2, b); });
    if (!best || additions(*rest) < additions(*best)) best = rest;
  }
  return best;
}

}  // namespace

TEST_CASE("Hadamard factors: of products of 12, 20, 28, 36 and twos as ever", "[group]") {
  constexpr Index end = Index{1} << 24;
  Index count = 0;
  for (Index a = 1; a <= end; a *= 12) {
    for (Index b = a; b <= end; b *= 20) {
      for (Index c = b; c <= end; c *= 28) {
        for (Index d = c; d <= end; d *= 36) {
          for (Index n = d; n <= end; n *= 2) {
            CAPTURE(n);
            REQUIRE(hadamard_factors(n) == from_four_blocks(n));
            ++count;
          }
        }
      }
    }
  }
  CHECK(count > 500);
}

TEST_CASE("Hadamard factors: of any number, soon", "[group]") {
  for (const Index n :
       {std::numeric_limits<Index>::min(), Index{-12}, Index{0}, Index{3}, Index{6}, Index{13696}, Index{156}})
    CHECK_FALSE(hadamard_factors(n));
  constexpr Index smooth = Index{27} * 25 * 7 * 11 * 13 * 17 * 19 << 12;  // 4992 divisors, close to 2^40
  CHECK(hadamard_factors(smooth).has_value());
  CHECK(largest_hadamard_block(smooth) == smooth);
  const Index block = largest_hadamard_block(smooth / 4);
  CHECK((hadamard_factors(block) && smooth / 4 % block == 0));
  CHECK(largest_hadamard_block(smooth >> 12) == 1);
  constexpr Index prime = 1099511627689;
  CHECK_FALSE(hadamard_factors(prime));
  CHECK(largest_hadamard_block(prime) == 1);
  CHECK(largest_hadamard_block(prime - 1) == 72);

  CHECK(largest_hadamard_block(6) == 2);
  CHECK(largest_hadamard_block(156) == 52);
  CHECK(largest_hadamard_block(188) == 4);
  CHECK(largest_hadamard_block(576) == 576);
  CHECK(largest_hadamard_block(960) == 960);
  CHECK(largest_hadamard_block(13696) == 128);  // D2
  CHECK(largest_hadamard_block(7) == 1);
  CHECK(largest_hadamard_block(0) == 1);
  CHECK(largest_hadamard_block(-12) == 1);
}

}  // namespace rmsfold
