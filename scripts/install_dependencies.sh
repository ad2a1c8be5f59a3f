#!/usr/bin/env bash
# Installs what building rmsfold needs, on Debian 12 and 13; says what is missing elsewhere. Quick when nothing is.
#   scripts/install_dependencies.sh [MORE_DEBIAN_PACKAGES...]
# Exit status: 0 everything is there, 2 something is missing and could not be installed (the message says what to do).
set -euo pipefail
exec </dev/null

minimum_cmake=3.25
new_enough_cmake() {
  local version
  version=$(cmake --version 2>/dev/null | sed -n '1s/[^0-9]*\([0-9.]*\).*/\1/p') || return 1
  [ -n "$version" ] && [ "$(printf '%s\n' "$minimum_cmake" "$version" | sort -V | head -n 1)" = "$minimum_cmake" ]
}
has_tool() { command -v "$1" >/dev/null 2>&1; }

# Tools count wherever they come from. The header Debian installs stands for each library.
missing=()
has_tool c++ || missing+=(g++)
new_enough_cmake || missing+=(cmake)
has_tool ninja || missing+=(ninja-build)

if has_tool dpkg-query && has_tool apt-get; then
  installed() { [ "$(dpkg-query -W -f='${db:Status-Status}' "$1" 2>/dev/null)" = installed ]; }
  for package in libeigen3-dev libfmt-dev nlohmann-json3-dev libxxhash-dev libcli11-dev catch2 libboost-dev "$@"; do
    installed "$package" || missing+=("$package")
  done
  [ ${#missing[@]} -gt 0 ] || exit 0

  commands=("apt-get update" "apt-get install -y --no-install-recommends ${missing[*]}")
  if [ "$(id -u)" -eq 0 ]; then
    as_root=(env DEBIAN_FRONTEND=noninteractive)
  elif has_tool sudo; then
    as_root=(sudo env DEBIAN_FRONTEND=noninteractive)
  else
    printf 'rmsfold: these packages are missing and only root can install them. Run as root, then start again:\n' >&2
    printf '    %s\n' "${commands[@]}" >&2
    exit 2
  fi
  printf 'Installing %s\n' "${missing[*]}"
  log=$(mktemp)
  trap 'rm -f "$log"' EXIT
  for command in "${commands[@]}"; do
    # shellcheck disable=SC2086  # the words of the command
    if ! "${as_root[@]}" $command -q -o DPkg::Lock::Timeout=300 >"$log" 2>&1; then
      cat "$log" >&2
      printf 'rmsfold: "%s" failed. Run as root, then start again:\n' "$command" >&2
      printf '    %s\n' "${commands[@]}" >&2
      exit 2
    fi
  done
  if ! new_enough_cmake; then
    printf 'rmsfold: CMake %s or newer is needed; this system has %s. Debian 12 and later bring it.\n' \
      "$minimum_cmake" "$(cmake --version 2>/dev/null | head -n 1)" >&2
    exit 2
  fi
  exit 0
fi

# Not Debian: look for the headers where the compiler and the usual prefixes have them, and say what is not there.
has_header() {
  local prefix
  if has_tool c++ && printf '#include <%s>\n' "$1" | c++ -std=c++20 -E -x c++ - >/dev/null 2>&1; then return 0; fi
  for prefix in /usr /usr/local /opt/homebrew /opt/local ${CMAKE_PREFIX_PATH:+${CMAKE_PREFIX_PATH//[:;]/ }}; do
    if [ -e "$prefix/include/$1" ] || [ -e "$prefix/include/eigen3/$1" ]; then return 0; fi
  done
  return 1
}
describe() { printf '    %-16s %s\n' "$1" "$2"; }
lines=()
for tool in ${missing[@]+"${missing[@]}"}; do
  case $tool in
    g++) lines+=("$(describe 'C++ compiler' 'for C++20 (g++ 12, clang 14 or newer)')") ;;
    cmake) lines+=("$(describe CMake "$minimum_cmake or newer, https://cmake.org")") ;;
    ninja-build) lines+=("$(describe Ninja 'https://ninja-build.org')") ;;
  esac
done
has_header Eigen/Core || lines+=("$(describe Eigen '3.4, https://eigen.tuxfamily.org (package names: eigen3-devel, eigen)')")
has_header fmt/format.h || lines+=("$(describe fmt '9 or newer, https://fmt.dev (package names: fmt-devel, fmt)')")
has_header nlohmann/json.hpp || lines+=("$(describe nlohmann-json '3, https://json.nlohmann.me (package names: json-devel, nlohmann-json)')")
has_header xxhash.h || lines+=("$(describe xxHash '0.8, https://xxhash.com (package names: xxhash-devel, xxhash)')")
has_header CLI/CLI.hpp || lines+=("$(describe CLI11 '2, https://github.com/CLIUtils/CLI11 (package names: cli11-devel, cli11)')")
has_header catch2/catch.hpp || has_header catch2/catch_all.hpp ||
  lines+=("$(describe Catch2 '2.13 or 3, https://github.com/catchorg/Catch2 (package names: catch-devel, catch2)')")
has_header boost/multiprecision/eigen.hpp ||
  lines+=("$(describe Boost '1.74 or newer, headers only, https://www.boost.org (package names: boost-devel, boost)')")
for package in "$@"; do
  has_tool "$package" || lines+=("$(describe "$package" '')")
done
[ ${#lines[@]} -gt 0 ] || exit 0
{
  printf 'rmsfold: this is not a Debian system, so nothing was installed. Missing:\n'
  printf '%s\n' "${lines[@]}"
  printf 'Install them with your package manager or from the addresses above (libraries elsewhere: set CMAKE_PREFIX_PATH), then start again.\n'
} >&2
exit 2
