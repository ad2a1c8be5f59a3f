// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Transformation and verification of directories, compiled once for all tests.

#include <filesystem>
#include <string>

#include <rmsfold/model/transform.hpp>
#include <rmsfold/model/verify.hpp>

namespace rmsfold::test {

/// A step in words, as on the command line: "fold", "hadamard", "signed-permutation --heads --fold", "orthogonal
/// --inverse". Dense rotations fold unless "--no-fold" is among them.
[[nodiscard]] model::Step step(const std::string& words, std::uint64_t seed = 7);

/// A dense rotation from a file.
[[nodiscard]] model::Step step_from_file(const std::filesystem::path& file);

/// The step that the manifest of a directory describes.
[[nodiscard]] model::Step recorded_step(const std::filesystem::path& directory);

/// Carries a step out.
model::RunSummary run_step(const std::filesystem::path& from, const std::filesystem::path& to, const model::Step& step,
                           model::RunOptions options = {}, const model::OpenOptions& open = {});

/// Compares two directories; without logits unless `tokens` is above 0.
[[nodiscard]] model::VerifyReport run_verify(const std::filesystem::path& a, const std::filesystem::path& b,
                                             Index tokens = 0, bool use_manifest = true,
                                             const model::OpenOptions& open_a = {},
                                             const model::OpenOptions& open_b = {});

/// All findings as text, for messages and for looking in.
[[nodiscard]] std::string text_of(const model::VerifyReport& report);

/// Whether a finding names this tensor and its diagnosis contains this text.
[[nodiscard]] bool finds(const model::VerifyReport& report, const std::string& tensor,
                         const std::string& diagnosis = "");

}  // namespace rmsfold::test
