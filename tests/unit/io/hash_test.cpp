// SPDX-License-Identifier: MIT
#include <rmsfold/io/hash.hpp>

#include <span>
#include <string>

#include "support/bytes.hpp"
#include "support/catch.hpp"

namespace {

std::span<const std::byte> bytes(const std::string& text) { return std::as_bytes(std::span<const char>(text)); }

}  // namespace

TEST_CASE("hash: values that XXH3 fixes", "[io]") {
  CHECK(rmsfold::io::xxh3_hex({}) == "2d06800538d394c2");
  CHECK(rmsfold::io::xxh3_hex(bytes("abc")) == "78af5f94892f3950");
}

TEST_CASE("hash: how the bytes are cut does not matter, every byte does", "[io]") {
  for (const std::size_t size : {0u, 1u, 7u, 240u, 241u, 1024u, 5000u}) {
    std::string text = rmsfold::test::pattern(size);
    const std::string whole = rmsfold::io::xxh3_hex(bytes(text));
    for (const std::size_t piece : {1u, 63u, 64u, 1000u}) {
      rmsfold::io::Xxh3 hash;
      for (std::size_t at = 0; at < size; at += piece) {
        hash.update(bytes(text).subspan(at, (std::min)(piece, size - at)));
      }
      CHECK(hash.hex() == whole);
    }
    for (std::size_t i = 0; i < size; i += 97) {
      text[i] = static_cast<char>(text[i] ^ 1);
      CHECK(rmsfold::io::xxh3_hex(bytes(text)) != whole);
      text[i] = static_cast<char>(text[i] ^ 1);
    }
  }
}
