// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// The checker for whole blocks: norm, readers, non-linearity, writer and residual add, in one basis or from one into another.

#include <algorithm>
#include <cmath>
#include <concepts>
#include <cstdint>
#include <type_traits>
#include <vector>

#include <rmsfold/core/finite.hpp>
#include <rmsfold/core/random.hpp>
#include <rmsfold/core/tolerance.hpp>
#include <rmsfold/fold/block.hpp>

namespace rmsfold {

/// What `check_block` found. Through a non-linearity there is no useful bound to derive, so the threshold is measured, as for logits.
struct BlockReport {
  Index tokens = 0;         ///< rows of the batch
  Index dim = 0;            ///< width of the residual stream
  double distance = 0;      ///< \f$\|\mathrm{block}'(xQ_{in}) - \mathrm{block}(x)Q_{out}\|_F / \|\mathrm{branch}(x)\|_F\f$
  double perturbation = 0;  ///< median of what moving every weight of the transformed block by its own storage rounding does
  double threshold = 0;     ///< four times that, and what the rotation of the shortcut rounds
  /// Whether storage rounding explains the distance.
  [[nodiscard]] bool passed() const noexcept { return is_finite(distance) && is_finite(threshold) && distance <= threshold; }
};

namespace detail {

template <Real T, Storage S>
[[nodiscard]] Linear<T> in_type(const Linear<S>& layer) {
  Linear<T> result{layer.weight.unaryExpr([](S value) { return static_cast<T>(widen(value)); }), std::nullopt};
  if (layer.bias) result.bias = RowVector<T>(layer.bias->unaryExpr([](S value) { return static_cast<T>(widen(value)); }));
  return result;
}

template <Real T, Storage S, class Norm, class Mix>
[[nodiscard]] Block<T, Norm, Mix> in_type(const Block<S, Norm, Mix>& block) {
  Block<T, Norm, Mix> result{block.norm, {}, block.mix, in_type<T>(block.writer)};
  for (const Linear<S>& reader : block.readers) result.readers.push_back(in_type<T>(reader));
  return result;
}

template <Real T, Storage S, class Norm, class Mix, Isometry In, Isometry Out>
[[nodiscard]] AdaptedBlock<T, Norm, Mix, In, Out> in_type(const AdaptedBlock<S, Norm, Mix, In, Out>& adapted) {
  return {in_type<T>(adapted.block), adapted.in, adapted.out};
}

/// Every entry moved by up to `unit` times the power of two above it; zeros are stored exactly.
template <Real T, int Rows>
void perturb(Eigen::Matrix<T, Rows, Eigen::Dynamic, Eigen::RowMajor>& m, double unit, Random& random) {
  for (Index i = 0; i < m.size(); ++i) {
    if (m.data()[i] == T(0)) continue;
    int exponent = 0;
    std::frexp(m.data()[i], &exponent);
    m.data()[i] += static_cast<T>(std::ldexp(unit * (2 * random.uniform() - 1), exponent));
  }
}

/// Every weight and bias of the layers moved.
template <Real T, class Norm, class Mix>
void perturb(Block<T, Norm, Mix>& block, double unit, Random& random) {
  const auto move = [&](Linear<T>& layer) {
    perturb(layer.weight, unit, random);
    if (layer.bias) perturb(*layer.bias, unit, random);
  };
  for (Linear<T>& reader : block.readers) move(reader);
  move(block.writer);
}
template <Real T, class Norm, class Mix, Isometry In, Isometry Out>
void perturb(AdaptedBlock<T, Norm, Mix, In, Out>& adapted, double unit, Random& random) {
  perturb(adapted.block, unit, random);
}

}  // namespace detail

/// Compares a block with what folds and rotations made of it, on a batch: \f$\mathrm{block}'(xQ_{in})\f$ must be \f$\mathrm{block}(x)\,Q_{out}\f$.
///
/// Both run in double (`long double` when weights are stored in double), so that what is left is the rounding of stored weights. Allowed is 4 times the median, over
/// `perturbations` seeds, of what moving every weight of the transformed block by its own storage rounding does, half a last place at most; in double, where composing a
/// weight rounds as much as storing it, by \f$(1+\sqrt{terms})\,2^{-53}\f$; by the rotations' defect in any type. What a shortcut between two bases is off by,
/// \f$(\delta_{in}+\delta_{out}+\mathrm{rounding})\,\|x\|\f$, comes on top.
/// @param block        the original.
/// @param transformed  a `Block` or an `AdaptedBlock` made of it.
/// @param in,out       the bases it reads and leaves the stream in; the same for one basis.
/// @param x            `tokens x n`, in the original's basis.
/// @throws ShapeError when sizes do not fit or there is nothing to check. @par Cost 2 + `perturbations` forward passes.
template <Storage S, class Norm, class Mix, class Transformed, Isometry In, Isometry Out>
  requires std::same_as<Wide<S>, double>
[[nodiscard]] BlockReport check_block(const Block<S, Norm, Mix>& block, const Transformed& transformed, const In& in, const Out& out, const Matrix<double>& x,
                                      int perturbations = 5, std::uint64_t seed = 0) {
  using T = std::conditional_t<std::same_as<S, double>, long double, double>;
  if (x.rows() < 1 || x.cols() != block.norm.dim()) {
    detail::raise<ShapeError>("checker: a batch {} x {} for a block of width {}", x.rows(), x.cols(), block.norm.dim());
  }
  if (perturbations < 1) detail::raise<ShapeError>("checker: {} perturbations measure no threshold", perturbations);
  const Matrix<T> stream = x.cast<T>();
  const Block<T, Norm, Mix> original = detail::in_type<T>(block);
  const Matrix<T> branch = original.branch(stream);
  const Matrix<T> expected = act(out, Matrix<T>(stream + branch));
  const Matrix<T> got = detail::in_type<T>(transformed).apply(act(in, stream));
  const T size = branch.norm();
  const auto relative = [&](const T& distance) { return static_cast<double>(size > T(0) ? T(distance / size) : distance); };

  BlockReport report{x.rows(), x.cols(), relative(T((got - expected).norm())), 0, 0};
  const double defect = static_cast<double>(in.orthogonality_defect()) + static_cast<double>(out.orthogonality_defect());
  const double terms = (std::max)(static_cast<double>(in.error_terms()), static_cast<double>(out.error_terms()));
  const double unit = (std::max)(unit_roundoff<S>() / 2, 0x1p-53 * (1 + std::sqrt(terms))) + defect;
  std::vector<double> distances;
  for (int run = 0; run < perturbations; ++run) {
    Random random(seed, static_cast<std::uint64_t>(run));
    auto moved = detail::in_type<T>(transformed);
    detail::perturb(moved, unit, random);
    distances.push_back(relative(T((moved.apply(act(in, stream)) - got).norm())));
  }
  const double rotating = std::sqrt(static_cast<double>(x.cols())) * gamma_n(terms, unit_roundoff<T>());
  const double shortcut = (defect + 3 * rotating) * relative(stream.norm());  // in, back, and out
  std::sort(distances.begin(), distances.end());
  report.perturbation = distances[distances.size() / 2];
  report.threshold = 4 * report.perturbation + shortcut;
  return report;
}

}  // namespace rmsfold
