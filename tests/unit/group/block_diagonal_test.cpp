// SPDX-License-Identifier: MIT
#include <rmsfold/group/block_diagonal.hpp>

#include <rmsfold/group/fixes_ones.hpp>
#include <rmsfold/group/haar.hpp>
#include <rmsfold/group/hadamard.hpp>
#include <rmsfold/group/hadamard_fixing_ones.hpp>
#include <rmsfold/group/kronecker.hpp>

#include "support/catch.hpp"
#include "support/compare.hpp"
#include "support/laws.hpp"

namespace rmsfold {

using test::has_text;

namespace {

template <class G>
G draw(Index n, Random& random);
template <>
SignedPermutation draw<SignedPermutation>(Index n, Random& random) {
  return SignedPermutation::random(n, random);
}
template <>
Hadamard draw<Hadamard>(Index n, Random& random) {
  return Hadamard::random(n, random);
}
template <>
Orthogonal<float> draw<Orthogonal<float>>(Index n, Random& random) {
  return haar_orthogonal<float>(n, random);
}
template <>
Orthogonal<double> draw<Orthogonal<double>>(Index n, Random& random) {
  return haar_orthogonal<double>(n, random);
}

template <Isometry G>
BlockDiagonal<G> draw_blocks(Index count, Index block, std::uint64_t seed) {
  Random random(seed);
  std::vector<G> blocks;
  for (Index k = 0; k < count; ++k) blocks.push_back(draw<G>(block, random));
  return BlockDiagonal<G>(std::move(blocks));
}

/// \f$A\otimes B\f$ written out.
Matrix<double> kronecker(const Matrix<double>& a, const Matrix<double>& b) {
  Matrix<double> result(a.rows() * b.rows(), a.cols() * b.cols());
  for (Index i = 0; i < a.rows(); ++i) {
    for (Index j = 0; j < a.cols(); ++j) {
      result.block(i * b.rows(), j * b.cols(), b.rows(), b.cols()) = a(i, j) * b;
    }
  }
  return result;
}

// Each block may have a sign of its own; what no sign can spoil is as it was.
using UpToSign = FixesOnes<SignedPermutation>;
static_assert(UpToSign::gauge == Gauge::permutation_up_to_sign);
static_assert(BlockDiagonal<UpToSign>::gauge == Gauge::signed_permutation);
static_assert(BlockDiagonal<HadamardFixingOnes>::gauge == Gauge::orthogonal);
static_assert(BlockDiagonal<Permutation>::gauge == Gauge::permutation &&
              BlockDiagonal<SignedPermutation>::gauge == Gauge::signed_permutation &&
              BlockDiagonal<Hadamard>::gauge == Gauge::orthogonal);
static_assert(Kronecker<Permutation, Permutation>::gauge == Gauge::permutation &&
              Kronecker<UpToSign, Permutation>::gauge == Gauge::permutation_up_to_sign &&
              Kronecker<Permutation, HadamardFixingOnes>::gauge == Gauge::fixes_ones &&
              Kronecker<SignFlip, HadamardFixingOnes>::gauge == Gauge::orthogonal &&
              Kronecker<Permutation, SignFlip>::gauge == Gauge::signed_permutation &&
              Kronecker<Hadamard, SignFlip>::gauge == Gauge::orthogonal);
static_assert(ExactIsometry<Kronecker<Permutation, SignFlip>> && !ExactIsometry<Kronecker<Permutation, Hadamard>>);
static_assert(ExactIsometry<BlockDiagonal<UpToSign>> && !ExactIsometry<BlockDiagonal<HadamardFixingOnes>>);

}  // namespace

// The written-out blocks come from `matrix_of` of the block type, which that type's own tests check against another
// source.
TEMPLATE_TEST_CASE("block diagonal: laws", "[group]", SignedPermutation, Hadamard, Orthogonal<float>,
                   Orthogonal<double>) {
  for (const Index count : {1, 3}) {
    for (const Index block : {1, 12}) {
      CAPTURE(count, block);
      const BlockDiagonal<TestType> q = draw_blocks<TestType>(count, block, 61);
      std::vector<Matrix<double>> matrices;
      for (const TestType& b : q.blocks()) matrices.push_back(matrix_of<double>(b));
      CHECK(q.dim() == count * block);
      test::check_laws(q, test::block_diagonal(matrices), 62);
    }
  }
}

TEST_CASE("block diagonal: D6, nothing leaks between blocks", "[group]") {
  const BlockDiagonal<Hadamard> q = draw_blocks<Hadamard>(3, 32, 63);  // a head of 96
  const Matrix<double> m = matrix_of<double>(q);
  for (Index i = 0; i < 96; ++i) {
    for (Index j = 0; j < 96; ++j) {
      if ((m(i, j) != 0) != (i / 32 == j / 32)) FAIL_CHECK("entry (" << i << ", " << j << ") = " << m(i, j));
    }
  }
}

TEST_CASE("block diagonal: repeated gives query head h the block of kv head h / times", "[group]") {
  const BlockDiagonal<SignedPermutation> kv = draw_blocks<SignedPermutation>(2, 5, 64);
  const BlockDiagonal<SignedPermutation> heads = kv.repeated(2);
  REQUIRE(heads.blocks().size() == 4);
  REQUIRE_FALSE(kv.blocks()[0] == kv.blocks()[1]);
  for (std::size_t h = 0; h < 4; ++h) CHECK(heads.blocks()[h] == kv.blocks()[h / 2]);
}

TEST_CASE("block diagonal: of signed permutations it keeps the bits of storage scalars", "[group]") {
  const BlockDiagonal<SignedPermutation> q({SignedPermutation({1, 0}, {-1, 1}), SignedPermutation({0, 1}, {1, -1})});
  std::vector<BF16> x{{0x7fc1}, {0x8000}, {0x0001}, {0x3f80}};
  q.apply(x.data(), 1, 1);
  CHECK(x == std::vector<BF16>{{0x0000}, {0x7fc1}, {0x0001}, {0xbf80}});
}

// What the static assertions above say, on matrices.
TEST_CASE("block diagonal: signs of blocks leave the group of the block", "[group]") {
  Random random(65);
  const Permutation p = Permutation::random(5, random);
  const Matrix<double> moves = matrix_of<double>(p);
  CHECK(test::smallest_gauge(-moves, 0) == Gauge::permutation_up_to_sign);
  CHECK(test::smallest_gauge(test::block_diagonal({moves, -moves}), 0) == Gauge::signed_permutation);
  CHECK(test::smallest_gauge(test::block_diagonal({moves, moves}), 0) == Gauge::permutation);
  const FixesOnes<Orthogonal<double>> q = haar_fixing_ones<double>(5, random);
  const Matrix<double>& dense = q.rotation().matrix();
  CHECK(test::smallest_gauge(test::block_diagonal({dense, dense}), q.orthogonality_defect()) == Gauge::fixes_ones);
  CHECK(test::smallest_gauge(test::block_diagonal({dense, -dense}), q.orthogonality_defect()) == Gauge::orthogonal);
}

TEST_CASE("block diagonal: blocks of one type may round differently", "[group]") {
  Random random(66);
  using Mixed = Kronecker<Orthogonal<double>, Hadamard>;
  const Mixed few(haar_orthogonal<double>(2, random), Hadamard(24));
  const Mixed many(haar_orthogonal<double>(24, random), Hadamard(2));
  REQUIRE(few.error_terms() < many.error_terms());
  CHECK(BlockDiagonal<Mixed>({few, many}).error_terms() == many.error_terms());
  CHECK(BlockDiagonal<Mixed>({many, few}).error_terms() == many.error_terms());
}

TEST_CASE("block diagonal: blocks must exist and be alike", "[group]") {
  CHECK_THROWS_AS(BlockDiagonal<Hadamard>({}), ShapeError);
  CHECK_THROWS_AS(BlockDiagonal<Hadamard>({Hadamard(2), Hadamard(4)}), ShapeError);
  CHECK_THROWS_WITH(BlockDiagonal<Hadamard>({Hadamard(2), Hadamard(4)}), has_text("2 and 4"));
  CHECK_THROWS_AS(act(BlockDiagonal<Hadamard>({Hadamard(2), Hadamard(2)}), Matrix<double>::Ones(1, 2)), ShapeError);
}

TEST_CASE("Kronecker: laws, of exact factors", "[group]") {
  Random random(67);
  for (const auto& [rows, cols] : {std::pair<Index, Index>{0, 3}, {1, 1}, {1, 5}, {3, 1}, {3, 5}, {8, 8}}) {
    CAPTURE(rows, cols);
    const SignedPermutation a = SignedPermutation::random(rows, random);
    const SignedPermutation b = SignedPermutation::random(cols, random);
    const Kronecker<SignedPermutation, SignedPermutation> q(a, b);
    const Matrix<double> written_out = kronecker(test::matrix_from_indices(a), test::matrix_from_indices(b));
    test::check_laws(q, written_out, 68);
    test::check_laws(q.unsigned_part(), written_out.cwiseAbs(), 69);
  }
}

// One rounding per entry of the written-out product, as the suite allows for any matrix.
TEST_CASE("Kronecker: laws, of rounding factors", "[group]") {
  Random random(70);
  const Hadamard h = Hadamard::random(12, random);
  const SignedPermutation p = SignedPermutation::random(5, random);
  test::check_laws(Kronecker<Hadamard, SignedPermutation>(h, p),
                   kronecker(matrix_of<double>(h), test::matrix_from_indices(p)), 71);
  const Orthogonal<double> a = haar_orthogonal<double>(3, random);
  const Orthogonal<double> b = haar_orthogonal<double>(5, random);
  test::check_laws(Kronecker<Orthogonal<double>, Orthogonal<double>>(a, b), kronecker(a.matrix(), b.matrix()), 72);
}

TEST_CASE("Kronecker: the order of the factors and the sides of the inverse", "[group]") {
  Random random(73);
  const Orthogonal<double> a = haar_orthogonal<double>(3, random);
  const Orthogonal<double> b = haar_orthogonal<double>(3, random);
  const Kronecker<Orthogonal<double>, Orthogonal<double>> q(a, b);
  const Matrix<double> x = normal_matrix(4, 9, random);
  // Its own roundings, and those of the product here: 9 terms, each entry of the matrix rounded once.
  const Matrix<double> allowed =
      (gamma_n(q.error_terms(), 0x1p-53) + gamma_n(10, 0x1p-53)) * x.rowwise().norm() * RowVector<double>::Ones(9);
  const Matrix<double> at = a.matrix().transpose();
  const Matrix<double> bt = b.matrix().transpose();
  CHECK(test::compare(act(q, x), x * kronecker(a.matrix(), b.matrix()), allowed).within());
  CHECK_FALSE(test::compare(act(q, x), x * kronecker(b.matrix(), a.matrix()), allowed).within());
  CHECK_FALSE(test::compare(act(q, x), x * kronecker(at, bt), allowed).within());
  CHECK(test::compare(act(q.inverse(), x), x * kronecker(at, bt), allowed).within());
  CHECK_FALSE(test::compare(act(q.inverse(), x), x * kronecker(bt, at), allowed).within());
  CHECK_FALSE(test::compare(act(q.inverse(), x), x * kronecker(at, b.matrix()), allowed).within());
}

}  // namespace rmsfold
