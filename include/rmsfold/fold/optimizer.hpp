// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Training in another basis: which changes of basis commute with one step of an optimizer, and how AdamW's state moves with its parameter.

#include <cstdint>
#include <string_view>

#include <rmsfold/fold/rotate.hpp>
#include <rmsfold/group/gauge.hpp>

namespace rmsfold {

/// An update rule for weights W, `[out, in]`, with gradients G.
enum class Optimizer {
  sgd,      ///< gradient descent, with or without momentum and weight decay
  adamw,    ///< Adam with decoupled weight decay
  muon,     ///< momentum, replaced by the orthogonal factor of its polar decomposition
  normuon,  ///< Muon, then each row (output neuron) divided by the root of its running mean square
};

/// As a user reads it.
[[nodiscard]] constexpr std::string_view name_of(Optimizer optimizer) noexcept {
  switch (optimizer) {
    case Optimizer::sgd: return "SGD";
    case Optimizer::adamw: return "AdamW";
    case Optimizer::muon: return "Muon";
    case Optimizer::normuon: return "NorMuon";
  }
  return "unknown";
}

/// The groups that commute with one step, for the axis that a weight reads from and the axis that it writes to.
struct StepGauge {
  Gauge input = Gauge::identity;   ///< Q in \f$W' = WQ,\ G' = GQ\f$
  Gauge output = Gauge::identity;  ///< Q in \f$W' = Q^TW,\ G' = Q^TG\f$
  /// Same groups.
  friend constexpr bool operator==(const StepGauge&, const StepGauge&) = default;
};

/// The changes of basis T with step(T(W), T(G), T(state)) = T(step(W, G, state)): a run that starts in the new basis stays the old run in the new basis.
///
/// A function that is the same in both bases has gradients that transform as its weights do, because \f$Q^{-T} = Q\f$. So:
/// - SGD: \f$W - \eta(\mu M + G + \lambda W)\f$ is linear in what transforms: O(n) on both sides. (Not GL(n): after a fold \f$W' = W\Gamma\f$ the gradient
///   is \f$G\Gamma^{-1}\f$, so folding a gain is no change of basis and does not commute with any of these steps.)
/// - AdamW: the update is one odd function, applied to each coordinate. From a fresh state it is \f$-\eta\,\mathrm{sign}(G)\f$, and
///   \f$\mathrm{sign}(GQ) = \mathrm{sign}(G)Q\f$ for all G leaves signed permutations only.
/// - Muon: \f$UV^T\f$ of \f$Q^TMR\f$ is \f$Q^T(UV^T)R\f$; a Newton-Schulz iteration, an odd polynomial in M, has that property at every step: O(n) twice.
/// - NorMuon: \f$\frac1n\sum_jO_{ij}^2\f$ of a row is kept by every rotation of the input side; rotating the output side mixes rows, each of which has its own
///   divisor: signed permutations, and the second moments move by |P|. The rescaling to the old Frobenius norm commutes with both.
///   (Where W is no taller than wide an exact \f$UV^T\f$ has rows of one length, and NorMuon is Muon up to a factor, as far as Newton-Schulz is exact.
///   Implementations that keep one moment for each index of the longer axis swap the two sides there.)
///
/// Clipping by the global norm and decoupled weight decay commute with O(n). What a model's training commutes with is the intersection of its own verdict
/// and of these. SGD's and Muon's momentum moves as its parameter does: `rotate_reader`, `rotate_writer`.
/// @note Sources: Kingma and Ba, Adam (2015), algorithm 1; Loshchilov and Hutter, Decoupled Weight Decay Regularization (2019), algorithm 2; Jordan et al.,
///   Muon: An optimizer for hidden layers in neural networks (2024); Li et al., NorMuon: Making Muon more efficient and scalable (2025), algorithm 1.
[[nodiscard]] constexpr StepGauge step_gauge(Optimizer optimizer) noexcept {
  switch (optimizer) {
    case Optimizer::sgd: return {Gauge::orthogonal, Gauge::orthogonal};
    case Optimizer::adamw: return {Gauge::signed_permutation, Gauge::signed_permutation};
    case Optimizer::muon: return {Gauge::orthogonal, Gauge::orthogonal};
    case Optimizer::normuon: return {Gauge::orthogonal, Gauge::signed_permutation};
  }
  return {};
}

/// What AdamW keeps for one parameter. It moves by signed permutations only: under a dense rotation the second moments of the new coordinates would need the
/// covariances of the old ones, which nobody stored.
/// @tparam P  the parameter's type, `Matrix<S>` or `RowVector<S>`.
template <class P>
struct AdamState {
  P exp_avg;              ///< running mean of the gradient, which has the gradient's signs
  P exp_avg_sq;           ///< running mean of its square, which has none
  std::int64_t step = 0;  ///< steps taken; the bias corrections depend on it, no basis does
};

/// The state of a reader's weight, or of an embedding table `[vocab, n]`: \f$m' = mP,\ v' = v\,|P|\f$; exact, no rounding. @throws ShapeError.
template <Storage S, ExactIsometry G>
[[nodiscard]] AdamState<Matrix<S>> transport_reader(const AdamState<Matrix<S>>& state, const G& p) {
  return {rotate_embedding(state.exp_avg, p), rotate_embedding(state.exp_avg_sq, p.unsigned_part()), state.step};
}

/// The state of a writer's weight: \f$m' = P^Tm,\ v' = |P|^Tv\f$; exact, no rounding. @throws ShapeError.
template <Storage S, ExactIsometry G>
[[nodiscard]] AdamState<Matrix<S>> transport_writer(const AdamState<Matrix<S>>& state, const G& p) {
  const auto rows = [](const Matrix<S>& m, const G& q) { return rotate_writer(Linear<S>{m, std::nullopt}, q).weight; };
  return {rows(state.exp_avg, p), rows(state.exp_avg_sq, p.unsigned_part()), state.step};
}

/// The state of a writer's bias, or of any other parameter that is a vector of the stream: \f$m' = mP,\ v' = v\,|P|\f$. @throws ShapeError.
template <Storage S, ExactIsometry G>
[[nodiscard]] AdamState<RowVector<S>> transport_vector(const AdamState<RowVector<S>>& state, const G& p) {
  return {rotate_vector(state.exp_avg, p), rotate_vector(state.exp_avg_sq, p.unsigned_part()), state.step};
}

/// The state of a norm's gain: \f$m' = m\,|P|,\ v' = v\,|P|\f$. The gain is the diagonal of \f$P^T\Gamma P\f$, in which every sign meets itself, so neither it
/// nor its gradient has signs to change (`rotate_norm`). @throws ShapeError.
template <Storage S, ExactIsometry G>
[[nodiscard]] AdamState<RowVector<S>> transport_gain(const AdamState<RowVector<S>>& state, const G& p) {
  return transport_vector(state, p.unsigned_part());
}

}  // namespace rmsfold
