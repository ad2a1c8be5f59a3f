// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Files and models: checkpoints, families, plans, and verifying two checkpoints. Needs nlohmann-json and xxHash beside Eigen and fmt.

// IWYU pragma: begin_exports
#include <rmsfold/io/checkpoint.hpp>
#include <rmsfold/io/file.hpp>
#include <rmsfold/io/hash.hpp>
#include <rmsfold/io/json.hpp>
#include <rmsfold/io/output_directory.hpp>
#include <rmsfold/io/safetensors.hpp>
#include <rmsfold/model/adapt.hpp>
#include <rmsfold/model/compare.hpp>
#include <rmsfold/model/config.hpp>
#include <rmsfold/model/decoder.hpp>
#include <rmsfold/model/diagnose.hpp>
#include <rmsfold/model/estimate.hpp>
#include <rmsfold/model/families.hpp>
#include <rmsfold/model/graph.hpp>
#include <rmsfold/model/manifest.hpp>
#include <rmsfold/model/model.hpp>
#include <rmsfold/model/origin.hpp>
#include <rmsfold/model/plan.hpp>
#include <rmsfold/model/quantised.hpp>
#include <rmsfold/model/recipe.hpp>
#include <rmsfold/model/rotation.hpp>
#include <rmsfold/model/shards.hpp>
#include <rmsfold/model/site_check.hpp>
#include <rmsfold/model/sites.hpp>
#include <rmsfold/model/statistics.hpp>
#include <rmsfold/model/tensor_program.hpp>
#include <rmsfold/model/transform.hpp>
#include <rmsfold/model/verify.hpp>
// IWYU pragma: end_exports
