#!/usr/bin/env bash
# The program's manners: help, version, and what it says to a call that makes no sense.
source "$(dirname "$0")/harness.bash"
source "$RMSFOLD_SOURCE_DIR/tests/cli/models.bash"

run --help
expect_status 0
for command in inspect check fold rotate finish adapt verify; do
  expect_stdout "$command"
done
expect_stdout 'Exit status: 0 done or equal, 1 not equal, 2 bad input or usage, 3 I/O or resource failure'
expect_stdout 'Examples:'
for command in check fold rotate finish adapt verify; do
  run "$command" --help
  expect_status 0
  expect_stdout 'Example'
  expect_stdout '--json'
  expect_stdout '--quiet'
  expect_stdout '--stats'
done

run --version
expect_status 0
version=$(sed -n 's/^#define RMSFOLD_VERSION_[A-Z]* \([0-9]*\).*/\1/p' "$RMSFOLD_SOURCE_DIR/include/rmsfold/version.hpp" | paste -sd .)
expect_stdout "$version"

# Each is refused, says why on standard error, prints nothing on standard output, and makes nothing.
refused() {
  local says=$1
  shift
  run "$@"
  expect_status 2
  expect_stderr "$says"
  checks=$((checks + 1))
  [ ! -s "$work/stdout" ] || fail 'expected nothing on stdout'
  expect_absent out
  rm -rf out
}
refused 'subcommand'
refused 'no-such-command' no-such-command
refused 'MODEL' inspect
refused 'OUT' fold "$demo_model"
refused 'OUT' finish
refused 'nothing was begun' finish out
refused 'no-such-model' inspect "$work/no-such-model"
refused 'no-such-model' fold "$work/no-such-model" out
refused 'no-such-model' verify "$demo_model" "$work/no-such-model"
refused 'not a directory' inspect "$RMSFOLD_SOURCE_DIR/LICENSE"
refused 'config.json' inspect "$work"
refused '--rotation' rotate "$demo_model" out
refused 'nonsense' rotate "$demo_model" out --rotation nonsense
refused 'not a safetensors file' rotate "$demo_model" out --rotation "$RMSFOLD_SOURCE_DIR/LICENSE"
refused '--seed' rotate "$demo_model" out --rotation hadamard --seed -1
refused '--seed' rotate "$demo_model" out --rotation hadamard --seed 1.5
refused '--threads' fold "$demo_model" out --threads 0
refused '--fold' rotate "$demo_model" out --rotation hadamard --fold --no-fold
refused '--recipe' rotate "$demo_model" out --rotation hadamard --recipe "$work/rmsfold.json"
refused '--rotation' rotate "$demo_model" out --heads
refused '--head' fold "$demo_model" out --head maybe
refused 'lm_head.weight' fold "$demo_model" out --head stored
refused 'MODEL or --dim' check
refused '--dim' check --dim 0
refused '--dtype' check --dim 8 --dtype F8
refused '--no-such-option' fold "$demo_model" out --no-such-option

finish
