// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// The vocabulary of scalars and matrices that every other header speaks.

#include <concepts>
#include <cstdint>
#include <type_traits>

#include <Eigen/Core>

namespace rmsfold {

/// Signed index of rows, columns and channels.
using Index = Eigen::Index;

/// A scalar that arithmetic is carried out in.
template <class S>
concept Real = std::floating_point<S>;

/// Dense matrix, row-major whatever the user's Eigen defaults are: activations are `[tokens, d]`, weights `[out, in]`, as in files.
template <class S>
using Matrix = Eigen::Matrix<S, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

/// Row vector: one activation, one gain, one bias.
template <class S>
using RowVector = Eigen::Matrix<S, 1, Eigen::Dynamic, Eigen::RowMajor>;

/// Any Eigen expression over real scalars.
template <class D>
concept DenseExpr = std::derived_from<D, Eigen::DenseBase<D>> && Real<typename D::Scalar>;

}  // namespace rmsfold
