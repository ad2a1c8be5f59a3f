// SPDX-License-Identifier: MIT
// The identities that this library rests on (design: 1 to 6), each with twins: the wrong variants, which must be
// caught.
#include <rmsfold/fold/rotate.hpp>

#include <rmsfold/group/block_diagonal.hpp>
#include <rmsfold/group/haar.hpp>
#include <rmsfold/group/hadamard.hpp>

#include <cmath>
#include <tuple>

#include "support/catch.hpp"
#include "support/compare.hpp"
#include "support/random_layer.hpp"

namespace rmsfold {

using test::Comparison;
using test::output_bound;
using test::Roundings;

namespace {

constexpr Index dim = 24;
constexpr Index outputs = 17;  // readers are not square
constexpr Index tokens = 6;
constexpr double eps = 1e-2;  // large enough to matter for the rows below

/// One norm, one reader, one batch; the reference output in double.
template <Storage S>
struct Site {
  RMSNorm<S> norm;
  Linear<S> reader;
  Matrix<double> x;
  Matrix<double> want;
  double largest_gain;

  explicit Site(std::uint64_t seed) : Site(Random(seed)) {}

  /// Compares outputs y of a path with normalised vectors z and stored reader `path`.
  [[nodiscard]] Comparison judge(const Matrix<double>& z, const Linear<S>& path, const Roundings& roundings) const {
    const Linear<double> wide = widened(path);
    return test::compare(path.apply(z), want, output_bound(z, wide.weight, *wide.bias, largest_gain, roundings));
  }

 private:
  explicit Site(Random random)
      : norm(test::random_norm<S>(dim, eps, random)),
        reader(test::random_linear<S>(outputs, dim, random)),
        x(0.3 * normal_matrix(tokens, dim, random)),
        want(reader.apply(norm.apply(x))),
        largest_gain(widened(norm.gain()).cwiseAbs().maxCoeff()) {}
};

template <class G>
G asymmetric(Random& random);
template <>
Hadamard asymmetric<Hadamard>(Random& random) {
  return Hadamard::random(dim, random);
}
template <>
Orthogonal<double> asymmetric<Orthogonal<double>>(Random& random) {
  return haar_orthogonal<double>(dim, random);
}
template <>
BlockDiagonal<Hadamard> asymmetric<BlockDiagonal<Hadamard>>(Random& random) {
  const Hadamard first = Hadamard::random(dim / 2, random);
  return BlockDiagonal<Hadamard>({first, Hadamard::random(dim / 2, random)});
}

template <Isometry G, Storage S>
struct Case {
  using Rotation = G;
  using Scalar = S;
};

using Cases =
    std::tuple<Case<Hadamard, double>, Case<Hadamard, F16>, Case<Hadamard, BF16>, Case<Orthogonal<double>, double>,
               Case<Orthogonal<double>, float>, Case<BlockDiagonal<Hadamard>, BF16>>;

/// A reader with another weight.
template <Storage S>
Linear<S> with_weight(const Linear<S>& reader, const Matrix<double>& weight) {
  return {rounded<S>(weight), reader.bias};
}

}  // namespace

TEMPLATE_LIST_TEST_CASE("identity 1: rms(xQ) = rms(x)Q", "[fold]", Cases) {
  using G = typename TestType::Rotation;
  using S = typename TestType::Scalar;
  Random random(101);
  const G q = asymmetric<G>(random);
  const Matrix<double> x = normal_matrix(tokens, dim, random);
  for (const double e : {0.0, 1e-6, 1.0}) {
    INFO("eps " << e);
    const UnitRMSNorm<S> norm = rotate_norm(UnitRMSNorm<S>(dim, e), q);
    // Everything in double, normwise: two rotations, one seen twice through the norm; two norms; ‖rms(x)‖ ≤ √n; the
    // defect through length and direction.
    const double n = dim;
    const double allowed = std::sqrt(n) * (gamma_n(3 * std::sqrt(n) * q.error_terms() + 2 * (n + 8), 0x1p-53) +
                                           2 * q.orthogonality_defect());
    const Comparison right = test::compare(norm.apply(act(q, x)), act(q, norm.apply(x)), allowed);
    INFO(right);
    CHECK(right.within());
    CHECK_FALSE(test::compare(norm.apply(act(q, x)), act_transposed(q, norm.apply(x)), allowed).within());
    // Twins: a norm that keeps its gain; a scaled rotation, wherever eps counts.
    const RMSNorm<S> gained = test::random_norm<S>(dim, e, random);
    CHECK_FALSE(test::compare(gained.apply(act(q, x)), act(q, gained.apply(x)), allowed * 5).within());
    CHECK(test::compare(norm.apply(1.001 * act(q, x)), act(q, norm.apply(x)), allowed).within() == (e == 0));
  }
}

TEMPLATE_TEST_CASE("identity 2: gain folding", "[fold]", double, float, F16, BF16) {
  const Site<TestType> site(102);
  const std::vector<Linear<TestType>> readers{site.reader};
  const Folded<TestType> folded = fold_gain(site.norm, std::span(readers));
  const Matrix<double> z = folded.norm.apply(site.x);
  const Roundings one{unit_roundoff<TestType>(), underflow_unit<TestType>(), 1, 0, 0};
  const Comparison right = site.judge(z, folded.readers[0], one);
  INFO(right);
  CHECK(right.within());
  CHECK((folded.readers[0].bias == site.reader.bias));

  CHECK_FALSE(site.judge(z, site.reader, one).within());                              // reader left alone
  CHECK_FALSE(site.judge(site.norm.apply(site.x), folded.readers[0], one).within());  // norm not reset
  const std::vector<Linear<TestType>> once = folded.readers;
  CHECK_FALSE(site.judge(z, fold_gain(site.norm, std::span(once)).readers[0], one).within());  // twice
  const Matrix<double> inverse = widened(site.reader.weight) * widened(site.norm.gain()).cwiseInverse().asDiagonal();
  CHECK_FALSE(site.judge(z, with_weight(site.reader, inverse), one).within());  // divided instead
}

TEMPLATE_LIST_TEST_CASE("identity 3: rotate after the norm", "[fold]", Cases) {
  using G = typename TestType::Rotation;
  using S = typename TestType::Scalar;
  const Site<S> site(103);
  Random random(203);
  const G q = asymmetric<G>(random);
  const Roundings r = test::roundings<S>(q, 0);
  const Matrix<double> z = act(q, site.norm.apply(site.x));
  const Linear<S> merged = rotate_reader(site.reader, q);
  const Comparison right = site.judge(z, merged, r);
  INFO(right);
  CHECK(right.within());
  CHECK((merged.bias == site.reader.bias));

  CHECK_FALSE(site.judge(z, site.reader, r).within());                              // weight not rotated
  CHECK_FALSE(site.judge(site.norm.apply(site.x), merged, r).within());             // activation not rotated
  CHECK_FALSE(site.judge(z, rotate_reader(site.reader, q.inverse()), r).within());  // other side
  CHECK_FALSE(site.judge(z, rotate_reader(merged, q), r).within());                 // twice
}

TEMPLATE_LIST_TEST_CASE("identity 4: the naive merge is wrong by rms(x)(QΓ - ΓQ)(WQ)ᵀ", "[fold]", Cases) {
  using G = typename TestType::Rotation;
  using S = typename TestType::Scalar;
  const Site<S> site(104);
  Random random(204);
  const G q = asymmetric<G>(random);
  const Matrix<double> z = site.norm.apply(act(q, site.x));
  const Linear<S> merged = rotate_reader(site.reader, q);
  Roundings r = test::roundings<S>(q, 0);
  CHECK_FALSE(site.judge(z, merged, r).within());

  const Matrix<double> unit = site.norm.without_gain().apply(site.x);
  const RowVector<double> gain = widened(site.norm.gain());
  const Matrix<double> commutator = act(q, unit) * gain.asDiagonal() - act(q, Matrix<double>(unit * gain.asDiagonal()));
  const Matrix<double> predicted = commutator * act(q, widened(site.reader.weight)).transpose();
  const Linear<double> wide = widened(merged);
  // The prediction is evaluated in double too: three rotations and a product, with at most twice the norm of a path's
  // z.
  r.path *= 3;
  const Matrix<double> allowed = 2 * output_bound(z, wide.weight, *wide.bias, site.largest_gain, r);
  const Comparison right = test::compare(merged.apply(z), site.want + predicted, allowed);
  INFO(right);
  CHECK(right.within());
  CHECK_FALSE(test::compare(merged.apply(z), site.want - predicted, allowed).within());  // ΓQ - QΓ
}

TEMPLATE_TEST_CASE("identity 4: the naive merge is right where Q is block-diagonal on the level sets of the gain",
                   "[fold]", double, float, F16, BF16) {
  Random random(304);
  const BlockDiagonal<Hadamard> q = asymmetric<BlockDiagonal<Hadamard>>(random);
  RowVector<double> gain = RowVector<double>::Constant(dim, 2);
  gain.tail(dim / 2).setConstant(-0.5);
  const RMSNorm<TestType> norm(rounded<TestType>(gain), eps);
  const Linear<TestType> reader = test::random_linear<TestType>(outputs, dim, random);
  const Matrix<double> x = normal_matrix(tokens, dim, random);
  const Matrix<double> z = norm.apply(act(q, x));
  const Linear<TestType> merged = rotate_reader(reader, q);
  const Linear<double> wide = widened(merged);
  const Comparison right = test::compare(merged.apply(z), reader.apply(norm.apply(x)),
                                         output_bound(z, wide.weight, *wide.bias, 2, test::roundings<TestType>(q, 0)));
  INFO(right);
  CHECK(right.within());
}

TEMPLATE_LIST_TEST_CASE("identity 5: gain folded, then rotated", "[fold]", Cases) {
  using G = typename TestType::Rotation;
  using S = typename TestType::Scalar;
  const Site<S> site(105);
  Random random(205);
  const G q = asymmetric<G>(random);
  const std::vector<Linear<S>> readers{site.reader, test::random_linear<S>(3, dim, random)};
  const Folded<S> merged = fold_and_rotate(site.norm, std::span(readers), q);
  REQUIRE(merged.readers.size() == 2);
  const Roundings r = test::roundings<S>(q, 1);
  const Matrix<double> z = merged.norm.apply(act(q, site.x));
  const Comparison right = site.judge(z, merged.readers[0], r);
  INFO(right);
  CHECK(right.within());
  CHECK((merged.readers[0].bias == site.reader.bias));
  const Linear<double> second = widened(merged.readers[1]);
  CHECK(test::compare(merged.readers[1].apply(z), readers[1].apply(site.norm.apply(site.x)),
                      output_bound(z, second.weight, *second.bias, site.largest_gain, r))
            .within());

  const Matrix<double> w = widened(site.reader.weight);
  const RowVector<double> gain = widened(site.norm.gain());
  CHECK_FALSE(site.judge(z, with_weight(site.reader, act(q, w) * gain.asDiagonal()), r).within());  // WQΓ
  CHECK_FALSE(site.judge(z, with_weight(site.reader, act(q, w)), r).within());                      // gain forgotten
  CHECK_FALSE(site.judge(z, with_weight(site.reader, w * gain.asDiagonal()), r).within());  // rotation forgotten
  CHECK_FALSE(site.judge(z, with_weight(site.reader, act_transposed(q, Matrix<double>(w * gain.asDiagonal()))), r)
                  .within());  // WΓQᵀ
  CHECK_FALSE(site.judge(z, with_weight(site.reader, act(q, Matrix<double>(w * gain.cwiseAbs2().asDiagonal()))), r)
                  .within());  // gain twice
  CHECK_FALSE(site.judge(z, with_weight(site.reader, act(q, act(q, Matrix<double>(w * gain.asDiagonal())))), r)
                  .within());                                                               // rotated twice
  CHECK_FALSE(site.judge(site.norm.apply(act(q, site.x)), merged.readers[0], r).within());  // norm not reset
  CHECK_FALSE(site.judge(merged.norm.apply(site.x), merged.readers[0], r).within());        // stream not rotated
}

TEMPLATE_TEST_CASE("identity 6: gain transported by a signed permutation, no weight loses a bit", "[fold]", double,
                   float, F16, BF16) {
  const Site<TestType> site(106);
  Random random(206);
  const SignedPermutation p = SignedPermutation::random(dim, random);
  REQUIRE_FALSE(p == p.inverse());
  const RMSNorm<TestType> moved = rotate_norm(site.norm, p);
  const Linear<TestType> merged = rotate_reader(site.reader, p);
  const Matrix<double> z = moved.apply(act(p, site.x));
  const Roundings r = test::roundings<TestType>(p, 0);
  const Comparison right = site.judge(z, merged, r);
  INFO(right);
  CHECK(right.within());

  // I13: every stored number is one of the original's, up to its sign; the inverse brings every bit back.
  CHECK(test::same_bits(widened(merged.weight), act(p, widened(site.reader.weight))));
  CHECK(test::same_bits(widened(rotate_reader(merged, p.inverse()).weight), widened(site.reader.weight)));
  CHECK(test::same_bits(widened(moved.gain()), act(p.unsigned_part(), widened(site.norm.gain()))));
  CHECK(test::same_bits(widened(rotate_norm(moved, p.inverse()).gain()), widened(site.norm.gain())));
  CHECK(moved.eps() == site.norm.eps());

  const auto with_gain = [&](const Matrix<double>& gain) {
    return RMSNorm<TestType>(rounded<TestType>(RowVector<double>(gain)), eps);
  };
  const Matrix<double> gain = widened(site.norm.gain());
  CHECK_FALSE(site.judge(site.norm.apply(act(p, site.x)), merged, r).within());                // gain left in place
  CHECK_FALSE(site.judge(with_gain(act(p, gain)).apply(act(p, site.x)), merged, r).within());  // signs too
  CHECK_FALSE(site.judge(with_gain(act_transposed(p.unsigned_part(), gain)).apply(act(p, site.x)), merged, r)
                  .within());  // other side
  CHECK_FALSE(
      site.judge(z, rotate_reader(site.reader, p.unsigned_part()), r).within());  // signs forgotten in the reader
  CHECK_FALSE(site.judge(z, rotate_reader(site.reader, p.inverse()), r).within());
}

// The other half of a change of basis: what is written in the new basis and read in it is what it was.
TEMPLATE_LIST_TEST_CASE("writer, bias and embedding arrive in the new basis", "[fold]", Cases) {
  using G = typename TestType::Rotation;
  using S = typename TestType::Scalar;
  Random random(107);
  const G q = asymmetric<G>(random);
  const Linear<S> writer = test::random_linear<S>(dim, 9, random);
  const Linear<S> rotated = rotate_writer(writer, q);
  const Matrix<double> w = widened(writer.weight);
  const Matrix<double> want = act(q, Matrix<double>(w.transpose())).transpose();  // QᵀW
  // Stored once; each column composed within γ(terms)‖column‖, on both sides of the comparison.
  const auto allowed = [&](const Matrix<double>& exact, const Matrix<double>& norms) {
    return Matrix<double>(
        (unit_roundoff<S>() * exact.cwiseAbs() + 2 * gamma_n(q.error_terms(), 0x1p-53) * norms).array() +
        underflow_unit<S>());
  };
  const Matrix<double> by_column = allowed(want, Matrix<double>::Ones(dim, 1) * w.colwise().norm());
  const Comparison weight = test::compare(widened(rotated.weight), want, by_column);
  INFO(weight);
  CHECK(weight.within());
  CHECK_FALSE(test::compare(widened(rotate_writer(writer, q.inverse()).weight), want, by_column).within());
  CHECK_FALSE(test::compare(widened(writer.weight), want, by_column).within());

  const Matrix<double> b = widened(*writer.bias);
  const Matrix<double> bias_allowed = allowed(act(q, b), Matrix<double>::Constant(1, dim, b.norm()));
  CHECK(test::compare(widened(*rotated.bias), act(q, b), bias_allowed).within());
  CHECK_FALSE(test::compare(b, act(q, b), bias_allowed).within());  // forgotten

  const Matrix<S> table = rounded<S>(normal_matrix(5, dim, random));
  const Matrix<double> rows = widened(table);
  const Matrix<double> table_allowed = allowed(act(q, rows), rows.rowwise().norm() * RowVector<double>::Ones(dim));
  CHECK(test::compare(widened(rotate_embedding(table, q)), act(q, rows), table_allowed).within());
  CHECK_FALSE(test::compare(widened(rotate_embedding(table, q.inverse())), act(q, rows), table_allowed).within());
}

}  // namespace rmsfold
