// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// A fast fingerprint of tensor bytes (XXH3, 64 bits): it finds accidents, it does not stop forgers.

#include <cstddef>
#include <span>
#include <string>

#ifndef XXH_INLINE_ALL
#define XXH_INLINE_ALL
#endif
#include <xxhash.h>

#include <fmt/format.h>

namespace rmsfold::io {

/// XXH3 of bytes that come in pieces; how they are cut does not matter.
class Xxh3 {
 public:
  /// No bytes yet.
  Xxh3() noexcept { XXH3_64bits_reset(&state_); }

  /// Appends bytes.
  void update(std::span<const std::byte> bytes) noexcept { XXH3_64bits_update(&state_, bytes.data(), bytes.size()); }

  /// Sixteen hexadecimal digits for all bytes so far.
  [[nodiscard]] std::string hex() const { return fmt::format("{:016x}", XXH3_64bits_digest(&state_)); }

 private:
  XXH3_state_t state_;
};

/// Sixteen hexadecimal digits for these bytes.
[[nodiscard]] inline std::string xxh3_hex(std::span<const std::byte> bytes) {
  return fmt::format("{:016x}", XXH3_64bits(bytes.data(), bytes.size()));
}

}  // namespace rmsfold::io
