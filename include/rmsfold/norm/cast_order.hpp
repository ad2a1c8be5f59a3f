// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// The norms as the stock PyTorch classes compute them: the same roundings in the same places.
///
/// Statistics are summed in double, so they do not overflow where a float32 sum does; their root, and all that follows, is rounded where the class rounds
/// it. Where torch's own float32 sums and exponentials are right to the last place, float32 outputs are within 2 ulp of torch's. Its root is up to 2 ulp
/// off, and its silu as much, so of rows as they come 1 % of the float32 elements are further away: at most 4 ulp for RMSNorm, 7 behind a gate, 6 for
/// torch's LayerNorm and 31 for cohere's (measured, up to 4096 channels). A LayerNorm's ulp is one of the largest of the terms it adds, \f$xrg\f$,
/// \f$-\mu rg\f$, both, and \f$\beta\f$, which cancel. 16-bit outputs are equal in more than 99.9 % of the elements, of any rows.
/// A zero row with eps = 0 gives zeros, where the classes give NaN.

#include <cmath>
#include <concepts>
#include <limits>
#include <type_traits>

#include <rmsfold/norm/gated_rms_norm.hpp>
#include <rmsfold/norm/layer_norm.hpp>
#include <rmsfold/norm/per_head.hpp>
#include <rmsfold/norm/rms_norm.hpp>

namespace rmsfold {

/// Where a family's norm rounds, named after the family whose class is best known for it. \f$n\f$ is the normalised row in float32, \f$\mu\f$ and \f$r\f$ the
/// mean and the reciprocal root, in(…) a rounding to the type of the activations; products are in the type torch promotes their factors to.
enum class CastOrder {
  llama,       ///< RMSNorm, \f$w\cdot\mathrm{in}(n)\f$: mistral, qwen2, qwen3, phi3, deepseek, granite, glm, mamba, llama4 and most
  olmo2,       ///< RMSNorm, \f$\mathrm{in}(w\cdot n)\f$: olmo3, gpt_oss
  gemma,       ///< RMSNorm, \f$\mathrm{in}(n\cdot(1+w_{32}))\f$: gemma2, gemma3, qwen3_next, qwen3_5
  gemma3n,     ///< RMSNorm, \f$\mathrm{in}(n\cdot w_{32})\f$: gemma4
  t5,          ///< RMSNorm, \f$w\cdot n\f$, n first rounded to the type of w if that has 16 bits, and in double if x is: umt5
  mamba2,      ///< gated, \f$w\cdot\mathrm{in}(n(x_{32}\,\mathrm{silu}(z_{32})))\f$: granitemoehybrid, bamba, zamba2
  qwen3_next,  ///< gated, \f$\mathrm{in}((w\cdot\mathrm{in}(n))\,\mathrm{silu}(z_{32}))\f$: the linear attention of qwen3_next and qwen3_5
  falcon_h1,   ///< gated, \f$\mathrm{in}(w\cdot n)\f$ with \f$\mathrm{silu}(z_{32})\f$ before n or behind w
  minimax,     ///< gated, \f$\mathrm{in}(\mathrm{sigmoid}(z))\cdot(w\cdot\mathrm{in}(n))\f$
  layer_norm,  ///< LayerNorm of torch, \f$\mathrm{in}(\mathrm{fma}((x-\mu)\,r,w_{32},\beta_{32}))\f$, in double if x is: gpt2, gpt_neox, opt, phi and most
  olmo,        ///< LayerNorm without parameters, \f$\mathrm{in}((x_{32}-\mu)\,r)\f$
  cohere,      ///< LayerNorm without bias, \f$\mathrm{in}(w_{32}\cdot((x_{32}-\mu)\,r))\f$: cohere2
  nemotron,    ///< as `layer_norm`, the gain being \f$1+w\f$ rounded to the type of w
};

/// A type torch has: F16, BF16, float or double.
template <class S>
concept TorchScalar = Storage<S> && std::same_as<Wide<S>, double>;

/// The type torch promotes two tensors to: the wider one, and float for the two 16-bit types together.
template <TorchScalar A, TorchScalar B>
using Promoted = std::conditional_t<std::same_as<A, B>, A, std::conditional_t<std::same_as<A, double> || std::same_as<B, double>, double, float>>;

namespace detail {

/// The type of a class's output, for activations of X and weights of W.
template <CastOrder order, TorchScalar X, TorchScalar W>
struct CastOutput {
  using type = X;
};
template <CastOrder order, TorchScalar X, TorchScalar W>
  requires(order == CastOrder::llama || order == CastOrder::mamba2 || order == CastOrder::minimax)
struct CastOutput<order, X, W> {
  using type = Promoted<W, X>;
};
template <TorchScalar X, TorchScalar W>
struct CastOutput<CastOrder::t5, X, W> {
  using type = std::conditional_t<Half<W>, W, Promoted<W, Promoted<X, float>>>;
};

/// `.to(T)`
template <TorchScalar T, TorchScalar S>
[[nodiscard]] T cast(S value) {
  return round_to<T>(to_double(value));
}

/// `a * b` of two tensors: multiplied in float for 16-bit results, rounded to the promoted type.
template <TorchScalar A, TorchScalar B>
[[nodiscard]] Promoted<A, B> times(A a, B b) {
  using C = Compute<Promoted<A, B>>;
  return cast<Promoted<A, B>>(static_cast<C>(static_cast<C>(to_double(a)) * static_cast<C>(to_double(b))));
}

/// `torch.rsqrt(variance + eps)` and what it multiplies.
struct RuntimeRoot {
  float in_steps = 0;  ///< as the runtimes form it, every operation rounded to float32
  double whole = 0;    ///< rounded once
  bool fits = false;   ///< whether float32 can hold what the runtimes take the root of

  RuntimeRoot(double variance, double eps) {
    const double sum = variance + eps;
    fits = sum >= (std::numeric_limits<float>::min)() && sum <= (std::numeric_limits<float>::max)();
    if (fits) in_steps = 1.0f / std::sqrt(static_cast<float>(variance) + static_cast<float>(eps));
    if (sum != 0) whole = 1 / std::sqrt(sum);
  }

  /// The product with an entry of the row.
  template <Real P>
  [[nodiscard]] P times(P x) const {
    return fits ? static_cast<P>(x * static_cast<P>(in_steps)) : static_cast<P>(static_cast<double>(x) * whole);
  }
};

/// The root for a row, or a group of it, that is in float32 already.
template <class Row>
[[nodiscard]] RuntimeRoot root_of_squares(const Row& row, double eps) {
  double sum = 0;
  for (Index j = 0; j < row.size(); ++j) sum += static_cast<double>(row[j]) * static_cast<double>(row[j]);
  return RuntimeRoot(sum / static_cast<double>(row.size()), eps);
}

/// A row in float32.
template <TorchScalar X>
[[nodiscard]] RowVector<float> float_row(const Matrix<X>& x, Index t) {
  RowVector<float> row(x.cols());
  for (Index j = 0; j < x.cols(); ++j) row[j] = cast<float>(x(t, j));
  return row;
}

inline void check_width(Index dim, Index cols) {
  if (cols != dim) raise<ShapeError>("norm of dimension {} on rows of length {}", dim, cols);
}

inline void check_convention(GainConvention got, GainConvention expected) {
  if (got == expected) return;
  const auto text = [](GainConvention c) {
    return c == GainConvention::plain ? "w" : c == GainConvention::one_plus ? "1 + w" : "1 + w in the type of w";
  };
  raise<InvariantError>("the gain of this norm is {}, the classes with this cast order make it {}", text(got), text(expected));
}

/// Every class's entries from those of the normalised row.
template <CastOrder order, TorchScalar X, TorchScalar W>
[[nodiscard]] typename CastOutput<order, X, W>::type scaled(W w, X x, const RuntimeRoot& root) {
  if constexpr (order == CastOrder::t5) {
    const auto n = root.times(cast<Promoted<X, float>>(x));
    if constexpr (Half<W>) {
      return times(w, cast<W>(n));
    } else {
      return times(w, n);
    }
  } else {
    const float n = root.times(cast<float>(x));
    if constexpr (order == CastOrder::llama) {
      return times(w, cast<X>(n));
    } else if constexpr (order == CastOrder::olmo2) {
      return cast<X>(times(w, n));
    } else if constexpr (order == CastOrder::gemma) {
      return cast<X>(n * (1.0f + cast<float>(w)));
    } else {
      return cast<X>(n * cast<float>(w));
    }
  }
}

/// LayerNorm in float32: `finish(j, (x - mean) * r)` is what is rounded to X.
template <TorchScalar X, class Finish>
[[nodiscard]] Matrix<X> runtime_layer_norm(const Matrix<X>& x, double eps, const Finish& finish) {
  Matrix<X> y(x.rows(), x.cols());
  for (Index t = 0; t < x.rows(); ++t) {
    const RowVector<float> row = float_row(x, t);
    double mean = 0;
    for (Index j = 0; j < row.size(); ++j) mean += static_cast<double>(row[j]);
    mean /= static_cast<double>(row.size());
    double variance = 0;
    for (Index j = 0; j < row.size(); ++j) {
      const double d = static_cast<double>(row[j]) - mean;
      variance += d * d;
    }
    const RuntimeRoot root(variance / static_cast<double>(row.size()), eps);
    for (Index j = 0; j < row.size(); ++j) {
      const float n = root.fits ? root.times(row[j] - static_cast<float>(mean)) : static_cast<float>((static_cast<double>(row[j]) - mean) * root.whole);
      y(t, j) = cast<X>(finish(j, n));
    }
  }
  return y;
}

}  // namespace detail

/// The type that torch's promotion rules give the output of a class with this cast order.
/// @tparam X  type of the activations.
/// @tparam W  type of the stored weight.
template <CastOrder order, TorchScalar X, TorchScalar W>
using CastOutput = typename detail::CastOutput<order, X, W>::type;

/// The norm of each row, rounded as the class rounds it. @param x `tokens x n`. @returns `tokens x n`.
/// @throws ShapeError; InvariantError when the norm's gain convention is not that of the class.
template <CastOrder order, TorchScalar W, TorchScalar X>
  requires(order <= CastOrder::t5)
[[nodiscard]] Matrix<CastOutput<order, X, W>> apply_as(const RMSNorm<W>& norm, const Matrix<X>& x) {
  detail::check_width(norm.dim(), x.cols());
  detail::check_convention(norm.convention(), order == CastOrder::gemma ? GainConvention::one_plus : GainConvention::plain);
  Matrix<CastOutput<order, X, W>> y(x.rows(), x.cols());
  for (Index t = 0; t < x.rows(); ++t) {
    const detail::RuntimeRoot root = detail::root_of_squares(detail::float_row(x, t), norm.eps());
    for (Index j = 0; j < x.cols(); ++j) y(t, j) = detail::scaled<order>(norm.weight()[j], x(t, j), root);
  }
  return y;
}

/// The classes without a weight (value norms of gemma3n and gemma4, QK-norms of llama4): \f$\mathrm{in}(n)\f$ whatever the order, t5's excepted.
/// @param x `tokens x n`. @returns `tokens x n`. @throws ShapeError.
template <CastOrder order, Storage S, TorchScalar X>
  requires(order < CastOrder::t5)
[[nodiscard]] Matrix<X> apply_as(const UnitRMSNorm<S>& norm, const Matrix<X>& x) {
  detail::check_width(norm.dim(), x.cols());
  Matrix<X> y(x.rows(), x.cols());
  for (Index t = 0; t < x.rows(); ++t) {
    const RowVector<float> row = detail::float_row(x, t);
    const detail::RuntimeRoot root = detail::root_of_squares(row, norm.eps());
    for (Index j = 0; j < x.cols(); ++j) y(t, j) = detail::cast<X>(root.times(row[j]));
  }
  return y;
}

/// The gated norm of each row, rounded as the class rounds it. @param x,gate `tokens x n`. @returns `tokens x n`.
/// @throws ShapeError; InvariantError when the norm's gate is not that of the class.
template <CastOrder order, TorchScalar W, TorchScalar X>
  requires(order >= CastOrder::mamba2 && order <= CastOrder::minimax)
[[nodiscard]] Matrix<CastOutput<order, X, W>> apply_as(const GatedRMSNorm<W>& norm, const Matrix<X>& x, const Matrix<X>& gate) {
  using detail::cast;
  using detail::times;
  detail::check_width(norm.dim(), x.cols());
  if (gate.rows() != x.rows() || gate.cols() != x.cols()) {
    detail::raise<ShapeError>("gate [{}, {}] for activations [{}, {}]", gate.rows(), gate.cols(), x.rows(), x.cols());
  }
  const bool gate_first = norm.order() == GateOrder::gate_first;
  const GateActivation activation = order == CastOrder::minimax ? GateActivation::sigmoid : GateActivation::silu;
  if (norm.activation() != activation || (order != CastOrder::falcon_h1 && gate_first != (order == CastOrder::mamba2))) {
    detail::raise<InvariantError>("the gate of this norm, or its place, is not that of the classes with this cast order");
  }
  Matrix<CastOutput<order, X, W>> y(x.rows(), x.cols());
  const Index width = norm.dim() / norm.groups();
  for (Index t = 0; t < x.rows(); ++t) {
    RowVector<float> row = detail::float_row(x, t);
    RowVector<float> a = detail::float_row(gate, t);
    if constexpr (order != CastOrder::minimax) {
      for (Index j = 0; j < x.cols(); ++j) a[j] = detail::gate_value(a[j], activation);
    }
    if (gate_first) {
      // falcon_h1 gates before it goes to float32, which differs for double only
      for (Index j = 0; j < x.cols(); ++j) row[j] = order == CastOrder::falcon_h1 ? cast<float>(times(x(t, j), a[j])) : row[j] * a[j];
    }
    for (Index start = 0; start < norm.dim(); start += width) {
      const detail::RuntimeRoot root = detail::root_of_squares(row.segment(start, width), norm.eps());
      for (Index j = start; j < start + width; ++j) {
        const W w = norm.weight()[j % norm.weight().size()];
        const float n = root.times(row[j]);
        if constexpr (order == CastOrder::mamba2) {
          y(t, j) = times(w, cast<X>(n));
        } else if constexpr (order == CastOrder::qwen3_next) {
          y(t, j) = cast<X>(times(times(w, cast<X>(n)), a[j]));
        } else if constexpr (order == CastOrder::falcon_h1) {
          y(t, j) = gate_first ? cast<X>(times(w, n)) : cast<X>(times(times(w, n), a[j]));
        } else {
          const auto z = static_cast<Compute<X>>(to_double(gate(t, j)));
          y(t, j) = times(cast<X>(detail::gate_value(z, activation)), times(w, cast<X>(n)));
        }
      }
    }
  }
  return y;
}

/// The LayerNorm of each row, rounded as the class rounds it. @param x `tokens x n`. @returns `tokens x n`.
/// @throws ShapeError; InvariantError when the norm's gain convention is not that of the class, or cohere's has a bias.
template <CastOrder order, TorchScalar W, TorchScalar X>
  requires(order == CastOrder::layer_norm || order == CastOrder::cohere || order == CastOrder::nemotron)
[[nodiscard]] Matrix<X> apply_as(const LayerNorm<W>& norm, const Matrix<X>& x) {
  detail::check_width(norm.dim(), x.cols());
  detail::check_convention(norm.convention(), order == CastOrder::nemotron ? GainConvention::one_plus_in_own_type : GainConvention::plain);
  if (order == CastOrder::cohere && norm.bias()) detail::raise<InvariantError>("cohere's LayerNorm has no bias, this one does");
  if constexpr (std::same_as<X, double> && order != CastOrder::cohere) {
    return norm.apply(x);
  } else {
    const RowVector<float> gain = norm.gain().template cast<float>();
    RowVector<float> bias = RowVector<float>::Zero(norm.dim());
    if (norm.bias()) bias = widened(*norm.bias()).template cast<float>();
    return detail::runtime_layer_norm(x, norm.eps(), [&](Index j, float n) { return norm.bias() ? std::fma(n, gain[j], bias[j]) : n * gain[j]; });
  }
}

/// LayerNorm without a gain, rounded as the class rounds it: torch's computes in double if x is, olmo's never does.
/// @param x `tokens x n`. @returns `tokens x n`. @throws ShapeError; InvariantError when olmo's has a bias.
template <CastOrder order, TorchScalar S, TorchScalar X>
  requires(order == CastOrder::layer_norm || order == CastOrder::olmo)
[[nodiscard]] Matrix<X> apply_as(const UnitLayerNorm<S>& norm, const Matrix<X>& x) {
  detail::check_width(norm.dim(), x.cols());
  if (order == CastOrder::olmo && norm.bias()) detail::raise<InvariantError>("olmo's LayerNorm has no bias, this one does");
  if constexpr (std::same_as<X, double> && order != CastOrder::olmo) {
    return norm.apply(x);
  } else {
    RowVector<float> bias = RowVector<float>::Zero(norm.dim());
    if (norm.bias()) bias = widened(*norm.bias()).template cast<float>();
    return detail::runtime_layer_norm(x, norm.eps(), [&](Index j, float n) { return norm.bias() ? n + bias[j] : n; });
  }
}

/// Each head of each row, rounded as the class rounds it. @param x `tokens x heads * n`. @returns the same shape. @throws as the heads' norm.
template <CastOrder order, class Norm, TorchScalar X>
[[nodiscard]] auto apply_as(const PerHead<Norm>& norm, const Matrix<X>& x) {
  detail::check_width(norm.dim(), x.cols());
  const Index n = norm.norm(0).dim();
  decltype(apply_as<order>(norm.norm(0), x)) y(x.rows(), x.cols());
  for (Index head = 0; head < norm.heads(); ++head) {
    y.middleCols(head * n, n) = apply_as<order>(norm.norm(head), Matrix<X>(x.middleCols(head * n, n)));
  }
  return y;
}

}  // namespace rmsfold
