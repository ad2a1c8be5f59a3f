// SPDX-License-Identifier: MIT
// Which changes of basis leave a norm with its gain what it is, and what goes wrong when the signs of one are ignored: a model, the same model in other
// coordinates, and what was made for the first (an autoencoder, a steering vector, an AdamW state) used on the second.
//
//   signed_permutation_gauge [MODEL_DIR [TOKEN_FILE]]
#include <algorithm>
#include <cmath>
#include <exception>
#include <map>
#include <numeric>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include <fmt/format.h>

#include <rmsfold/core/tolerance.hpp>
#include <rmsfold/fold/autoencoder.hpp>
#include <rmsfold/fold/optimizer.hpp>
#include <rmsfold/fold/transport.hpp>
#include <rmsfold/group/fixes_ones.hpp>
#include <rmsfold/norm/layer_norm.hpp>

#include "model_access.hpp"

using namespace rmsfold;
using Weights = Matrix<double>;

/// A norm and what reads it, on real activations.
struct Layer {
  RMSNorm<float> norm;
  Linear<float> reader;  ///< all readers, one below the other

  Matrix<double> outputs(const Matrix<double>& x) const { return reader.apply(norm.apply(x)); }
};

double relative(const Matrix<double>& a, const Matrix<double>& b) { return (a - b).norm() / b.norm(); }
double cosine(const Matrix<double>& a, const Matrix<double>& b) { return a.cwiseProduct(b).sum() / (a.norm() * b.norm()); }

/// What a merged change of basis costs: N_g'(xQ)(WQ)ᵀ against N_g(x)Wᵀ. No gain is nearer to what is needed, QᵀΓQ, than its diagonal g'.
struct Merge {
  double error = 0;      ///< relative to the outputs
  double predicted = 0;  ///< by identity 4: N_1(x)(QΓ' - ΓQ)(WQ)ᵀ
  double rounding = 0;   ///< what rounding may add
};
template <class Norm, Isometry G>
Merge merge(const Matrix<double>& unit, const RowVector<double>& gain, double eps, const Weights& w, const G& q, const Matrix<double>& x) {
  const auto norm_with = [&](const RowVector<double>& g) {
    if constexpr (std::is_same_v<Norm, RMSNorm<double>>) return Norm(g, eps);
    if constexpr (std::is_same_v<Norm, LayerNorm<double>>) return Norm(g, std::nullopt, eps);
  };
  const Matrix<double> matrix = matrix_of<double>(q);
  const RowVector<double> moved_gain = gain * matrix.cwiseAbs2();
  const Weights moved = act(q, w);
  const Matrix<double> expected = norm_with(gain).apply(x) * w.transpose();
  const Matrix<double> got = norm_with(moved_gain).apply(act(q, x)) * moved.transpose();
  const Matrix<double> commutator = matrix * moved_gain.asDiagonal() - Matrix<double>(gain.asDiagonal() * matrix);
  // Products with Q of x and of W, the new gain, and the product with the readers: each within √n γ of the lengths that enter it.
  const double n = static_cast<double>(q.dim());
  const double lengths = gain.cwiseAbs().maxCoeff() * unit.norm() * w.norm() / expected.norm();
  return {relative(got, expected), Matrix<double>(unit * commutator * moved.transpose()).norm() / expected.norm(),
          4 * (std::sqrt(n) * gamma_n(n + 8, unit_roundoff<double>()) + q.orthogonality_defect()) * lengths};
}

/// A rotation of two channels by a small angle.
Orthogonal<double> givens(Index n, Index i, Index j, double angle) {
  Matrix<double> q = Matrix<double>::Identity(n, n);
  q(i, i) = q(j, j) = std::cos(angle);
  q(i, j) = std::sin(angle);
  q(j, i) = -q(i, j);
  return Orthogonal<double>(std::move(q));
}

constexpr double beta1 = 0.9, beta2 = 0.999, decay = 0.01;

/// One step of AdamW (Loshchilov and Hutter 2019), in place.
template <class P>
void adamw(P& w, AdamState<P>& state, const P& gradient, double rate) {
  using T = typename P::Scalar;
  const double t = static_cast<double>(++state.step);
  state.exp_avg = T(beta1) * state.exp_avg + T(1 - beta1) * gradient;
  state.exp_avg_sq = T(beta2) * state.exp_avg_sq + T(1 - beta2) * gradient.cwiseAbs2();
  const T mean = T(1 / (1 - std::pow(beta1, t))), square = T(1 / (1 - std::pow(beta2, t)));
  const P step = (mean * state.exp_avg.array() / ((square * state.exp_avg_sq.array()).sqrt() + T(1e-8))).matrix();
  w = T(1 - rate * decay) * w - T(rate) * step;
}
template <class P>
AdamState<P> fresh(const P& w) {
  return {P::Zero(w.rows(), w.cols()), P::Zero(w.rows(), w.cols()), 0};
}

/// A small autoencoder with ReLU features, trained by AdamW; its centre is the mean of x. There are too few tokens here to train a sparse one.
Autoencoder<float> trained_autoencoder(const Matrix<float>& x, Index features, int steps, Random& random) {
  const RowVector<float> mean = x.colwise().mean();
  const Matrix<float> centred = x.rowwise() - mean;
  Matrix<float> decoder = normal_matrix(features, x.cols(), random).cast<float>();
  decoder.rowwise().normalize();
  Matrix<float> encoder = decoder;
  RowVector<float> bias = RowVector<float>::Zero(features);
  auto encoder_state = fresh(encoder), decoder_state = fresh(decoder);
  auto bias_state = fresh(bias);
  const Index batch = (std::min)(x.rows(), Index{128});
  Matrix<float> rows(batch, x.cols());
  for (int step = 0; step < steps; ++step) {
    for (Index t = 0; t < batch; ++t) rows.row(t) = centred.row(static_cast<Index>(random.below(static_cast<std::uint64_t>(x.rows()))));
    Matrix<float> z = rows * encoder.transpose();
    z = (z.rowwise() + bias).cwiseMax(0.0F).eval();
    const Matrix<float> error = (z * decoder - rows) / static_cast<float>(batch);
    Matrix<float> back = error * decoder.transpose();
    back = (z.array() > 0).select(back, 0.0F).eval();
    const double rate = 1e-3 * (1 - static_cast<double>(step) / steps);
    adamw(decoder, decoder_state, Matrix<float>(z.transpose() * error), rate);
    adamw(encoder, encoder_state, Matrix<float>(back.transpose() * rows), rate);
    adamw(bias, bias_state, RowVector<float>(back.colwise().sum()), rate);
  }
  return {{encoder, bias}, decoder, mean};
}

/// The entries of largest magnitude, the largest first, as channels with signs.
std::vector<SignedIndex> strongest(const RowVector<double>& v, Index count) {
  std::vector<Index> order(static_cast<std::size_t>(v.size()));
  std::iota(order.begin(), order.end(), Index{0});
  std::partial_sort(order.begin(), order.begin() + count, order.end(), [&](Index a, Index b) { return std::fabs(v[a]) > std::fabs(v[b]); });
  std::vector<SignedIndex> result;
  for (Index k = 0; k < count; ++k) result.push_back({order[static_cast<std::size_t>(k)], v[order[static_cast<std::size_t>(k)]] < 0 ? -1 : 1});
  return result;
}

/// Smallest, mean and largest of a list.
struct Range {
  double least = 0, mean = 0, largest = 0;
};
Range range_of(const std::vector<double>& values) {
  const auto [least, largest] = std::minmax_element(values.begin(), values.end());
  return {*least, std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size()), *largest};
}

int main(int argc, char** argv) try {
  const answers::Input input = answers::open(argc, argv, 128);
  const answers::Model& model = input.model;
  const Index n = model.width();
  const std::vector<answers::Site> sites = model.sites();
  const answers::Site& site = sites[static_cast<std::size_t>(model.layers() / 2 * 2)];  // a layer in the middle, before its attention
  bool as_claimed = true;
  const auto claim = [&](bool holds, const char* what) {
    if (!holds) fmt::print("NOT AS CLAIMED: {}\n", what);
    as_claimed = as_claimed && holds;
  };
  Random random(8);
  const SignedPermutation p = SignedPermutation::random(n, random);

  // Model B: A in the coordinates x' = xP, whole. Readers and tables: columns; writers: rows; gains: by |P|. Nothing is multiplied.
  std::map<std::string, Matrix<double>> writers;
  for (Index layer = 0; layer < model.layers(); ++layer) {
    for (const char* part : {"self_attn.o_proj", "mlp.down_proj"}) {
      const std::string name = fmt::format("model.layers.{}.{}", layer, part);
      writers.emplace(name + ".weight", rotate_writer(model.linear(name), p).weight.cast<double>());
    }
  }
  std::map<std::string, bool> columns{{model.embedding() + ".weight", true}};  // false: a gain
  for (const answers::Site& s : sites) {
    columns.emplace(s.norm + ".weight", false);
    for (const std::string& reader : s.readers) columns.emplace(reader + ".weight", true);
  }
  answers::Hooks a, b;
  Matrix<double> x, x_in_b;
  a.on_norm_input = [&](const std::string& norm, const Matrix<double>& seen) {
    if (norm == site.norm) x = seen.bottomRows(seen.rows() - 1);  // without the first token, on which attention rests: it is many times longer
  };
  b.on_norm_input = [&](const std::string& norm, const Matrix<double>& seen) {
    if (norm == site.norm) x_in_b = seen.bottomRows(seen.rows() - 1);
  };
  b.edit = [&](const std::string& tensor, Index first, Matrix<double>& rows) {
    if (const auto writer = writers.find(tensor); writer != writers.end()) rows = writer->second.middleRows(first, rows.rows());
    if (const auto column = columns.find(tensor); column != columns.end()) rows = act(column->second ? p : p.unsigned_part(), rows);
  };
  const Matrix<double> logits = model.logits(input.tokens, a);
  const Matrix<double> logits_of_b = model.logits(input.tokens, b);
  const double drift = relative(x_in_b, act(p, x));
  fmt::print("B is A in the coordinates of a random signed permutation P, {} of {} channels negated\n", std::count(p.sign().begin(), p.sign().end(), -1), n);
  fmt::print("  logits of {} tokens moved by {:.1e} of their root mean square (largest {:.1e}); perplexity {:.12g} and {:.12g}\n", input.tokens.size(),
             answers::moved(logits, logits_of_b).rms, answers::moved(logits, logits_of_b).largest, answers::perplexity(logits, input.tokens),
             answers::perplexity(logits_of_b, input.tokens));
  fmt::print("  its activations are x·P to {:.1e}, as they are x to {:.2f}\n\n", drift, relative(x_in_b, x));
  // Roundings of F32 move logits by about 1e-6 (docs/results.md); those of double, in sums of another order, 2^29 times less. Three digits of room.
  claim((std::max)(answers::moved(logits, logits_of_b).rms, drift) < 1e3 * 0x1p-29 * 1e-6, "B is the same model");

  Layer layer{model.norm(site.norm), {Matrix<float>(0, n), std::nullopt}};
  for (const std::string& reader : site.readers) {
    const Matrix<float> weight = model.linear(reader).weight;
    Matrix<float> stacked(layer.reader.out() + weight.rows(), n);
    stacked << layer.reader.weight, weight;
    layer.reader.weight = stacked;
  }
  const Layer layer_of_b{rotate_norm(layer.norm, p), rotate_reader(layer.reader, p)};

  // 1. The gauge. A LayerNorm of the same gain is not in this model; it is here to be compared.
  const RowVector<double> gain = layer.norm.gain(), ones = RowVector<double>::Ones(n);
  const Weights w = layer.reader.weight.cast<double>(), folded = w * gain.asDiagonal();
  const Matrix<double> some = x.topRows((std::min)(x.rows(), Index{192}));
  const Matrix<double> rms = layer.norm.without_gain().apply(some), centred = UnitLayerNorm<double>(n, layer.norm.eps()).apply(some);
  std::vector<Index> by_gain(static_cast<std::size_t>(n));
  std::iota(by_gain.begin(), by_gain.end(), Index{0});
  std::sort(by_gain.begin(), by_gain.end(), [&](Index i, Index j) { return gain[i] < gain[j]; });
  std::optional<std::size_t> equal, close;  // neighbours in the middle of the list: the same gain, and the next one
  for (std::size_t k = 0; k + 1 < by_gain.size(); ++k) {
    std::optional<std::size_t>& found = gain[by_gain[k]] == gain[by_gain[k + 1]] ? equal : close;
    if (!found || 2 * k <= by_gain.size()) found = k;
  }
  std::vector<RowVector<double>> gains;
  for (const answers::Site& s : sites) gains.push_back(model.norm(s.norm).gain());
  Index equal_here = 0, equal_everywhere = 0;  // pairs of channels
  for (Index i = 0; i < n; ++i) {
    for (Index j = 0; j < i; ++j) {
      equal_here += gain[i] == gain[j] ? 1 : 0;
      equal_everywhere += std::all_of(gains.begin(), gains.end(), [&](const RowVector<double>& g) { return g[i] == g[j]; }) ? 1 : 0;
    }
  }
  fmt::print("1. {}: gains {:.3f} … {:.3f}, readers {} x {}\n", site.norm, gain.minCoeff(), gain.maxCoeff(), w.rows(), w.cols());
  fmt::print("   of {} pairs of channels {} have equal gains here, {} at all {} norms\n", n * (n - 1) / 2, equal_here, equal_everywhere, sites.size());
  fmt::print("{:<44}{:<38}{:>10}{:>11}\n", "   N_g'(xQ)(WQ)ᵀ against N_g(x)Wᵀ", "the norm's group", "error", "predicted");
  const auto row = [&](const char* what, Gauge group, const Merge& m, bool exact, bool rms_norm) {
    fmt::print("{:<44}{:<38}{:>10.1e}", what, name_of(group), m.error);
    fmt::print("{}\n", rms_norm ? fmt::format("{:>11.1e}", m.predicted) : "");
    claim(exact == (m.error <= m.rounding), "the norm admits its group, and nothing else");
    claim(!rms_norm || std::fabs(m.error - m.predicted) <= m.rounding, "identity 4");
  };
  const double eps = layer.norm.eps();
  const auto rms_norm = [&](const char* what, const auto& q, bool exact) {
    row(what, Gauge::signed_permutation, merge<RMSNorm<double>>(rms, gain, eps, w, q, some), exact, true);
  };
  const auto rotated = [&](const char* what, Index i, Index j) {
    rms_norm(fmt::format("{} {:.4f}", what, std::fabs(gain[i] - gain[j])).c_str(), givens(n, i, j, 0.01), gain[i] == gain[j]);
  };
  const auto layer_norm = [&](const char* what, const auto& q) {
    constexpr Gauge group = Gauge::permutation_up_to_sign;
    row(what, group, merge<LayerNorm<double>>(centred, gain, eps, w, q, some), contains(group, std::remove_cvref_t<decltype(q)>::gauge), false);
  };
  const auto layer_norm_folded = [&](const char* what, const auto& q) {
    constexpr Gauge group = Gauge::fixes_ones;
    row(what, group, merge<LayerNorm<double>>(centred, ones, eps, folded, q, some), contains(group, std::remove_cvref_t<decltype(q)>::gauge), false);
  };
  const Orthogonal<double> haar = haar_orthogonal<double>(n, random);
  const FixesOnes<Orthogonal<double>> fixing = haar_fixing_ones<double>(n, random);
  const FixesOnes<SignedPermutation> negated(SignedPermutation(p.moves(), SignFlip(std::vector<int>(static_cast<std::size_t>(n), -1))));
  rms_norm("RMSNorm: P", p, true);
  if (equal) rotated("  0.01 rad, two channels, |Δg| =", by_gain[*equal], by_gain[*equal + 1]);
  if (close) rotated("  0.01 rad, two channels, |Δg| =", by_gain[*close], by_gain[*close + 1]);
  rotated("  0.01 rad, two channels, |Δg| =", by_gain.front(), by_gain.back());
  rms_norm("  any rotation", haar, false);
  row("  any rotation, gain folded", Gauge::orthogonal, merge<RMSNorm<double>>(rms, ones, eps, folded, haar, some), true, true);
  layer_norm("LayerNorm: -|P|", negated);
  layer_norm("  P", p);
  layer_norm("  a rotation that fixes the ones", fixing);
  layer_norm_folded("  a rotation that fixes the ones, g folded", fixing);
  layer_norm_folded("  any rotation, g folded", haar);

  // Other signed permutations, for how much what follows depends on the draw.
  std::vector<SignedPermutation> draws;
  for (int k = 0; k < 20; ++k) draws.push_back(SignedPermutation::random(n, random));

  // 2. An autoencoder of x, trained on three quarters of the text.
  const Index train = x.rows() * 3 / 4, rest = x.rows() - train;
  const double unit = x.topRows(train).norm() / std::sqrt(static_cast<double>(train * n));  // one number for all channels: no basis sees it
  const Matrix<double> held = x.bottomRows(rest) / unit, held_in_b = x_in_b.bottomRows(rest) / unit;
  const Autoencoder<float> sae = trained_autoencoder((x.topRows(train) / unit).cast<float>(), n, 300, random);
  const double variance = (held.rowwise() - sae.decoder_bias->cast<double>()).squaredNorm();
  const auto error_on = [&](const Autoencoder<float>& ae, const Matrix<double>& rows) { return (ae.apply(rows) - rows).squaredNorm() / variance; };
  const Matrix<double> z = sae.encode(held);
  fmt::print("\n2. autoencoder with {} ReLU features, trained on {} tokens of A; on {} others, squared error over that of the mean\n", n, train, rest);
  const double on_a = error_on(sae, held);
  fmt::print("  {:<36}{:>10.5f}\n", "on A", on_a);
  const auto on_b = [&](const char* what, const Autoencoder<float>& ae) {
    const double error = error_on(ae, held_in_b);
    fmt::print("  {:<36}{:>10.5f}   features differ by {:.1e}\n", what, error, relative(ae.encode(held_in_b), z));
    return error;
  };
  const double moved = on_b("on B, moved by P", rotate_autoencoder(sae, p));
  const double unsigned_only = on_b("on B, moved by |P|", rotate_autoencoder(sae, p.unsigned_part()));
  const double not_moved = on_b("on B, not moved", sae);
  std::vector<double> of_draws;
  for (const SignedPermutation& q : draws) of_draws.push_back(error_on(rotate_autoencoder(sae, q.unsigned_part()), act(q, held)));
  const Range errors = range_of(of_draws);
  fmt::print("  20 other B, moved by |P|: {:.2f} in the mean, {:.2f} … {:.2f}\n", errors.mean, errors.least, errors.largest);
  // Encoder and decoder pass on what the two forwards differ by, and add sums of n terms; a thousand is room for how much they stretch either.
  const double noise = drift + gamma_n(static_cast<double>(n), unit_roundoff<double>());
  claim(std::fabs(moved - on_a) < 1e3 * noise, "moved by P it is the same autoencoder");
  claim((std::min)({unsigned_only, not_moved, errors.least}) > 1.2 * on_a, "without signs it is not");

  // 3. A direction of A, added to the stream: the difference of means of the two halves of the text, as long as tokens are from their mean.
  const RowVector<double> mean = x.colwise().mean();
  RowVector<double> v = x.topRows(x.rows() / 2).colwise().mean() - x.bottomRows(x.rows() / 2).colwise().mean();
  v *= (x.rowwise() - mean).norm() / std::sqrt(static_cast<double>(x.rows())) / v.norm();
  const auto effect = [](const Layer& l, const Matrix<double>& rows, const RowVector<double>& direction) {
    return Matrix<double>(l.outputs(rows.rowwise() + direction) - l.outputs(rows));
  };
  const Matrix<double> some_in_b = x_in_b.topRows(some.rows());
  const Matrix<double> in_a = effect(layer, some, v);
  fmt::print("\n3. steering: v added to the stream, effect on the readers' outputs, which it moves by {:.2f} of their size in A\n",
             in_a.norm() / layer.outputs(some).norm());
  const auto steered = [&](const char* what, const RowVector<double>& direction) {
    const Matrix<double> in_b = effect(layer_of_b, some_in_b, direction);
    fmt::print("  {:<36}differs by {:.1e}, cosine {:.3f}\n", what, relative(in_b, in_a), cosine(in_b, in_a));
    return in_b;
  };
  const Matrix<double> right = steered("in B, v·P", rotate_vector(v, p));
  const Matrix<double> wrong = steered("in B, v·|P|", rotate_vector(v, p.unsigned_part()));
  static_cast<void>(steered("in B, v not moved", v));
  of_draws.clear();
  for (const SignedPermutation& q : draws) {
    const Layer other{rotate_norm(layer.norm, q), rotate_reader(layer.reader, q)};
    of_draws.push_back(cosine(effect(other, act(q, some), rotate_vector(v, q.unsigned_part())), in_a));
  }
  const Range cosines = range_of(of_draws);
  fmt::print("  20 other B, v·|P|: cosine {:.3f} in the mean, {:.3f} … {:.3f}\n", cosines.mean, cosines.least, cosines.largest);
  const std::vector<SignedIndex> list = strongest(v, 16), list_in_b = transport_indices<SignedPermutation>(list, p);
  const std::vector<SignedIndex> list_unsigned = transport_indices<SignedPermutation>(list, p.unsigned_part());
  int wrong_signs = 0;
  for (std::size_t k = 0; k < list.size(); ++k) wrong_signs += list_in_b[k] == list_unsigned[k] ? 0 : 1;
  fmt::print("  the 16 strongest channels of v: moved by P they are those of v·P; by |P|, {} have the wrong sign\n", wrong_signs);
  claim(list_in_b == strongest(rotate_vector(v, p), 16), "a list moves with its signs");
  claim(relative(right, in_a) < 1e3 * noise, "v·P steers B as v steers A");
  claim(cosine(wrong, in_a) < 0.9 && cosines.largest < 0.95, "v·|P| does not");

  // 4. The readers learn to be 10 % away from themselves; 20 steps in A, then the 21st in either model.
  const double rms_w = w.norm() / std::sqrt(static_cast<double>(w.size())), rate = 2e-3 * rms_w;
  const Matrix<double> read = layer.norm.apply(some), read_in_b = layer_of_b.norm.apply(some_in_b);
  const Matrix<double> target = read * (w + 0.1 * rms_w * normal_matrix(w.rows(), n, random)).transpose();
  const double tokens = static_cast<double>(some.rows());
  const auto loss = [&](const Matrix<double>& rows, const Weights& weights) { return 0.5 * (rows * weights.transpose() - target).squaredNorm() / tokens; };
  const auto gradient = [&](const Matrix<double>& rows, const Weights& weights) {
    return Weights((rows * weights.transpose() - target).transpose() * rows / tokens);
  };
  Weights trained = w;
  AdamState<Weights> state = fresh(w);
  for (int k = 0; k < 20; ++k) adamw(trained, state, gradient(read, trained), rate);
  Weights after = trained;
  AdamState<Weights> after_state = state;
  adamw(after, after_state, gradient(read, trained), rate);
  const Weights step = after - trained;
  const double before = loss(read, trained);
  fmt::print("\n4. AdamW: step 21 of the readers, loss {:.3g} of the first; in A it changes by {:+.2f} %\n", before / loss(read, w),
             100 * (loss(read, after) / before - 1));
  const Weights start_in_b = act(p, trained);
  const auto stepped = [&](const char* what, AdamState<Weights> moved_state) {
    Weights in_b = start_in_b;
    adamw(in_b, moved_state, gradient(read_in_b, in_b), rate);
    const Index lost = in_b.array().isNaN().count();
    const double off = relative(in_b - start_in_b, act(p, step));
    if (lost > 0) {
      fmt::print("  {:<36}{} of {} weights are NaN\n", what, lost, in_b.size());
    } else {
      fmt::print("  {:<36}step differs by {:.1e}, loss {:+.2f} %\n", what, off, 100 * (loss(read_in_b, in_b) / before - 1));
    }
    return off;
  };
  const double with_signs = stepped("in B, m by P, v by |P|", transport_reader(state, p));
  const double without = stepped("in B, m and v by |P|", transport_reader(state, p.unsigned_part()));
  static_cast<void>(stepped("in B, m and v not moved", state));
  static_cast<void>(stepped("in B, m and v by P", {act(p, state.exp_avg), act(p, state.exp_avg_sq), state.step}));
  // The quotient m/√v passes on what the gradients differ by, relative to each entry; entries much smaller than their terms lose digits.
  claim(with_signs < 1e6 * noise, "moved with its signs, the state gives the same step");
  claim(without > 0.1, "moved without, it gives another");
  return as_claimed ? 0 : 1;
} catch (const std::exception& error) {
  fmt::print(stderr, "signed_permutation_gauge: {}\n", error.what());
  return 2;
}
