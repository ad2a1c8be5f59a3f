// SPDX-License-Identifier: MIT
#include <rmsfold/check/block.hpp>

#include <rmsfold/fold/layer_norm.hpp>
#include <rmsfold/group/haar.hpp>
#include <rmsfold/group/hadamard.hpp>
#include <rmsfold/group/hadamard_fixing_ones.hpp>

#include "support/catch.hpp"
#include "support/random_layer.hpp"

namespace rmsfold {

namespace {

constexpr Index dim = 24;
constexpr Index tokens = 7;

template <Storage S>
using Mlp = Block<S, RMSNorm<S>, SwiGLU>;

template <Storage S>
Linear<S> scaled_linear(Index out, Index in, Random& random) {
  const double scale = 1 / std::sqrt(static_cast<double>(in));
  return {rounded<S>(Matrix<double>(scale * normal_matrix(out, in, random))),
          rounded<S>(RowVector<double>(0.3 * normal_matrix(1, out, random)))};
}

template <Storage S>
Mlp<S> random_mlp(Random& random) {
  return {test::random_norm<S>(dim, 1e-3, random),
          {scaled_linear<S>(17, dim, random), scaled_linear<S>(17, dim, random)},
          {},
          scaled_linear<S>(dim, 17, random)};
}

}  // namespace

TEMPLATE_TEST_CASE("check_block: what is right passes, one missing step does not", "[check]", double, float, BF16) {
  Random random(401);
  const Mlp<TestType> block = random_mlp<TestType>(random);
  const Hadamard q = Hadamard::random(dim, random);
  const Matrix<double> x = 0.5 * normal_matrix(tokens, dim, random);
  const auto judge = [&](const auto& made) {
    const BlockReport report = check_block(block, made, q, q, x);
    INFO("distance " << report.distance << ", allowed " << report.threshold);
    CHECK(report.perturbation > 0);
    return report.passed();
  };
  const auto merged = fold_and_rotate(block, q);
  CHECK(judge(merged));
  CHECK(check_block(block, fold_gain(block), SignedPermutation::identity(dim), SignedPermutation::identity(dim), x)
            .passed());

  auto wrong = merged;
  wrong.writer = block.writer;  // not rotated
  CHECK_FALSE(judge(wrong));
  wrong.writer = rotate_writer(block.writer, q.inverse());  // other side
  CHECK_FALSE(judge(wrong));
  wrong.writer = rotate_writer(merged.writer, q);  // twice
  CHECK_FALSE(judge(wrong));
  wrong = merged;
  wrong.writer.bias = block.writer.bias;  // its bias forgotten
  CHECK_FALSE(judge(wrong));
  wrong = merged;
  wrong.readers[0] = rotate_reader(block.readers[0], q);  // one reader without the gain
  CHECK_FALSE(judge(wrong));
  wrong = merged;
  std::swap(wrong.readers[0], wrong.readers[1]);  // gate and up exchanged
  CHECK_FALSE(judge(wrong));
  // The naive merge.
  const Mlp<TestType> naive{block.norm,
                            {rotate_reader(block.readers[0], q), rotate_reader(block.readers[1], q)},
                            {},
                            rotate_writer(block.writer, q)};
  CHECK_FALSE(judge(naive));
}

TEST_CASE("check_block: one gain of 24 off by a thousandth is seen in float", "[check]") {
  Random random(402);
  const Mlp<float> block = random_mlp<float>(random);
  const Hadamard q = Hadamard::random(dim, random);
  const Matrix<double> x = 0.5 * normal_matrix(tokens, dim, random);
  RowVector<float> gain = block.norm.weight();
  gain[5] *= 1.001f;
  const Mlp<float> off{RMSNorm<float>(gain, block.norm.eps()), block.readers, {}, block.writer};
  CHECK_FALSE(check_block(block, fold_and_rotate(off, q), q, q, x).passed());
}

TEST_CASE("check_block: attention, adapters between bases, signed permutations with the gain in place", "[check]") {
  Random random(403);
  using Attention = Block<float, RMSNorm<float>, CausalAttention>;
  const Attention block{test::random_norm<float>(dim, 1e-3, random),
                        {scaled_linear<float>(4 * 5, dim, random), scaled_linear<float>(2 * 5, dim, random),
                         scaled_linear<float>(2 * 5, dim, random)},
                        {4, 2},
                        scaled_linear<float>(dim, 4 * 5, random)};
  const Matrix<double> x = 0.5 * normal_matrix(tokens, dim, random);
  const Hadamard in = Hadamard::random(dim, random);
  const Orthogonal<double> out = haar_orthogonal<double>(dim, random);
  auto adapted = adapt_block(block, in, out);
  CHECK(check_block(block, adapted, in, out, x).passed());
  CHECK_FALSE(check_block(block, adapted.block, in, out, x).passed());  // without the adapter
  CHECK_FALSE(check_block(block, adapted, in, out.inverse(), x).passed());

  const SignedPermutation p = SignedPermutation::random(dim, random);
  CHECK(check_block(block, rotate_block(block, p), p, p, x).passed());
  CHECK_FALSE(check_block(block, rotate_block(block, p.unsigned_part()), p, p, x).passed());

  CHECK_THROWS_AS(check_block(block, adapted, in, out, Matrix<double>(0, dim)), ShapeError);
  CHECK_THROWS_AS(check_block(block, adapted, in, out, x, 0), ShapeError);
}

TEST_CASE("check_block: a LayerNorm block in a basis that keeps the ones vector", "[check]") {
  Random random(404);
  const LayerNorm<float> norm(rounded<float>(test::random_gain(dim, random)),
                              rounded<float>(RowVector<double>(normal_matrix(1, dim, random))), 1e-3);
  const Block<float, LayerNorm<float>, SwiGLU> block{
      norm,
      {scaled_linear<float>(9, dim, random), scaled_linear<float>(9, dim, random)},
      {},
      scaled_linear<float>(dim, 9, random)};
  const Matrix<double> x = 0.5 * normal_matrix(tokens, dim, random);
  const HadamardFixingOnes q = HadamardFixingOnes::random(dim, random);
  const FoldedLayerNorm<float> folded = fold_and_rotate(norm, block.readers, q, MissingBias::create);
  const Block<float, UnitLayerNorm<float>, SwiGLU> merged{
      folded.norm, folded.readers, {}, rotate_writer(block.writer, q)};
  CHECK(check_block(block, merged, q, q, x).passed());
  // In a generic basis the same steps are not the same function: nothing but the type stands in the way.
  const Hadamard generic = Hadamard::random(dim, random);
  const Block<float, UnitLayerNorm<float>, SwiGLU> naive{
      norm.without_gain(),
      {rotate_reader(fold_gain(norm, block.readers, MissingBias::create).readers[0], generic),
       rotate_reader(fold_gain(norm, block.readers, MissingBias::create).readers[1], generic)},
      {},
      rotate_writer(block.writer, generic)};
  CHECK_FALSE(check_block(block, naive, generic, generic, x).passed());
}

}  // namespace rmsfold
