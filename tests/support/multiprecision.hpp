// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Numbers to prove identities in: 100 decimal digits where a root is taken, exact rationals where none is.

#include <boost/version.hpp>
#include <type_traits>

#if BOOST_VERSION < 107600
// Boost asks every type for the value type of its const_iterator; a matrix of Eigen 3.4 has an iterator without one.
namespace boost::multiprecision::detail {
template <class C>
struct is_byte_container;
template <class C>
  requires requires { typename C::StorageKind; }
struct is_byte_container<C> : std::false_type {};
}  // namespace boost::multiprecision::detail
#endif

#include <boost/multiprecision/cpp_bin_float.hpp>
#include <boost/multiprecision/cpp_int.hpp>
#include <boost/multiprecision/eigen.hpp>

#include <rmsfold/core/random.hpp>
#include <rmsfold/group/orthogonal.hpp>

namespace rmsfold::test {

/// 100 decimal digits.
using Digits100 = boost::multiprecision::number<boost::multiprecision::cpp_bin_float<100>, boost::multiprecision::et_off>;
/// Exact.
using Rational = boost::multiprecision::number<boost::multiprecision::cpp_rational_backend, boost::multiprecision::et_off>;

/// An orthogonal matrix of S, neither symmetric nor sparse: a product of reflections in small integer vectors, which in rationals is exactly orthogonal.
template <Real S>
Orthogonal<S> product_of_reflections(Index n, Random& random) {
  Matrix<S> q = Matrix<S>::Identity(n, n);
  for (int reflection = 0; reflection < 4; ++reflection) {
    RowVector<S> v(n);
    for (Index i = 0; i < n; ++i) v[i] = S(static_cast<double>(random.below(9) + 1) * random.sign());
    const Matrix<S> projection = q * v.transpose();
    q -= projection * (v * S(S(2) / v.squaredNorm()));
  }
  return Orthogonal<S>(std::move(q));
}

}  // namespace rmsfold::test
