// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Tiny checkpoints of every family: config and shapes as transformers saved them (tests/oracle/make_families.py), with
/// random numbers.

#include <filesystem>
#include <string>
#include <vector>

#include <rmsfold/io/json.hpp>

namespace rmsfold::test {

/// One file of tests/data/families.
struct FamilyFixture {
  std::string name;     ///< of the file
  io::Json config;      ///< config.json
  io::Json tensors;     ///< name: shape
  bool dense = false;   ///< whether the oracle expects dense rotations to be possible
  bool signs = false;   ///< whether signed permutations
  bool heads = false;   ///< whether rotations of values per head
  bool moves = true;    ///< whether permutations
};

/// All of them, by name.
[[nodiscard]] const std::vector<FamilyFixture>& family_fixtures();

/// One of them.
[[nodiscard]] const FamilyFixture& family_fixture(const std::string& name);

/// Writes a checkpoint with its tensors: gains away from 1, biases that are not zero.
std::filesystem::path write_family(const std::filesystem::path& directory, const FamilyFixture& fixture,
                                   const std::string& dtype = "F32", std::uint64_t seed = 1);

}  // namespace rmsfold::test
