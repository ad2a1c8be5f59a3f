// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// From what was typed for --rotation and --seed to a step.

#include <filesystem>

#include <rmsfold/model/rotation.hpp>

#include "commands/commands.hpp"

namespace rmsfold::tool {

/// @throws FormatError when it is neither the name of a kind nor a file.
inline model::Step step_for(const RotationOptions& typed) {
  model::Step step;
  step.seed = typed.seed;
  const auto kind = model::rotation_kind_from_name(typed.rotation);
  if (kind && *kind != model::RotationKind::none && *kind != model::RotationKind::file) {
    step.rotation = *kind;
    return step;
  }
  if (!std::filesystem::exists(typed.rotation)) {
    rmsfold::detail::raise<FormatError>("--rotation {}: neither hadamard, orthogonal, permutation or signed-permutation, nor a file with a matrix", typed.rotation);
  }
  step.rotation = model::RotationKind::file;
  step.file = typed.rotation;
  return step;
}

}  // namespace rmsfold::tool
