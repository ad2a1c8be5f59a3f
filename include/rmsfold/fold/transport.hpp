// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Lists of channels under a signed permutation: where "neuron 17, negative" went.
///
/// What else is not a weight moves by functions of other headers: activations by `act`, a steering vector, a probe or a mean by `rotate_vector`, tables of
/// them by `rotate_embedding`; autoencoders, adapters and optimizer states by `autoencoder.hpp`, `lora.hpp` and `optimizer.hpp`. Only what is indexed by
/// channel needs a signed permutation: after a dense rotation there is no such channel any more.

#include <cstddef>
#include <span>
#include <vector>

#include <rmsfold/group/embed.hpp>

namespace rmsfold {

/// A channel of the residual stream and a sign: it stands for the vector \f$\pm e_i\f$.
struct SignedIndex {
  Index index = 0;  ///< the channel i, counted from 0
  int sign = 1;     ///< +1 or -1
  /// Same channel and same sign.
  friend bool operator==(const SignedIndex&, const SignedIndex&) = default;
};

/// Where each channel of `list` is in the new basis: \f$(s\,e_i)P = s\,s_j\,e_j\f$ with \f$\pi(j) = i\f$, in the order of the list.
///
/// A list without signs is a list of +1, and comes back with signs: a permutation alone is half of the answer.
/// @throws ShapeError when a channel is outside of 0 … n-1; InvariantError when a sign is not ±1. @par Cost O(n + length of the list).
/// @note Source: Sweeney, Signed-Permutation Coordinate Transport for RMSNorm Transformers (2026).
template <ExactIsometry G>
[[nodiscard]] std::vector<SignedIndex> transport_indices(std::span<const SignedIndex> list, const G& p) {
  const SignedPermutation back = to_signed_permutation(p.inverse());  // channel i of the old basis is channel source()[i] of the new one
  std::vector<SignedIndex> result;
  result.reserve(list.size());
  for (const SignedIndex& entry : list) {
    if (entry.index < 0 || entry.index >= p.dim()) {
      detail::raise<ShapeError>("channel {} is not one of the {} channels, counted from 0, that the permutation moves", entry.index, p.dim());
    }
    if (entry.sign != 1 && entry.sign != -1) detail::raise<InvariantError>("channel {} has sign {}, which is not ±1", entry.index, entry.sign);
    const std::size_t i = static_cast<std::size_t>(entry.index);
    result.push_back({back.source()[i], back.sign()[i] * entry.sign});
  }
  return result;
}

}  // namespace rmsfold
