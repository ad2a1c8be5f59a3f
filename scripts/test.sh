#!/usr/bin/env bash
# Installs what is missing, builds everything and runs every test; ends with ctest's summary.
#   scripts/test.sh [CMAKE_OPTIONS...]
set -euo pipefail
exec </dev/null
cd "$(dirname "${BASH_SOURCE[0]}")/.."

scripts/install_dependencies.sh
cmake --preset release -DRMSFOLD_BUILD_TESTS=ON "$@"
cmake --build --preset release
ctest --preset release -j "$(nproc 2>/dev/null || echo 2)"
