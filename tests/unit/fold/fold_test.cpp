// SPDX-License-Identifier: MIT
// Small examples by hand, most of them from the field's bug reports (the numbers in the names are those of the
// project's case list), and refusals.
#include <rmsfold/fold/gain.hpp>
#include <rmsfold/fold/heads.hpp>
#include <rmsfold/fold/linear.hpp>
#include <rmsfold/fold/rotate.hpp>

#include <rmsfold/group/haar.hpp>
#include <rmsfold/group/hadamard.hpp>

#include <cmath>
#include <limits>

#include "support/catch.hpp"
#include "support/compare.hpp"
#include "support/random_layer.hpp"

namespace rmsfold {

using test::has_text;
using test::rows;

template struct Linear<float>;
template struct Linear<double>;

namespace {

constexpr double inf = std::numeric_limits<double>::infinity();

/// Asymmetric, and in double off orthogonal by less than an ulp.
Orthogonal<double> qa() { return Orthogonal<double>(rows({{0.6, 0.8}, {-0.8, 0.6}})); }

template <Storage S = double>
Linear<S> layer(const Matrix<double>& weight, std::optional<Matrix<double>> bias = std::nullopt) {
  Linear<S> result{rounded<S>(weight), std::nullopt};
  if (bias) result.bias = rounded<S>(RowVector<double>(*bias));
  return result;
}

template <Storage S = double>
RMSNorm<S> norm_of(const Matrix<double>& gain) {
  return RMSNorm<S>(rounded<S>(RowVector<double>(gain)), 0);
}

template <Storage S>
Matrix<S> folded_weight(const Matrix<double>& weight, const Matrix<double>& gain) {
  const std::vector<Linear<S>> readers{layer<S>(weight)};
  return fold_gain(norm_of<S>(gain), std::span(readers)).readers[0].weight;
}

/// Hand-computed sums of two products of numbers below 10: within 8 roundings of 10.
constexpr double by_hand = 8 * 10 * 0x1p-53;

/// The product of two stored numbers, correctly rounded, by another route than `double`: exact in long double or in two
/// doubles, then rounded by search of the neighbours.
template <Storage S>
bool is_rounded_product(double stored, double a, double b) {
  if constexpr (std::same_as<S, double>) {
    return stored == a * b;
  } else {
    // a*b is exact in double for these types, so distances to it are too.
    const auto neighbour = [&](int steps) {
      if constexpr (std::same_as<S, float>) {
        return static_cast<double>(std::nextafter(static_cast<float>(stored), static_cast<float>(steps * inf)));
      } else {
        const S here = round_to<S>(stored);
        const bool away = (steps > 0) == ((here.bits & 0x8000u) == 0);
        return to_double(S{static_cast<std::uint16_t>(away ? here.bits + 1 : here.bits - 1)});
      }
    };
    const double distance = std::fabs(std::fma(a, b, -stored));
    return distance <= std::fabs(std::fma(a, b, -neighbour(1))) &&
           distance <= std::fabs(std::fma(a, b, -neighbour(-1)));
  }
}

}  // namespace

TEST_CASE("linear: y = xWᵀ + b", "[fold]") {
  CHECK(layer(rows({{1, 2, 3}, {4, 5, 6}}), rows({{10, 20}})).apply(rows({{1, 0, -1}})) == rows({{8, 18}}));
  CHECK(layer<BF16>(rows({{1, 2, 3}})).apply(Matrix<float>(rows({{1, 0, -1}}).cast<float>()))(0, 0) == -2);
  CHECK_THROWS_AS(layer(rows({{1, 2}})).apply(rows({{1, 2, 3}})), ShapeError);
  CHECK_THROWS_AS(layer(rows({{1, 2}}), rows({{1, 2}})).apply(rows({{1, 2}})), ShapeError);
}

TEMPLATE_TEST_CASE("gain fold: the stored product is the correctly rounded one, bit for bit", "[fold]", double, float,
                   F16, BF16) {
  Random random(111);
  const Index n = 64;
  const RMSNorm<TestType> norm = test::random_norm<TestType>(n, 0, random);
  const std::vector<Linear<TestType>> readers{test::random_linear<TestType>(50, n, random)};
  const Matrix<double> folded = widened(fold_gain(norm, std::span(readers)).readers[0].weight);
  const RowVector<double> gain = widened(norm.gain());
  const Matrix<double> weight = widened(readers[0].weight);
  int wrong = 0;
  int off_by_a_thousandth = 0;
  for (Index i = 0; i < weight.rows(); ++i) {
    for (Index j = 0; j < n; ++j) {
      wrong += !is_rounded_product<TestType>(folded(i, j), weight(i, j), gain[j]);
      // M3: were this one gain of 64 wrong by 1e-3, would the comparison of stored bits tell?
      if (j == 17) off_by_a_thousandth += to_double(round_to<TestType>(weight(i, j) * gain[j] * 1.001)) != folded(i, j);
    }
  }
  CHECK(wrong == 0);
  INFO(off_by_a_thousandth << " of 50 entries of the column differ");
  CHECK(off_by_a_thousandth > 0);
}

TEST_CASE("gain fold: columns, not rows, every reader, once", "[fold]") {
  const RMSNorm<double> norm = norm_of(rows({{2, 1}}));
  const std::vector<Linear<double>> readers{layer(rows({{1, 2}, {3, 5}})),
                                            layer(rows({{1, 0}, {0, 1}, {1, 1}}), rows({{7, 8, 9}}))};
  const Folded<double> folded = fold_gain(norm, std::span(readers));
  REQUIRE(folded.readers.size() == 2);
  CHECK(folded.readers[0].weight == rows({{2, 2}, {6, 5}}));  // F15
  CHECK(folded.readers[1].weight == rows({{2, 0}, {0, 1}, {2, 1}}));
  CHECK(*folded.readers[1].bias == rows({{7, 8, 9}}));
  CHECK(folded.norm.dim() == 2);
  CHECK(fold_gain(norm, std::span<const Linear<double>>()).readers.empty());
}

TEST_CASE("gain fold: A8, eps stays what it was", "[fold]") {
  const RMSNorm<float> norm(RowVector<float>::Constant(4, 2.0f), 1e-6);
  const std::vector<Linear<float>> readers{layer<float>(Matrix<double>::Identity(4, 4))};
  CHECK(fold_gain(norm, std::span(readers)).norm.eps() == 1e-6);
  CHECK(fold_and_rotate(norm, std::span(readers), Hadamard(4)).norm.eps() == 1e-6);
}

TEST_CASE("A1: rotating by the identity changes no bit, and no mean is removed", "[fold]") {
  const Matrix<float> table = rounded<float>(rows({{1, 2, 3, 6}}));
  CHECK(rotate_embedding(table, SignedPermutation::identity(4)) == table);
  CHECK(rotate_embedding(table, Orthogonal<double>(Matrix<double>::Identity(4, 4))) == table);
}

// The dense half of A4, that it does not compile, is tests/compile_fail.
TEST_CASE("A4: a signed permutation moves the gain along", "[fold]") {
  const SignedPermutation ps({1, 0}, {-1, 1});
  CHECK(rotate_norm(norm_of(rows({{2, 0.5}})), ps).gain() == rows({{0.5, 2}}));
}

TEST_CASE("F8: a post-norm's gain moves without signs, its writer's rows with them", "[fold]") {
  const SignedPermutation ps({1, 0}, {-1, 1});
  CHECK(rotate_norm(norm_of(rows({{2, 3}})), ps).gain() == rows({{3, 2}}));
  const Linear<double> writer = rotate_writer(layer(rows({{1, 2}, {3, 5}}), rows({{1, 5}})), ps);
  CHECK(writer.weight == rows({{-3, -5}, {1, 2}}));
  CHECK(*writer.bias == rows({{-5, 1}}));
}

TEST_CASE("A4: so do signed permutations in blocks", "[fold]") {
  const auto transported = []<class G>(const RMSNorm<double>& norm, const G& q) {
    if constexpr (requires { q.unsigned_part(); }) {
      return Matrix<double>(rotate_norm(norm, q).gain());
    } else {
      return Matrix<double>();  // meets the concept of what moves and negates only, and cannot move a gain
    }
  };
  const BlockDiagonal<SignedPermutation> q({SignedPermutation({1, 0}, {-1, 1}), SignedPermutation({0, 1}, {1, -1})});
  CHECK(test::same_bits(transported(norm_of(rows({{2, 0.5, 3, 4}})), q), rows({{0.5, 2, 3, 4}})));
}

TEST_CASE("B1: embedding and head of a tied model, gain on the head only", "[fold]") {
  const Matrix<double> e2 = rows({{1, 2}, {3, 4}});
  const RMSNorm<double> norm = norm_of(rows({{2, 0.5}}));
  const std::vector<Linear<double>> head{layer(e2)};
  const Matrix<double> embedding = rotate_embedding(e2, qa());
  const Folded<double> rotated = fold_and_rotate(norm, std::span(head), qa());
  CHECK(test::compare(embedding, rows({{-1, 2}, {-1.4, 4.8}}), by_hand).within());
  CHECK(test::compare(rotated.readers[0].weight, rows({{0.4, 2.2}, {2, 6}}), by_hand).within());
  const Matrix<double> logits = rows({{2.52982, 6.32456}});
  CHECK(
      test::compare(head[0].apply(norm.apply(Matrix<double>(e2.row(0)))), logits, 5e-6).within());  // the digits given
  CHECK(test::compare(rotated.readers[0].apply(rotated.norm.apply(Matrix<double>(embedding.row(0)))), logits, 5e-6)
            .within());
  // Twin: gain folded into the tensor that both share, then again into the head.
  const Matrix<double> shared = folded_weight<double>(e2, rows({{2, 0.5}}));
  CHECK_FALSE(test::compare(layer(folded_weight<double>(shared, rows({{2, 0.5}})))
                                .apply(rotated.norm.apply(Matrix<double>(shared.row(0)))),
                            logits, 5e-6)
                  .within());
}

TEST_CASE("B2: rotated once, which a symmetric H applied twice would hide", "[fold]") {
  const Matrix<double> e2 = rows({{1, 2}, {3, 4}});
  const double root = std::sqrt(0.5);
  const Matrix<double> once = rotate_embedding(e2, Hadamard(2));
  CHECK(test::compare(once, rows({{3 * root, -root}, {7 * root, -root}}), by_hand).within());
  CHECK(test::compare(rotate_embedding(once, Hadamard(2)), e2, by_hand).within());
  CHECK_FALSE(test::compare(rotate_embedding(rotate_embedding(e2, qa()), qa()), e2, 1).within());
}

TEST_CASE("G5: a writer's weight and bias, on the right side", "[fold]") {
  const Linear<double> writer = rotate_writer(layer(rows({{1, 2}, {3, 5}}), rows({{1, 5}})), qa());
  CHECK(test::compare(writer.weight, rows({{-1.8, -2.8}, {2.6, 4.6}}), by_hand).within());
  CHECK(test::compare(*writer.bias, rows({{-3.4, 3.8}}), by_hand).within());
}

TEST_CASE("G1: the input side of an adapter", "[fold]") {
  const std::vector<Linear<double>> a{layer(rows({{1, 0}}))};
  CHECK(test::compare(fold_and_rotate(norm_of(rows({{2, 1}})), std::span(a), qa()).readers[0].weight,
                      rows({{1.2, 1.6}}), by_hand)
            .within());
}

TEST_CASE("E1: gain and rotation are rounded once, together", "[fold]") {
  const RMSNorm<BF16> norm = norm_of<BF16>(rows({{1.0078125, 1.0078125}}));
  const std::vector<Linear<BF16>> readers{layer<BF16>(rows({{1.5, 1.015625}}))};
  CHECK(to_double(fold_and_rotate(norm, std::span(readers), Hadamard(2)).readers[0].weight(0, 0)) == 1.7890625);
  const std::vector<Linear<BF16>> in_steps = fold_gain(norm, std::span(readers)).readers;
  CHECK(to_double(rotate_reader(in_steps[0], Hadamard(2)).weight(0, 0)) ==
        1.796875);  // what rounding in between would give
}

TEST_CASE("E2: f64 to bf16 without a stop at f32", "[fold]") {
  // (1 + 2^-8 + 2^-30) as a product of rotation and weight is out of reach of bf16 factors; a rotation by a scaled
  // entry in double is not.
  const double c = (1 + 0x1p-8 + 0x1p-30) / 2;
  const double s = std::sqrt(1 - c * c);
  const Orthogonal<double> q(rows({{c, s}, {-s, c}}));
  CHECK(to_double(rotate_embedding(rounded<BF16>(rows({{2, 0}})), q)(0, 0)) == 1.0078125);
}

TEST_CASE("E3: an overflow is an error, never an infinity", "[fold]") {
  CHECK_THROWS_AS(folded_weight<F16>(rows({{300}}), rows({{300}})), RangeError);
  CHECK_THROWS_WITH(folded_weight<F16>(rows({{1, 2}, {3, 300}}), rows({{1, 300}})), has_text("(1, 1) = 90000"));
  CHECK(to_double(folded_weight<BF16>(rows({{300}}), rows({{300}}))(0, 0)) == 90112);
  const Linear<F16> large = layer<F16>(rows({{60000, 60000}}));
  CHECK_THROWS_AS(rotate_reader(large, Hadamard(2)), RangeError);
  CHECK_THROWS_AS(rotate_writer(layer<F16>(rows({{60000}, {60000}})), Hadamard(2)), RangeError);
  CHECK_THROWS_AS(rotate_vector(RowVector<F16>(large.weight), Hadamard(2)), RangeError);
}

TEST_CASE("E4: an infinity in one weight stays in its place", "[fold]") {
  const Matrix<double> folded = folded_weight<double>(rows({{inf, 1}}), rows({{1, 2}}));
  CHECK(folded == rows({{inf, 2}}));
  CHECK(widened(folded_weight<BF16>(rows({{inf, 1}}), rows({{1, 2}}))) == rows({{inf, 2}}));
}

TEST_CASE("C1: the value's bias is rotated too", "[fold]") {
  const ValueOutput<double> pair{layer(rows({{1, 2}, {3, 5}}), rows({{1, 0}})), layer(rows({{1, 2}}))};
  const ValueOutput<double> rotated = rotate_heads(pair, BlockDiagonal<Orthogonal<double>>({qa()}));
  CHECK(test::compare(*rotated.value.bias, rows({{0.6, 0.8}}), by_hand).within());
  CHECK(test::compare(rotated.value.weight, rows({{-1.8, -2.8}, {2.6, 4.6}}), by_hand).within());
  CHECK(test::compare(rotated.output.weight, rows({{-1, 2}}), by_hand).within());
}

TEST_CASE("C5: query head h reads kv head h / group", "[fold]") {
  const BlockDiagonal<Orthogonal<double>> r({qa(), Orthogonal<double>(Matrix<double>::Identity(2, 2))});
  const ValueOutput<double> pair{layer(Matrix<double>::Identity(4, 4)), layer(rows({{1, 2, 1, 2, 1, 2, 1, 2}}))};
  CHECK(test::compare(rotate_heads(pair, r).output.weight, rows({{-1, 2, -1, 2, 1, 2, 1, 2}}), by_hand).within());
}

TEST_CASE("C4: blocks of head_dim, whatever the hidden width", "[fold]") {
  // hidden 4, 2 heads, 1 kv head, head_dim 4: two blocks of 2 would cancel in the product just as well, so the tensors
  // themselves are compared.
  Random random(112);
  const Orthogonal<double> block = haar_orthogonal<double>(4, random);
  const ValueOutput<double> pair{test::random_linear<double>(4, 4, random), test::random_linear<double>(4, 8, random)};
  const ValueOutput<double> rotated = rotate_heads(pair, BlockDiagonal<Orthogonal<double>>({block}));
  CHECK(test::same_bits(rotated.value.weight, rotate_writer(pair.value, block).weight));
  for (Index head = 0; head < 2; ++head) {
    const Matrix<double> before = pair.output.weight.middleCols(4 * head, 4);
    // |x| |q| summed over four entries, rounded on both sides.
    const Matrix<double> allowed = 2 * gamma_n(4, 0x1p-53) * before.cwiseAbs() * block.matrix().cwiseAbs();
    CHECK(test::compare(rotated.output.weight.middleCols(4 * head, 4), before * block.matrix(), allowed).within());
  }
}

TEST_CASE("fold: shapes that do not fit are refused, by both numbers", "[fold]") {
  Random random(113);
  const Hadamard q(4);
  const std::vector<Linear<float>> wrong{layer<float>(rows({{1, 2}}))};
  const RMSNorm<float> norm = test::random_norm<float>(4, 0, random);
  CHECK_THROWS_AS(fold_gain(norm, std::span(wrong)), ShapeError);
  CHECK_THROWS_WITH(fold_gain(norm, std::span(wrong)), has_text("length 4") && has_text("length 2"));
  CHECK_THROWS_AS(fold_and_rotate(norm, std::span(wrong), q), ShapeError);
  CHECK_THROWS_AS(fold_and_rotate(norm, std::span<const Linear<float>>(), Hadamard(2)), ShapeError);
  CHECK_THROWS_WITH(rotate_reader(wrong[0], q), has_text("dimension 4") && has_text("input side of length 2"));
  CHECK_THROWS_WITH(rotate_writer(wrong[0], q), has_text("output side of length 1"));
  CHECK_THROWS_AS(rotate_embedding(wrong[0].weight, q), ShapeError);
  CHECK_THROWS_AS(rotate_vector(RowVector<float>(wrong[0].weight), q), ShapeError);
  CHECK_THROWS_AS(rotate_norm(norm.without_gain(), Hadamard(2)), ShapeError);
  CHECK_THROWS_AS(rotate_norm(norm, SignedPermutation::identity(2)), ShapeError);
  const BlockDiagonal<Hadamard> heads({Hadamard(2), Hadamard(2)});
  CHECK_THROWS_AS(rotate_heads(ValueOutput<float>{test::random_linear<float>(6, 4, random),
                                                  test::random_linear<float>(4, 8, random)},
                               heads),
                  ShapeError);
  CHECK_THROWS_WITH(rotate_heads(ValueOutput<float>{test::random_linear<float>(4, 4, random),
                                                    test::random_linear<float>(4, 6, random)},
                                 heads),
                    has_text("6 channels") && has_text("4 of all kv heads"));
}

}  // namespace rmsfold
