// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// The vocabulary of scalars and matrices that every other header speaks.

#include <concepts>
#include <limits>
#include <type_traits>

#include <Eigen/Core>

namespace rmsfold {

/// Signed index of rows, columns and channels.
using Index = Eigen::Index;

/// A scalar that arithmetic is carried out in: `float`, `double`, `long double`, and any other real number type wider than `double` that Eigen computes with, such as
/// Boost.Multiprecision's (without expression templates). Exact rationals will do wherever no root is taken.
// clang-format off
template <class S>
concept Real = std::same_as<S, std::remove_cv_t<S>> &&
               (std::floating_point<S> ||
                (std::numeric_limits<S>::is_specialized && !std::numeric_limits<S>::is_integer && std::regular<S> &&
                 (std::numeric_limits<S>::is_exact || std::numeric_limits<S>::digits > std::numeric_limits<double>::digits) &&
                 requires(const S& a, const S& b) {
                 { a + b } -> std::convertible_to<S>;
                 { a - b } -> std::convertible_to<S>;
                 { a * b } -> std::convertible_to<S>;
                 { a / b } -> std::convertible_to<S>;
                 { -a } -> std::convertible_to<S>;
                 { a < b } -> std::convertible_to<bool>;
                 static_cast<double>(a);
                 S(1.0);
                }));
// clang-format on

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
