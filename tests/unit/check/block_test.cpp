// SPDX-License-Identifier: MIT
#include <rmsfold/check/block.hpp>

#include <limits>

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
  std::swap(wrong.readers[0].weight, wrong.readers[1].weight);  // gate and up exchanged
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

// What is stored exactly has no rounding to explain anything with.
TEMPLATE_TEST_CASE("check_block: zeros do not loosen the threshold", "[check]", float, BF16) {
  Random random(405);
  Mlp<TestType> block = random_mlp<TestType>(random);
  for (TestType& value : block.writer.weight.reshaped()) value = round_to<TestType>(0.01 * to_double(value));
  block.writer.bias->setConstant(round_to<TestType>(0));
  for (Index i = 0; i < 17; i += 2) block.readers[0].weight.row(i).setConstant(round_to<TestType>(0));
  const Hadamard q = Hadamard::random(dim, random);
  const Matrix<double> x = 0.5 * normal_matrix(tokens, dim, random);
  CHECK(check_block(block, fold_and_rotate(block, q), q, q, x).passed());
  Mlp<TestType> naive = rotate_block(block, SignedPermutation::identity(dim));
  for (Linear<TestType>& reader : naive.readers) reader = rotate_reader(reader, q);
  naive.writer = rotate_writer(block.writer, q);
  CHECK_FALSE(check_block(block, naive, q, q, x).passed());
  auto forgotten = fold_and_rotate(block, q);
  forgotten.writer = block.writer;
  CHECK_FALSE(check_block(block, forgotten, q, q, x).passed());
}

// A channel that is large in the stream and small in the readers: rotated, its rounding is spread over all.
TEMPLATE_TEST_CASE("check_block: a massive activation is no mistake", "[check]", float, BF16) {
  Random random(406);
  Mlp<TestType> block = random_mlp<TestType>(random);
  for (Linear<TestType>& reader : block.readers) {
    for (Index i = 0; i < reader.out(); ++i)
      reader.weight(i, 3) = round_to<TestType>(1e-4 * to_double(reader.weight(i, 3)));
  }
  Matrix<double> x = 0.5 * normal_matrix(tokens, dim, random);
  x.col(3) *= 3000;
  const Hadamard q = Hadamard::random(dim, random);
  CHECK(check_block(block, fold_and_rotate(block, q), q, q, x).passed());
}

TEST_CASE("check_block: a dense rotation is as orthogonal as it says", "[check]") {
  Random random(407);
  const Mlp<double> block = random_mlp<double>(random);
  const Matrix<double> x = normal_matrix(tokens, dim, random);
  for (const double scale : {1.0, 1000.0}) {
    const Orthogonal<double> in = haar_orthogonal<double>(dim, random), out = haar_orthogonal<double>(dim, random);
    CHECK(check_block(block, adapt_block(block, in, out), in, out, Matrix<double>(scale * x)).passed());
  }
  const Orthogonal<float> in = haar_orthogonal<float>(dim, random), out = haar_orthogonal<float>(dim, random);
  CHECK(check_block(block, adapt_block(block, in, out), in, out, x).passed());
  CHECK_FALSE(check_block(block, adapt_block(block, in, out).block, in, out, x).passed());
}

TEST_CASE("check_block: what is not finite, or overflows, does not pass", "[check]") {
  Random random(408);
  Mlp<double> block = random_mlp<double>(random);
  const SignedPermutation p = SignedPermutation::random(dim, random);
  Matrix<double> x = normal_matrix(tokens, dim, random);
  x(2, 5) = std::numeric_limits<double>::quiet_NaN();
  CHECK_FALSE(check_block(block, rotate_block(block, p), p, p, x).passed());
  x(2, 5) = 1;
  block.writer.weight *= 1e307;
  Mlp<double> off = rotate_block(block, p);
  off.writer.weight.row(0) *= 1.01;
  CHECK_FALSE(check_block(block, off, p, p, Matrix<double>(100 * x)).passed());

  Mlp<double> narrow = block;
  narrow.writer = scaled_linear<double>(dim - 1, 17, random);
  CHECK_THROWS_AS(check_block(narrow, narrow, p, p, x), ShapeError);
  CHECK_THROWS_AS(narrow.apply(x), ShapeError);
}

}  // namespace rmsfold
