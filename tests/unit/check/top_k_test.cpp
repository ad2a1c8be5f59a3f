// SPDX-License-Identifier: MIT
#include <rmsfold/check/top_k.hpp>

#include <cmath>
#include <limits>

#include <rmsfold/group/haar.hpp>

#include "support/catch.hpp"
#include "support/compare.hpp"
#include "support/random_layer.hpp"

namespace rmsfold {

TEST_CASE("top_k: keeps the largest magnitudes, of equal ones the first", "[check]") {
  const Matrix<double> x = test::rows({{1, -3, 2, 3, 0}});
  CHECK(top_k(x, 0) == test::rows({{0, 0, 0, 0, 0}}));
  CHECK(top_k(x, 1) == test::rows({{0, -3, 0, 0, 0}}));
  CHECK(top_k(x, 2) == test::rows({{0, -3, 0, 3, 0}}));
  CHECK(top_k(x, 5) == x);
  CHECK_THROWS_AS(top_k(x, 6), RangeError);
  CHECK_THROWS_AS(top_k(x, -1), RangeError);
}

// Identity 13, at the size and on the data that the documentation quotes.
TEST_CASE("check_top_k: equal dense models, different sparse ones", "[check]") {
  Random random(411);
  const Index n = 256;
  RowVector<float> gain(n);
  for (float& g : gain) g = static_cast<float>(std::exp(0.5 * random.normal()));
  const RMSNorm<float> norm(gain, 1e-6);
  const std::vector<Linear<float>> readers{test::random_linear<float>(96, n, random)};
  const Orthogonal<double> q = haar_orthogonal<double>(n, random);
  const Matrix<double> x = normal_matrix(16, n, random);
  const TopKReport report = check_top_k(norm, readers, q, x, n / 2);
  INFO("differing " << report.mean_differing << " of " << report.kept << ", sparse difference "
                    << report.sparse_difference);
  // Dense: what storing two merged weights in float rounds, per entry at most 2u relative, root mean square below that.
  CHECK(report.dense_difference <= 2 * 0x1p-24);
  CHECK(report.sparse_difference > 0.1);
  CHECK(report.mean_differing > 1);
  CHECK(static_cast<double>(report.most_differing) >= report.mean_differing);
  CHECK(report.after_norm_error > 0.1);
  CHECK(report.folded_error > 0.1);

  // Nothing is selected when all is kept.
  const TopKReport all = check_top_k(norm, readers, q, x, n);
  CHECK(all.mean_differing == 0);
  CHECK(all.sparse_difference == all.dense_difference);

  // A constant gain scales every coordinate alike: the same selection. So it is the gain that makes the difference.
  const TopKReport constant = check_top_k(RMSNorm<float>(RowVector<float>::Constant(n, 2), 1e-6), readers, q, x, n / 2);
  CHECK(constant.mean_differing == 0);
  CHECK(constant.sparse_difference <= 2 * 0x1p-24);

  CHECK_THROWS_AS(check_top_k(norm, readers, q, x, 0), RangeError);
  CHECK_THROWS_AS(check_top_k(norm, readers, q, x, n + 1), RangeError);
  CHECK_THROWS_AS(check_top_k(norm, {}, q, x, 1), ShapeError);
}

TEST_CASE("check_top_k: NaN has no order, selected zeros count, large weights do not overflow", "[check]") {
  Matrix<double> x = test::rows({{1, 2, 3, 4}});
  const RMSNorm<double> norm(RowVector<double>(test::rows({{2, 0, 0, 0}})), 0);
  const SignedPermutation p = SignedPermutation::identity(4);
  std::vector<Linear<double>> readers{{1e200 * Matrix<double>::Identity(4, 4), std::nullopt}};
  const TopKReport report = check_top_k(norm, readers, p, x, 4);
  CHECK(report.mean_differing == 0);
  CHECK(report.dense_difference == 0);
  CHECK(check_top_k(norm, readers, p, x, 1).mean_differing == 1);  // channel 0 behind the gain, channel 3 before it
  CHECK(check_top_k(norm, readers, p, x, 1).folded_error == 1);
  x(0, 1) = std::numeric_limits<double>::quiet_NaN();
  CHECK_THROWS_AS(check_top_k(norm, readers, p, x, 2), InvariantError);
  CHECK_THROWS_AS(top_k(x, 2), InvariantError);
}

}  // namespace rmsfold
