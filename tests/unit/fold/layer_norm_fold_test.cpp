// SPDX-License-Identifier: MIT
// Identities 7, 8 and 10 as stored weights have them, and what surrounds them; docs/theory.md names these tests.
#include <rmsfold/fold/layer_norm.hpp>

#include <rmsfold/fold/block.hpp>
#include <rmsfold/fold/cancellation.hpp>
#include <rmsfold/fold/centre.hpp>
#include <rmsfold/fold/deferred.hpp>
#include <rmsfold/fold/heads.hpp>
#include <rmsfold/fold/latent.hpp>
#include <rmsfold/group/fixes_ones.hpp>
#include <rmsfold/group/hadamard.hpp>
#include <rmsfold/group/hadamard_fixing_ones.hpp>

#include <cmath>
#include <limits>

#include "support/catch.hpp"
#include "support/compare.hpp"
#include "support/random_layer.hpp"

namespace rmsfold {

using test::has_text;
using test::rows;

namespace {

constexpr Index dim = 24;
constexpr Index tokens = 6;
constexpr double eps = 1e-2;

template <Storage S>
LayerNorm<S> random_layer_norm(Random& random) {
  return LayerNorm<S>(rounded<S>(test::random_gain(dim, random)),
                      rounded<S>(RowVector<double>(normal_matrix(1, dim, random))), eps);
}

/// Rows with a mean that matters.
Matrix<double> batch(Random& random) { return normal_matrix(tokens, dim, random).array() + 1.0; }

/// Bound on the outputs of a reader behind a LayerNorm, as `test::output_bound`, and for the bias that the reader took
/// over: its rounding to S, and that of its n products in double.
template <Storage S>
Matrix<double> bound(const Matrix<double>& z, const Linear<S>& made, const Linear<S>& original,
                     const LayerNorm<S>& norm, const test::Roundings& r) {
  const Linear<double> wide = widened(made);
  const RowVector<double> bias = wide.bias.value_or(RowVector<double>::Zero(made.out()));
  Matrix<double> result = test::output_bound(z, wide.weight, bias, norm.gain().cwiseAbs().maxCoeff(), r);
  const RowVector<double> beta = widened(*norm.bias()).cwiseAbs();
  const RowVector<double> products = beta * widened(original.weight).cwiseAbs().transpose();
  for (Index i = 0; i < made.out(); ++i) {
    const double moved = unit_roundoff<S>() * std::fabs(bias[i]) + underflow_unit<S>() +
                         2 * gamma_n(dim + 2, 0x1p-53) * (products[i] + std::fabs(bias[i]));
    result.col(i).array() += moved;
  }
  return result;
}

}  // namespace

TEMPLATE_TEST_CASE("identity 8: LayerNorm with gain and bias, folded and rotated", "[fold]", double, float, BF16) {
  Random random(501);
  const LayerNorm<TestType> norm = random_layer_norm<TestType>(random);
  const std::vector<Linear<TestType>> readers{test::random_linear<TestType>(7, dim, random)};
  const Matrix<double> x = batch(random);
  const Matrix<double> want = readers[0].apply(norm.apply(x));
  const HadamardFixingOnes q = HadamardFixingOnes::random(dim, random);
  test::Roundings roundings = test::roundings<TestType>(q, 1);
  roundings.defect += q.ones_defect();

  const FoldedLayerNorm<TestType> made = fold_and_rotate(norm, readers, q, MissingBias::keep);
  const Matrix<double> z = made.norm.apply(act(q, x));
  const auto judge = [&](const Linear<TestType>& reader, const Matrix<double>& input) {
    const test::Comparison comparison =
        test::compare(reader.apply(input), want, bound(input, reader, readers[0], norm, roundings));
    INFO(comparison);
    return comparison.within();
  };
  CHECK(judge(made.readers[0], z));
  CHECK_FALSE(judge({made.readers[0].weight, readers[0].bias}, z));  // β lost
  CHECK_FALSE(judge(rotate_reader(readers[0], q), z));               // the gain lost
  CHECK_FALSE(judge(made.readers[0], made.norm.apply(x)));           // the stream not rotated
  CHECK_FALSE(judge(fold_and_rotate(norm, readers, q.inverse(), MissingBias::keep).readers[0], z));  // other side
  // A rotation that does not fix the ones, by hand, since it does not compile.
  const Hadamard generic = Hadamard::random(dim, random);
  const Linear<TestType> folded = fold_gain(norm, readers, MissingBias::keep).readers[0];
  CHECK_FALSE(judge(rotate_reader(folded, generic), made.norm.apply(act(generic, x))));
}

TEST_CASE("identity 8: a dense rotation that was checked to fix the ones, and its negative", "[fold]") {
  Random random(502);
  const LayerNorm<double> norm = random_layer_norm<double>(random);
  const std::vector<Linear<double>> readers{test::random_linear<double>(7, dim, random)};
  const Matrix<double> x = batch(random);
  const Matrix<double> want = readers[0].apply(norm.apply(x));
  const FixesOnes<Orthogonal<double>> q = haar_fixing_ones<double>(dim, random);
  const FixesOnes<Orthogonal<double>> negative(Orthogonal<double>(-q.rotation().matrix()));
  CHECK(negative.sign() == -1);
  for (const FixesOnes<Orthogonal<double>>& rotation : {q, negative}) {
    test::Roundings roundings = test::roundings<double>(rotation, 1);
    roundings.defect += rotation.ones_defect();
    const FoldedLayerNorm<double> made = fold_and_rotate(norm, readers, rotation, MissingBias::create);
    const Matrix<double> z = made.norm.apply(act(rotation, x));
    const test::Comparison comparison =
        test::compare(made.readers[0].apply(z), want, bound(z, made.readers[0], readers[0], norm, roundings));
    INFO(comparison);
    CHECK(comparison.within());
  }
}

TEST_CASE("LayerNorm: a permutation moves gain and bias, and no bit is lost", "[fold]") {
  Random random(503);
  const LayerNorm<BF16> norm = random_layer_norm<BF16>(random);
  const Permutation p = Permutation::random(dim, random);
  const LayerNorm<BF16> moved = rotate_norm(norm, p);
  const Matrix<double> x = batch(random);
  // The mean and the sum of squares are summed in another order; nothing else differs.
  const double summing = gamma_n(4 * dim, 0x1p-53);
  const Matrix<double> want = act(p, norm.apply(x));
  const Matrix<double> allowed = summing * (want.cwiseAbs().array() + 2 * norm.gain().cwiseAbs().maxCoeff() +
                                            widened(*norm.bias()).cwiseAbs().maxCoeff());
  CHECK(test::compare(moved.apply(act(p, x)), want, allowed).within());
  CHECK_FALSE(test::compare(norm.apply(act(p, x)), want, allowed).within());
  CHECK(test::same_bits(widened(rotate_norm(moved, p.inverse()).weight()), widened(norm.weight())));
  CHECK(rotate_norm(norm, p).convention() == norm.convention());
}

TEST_CASE("bias rule: what no reader can take", "[fold]") {
  const LayerNorm<double> norm(rows({{2, 0, 4}}), RowVector<double>(rows({{1, 0, 2}})), eps);
  const std::vector<Linear<double>> unbiased{{rows({{1, 2, 3}}), std::nullopt}};
  const FoldedLayerNorm<double> kept = fold_gain(norm, unbiased, MissingBias::keep);
  CHECK(*kept.norm.bias() == RowVector<double>(rows({{0.5, 0, 0.5}})));
  CHECK(kept.readers[0].weight == rows({{2, 0, 12}}));
  CHECK_FALSE(kept.readers[0].bias.has_value());
  const FoldedLayerNorm<double> created = fold_gain(norm, unbiased, MissingBias::create);
  CHECK_FALSE(created.norm.bias().has_value());
  CHECK(*created.readers[0].bias == RowVector<double>(rows({{7}})));  // 1·1 + 0·2 + 2·3

  const LayerNorm<double> stuck(rows({{2, 0, 4}}), RowVector<double>(rows({{1, 1, 2}})), eps);
  CHECK_THROWS_WITH(fold_gain(stuck, unbiased, MissingBias::keep), has_text("channel 1") && has_text("create"));
  CHECK_NOTHROW(fold_gain(stuck, unbiased, MissingBias::create));
}

// A2, A3: numbers of the reports.
TEST_CASE("centring: A1, A2, A3, by hand", "[fold]") {
  const LayerNorm<double> norm(rows({{1, 1}}), std::nullopt, 0);
  const Linear<double> centred =
      centre_writer(norm, Linear<double>{rows({{1, 2}, {3, 5}}), RowVector<double>(rows({{1, 5}}))});
  CHECK(centred.weight == rows({{-1, -1.5}, {1, 1.5}}));
  CHECK(*centred.bias == RowVector<double>(rows({{-2, 2}})));
  const LayerNorm<double> wide(rows({{1, 1, 1, 1}}), std::nullopt, 0);
  CHECK(centre_embedding(wide, rows({{1, 2, 3, 6}})) == rows({{-2, -1, 0, 3}}));
  CHECK_THROWS_AS(centre_embedding(norm, rows({{1, 2, 3, 6}})), ShapeError);
  CHECK_THROWS_AS(centre_writer(norm, Linear<double>{rows({{1, 2}}), std::nullopt}), ShapeError);

  const LayerNorm<double> biased(rows({{1, 1}}), RowVector<double>(rows({{1, 2}})), 0);
  CHECK_THROWS_WITH(as_rms_norm(biased), has_text("into the readers first"));
  CHECK_THROWS_AS(as_rms_norm(UnitLayerNorm<double>(2, 0, RowVector<double>(rows({{1, 2}})))), RefusedError);
}

TEMPLATE_TEST_CASE("identity 7: centred weights are stored correctly rounded", "[fold]", double, float, F16, BF16) {
  Random random(504);
  const LayerNorm<TestType> norm = random_layer_norm<TestType>(random);
  Linear<TestType> writer = test::random_linear<TestType>(dim, 5, random);
  for (TestType& value : writer.weight.reshaped()) value = round_to<TestType>(to_double(value) + 1.0);
  const Matrix<double> wide = widened(writer.weight);
  Matrix<double> want = wide;
  for (Index j = 0; j < 5; ++j) {
    long double sum = 0;
    for (Index i = 0; i < dim; ++i) sum += static_cast<long double>(wide(i, j));
    for (Index i = 0; i < dim; ++i)
      want(i, j) = static_cast<double>(static_cast<long double>(wide(i, j)) - sum / static_cast<long double>(dim));
  }
  // The mean of n numbers and the difference, in double, then one rounding.
  const double composing = gamma_n(dim + 2, 0x1p-53) * 2 * wide.cwiseAbs().maxCoeff();
  const Matrix<double> allowed =
      (1.001 * unit_roundoff<TestType>() * want.cwiseAbs()).array() + underflow_unit<TestType>() + composing;
  const Matrix<double> stored = widened(centre_writer(norm, writer).weight);
  CHECK(test::compare(stored, want, allowed).within());
  CHECK_FALSE(test::compare(wide, want, allowed).within());
}

TEMPLATE_TEST_CASE("identity 10: the norm behind the product", "[fold]", double, float, BF16) {
  Random random(505);
  const UnitRMSNorm<TestType> norm(dim, eps);
  const Linear<TestType> reader = test::random_linear<TestType>(7, dim, random);
  const Matrix<double> x = batch(random);
  const Matrix<double> want = reader.apply(norm.apply(x));
  const Matrix<double> w = widened(reader.weight).cwiseAbs();
  Matrix<double> allowed = 2 * gamma_n(2 * dim + 12, 0x1p-53) * (norm.apply(x).cwiseAbs() * w.transpose());
  allowed.rowwise() += gamma_n(2, 0x1p-53) * widened(*reader.bias).cwiseAbs();
  CHECK(test::compare(apply_deferred(norm, reader, x), want, allowed).within());
  CHECK_FALSE(test::compare(apply_deferred(UnitRMSNorm<TestType>(dim, 2 * eps), reader, x), want, allowed).within());
  CHECK(apply_deferred(norm, reader, Matrix<double>(Matrix<double>::Zero(1, dim))) ==
        Matrix<double>(widened(*reader.bias)));
  CHECK_THROWS_AS(apply_deferred(norm, reader, rows({{1, 2}})), ShapeError);

  // Squares that leave the range of the type do not hurt: 1e200 in double.
  const Matrix<double> large = 1e200 * x;
  const Matrix<double> large_want = reader.apply(norm.apply(large));
  CHECK(test::compare(apply_deferred(norm, reader, large), large_want, Matrix<double>(2 * allowed)).within());
}

TEST_CASE("identity 11: what dropping a norm costs, and when it must stay", "[fold]") {
  Random random(506);
  const Linear<float> reader{rounded<float>(normal_matrix(7, dim, random)), std::nullopt};
  const Matrix<double> x = 3 * batch(random);
  const UnitRMSNorm<float> first(dim, eps);
  const CancellationError none = cancellation_error(first, reader, UnitRMSNorm<float>(7, 0), x);
  CHECK(none.predicted == 0);
  CHECK(none.measured <= gamma_n(8 * dim, 0x1p-53));
  const CancellationError some = cancellation_error(first, reader, UnitRMSNorm<float>(7, 0.5), x);
  CHECK(some.predicted > 1e-3);
  CHECK(std::fabs(some.measured - some.predicted) <= gamma_n(8 * dim, 0x1p-53));
  CHECK_THROWS_AS(cancellation_error(first, test::random_linear<float>(7, dim, random), first, x), RefusedError);

  // Nothing is hidden by overflow, underflow or NaN.
  const UnitRMSNorm<float> half(7, 0.5);
  const double at_1e160 = cancellation_error(first, reader, half, Matrix<double>(1e160 * x)).predicted;
  const double at_1e20 = cancellation_error(first, reader, half, Matrix<double>(1e20 * x)).predicted;
  CHECK(std::fabs(at_1e160 - at_1e20) <= gamma_n(8 * dim, 0x1p-53));  // eps has no say in either
  const CancellationError tiny = cancellation_error(first, reader, half, Matrix<double>(1e-170 * x));
  CHECK(std::fabs(tiny.predicted - (1 - std::sqrt(eps))) <= 4 * 0x1p-53);  // eps has all
  Matrix<double> bad = x;
  bad(0, 0) = std::numeric_limits<double>::quiet_NaN();
  CHECK_FALSE(is_finite(cancellation_error(first, reader, half, bad).predicted));
  CHECK_THROWS_AS(cancellation_error(first, reader, half, Matrix<double>(0, dim)), ShapeError);

  // C9: queries and keys are normed again, values are not.
  CHECK_NOTHROW(require_cancellable(std::vector<NormedReader>{{"q_proj", true}, {"k_proj", true}}));
  CHECK_THROWS_WITH(
      require_cancellable(std::vector<NormedReader>{{"q_proj", true}, {"k_proj", true}, {"v_proj", false}}),
      has_text("v_proj"));
  CHECK_THROWS_AS(require_cancellable({}), ShapeError);
}

namespace {

/// Two MLP blocks behind LayerNorms, tokens and learned positions before them, a head behind a last LayerNorm.
template <class Norm>
struct Toy {
  Matrix<double> embedding, positions;
  std::vector<Norm> norms;  // of block 0, block 1, the head
  std::vector<Linear<double>> readers, writers;
  Linear<double> head;

  [[nodiscard]] Matrix<double> logits() const {
    Matrix<double> x = embedding + positions;
    for (std::size_t layer = 0; layer < 2; ++layer) {
      const Matrix<double> hidden = readers[layer].apply(norms[layer].apply(x)).array().tanh();
      x += writers[layer].apply(hidden);
    }
    return head.apply(norms[2].apply(x));
  }
};

}  // namespace

TEST_CASE("A2: a whole LayerNorm model becomes an RMSNorm model, and can be rotated", "[fold]") {
  Random random(507);
  Toy<LayerNorm<double>> original{
      batch(random), batch(random), {}, {}, {}, test::random_linear<double>(9, dim, random)};
  for (int i = 0; i < 3; ++i) original.norms.push_back(random_layer_norm<double>(random));
  for (int i = 0; i < 2; ++i) {
    original.readers.push_back(test::random_linear<double>(15, dim, random));
    original.writers.push_back(test::random_linear<double>(dim, 15, random));
  }
  const Matrix<double> want = original.logits();

  const LayerNorm<double>& any = original.norms[0];
  const Hadamard q = Hadamard::random(dim, random);
  Toy<UnitRMSNorm<double>> converted{act(q, centre_embedding(any, original.embedding)),
                                     act(q, centre_embedding(any, original.positions)),
                                     {},
                                     {},
                                     {},
                                     original.head};
  for (std::size_t i = 0; i < 3; ++i) {
    const std::vector<Linear<double>> reader{i < 2 ? original.readers[i] : original.head};
    const FoldedLayerNorm<double> folded = fold_gain(original.norms[i], reader, MissingBias::create);
    converted.norms.push_back(as_rms_norm(folded.norm));
    (i < 2 ? converted.readers.emplace_back() : converted.head) = rotate_reader(folded.readers[0], q);
    if (i < 2) converted.writers.push_back(rotate_writer(centre_writer(any, original.writers[i]), q));
  }
  const auto off = [&](const Toy<UnitRMSNorm<double>>& toy) { return (toy.logits() - want).cwiseAbs().maxCoeff(); };
  CHECK(off(converted) <= 1e-12 * want.cwiseAbs().maxCoeff());

  // Each piece that the reports forgot.
  Toy<UnitRMSNorm<double>> wrong = converted;
  wrong.positions = act(q, original.positions);
  CHECK(off(wrong) > 1e-3);
  wrong = converted;
  wrong.writers[1] = rotate_writer(original.writers[1], q);
  CHECK(off(wrong) > 1e-3);
  wrong = converted;
  wrong.writers[0].bias = rotate_vector(*original.writers[0].bias, q);
  CHECK(off(wrong) > 1e-3);
  wrong = converted;
  wrong.readers[1].bias = original.readers[1].bias;
  CHECK(off(wrong) > 1e-3);
}

TEST_CASE("folds: sizes that do not fit are errors, not memory", "[fold]") {
  Random random(508);
  const LayerNorm<double> norm = random_layer_norm<double>(random);
  std::vector<Linear<double>> readers{test::random_linear<double>(8, dim, random)};
  readers[0].bias = RowVector<double>::Ones(3);
  CHECK_THROWS_AS(fold_gain(norm, readers, MissingBias::create), ShapeError);
  CHECK_THROWS_AS(fold_gain(norm, std::vector<Linear<double>>{}, MissingBias::keep), ShapeError);

  ValueOutput<double> pair{test::random_linear<double>(4, dim, random), test::random_linear<double>(6, 8, random)};
  pair.output.bias = RowVector<double>::Ones(2);
  CHECK_THROWS_AS(fold_value_bias(pair, 2, AttentionRows::sum_to_one), ShapeError);
  const ValueOutput<double> none{{Matrix<double>(0, dim), RowVector<double>()}, {Matrix<double>(6, 8), std::nullopt}};
  CHECK_THROWS_AS(fold_value_bias(none, 2, AttentionRows::sum_to_one), ShapeError);
  CHECK_THROWS_AS(rotate_heads(none, BlockDiagonal<SignedPermutation>({SignedPermutation::identity(0)})), ShapeError);

  const Latent<double, RMSNorm<double>> latent{test::random_linear<double>(3, dim, random),
                                               test::random_norm<double>(5, eps, random),
                                               test::random_linear<double>(4, 5, random)};
  CHECK_THROWS_AS(latent.apply(batch(random)), ShapeError);
  CHECK_THROWS_AS(latent.bypass(batch(random)), ShapeError);
  const std::vector<Matrix<double>> qkv(3, Matrix<double>::Ones(2, 4));
  CHECK_THROWS_AS((CausalAttention{0, 1}(qkv)), ShapeError);
  CHECK_THROWS_AS((CausalAttention{1, 0}(qkv)), ShapeError);
}

}  // namespace rmsfold
