// SPDX-License-Identifier: MIT
#include <rmsfold/group/block_diagonal.hpp>

#include <rmsfold/group/haar.hpp>
#include <rmsfold/group/hadamard.hpp>

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

TEST_CASE("block diagonal: blocks must exist and be alike", "[group]") {
  CHECK_THROWS_AS(BlockDiagonal<Hadamard>({}), ShapeError);
  CHECK_THROWS_AS(BlockDiagonal<Hadamard>({Hadamard(2), Hadamard(4)}), ShapeError);
  CHECK_THROWS_WITH(BlockDiagonal<Hadamard>({Hadamard(2), Hadamard(4)}), has_text("2 and 4"));
  CHECK_THROWS_AS(act(BlockDiagonal<Hadamard>({Hadamard(2), Hadamard(2)}), Matrix<double>::Ones(1, 2)), ShapeError);
}

}  // namespace rmsfold
