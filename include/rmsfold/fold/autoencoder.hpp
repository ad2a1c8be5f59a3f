// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// A sparse autoencoder of the residual stream, and the same one in another basis.

#include <optional>

#include <rmsfold/fold/linear.hpp>
#include <rmsfold/fold/rotate.hpp>

namespace rmsfold {

/// \f$\max(z, 0)\f$, entry by entry; a NaN stays one.
struct Relu {
  /// @param z  pre-activations, `tokens x features`. @returns the features, of the same shape.
  template <Real T>
  [[nodiscard]] Matrix<T> operator()(const Matrix<T>& z) const {
    return z.unaryExpr([](const T& value) { return value < T{0} ? T{0} : value; });
  }
};

/// A sparse autoencoder that reads and rebuilds vectors x of the residual stream: \f$z = \sigma((x - b_d)W_e^T + b_e)\f$ and \f$\hat x = zW_d + b_d\f$.
///
/// \f$\sigma\f$ is a parameter of the functions: any callable from a matrix of pre-activations, `tokens x features`, to features of the same shape; top-k and
/// thresholds of its own for each feature are such callables, since features are not coordinates of the stream and keep their places in any basis.
/// @tparam S  storage scalar of the weights.
/// @note Source: Bricken et al., Towards Monosemanticity (2023), which subtracts \f$b_d\f$ first; Lieberum et al., Gemma Scope (2024), which does not.
template <Storage S>
struct Autoencoder {
  Linear<S> encoder;                         ///< \f$W_e\f$, `features x n`, and \f$b_e\f$
  Matrix<S> decoder;                         ///< \f$W_d\f$, `features x n`: a vector of the stream for each feature
  std::optional<RowVector<S>> decoder_bias;  ///< \f$b_d\f$, `n`, a point of the stream, or none
  bool centred = true;                       ///< whether the encoder reads \f$x - b_d\f$, or x itself

  /// Length of the vectors it reads and rebuilds.
  [[nodiscard]] Index dim() const noexcept { return encoder.in(); }
  /// How many features it has.
  [[nodiscard]] Index features() const noexcept { return encoder.out(); }

  /// z. @param x `tokens x n`, of any real type, which everything is computed in. @returns `tokens x features`. @throws ShapeError.
  template <DenseExpr D, class Activation = Relu>
  [[nodiscard]] Matrix<typename D::Scalar> encode(const D& x, const Activation& activation = {}) const {
    using T = typename D::Scalar;
    Matrix<T> from_centre = x;
    if (centred && decoder_bias) {
      check_bias(x.cols());
      from_centre.rowwise() -= in_type<T>(*decoder_bias);
    }
    return activation(encoder.apply(from_centre));
  }

  /// \f$\hat x\f$ from features. @param z `tokens x features`. @returns `tokens x n`. @throws ShapeError.
  template <DenseExpr D>
  [[nodiscard]] Matrix<typename D::Scalar> decode(const D& z) const {
    using T = typename D::Scalar;
    if (z.cols() != decoder.rows()) detail::raise<ShapeError>("a decoder of {} features cannot read {}", decoder.rows(), z.cols());
    const Matrix<T> w = decoder.unaryExpr([](const S& value) { return static_cast<T>(widen(value)); });
    Matrix<T> x = z.derived() * w;
    if (decoder_bias) {
      check_bias(x.cols());
      x.rowwise() += in_type<T>(*decoder_bias);
    }
    return x;
  }

  /// \f$\hat x\f$. @param x `tokens x n`. @returns `tokens x n`. @throws ShapeError.
  template <DenseExpr D, class Activation = Relu>
  [[nodiscard]] Matrix<typename D::Scalar> apply(const D& x, const Activation& activation = {}) const {
    return decode(encode(x, activation));
  }

 private:
  void check_bias(Index n) const {
    if (decoder_bias->size() != n) detail::raise<ShapeError>("a decoder bias of length {} beside vectors of length {}", decoder_bias->size(), n);
  }

  template <class T>
  [[nodiscard]] static RowVector<T> in_type(const RowVector<S>& row) {
    return row.unaryExpr([](const S& value) { return static_cast<T>(widen(value)); });
  }
};

/// The autoencoder in the new basis: \f$W_e' = W_eQ,\ W_d' = W_dQ,\ b_d' = b_dQ\f$; \f$b_e\f$ lives in feature space and stays. Its features of
/// \f$x' = xQ\f$ are those of x, for any activation, and \f$\hat x' = \hat xQ\f$, so errors of reconstruction keep their length.
///
/// Any rotation will do, since features are read through it; a signed permutation moves and negates the stored numbers and rounds none.
/// @throws ShapeError; RangeError when a result overflows `S`.
template <Storage S, Isometry G>
[[nodiscard]] Autoencoder<S> rotate_autoencoder(const Autoencoder<S>& autoencoder, const G& q) {
  Autoencoder<S> result{rotate_reader(autoencoder.encoder, q), rotate_embedding(autoencoder.decoder, q), std::nullopt, autoencoder.centred};
  if (autoencoder.decoder_bias) result.decoder_bias = rotate_vector(*autoencoder.decoder_bias, q);
  return result;
}

}  // namespace rmsfold
