// SPDX-License-Identifier: MIT
// One training step in two bases: is the step of the moved weights the moved step? AdamW allows signed permutations only,
// Muon any rotation of either side.
#include <cmath>
#include <vector>

#include <rmsfold/fold/optimizer.hpp>
#include <rmsfold/rmsfold.hpp>

using namespace rmsfold;
using Weights = Matrix<double>;

constexpr double rate = 0.01, beta1 = 0.9, beta2 = 0.999, decay = 0.1;

/// W after a step of AdamW (Loshchilov and Hutter 2019), with its state before it.
Weights adamw(const Weights& w, const AdamState<Weights>& state, const Weights& g) {
  const double t = static_cast<double>(state.step + 1);
  const Weights mean = (beta1 * state.exp_avg + (1 - beta1) * g) / (1 - std::pow(beta1, t));
  const Weights square = (beta2 * state.exp_avg_sq + (1 - beta2) * g.cwiseAbs2()) / (1 - std::pow(beta2, t));
  return (1 - rate * decay) * w - rate * Weights(mean.array() / (square.array().sqrt() + 1e-8));
}

/// W after a step of Muon (Jordan et al. 2024): its momentum, with all singular values pushed towards 1.
Weights muon(const Weights& w, const Weights& momentum, const Weights& g) {
  Weights x = beta1 * momentum + g;
  x /= x.norm();
  for (int k = 0; k < 5; ++k) {
    const Weights gram = x * x.transpose();
    const Weights factor = 2.0315 * gram * gram - 4.7750 * gram;
    x = (3.4445 * x + factor * x).eval();
  }
  return w - rate * x;
}

int main() {
  const Index n = 32;
  Random random(5);
  const Weights w = normal_matrix(20, n, random);  // a reader of the stream
  const Weights g = normal_matrix(20, n, random);
  const AdamState<Weights> state{normal_matrix(20, n, random), normal_matrix(20, n, random).cwiseAbs2(), 100};
  const SignedPermutation p = SignedPermutation::random(n, random);
  const Hadamard h = Hadamard::random(n, random);

  bool as_claimed = true;
  fmt::print("{:<8}{:<48}{:>12}  {}\n", "step", "change of basis of the input side", "difference", "commutes");
  const auto row = [&](Optimizer optimizer, const char* change, Gauge group, bool state_moved, const Weights& in_b,
                       const Weights& a_moved, double stepped) {
    const double difference = (in_b - a_moved).norm() / stepped;  // relative to the length of the step
    // Roundings, 1e-16 of W, may grow by 4^5 in Muon's iteration and by |W|/|step| here: below 1e-10. What is not one is near 1.
    const bool commutes = difference < 1e-10;
    as_claimed = as_claimed && commutes == (state_moved && contains(step_gauge(optimizer).input, group));
    fmt::print("{:<8}{:<48}{:>12.1e}  {}\n", name_of(optimizer), change, difference, commutes ? "yes" : "no");
  };

  const Weights a = adamw(w, state, g);
  const double stepped = (a - w).norm();
  const AdamState<Weights> moved = transport_reader(state, p);  // exp_avg by P, exp_avg_sq by |P|
  const AdamState<Weights> unsigned_state = transport_reader(state, p.unsigned_part());
  const AdamState<Weights> rotated{act(h, state.exp_avg), state.exp_avg_sq, state.step};  // there is no right second moment
  const Gauge moves = SignedPermutation::gauge;
  row(Optimizer::adamw, "signed permutation", moves, true, adamw(act(p, w), moved, act(p, g)), act(p, a), stepped);
  row(Optimizer::adamw, "signed permutation, state without signs", moves, false, adamw(act(p, w), unsigned_state, act(p, g)), act(p, a), stepped);
  row(Optimizer::adamw, "signed permutation, state left behind", moves, false, adamw(act(p, w), state, act(p, g)), act(p, a), stepped);
  row(Optimizer::adamw, "Hadamard rotation", Hadamard::gauge, true, adamw(act(h, w), rotated, act(h, g)), act(h, a), stepped);

  const Weights b = muon(w, state.exp_avg, g);
  const double muon_stepped = (b - w).norm();
  row(Optimizer::muon, "signed permutation", moves, true, muon(act(p, w), act(p, state.exp_avg), act(p, g)), act(p, b), muon_stepped);
  row(Optimizer::muon, "Hadamard rotation", Hadamard::gauge, true, muon(act(h, w), act(h, state.exp_avg), act(h, g)), act(h, b), muon_stepped);
  row(Optimizer::muon, "Hadamard rotation, momentum left behind", Hadamard::gauge, false, muon(act(h, w), state.exp_avg, act(h, g)),
      act(h, b), muon_stepped);

  fmt::print("\nwhat commutes with one step:\n");
  for (const Optimizer optimizer : {Optimizer::sgd, Optimizer::adamw, Optimizer::muon, Optimizer::normuon}) {
    const StepGauge gauge = step_gauge(optimizer);
    fmt::print("  {:<8} input: {:<20} output: {}\n", name_of(optimizer), name_of(gauge.input), name_of(gauge.output));
  }
  return as_claimed ? 0 : 1;
}
