// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Files assembled by hand, field by field, right or wrong, without the code under test.

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace rmsfold::test {

/// Eight bytes, the lowest first.
[[nodiscard]] std::string little_endian(std::uint64_t value);

/// `count` bytes that differ from their neighbours: byte i is `first + i` modulo 251.
[[nodiscard]] std::string pattern(std::size_t count, unsigned first = 1);

/// `"name":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}`. Nothing is escaped.
[[nodiscard]] std::string entry(std::string_view name, std::string_view dtype, const std::vector<std::uint64_t>& shape,
                                std::uint64_t begin, std::uint64_t end);

/// `{first,second,…}`.
[[nodiscard]] std::string object(const std::vector<std::string>& members);

/// Length, header, data: nothing is checked, nothing is padded.
[[nodiscard]] std::string safetensors(std::string_view header, std::string_view data);

/// F32 tensors one behind the other, name and number of elements each, under a padded header: the plain good case.
[[nodiscard]] std::string good_safetensors(const std::vector<std::pair<std::string, std::uint64_t>>& tensors);

/// `text` with spaces behind it up to `length`.
[[nodiscard]] std::string padded(std::string text, std::size_t length);

/// Writes a file, replacing what is there.
void write_bytes(const std::filesystem::path& path, std::string_view bytes);

/// All bytes of a file.
[[nodiscard]] std::string read_bytes(const std::filesystem::path& path);

}  // namespace rmsfold::test
