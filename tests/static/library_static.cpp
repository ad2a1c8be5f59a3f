// SPDX-License-Identifier: MIT
/// @file
/// What the types of the library promise, and what they refuse; that this compiles is the test.
#include <rmsfold/rmsfold.hpp>

namespace rmsfold {
namespace {

template <class A, class B = A>
concept Added = requires(A a, B b) {
  a + b;
};
template <class A, class B = A>
concept Multiplied = requires(A a, B b) {
  a* b;
};
template <class A, class B = A>
concept Ordered = requires(A a, B b) {
  a < b;
};

// Storage scalars: stored, not computed with, and not mistaken for numbers.
static_assert(Storage<double> && Storage<float> && Storage<F16> && Storage<BF16>);
static_assert(!Storage<int> && Storage<long double> && !Storage<std::uint16_t>);
static_assert(Half<F16> && Half<BF16> && !Half<float>);
static_assert(Real<long double> && !Real<F16>);
static_assert(!Added<F16> && !Multiplied<BF16> && !Added<F16, float> && !Multiplied<BF16, double> && !Ordered<F16>);
static_assert(Added<float>);
static_assert(!std::is_convertible_v<F16, float> && !std::is_convertible_v<float, F16> &&
              !std::is_convertible_v<F16, BF16>);
static_assert(sizeof(F16) == 2 && sizeof(BF16) == 2 && std::is_trivially_copyable_v<F16>);
static_assert(std::same_as<Compute<BF16>, float> && std::same_as<Compute<double>, double>);
static_assert(std::same_as<Wide<BF16>, double> && std::same_as<Wide<float>, double> &&
              std::same_as<Wide<long double>, long double>);
static_assert(round_to<BF16>(1.0).bits == 0x3f80 && round_to<F16>(65504.0).bits == 0x7bff &&
              to_double(F16{0x3c00}) == 1);
static_assert(!is_finite(std::numeric_limits<double>::quiet_NaN()) && is_finite(0.0));

// Rotations.
struct NoInverse {
  [[maybe_unused]] static constexpr Gauge gauge = Gauge::orthogonal;
  [[nodiscard]] Index dim() const { return 1; }
  [[nodiscard]] double orthogonality_defect() const { return 0; }
  [[nodiscard]] double error_terms() const { return 0; }
  template <class S>
  void apply(S*, Index, Index) const {}
};
static_assert(Isometry<SignedPermutation> && Isometry<Hadamard> && Isometry<Orthogonal<float>> &&
              Isometry<Orthogonal<double>>);
static_assert(Isometry<BlockDiagonal<SignedPermutation>> && Isometry<BlockDiagonal<Hadamard>> &&
              Isometry<BlockDiagonal<Orthogonal<double>>>);
static_assert(!Isometry<NoInverse> && !Isometry<Matrix<double>> && !Isometry<double>);
static_assert(Isometry<SignFlip> && Isometry<Permutation> && Isometry<HadamardFixingOnes> &&
              Isometry<FixesOnes<Orthogonal<double>>> && Isometry<Kronecker<Hadamard, SignedPermutation>>);
static_assert(ExactIsometry<SignedPermutation> && ExactIsometry<BlockDiagonal<SignedPermutation>>);
static_assert(ExactIsometry<SignFlip> && ExactIsometry<Permutation> &&
              ExactIsometry<Kronecker<Permutation, SignFlip>> && ExactIsometry<FixesOnes<SignedPermutation>>);
static_assert(!ExactIsometry<HadamardFixingOnes> && !ExactIsometry<FixesOnes<Orthogonal<double>>> &&
              !ExactIsometry<Kronecker<Permutation, Hadamard>>);
static_assert(!std::is_convertible_v<Orthogonal<double>, FixesOnes<Orthogonal<double>>> &&
              !std::is_convertible_v<Permutation, SignedPermutation>);
static_assert(!ExactIsometry<Hadamard> && !ExactIsometry<Orthogonal<double>> &&
              !ExactIsometry<BlockDiagonal<Hadamard>>);
static_assert(!std::is_convertible_v<Matrix<double>, Orthogonal<double>>);
static_assert(!std::is_convertible_v<Index, Hadamard>);
static_assert(!std::is_default_constructible_v<SignedPermutation> &&
              !std::is_default_constructible_v<Orthogonal<double>>);
static_assert(std::equality_comparable<SignedPermutation> && !std::equality_comparable<Orthogonal<double>>);

// A gain is never dropped in silence.
static_assert(!std::is_convertible_v<RMSNorm<float>, UnitRMSNorm<float>>);
static_assert(!std::is_constructible_v<UnitRMSNorm<float>, RMSNorm<float>>);
static_assert(std::same_as<decltype(rotate_norm(std::declval<UnitRMSNorm<float>>(), std::declval<Hadamard>())),
                           UnitRMSNorm<float>>);
static_assert(std::same_as<decltype(rotate_norm(std::declval<RMSNorm<float>>(), std::declval<SignedPermutation>())),
                           RMSNorm<float>>);
// (That a gain-carrying norm refuses a dense rotation, and in which words, is compile_fail's.)
template <class N, class G>
concept Rotated = requires(const N& norm, const G& q) {
  rotate_norm(norm, q);
};
static_assert(Rotated<UnitRMSNorm<BF16>, Orthogonal<double>> && !Rotated<UnitRMSNorm<BF16>, Matrix<double>>);

// Heads take a rotation per head, nothing else; storage types do not mix.
template <class P, class G>
concept HeadsRotated = requires(const P& pair, const G& q) {
  rotate_heads(pair, q);
};
static_assert(HeadsRotated<ValueOutput<float>, BlockDiagonal<Hadamard>> && !HeadsRotated<ValueOutput<float>, Hadamard>);
template <class S, class T>
concept Foldable = requires(const RMSNorm<S>& norm, std::span<const Linear<T>> readers) {
  fold_gain(norm, readers);
};
static_assert(Foldable<float, float> && !Foldable<float, double>);

// Moves do not throw.
static_assert(std::is_nothrow_move_constructible_v<SignedPermutation> &&
              std::is_nothrow_move_assignable_v<SignedPermutation>);
static_assert(std::is_nothrow_move_constructible_v<Hadamard> && std::is_nothrow_move_assignable_v<Hadamard>);
static_assert(std::is_nothrow_move_constructible_v<Orthogonal<double>> &&
              std::is_nothrow_move_assignable_v<Orthogonal<double>>);
static_assert(std::is_nothrow_move_constructible_v<BlockDiagonal<Hadamard>> &&
              std::is_nothrow_move_assignable_v<BlockDiagonal<Hadamard>>);
static_assert(std::is_nothrow_move_constructible_v<RMSNorm<BF16>> &&
              std::is_nothrow_move_constructible_v<Linear<BF16>>);

// Errors: one family.
static_assert(std::derived_from<ShapeError, Error> && std::derived_from<InvariantError, Error> &&
              std::derived_from<RangeError, Error>);
static_assert(std::derived_from<FormatError, Error> && std::derived_from<RefusedError, Error> &&
              std::derived_from<IoError, Error>);
static_assert(std::derived_from<Error, std::runtime_error>);

}  // namespace

}  // namespace rmsfold
