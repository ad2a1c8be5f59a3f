// SPDX-License-Identifier: MIT
#include <rmsfold/fold/heads.hpp>

#include <rmsfold/group/haar.hpp>
#include <rmsfold/group/hadamard.hpp>

#include <rmsfold/core/tolerance.hpp>

#include <tuple>

#include "support/catch.hpp"
#include "support/compare.hpp"
#include "support/random_layer.hpp"

namespace rmsfold {

using test::Comparison;
using test::Roundings;

namespace {

// C2, M4: grouped queries, head_dim that is not hidden / heads, biases everywhere.
constexpr Index hidden = 10;
constexpr Index head_dim = 12;
constexpr Index kv_heads = 2;
constexpr Index heads = 4;
constexpr Index tokens = 5;

/// Values mixed by fixed attention weights, head by head: `tokens x (heads * head_dim)`; query head h reads kv head `h
/// / group`.
Matrix<double> attend(const std::vector<Matrix<double>>& attention, const Matrix<double>& values) {
  Matrix<double> mixed(tokens, heads * head_dim);
  for (Index h = 0; h < heads; ++h) {
    mixed.middleCols(h * head_dim, head_dim) =
        attention[static_cast<std::size_t>(h)] * values.middleCols(h / (heads / kv_heads) * head_dim, head_dim);
  }
  return mixed;
}

template <class G>
G draw(Random& random);
template <>
Hadamard draw<Hadamard>(Random& random) {
  return Hadamard::random(head_dim, random);
}
template <>
Orthogonal<double> draw<Orthogonal<double>>(Random& random) {
  return haar_orthogonal<double>(head_dim, random);
}
template <>
SignedPermutation draw<SignedPermutation>(Random& random) {
  return SignedPermutation::random(head_dim, random);
}

template <Isometry G, Storage S>
struct Case {
  using Rotation = G;
  using Scalar = S;
};

using Cases = std::tuple<Case<Hadamard, double>, Case<Hadamard, BF16>, Case<Orthogonal<double>, float>,
                         Case<SignedPermutation, F16>>;

}  // namespace

TEMPLATE_LIST_TEST_CASE("identity 9: values and outputs rotated head by head", "[fold]", Cases) {
  using G = typename TestType::Rotation;
  using S = typename TestType::Scalar;
  Random random(121);
  const G first = draw<G>(random);
  const BlockDiagonal<G> r({first, draw<G>(random)});
  const ValueOutput<S> pair{test::random_linear<S>(kv_heads * head_dim, hidden, random),
                            test::random_linear<S>(hidden, heads * head_dim, random)};
  const Matrix<double> x = normal_matrix(tokens, hidden, random);
  std::vector<Matrix<double>> attention;  // positive, rows that need not sum to one
  for (Index h = 0; h < heads; ++h) attention.push_back(normal_matrix(tokens, tokens, random).cwiseAbs());

  const Matrix<double> want = pair.output.apply(attend(attention, pair.value.apply(x)));
  const Roundings rounding = test::roundings<S>(r, 0);
  const auto judge = [&](const ValueOutput<S>& path) {
    const Linear<double> value = widened(path.value);
    const Linear<double> output = widened(path.output);
    const Matrix<double> mixed = attend(attention, path.value.apply(x));
    // Values are within the bound of a merged writer (its bias one more stored number); attention weights are positive
    // and carry that bound on; the output projection takes it through |W'| and adds its own. `output_bound` takes ‖z‖ ≤
    // √n times a factor.
    const auto factor = [](const Matrix<double>& z) { return z.cwiseAbs().maxCoeff(); };
    Matrix<double> value_bound = test::output_bound(x, value.weight, *value.bias, factor(x), rounding);
    value_bound.rowwise() += (rounding.storage * value.bias->cwiseAbs().array() + rounding.underflow +
                              gamma_n(rounding.terms, 0x1p-53) * value.bias->norm())
                                 .matrix();
    // A writer's columns, not its rows, are what is rotated: composed within γ ‖column‖.
    value_bound.colwise() += gamma_n(rounding.terms, 0x1p-53) *
                             (x.cwiseAbs() * value.weight.colwise().norm().transpose() / (1 - rounding.storage));
    const Matrix<double> allowed = attend(attention, value_bound) * output.weight.cwiseAbs().transpose() +
                                   test::output_bound(mixed, output.weight, *output.bias, factor(mixed), rounding);
    return test::compare(path.output.apply(mixed), want, allowed);
  };

  const ValueOutput<S> rotated = rotate_heads(pair, r);
  const Comparison right = judge(rotated);
  INFO(right);
  CHECK(right.within());
  CHECK((rotated.output.bias == pair.output.bias));
  // Something happened: both tensors and the value's bias changed.
  CHECK_FALSE((rotated.value.weight == pair.value.weight));
  CHECK_FALSE((*rotated.value.bias == *pair.value.bias));
  CHECK_FALSE((rotated.output.weight == pair.output.weight));

  CHECK_FALSE(judge({rotated.value, pair.output}).within());  // C7: not cancelled
  CHECK_FALSE(judge({pair.value, rotated.output}).within());
  CHECK_FALSE(judge({{rotated.value.weight, pair.value.bias}, rotated.output}).within());  // C1: bias forgotten
  CHECK_FALSE(judge({rotated.value, rotate_reader(pair.output, r.repeated(2).inverse())}).within());  // other side
  CHECK_FALSE(judge({rotate_writer(rotated.value, r), rotated.output}).within());                     // twice
  const BlockDiagonal<G> tiled({r.blocks()[0], r.blocks()[1], r.blocks()[0], r.blocks()[1]});
  CHECK_FALSE(judge({rotated.value, rotate_reader(pair.output, tiled)}).within());  // C5: h % kv_heads
}

// C3: [q; k; v] in one layer, two query heads and one kv head of two channels: rows 6 and 7 are the values.
TEST_CASE("C3: a fused layer, only the value rows move, weight and bias", "[fold]") {
  Random random(131);
  const Linear<double> fused = test::random_linear<double>(8, 5, random);
  const Orthogonal<double> r(test::rows({{0.6, 0.8}, {-0.8, 0.6}}));
  const Linear<double> moved = rotate_writer_rows(fused, 6, r);
  CHECK(moved.weight.topRows(6) == fused.weight.topRows(6));
  CHECK(moved.bias->head(6) == fused.bias->head(6));
  const Linear<double> value{fused.weight.bottomRows(2), RowVector<double>(fused.bias->tail(2))};
  CHECK(moved.weight.bottomRows(2) == rotate_writer(value, r).weight);
  CHECK(moved.bias->tail(2) == *rotate_writer(value, r).bias);
  CHECK(moved.bias->tail(2) != fused.bias->tail(2));
  for (const Index first : {Index{-1}, Index{7}, Index{8}})
    CHECK_THROWS_AS(rotate_writer_rows(fused, first, r), ShapeError);
  CHECK_THROWS_AS(rotate_writer_rows(fused, 0, Hadamard(16)), ShapeError);
}

// An output projection takes a factor on either side: per-head rotation of what it reads, rotation of what it writes.
TEMPLATE_TEST_CASE("composite factors: widen, apply all, round once", "[fold]", float, BF16) {
  Random random(132);
  const Linear<TestType> output = test::random_linear<TestType>(12, 16, random);
  const BlockDiagonal<Hadamard> per_head({Hadamard::random(8, random), Hadamard::random(8, random)});
  const Hadamard q = Hadamard::random(12, random);
  const Linear<TestType> composed = rounded<TestType>(rotate_writer(rotate_reader(widened(output), per_head), q));
  const Linear<TestType> in_steps = rotate_writer(rotate_reader(output, per_head), q);

  const Matrix<long double> exact = matrix_of<long double>(q).transpose() *
                                    widened(output.weight).template cast<long double>() * matrix_of<long double>(per_head);
  const auto worst = [&](const Linear<TestType>& layer) {  // in units of the last place
    double result = 0;
    for (Index i = 0; i < exact.size(); ++i) {
      const double want = static_cast<double>(exact.data()[i]);
      const double ulp = std::ldexp(2 * unit_roundoff<TestType>(), std::ilogb(want));
      result = (std::max)(result, std::fabs(to_double(layer.weight.data()[i]) - want) / ulp);
    }
    return result;
  };
  CHECK(worst(composed) <= 0.5 + 1e-6);  // 2^-53 against 2^-24: composing adds less than a millionth
  CHECK(worst(in_steps) > 0.6);          // the twin: rounded between the factors
  CHECK(composed.bias->size() == 12);
  CHECK_FALSE(test::same_bits(widened(*composed.bias), widened(*output.bias)));
}

}  // namespace rmsfold
