// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// The program's commands: each takes its parsed options, does its work and returns the exit status.

#include <cstdint>
#include <string>

#include "console.hpp"

namespace rmsfold::tool {

/// rmsfold inspect MODEL
struct InspectOptions {
  std::string model;
  bool weights = false;
};
int inspect(const Common& common, const InspectOptions& options);

/// Which rotation, as typed.
struct RotationOptions {
  std::string rotation = "hadamard";
  std::uint64_t seed = 0;
};

/// rmsfold check MODEL | --dim N
struct CheckOptions {
  std::string model;
  RotationOptions rotation;
  std::int64_t dim = 0;
  std::string dtype = "F32";
  std::int64_t tokens = 8;
  bool details = false;
};
int check(const Common& common, const CheckOptions& options);

/// rmsfold finish OUT
struct FinishCommandOptions {
  std::string out;
  bool force = false, no_fsync = false;
};
int finish(const Common& common, const FinishCommandOptions& options);

/// rmsfold adapt COMPANION MODEL TRANSFORMED OUT
struct AdaptCommandOptions {
  std::string companion, model, transformed, out, draft_fc;
  bool force = false, no_fsync = false;
};
int adapt(const Common& common, const AdaptCommandOptions& options);

/// rmsfold fold MODEL OUT, rmsfold rotate MODEL OUT
struct TransformOptions {
  std::string model, out;
  bool is_fold = false;  // the command `fold`
  RotationOptions rotation;
  std::string recipe, part;
  bool heads = false, inverse = false, fold = false, no_fold = false, keep_final_norm = false;
  bool dry_run = false, force = false, no_fsync = false, again = false, resume = false;
};
int transform(const Common& common, const TransformOptions& options);

/// rmsfold verify MODEL OUT
struct VerifyCommandOptions {
  std::string a, b;
  std::int64_t tokens = 256;
  std::uint64_t seed = 0;
  bool no_logits = false, ignore_manifest = false, double_tables = false, record = false;
};
int verify(const Common& common, const VerifyCommandOptions& options);

}  // namespace rmsfold::tool
