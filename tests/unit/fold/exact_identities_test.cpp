// SPDX-License-Identifier: MIT
// The identities that this library rests on (docs/theory.md), in 100-digit arithmetic or, where no root is taken, in
// exact rationals. What holds is off by rounding at the hundredth digit; what does not is off in the first few.
#include <rmsfold/fold/block.hpp>

#include <rmsfold/fold/cancellation.hpp>
#include <rmsfold/fold/centre.hpp>
#include <rmsfold/fold/deferred.hpp>
#include <rmsfold/fold/gated.hpp>
#include <rmsfold/fold/heads.hpp>
#include <rmsfold/fold/latent.hpp>
#include <rmsfold/fold/layer_norm.hpp>
#include <rmsfold/group/hadamard.hpp>
#include <rmsfold/group/hadamard_fixing_ones.hpp>

#include "support/catch.hpp"
#include "support/multiprecision.hpp"
#include "support/random_layer.hpp"

namespace rmsfold {

using test::Digits100;
using test::product_of_reflections;
using test::Rational;

namespace {

constexpr Index dim = 12;  // a Hadamard order that is no power of two
constexpr Index tokens = 3;
constexpr double eps = 1e-2;

template <Real S>
Matrix<S> numbers(Index rows, Index cols, Random& random) {
  return normal_matrix(rows, cols, random).cast<S>();
}

template <Real S>
Linear<S> layer(Index out, Index in, Random& random) {
  return {numbers<S>(out, in, random), RowVector<S>(numbers<S>(1, out, random))};
}

/// One norm with its reader, and a batch.
struct Site {
  explicit Site(std::uint64_t seed) : random(seed) {}
  Random random;
  RowVector<Digits100> gain = test::random_gain(dim, random).cast<Digits100>();
  RMSNorm<Digits100> norm{gain, eps};
  std::vector<Linear<Digits100>> readers{layer<Digits100>(7, dim, random)};
  Matrix<Digits100> x = Digits100(0.3) * numbers<Digits100>(tokens, dim, random);
  Matrix<Digits100> want = readers[0].apply(norm.apply(x));
};

double distance(const Matrix<Digits100>& a, const Matrix<Digits100>& b) {
  REQUIRE(a.rows() == b.rows());
  REQUIRE(a.cols() == b.cols());
  return static_cast<double>(Digits100((a - b).norm() / b.norm()));
}

/// Fewer than 10^4 roundings, each of relative size ε, are on the way to any number here.
const double rounding = 1e4 * static_cast<double>(std::numeric_limits<Digits100>::epsilon());
/// What a wrong variant must be off by, far above rounding.
constexpr double visible = 1e-2;

template <class G>
G asymmetric(Random& random);
template <>
Orthogonal<Digits100> asymmetric(Random& random) {
  return product_of_reflections<Digits100>(dim, random);
}
template <>
Hadamard asymmetric(Random& random) {
  return Hadamard::random(dim, random);
}
template <>
SignedPermutation asymmetric(Random& random) {
  return SignedPermutation::random(dim, random);
}

}  // namespace

TEMPLATE_TEST_CASE("exact identities: 1 to 5, for every kind of rotation", "[fold]", Orthogonal<Digits100>, Hadamard,
                   SignedPermutation) {
  Site site(301);
  const TestType q = asymmetric<TestType>(site.random);
  const UnitRMSNorm<Digits100>& unit = site.norm.without_gain();
  const Linear<Digits100>& reader = site.readers[0];
  const Matrix<Digits100> rotated = act(q, site.x);

  // 1: rms(xQ) = rms(x)Q. Twins: the other side; a Q that is orthogonal up to a factor (I12).
  CHECK(distance(unit.apply(rotated), act(q, unit.apply(site.x))) <= rounding);
  CHECK(distance(unit.apply(rotated), act_transposed(q, unit.apply(site.x))) > visible);
  CHECK(distance(unit.apply(Matrix<Digits100>(Digits100(1.5) * rotated)), act(q, unit.apply(site.x))) > visible);

  // 2: gain folding. Twins: the gain twice, the gain lost.
  const Folded<Digits100> folded = fold_gain(site.norm, site.readers);
  CHECK(distance(folded.readers[0].apply(unit.apply(site.x)), site.want) <= rounding);
  CHECK(distance(folded.readers[0].apply(site.norm.apply(site.x)), site.want) > visible);
  CHECK(distance(reader.apply(unit.apply(site.x)), site.want) > visible);

  // 3: rotate after the norm. Twin: the reader on the other side.
  const Matrix<Digits100> after = act(q, site.norm.apply(site.x));
  CHECK(distance(rotate_reader(reader, q).apply(after), site.want) <= rounding);
  CHECK(distance(rotate_reader(reader, q.inverse()).apply(after), site.want) > visible);

  // 4: the naive merge is wrong by exactly rms(x)(QΓ − ΓQ)(WQ)ᵀ.
  const Linear<Digits100> naive_reader = rotate_reader(reader, q);
  const Matrix<Digits100> naive = naive_reader.apply(site.norm.apply(rotated));
  const Matrix<Digits100> rms = unit.apply(site.x);
  const Matrix<Digits100> commutator =
      act(q, rms) * site.gain.asDiagonal() - act(q, Matrix<Digits100>(rms * site.gain.asDiagonal()));
  CHECK(distance(naive, site.want) > visible);
  CHECK(distance(Matrix<Digits100>(naive - site.want), commutator * naive_reader.weight.transpose()) <= rounding);

  // 5: fold, then rotate. Twins: the steps exchanged; not the norm's input.
  const Folded<Digits100> merged = fold_and_rotate(site.norm, site.readers, q);
  CHECK(distance(merged.readers[0].apply(merged.norm.apply(rotated)), site.want) <= rounding);
  const Linear<Digits100> exchanged{rotate_reader(reader, q).weight * site.gain.asDiagonal(), reader.bias};
  CHECK(distance(exchanged.apply(merged.norm.apply(rotated)), site.want) > visible);
  CHECK(distance(merged.readers[0].apply(merged.norm.apply(site.x)), site.want) > visible);
}

TEST_CASE("exact identities: 6, a signed permutation transports the gain", "[fold]") {
  Site site(302);
  const SignedPermutation p = SignedPermutation::random(dim, site.random);
  const RMSNorm<Digits100> moved = rotate_norm(site.norm, p);
  const Linear<Digits100> reader = rotate_reader(site.readers[0], p);
  const Matrix<Digits100> x = act(p, site.x);
  CHECK(distance(reader.apply(moved.apply(x)), site.want) <= rounding);
  // Twins: the gain with its signs, the gain left where it was.
  CHECK(distance(reader.apply(RMSNorm<Digits100>(rotate_vector(site.gain, p), eps).apply(x)), site.want) > visible);
  CHECK(distance(reader.apply(site.norm.apply(x)), site.want) > visible);
}

TEST_CASE("exact identities: 7, centred writers turn LayerNorm into RMSNorm", "[fold]") {
  Random random(303);
  const LayerNorm<Digits100> norm(test::random_gain(dim, random).cast<Digits100>(),
                                  RowVector<Digits100>(numbers<Digits100>(1, dim, random)), eps);
  const std::vector<Linear<Digits100>> readers{layer<Digits100>(7, dim, random)};
  const Matrix<Digits100> embedding = numbers<Digits100>(tokens, dim, random).array() + Digits100(1);
  const Linear<Digits100> writer = layer<Digits100>(dim, 5, random);
  const Matrix<Digits100> hidden = numbers<Digits100>(tokens, 5, random);
  const Matrix<Digits100> want = readers[0].apply(norm.apply(Matrix<Digits100>(embedding + writer.apply(hidden))));

  const FoldedLayerNorm<Digits100> folded = fold_gain(norm, readers, MissingBias::create);
  const UnitRMSNorm<Digits100> rms = as_rms_norm(folded.norm);
  const Matrix<Digits100> centred = centre_embedding(norm, embedding);
  const Matrix<Digits100> stream = centred + centre_writer(norm, writer).apply(hidden);
  CHECK(distance(folded.readers[0].apply(rms.apply(stream)), want) <= rounding);

  // Twins: the bias of the writer forgotten, one writer left out, the mean along the other axis (A3).
  const Linear<Digits100> no_bias{centre_writer(norm, writer).weight, writer.bias};
  CHECK(distance(folded.readers[0].apply(rms.apply(Matrix<Digits100>(centred + no_bias.apply(hidden)))), want) >
        visible);
  CHECK(distance(folded.readers[0].apply(rms.apply(Matrix<Digits100>(centred + writer.apply(hidden)))), want) >
        visible);
  Linear<Digits100> other_axis = writer;
  for (Index i = 0; i < dim; ++i) other_axis.weight.row(i).array() -= writer.weight.row(i).sum() / Digits100(5);
  CHECK(distance(folded.readers[0].apply(rms.apply(Matrix<Digits100>(centred + other_axis.apply(hidden)))), want) >
        visible);
}

TEST_CASE("exact identities: 8, LayerNorm commutes with rotations that fix the ones vector, and no others", "[fold]") {
  Random random(304);
  const UnitLayerNorm<Digits100> norm(dim, eps);
  const Matrix<Digits100> x = numbers<Digits100>(tokens, dim, random).array() + Digits100(1);
  const HadamardFixingOnes q = HadamardFixingOnes::random(dim, random);
  CHECK(distance(norm.apply(act(q, x)), act(q, norm.apply(x))) <= rounding);
  CHECK(distance(norm.apply(act(q, x)), act_transposed(q, norm.apply(x))) > visible);  // no involution
  const Hadamard generic = Hadamard::random(dim, random);
  CHECK(distance(norm.apply(act(generic, x)), act(generic, norm.apply(x))) > visible);
  const SignedPermutation signs = SignedPermutation::random(dim, random);
  CHECK(distance(norm.apply(act(signs, x)), act(signs, norm.apply(x))) > visible);
}

// The bias rule: into the readers' biases, or β/g in the norm.
TEST_CASE("exact identities: 8, a LayerNorm with gain and bias, folded and rotated", "[fold]") {
  Random random(305);
  const LayerNorm<Digits100> norm(test::random_gain(dim, random).cast<Digits100>(),
                                  RowVector<Digits100>(numbers<Digits100>(1, dim, random)), eps);
  std::vector<Linear<Digits100>> readers{layer<Digits100>(7, dim, random), layer<Digits100>(4, dim, random)};
  const HadamardFixingOnes q = HadamardFixingOnes::random(dim, random);
  const Matrix<Digits100> x = numbers<Digits100>(tokens, dim, random).array() + Digits100(1);
  const bool all_biased = GENERATE(true, false);
  if (!all_biased) readers[1].bias.reset();
  for (const MissingBias rule : {MissingBias::create, MissingBias::keep}) {
    const FoldedLayerNorm<Digits100> folded = fold_gain(norm, readers, rule);
    const FoldedLayerNorm<Digits100> merged = fold_and_rotate(norm, readers, q, rule);
    CHECK(folded.norm.bias().has_value() == (rule == MissingBias::keep && !all_biased));
    for (std::size_t r = 0; r < 2; ++r) {
      const Matrix<Digits100> want = readers[r].apply(norm.apply(x));
      CHECK(distance(folded.readers[r].apply(folded.norm.apply(x)), want) <= rounding);
      CHECK(distance(merged.readers[r].apply(merged.norm.apply(act(q, x))), want) <= rounding);
      CHECK(distance(rotate_reader(folded.readers[r], q).apply(rotate_norm(folded.norm, q).apply(act(q, x))), want) <=
            rounding);
      // Twin: β left behind.
      CHECK(distance(Linear<Digits100>{folded.readers[r].weight, readers[r].bias}.apply(norm.without_gain().apply(x)),
                     want) > visible);
    }
  }
}

TEST_CASE("exact identities: 9 and value bias, attention with grouped queries", "[fold]") {
  Random random(306);
  constexpr Index head_dim = 4, heads = 4, kv_heads = 2, hidden = 6;  // head_dim is not hidden / heads
  const Linear<Digits100> query = layer<Digits100>(heads * head_dim, hidden, random);
  const Linear<Digits100> key = layer<Digits100>(kv_heads * head_dim, hidden, random);
  const ValueOutput<Digits100> pair{layer<Digits100>(kv_heads * head_dim, hidden, random),
                                    layer<Digits100>(hidden, heads * head_dim, random)};
  const Matrix<Digits100> x = numbers<Digits100>(5, hidden, random);
  const CausalAttention attention{heads, kv_heads};
  const auto output = [&](const ValueOutput<Digits100>& p) {
    return p.output.apply(attention(std::vector<Matrix<Digits100>>{query.apply(x), key.apply(x), p.value.apply(x)}));
  };
  const Matrix<Digits100> want = output(pair);

  std::vector<Orthogonal<Digits100>> blocks;
  for (Index h = 0; h < kv_heads; ++h) blocks.push_back(product_of_reflections<Digits100>(head_dim, random));
  const BlockDiagonal<Orthogonal<Digits100>> r(blocks);
  const ValueOutput<Digits100> rotated = rotate_heads(pair, r);
  CHECK(distance(output(rotated), want) <= rounding);
  CHECK(distance(rotated.value.weight, pair.value.weight) > visible);  // something happened
  // Twins: kv head h % n_kv (C5), the value bias forgotten (C1), the output projection forgotten.
  const BlockDiagonal<Orthogonal<Digits100>> tiled(
      std::vector<Orthogonal<Digits100>>{blocks[0], blocks[1], blocks[0], blocks[1]});
  CHECK(distance(output({rotated.value, rotate_reader(pair.output, tiled)}), want) > visible);
  CHECK(distance(output({{rotated.value.weight, pair.value.bias}, rotated.output}), want) > visible);
  CHECK(distance(output({rotated.value, pair.output}), want) > visible);

  const ValueOutput<Digits100> moved = fold_value_bias(pair, head_dim, AttentionRows::sum_to_one);
  CHECK_FALSE(moved.value.bias.has_value());
  CHECK(distance(output(moved), want) <= rounding);
  CHECK(distance(output({moved.value, pair.output}), want) > visible);
  CHECK_THROWS_AS(fold_value_bias(pair, head_dim, AttentionRows::sum_below_one), RefusedError);  // C12
}

TEST_CASE("exact identities: 10, the norm deferred behind the product", "[fold]") {
  Site site(307);
  const Folded<Digits100> folded = fold_gain(site.norm, site.readers);
  CHECK(distance(apply_deferred(folded.norm, folded.readers[0], site.x), site.want) <= rounding);
  // Twin: the bias before the scale.
  const Linear<Digits100> without_bias{folded.readers[0].weight, std::nullopt};
  Matrix<Digits100> early = folded.readers[0].apply(site.x);
  for (Index t = 0; t < tokens; ++t) early.row(t) *= detail::inverse_rms(site.x.row(t), eps).rest;
  CHECK(distance(early, site.want) > visible);
}

TEST_CASE("exact identities: 11, a norm before a norm cancels for eps = 0 only", "[fold]") {
  Random random(308);
  const Linear<Digits100> reader{numbers<Digits100>(7, dim, random), std::nullopt};
  const Matrix<Digits100> x = Digits100(3) * numbers<Digits100>(tokens, dim, random);
  const UnitRMSNorm<Digits100> first(dim, eps);
  const Matrix<Digits100> y = reader.apply(x);
  const UnitRMSNorm<Digits100> without_eps(7, 0);
  CHECK(distance(without_eps.apply(reader.apply(first.apply(x))), without_eps.apply(y)) <= rounding);

  const double eps2 = 1e-1;
  const UnitRMSNorm<Digits100> second(7, eps2);
  const Matrix<Digits100> with = second.apply(reader.apply(first.apply(x)));
  CHECK(distance(second.apply(y), with) > 1e-3);
  // It is wrong by exactly the factor that the documentation states.
  Matrix<Digits100> predicted = with;
  for (Index t = 0; t < tokens; ++t) {
    const Digits100 m = x.row(t).squaredNorm() / Digits100(double{dim});
    const Digits100 square = y.row(t).squaredNorm() / Digits100(7.0);
    predicted.row(t) *=
        Digits100(sqrt(Digits100((square + Digits100(eps2) * (m + Digits100(eps))) / (square + Digits100(eps2)))));
  }
  CHECK(distance(second.apply(y), predicted) <= rounding);
  // Twin: a bias between the two does not cancel, even without eps.
  const Linear<Digits100> biased = layer<Digits100>(7, dim, random);
  CHECK(distance(without_eps.apply(biased.apply(first.apply(x))), without_eps.apply(biased.apply(x))) > visible);
}

TEST_CASE("exact identities: 12, a basis of its own for every block", "[fold]") {
  Site site(309);
  using Mlp = Block<Digits100, RMSNorm<Digits100>, SwiGLU>;
  const auto mlp = [&] {
    return Mlp{RMSNorm<Digits100>(test::random_gain(dim, site.random).cast<Digits100>(), eps),
               {layer<Digits100>(5, dim, site.random), layer<Digits100>(5, dim, site.random)},
               {},
               layer<Digits100>(dim, 5, site.random)};
  };
  const Mlp a = mlp(), b = mlp();
  const Matrix<Digits100> want = b.apply(a.apply(site.x));
  const Orthogonal<Digits100> q0 = product_of_reflections<Digits100>(dim, site.random);
  const Hadamard q1 = Hadamard::random(dim, site.random);
  const Orthogonal<Digits100> q2 = product_of_reflections<Digits100>(dim, site.random);
  const auto first = adapt_block(a, q0, q1);
  const auto second = adapt_block(b, q1, q2);
  const Matrix<Digits100> x = act(q0, site.x);
  CHECK(distance(act_transposed(q2, second.apply(first.apply(x))), want) <= rounding);
  // Twins: the adapter forgotten; the adapter turned around.
  CHECK(distance(act_transposed(q2, second.apply(Matrix<Digits100>(x + first.block.branch(x)))), want) > visible);
  auto turned = first;
  turned.in = q0.inverse();
  CHECK(distance(act_transposed(q2, second.apply(turned.apply(x))), want) > visible);

  // In one basis no adapter is needed, and the fold is enough.
  CHECK(distance(fold_and_rotate(b, q1).apply(act(q1, site.x)), act(q1, b.apply(site.x))) <= rounding);
  CHECK(distance(rotate_block(fold_gain(b), q1).apply(act(q1, site.x)), act(q1, b.apply(site.x))) <= rounding);
  CHECK(distance(rotate_block(fold_gain(b), q1.inverse()).apply(act(q1, site.x)), act(q1, b.apply(site.x))) > visible);
}

TEST_CASE("exact identities: the latent of MLA is a space of its own", "[fold]") {
  Random random(310);
  constexpr Index rank = 6, bypass = 2;
  const Latent<Digits100, RMSNorm<Digits100>> latent{
      layer<Digits100>(rank + bypass, dim, random),
      RMSNorm<Digits100>(test::random_gain(rank, random).cast<Digits100>(), eps), layer<Digits100>(9, rank, random)};
  const Matrix<Digits100> x = numbers<Digits100>(tokens, dim, random);
  const Orthogonal<Digits100> r = product_of_reflections<Digits100>(rank, random);
  const auto folded = fold_gain(latent);
  const auto rotated = rotate_latent(folded, r);
  CHECK(distance(folded.apply(x), latent.apply(x)) <= rounding);
  CHECK(distance(rotated.apply(x), latent.apply(x)) <= rounding);
  CHECK(rotated.bypass(x) == latent.bypass(x));  // the rotary key is untouched
  CHECK(distance(rotated.down.weight.topRows(rank), latent.down.weight.topRows(rank)) > visible);
  // Twins: the bias of the latent forgotten; rotated before the fold.
  auto forgotten = rotated;
  forgotten.down.bias = latent.down.bias;
  CHECK(distance(forgotten.apply(x), latent.apply(x)) > visible);
  const Latent<Digits100, RMSNorm<Digits100>> naive{rotated.down, latent.norm, rotate_reader(latent.up, r)};
  CHECK(distance(naive.apply(x), latent.apply(x)) > visible);
  const SignedPermutation p = SignedPermutation::random(rank, random);
  CHECK(distance(rotate_latent(latent, p).apply(x), latent.apply(x)) <= rounding);
}

TEST_CASE("exact identities: the gain of a gated norm folds, whichever comes first", "[fold]") {
  Random random(312);
  const Matrix<Digits100> x = numbers<Digits100>(tokens, dim, random);
  const Matrix<Digits100> gate = numbers<Digits100>(tokens, dim, random);
  const Linear<Digits100> reader = layer<Digits100>(5, dim, random);
  for (const Index width : {dim, dim / 3}) {  // a gain of its own for every channel, or one that the three groups share
    const RowVector<Digits100> weight = test::random_gain(width, random).cast<Digits100>();
    for (const GateOrder order : {GateOrder::gate_first, GateOrder::norm_first}) {
      const GatedRMSNorm<Digits100> norm(dim, weight, eps, 3, order);
      const FoldedGated<Digits100> folded = fold_gain(norm, reader);
      const Matrix<Digits100> want = reader.apply(norm.apply(x, gate));
      CHECK(distance(folded.reader.apply(folded.norm.apply(x, gate)), want) <= rounding);
      CHECK(distance(folded.reader.apply(norm.apply(x, gate)), want) > visible);
      CHECK(distance(reader.apply(folded.norm.apply(x, gate)), want) > visible);
    }
  }
}

// No root is taken here: equality is equality.
TEST_CASE("exact identities: in rationals, what a writer wrote a reader reads", "[fold]") {
  Random random(311);
  constexpr Index n = 5;
  const Orthogonal<Rational> q = product_of_reflections<Rational>(n, random);
  CHECK(q.matrix() * q.matrix().transpose() == Matrix<Rational>::Identity(n, n));
  CHECK(q.orthogonality_defect() == 0);
  const auto integers = [&](Index rows, Index cols) {
    Matrix<Rational> m(rows, cols);
    for (Rational& value : m.reshaped()) value = Rational(static_cast<double>(random.below(19)) - 9);
    return m;
  };
  const Linear<Rational> writer{integers(n, 3), RowVector<Rational>(integers(1, n))};
  const Linear<Rational> reader{integers(4, n), RowVector<Rational>(integers(1, 4))};
  const Matrix<Rational> h = integers(2, 3);
  const Matrix<Rational> want = reader.apply(writer.apply(h));
  CHECK(rotate_reader(reader, q).apply(rotate_writer(writer, q).apply(h)) == want);
  CHECK(rotate_reader(reader, q.inverse()).apply(rotate_writer(writer, q).apply(h)) != want);
  CHECK(rotate_reader(reader, q).apply(Linear<Rational>{rotate_writer(writer, q).weight, writer.bias}.apply(h)) !=
        want);

  const Matrix<Rational> table = integers(3, n);
  CHECK(act_transposed(q, rotate_embedding(table, q)) == table);

  // Identity 7's other half: C is a projection, and every centred row sums to zero.
  const UnitLayerNorm<Rational> norm(n, 0);
  const Matrix<Rational> centred = centre_writer(norm, writer).apply(h);
  for (Index t = 0; t < 2; ++t) CHECK(centred.row(t).sum() == Rational(0));
  CHECK(centre_embedding(norm, centred) == centred);
  CHECK(centre_embedding(norm, writer.apply(h)) == centred);
}

}  // namespace rmsfold
