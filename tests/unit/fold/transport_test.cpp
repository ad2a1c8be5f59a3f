// SPDX-License-Identifier: MIT
// What is not a weight, in another basis: channel lists, steering vectors, autoencoders, adapters. The twin of each is
// the move that forgets signs, and the moves to the wrong side, twice, or of one part only.
#include <rmsfold/fold/transport.hpp>

#include <rmsfold/core/tolerance.hpp>
#include <rmsfold/fold/autoencoder.hpp>
#include <rmsfold/fold/lora.hpp>
#include <rmsfold/group/block_diagonal.hpp>
#include <rmsfold/group/hadamard.hpp>
#include <rmsfold/group/orthogonal.hpp>

#include <cmath>
#include <tuple>

#include "support/catch.hpp"
#include "support/compare.hpp"
#include "support/random_layer.hpp"

namespace rmsfold {

using test::Comparison;
using test::has_text;
using test::rows;

namespace {

constexpr Index dim = 24;
constexpr Index features = 37;
constexpr Index tokens = 5;
constexpr double u = 0x1p-53;

template <class G>
G asymmetric(Random& random);
template <>
SignedPermutation asymmetric<SignedPermutation>(Random& random) {
  return SignedPermutation::random(dim, random);
}
template <>
Hadamard asymmetric<Hadamard>(Random& random) {
  return Hadamard::random(dim, random);
}

template <Isometry G, Storage S>
struct Case {
  using Rotation = G;
  using Scalar = S;
};

using Cases = std::tuple<Case<SignedPermutation, BF16>, Case<Hadamard, float>>;

/// Length of the error, relative to the length of the row, that applying `q` in double makes, and its distance from an
/// exactly orthogonal matrix: n entries, each within γ(terms)‖row‖.
template <Isometry G>
double path_error(const G& q) {
  return std::sqrt(static_cast<double>(dim)) * gamma_n(q.error_terms(), u) + q.orthogonality_defect();
}

/// The same for a row that is rotated and stored. All entries are of order one, so that what underflows is far below.
template <Storage S, Isometry G>
double stored_error(const G& q) {
  return path_error(q) + (ExactIsometry<G> ? 0 : unit_roundoff<S>());
}

template <Storage S>
RowVector<S> random_vector(Random& random) {
  return rounded<S>(RowVector<double>(normal_matrix(1, dim, random)));
}

/// The list as one vector of the stream.
RowVector<double> as_vector(const std::vector<SignedIndex>& list) {
  RowVector<double> v = RowVector<double>::Zero(dim);
  for (const SignedIndex& entry : list) v[entry.index] += entry.sign;
  return v;
}

template <Storage S>
Autoencoder<S> random_autoencoder(Random& random) {
  Autoencoder<S> result{test::random_linear<S>(features, dim, random), rounded<S>(normal_matrix(features, dim, random)),
                        std::nullopt};
  result.decoder_bias = random_vector<S>(random);
  return result;
}

/// Of each row the k largest pre-activations, if positive: another activation.
struct TopK {
  Index k;
  Matrix<double> operator()(const Matrix<double>& z) const {
    Matrix<double> result = Matrix<double>::Zero(z.rows(), z.cols());
    for (Index t = 0; t < z.rows(); ++t) {
      for (Index f = 0; f < z.cols(); ++f) {
        const Index larger = (z.row(t).array() > z(t, f)).count();
        if (larger < k && z(t, f) > 0) result(t, f) = z(t, f);
      }
    }
    return result;
  }
};

}  // namespace

TEST_CASE("channel list: by hand", "[fold]") {
  const SignedPermutation ps({1, 0}, {-1, 1});  // x' = (-x1, x0)
  const std::vector<SignedIndex> list{{1, 1}, {0, 1}, {1, -1}};
  CHECK(transport_indices(list, ps) == std::vector<SignedIndex>{{0, -1}, {1, 1}, {0, 1}});
  CHECK(transport_indices({}, ps).empty());
  // A cycle of three tells the channel that goes to j from the channel that comes from j.
  const SignedPermutation cycle({2, 0, 1}, {1, 1, -1});  // x' = (x2, x0, -x1)
  const std::vector<SignedIndex> all{{0, 1}, {1, 1}, {2, 1}};
  CHECK(transport_indices(all, cycle) == std::vector<SignedIndex>{{1, 1}, {2, -1}, {0, 1}});
}

TEST_CASE("channel list: moves as the vector that it stands for", "[fold]") {
  Random random(401);
  const SignedPermutation p = SignedPermutation::random(dim, random);
  const std::vector<SignedIndex> list{{17, -1}, {3, 1}, {0, 1}, {23, -1}, {8, 1}, {11, -1}};
  const std::vector<SignedIndex> moved = transport_indices(list, p);
  const Matrix<double> want = act(p, as_vector(list));
  CHECK(as_vector(moved) == want);
  CHECK(transport_indices(moved, p.inverse()) == list);

  CHECK_FALSE(as_vector(transport_indices(list, p.unsigned_part())) == want);  // signs ignored
  CHECK_FALSE(as_vector(transport_indices(list, p.inverse())) == want);        // other side
  CHECK_FALSE(as_vector(transport_indices(moved, p)) == want);                 // twice
  CHECK_FALSE(as_vector(list) == want);                                        // not at all

  const SignedPermutation head = SignedPermutation::random(dim / 2, random);
  const BlockDiagonal<SignedPermutation> heads({head, head.inverse()});
  CHECK(as_vector(transport_indices(list, heads)) == act(heads, as_vector(list)));
}

TEST_CASE("channel list: what is no channel is refused", "[fold]") {
  const SignedPermutation p = SignedPermutation::identity(4);
  const auto moved = [&](SignedIndex entry) { return transport_indices(std::vector<SignedIndex>{entry}, p); };
  CHECK(moved({3, -1}) == std::vector<SignedIndex>{{3, -1}});
  CHECK_THROWS_AS(moved({4, 1}), ShapeError);
  CHECK_THROWS_WITH(moved({4, 1}), has_text("channel 4") && has_text("4 channels"));
  CHECK_THROWS_AS(moved({-1, 1}), ShapeError);
  CHECK_THROWS_AS(moved({0, 2}), InvariantError);
  CHECK_THROWS_WITH(moved({2, 0}), has_text("channel 2") && has_text("sign 0"));
}

TEST_CASE("steering vector: has its effect on what is read behind a gain", "[fold]") {
  using S = BF16;
  Random random(402);
  const RMSNorm<S> norm = test::random_norm<S>(dim, 1e-2, random);
  const Linear<S> reader = test::random_linear<S>(17, dim, random);
  const Matrix<double> x = normal_matrix(tokens, dim, random);
  const RowVector<S> steer = random_vector<S>(random);
  const SignedPermutation p = SignedPermutation::random(dim, random);

  const auto steered = [](const Matrix<double>& at, const RowVector<S>& by) {
    return Matrix<double>(at + Matrix<double>::Ones(tokens, 1) * widened(by));
  };
  const Matrix<double> want = reader.apply(norm.apply(steered(x, steer)));
  const RMSNorm<S> moved_norm = rotate_norm(norm, p);
  const Linear<double> moved_reader = widened(rotate_reader(reader, p));
  const auto judge = [&](const RowVector<S>& moved_steer) {
    const Matrix<double> z = moved_norm.apply(steered(act(p, x), moved_steer));
    const double largest = widened(norm.gain()).cwiseAbs().maxCoeff();
    return test::compare(
        moved_reader.apply(z), want,
        test::output_bound(z, moved_reader.weight, *moved_reader.bias, largest, test::roundings<S>(p, 0)));
  };
  const RowVector<S> moved = rotate_vector(steer, p);
  const Comparison right = judge(moved);
  INFO(right);
  CHECK(right.within());
  CHECK(test::same_bits(widened(rotate_vector(moved, p.inverse())), widened(steer)));

  CHECK_FALSE(judge(rotate_vector(steer, p.unsigned_part())).within());  // signs ignored
  CHECK_FALSE(judge(rotate_vector(steer, p.inverse())).within());        // other side
  CHECK_FALSE(judge(rotate_vector(moved, p)).within());                  // twice
  CHECK_FALSE(judge(steer).within());                                    // not at all
}

TEMPLATE_LIST_TEST_CASE("autoencoder: the same features, and what it rebuilds moves along", "[fold]", Cases) {
  using G = typename TestType::Rotation;
  using S = typename TestType::Scalar;
  Random random(403);
  const G q = asymmetric<G>(random);
  Autoencoder<S> sae = random_autoencoder<S>(random);
  sae.centred = GENERATE(true, false);
  INFO("centred " << sae.centred);
  const Matrix<double> x = normal_matrix(tokens, dim, random);
  const Matrix<double> moved_x = act(q, x);
  const Matrix<double> z = sae.encode(x);
  REQUIRE((z.array() > 0).count() > z.size() / 4);
  REQUIRE((z.array() == 0).count() > z.size() / 4);

  // A pre-activation is x·w - b_d·w + b_e: two of the vectors are rotated and stored, x is rotated, the sum of n + 2
  // terms is evaluated twice. ReLU spreads no error.
  const double both = std::pow(1 + stored_error<S>(q), 2) * (1 + path_error(q));
  const double encoding = both * std::pow(1 + gamma_n(dim + 2, u), 2) - 1;
  const double decoding =
      (1 + stored_error<S>(q)) * (1 + path_error(q)) * std::pow(1 + gamma_n(features + 1, u), 2) - 1;
  const double centre = widened(*sae.decoder_bias).norm();
  const Matrix<double> encoder_norms = widened(sae.encoder.weight).rowwise().norm().transpose();
  const Matrix<double> decoder_norms = widened(sae.decoder).rowwise().norm();
  const Matrix<double> x_norms = x.rowwise().norm().array() + centre;
  const Matrix<double> z_allowed =
      encoding * (x_norms * encoder_norms + Matrix<double>::Ones(tokens, 1) * widened(*sae.encoder.bias).cwiseAbs());
  const Matrix<double> rebuilt_allowed =
      (z_allowed * decoder_norms +
       decoding * ((z + z_allowed) * decoder_norms + Matrix<double>::Constant(tokens, 1, centre))) *
      RowVector<double>::Ones(dim);

  const auto same_features = [&](const Autoencoder<S>& other) {
    return test::compare(other.encode(moved_x), z, z_allowed);
  };
  const auto same_vectors = [&](const Autoencoder<S>& other) {
    return test::compare(other.apply(moved_x), act(q, sae.apply(x)), rebuilt_allowed);
  };
  const Autoencoder<S> moved = rotate_autoencoder(sae, q);
  INFO(same_features(moved) << "; " << same_vectors(moved));
  CHECK(same_features(moved).within());
  CHECK(same_vectors(moved).within());
  CHECK((moved.encoder.bias == sae.encoder.bias));

  // Another activation: the same features are the largest, as long as no two are as near to each other as the bound.
  const Matrix<double> top = sae.encode(x, TopK{6});
  CHECK(test::compare(moved.encode(moved_x, TopK{6}), top, z_allowed).within());
  CHECK((top.array() > 0).count() == 6 * tokens);

  const auto wrong = [&](const Autoencoder<S>& other) {
    return !same_features(other).within() && !same_vectors(other).within();
  };
  CHECK(wrong(sae));                                   // not at all
  CHECK(wrong(rotate_autoencoder(sae, q.inverse())));  // other side
  CHECK(wrong(rotate_autoencoder(moved, q)));          // twice
  Autoencoder<S> part = moved;
  part.encoder = sae.encoder;
  CHECK(wrong(part));
  part = moved;
  part.decoder = sae.decoder;
  CHECK(same_features(part).within());
  CHECK_FALSE(same_vectors(part).within());
  part = moved;
  part.decoder_bias = sae.decoder_bias;
  CHECK(same_features(part).within() == !sae.centred);
  CHECK_FALSE(same_vectors(part).within());
  if constexpr (ExactIsometry<G>) {
    CHECK(wrong(rotate_autoencoder(sae, q.unsigned_part())));  // signs ignored
    const Autoencoder<S> back = rotate_autoencoder(moved, q.inverse());
    CHECK(test::same_bits(widened(back.encoder.weight), widened(sae.encoder.weight)));
    CHECK(test::same_bits(widened(back.decoder), widened(sae.decoder)));
    CHECK(test::same_bits(widened(*back.decoder_bias), widened(*sae.decoder_bias)));
  }
}

TEST_CASE("autoencoder: by hand, and refusals", "[fold]") {
  Autoencoder<double> sae{
      {rows({{1, 0}, {0, -1}, {1, 1}}), std::nullopt}, rows({{2, 0}, {0, 1}, {1, 1}}), std::nullopt};
  CHECK(sae.dim() == 2);
  CHECK(sae.features() == 3);
  CHECK(sae.encode(rows({{3, 2}})) == rows({{3, 0, 5}}));
  CHECK(sae.apply(rows({{3, 2}})) == rows({{11, 5}}));
  CHECK(rotate_autoencoder(sae, SignedPermutation({1, 0}, {-1, 1})).apply(rows({{-2, 3}})) == rows({{-5, 11}}));
  sae.encoder.bias = RowVector<double>(rows({{0, 4, -6}}));
  CHECK(sae.encode(rows({{3, 2}})) == rows({{3, 2, 0}}));
  sae.decoder_bias = RowVector<double>(rows({{1, 1}}));
  CHECK(sae.encode(rows({{3, 2}})) == rows({{2, 3, 0}}));
  CHECK(sae.apply(rows({{3, 2}})) == rows({{5, 4}}));
  sae.centred = false;
  CHECK(sae.encode(rows({{3, 2}})) == rows({{3, 2, 0}}));
  CHECK(std::isnan(Relu()(rows({{std::nan("")}}))(0, 0)));

  CHECK_THROWS_AS(sae.encode(rows({{3}})), ShapeError);
  CHECK_THROWS_WITH(sae.decode(rows({{1, 2}})), has_text("3 features") && has_text("read 2"));
  CHECK_THROWS_AS(rotate_autoencoder(sae, Hadamard(4)), ShapeError);
  sae.decoder_bias = RowVector<double>(rows({{1, 1, 1}}));
  CHECK_THROWS_WITH(sae.decode(rows({{1, 2, 3}})), has_text("length 3") && has_text("length 2"));
  sae.centred = true;
  CHECK_THROWS_AS(sae.encode(rows({{3, 2}})), ShapeError);
  CHECK_THROWS_AS(rotate_autoencoder(sae, Hadamard(2)), ShapeError);
}

TEMPLATE_LIST_TEST_CASE("adapter: moves with the weight that it is added to", "[fold]", Cases) {
  using G = typename TestType::Rotation;
  using S = typename TestType::Scalar;
  Random random(404);
  const G q = asymmetric<G>(random);
  constexpr Index rank = 3;
  const RMSNorm<S> norm = test::random_norm<S>(dim, 0, random);
  const auto random_pair = [&](Index out, Index in) {
    return LoraPair<S>{rounded<S>(normal_matrix(rank, in, random)), rounded<S>(normal_matrix(out, rank, random)), 1.75};
  };
  // s·B times a factor that is multiplied by a gain, rotated and stored, against the old product, which is rotated;
  // both are sums of r products, scaled.
  const auto allowed = [&](const LoraPair<S>& pair, const Matrix<double>& a, const Matrix<double>& b) {
    const double relative =
        (1 + path_error(q) + u + unit_roundoff<S>()) * (1 + path_error(q)) * std::pow(1 + gamma_n(rank + 2, u), 2) - 1;
    const Matrix<double> lengths = b.cwiseAbs() * a;
    return Matrix<double>(pair.scale * relative * lengths);
  };

  const LoraPair<S> read = random_pair(17, dim);
  const Matrix<double> a = widened(read.a);
  const Matrix<double> b = widened(read.b);
  const Matrix<double> gained = a * widened(norm.gain()).asDiagonal();
  const auto judge_reader = [&](const LoraPair<S>& moved, const Matrix<double>& old_a) {
    const Matrix<double> want = act(q, Matrix<double>(read.scale * (b * old_a)));
    return test::compare(moved.delta(), want, allowed(read, old_a.rowwise().norm() * RowVector<double>::Ones(dim), b));
  };
  const LoraPair<S> reader = rotate_reader(read, q);
  INFO(judge_reader(reader, a));
  CHECK(judge_reader(reader, a).within());
  CHECK((reader.b == read.b));
  CHECK(reader.scale == read.scale);
  CHECK_FALSE(judge_reader(read, a).within());                              // not at all
  CHECK_FALSE(judge_reader(rotate_reader(read, q.inverse()), a).within());  // other side
  CHECK_FALSE(judge_reader(rotate_reader(reader, q), a).within());          // twice

  const LoraPair<S> folded = fold_and_rotate(norm, read, q);
  INFO(judge_reader(folded, gained));
  CHECK(judge_reader(folded, gained).within());
  CHECK_FALSE(judge_reader(reader, gained).within());                                           // gain forgotten
  CHECK_FALSE(judge_reader(fold_gain(norm, read), gained).within());                            // rotation forgotten
  CHECK_FALSE(judge_reader(fold_gain(norm, reader), gained).within());                          // AQΓ
  CHECK_FALSE(judge_reader(fold_and_rotate(norm, fold_gain(norm, read), q), gained).within());  // gain twice

  const LoraPair<S> write = random_pair(dim, 11);
  const Matrix<double> wa = widened(write.a);
  const Matrix<double> wb = widened(write.b);
  const auto judge_writer = [&](const LoraPair<S>& moved) {
    const Matrix<double> want = act(q, Matrix<double>(write.scale * (wb * wa).transpose())).transpose();
    const Matrix<double> b_norms = Matrix<double>::Ones(dim, 1) * wb.colwise().norm();
    return test::compare(moved.delta(), want, allowed(write, wa.cwiseAbs(), b_norms));
  };
  const LoraPair<S> writer = rotate_writer(write, q);
  INFO(judge_writer(writer));
  CHECK(judge_writer(writer).within());
  CHECK((writer.a == write.a));
  CHECK_FALSE(judge_writer(write).within());                              // not at all
  CHECK_FALSE(judge_writer(rotate_writer(write, q.inverse())).within());  // other side
  CHECK_FALSE(judge_writer(rotate_writer(writer, q)).within());           // twice

  if constexpr (ExactIsometry<G>) {
    CHECK(test::same_bits(widened(reader.a), act(q, a)));
    CHECK(test::same_bits(widened(rotate_writer(writer, q.inverse()).b), wb));
    CHECK_FALSE(judge_reader(rotate_reader(read, q.unsigned_part()), a).within());  // signs ignored
    CHECK_FALSE(judge_writer(rotate_writer(write, q.unsigned_part())).within());
  }
}

TEST_CASE("adapter: G1 and its writer, by hand, and refusals", "[fold]") {
  const Orthogonal<double> qa(rows({{0.6, 0.8}, {-0.8, 0.6}}));
  const RMSNorm<double> norm(RowVector<double>(rows({{2, 1}})), 0);
  const double by_hand = 8 * 10 * u;  // sums of two products of numbers below 10
  const LoraPair<double> q_proj{rows({{1, 0}}), rows({{1}, {2}, {3}})};
  CHECK(test::compare(fold_and_rotate(norm, q_proj, qa).a, rows({{1.2, 1.6}}), by_hand).within());
  CHECK_FALSE(test::compare(fold_gain(norm, rotate_reader(q_proj, qa)).a, rows({{1.2, 1.6}}), by_hand).within());
  const LoraPair<double> o_proj{rows({{1, 0, 1}}), rows({{1}, {2}}), 0.5};
  const LoraPair<double> moved = rotate_writer(o_proj, qa);
  CHECK(test::compare(moved.b, rows({{-1}, {2}}), by_hand).within());
  CHECK(test::compare(moved.delta(), rows({{-0.5, 0, -0.5}, {1, 0, 1}}), by_hand).within());

  CHECK_THROWS_AS(rotate_writer(q_proj, qa), ShapeError);
  CHECK_THROWS_AS(rotate_reader(o_proj, qa), ShapeError);
  CHECK_THROWS_AS(fold_gain(norm, o_proj), ShapeError);
  CHECK_THROWS_AS(fold_and_rotate(norm, o_proj, qa), ShapeError);
  CHECK_THROWS_WITH((LoraPair<double>{rows({{1, 2}}), rows({{1, 2}})}.delta()),
                    has_text("rank 1") && has_text("rank 2"));
}

}  // namespace rmsfold
