// SPDX-License-Identifier: MIT
// One optimizer step in two bases: step(T(W), T(G), T(state)) = T(step(W, G, state)) for the groups that step_gauge
// names, and visibly not for something outside of them. The steps are the papers' own, in double.
#include <rmsfold/fold/optimizer.hpp>

#include <rmsfold/core/tolerance.hpp>
#include <rmsfold/group/hadamard.hpp>
#include <rmsfold/norm/rms_norm.hpp>

#include <array>
#include <cmath>

#include "support/catch.hpp"
#include "support/compare.hpp"
#include "support/random_layer.hpp"

namespace rmsfold {

using test::compare;
using test::Comparison;

namespace {

constexpr Index in = 12;
constexpr Index out =
    20;  // taller than wide: rows of an orthogonalised wide matrix have one length, and NorMuon nothing to do
constexpr double u = 0x1p-53;
constexpr double rate = 0.02;
constexpr double decay = 0.1;
constexpr double beta1 = 0.9;
constexpr double beta2 = 0.95;
constexpr double eps = 1e-8;

/// The last few roundings of a step, entry by entry: fewer than 16 whichever the optimizer.
constexpr double tail = 16;

/// A weight, or any other parameter, with what its optimizer keeps.
struct Training {
  Matrix<double> w;
  Matrix<double> momentum;  ///< like w
  Matrix<double> squares;   ///< AdamW: like w; NorMuon: `out x 1`, one for each row
  std::int64_t steps = 0;
  double rounding = 0;  ///< bound on the Frobenius norm of the error of w that the last step made
};

Training fresh(const Matrix<double>& w, Optimizer optimizer) {
  const Matrix<double> zero = Matrix<double>::Zero(w.rows(), w.cols());
  return {w, zero, optimizer == Optimizer::normuon ? Matrix<double>::Zero(w.rows(), 1) : zero};
}

/// Muon's quintic Newton-Schulz iteration: an odd polynomial p of a matrix of any shape, which maps its singular values
/// and keeps its singular vectors, so that it is exactly as equivariant as the polar factor that it is near to.
struct NewtonSchulz {
  Matrix<double> x;
  double error = 0;  ///< Frobenius norm of what was rounded

  /// @param error_of_m  relative error of m that is not of this function's making.
  NewtonSchulz(const Matrix<double>& m, double error_of_m) : x(m / m.norm()) {
    constexpr double a = 3.4445, b = -4.7750, c = 2.0315;
    const double n = static_cast<double>(m.size());
    error = 2 * (error_of_m + gamma_n(n + 3, u));  // m and its norm
    for (int step = 0; step < 5; ++step) {
      // Singular values start in [0, 1], and p maps [0, 1.21] into itself, with |p'| < 4 there: an odd function of a
      // matrix amplifies an error by at most that (its divided differences). New roundings: products of at most `out`
      // terms, three deep, plus sums; ‖|X|‖ = ‖X‖.
      const double f = x.norm();
      error = 4 * error + gamma_n(3 * out + 8, u) * f * (a - b * f * f + c * f * f * f * f);
      const Matrix<double> gram = x * x.transpose();
      const Matrix<double> even = b * gram + c * (gram * gram);
      const Matrix<double> next = a * x + even * x;
      x = next;
    }
  }
};

/// One step with gradient g, whose relative error (and that of the momentum) is `input_error`.
void step(Training& t, const Matrix<double>& g, Optimizer optimizer, double input_error) {
  ++t.steps;
  Matrix<double> update;
  double update_error = 0;
  switch (optimizer) {
    case Optimizer::sgd: {
      const Matrix<double> decayed = g + decay * t.w;
      t.momentum = beta1 * t.momentum + decayed;
      update = t.momentum;
      update_error = input_error * (update.norm() + 2 * decayed.norm());
      break;
    }
    case Optimizer::adamw: {
      t.momentum = beta1 * t.momentum + (1 - beta1) * g;
      t.squares = beta2 * t.squares + (1 - beta2) * g.cwiseAbs2();
      const double steps = static_cast<double>(t.steps);
      const Matrix<double> mean = t.momentum / (1 - std::pow(beta1, steps));
      const Matrix<double> root = (t.squares / (1 - std::pow(beta2, steps))).cwiseSqrt();
      update = mean.cwiseQuotient(root + Matrix<double>::Constant(root.rows(), root.cols(), eps));
      break;
    }
    case Optimizer::muon:
    case Optimizer::normuon: {
      t.momentum = beta1 * t.momentum + (1 - beta1) * g;
      const Matrix<double> nesterov = beta1 * t.momentum + (1 - beta1) * g;
      // The two terms of a sum may cancel: what was relative to them grows by their length over the sum's.
      const double cancelled = (t.momentum.norm() + g.norm()) / nesterov.norm();
      const NewtonSchulz orthogonal(nesterov, (input_error + gamma_n(6, u)) * cancelled);
      update = orthogonal.x;
      update_error = orthogonal.error;
      if (optimizer == Optimizer::normuon) {
        const double length = update.norm();
        const double shortest = update.rowwise().norm().minCoeff();
        const Matrix<double> mean_square = update.rowwise().squaredNorm() / static_cast<double>(in);
        t.squares = beta2 * t.squares + (1 - beta2) * mean_square;
        const Matrix<double> divisor = t.squares.cwiseSqrt().array() + eps;
        for (Index i = 0; i < out; ++i) update.row(i) /= divisor(i, 0);
        update *= length / update.norm();
        // A row's relative error enters it, its divisor (which moves by no more than the row) and the total length.
        const double relative = 3 * (update_error / shortest + gamma_n(static_cast<double>(update.size()) + 8, u));
        update_error = length * relative / (1 - relative);
      }
      break;
    }
  }
  const double length = t.w.norm() + rate * update.norm();
  if (optimizer == Optimizer::sgd) {
    t.w -= rate * update;
  } else {
    t.w = (1 - rate * decay) * t.w - rate * update;
  }
  t.rounding = rate * update_error + (input_error + gamma_n(tail, u)) * length;
}

/// A change of coordinates of one axis: W' = WA on the input side, AᵀW on the output side. Gradients and momenta
/// transform by the inverse transpose, running squares of independent coordinates by its squared entries: for a signed
/// permutation, by |P|.
struct Change {
  const char* name;
  Gauge group;    ///< the smallest that holds it
  bool isometry;  ///< no group of the lattice holds it if not
  double error;   ///< relative, of one product
  Matrix<double> weights;
  Matrix<double> gradients;
};

std::array<Change, 3> changes(Index n, Random& random) {
  const SignedPermutation p = SignedPermutation::random(n, random);
  const Matrix<double> h = matrix_of<double>(Hadamard::random(n, random));
  const Matrix<double> gain = test::random_gain(n, random).asDiagonal();
  const Matrix<double> inverse = gain.diagonal().cwiseInverse().asDiagonal();
  const Matrix<double> moves = matrix_of<double>(p);
  // A row of n entries, each a sum of n products; the entries of h, their two roundings, and that h is orthogonal to
  // within Hadamard's defect 2^-51.
  const double dense = std::sqrt(static_cast<double>(n)) * gamma_n(static_cast<double>(n) + 2, u) + 0x1p-51;
  return {{{"signed permutation", Gauge::signed_permutation, true, 0, moves, moves},
           {"rotation", Gauge::orthogonal, true, dense, h, h},
           {"folded gain", Gauge::orthogonal, false, 2 * u, gain, inverse}}};
}

enum class Side { input, output };

Matrix<double> moved(const Matrix<double>& m, const Matrix<double>& a, Side side) {
  if (side == Side::input) return m * a;
  return a.transpose() * m;
}

Training moved(const Training& t, const Change& change, Side side, Optimizer optimizer) {
  Training result = t;
  result.w = moved(t.w, change.weights, side);
  result.momentum = moved(t.momentum, change.gradients, side);
  // NorMuon's second moments belong to the rows: nothing happens to them on the input side.
  if (optimizer != Optimizer::normuon || side == Side::output) {
    result.squares = moved(t.squares, change.gradients.cwiseAbs2(), side);
  }
  return result;
}

}  // namespace

TEST_CASE("one step in two bases commutes for the groups that step_gauge names, and for nothing outside of them",
          "[fold]") {
  for (const Optimizer optimizer : {Optimizer::sgd, Optimizer::adamw, Optimizer::muon, Optimizer::normuon}) {
    for (const Side side : {Side::input, Side::output}) {
      Random random(501);
      Training before = fresh(normal_matrix(out, in, random), optimizer);
      for (int warm = 0; warm < 2; ++warm) step(before, normal_matrix(out, in, random), optimizer, 0);
      const Matrix<double> g = normal_matrix(out, in, random);
      Training after = before;
      step(after, g, optimizer, 0);
      const Gauge allowed_group = side == Side::input ? step_gauge(optimizer).input : step_gauge(optimizer).output;

      for (const Change& change : changes(side == Side::input ? in : out, random)) {
        INFO(name_of(optimizer) << ", " << change.name << " on the " << (side == Side::input ? "input" : "output"));
        Training other = moved(before, change, side, optimizer);
        step(other, moved(g, change.gradients, side), optimizer, change.error);
        const Matrix<double> want = moved(after.w, change.weights, side);
        // What both steps rounded, and the rotation of W, before or after.
        const double allowed = other.rounding + after.rounding + change.error * after.w.norm();
        const Comparison comparison = compare(other.w, want, allowed);
        INFO(comparison);
        const bool member = change.isometry && contains(allowed_group, change.group);
        CHECK(comparison.within() == member);
        // Outside of the group it is no matter of rounding: a visible part of the step itself.
        const double stepped = (want - moved(before.w, change.weights, side)).norm();
        if (!member) CHECK((other.w - want).norm() > 0.05 * stepped);
        if (member) CHECK(allowed < 1e-6 * stepped);
        // Moving and negating rounds nothing, and AdamW computes each coordinate alone.
        if (member && optimizer == Optimizer::adamw) CHECK(other.w == want);
      }
    }
  }
}

TEST_CASE("AdamW: no state helps a rotation, the first step from a fresh one differs already", "[fold]") {
  Random random(502);
  const Matrix<double> w = normal_matrix(out, in, random);
  const Matrix<double> g = normal_matrix(out, in, random);
  for (const Change& change : changes(in, random)) {
    INFO(change.name);
    Training a = fresh(w, Optimizer::adamw);
    step(a, g, Optimizer::adamw, 0);
    Training b = fresh(w * change.weights, Optimizer::adamw);
    step(b, g * change.gradients, Optimizer::adamw, 0);
    const Matrix<double> want = a.w * change.weights;
    const double stepped = (want - w * change.weights).norm();
    CHECK(((b.w - want).norm() > 0.05 * stepped) == (change.group != Gauge::signed_permutation));
  }
}

// One block, x + tanh(RMSNorm_g(x)W_rᵀ)W_wᵀ + b, with a loss on what it writes: its AdamW step on every
// kind of parameter, and the state that each needs, moved by the library.
namespace {

/// RMSNorm with a gain, its reader, a writer with a bias; all in one basis.
struct Model {
  RowVector<double> gain;
  Matrix<double> reader;   ///< `hidden x n`
  Matrix<double> writer;   ///< `n x hidden`
  RowVector<double> bias;  ///< `n`
};

constexpr Index hidden = 7;

Model moved(const Model& m, const SignedPermutation& p) {
  const Linear<double> writer = rotate_writer(Linear<double>{m.writer, m.bias}, p);
  return {rotate_norm(RMSNorm<double>(m.gain, eps), p).weight(),
          rotate_reader(Linear<double>{m.reader, std::nullopt}, p).weight, writer.weight, *writer.bias};
}

/// Gradients of ½‖x + tanh(RMSNorm_g(x)W_rᵀ)W_wᵀ + b - target‖², by hand.
Model gradients(const Model& m, const Matrix<double>& x, const Matrix<double>& target) {
  const Matrix<double> unit = UnitRMSNorm<double>(in, eps).apply(x);
  const Matrix<double> z = unit * m.gain.asDiagonal();
  const Matrix<double> a = (z * m.reader.transpose()).array().tanh();
  const Matrix<double> error = (x + a * m.writer.transpose() - target).rowwise() + m.bias;
  const Matrix<double> da = error * m.writer;
  const Matrix<double> dpre = da.array() * (1 - a.array().square());
  const Matrix<double> dz = dpre * m.reader;
  return {dz.cwiseProduct(unit).colwise().sum(), dpre.transpose() * z, error.transpose() * a, error.colwise().sum()};
}

struct States {
  AdamState<RowVector<double>> gain;
  AdamState<Matrix<double>> reader;
  AdamState<Matrix<double>> writer;
  AdamState<RowVector<double>> bias;
};

States moved(const States& s, const SignedPermutation& p) {
  return {transport_gain(s.gain, p), transport_reader(s.reader, p), transport_writer(s.writer, p),
          transport_vector(s.bias, p)};
}

template <class P>
void adamw(P& parameter, AdamState<P>& state, const P& gradient) {
  Training t{parameter, state.exp_avg, state.exp_avg_sq, state.step};
  step(t, gradient, Optimizer::adamw, 0);
  parameter = t.w;
  state = {t.momentum, t.squares, t.steps};
}

void adamw(Model& m, States& s, const Model& g) {
  adamw(m.gain, s.gain, g.gain);
  adamw(m.reader, s.reader, g.reader);
  adamw(m.writer, s.writer, g.writer);
  adamw(m.bias, s.bias, g.bias);
}

template <class P>
AdamState<P> zero_state(const P& parameter) {
  return {P::Zero(parameter.rows(), parameter.cols()), P::Zero(parameter.rows(), parameter.cols())};
}

}  // namespace

TEST_CASE("AdamW: the state of gain, reader, writer and bias moves so that training goes on as it was", "[fold]") {
  Random random(503);
  Model model{test::random_gain(in, random), 0.3 * normal_matrix(hidden, in, random), normal_matrix(in, hidden, random),
              normal_matrix(1, in, random)};
  States states{zero_state(model.gain), zero_state(model.reader), zero_state(model.writer), zero_state(model.bias)};
  const Matrix<double> x = normal_matrix(5, in, random);
  const Matrix<double> target = normal_matrix(5, in, random);
  for (int warm = 0; warm < 3; ++warm) adamw(model, states, gradients(model, x, target));

  const SignedPermutation p = SignedPermutation::random(in, random);
  const Model model_b = moved(model, p);
  const States states_b = moved(states, p);
  const Matrix<double> target_b = act(p, target);
  const Matrix<double> x_b = act(p, x);
  CHECK(states_b.gain.step == 3);
  CHECK(states_b.reader.step == 3);
  CHECK(states_b.writer.step == 3);
  CHECK(states_b.bias.step == 3);

  // The gradients are those of A in the new basis: to rounding, since sums over channels run in another order.
  const Model g = gradients(model, x, target);
  const Model g_b = gradients(model_b, x_b, target_b);
  const Model want_g = moved(g, p);  // the gain's by |P|, as the gain's own
  // All are at most `largest`: the error, through the writer, through the reader, times what the norm gave or a ≤ 1.
  // Roundings of the activations move tanh and its derivative too, by what the reader and the writer make of them.
  const double batch = std::sqrt(5.0);
  const double out_of_norm = batch * std::sqrt(double{in}) * (1 + model.gain.cwiseAbs().maxCoeff());
  const double read = 1 + model.reader.norm();
  const double written = 1 + model.writer.norm();
  const double error = 1 + x.norm() + target.norm() + batch * (model.bias.norm() + std::sqrt(double{hidden}) * written);
  const double largest = error * written * read * out_of_norm;
  const double allowed = gamma_n(2 * (3 * in + 2 * hidden + 40), u) * largest * (1 + 2 * out_of_norm * read * written);
  CHECK(compare(g_b.gain, want_g.gain, allowed).within());
  CHECK(compare(g_b.reader, want_g.reader, allowed).within());
  CHECK(compare(g_b.writer, want_g.writer, allowed).within());
  CHECK(compare(g_b.bias, want_g.bias, allowed).within());
  CHECK_FALSE(compare(g_b.gain, act(p, g.gain), allowed).within());  // a gain's gradient has no signs to change

  // The step itself is exact: given the gradients of A in the new basis, every bit of the step is A's.
  const auto stepped = [](Model m, States s, const Model& gradient) {
    adamw(m, s, gradient);
    return m;
  };
  const Model want = moved(stepped(model, states, g), p);
  const Model got = stepped(model_b, states_b, want_g);
  CHECK(test::same_bits(got.gain, want.gain));
  CHECK(test::same_bits(got.reader, want.reader));
  CHECK(test::same_bits(got.writer, want.writer));
  CHECK(test::same_bits(got.bias, want.bias));

  // Twins, by part: a state moved by the permutation alone, not at all, twice, to the other side; a gain's state with
  // signs. A tenth of a step of one coordinate is a tenth of the rate: all are far from rounding.
  const auto caught = [&](const States& wrong) {
    const Model m = stepped(model_b, wrong, want_g);
    return std::array<bool, 4>{(m.gain - want.gain).cwiseAbs().maxCoeff() > 0.1 * rate,
                               (m.reader - want.reader).cwiseAbs().maxCoeff() > 0.1 * rate,
                               (m.writer - want.writer).cwiseAbs().maxCoeff() > 0.1 * rate,
                               (m.bias - want.bias).cwiseAbs().maxCoeff() > 0.1 * rate};
  };
  constexpr std::array<bool, 4> all{true, true, true, true};
  CHECK(caught(states_b) == std::array<bool, 4>{});
  CHECK(caught(moved(states, p.unsigned_part())) ==
        std::array<bool, 4>{false, true, true, true});  // a gain has no signs
  CHECK(caught(states) == all);
  CHECK(caught(moved(states_b, p)) == all);
  CHECK(caught(moved(states, p.inverse())) == all);
  States signed_gain = states_b;
  signed_gain.gain = transport_vector(states.gain, p);
  CHECK(caught(signed_gain) == std::array<bool, 4>{true, false, false, false});
  States signed_squares = states_b;  // second moments must not become negative
  signed_squares.reader.exp_avg_sq = rotate_embedding(states.reader.exp_avg_sq, p);
  CHECK(stepped(model_b, signed_squares, want_g).reader.hasNaN());
}

TEST_CASE("AdamW: a state comes back bit for bit, and its squares stay positive", "[fold]") {
  Random random(504);
  const SignedPermutation p = SignedPermutation::random(in, random);
  const AdamState<Matrix<BF16>> state{rounded<BF16>(normal_matrix(4, in, random)),
                                      rounded<BF16>(Matrix<double>(normal_matrix(4, in, random).cwiseAbs2())), 12};
  const AdamState<Matrix<BF16>> there = transport_reader(state, p);
  CHECK(test::same_bits(widened(there.exp_avg), act(p, widened(state.exp_avg))));
  CHECK(widened(there.exp_avg_sq).minCoeff() >= 0);
  CHECK(there.step == 12);
  const AdamState<Matrix<BF16>> back = transport_reader(there, p.inverse());
  CHECK(test::same_bits(widened(back.exp_avg), widened(state.exp_avg)));
  CHECK(test::same_bits(widened(back.exp_avg_sq), widened(state.exp_avg_sq)));
  CHECK_THROWS_AS(transport_writer(state, p), ShapeError);
  CHECK_THROWS_AS(transport_reader(state, SignedPermutation::identity(4)), ShapeError);
}

// The groups, and that no dense rotation moves a state of AdamW.
static_assert(step_gauge(Optimizer::sgd) == StepGauge{Gauge::orthogonal, Gauge::orthogonal});
static_assert(step_gauge(Optimizer::adamw) == StepGauge{Gauge::signed_permutation, Gauge::signed_permutation});
static_assert(step_gauge(Optimizer::muon) == StepGauge{Gauge::orthogonal, Gauge::orthogonal});
static_assert(step_gauge(Optimizer::normuon) == StepGauge{Gauge::orthogonal, Gauge::signed_permutation});
template <class G>
concept MovesAdamState = requires(const AdamState<Matrix<float>>& state, const G& g) {
  transport_reader(state, g);
};
static_assert(MovesAdamState<SignedPermutation> && !MovesAdamState<Hadamard>);

}  // namespace rmsfold
