// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// The library without files and models: norms, rotations, folds and the equivalence checker. Needs Eigen and fmt.

// IWYU pragma: begin_exports
#include <rmsfold/check/equivalence.hpp>
#include <rmsfold/check/metrics.hpp>
#include <rmsfold/check/report.hpp>
#include <rmsfold/core/checked.hpp>
#include <rmsfold/core/concepts.hpp>
#include <rmsfold/core/error.hpp>
#include <rmsfold/core/finite.hpp>
#include <rmsfold/core/half.hpp>
#include <rmsfold/core/parallel.hpp>
#include <rmsfold/core/random.hpp>
#include <rmsfold/core/tolerance.hpp>
#include <rmsfold/fold/gain.hpp>
#include <rmsfold/fold/heads.hpp>
#include <rmsfold/fold/linear.hpp>
#include <rmsfold/fold/rotate.hpp>
#include <rmsfold/group/block_diagonal.hpp>
#include <rmsfold/group/gauge.hpp>
#include <rmsfold/group/haar.hpp>
#include <rmsfold/group/hadamard.hpp>
#include <rmsfold/group/isometry.hpp>
#include <rmsfold/group/orthogonal.hpp>
#include <rmsfold/group/polar.hpp>
#include <rmsfold/group/signed_permutation.hpp>
#include <rmsfold/norm/gain_convention.hpp>
#include <rmsfold/norm/rms_norm.hpp>
#include <rmsfold/tensor/convert.hpp>
#include <rmsfold/tensor/dtype.hpp>
#include <rmsfold/tensor/matrix.hpp>
#include <rmsfold/tensor/shape.hpp>
#include <rmsfold/version.hpp>
// IWYU pragma: end_exports
