// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// The version of the library: the only place it is written; the build reads it from here.

#define RMSFOLD_VERSION_MAJOR 0  ///< Changes with every incompatible release from 1.0 on.
#define RMSFOLD_VERSION_MINOR 2  ///< Before 1.0 this one changes with every incompatible release.
#define RMSFOLD_VERSION_PATCH 0  ///< Corrections only.
